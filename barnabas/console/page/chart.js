// A line chart of one series, kept by the page for as long as it is open.
import { h } from "./dom.js";

const POINTS_MAX = 240;
const WIDTH = 600;
const HEIGHT = 120;

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class Chart {
  // `format` makes the text of a value.
  constructor(title, format) {
    this.points = []; // [time in ms, value]
    this.title = title;
    this.format = format;
    this.line = svg("polyline", { points: "" });
    this.picture = svg("svg", { class: "chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.picture.append(this.line);
    this.caption = h("figcaption", {}, title);
    this.element = h("figure", {}, this.picture, this.caption);
  }

  add(at, value) {
    this.points.push([at, value]);
    if (this.points.length > POINTS_MAX) this.points.shift();
    const first = this.points[0][0];
    const span = Math.max(at - first, 1);
    const highest = Math.max(...this.points.map((each) => each[1]));
    this.line.setAttribute("points", this.points.map(([moment, each]) =>
      `${((moment - first) / span * WIDTH).toFixed(1)},${(HEIGHT - 4 - each / Math.max(highest, 1) * (HEIGHT - 8)).toFixed(1)}`).join(" "));
    const text = `${this.title}: now ${this.format(value)}, at most ${this.format(highest)} in the last ${Math.round(span / 1000)} s`;
    this.caption.textContent = text;
    this.picture.setAttribute("aria-label", text);
  }
}
