// The words of the page: a catalogue for each language, `text/LANGUAGE.json`, with keys and {placeholders}.
// A sentence is a string, or a list of strings and { name } for a scientific name, which is printed in italics.

export const language = document.documentElement.lang;

const response = await fetch(new URL(`text/${language}.json`, import.meta.url));
const catalogue = await response.json();
const plurals = new Intl.PluralRules(language);
const numbers = new Intl.NumberFormat(language);

/**
 * Returns a sentence of the catalogue.
 *
 * @param values The value of each placeholder: a text, a sentence, { name }, or a number, which is formatted; `n` chooses
 *   among the plural forms of an entry that has several.
 */
export function say(key, values = {}) {
  const entry = catalogue[key];
  if (entry === undefined) throw new Error(`the catalogue text/${language}.json has no text ${key}`);
  const template = typeof entry === "string" ? entry : entry[plurals.select(values.n)] ?? entry.other;
  const shown = (value) => (typeof value === "number" ? numbers.format(value) : value);
  const parts = template.split(/\{(\w+)\}/).flatMap((part, index) => (index % 2 ? shown(values[part]) : part));
  return parts.every((part) => typeof part === "string") ? parts.join("") : parts.filter((part) => part !== "");
}

/** Returns whether the catalogue has a text, such as that of a code which only a newer service knows. */
export const hasText = (key) => key in catalogue;

/** Returns a sentence as plain text. */
export function plainText(sentence) {
  return [sentence].flat().map((part) => part.name ?? part).join("");
}
