// The choice of plants: an optional control that restricts the answer to some genera, families or species.

import { element, find } from "./elements.js";
import { choiceLabel, searchSentence } from "./sentences.js";
import { currentModel, findSpecies } from "./service.js";
import { say } from "./text.js";

const LIST_PREFIX = "list:";
const MAX_SUGGESTIONS = 8;

/** Sets up the control; names() gives the chosen names, in the order in which they were chosen. */
export function setUpChoice(onChange) {
  let names = [];

  const isNew = (name) => name && !names.some((chosen) => chosen.toLowerCase() === name.toLowerCase());

  async function add(name) {
    find("choice-name").value = "";
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
  suggestWhileTyping(find("choice-name"), find("choice-suggestions"));
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

/** Suggests species in a list while a name is typed; returns what is known of them: the name in small letters -> the id. */
export function suggestWhileTyping(field, list) {
  const known = new Map();
  field.addEventListener("input", async () => {
    if (field.value.trim().length < 2) return;
    const { species } = await findSpecies(field.value, MAX_SUGGESTIONS).catch(() => ({ species: [] }));
    for (const taxon of species) known.set(taxon.scientific_name.toLowerCase(), taxon.taxon_id);
    list.replaceChildren(...species.map((taxon) => element("option", { value: taxon.scientific_name }, taxon.common_names.join(", "))));
  });
  return known;
}
