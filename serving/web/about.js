// What the model is and which plants it knows: the footer and the search box.

import { count, element, scientificName } from "./elements.js";
import { keyForm } from "./key.js";
import { describeModel, findSpecies } from "./service.js";

const SPECIES_LIMIT = 20;
const TYPING_PAUSE_MS = 200; // long enough that a typed word is one question, short enough to feel immediate
const HASH_DIGITS = 12; // enough to tell two models apart; the whole hash is in the title

const find = (id) => document.getElementById(id);

export async function introduceModel() {
  try {
    find("model-body").replaceChildren(...modelCard(await describeModel()));
  } catch (problem) {
    find("model-body").replaceChildren(element("p", {}, `The model could not be described. ${problem.message}`));
  }
}

export function openSpeciesSearch() {
  let pause = 0;
  let flight = new AbortController();
  const search = () => {
    clearTimeout(pause);
    flight.abort();
    flight = new AbortController();
    const query = find("species-query").value.trim();
    if (query) listSpecies(query, flight.signal);
    else showSpecies([], "");
  };
  find("species-query").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(search, TYPING_PAUSE_MS);
  });
  find("species-form").addEventListener("submit", (event) => {
    event.preventDefault();
    search();
  });
}

async function listSpecies(query, signal) {
  try {
    const { species, total } = await findSpecies(query, SPECIES_LIMIT, signal);
    showSpecies(species, speciesCount(species.length, total));
  } catch (problem) {
    if (problem.name === "AbortError") return;
    showSpecies([], `${problem.title ?? "The search failed"}. ${problem.message}`);
    if (problem.needsKey) find("species-list").replaceChildren(element("li", {}, keyForm(() => listSpecies(query, signal))));
  }
}

function speciesCount(number, total) {
  if (number === 0) return `None of the ${count(total, "plant")} that it knows has this name.`;
  if (number === SPECIES_LIMIT) return `The first ${SPECIES_LIMIT}; type more to narrow them down.`;
  return `${count(number, "plant")}.`;
}

function showSpecies(taxa, message) {
  find("species-count").textContent = message;
  find("species-list").replaceChildren(...taxa.map((taxon) => element("li", {},
    scientificName(taxon.scientific_name),
    element("span", { className: "species__more" }, [taxon.common_names.join(", "), taxon.family].filter(Boolean).join(" · ")))));
}

function modelCard(model) {
  return [
    element("h2", {}, model.name, " ", element("span", { className: "footer__version" }, model.version)),
    model.description && element("p", { className: "footer__description" }, model.description),
    model.metrics.length > 0 && foldedList("How often it is right", model.metrics.map(metricItem)),
    model.sources.length > 0 && foldedList("What it learned from", model.sources.map(sourceItem)),
    element("p", { className: "footer__hash" }, `Names ${count(model.num_taxa, "plant")} · label hash `, element("code", { title: model.label_hash }, model.label_hash.slice(0, HASH_DIGITS))),
  ].filter(Boolean);
}

function foldedList(title, items) {
  return element("details", { className: "facts" }, element("summary", {}, title), element("ul", {}, items));
}

function metricItem({ name, value, data, num_pictures: numPictures, interval_95: interval }) {
  const figure = interval ? `${share(value)} (95% interval ${share(interval[0])} to ${share(interval[1])})` : String(Number(value.toPrecision(3)));
  return element("li", {}, element("b", {}, name.replaceAll("_", " ")), ` ${figure}, on ${count(numPictures, "picture")} of ${data}`);
}

const share = (value) => `${(value * 100).toFixed(1)}%`;

function sourceItem({ name, num_pictures: numPictures, licences, note }) {
  const terms = Object.entries(licences).map(([license, number]) => `${license} (${number.toLocaleString("en-US")})`).join(", ");
  const facts = [count(numPictures, "picture"), terms && `licenses: ${terms}`, note].filter(Boolean).join("; ");
  return element("li", {}, element("b", {}, name), ` ${facts}`);
}
