// A list in pages, with a filter. The pages before the present one are kept as where they begin.
import { poll } from "./api.js";
import { field, h, number, redraw } from "./dom.js";

const TYPING_MS = 200;

// `load(filter, after)` gives {rows, total, has_more, problems}; `draw(rows)` an element; `last(rows)` the name of the last row. With
// `everyS` the list is loaded again and again.
export function list({ content, parameters, signal, fail, tell }, { what, load, draw, last, controls = [], everyS = 0 }) {
  const filter = h("input", { name: "filter", type: "search", value: parameters.get("filter") || "", autocomplete: "off", spellcheck: "false" });
  const body = h("div");
  const back = h("button", { type: "button" }, "Previous");
  const on = h("button", { type: "button" }, "Next");
  const place = h("span", { class: "faint" });
  let begins = [""];
  let request = 0;

  async function refresh() {
    request += 1;
    const mine = request;
    try {
      const page = await load(filter.value, begins.at(-1));
      if (mine !== request) return; // a later one is on its way
      redraw(body, page.problems || [], draw(page.rows));
      place.textContent = `${number(page.total)} ${page.total === 1 ? what.slice(0, -1) : what}, page ${begins.length}`;
      back.disabled = begins.length < 2;
      on.disabled = !page.has_more;
      on.onclick = () => { begins.push(last(page.rows)); refresh(); };
      tell("");
    } catch (error) {
      if (mine === request) fail(error);
    }
  }

  function again() {
    begins = [""];
    return refresh();
  }

  let typing = 0;
  filter.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(again, TYPING_MS); });
  back.addEventListener("click", () => { begins.pop(); refresh(); });
  const form = h("form", { role: "search", submit: (event) => { event.preventDefault(); again(); } }, field(`Filter ${what}`, filter), controls);
  for (const each of form.querySelectorAll("input[type=checkbox]")) each.addEventListener("change", again);
  content.append(form, body, h("div", { class: "pager" }, back, on, place));
  return everyS ? poll(refresh, everyS, signal, fail) : again();
}
