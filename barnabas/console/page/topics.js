// All topics, and one of them with its partitions and configs.
import { bytes, cards, h, link, number, outside, problems, ranges, table, tick } from "./dom.js";
import { view } from "./api.js";
import { list } from "./list.js";

const PARTITIONS = 100;

export async function show(page) {
  await (page.name === "topic" ? showTopic(page, page.parameters.get("topic") || "") : showTopics(page));
}

function showTopics(page) {
  const internal = tick("Kafka's own", "internal", false);
  return list(page, {
    what: "topics",
    controls: [internal],
    load: async (filter, after) => {
      const found = await view("topics", { filter, after, internal: internal.querySelector("input").checked }, page.signal);
      return { ...found, rows: found.topics };
    },
    last: (rows) => rows.at(-1).name,
    draw: (rows) => table("Topics", [["Name", "name"], ["Partitions", "number"], ["Replicas", "number"], ["Under-replicated", "number"], ["Without a leader", "number"], ["Read"]],
      rows.map((each) => [
        link(each.name, "topic", { topic: each.name }),
        number(each.partitions),
        number(each.replicas),
        count(each.under_replicated),
        count(each.offline),
        h("a", { href: link("", "messages", { topic: each.name }).getAttribute("href"), "aria-label": `Messages of ${each.name}` }, "messages"),
      ])),
  });
}

function count(value) {
  return h("span", { class: value ? "bad" : null }, number(value));
}

async function showTopic({ content, heading, parameters, signal, fail }, topic) {
  heading.replaceChildren("Topic ", outside(topic));
  document.title = `${topic} – Barnabas`;
  const partitions = h("section", { "aria-label": "Partitions" });
  const configs = h("section", { "aria-label": "Configs" });
  content.append(partitions, configs);
  await showPartitions(partitions, topic, Number(parameters.get("first") || 0), signal, fail);
  await showConfigs(configs, topic, signal);
}

async function showPartitions(section, topic, first, signal, fail) {
  const found = await view("topic", { topic, first, limit: PARTITIONS }, signal);
  const move = (to) => showPartitions(section, topic, to, signal, fail).catch(fail);
  const back = h("button", { type: "button", disabled: first === 0, click: () => move(Math.max(0, first - PARTITIONS)) }, "Previous");
  const on = h("button", { type: "button", disabled: first + PARTITIONS >= found.partition_count, click: () => move(first + PARTITIONS) }, "Next");
  section.replaceChildren(
    cards([
      ["Partitions", number(found.partition_count)],
      ["Id", h("bdi", { class: "mono" }, found.id)],
      ["Kind", found.is_internal ? "Kafka's own" : "topic"],
    ]),
    h("h2", {}, "Partitions"),
    ...problems(found.problems),
    table("Offsets and sizes are the leader's",
      [["Partition", "number"], ["Leader", "number"], ["Epoch", "number"], ["Replicas"], ["In sync"], ["First offset", "number"], ["End offset", "number"], ["Records", "number"], ["Size", "number"], ["Read"]],
      found.partitions.map((each) => [
        String(each.partition),
        each.leader < 0 ? h("span", { class: "bad" }, "none") : String(each.leader),
        String(each.leader_epoch),
        each.replicas.join(", "),
        h("span", { class: each.isr.length < each.replicas.length ? "bad" : null }, each.isr.join(", ") || "none"),
        number(each.start),
        number(each.end),
        number(each.start === null || each.end === null ? null : each.end - each.start),
        bytes(each.size),
        h("a", { href: link("", "messages", { topic, partition: each.partition }).getAttribute("href"), "aria-label": `Messages of partition ${each.partition}` }, "messages"),
      ]), true),
    h("div", { class: "pager" }, back, on, h("span", { class: "faint" }, `partitions ${ranges(found.partitions.map((each) => each.partition))}`)),
  );
}

async function showConfigs(section, topic, signal) {
  const found = await view("configs", { topic }, signal);
  const all = tick("Defaults as well", "defaults", false);
  const body = h("div");
  const draw = () => {
    const isAll = all.querySelector("input").checked;
    const rows = found.filter((each) => isAll || each.source !== "default");
    body.replaceChildren(rows.length ? table("Configs", [["Name", "name"], ["Value", "mono"], ["Source"], ["Behind it", "name"], ["What it does", "name"]], rows.map(configRow))
      : h("p", { class: "faint" }, "No config is set: the defaults count."));
  };
  all.querySelector("input").addEventListener("change", draw);
  section.replaceChildren(h("h2", {}, "Configs"), h("form", {}, all), body);
  draw();
}

function configRow(config) {
  const value = config.is_sensitive ? h("span", { class: "null" }, "hidden") : config.value === null ? h("span", { class: "null" }, "none") : outside(config.value);
  const others = config.synonyms.slice(1).map(([name, each, source]) => h("div", {}, outside(`${name}=${each ?? ""} (${source})`)));
  return [outside(config.name), value, config.source, others, outside(config.documentation || "")];
}
