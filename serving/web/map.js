// A map of places: the outline of the land, which the service brings along, as far as the places reach.

import { element } from "./elements.js";
import { language, say } from "./text.js";

const LEAST_WIDTH = 60; // degrees; the outline is rounded to one degree, so that less would look broken
const MARGIN = 1.3; // the map is so many times as wide as what it has to show

/** Shows dots, which are elements such as buttons, on a map: each at its place, { latitude, longitude }. */
export function mapOf(dots, places) {
  const { left, top, width, height } = extentOf(places);
  dots.forEach((dot, index) => {
    dot.classList.add("map__dot");
    dot.style.setProperty("--x", String((places[index].longitude + 180 - left) / width));
    dot.style.setProperty("--y", String((90 - places[index].latitude - top) / height));
  });
  const part = `#svgView(viewBox(${left},${top},${width},${height}))`;
  const land = element("img", { src: new URL(`land.svg${part}`, import.meta.url).href, alt: "", width: 360, height: 180 });
  return element("div", { className: "map" }, land, dots);
}

/** Returns the part of the outline that holds all places, in its units: degrees from 180° W and from the north pole; twice as wide as high. */
export function extentOf(places) {
  const x = places.map(({ longitude }) => longitude + 180);
  const y = places.map(({ latitude }) => 90 - latitude);
  const span = (values) => Math.max(...values) - Math.min(...values);
  const width = Math.min(360, Math.max(LEAST_WIDTH, MARGIN * span(x), 2 * MARGIN * span(y)));
  const start = (values, size, end) => Math.min(Math.max(0, (Math.max(...values) + Math.min(...values) - size) / 2), end - size);
  return { left: start(x, width, 360), top: start(y, width / 2, 180), width, height: width / 2 };
}

/** Returns { latitude, longitude } in words, such as "48.1° N". */
export function inWords({ latitude, longitude }) {
  return { latitude: say(`place.${latitude < 0 ? "s" : "n"}`, degrees(latitude)), longitude: say(`place.${longitude < 0 ? "w" : "e"}`, degrees(longitude)) };
}

const degrees = (value) => ({ degrees: Math.abs(value).toLocaleString(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 }) });
