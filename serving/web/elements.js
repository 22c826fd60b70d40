// Builds page elements from data, and formats numbers and names.
// Data enters the page only as text nodes and attributes, never as markup.

/**
 * Creates an element. Names of DOM properties such as `className` and `onclick` are set as properties, all others as
 * attributes. Children that are null, undefined or false are skipped.
 */
export function element(tag, properties = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || !(name in created)) created.setAttribute(name, value);
    else created[name] = value;
  }
  created.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return created;
}

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

/** Formats a scientific name: Latin words in italics; "×" and abbreviations of ranks, such as "subsp.", upright. */
export function scientificName(name) {
  const parts = name.split(/(×|\b(?:subsp|var|f|sp|spp|sect|cv)\.|'[^']+')/).filter(Boolean);
  const upright = (part) => /^(×|\w+\.|')/.test(part);
  return element("span", { className: "scientific", lang: "la" },
    parts.map((part) => (upright(part) ? part : element("i", {}, part))));
}

/** A bar, hidden from screen readers, which read the number beside it. */
export function bar(score) {
  const fill = element("span", { className: "bar__fill" });
  fill.style.setProperty("--score", String(score));
  return element("span", { className: "bar", "aria-hidden": "true" }, fill);
}
