// The cluster: counts, brokers, what this broker's event loop does, and how many records it takes.
import { cards, h, number, outside, table } from "./dom.js";
import { poll, view } from "./api.js";
import { Chart } from "./chart.js";

const EVERY_S = 2;

export async function show({ content, signal, fail, tell }) {
  const body = h("div");
  const chart = new Chart("Records per second that this broker appends as leader");
  content.append(body, h("h2", {}, "Throughput"), chart.element);
  let before = null;
  await poll(async () => {
    const found = await view("overview", {}, signal);
    tell("");
    draw(body, found);
    const { records } = found.counts;
    if (before && found.counted_at_ms > before.at) {
      const rate = Math.max(0, records - before.records) / (found.counted_at_ms - before.at) * 1000;
      chart.add(Date.now(), Math.round(rate));
    }
    before = { at: found.counted_at_ms, records };
  }, EVERY_S, signal, fail);
}

function draw(body, found) {
  const { counts } = found;
  const stateOf = (broker) => h("span", { class: broker.state === "serving" ? "good" : "bad" }, broker.state);
  body.replaceChildren(
    cards([
      ["Brokers", number(found.brokers.length), found.brokers.some((each) => each.state === "fenced")],
      ["Active controller", found.controller_id < 0 ? "unknown" : `node ${found.controller_id}`, found.controller_id < 0],
      ["Topics", number(counts.topics)],
      ["Partitions", number(counts.partitions)],
      ["Under-replicated", number(counts.under_replicated), counts.under_replicated > 0],
      ["Without a leader", number(counts.offline), counts.offline > 0],
      ["Event-loop stalls", number(found.loop_stalls)],
      ["Longest stall", `${number(found.loop_longest_ms)} ms`],
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
