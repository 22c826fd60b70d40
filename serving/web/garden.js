// What My plants says of a plant, finds and joins. No function needs a document; kept.js explains what a plant is.

import { verdictHeading } from "./sentences.js";
import { language, plainText } from "./text.js";

const MOST_SAME = 2; // plants that another one may be

/** Returns whether a plant has each word of a query in its names, its note or its day. */
export function isFound(plant, query) {
  const text = folded(textOf(plant));
  return folded(query).split(/\s+/).every((word) => text.includes(word));
}

function textOf({ answer, correction, note, name = "", date }) {
  const { title, latin } = verdictHeading(answer);
  const [best] = answer.predictions;
  const names = best ? [best.scientific_name, best.family, ...best.common_names] : [];
  return [name, plainText(title), plainText(latin ?? ""), ...names, correction, note, dayOf(date), date.slice(0, 10)].join(" ");
}

/** Without capitals and accents, which few people type on a phone. */
const folded = (text) => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().trim();

/** Returns the day of a time, in words and where the reader is. */
export const dayOf = (date) => new Intl.DateTimeFormat(language, { dateStyle: "long" }).format(new Date(date));

/** Returns what a person calls a plant, else what the answer does. */
export const titleOf = ({ name = "", correction, answer }) => name || correction || plainText(verdictHeading(answer).title);

/** Returns the others of the same species, those with a name first: what a plant may be, photographed on another day. */
export function samePlants(plant, plants) {
  const species = ({ answer, correction }) => correction ?? answer.predictions[0]?.scientific_name;
  const same = plants.filter((other) => other.id !== plant.id && species(other) === species(plant));
  return same.sort((one, other) => Boolean(other.name) - Boolean(one.name)).slice(0, MOST_SAME);
}
