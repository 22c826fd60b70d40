// Says which photograph would help next: short fixed rules on the answer. No function needs a document.

import { joined, percent } from "./formats.js";
import { isFromFew, isGenusAlone, stateOf } from "./sentences.js";
import { say } from "./text.js";

const SMALL_PX = 300; // networks look at 128 to 480 px; a picture much smaller than that has lost its detail
const MAX_ADVICE = 3; // more is not read
const EACH_OF_TWO = 0.25; // probability of each plant from which a picture may show two
const ENOUGH_PICTURES = 3; // of which it is measured how often they get a name
const LIKELY = 0.5; // probability from which a family decides what to photograph

/** Family -> the kind of plant whose species are told apart by the same parts. */
const KINDS = {
  Poaceae: "grass", Cyperaceae: "grass", Juncaceae: "grass",
  Apiaceae: "umbel", Asteraceae: "daisy", Fabaceae: "pea", Rosaceae: "rose", Lamiaceae: "mint", Brassicaceae: "cress",
  Pinaceae: "conifer", Cupressaceae: "conifer", Taxaceae: "conifer",
  Fagaceae: "tree", Betulaceae: "tree", Sapindaceae: "tree", Salicaceae: "tree", Juglandaceae: "tree", Ulmaceae: "tree", Oleaceae: "tree",
  Dryopteridaceae: "fern", Polypodiaceae: "fern", Athyriaceae: "fern", Aspleniaceae: "fern", Dennstaedtiaceae: "fern", Pteridaceae: "fern",
};

/** Returns up to three photographs that would help next, as phrases, the most helpful first. */
export function adviceFor(answer, model = null) {
  const state = stateOf(answer);
  const advice = state === "not_a_plant" ? [say("advice.plant_only"), instead("small", answer.images.filter(isSmall))] : plantAdvice(answer, state, model);
  return advice.filter(Boolean).slice(0, MAX_ADVICE);
}

function plantAdvice(answer, state, model) {
  const { images, families, predictions, verdict } = answer;
  const [family] = families;
  const kind = !verdict.unknown_plant && family?.score >= LIKELY ? KINDS[family.name] : undefined;
  // Better photographs change little where the model itself was made from too few.
  const isSure = ((state === "species" || isGenusAlone(answer)) && verdict.promise) || isFromFew(model);
  return [
    instead("unused", images.filter(({ weight = null }) => weight === 0)),
    verdict.name === null && looksLikeTwo(predictions) && say("advice.two_plants"),
    !isSure && say(kind ? `advice.part.${kind}` : "advice.part.any"),
    !isSure && instead("small", images.filter(isSmall)),
    !isSure && state !== "genus" && say("advice.closer"),
  ];
}

/** Returns how often one, two and three photographs of a plant get a name, or null where that was not measured or does not matter. */
export function morePicturesSentence(answer, model) {
  const mayGain = ["genus", "family", "uncertain"].includes(stateOf(answer)) && !isGenusAlone(answer) && answer.images.length < ENOUGH_PICTURES;
  const shares = [1, 2, 3].map((n) => model?.metrics?.find(({ name }) => name === `named_${n}_pictures`));
  if (!mayGain || shares.some((share) => !share)) return null;
  const [one, two, three] = shares.map(({ value }) => percent(value));
  return say("advice.more_pictures", { one, two, three });
}

/** Whether two plants of different families are about as likely, as where one picture shows both. */
function looksLikeTwo([one, other]) {
  return Boolean(other) && other.score >= EACH_OF_TWO && one.family !== other.family;
}

const isSmall = ({ width, height }) => Math.min(width, height) < SMALL_PX;

/** Asks for better photographs in place of some. */
const instead = (fault, images) => images.length > 0 && say(`advice.${fault}`, { n: images.length, numbers: joined(images.map(({ index }) => String(index + 1))) });
