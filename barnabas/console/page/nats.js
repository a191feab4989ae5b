// Topics that are bound to NATS, as far as this broker leads their partitions.
import { h, link, number, outside, ranges, table, time } from "./dom.js";
import { view } from "./api.js";
import { list } from "./list.js";

const EVERY_S = 3;

export function show(page) {
  page.content.append(h("p", { class: "faint" }, "Bindings of the partitions that this broker leads; counters since the binding was started here."));
  return list(page, {
    what: "bindings",
    everyS: EVERY_S,
    load: (filter, after) => view("report", { name: "nats", filter, after }, page.signal),
    last: (rows) => rows.at(-1).topic,
    draw: (rows) => h("div", {}, rows.length ? bindings(rows) : h("p", { class: "faint" }, "No topic is bound."), warnings(rows), gaps(rows)),
  });
}

function bindings(rows) {
  return table("Bindings", [["Topic", "name"], ["Subjects", "name"], ["Connection"], ["Mode"], ["Partitions"], ["State", "name"], ["In", "number"], ["Appended", "number"], ["Out", "number"], ["Refused", "number"], ["Gaps", "number"]],
    rows.map((each) => {
      const ways = each.ways || [];
      const sum = (name) => number(ways.reduce((total, way) => total + way[name], 0));
      return [
        link(each.topic, "topic", { topic: each.topic }),
        [...(each.subjects || []), each.publish].filter(Boolean).map((subject) => h("div", {}, outside(subject))),
        outside(each.connection || "default"),
        outside(ways.map((way) => way.mode).join(", ") || each.mode || ""),
        ranges(each.partitions),
        h("span", { class: each.state === "running" ? "good" : "bad" }, outside(each.state)),
        sum("messages_in"), sum("appended"), sum("messages_out"), sum("refused"), sum("gap_count"),
      ];
    }));
}

function warnings(rows) {
  const found = rows.filter((each) => each.warning);
  if (!found.length) return "";
  return h("div", {}, h("h2", {}, "Warnings"), table("Warnings", [["Topic", "name"], ["Warning", "name"]], found.map((each) => [outside(each.topic), outside(each.warning)])));
}

function gaps(rows) {
  const found = rows.flatMap((each) => (each.ways || []).flatMap((way) => way.gaps.map((gap) => [each.topic, gap])));
  if (!found.length) return h("p", { class: "faint" }, "No gaps: no messages are known to have been missed.");
  return h("div", {}, h("h2", {}, "Gaps"), table("Times in which messages may have been missed", [["Topic", "name"], ["From", "time"], ["To", "time"], ["Cause", "name"]],
    found.map(([topic, gap]) => [outside(topic), time(gap.begin_ms), gap.end_ms ? time(gap.end_ms) : h("span", { class: "bad" }, "lasts"), outside(gap.cause)]), true));
}
