// Records of a topic: from an offset, a time, the start or the end, and as they come.
import { bytes, choice, field, h, number, outside, problems, table, tick, time, address, visible } from "./dom.js";
import { Refused, view } from "./api.js";
import { preview, shown } from "./bytes.js";

const LIVE_ROWS = 300;
const BEGINS = [["end", "the last records"], ["start", "the first records"], ["offset", "an offset"], ["time", "a time (UTC)"], ["live", "now on (live)"]];
const MODES = [["auto", "as it is"], ["text", "text"], ["json", "JSON"], ["hex", "hex"]];
const COLUMNS = [["Partition", "number"], ["Offset", "number"], ["Time (UTC)", "time"], ["Key", "key"], ["Value", "mono"], ["Headers", "key"], ["Size", "number"], ["Record"]];

export async function show(page) {
  const { content, parameters, signal } = page;
  const given = (name, otherwise = "") => parameters.get(name) ?? otherwise;
  const wanted = {
    topic: given("topic"), partition: given("partition"), from: given("from", "end"), at: given("at"),
    filter: given("filter"), limit: given("limit", "50"), committed: given("committed"), mode: given("mode", "auto"),
  };
  content.append(form(wanted));
  const result = h("section", { "aria-label": "Records" });
  content.append(result);
  if (!wanted.topic) {
    result.append(h("p", { class: "faint" }, "Name a topic, or choose one under Topics."));
    content.querySelector("input[name=topic]").focus();
  } else if (wanted.from === "live") live(page, wanted, result);
  else await read(page, wanted, result, signal);
}

function form(wanted) {
  const text = (title, name, more = {}) => field(title, h("input", { name, value: wanted[name], autocomplete: "off", spellcheck: "false", ...more }));
  const at = text("Offset or time", "at", { placeholder: "42 or 2026-01-31 12:00", size: "18" });
  const made = h("form", {},
    text("Topic", "topic", { required: true, size: "24" }),
    text("Partition", "partition", { placeholder: "all", inputmode: "numeric", pattern: "[0-9]*", size: "5" }),
    choice("From", "from", BEGINS, wanted.from),
    at,
    text("Contains", "filter", { type: "search", size: "16" }),
    choice("Show as", "mode", MODES, wanted.mode),
    text("At most", "limit", { inputmode: "numeric", pattern: "[0-9]*", size: "4" }),
    tick("Committed only", "committed", wanted.committed === "true"),
    h("button", { type: "submit" }, "Read"),
  );
  const chosen = made.querySelector("select[name=from]");
  const update = () => { at.hidden = !["offset", "time"].includes(chosen.value); };
  chosen.addEventListener("change", update);
  update();
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    const next = Object.fromEntries(new FormData(made));
    next.committed = made.querySelector("input[name=committed]").checked ? "true" : "";
    if (at.hidden) next.at = "";
    const target = address("messages", next);
    if (location.hash === target) dispatchEvent(new HashChangeEvent("hashchange"));
    else location.hash = target;
  });
  return made;
}

function query(wanted) {
  const { topic, partition, filter, limit, committed } = wanted;
  const found = { topic, partition, filter, limit, committed, from: wanted.from, at: wanted.at };
  if (wanted.from === "time") {
    const text = /^\d+$/.test(wanted.at) ? Number(wanted.at) : Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(wanted.at) ? wanted.at : `${wanted.at.trim().replace(" ", "T")}${wanted.at.includes(":") ? "Z" : ""}`);
    if (Number.isNaN(text)) throw new Refused("a time looks like 2026-01-31 12:00, or is a number of milliseconds");
    found.at = text;
  }
  return found;
}

async function read(page, wanted, result, signal) {
  const asked = query(wanted);
  let next = asked;
  const more = h("button", { type: "button" }, "Later records");
  const place = h("p", { class: "faint" });
  const body = h("div");
  const earlier = h("button", { type: "button" }, "Earlier records");
  result.append(body, h("div", { class: "pager" }, earlier, more, place));

  async function load() {
    const found = await view("messages", next, signal);
    draw(body, found.records, wanted, signal);
    body.prepend(...problems(found.problems));
    const behind = Object.entries(found.ends).reduce((sum, [partition, end]) => sum + Math.max(0, end - found.positions[partition]), 0);
    place.textContent = found.is_end
      ? `${number(found.records.length)} of ${number(found.scanned)} records read, up to the end`
      : `${number(found.records.length)} of ${number(found.scanned)} records read, ${number(behind)} follow`;
    more.textContent = found.is_end ? "Look again" : found.records.length ? "Later records" : "Search on";
    const positions = Object.entries(found.positions).map(([partition, at]) => `${partition}:${at}`).join(",");
    more.disabled = !positions;
    more.onclick = () => { next = { ...asked, positions }; load().catch(page.fail); };
    const first = found.records[0];
    earlier.disabled = !wanted.partition || !first || first.offset === 0;
    earlier.title = wanted.partition ? "" : "Choose a partition to go back in";
    earlier.onclick = () => {
      next = { ...asked, from: "offset", at: Math.max(0, first.offset - Number(asked.limit || 50)) };
      load().catch(page.fail);
    };
    page.tell("");
  }

  await load();
}

