// Elements of the page. All that comes from a broker is put in as text: nothing here parses markup.

// What can't be seen, or changes the order of what can (controls, bidirectional overrides, zero widths), is shown as its code.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export function visible(text) {
  return text.replace(UNSEEN, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// An element. Properties are attributes, or listeners where they are functions; null and false leave one out.
export function h(name, properties = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== null && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((each) => each !== null && each !== undefined));
  return element;
}

// Puts new content into a part of the page. What is the same stays, with its selection; the focus stays where it was.
export function redraw(part, ...children) {
  const next = part.cloneNode(false);
  next.append(...children.flat());
  if (next.isEqualNode(part)) return;
  const focusable = () => [...part.querySelectorAll("a, button, input, pre")];
  const at = focusable().indexOf(document.activeElement);
  part.replaceChildren(...next.childNodes);
  if (at >= 0) focusable()[at]?.focus();
}

// Text from outside, apart from the text around it.
export function outside(text, properties = {}) {
  return h("bdi", properties, visible(String(text)));
}

// Columns are [title, class] and rows lists of what stands in the cells. A caption that says what the heading says is for screen
// readers alone.
export function table(caption, columns, rows, isCaptionShown = false) {
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind || null }, title));
  const body = rows.map((cells) => h("tr", {}, cells.map((cell, at) => h("td", { class: columns[at][1] || null }, cell))));
  return h("div", { class: "scroll" }, h("table", {}, h("caption", { class: isCaptionShown ? null : "heard" }, caption), h("thead", {}, h("tr", {}, head)), h("tbody", {}, body)));
}

export function cards(entries) {
  return h("dl", { class: "cards" }, entries.map(([title, value, isBad]) =>
    h("div", { class: isBad ? "bad" : null }, h("dt", {}, title), h("dd", {}, value))));
}

export function link(text, page, parameters = {}) {
  return h("a", { href: address(page, parameters) }, outside(text));
}

export function address(page, parameters) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null));
  return `#/${page}${query.size ? `?${query}` : ""}`;
}

export function field(title, input) {
  return h("label", {}, title, input);
}

export function choice(title, name, options, chosen) {
  return field(title, h("select", { name }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
}

export function tick(title, name, isTicked) {
  return h("label", { class: "beside" }, h("input", { type: "checkbox", name, checked: isTicked }), title);
}

export function problems(found) {
  return found.map((each) => h("p", { class: "problem" }, outside(each)));
}

export function number(value) {
  return value === null || value === undefined ? h("span", { class: "null" }, "unknown") : value.toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return number(value);
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : value} ${units[unit]}`;
}

export function time(milliseconds) {
  const moment = new Date(milliseconds);
  return milliseconds < 0 || Number.isNaN(moment.getTime()) ? String(milliseconds) : moment.toISOString().replace("T", " ").replace("Z", "");
}

// Which of a list are missing is said, as ranges where they are many: 0-4, 7.
export function ranges(numbers) {
  const found = [];
  for (const each of [...numbers].sort((one, other) => one - other)) {
    const last = found.at(-1);
    if (last && last[1] === each - 1) last[1] = each;
    else found.push([each, each]);
  }
  return found.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)).join(", ");
}
