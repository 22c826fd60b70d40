// What the card of an answer says, in plain words. No function needs a document; text.js explains what a sentence is.

import { joined, languageNames } from "./formats.js";
import { hasText, language, plainText, say } from "./text.js";

const MAX_NAMED = 3; // plants in one sentence
const SURE_ALONE = 0.5; // a photograph says something by itself from here
const MAX_LANGUAGES = 5; // more are counted
const SAME_ALONE = 0.1; // two photographs that agree less than this show different plants
const PROVING_PLANTS = 300; // calibration plants without which export.py proves nothing
const ROUND_NUMBERS = [10, 20, 50, 100]; // of answers, in which people count right ones

/** Returns what the answer says: the rank of the verdict, "unknown_plant", or "contradictory" for different plants. */
export function stateOf({ verdict, images }) {
  if (verdict.rank === "not_a_plant") return verdict.rank;
  if (isContradictory(images)) return "contradictory";
  return verdict.unknown_plant ? "unknown_plant" : verdict.rank;
}

/**
 * Whether two photographs that count, each fairly sure by itself, have almost no plant in common. The answer has what
 * each shows alone, so nothing more is asked of the service.
 */
export function isContradictory(images) {
  const sure = images.filter(({ weight = null, predictions = [] }) => weight !== 0 && predictions[0]?.score >= SURE_ALONE);
  return sure.some((image, index) => sure.slice(index + 1).some((other) => agreement(image, other) < SAME_ALONE));
}

function agreement(one, other) {
  const scores = new Map(one.predictions.map(({ taxon_id: id, score }) => [id, score]));
  return other.predictions.reduce((sum, { taxon_id: id, score }) => sum + Math.min(score, scores.get(id) ?? 0), 0);
}

/** Returns the scientific name of a plant for a sentence; without a genus it is a common name, and not in italics. */
export function nameOf({ scientific_name: name, genus }) {
  return genus === "" ? name : { name };
}

/** Returns the name that people know: the first common name, with a capital, or the scientific one. */
export function knownAs(taxon) {
  const [common] = taxon.common_names;
  return common ? capitalized(common) : nameOf(taxon);
}

const capitalized = (text) => text[0].toLocaleUpperCase(language) + text.slice(1);

/** Returns { label, title, latin }: the words over the name, the name that people know or what stands for it, and the scientific one. */
export function verdictHeading(answer) {
  const { rank, name } = answer.verdict;
  const state = stateOf(answer);
  if (name === null || state === "contradictory") return { label: say(`card.label.${state}`), title: say(`card.title.${state}`), latin: null };
  const label = say(`card.label.${isGuess(answer) ? "guess" : rank}`);
  const best = answer.predictions.find((taxon) => [taxon.scientific_name, taxon.genus, taxon.family][["species", "genus", "family"].indexOf(rank)] === name);
  if (rank === "species") {
    const [common, ...others] = best?.common_names ?? [];
    return { label, title: common ? capitalized(common) : nameOf(best ?? { scientific_name: name }), latin: common ? [nameOf(best), ...others.map((other) => ` · ${other}`)] : null };
  }
  const latin = say(`card.latin.${rank}`, { name: rank === "genus" ? { name } : name });
  const [common] = best?.common_names ?? [];
  if (!common) return { label, title: latin, latin: null };
  return { label, title: isGenusAlone(answer) ? capitalized(common) : say("card.title.or_relative", { name: capitalized(common) }), latin };
}

/** Returns the species that the verdict names, or undefined. */
export const namedSpecies = ({ verdict, predictions }) => predictions.find((taxon) => verdict.rank === "species" && taxon.scientific_name === verdict.name);

/** Whether the plant that the answer names a genus for is known by its genus alone, so that no photograph would say more. */
export const isGenusAlone = ({ verdict, predictions }) => verdict.rank === "genus" && predictions.find(({ genus }) => genus === verdict.name)?.rank === "genus";

/** Whether the verdict has a name of which nothing proves how often it is right. */
export const isGuess = ({ verdict }) => verdict.name !== null && !verdict.promise;

/** Returns whether a model was made from too few photographs to prove any name. */
export const isFromFew = (model) => model?.calibration?.num_plants < PROVING_PLANTS && !Object.values(model.promises).some(Boolean);

/** Returns which harmful plants it may be, to be said above every name; one sentence for each. */
export function harmSentences({ harmful = [] }) {
  return harmful.map(({ harm, prediction }) => say(`harm.${harm}`, { name: knownAs(prediction) }));
}

