// The frame of the console: which page is shown, by the address behind #. Pages are loaded when they are first opened.
import { h, outside } from "./dom.js";
import { Refused, view } from "./api.js";

const PAGES = [
  ["", "Overview", "overview.js", []],
  ["topics", "Topics", "topics.js", ["topic"]],
  ["messages", "Messages", "messages.js", []],
  ["groups", "Groups", "groups.js", ["group"]],
  ["nats", "NATS", "nats.js", []],
  ["test", "Test broker", "test.js", []],
];

const main = document.getElementById("main");
const status = document.getElementById("status");
let leaving = new AbortController();
let isFirst = true;

function isShown(page, overview) {
  return page === "nats" ? overview.reports.includes("nats") : page === "test" ? overview.is_test_broker : true;
}

function fail(error) {
  status.textContent = error instanceof Refused ? error.message : "the broker does not answer";
}

async function showPages(current) {
  const overview = await view("overview", {});
  document.getElementById("cluster").replaceChildren("broker ", String(overview.node_id), " of cluster ", outside(overview.cluster_id));
  const items = PAGES.filter(([page]) => isShown(page, overview)).map(([page, title]) =>
    h("li", {}, h("a", { href: `#/${page}`, "aria-current": page === current ? "page" : null }, title)));
  document.getElementById("pages").replaceChildren(...items);
}

async function navigate() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [name, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const found = PAGES.find(([page, , , others]) => page === name || others.includes(name)) || PAGES[0];
  const [page, title, file] = found;
  status.textContent = "";
  const heading = h("h1", { tabindex: "-1" }, title);
  main.replaceChildren(heading);
  document.title = `${title} – Barnabas`;
  if (!isFirst) heading.focus();
  isFirst = false;
  try {
    await showPages(page);
    const module = await import(`./${file}`);
    if (signal.aborted) return;
    const content = h("div");
    main.append(content);
    await module.show({
      name, content, heading, signal,
      parameters: new URLSearchParams(query || ""),
      fail: (error) => { if (!signal.aborted) fail(error); },
      tell: (text) => { status.textContent = text; },
    });
  } catch (error) {
    if (!signal.aborted) {
      fail(error);
      main.append(h("p", { class: "problem", role: "alert" }, outside(status.textContent)));
    }
  }
}

document.getElementById("skip").addEventListener("click", () => main.focus());
document.addEventListener("keydown", (event) => {
  const isTyping = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
  const filter = document.querySelector("input[name=filter]");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && filter) {
    event.preventDefault();
    filter.focus();
  }
});
addEventListener("hashchange", navigate);
navigate();
