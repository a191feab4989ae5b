// A Kafka broker for tests, in a process of its own that ends with this one, however this one ends.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

const STOP_LIMIT_MS = 30_000;

/** Starts `barnabas testbroker`, which is on the path or named by BARNABAS, and resolves when it serves. */
export async function startTestBroker(...args) {
  const program = process.env.BARNABAS || "barnabas";
  const command = ["testbroker", "--parent", String(process.pid), ...args];
  const child = spawn(program, command, { stdio: ["ignore", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout });
  const line = await new Promise((resolve) => {
    lines.once("line", resolve);
    child.once("exit", (status) => resolve(`exited with ${status}`));
    child.once("error", (error) => resolve(`${program} did not start (pip install barnabas): ${error.message}`));
  });
  const found = /^ready .* bootstrap=(\S+) control=(\S+)$/.exec(line);
  if (!found) {
    child.kill();
    throw new Error(`no ready line from the broker: ${line}`);
  }
  return new TestBroker(child, found[1], found[2]);
}

export class TestBroker {
  #child;

  constructor(child, bootstrapServers, control) {
    this.#child = child;
    this.bootstrapServers = bootstrapServers;
    this.control = control;
  }

  /** `await ask("POST", "/rules", {api: "Produce", close: true})`: the answer of the controls. */
  async ask(method, path, body) {
    const response = await fetch(this.control + path, { method, body: body && JSON.stringify(body) });
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${path}: ${text}`);
    return text ? JSON.parse(text) : undefined;
  }

  /** Removes topics, groups and rules: the broker is as new. */
  async reset() {
    await this.ask("POST", "/reset");
  }

  /** Makes a topic; further fields are those of POST /topics. */
  async createTopic(name, fields = {}) {
    await this.ask("POST", "/topics", { name, ...fields });
  }

  /** Adds a fault and returns its id. */
  async addRule(rule) {
    const { id } = await this.ask("POST", "/rules", rule);
    return id;
  }

  /** How many requests the rule has acted on. */
  async hits(id) {
    const rule = await this.ask("GET", `/rules/${id}`);
    return rule.hits;
  }

  /** Ends the broker and waits for its end. One that does not end in 30 seconds is killed. */
  async stop() {
    this.#child.kill();
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const limit = setTimeout(() => this.#child.kill("SIGKILL"), STOP_LIMIT_MS);
    await once(this.#child, "exit");
    clearTimeout(limit);
  }
}
