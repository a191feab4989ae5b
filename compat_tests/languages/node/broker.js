// A Kafka broker for a test file, in a process of its own that ends with this one, however this one ends.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

/** Starts `barnabas testbroker`, which is on the path, and resolves when it serves. */
export async function startTestBroker(...args) {
  const command = ["testbroker", "--parent", String(process.pid), ...args];
  const child = spawn("barnabas", command, { stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout });
  const line = await Promise.race([
    once(lines, "line").then(([text]) => text),
    once(child, "exit").then(([status]) => `exited with ${status}`),
  ]);
  const found = /^ready .* bootstrap=(\S+) control=(\S+)$/.exec(line);
  if (!found) throw new Error(`no ready line from the broker: ${line}`);
  const [, bootstrapServers, control] = found;

  /** `await ask("POST", "/rules", {api: "Produce", close: true})`: the answer. */
  async function ask(method, path, body) {
    const response = await fetch(control + path, { method, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  async function stop() {
    child.kill();
    if (child.exitCode === null && child.signalCode === null) await once(child, "exit");
  }

  return { bootstrapServers, ask, stop };
}
