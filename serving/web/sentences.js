// What the card of an answer says, in plain words, and the figures behind it. No function needs a document; text.js explains what a sentence is.

import { joined, languageNames, percent, percentExact, points } from "./formats.js";
import { hasText, language, plainText, say } from "./text.js";

const MAX_NAMED = 3; // plants in one sentence
const MAX_LANGUAGES = 5; // more are counted
const PROBABLE = 0.5; // share of right answers from which the first of the guesses is told as probable
const AMONG_THREE = 2 / 3; // that from which the first three are told to have the plant
const PROVING_PLANTS = 300; // calibration plants without which export.py proves nothing
const FEW_PICTURES = 1000; // fewer do not calibrate scores to within a few percentage points
const ROUND_NUMBERS = [10, 20, 50, 100]; // of answers, in which people count right ones

/** Returns what the answer says: the rank of the verdict, or "unknown_plant". */
export const stateOf = ({ verdict }) => (verdict.unknown_plant && verdict.rank !== "not_a_plant" ? "unknown_plant" : verdict.rank);

/** Returns what is often right in an answer without a name: "probable" the first guess, "one_of_three" one of the first three, or null. */
export function chanceOf(answer) {
  const { guess = null, predictions } = answer;
  if (guess === null || predictions.length === 0 || stateOf(answer) !== "uncertain") return null;
  if (guess.first >= PROBABLE) return "probable";
  return guess.three >= AMONG_THREE ? "one_of_three" : null;
}

/** Returns the plant that is probable although nothing is named, or null. */
export const probablePlant = (answer) => (chanceOf(answer) === "probable" ? answer.predictions[0] : null);

/** Returns the scientific name of a plant for a sentence; without a genus it is a common name, and not in italics. */
export function nameOf({ scientific_name: name, genus }) {
  return genus === "" ? name : { name };
}

/** Returns the common names of all that a taxon stands for: several of a genus are those of its cultivars or kinds, each of a part. */
export const commonNames = ({ rank, common_names: names }) => (rank === "genus" && names.length > 1 ? [] : names);

/** Returns the name that people know: the first common name, with a capital, or the scientific one. */
export function knownAs(taxon) {
  const [common] = commonNames(taxon);
  return common ? capitalized(common) : nameOf(taxon);
}

const capitalized = (text) => text[0].toLocaleUpperCase(language) + text.slice(1);

