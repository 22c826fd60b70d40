// Turns an answer into sentences for people. No function needs a document.
// A sentence is a string, or a list of strings and { name } for a scientific name, which is printed in italics.

import { count, joined, numberWord, percent, percentExact, points } from "./formats.js";

const LABELS = {
  species: "Species", genus: "Genus", family: "Family", uncertain: "No clear answer",
  unknown_plant: "Unknown plant", not_a_plant: "No plant",
};
const TITLES = {
  uncertain: "Not sure",
  unknown_plant: "A plant that this model does not seem to know",
  not_a_plant: "This does not look like a plant",
};
const FEW_PICTURES = 1000; // fewer do not calibrate scores to within a few percentage points
const MAX_ALTERNATIVES = 4; // names in one line; more are counted

/** Returns what the answer says: the rank of the verdict, or "unknown_plant" for a plant unlike those of the model. */
export function stateOf({ verdict }) {
  return verdict.unknown_plant ? "unknown_plant" : verdict.rank;
}

/** Returns the name of a plant for a sentence; without a genus it is a common name, and not in italics. */
export function nameOf({ scientific_name: name, genus }) {
  return genus === "" ? name : { name };
}

/** Returns the name of a verdict of rank species or genus for a sentence. */
export function verdictName({ verdict, predictions }) {
  const named = predictions.find((prediction) => verdict.rank === "species" && prediction.scientific_name === verdict.name);
  return named ? nameOf(named) : { name: verdict.name };
}

/** Returns the words over the verdict: its kind, and a title where the verdict has no name. */
export function verdictHeading(answer) {
  const state = stateOf(answer);
  return { label: LABELS[state] ?? state, title: TITLES[state] ?? "Not sure" };
}

/** Returns the sentence that says what the verdict means, or null if its name says it all. */
export function verdictSentence(answer, model) {
  const { verdict, predictions } = answer;
  const best = predictions[0];
  const closest = best ? [" The closest match is ", nameOf(best), `, at ${percent(best.score)}.`] : [];
  const known = model ? `the ${count(model.num_taxa, "plant")}` : "the plants";
  const sentences = {
    genus: () => ["A species of the genus ", { name: verdict.name }, "; the species is not certain."],
    family: () => [`A species of the family ${verdict.name}; neither genus nor species is certain.`],
    uncertain: () => ["The pictures do not show clearly which plant this is.", ...closest],
    unknown_plant: () => [`It looks like a plant, but unlike ${known} that the model knows.`, ...closest],
    not_a_plant: () => ["If it is one, fill the picture with a leaf or a flower and try again."],
  };
  return sentences[stateOf(answer)]?.() ?? null;
}

/** Returns the sentence that says how far a named verdict can be trusted, or null if nothing is known about that. */
export function trustSentence({ verdict, discarded_mass: discarded = null }, model) {
  if (verdict.name === null) return null;
  if (verdict.promise) return promiseSentence(verdict);
  if (discarded !== null) return "Only the plants of your choice were compared, so no test says how often such a name is right.";
  return measuredSentence(model);
}

/** Words the test behind a promise: how many plants were named by this rank, how many wrongly, and what follows. */
export function promiseSentence({ rank, promise }) {
  const { max_risk: risk, confidence, num_named: named, num_wrong: wrong } = promise;
  return `In a test, ${count(named, "plant was", "plants were")} named by ${rank}, and ${wrong === 0 ? "none" : wrong.toLocaleString("en-US")} wrongly. `
    + `So at most ${percentExact(risk)} of such names are wrong, with ${percentExact(confidence)} confidence.`;
}

/** Returns what the model knows: the first sentence of its description, and how many species and genera. */
export function knownSentence({ description = "", num_species: species, num_genera: genera }) {
  const first = description.match(/^.*?[.!?](?=\s|$)/s)?.[0] ?? description; // older browsers know no lookbehind
  const known = [species > 0 && count(species, "species", "species"), genera > 0 && count(genera, "genus", "genera")].filter(Boolean);
  return `${first} It knows ${joined(known)}.`.trimStart();
}

/** Returns how good the scores were on the test pictures of the model, or null if the model does not say. */
export function measuredSentence(model) {
  const metric = (name) => model?.metrics?.find((candidate) => candidate.name === name);
  const right = metric("top1_taxon") ?? metric("top1_output");
  const error = model?.calibration ? model.calibration.ece : metric("ece"); // of the network that runs, if it is known
  if (!right && !error) return null;
  const facts = [
    right && { ...right, words: `the first name was right for ${percent(right.value)}` },
    error && { ...error, words: `scores were ${points(error.value)} percentage points away from the share of right names on average${range(error)}` },
  ].filter(Boolean);
  const pictures = facts.map(({ num_pictures: numPictures, data }) => `On ${count(numPictures, "picture")} of ${data}, `);
  const [first, second = ""] = facts.map(({ words }) => words);
  const joint = pictures[0] === pictures[1] ? ", and " : `. ${pictures[1]}`;
  return `${pictures[0]}${first}${second && joint}${second}.${cautions(model, error)}`;
}

function cautions({ other_data: isOtherData = false, calibration = null }, error) {
  const few = error && calibration !== null && calibration.num_pictures < FEW_PICTURES
    && ` Only ${count(calibration.num_pictures, "picture")} calibrated the scores, so that distance is itself uncertain.`;
  const other = isOtherData && " The model may have been trained on some of these pictures; then the figures are too good.";
  return [few, other].filter(Boolean).join("");
}

