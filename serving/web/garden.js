// What My plants says of a plant, finds and groups. No function needs a document; kept.js explains what a plant is.

import { isPlace } from "./exif.js";
import { verdictHeading } from "./sentences.js";
import { language, plainText } from "./text.js";

const NEAR = 20; // parts of the widest distance between two places, within which plants share a dot on the map

/** Returns whether a plant has each word of a query in its names, its note or its day. */
export function isFound(plant, query) {
  const text = folded(textOf(plant));
  return folded(query).split(/\s+/).every((word) => text.includes(word));
}

function textOf({ answer, correction, note, date }) {
  const { title, latin } = verdictHeading(answer);
  const [best] = answer.predictions;
  const names = best ? [best.scientific_name, best.family, ...best.common_names] : [];
  return [plainText(title), plainText(latin ?? ""), ...names, correction, note, dayOf(date), date.slice(0, 10)].join(" ");
}

/** Without capitals and accents, which few people type on a phone. */
const folded = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().trim();

/** Returns the day of a time, in words and where the reader is. */
export const dayOf = (date) => new Intl.DateTimeFormat(language, { dateStyle: "long" }).format(new Date(date));

/** Groups plants that grow near each other, as far as the map can tell them apart: a list of { place, plants }. */
export function groupsOf(plants) {
  const placed = plants.filter(({ where }) => where !== null && isPlace(where)); // older versions imported any
  const span = (axis) => Math.max(...placed.map(({ where }) => where[axis])) - Math.min(...placed.map(({ where }) => where[axis]));
  const near = Math.max(1, span("longitude") / NEAR, span("latitude") / NEAR);
  const groups = [];
  for (const plant of placed) {
    const group = groups.find(({ place }) => ["latitude", "longitude"].every((axis) => Math.abs(place[axis] - plant.where[axis]) <= near));
    if (group) group.plants.push(plant);
    else groups.push({ place: plant.where, plants: [plant] });
  }
  return groups;
}
