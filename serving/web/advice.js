// Says what would make the next answer better: short fixed rules on the answer. No function needs a document.

import { joined } from "./formats.js";
import { stateOf } from "./sentences.js";
import { MAX_PICTURES } from "./service.js";

const SMALL_PX = 300; // networks look at 128 to 480 px; a picture much smaller than that has lost its detail
const MAX_ADVICE = 3; // more is not read
const UNCLEAR = new Set(["family", "uncertain", "unknown_plant"]);

/** Returns up to three sentences that say which pictures would help next, the most helpful first. */
export function adviceFor(answer) {
  const state = stateOf(answer);
  const rules = state === "not_a_plant" ? notAPlantAdvice : plantAdvice;
  return rules(answer, state).filter(Boolean).slice(0, MAX_ADVICE);
}

function notAPlantAdvice({ images }) {
  return [
    "Leave out the pot, hands and other things, and take a plain background.",
    smallPictures(images),
  ];
}

function plantAdvice({ images }, state) {
  return [
    unusedPictures(images),
    differentPlants(images),
    state === "unknown_plant" && "Search “Known plants” below: the model cannot name a plant that is not listed.",
    state !== "species" && anotherOrgan(images, state),
    state !== "species" && smallPictures(images),
    UNCLEAR.has(state) && "Go closer, so that the plant fills the picture, and hold still: a sharp picture in daylight says most.",
  ];
}

function anotherOrgan(images, state) {
  const replace = images.length === MAX_PICTURES ? "Replace one picture by" : "Add";
  if (state === "genus") return `${replace} a close picture of a flower, a fruit or a leaf: the species of a genus often differ in these.`;
  return `${replace} a picture of another part: a flower, a leaf or the whole plant.`;
}

function unusedPictures(images) {
  const unused = images.filter(isUnused);
  return unused.length > 0 && `Replace ${pictureList(unused)} by ${unused.length === 1 ? "one" : "others"} that the plant fills.`;
}

/** Notices pictures whose best names are of different families, as those of two plants often are. */
function differentPlants(images) {
  const used = images.filter((image) => !isUnused(image));
  const families = new Set(used.map((image) => image.predictions?.[0]?.family).filter(Boolean));
  return families.size > 1 && "The pictures look like different plants: send only pictures of one plant.";
}

function smallPictures(images) {
  const small = images.filter(({ width, height }) => Math.min(width, height) < SMALL_PX);
  const [verb, pronoun] = small.length === 1 ? ["is", "it"] : ["are", "them"];
  return small.length > 0 && `${capitalized(pictureList(small))} ${verb} small: send ${pronoun} in full size.`;
}

const isUnused = ({ weight = null }) => weight === 0;

function pictureList(images) {
  const numbers = images.map((image) => String(image.index + 1));
  return `${numbers.length === 1 ? "picture" : "pictures"} ${joined(numbers)}`;
}

const capitalized = (text) => text[0].toUpperCase() + text.slice(1);
