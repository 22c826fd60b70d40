// Builds page elements from data and writes numbers and names the way people read them.
// Data only ever enters the page as text nodes and attributes, never as markup.

/**
 * Makes an element. `className`, `onclick` and other properties are set as properties, names with a dash as attributes;
 * children that are null, undefined or false are left out.
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || !(name in made)) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** A probability as a percentage that never rounds doubt away: 0.9996 is ">99%", 0.0004 is "<0.1%". */
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

/** A scientific name as botanists print it: Latin in italics, "×", "subsp." and their like upright. */
export function scientificName(name) {
  const parts = name.split(/(×|\b(?:subsp|var|f|sp|spp|sect|cv)\.|'[^']+')/).filter(Boolean);
  const upright = (part) => /^(×|\w+\.|')/.test(part);
  return element("span", { className: "scientific", lang: "la" },
    parts.map((part) => (upright(part) ? part : element("i", {}, part))));
}

/** A bar for the eye only; the number beside it speaks. */
export function bar(score) {
  const fill = element("span", { className: "bar__fill" });
  fill.style.setProperty("--score", String(score));
  return element("span", { className: "bar", "aria-hidden": "true" }, fill);
}
