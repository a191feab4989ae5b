// Requests of the page to the console.

export class Refused extends Error {}

export async function view(name, parameters, signal) {
  const given = Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const response = await fetch(`api/${name}?${new URLSearchParams(given)}`, { signal });
  const answer = await response.json();
  if (!response.ok) throw new Refused(answer.error);
  return answer;
}

// Calls `run` now and every so many seconds, while the page is looked at; an error is shown by `failed` and does not end it.
export async function poll(run, seconds, signal, failed) {
  while (!signal.aborted) {
    if (!document.hidden) {
      try {
        await run();
      } catch (error) {
        if (signal.aborted) return;
        failed(error);
      }
    }
    await new Promise((resolve) => {
      const timer = setTimeout(resolve, seconds * 1000);
      signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
    });
  }
}
