// Formats numbers for people. No function needs a document.

/** Formats a probability as a percentage that is never rounded to 0% or 100%: 0.9996 is ">99%", 0.0004 is "<0.1%". */
export function percent(score) {
  const value = score * 100;
  if (value > 0 && value < 0.1) return "<0.1%";
  if (value < 9.95) return `${value.toFixed(1)}%`;
  if (value < 100 && value >= 99.5) return ">99%";
  return `${Math.round(value)}%`;
}

export function seconds(milliseconds) {
  return `${(milliseconds / 1000).toFixed(milliseconds < 995 ? 2 : 1)} s`;
}

export function count(number, singular, plural = `${singular}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? singular : plural}`;
}
