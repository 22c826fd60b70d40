// A drawing of where plants grow, from a country down to a garden: dots beside each other, and a scale. No map lies behind it.

import { element } from "./elements.js";
import { isPlace } from "./exif.js";
import { language } from "./text.js";

const METERS_PER_DEGREE = 111_195; // of latitude
const LEAST_WIDTH_M = 20; // a device tells its place to some meters
const MARGIN = 1.3; // the drawing is so many times as wide as what it has to show
const ASPECT = 1.5; // width to height, as style.css has it
const NEAR = 0.05; // share of the drawing within which plants share a dot

/** Shows dots, which are elements such as buttons, each at the spot of its group. */
export function mapOf(dots, { groups, widthM }) {
  dots.forEach((dot, index) => {
    dot.classList.add("map__dot");
    dot.style.setProperty("--x", String(groups[index].x));
    dot.style.setProperty("--y", String(groups[index].y));
  });
  const { lengthM, label } = scaleOf(widthM);
  const scale = element("span", { className: "map__scale" }, label);
  scale.style.setProperty("--share", String(lengthM / widthM));
  return element("div", { className: "map" }, element("div", { className: "map__field" }, dots), scale);
}

/** Returns { groups, widthM }: the plants that stand near each other in a drawing of all, each group with the spot { x, y } of one. */
export function groupsOf(plants) {
  const placed = plants.filter(({ where }) => where !== null && isPlace(where)); // older versions imported any
  const ends = (axis) => [Math.min, Math.max].map((end) => end(...placed.map(({ where }) => where[axis])));
  const middle = (axis) => (ends(axis)[0] + ends(axis)[1]) / 2;
  const eastPerDegree = METERS_PER_DEGREE * Math.cos(middle("latitude") * Math.PI / 180);
  const spread = (axis) => ends(axis)[1] - ends(axis)[0];
  const widthM = Math.max(LEAST_WIDTH_M, MARGIN * spread("longitude") * eastPerDegree, MARGIN * ASPECT * spread("latitude") * METERS_PER_DEGREE);
  const groups = [];
  for (const plant of placed) {
    const x = 0.5 + (plant.where.longitude - middle("longitude")) * eastPerDegree / widthM;
    const y = 0.5 - (plant.where.latitude - middle("latitude")) * METERS_PER_DEGREE * ASPECT / widthM;
    const group = groups.find((other) => Math.max(Math.abs(other.x - x), Math.abs(other.y - y)) <= NEAR);
    if (group) group.plants.push(plant);
    else groups.push({ x, y, plants: [plant] });
  }
  return { groups, widthM };
}

/** Returns { lengthM, label } of a scale that takes at most a third of a drawing: one, two or five times a power of ten. */
export function scaleOf(widthM) {
  const power = 10 ** Math.floor(Math.log10(widthM / 3));
  const lengthM = [5, 2, 1].map((times) => times * power).find((length) => length <= widthM / 3);
  const [unit, value] = lengthM < 1000 ? ["meter", lengthM] : ["kilometer", lengthM / 1000];
  return { lengthM, label: new Intl.NumberFormat(language, { style: "unit", unit }).format(value) };
}
