// A line chart of one series, kept by the page for as long as it is open.
import { h, number } from "./dom.js";

const POINTS_MAX = 240;
const WIDTH = 600;
const HEIGHT = 120;

function svg(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}

export class Chart {
  constructor(title, unit = "") {
    this.points = []; // [time in ms, value]
    this.title = title;
    this.unit = unit;
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
    const highest = Math.max(...this.points.map((each) => each[1]), 1);
    this.line.setAttribute("points", this.points.map(([moment, each]) =>
      `${((moment - first) / span * WIDTH).toFixed(1)},${(HEIGHT - 4 - each / highest * (HEIGHT - 8)).toFixed(1)}`).join(" "));
    const text = `${this.title}: now ${number(value)}${this.unit}, at most ${number(highest)}${this.unit} in the last ${Math.round(span / 1000)} s`;
    this.caption.textContent = text;
    this.picture.setAttribute("aria-label", text);
  }
}
