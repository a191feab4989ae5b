// All groups, and one of them with its members, offsets and lag.
import { cards, h, link, number, outside, problems, ranges, redraw, table } from "./dom.js";
import { poll, view } from "./api.js";
import { list } from "./list.js";
import { Chart } from "./chart.js";

const EVERY_S = 3;

export async function show(page) {
  await (page.name === "group" ? showGroup(page, page.parameters.get("group") || "") : showGroups(page));
}

function showGroups(page) {
  return list(page, {
    what: "groups",
    everyS: EVERY_S,
    load: async (filter, after) => {
      const found = await view("groups", { filter, after }, page.signal);
      return { ...found, rows: found.groups, problems: problems(found.problems) };
    },
    last: (rows) => rows.at(-1).id,
    draw: (rows) => table("Groups", [["Name", "name"], ["Type"], ["State"], ["Protocol"], ["Coordinator", "number"]],
      rows.map((each) => [link(each.id, "group", { group: each.id }), each.type, each.state, outside(each.protocol), String(each.coordinator)])),
  });
}

async function showGroup({ content, heading, signal, fail, tell }, group) {
  heading.replaceChildren("Group ", outside(group));
  document.title = `${group} – Barnabas`;
  const chart = new Chart("Lag of all partitions", number);
  const body = h("div");
  content.append(chart.element, body);
  await poll(async () => {
    const found = await view("group", { group }, signal);
    tell("");
    chart.add(Date.now(), found.total_lag);
    draw(body, found);
  }, EVERY_S, signal, fail);
}

function draw(body, found) {
  const none = () => h("span", { class: "null" }, "none");
  redraw(
    body,
    cards([
      ["State", found.state],
      ["Type", found.type],
      ["Assignor", found.protocol ? outside(found.protocol) : none()],
      ["Epoch", found.epoch === null ? none() : number(found.epoch)],
      ["Coordinator", `broker ${found.coordinator}`],
      ["Members", number(found.member_count)],
      ["Total lag", number(found.total_lag)],
    ]),
    h("h2", {}, "Members"),
    cut(found.members.length, found.member_count),
    found.members.length ? table("Members", [["Member", "name"], ["Instance", "name"], ["Client", "name"], ["Host", "name"], ["Assigned", "name"]],
      found.members.map((each) => [
        outside(each.id),
        each.instance_id === null ? none() : outside(each.instance_id),
        outside(each.client_id),
        outside(each.client_host),
        each.assigned.map(([topic, partitions]) => h("div", {}, outside(topic), ` ${ranges(partitions)}`)),
      ])) : h("p", { class: "faint" }, "No members."),
    h("h2", {}, "Offsets"),
    cut(found.offsets.length, found.offset_count),
    ...problems(found.problems),
    found.offsets.length ? table("Offsets",
      [["Topic", "name"], ["Partition", "number"], [found.type === "share" ? "Finished before" : "Committed", "number"], ["End offset", "number"], ["Lag", "number"], ["Member", "name"]],
      found.offsets.map((each) => [
        link(each.topic, "topic", { topic: each.topic }),
        String(each.partition),
        each.committed < 0 ? none() : number(each.committed),
        number(each.end),
        number(each.lag),
        outside(each.member),
      ])) : h("p", { class: "faint" }, "Nothing is committed."),
  );
}

function cut(shown, all) {
  return shown < all ? h("p", { class: "faint" }, `The first ${number(shown)} of ${number(all)}`) : "";
}
