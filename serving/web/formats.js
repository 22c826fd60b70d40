// Formats numbers, dates and lists for people, in the language of the page.

import { language } from "./text.js";

const number = (options) => new Intl.NumberFormat(language, options);
const digits = (count) => number({ style: "percent", minimumFractionDigits: count, maximumFractionDigits: count });
const whole = digits(0);
const tenth = digits(1);
const exact = number({ style: "percent", maximumSignificantDigits: 4 });

/** Formats a probability as a percentage, never rounded to 0% or 100%: 0.9996 is ">99%", 0.0004 is "<0.1%". */
export function percent(score) {
  if (score === 0) return whole.format(0);
  if (score < 0.001) return `<${tenth.format(0.001)}`;
  if (score < 0.0995) return tenth.format(score);
  if (score < 1 && score >= 0.995) return `>${whole.format(0.99)}`;
  return whole.format(score);
}

/** Formats a limit that somebody chose, such as 0.05 or 0.9, without digits that it does not have: "5%", "90%". */
export const percentExact = (share) => exact.format(share);

/** Formats a difference of two shares in percentage points: 0.159 is "16", 0.004 is "0.4". */
export function points(difference) {
  const value = difference * 100;
  return number({ maximumFractionDigits: value < 9.95 ? 1 : 0 }).format(value);
}

export function seconds(milliseconds) {
  const places = milliseconds < 995 ? 2 : 1;
  return number({ style: "unit", unit: "second", minimumFractionDigits: places, maximumFractionDigits: places })
    .format(milliseconds / 1000);
}

/** Formats a number of bytes: "20 MB", "1.3 MB", "640 kB"; `round` is how the last digit is rounded. */
export function fileSize(numBytes, round = Math.round) {
  const [unit, value] = numBytes < 1e6 ? ["kilobyte", round(numBytes / 1e3)] : ["megabyte", round(numBytes / 1e5) / 10];
  return number({ style: "unit", unit }).format(value);
}

/** Joins texts and { name } to a sentence: "a, b, and c"; `type` is "conjunction" or "disjunction". */
export function joined(items, type = "conjunction") {
  const parts = new Intl.ListFormat(language, { type }).formatToParts(items.map((_, index) => String(index)));
  const sentence = parts.map((part) => (part.type === "element" ? items[Number(part.value)] : part.value));
  return sentence.every((part) => typeof part === "string") ? sentence.join("") : sentence;
}

/** Names the languages of codes such as "de", in the language of the page. */
export function languageNames(codes) {
  const names = new Intl.DisplayNames(language, { type: "language" });
  return codes.map((code) => names.of(code));
}