/** Returns the sentence below the name, or null if the name says it all. */
export function verdictSentence(answer, model) {
  const state = stateOf(answer);
  if (state === "species") {
    const others = (answer.candidates?.taxa ?? []).filter((taxon) => taxon.scientific_name !== answer.verdict.name);
    return others.length ? say("card.alternatives", { names: joined(others.slice(0, MAX_NAMED).map(knownAs), "disjunction") }) : null;
  }
  if (state === "genus" && isGenusAlone(answer)) return say("card.meaning.genus_alone");
  if (state === "uncertain" && isFromFew(model)) return say("card.meaning.few");
  if (state === "unknown_plant" && model) return say("card.meaning.unknown_plant", { n: model.num_taxa });
  return say(state === "unknown_plant" ? "card.meaning.unlike" : `card.meaning.${state}`);
}

/** Returns how far a name can be trusted, in words that anybody understands, or null without a name. */
export function trustSentence(answer) {
  const { promise, name } = answer.verdict;
  if (name === null || stateOf(answer) === "contradictory") return null;
  if (!promise) return say("card.trust.guess");
  const { max_risk: risk } = promise;
  const n = ROUND_NUMBERS.find((all) => Math.abs(risk * all - Math.round(risk * all)) < 1e-9) ?? ROUND_NUMBERS.at(-1);
  return say("card.trust.promise", { right: n - Math.ceil(risk * n - 1e-9), n });
}

/** Returns what is said where the answer rests on plants that were chosen, or null. */
export function choiceSentence({ discarded_mass: mass = null }) {
  return mass !== null && mass >= 0.5 ? say("card.outside_choice") : null;
}

/** Returns why a picture has no share, or null. */
export function unusedSentence({ weight = null, plant_score: score = null }) {
  return weight === 0 && score !== null ? say("picture.unused") : null;
}

/** Returns what a picture shows by itself: a guess, or that it says little. */
export function aloneSentence({ predictions = [] }) {
  const [best] = predictions;
  return best && best.score >= SURE_ALONE ? say("picture.alone", { name: knownAs(best) }) : say("picture.unclear");
}

/** Returns why the place that was sent changed nothing, or null if it counts or none was sent. */
export function placeSentence({ place = null }) {
  return place === null || place.used || !hasText(`place.${place.code}`) ? null : say(`place.${place.code}`);
}

/** Returns the warnings that `placeSentence` does not tell. */
export function otherWarnings(answer) {
  return answer.warnings.filter((warning) => placeSentence(answer) === null || warning !== answer.place.reason);
}

/** Returns what a screen reader says when the answer arrives. */
export function announcement(answer, model) {
  const { label, title } = verdictHeading(answer);
  const trust = trustSentence(answer) ?? verdictSentence(answer, model) ?? "";
  return plainText([...harmSentences(answer).flatMap((sentence) => [sentence, " "]), `${label}: `, title, ". ", trust].flat()).trimEnd();
}

/** Returns the label of the control that restricts the answer to a choice of plants. */
export function choiceLabel(names) {
  return names.length ? say("choice.only", { names: joined(names, "disjunction") }) : say("choice.title");
}

/** Returns what a search for a name found: how many plants, what else the plant is called, or in which languages names are known. */
export function searchSentence({ query, found: { species, status = null }, limit, model }) {
  if (species.length === 0) return `${say("search.none", { query })} ${languagesSentence(model)}`;
  if (status === "synonym") return say("search.synonym", { query, name: species[0].scientific_name });
  if (species.length === limit) return say("search.first", { n: limit });
  return say("count.plants", { n: species.length });
}

/** Returns in which languages plants have names, as a sentence. */
export function languagesSentence(model) {
  const languages = namedLanguages(model);
  const names = languages.length > MAX_LANGUAGES ? [say("count.languages", { n: languages.length })] : languageNames(languages);
  return say("search.languages", { languages: joined([...names, languageNames(["la"])[0]]) });
}

/** Returns that plants have no names in the language of the page, or null if they have some. */
export function foreignNamesSentence(model) {
  return model === null || namedLanguages(model).includes(language) ? null : languagesSentence(model);
}

/** An older service does not tell the languages; its names are English. */
const namedLanguages = (model) => model?.languages ?? ["en"];

/** Returns the name by which a search found a plant, such as a synonym, or "" if it stands among its other names. */
export function foundByWords({ match = null, scientific_name: scientific, common_names: common, genus, family }) {
  if (match === null || [scientific, genus, family, ...common].includes(match.name)) return "";
  return say("search.also_named", { name: match.name });
}

/** Returns the first sentence of what its maker says of the model. */
export function firstSentence({ description = "" }) {
  return description.match(/^.*?[.!?](?=\s|$)/s)?.[0] ?? description; // older browsers know no lookbehind
}

/** Returns how many species and genera the model knows. */
export function knownSentence({ num_species: species, num_genera: genera }) {
  const known = [species > 0 && say("count.species", { n: species }), genera > 0 && say("count.genera", { n: genera })].filter(Boolean);
  return say("known.counts", { counts: joined(known) });
}
