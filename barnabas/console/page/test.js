// The test broker: rules in force, nodes and the last requests of clients.
import { bytes, h, number, outside, redraw, table, time } from "./dom.js";
import { poll, view } from "./api.js";

const EVERY_S = 1;

export async function show({ content, signal, fail, tell }) {
  const body = h("div");
  content.append(body);
  await poll(async () => {
    const found = await view("test", {}, signal);
    tell("");
    redraw(body, h("h2", {}, "Nodes"), nodes(found.nodes), h("h2", {}, "Fault rules"), rules(found.rules), h("h2", {}, "Last requests"), requests(found.requests));
  }, EVERY_S, signal, fail);
}

function nodes(rows) {
  return table("Nodes", [["Id", "number"], ["Port", "number"], ["State"]],
    rows.map((each) => [String(each.id), String(each.port), each.paused ? "paused" : each.running ? "running" : "stopped"]));
}

function rules(rows) {
  if (!rows.length) return h("p", { class: "faint" }, "No rules are in force.");
  return table("Rules, the oldest first", [["Id", "number"], ["API"], ["Does", "name"], ["Asked", "number"], ["Acted", "number"], ["Holds", "number"], ["State"]],
    rows.map((each) => [String(each.id), outside(each.api ?? "any"), outside(each.action), number(each.calls), number(each.hits), number(each.held), each.spent ? "spent" : "in force"]), true);
}

function requests(rows) {
  if (!rows.length) return h("p", { class: "faint" }, "No client has asked anything.");
  return table("The newest first", [["Received (UTC)", "time"], ["Node", "number"], ["API"], ["Version", "number"], ["Client", "name"], ["Topics", "name"], ["Outcome"], ["Took", "number"], ["Request", "number"], ["Answer", "number"], ["Fault", "name"]],
    rows.map((each) => [
      time(each.received_ms), String(each.node), outside(each.api), String(each.version), outside(each.client_id ?? ""), outside(each.topics.join(", ")), outside(each.outcome),
      each.answered_ms === null ? "" : `${number(each.answered_ms - each.received_ms)} ms`, bytes(each.request_bytes), bytes(each.answer_bytes), outside(each.fault ?? ""),
    ]), true);
}
