// The figures behind an answer and a model, for those who open "How sure is this?". No function needs a document.

import { percent, percentExact, points } from "./formats.js";
import { stateOf } from "./sentences.js";
import { say } from "./text.js";

const FEW_PICTURES = 1000; // fewer do not calibrate scores to within a few percentage points

/** Returns the sentences that say what a verdict rests on. */
export function trustFigures({ verdict, guess = null, discarded_mass: discarded = null }, model) {
  if (guess !== null) return [say("sure.guess", { n: guess.num_plants, first: percent(guess.first), three: percent(guess.three) })];
  if (verdict.name === null) return [];
  if (verdict.promise) return [promiseSentence(verdict)];
  if (discarded !== null) return [say("sure.choice")];
  return measuredSentences(model);
}

/** Words the test behind a promise: how many plants were named by this rank, how many wrongly, and what follows. */
export function promiseSentence({ rank, promise }) {
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
export function rangeOf({ interval_95: interval }) {
  return interval ? ` ${say("sure.interval", { low: points(interval[0]), high: points(interval[1]) })}` : "";
}

/** Returns { heading, sentences } for the set of candidates, or null if the set says nothing about this answer. */
export function candidateWords(answer) {
  const { candidates = null } = answer;
  if (!candidates?.taxa.length || ["unknown_plant", "not_a_plant"].includes(stateOf(answer))) return null;
  if (!candidates.taxa.some((taxon) => isOf(taxon, answer.verdict))) return null; // a list without the name contradicts it
  const uncalibrated = candidates.guarantee === null ? 0 : candidates.num_uncalibrated_taxa;
  const sentences = [coverageSentence(candidates), uncalibrated > 0 && say("sure.uncalibrated", { n: uncalibrated })];
  return { heading: say("sure.set", { n: candidates.num_taxa }), sentences: sentences.filter(Boolean) };
}

const isOf = (taxon, { rank, name }) => name === null || (rank === "species" ? taxon.scientific_name : taxon[rank]) === name;

function coverageSentence({ coverage, guarantee, score, measured = null }) {
  if (guarantee === null) return say("sure.set_sum", { share: percent(score) });
  const values = { coverage: percentExact(coverage), average: guarantee === "macro" ? say("sure.average") : "" };
  if (measured === null) return say("sure.set_made", values);
  const { covered, num_pictures: n, data } = measured;
  return say("sure.set_measured", { ...values, covered: percent(covered), n, data, range: rangeOf(measured) });
}

/** Returns how much of the probability a choice of plants left out, in words, or null if there was no choice. */
export function discardedSentence({ discarded_mass: mass = null }) {
  if (mass === null) return null;
  return mass < 0.05 ? say("sure.discarded_little") : say("sure.discarded", { share: percent(mass) });
}
