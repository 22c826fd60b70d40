// Finds page elements, builds them from data, and tells the other parts of the page what happened.
// Data enters the page only as text nodes and attributes, never as markup.

export const find = (id) => document.getElementById(id);

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

/** Prints a scientific name: Latin words in italics; "×" and abbreviations of ranks, such as "subsp.", upright. */
export function scientificName(name) {
  const parts = name.split(/(×|\b(?:subsp|var|f|sp|spp|sect|cv)\.|'[^']+')/).filter(Boolean);
  const upright = (part) => /^(×|\w+\.|')/.test(part);
  return element("span", { className: "scientific", lang: "la" },
    parts.map((part) => (upright(part) ? part : element("i", {}, part))));
}

/** Prints a sentence of sentences.js: text, with its scientific names in italics. */
export function printed(sentence) {
  return [sentence].flat().map((part) => (part.name === undefined ? part : scientificName(part.name)));
}

/** A bar, hidden from screen readers, which read the number beside it. */
export function bar(score) {
  const fill = element("span", { className: "bar__fill" });
  fill.style.setProperty("--score", String(score));
  fill.hidden = score === 0; // a small score still has a visible bar
  return element("span", { className: "bar", "aria-hidden": "true" }, fill);
}

/** Gives a Blob to the person as a file. */
export function download(content, name) {
  const address = URL.createObjectURL(content);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/**
 * Dispatches an event on the document, for whichever part of the page listens.
 *
 * @param name "answered" when an answer is shown: { answer, files, originals, where, element }, with the files that were sent, the
 *   same as they were chosen, the place that was sent or null, and the element that shows the answer; "corrected" when a correction
 *   is kept or, with null, taken back: { answer, correction, element }.
 */
export function tell(name, detail) {
  document.dispatchEvent(new CustomEvent(name, { detail }));
}
