// The figures behind an answer and a model, for those who open "How sure is this?". No function needs a document.

import { percent, percentExact, points } from "./formats.js";
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
