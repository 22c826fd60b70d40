// Says what was measured of a model, for its description. No function needs a document.

import { day, percent, percentExact, points } from "./formats.js";
import { promiseSentence, rangeOf } from "./sure.js";
import { hasText, language, say } from "./text.js";

const RANKS = ["species", "genus", "family"];

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

function fact({ name, value, data, num_pictures: n, interval_95: interval }) {
  const isShare = interval || name === "ece"; // the calibration error of some bundles has no interval
  const share = name === "ece" ? say("facts.points", { points: points(value) }) : percent(value);
  const figure = isShare ? share : value.toLocaleString(language, { maximumSignificantDigits: 3 });
  return {
    name: hasText(`facts.${name}`) ? say(`facts.${name}`) : name.replaceAll("_", " "),
    text: say("facts.on", { figure: `${figure}${rangeOf({ interval_95: interval })}`, n, data }),
  };
}

function coverageSentence({ kind, coverage, covered, num_pictures: n, data, interval_95: interval }) {
  const average = kind === "macro" ? say("sure.average") : "";
  return say("facts.coverage", { coverage: percentExact(coverage), covered: percent(covered), average, range: rangeOf({ interval_95: interval }), n, data });
}

function calibrationSentence({ num_pictures: pictures, num_plants: n, data, fitted }) {
  return say("facts.calibrated", { pictures: say("count.pictures", { n: pictures }), n, data, fitted: day(fitted) });
}
