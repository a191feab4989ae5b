// The cluster: counts and brokers; and of this broker what it takes and gives, and what its event loop does.
import { bytes, cards, h, number, outside, redraw, table } from "./dom.js";
import { poll, view } from "./api.js";
import { Chart } from "./chart.js";

const EVERY_S = 2;

export async function show({ content, signal, fail, tell }) {
  const body = h("div");
  const perSecond = (value) => `${bytes(value)}/s`;
  const charts = {
    messages_in: new Chart("Records in", (value) => `${number(value)}/s`),
    bytes_in: new Chart("Bytes in", perSecond),
    bytes_out: new Chart("Bytes out, to consumers", perSecond),
  };
  content.append(body, h("h2", {}, "Throughput of this broker"), h("div", { class: "charts" }, Object.values(charts).map((each) => each.element)));
  let before = null;
  await poll(async () => {
    const found = await view("overview", {}, signal);
    tell("");
    draw(body, found);
    const { counted_at_ms: at, counts } = found;
    for (const [name, chart] of Object.entries(charts)) {
      // a topic that is deleted takes its counters along
      if (before && at > before.at) chart.add(Date.now(), Math.round(Math.max(0, counts[name] - before.counts[name]) / (at - before.at) * 1000));
    }
    before = { at, counts };
  }, EVERY_S, signal, fail);
}

function draw(body, found) {
  const { counts } = found;
  const stateOf = (broker) => h("span", { class: broker.state === "serving" ? "good" : "bad" }, broker.state);
  redraw(
    body,
    cards([
      ["Brokers", number(found.brokers.length), found.brokers.some((each) => each.state === "fenced")],
      ["Active controller", found.controller_id < 0 ? "unknown" : `node ${found.controller_id}`, found.controller_id < 0],
      ["Topics", number(counts.topics)],
      ["Partitions", number(counts.partitions)],
      ["Under-replicated", number(counts.under_replicated), counts.under_replicated > 0],
      ["Without a leader", number(counts.offline), counts.offline > 0],
      ["Event-loop stalls", number(found.loop_stalls)],
      ["Longest stall", `${number(found.loop_longest_ms)} ms`],
      ["Event loop idle", `${(found.loop_idle * 100).toFixed(1)} %`],
      ["Version", outside(found.version)],
    ]),
    h("h2", {}, "Brokers"),
    table("Registered brokers", [["Id", "number"], ["State"], ["Listeners", "name"], ["Rack"], ["Leads", "number"], ["Replicas", "number"]],
      found.brokers.map((each) => [
        each.id === found.node_id ? `${each.id} (this)` : String(each.id),
        stateOf(each),
        outside(each.addresses.join(", ")),
        each.rack === null ? h("span", { class: "null" }, "none") : outside(each.rack),
        number(each.leaders),
        number(each.replicas),
      ])),
  );
}
