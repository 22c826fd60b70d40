// Says what was measured of a model, for its description. No function needs a document.

import { count, percent, percentExact, points } from "./formats.js";
import { promiseSentence } from "./sentences.js";

const RANKS = ["species", "genus", "family"];
const WORDS = {
  top1_taxon: "First name right",
  top5_taxon: "Right name among the first five",
  macro_top1_taxon: "First name right, averaged over the plants",
  ece: "Average distance of the scores from the share of right names",
  nll: "Negative log-likelihood",
};

/** Returns { name, text } for each figure of the model; the calibration error is the one of the network that runs. */
export function measuredFacts({ metrics, calibration }) {
  const others = metrics.filter(({ name }) => !calibration || name !== "ece");
  return [...others, ...(calibration?.ece ? [calibration.ece] : [])].map(fact);
}

/** Returns what calibration plants prove about the names of each rank, and what the scores were calibrated on. */
export function provedFacts({ promises = {}, calibration }) {
  const proved = RANKS.filter((rank) => promises[rank]).map((rank) => promiseSentence({ rank, promise: promises[rank] }));
  return [...proved, ...(calibration?.coverages ?? []).map(coverageSentence), calibration && calibrationSentence(calibration)].filter(Boolean);
}

function fact({ name, value, data, num_pictures: numPictures, interval_95: interval }) {
  const isShare = interval || name === "ece"; // the calibration error of some bundles has no interval
  const range = interval ? ` (95% interval ${points(interval[0])} to ${points(interval[1])})` : "";
  const figure = isShare ? `${points(value)}${name === "ece" ? " percentage points" : "%"}${range}` : String(Number(value.toPrecision(3)));
  return { name: WORDS[name] ?? name.replaceAll("_", " "), text: `${figure}, on ${count(numPictures, "picture")} of ${data}` };
}

function coverageSentence({ kind, coverage, covered, num_pictures: numPictures, data, interval_95: interval }) {
  const range = interval ? ` (95% interval ${points(interval[0])} to ${points(interval[1])})` : "";
  const average = kind === "macro" ? ", averaged over the plants" : "";
  return `Lists of candidates for ${percentExact(coverage)} held the right plant in ${percent(covered)} of cases${average}${range}, on ${count(numPictures, "picture")} of ${data}.`;
}

function calibrationSentence({ num_pictures: numPictures, num_plants: numPlants, data, fitted }) {
  return `The scores were calibrated on ${count(numPictures, "picture")} of ${count(numPlants, "plant")}: ${data}, ${fitted}.`;
}