/** Returns { label, title, latin }: the words over the name, the name that people know or what stands for it, and the scientific one. */
export function verdictHeading(answer) {
  const { rank, name } = answer.verdict;
  const state = chanceOf(answer) ?? stateOf(answer);
  const label = say(`card.label.${isGuess(answer) ? "guess" : state}`);
  if (name === null && state !== "probable") return { label, title: say(`card.title.${state}`), latin: null };
  const best = probablePlant(answer) ?? answer.predictions.find((taxon) => [taxon.scientific_name, taxon.genus, taxon.family][["species", "genus", "family"].indexOf(rank)] === name);
  if (rank === "species" || state === "probable") {
    const [common, ...others] = best ? commonNames(best) : [];
    return { label, title: common ? capitalized(common) : nameOf(best ?? { scientific_name: name }), latin: common ? [nameOf(best), ...others.map((other) => ` · ${other}`)] : null };
  }
  const latin = say(`card.latin.${rank}`, { name: rank === "genus" ? { name } : name });
  const [common] = best ? commonNames(best) : [];
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

/** Returns which harmful plants it may be, a sentence for each: those to be said above every name, or those that only cannot be ruled out. */
export function harmSentences({ harmful = [] }, areLikely = true) {
  return harmful.filter(({ is_likely: isLikely = true }) => isLikely === areLikely)
    .map(({ harm, prediction }) => say(areLikely ? `harm.${harm}` : `harm.unlikely.${harm}`, { name: knownAs(prediction) }));
}

/** Returns in short how a plant harms, or "" if that is not known. */
export const harmWords = ({ harms = [] }) => ["eaten", "touch"].flatMap((kind) => harms.filter((harm) => harm.kind === kind))
  .map((harm) => `${say(`harms.${harm.kind}.${harm.severity}`)}${someParts(harm)}`).join(" · ");

/** Asparagus is food, its berries are not; of what is deadly nobody shall weigh the parts. */
const someParts = ({ kind, severity, parts = "all" }) => (kind === "eaten" && severity !== "deadly" && !parts.startsWith("all") ? ` ${say("harms.some_parts")}` : "");

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

/** Returns how far a name or the guesses can be trusted, in words that anybody understands, or null if nothing tells. */
export function trustSentence(answer) {
  const { verdict: { promise, name }, guess, families } = answer;
  const chance = chanceOf(answer);
  const rounded = (share, n) => Math.floor(share * n + 1e-9); // never in favor of the guess
  if (chance) return say(`card.trust.${chance}`, { first: rounded(guess.first, 10), three: rounded(guess.three, chance === "probable" ? 20 : 10) });
  if (guess?.rank === "family" && guess.first >= PROBABLE) return say("card.trust.family", { name: families[0].name, first: rounded(guess.first, 10) });
  if (name === null) return null;
  if (!promise) return say("card.trust.guess");
  const { max_risk: risk } = promise;
  const n = ROUND_NUMBERS.find((all) => Math.abs(risk * all - Math.round(risk * all)) < 1e-9) ?? ROUND_NUMBERS.at(-1);
  return say("card.trust.promise", { right: n - Math.ceil(risk * n - 1e-9), n });
}

/** Returns what is said where the answer rests on plants that were chosen, or null. */
export const choiceSentence = ({ discarded_mass: mass = null }) => (mass !== null && mass >= 0.5 ? say("card.outside_choice") : null);

/** Returns that a picture does not count, or null. */
export function unusedSentence({ index, weight = null, plant_score: score = null }) {
  return weight === 0 && score !== null ? `${say("picture.title", { n: index + 1 })}: ${say("picture.unused")}` : null;
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
export function foundByWords({ match = null, scientific_name: scientific, genus, family, ...taxon }) {
  if (match === null || [scientific, genus, family, ...commonNames(taxon)].includes(match.name)) return "";
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

/** Returns the sentences that say what a verdict rests on. */
export function trustFigures({ verdict, guess = null, discarded_mass: discarded = null }, model) {
  if (guess !== null && guess.rank !== "family") return [say("sure.guess", { n: guess.num_plants, first: percent(guess.first), three: percent(guess.three) })];
  if (verdict.name === null) return [];
  if (verdict.promise) return [promiseSentence(verdict)];
  if (discarded !== null) return [say("sure.choice")];
  return measuredSentences(model);
}

/** Words the test behind a promise: how many plants were named by this rank, how many wrongly, and what follows. */
function promiseSentence({ rank, promise }) {
  const { max_risk: risk, confidence, num_named: n, num_wrong: wrong } = promise;
  return say("sure.promise", { n, rank: say(`rank.${rank}`), wrong, risk: percentExact(risk), confidence: percentExact(confidence) });
}

/** Returns how good the scores were on the test pictures of the model; nothing if the model does not say. */
export function measuredSentences(model) {
  const metric = (name) => model?.metrics?.find((candidate) => candidate.name === name);
  const right = metric("top1_taxon") ?? metric("top1_output");
  const error = model?.calibration ? model.calibration.ece : metric("ece"); // of the network that runs, if it is known
  return [
    right && say("sure.first_right", { n: right.num_pictures, data: right.data, share: percent(right.value) }),
    error && say("sure.distance", { n: error.num_pictures, data: error.data, points: points(error.value), range: rangeOf(error) }),
    error && model.calibration && model.calibration.num_pictures < FEW_PICTURES && say("sure.few_pictures", { n: model.calibration.num_pictures }),
    (right || error) && model.other_data && say("sure.other_data"),
  ].filter(Boolean);
}

/** Words a 95 % interval, with the space before it; "" without one. */
function rangeOf({ interval_95: interval }) {
  return interval ? ` ${say("sure.interval", { low: points(interval[0]), high: points(interval[1]) })}` : "";
}

/** Returns how much of the probability a choice of plants left out, in words, or null if there was no choice. */
export function discardedSentence({ discarded_mass: mass = null }) {
  if (mass === null) return null;
  return mass < 0.05 ? say("sure.discarded_little") : say("sure.discarded", { share: percent(mass) });
}