const range = ({ interval_95: interval }) => (interval ? ` (95% interval ${points(interval[0])} to ${points(interval[1])})` : "");

/** Returns the heading and the explanation of a set of candidates, or null if the set says nothing about this answer. */
export function candidateWords(answer) {
  const { candidates = null } = answer;
  const state = stateOf(answer);
  if (!candidates?.taxa.length || ["species", "unknown_plant", "not_a_plant"].includes(state)) return null;
  const number = candidates.num_taxa;
  const heading = number === 1 ? "Only this plant is left" : `One of these ${numberWord(number)}`;
  return { heading, explanation: `${coverageSentence(candidates)}${uncalibratedSentence(candidates)}` };
}

/** Returns the line below a species: which other plants the set of candidates holds, or null. */
export function alternativesSentence(answer) {
  const { candidates = null, verdict } = answer;
  if (!candidates?.taxa.length || stateOf(answer) !== "species") return null;
  const others = candidates.taxa.filter((taxon) => taxon.scientific_name !== verdict.name);
  const coverage = candidates.guarantee === null ? "" : ` ${coverageSentence(candidates)}`;
  if (others.length) return ["Also possible: ", ...listedNames(others, candidates.num_taxa - candidates.taxa.length + others.length), `.${coverage}`];
  return coverage ? `No other plant is on the list of candidates.${coverage}` : null;
}

function listedNames(taxa, number) {
  const left = number - MAX_ALTERNATIVES;
  const shown = (left > 0 ? taxa.slice(0, MAX_ALTERNATIVES) : taxa).map(nameOf);
  const items = left > 0 ? [...shown, `${numberWord(left)} more`] : shown;
  return items.flatMap((item, index) => {
    if (index === 0) return [item];
    return [index === items.length - 1 ? " and " : ", ", item];
  });
}

function coverageSentence({ coverage, guarantee, score, num_taxa: number, measured = null }) {
  if (guarantee === null) {
    const sum = number === 1 ? "It has" : "Together they have";
    return `${sum} ${percent(score)} of the probability; no test says how often such a list is right.`;
  }
  const average = guarantee === "macro" ? ", as an average over these plants" : "";
  if (measured === null) return `Such a list is made to hold the right plant in ${percentExact(coverage)} of cases, if the model knows the plant${average}; how often it does was not measured.`;
  const { covered, num_pictures: numPictures, data } = measured;
  return `Such lists held the right plant in ${percent(covered)} of cases${range(measured)} on ${count(numPictures, "picture")} of ${data}${average}; ${percentExact(coverage)} was asked.`;
}

function uncalibratedSentence({ guarantee, num_uncalibrated_taxa: number }) {
  if (guarantee === null || !number) return "";
  return ` ${count(number, "plant that the model knows was", "plants that the model knows were")} not among those tested.`;
}

/** Returns why a picture has no share, or null. */
export function unusedSentence({ weight = null, plant_score: score = null }) {
  return weight === 0 && score !== null ? "This picture was not used: it does not look like a plant." : null;
}

/** Returns how much of the probability a choice of plants left out, in words, or null if there was no choice. */
export function discardedSentence({ discarded_mass: mass = null }) {
  if (mass === null) return null;
  if (mass < 0.05) return "Plants outside your choice played almost no part.";
  if (mass < 0.5) return `Plants outside your choice had ${percent(mass)} of the probability, and were left out.`;
  return `Plants outside your choice had most of the probability (${percent(mass)}), and were left out: this may well be one of them.`;
}

/** Returns why the place that was sent changed nothing, or null if it counts or none was sent. */
export function placeSentence({ place = null }) {
  return place === null || place.used ? null : place.reason;
}

/** Returns the warnings that `placeSentence` does not tell. */
export function otherWarnings(answer) {
  return answer.warnings.filter((warning) => warning !== placeSentence(answer));
}

/** Returns what a screen reader says when the answer arrives. */
export function announcement(answer, model) {
  const { name, score } = answer.verdict;
  const { label, title } = verdictHeading(answer);
  if (name === null) return `${title}. ${plainText(verdictSentence(answer, model) ?? "")}`.trimEnd();
  const [common] = commonNames(answer);
  return `${label}: ${name}${common ? `, ${common}` : ""}, ${percent(score)}.`;
}

/** Returns the common names of a species that the verdict names. */
export function commonNames({ verdict, predictions }) {
  if (verdict.rank !== "species") return [];
  return predictions.find((prediction) => prediction.scientific_name === verdict.name)?.common_names ?? [];
}

/** Returns a sentence as plain text. */
export function plainText(sentence) {
  return [sentence].flat().map((part) => part.name ?? part).join("");
}

/** Returns the label of the control that restricts the answer to a choice of plants. */
export function choiceLabel(names) {
  return names.length ? `Only ${joined(names, "or")}` : "Only some plants (optional)";
}

/** Returns what a search for a name found: how many plants, and what the name is if the service says so. */
export function searchSentence({ species, total, status = null, message = null }, limit) {
  if (status !== null && message) return message;
  if (species.length === 0) return `None of the ${count(total, "plant")} that the model knows has this name.`;
  if (species.length === limit) return `The first ${limit} matches; type more to narrow the search.`;
  return `${count(species.length, "plant")}.`;
}

/** Returns the name by which a search found a plant, such as a synonym, or "" if it stands among its other names. */
export function foundByWords({ match = null, scientific_name: scientific, common_names: common, genus, family }) {
  if (match === null || [scientific, genus, family, ...common].includes(match.name)) return "";
  return `also named ${match.name}`;
}
