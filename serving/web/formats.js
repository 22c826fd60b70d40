// Formats numbers and lists for people. No function needs a document.

const WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];

/** Formats a probability as a percentage, never rounded to 0% or 100%: 0.9996 is ">99%", 0.0004 is "<0.1%". */
export function percent(score) {
  const value = score * 100;
  if (value === 0) return "0%";
  if (value < 0.1) return "<0.1%";
  if (value < 9.95) return `${value.toFixed(1)}%`;
  if (value < 100 && value >= 99.5) return ">99%";
  return `${Math.round(value)}%`;
}

/** Formats a limit that somebody chose, such as 0.05 or 0.9, without digits that it does not have: "5%", "90%". */
export function percentExact(share) {
  return `${Number((share * 100).toPrecision(4))}%`;
}

/** Formats a difference of two shares in percentage points: 0.159 is "16", 0.004 is "0.4". */
export function points(difference) {
  const value = difference * 100;
  return value < 9.95 ? String(Number(value.toFixed(1))) : String(Math.round(value));
}

export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(milliseconds < 995 ? 2 : 1)} s`;
}

/** Formats a number of bytes: "20 MB", "1.3 MB", "640 kB"; `round` is how the last digit is rounded. */
export function fileSize(numBytes, round = Math.round) {
  return numBytes < 1e6 ? `${round(numBytes / 1e3)} kB` : `${round(numBytes / 1e5) / 10} MB`;
}

export function count(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? singular : plural}`;
}

/** Writes numbers up to ten as words. */
export function numberWord(number) {
  return WORDS[number] ?? number.toLocaleString("en-US");
}

/** Joins words as "a", "a and b" or "a, b and c". */
export function joined(words, conjunction = "and") {
  if (words.length < 2) return words.join("");
  return `${words.slice(0, -1).join(", ")} ${conjunction} ${words.at(-1)}`;
}
