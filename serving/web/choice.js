// The choice of plants: an optional control that restricts the answer to some genera, families or species.

import { element, find } from "./elements.js";
import { currentModel } from "./model.js";
import { choiceLabel, foundByWords, searchSentence } from "./sentences.js";
import { findSpecies } from "./service.js";
import { say } from "./text.js";

const TYPING_PAUSE_MS = 200; // as in the species search
const LIST_PREFIX = "list:";
const MAX_SUGGESTIONS = 8;
const NUM_SEARCHED = 50; // entries that suggestions are made of; a genus of many species fills the first ones

/** Sets up the control; names() gives the chosen names, in the order in which they were chosen. */
export function setUpChoice(onChange) {
  let names = [];

  const isNew = (name) => name && !names.some((chosen) => chosen.toLowerCase() === name.toLowerCase());

  async function add(name) {
    find("choice-name").value = "";
    showSuggestions([]);
    const fault = isNew(name) ? await faultOf(name) : "";
    find("choice-message").textContent = fault;
    if (fault || !isNew(name)) return; // the same name may have been added while this one was looked up
    names = [...names, name];
    update();
  }

  function remove(name) {
    const position = names.indexOf(name);
    names = names.filter((chosen) => chosen !== name);
    update();
    (find("choice-names").querySelectorAll("button")[Math.min(position, names.length - 1)] ?? find("choice-name")).focus();
  }

  function update() {
    find("choice-label").textContent = choiceLabel(names);
    find("choice-names").replaceChildren(...names.map((name) => element("li", { className: "chip" }, name,
      element("button", { className: "chip__remove", type: "button", "aria-label": say("choice.remove", { name }), onclick: () => remove(name) }, "×"))));
    onChange();
  }

  find("choice-form").addEventListener("submit", (event) => {
    event.preventDefault();
    add(find("choice-name").value.trim());
  });
  suggestWhileTyping(add);
  return { names: () => names };
}

/** Returns why a name cannot restrict the answer, or "" if it can; the operator's lists are not among the plants. */
async function faultOf(name) {
  if (name.startsWith(LIST_PREFIX)) return "";
  try {
    const found = await findSpecies(name, 1);
    if (["known", "synonym"].includes(found.status)) return "";
    return searchSentence({ query: name, found: { ...found, species: [] }, limit: 1, model: await currentModel() });
  } catch {
    return ""; // the service judges the name when pictures are sent
  }
}

function suggestWhileTyping(onPicked) {
  let timer = 0;
  let request = new AbortController();
  find("choice-name").addEventListener("input", (event) => {
    clearTimeout(timer);
    request.abort();
    request = new AbortController();
    const { signal } = request;
    const text = event.target.value.trim();
    // Browsers replace the whole text when a suggestion is picked; Chromium then gives no type of input.
    const isReplaced = event.inputType === undefined || event.inputType === "insertReplacementText";
    if (isReplaced && [...find("choice-suggestions").children].some((option) => option.value === event.target.value)) onPicked(text);
    else if (text) timer = setTimeout(() => suggest(text, signal), TYPING_PAUSE_MS);
    else showSuggestions([]);
  });
}

/** Shows suggestions; without them, after a failure, names can still be typed. */
async function suggest(text, signal) {
  try {
    const { species } = await findSpecies(text, NUM_SEARCHED, signal);
    showSuggestions(suggestionsFor(text, species));
  } catch {
    if (!signal.aborted) showSuggestions([]);
  }
}

function showSuggestions(suggestions) {
  find("choice-suggestions").replaceChildren(...suggestions.map(({ name, hint }) => element("option", { value: name }, hint)));
}

/**
 * Makes suggestions of the plants that a search found: first the families and genera whose names start with the text,
 * then the plants.
 *
 * @returns A list of { name, hint }: the name to send, and what it is.
 */
export function suggestionsFor(text, species) {
  const start = text.toLowerCase();
  const groups = (field) => [...new Set(species.map((taxon) => taxon[field]))]
    .filter((name) => name?.toLowerCase().startsWith(start))
    .map((name) => ({ name, hint: say(`rank.${field}`) }));
  const plants = species.map((taxon) => ({ name: taxon.scientific_name, hint: foundByWords(taxon) || taxon.common_names.join(", ") || say(`rank.${taxon.rank}`) }));
  const all = [...groups("family"), ...groups("genus"), ...plants];
  const firsts = all.filter(({ name }, index) => all.findIndex((other) => other.name === name) === index);
  return firsts.slice(0, MAX_SUGGESTIONS);
}