function draw(body, records, wanted, signal) {
  body.replaceChildren(records.length ? table("Records", COLUMNS, records.map((each) => cells(each, wanted, signal)))
    : h("p", { class: "faint" }, "No records here."));
}

function cells(record, wanted, signal) {
  if (record.problem) {
    return [String(record.partition), String(record.offset), time(record.timestamp), "", h("span", { class: "bad" }, outside(record.problem)), "", "", ""];
  }
  const part = (each, length) => (each === null ? h("span", { class: "null" }, "null") : outside(preview(each, wanted.mode, length)));
  const headers = record.headers.map(([name, value]) => h("div", {}, outside(`${name}: ${value === null ? "null" : preview(value, wanted.mode, 40)}`)));
  if (record.header_count > headers.length) headers.push(h("div", { class: "faint" }, `and ${record.header_count - headers.length} more`));
  const open = h("button", { type: "button", "aria-expanded": "false", "aria-label": `Show record ${record.offset} of partition ${record.partition}` }, "Show");
  open.addEventListener("click", () => toggle(open, record, wanted, signal));
  const size = (record.key?.size || 0) + (record.value?.size || 0);
  return [String(record.partition), String(record.offset), time(record.timestamp), part(record.key, 60), part(record.value, 200), headers, bytes(size), open];
}

// Opens or closes the row below a record, which has all of it.
async function toggle(open, record, wanted, signal) {
  const row = open.closest("tr");
  if (open.getAttribute("aria-expanded") === "true") {
    row.nextSibling.remove();
    open.setAttribute("aria-expanded", "false");
    open.textContent = "Show";
    return;
  }
  open.setAttribute("aria-expanded", "true");
  open.textContent = "Hide";
  const cell = h("td", { colspan: String(COLUMNS.length), class: "details" });
  row.after(h("tr", {}, cell));
  let whole = record;
  try {
    whole = await view("message", { topic: wanted.topic, partition: record.partition, offset: record.offset }, signal);
  } catch (error) {
    if (signal.aborted) return;
    cell.append(h("p", { class: "problem" }, outside(error instanceof Refused ? error.message : "the broker does not answer")));
  }
  const parts = [["Key", whole.key], ["Value", whole.value], ...whole.headers.map(([name, value]) => [`Header ${name}`, value])];
  cell.append(...parts.flatMap(([name, each]) => wholePart(name, each, wanted.mode)));
}

function wholePart(name, each, mode) {
  if (each === null) return [h("h3", {}, outside(name), ": null")];
  const [kind, text] = shown(each, mode);
  const isCut = atob(each.data).length < each.size;
  return [
    h("h3", {}, outside(name), `: ${kind}, ${bytes(each.size)}${isCut ? ", the first of them" : ""}`),
    h("pre", { tabindex: "0", "aria-label": visible(name), dir: "auto" }, visible(text)),
  ];
}

// The live tail. The newest record stands on top.
function live(page, wanted, result) {
  const { signal } = page;
  const { topic, partition, filter, committed } = wanted;
  const asked = Object.entries({ topic, partition, filter, committed, limit: "100" }).filter(([, value]) => value !== "");
  const place = h("p", { class: "faint", "aria-live": "polite" }, "Waiting for records.");
  const stop = h("button", { type: "button" }, "Stop");
  const filled = table("Records as they come, the newest first", COLUMNS, [], true);
  const body = filled.querySelector("tbody");
  result.append(h("div", { class: "pager" }, stop, place), filled);
  let source = null;
  let count = 0;
  let skipped = 0;

  function begin() {
    source = new EventSource(`api/tail?${new URLSearchParams(asked)}`);
    source.onopen = () => page.tell("");
    source.onmessage = (event) => take(JSON.parse(event.data));
    source.onerror = () => page.tell(source.readyState === EventSource.CLOSED ? "the live tail was refused: is there such a topic?" : "the live tail has lost its connection; it tries again");
    stop.textContent = "Stop";
  }

  function take(event) {
    count += event.page.records.length;
    skipped += event.skipped;
    for (const each of event.page.records) {
      body.prepend(h("tr", {}, cells(each, wanted, signal).map((cell, at) => h("td", { class: COLUMNS[at][1] || null }, cell))));
    }
    while (body.children.length > LIVE_ROWS) body.lastChild.remove();
    place.textContent = `${number(count)} records${skipped ? `, ${number(skipped)} skipped to keep up` : ""}`;
    if (event.page.problems.length) page.tell(event.page.problems[0]);
  }

  function end() {
    source.close();
    source = null;
    stop.textContent = "Go on";
  }

  stop.addEventListener("click", () => (source ? end() : begin()));
  signal.addEventListener("abort", () => source && end());
  begin();
}
