// Describes the model in the footer, and searches the plants that it knows.

import { element, find, printed } from "./elements.js";
import { keyForm } from "./key.js";
import { labelHash } from "./lists.js";
import { commonNames, firstSentence, foundByWords, knownAs, knownSentence, measuredSentences, nameOf, searchSentence } from "./sentences.js";
import { addressOf, currentModel, findSpecies, loadModel } from "./service.js";
import { language, say } from "./text.js";

const SPECIES_LIMIT = 20;
const ALL_LIMIT = 1000; // the most that the service lists at once
const TYPING_PAUSE_MS = 200; // long enough for one request per typed word, short enough to feel immediate

/** Describes the model; `addPictures` takes the list with the example that it offers. */
export async function showModel(addPictures) {
  try {
    const model = await loadModel();
    find("knows-text").replaceChildren(element("span", { lang: "en" }, firstSentence(model)), " ", knownSentence(model));
    find("knows-list").textContent = model.num_taxa > ALL_LIMIT ? say("known.which") : say("known.all", { n: model.num_taxa });
    find("knows").hidden = false;
    if (model.example) offerExample(model.example, addPictures).catch(() => {}); // the page works without it
    find("model-body").replaceChildren(...modelCard(model));
    find("scores-measured").textContent = measuredSentences(model).join(" ") || say("scores.not_measured");
  } catch (problem) {
    find("model-body").replaceChildren(element("p", {}, `${say("model.not_loaded")} ${problem.message}`));
  }
}

async function offerExample(address, addPictures) {
  const response = await fetch(addressOf(address));
  if (!response.ok) return;
  const content = await response.blob();
  const file = new File([content], address.split("/").at(-1), { type: content.type });
  find("example-picture").src = URL.createObjectURL(file);
  find("example").hidden = false;
  find("example").addEventListener("click", () => {
    addPictures([file]);
    find("choose").focus(); // the button goes
  });
}

export function setUpSpeciesSearch() {
  let timer = 0;
  let request = new AbortController();
  const search = (listAll = false) => {
    clearTimeout(timer);
    request.abort();
    request = new AbortController();
    const query = find("species-query").value.trim();
    if (query || listAll) listSpecies(query, request.signal);
    else showSpecies([], "");
  };
  for (const link of document.querySelectorAll("a[href='#species']")) link.addEventListener("click", () => search(true));
  find("species-query").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => search(), TYPING_PAUSE_MS);
  });
  find("species-form").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
}

async function listSpecies(query, signal) {
  const limit = query ? SPECIES_LIMIT : ALL_LIMIT;
  try {
    const found = await findSpecies(query, limit, signal);
    showSpecies(found.species, searchSentence({ query, found, limit, model: await currentModel() }));
  } catch (problem) {
    if (problem.name === "AbortError") return;
    showSpecies([], `${problem.title ?? say("search.failed")}. ${problem.message}`);
    if (problem.needsKey) find("species-list").replaceChildren(element("li", {}, keyForm(() => listSpecies(query, signal))));
  }
}

function showSpecies(taxa, message) {
  find("species-count").textContent = message;
  find("species-list").replaceChildren(...taxa.map((taxon) => element("li", {},
    element("span", { className: "species__name" }, printed(knownAs(taxon))),
    element("span", { className: "species__more" }, commonNames(taxon).length > 0 && printed([nameOf(taxon), " · "]),
      [...commonNames(taxon).slice(1), taxon.family, foundByWords(taxon)].filter(Boolean).join(" · ")))));
}

function modelCard(model) {
  return [
    element("h2", {}, model.name, " ", element("span", { className: "footer__version" }, model.version)),
    model.description && element("p", { className: "footer__description", lang: "en" }, model.description),
    model.sources.length > 0 && element("details", { className: "facts" }, element("summary", {}, say("model.sources")), element("ul", {}, model.sources.map(sourceItem))),
    element("p", { className: "footer__hash" }, `${say("count.plants", { n: model.num_taxa })} · `, labelHash(model)),
  ].filter(Boolean);
}

function sourceItem({ name, num_pictures: numPictures, licenses, note }) {
  const licenseCounts = Object.entries(licenses).map(([license, number]) => `${license} (${number.toLocaleString(language)})`).join(", ");
  const facts = [say("count.pictures", { n: numPictures }), licenseCounts && say("model.licenses", { licenses: licenseCounts }), note].filter(Boolean).join("; ");
  return element("li", {}, element("b", {}, name), ` ${facts}`);
}
