// My plants: lists what this browser keeps, finds it by name, day and place, and opens it again. Everything stays on the device.

import { showAnswer } from "./answer.js";
import { download, element, find } from "./elements.js";
import { fileOf, plantsIn } from "./exchange.js";
import { dayOf, isFound, titleOf } from "./garden.js";
import { registerWorker, setUpLanguages } from "./install.js";
import { joined } from "./formats.js";
import { notKeptSentence, noteCorrections, sameButtons, setUpSwitch } from "./keep.js";
import { addPlants, allPlants, amendPlant, forgetAllPlants, forgetPlant } from "./kept.js";
import { groupsOf, mapOf } from "./map.js";
import { inShort, rowOf } from "./row.js";
import { modelOf } from "./service.js";
import { say } from "./text.js";

let rows = []; // { plant, item }, the newest first
let chosen = null; // plants of a dot on the map

/** Lists all plants anew. */
async function list() {
  for (const image of document.querySelectorAll("#plants img[src^='blob:']")) URL.revokeObjectURL(image.src);
  const plants = await allPlants();
  chosen = null;
  rows = plants.map((plant) => ({ plant, item: rowOfPlant(plant) }));
  find("plants").replaceChildren(...rows.map(({ item }) => item));
  find("search-form").hidden = find("export").hidden = find("forget-all").hidden = plants.length === 0;
  showMap();
  filter();
}

/** Shows the plants that fit the search and the dot that was chosen. */
function filter() {
  const query = find("search").value;
  for (const { plant, item } of rows) item.hidden = !shownOr(() => isFound(plant, query), true) || (chosen !== null && !chosen.includes(plant));
  const n = rows.filter(({ item }) => !item.hidden).length;
  find("status").textContent = rows.length === 0 ? say("plants.none") : say("plants.count", { n });
}

function showMap() {
  const drawing = groupsOf(rows.map(({ plant }) => plant));
  const dots = drawing.groups.map(({ plants }) => element("button", {
    type: "button", "aria-pressed": "false", "aria-label": say("plants.dot", { n: plants.length, names: joined(plants.map((plant) => shownOr(() => titleOf(plant), "?"))) }),
    onclick: ({ currentTarget }) => choose(currentTarget, plants),
  }, String(plants.length)));
  find("map").replaceChildren(...(dots.length > 1 ? [mapOf(dots, drawing)] : []));
}

/** Shows the plants of a dot alone; a second click shows all again. */
function choose(dot, plants) {
  const isNew = dot.getAttribute("aria-pressed") === "false";
  for (const other of find("map").querySelectorAll("button")) other.setAttribute("aria-pressed", String(isNew && other === dot));
  chosen = isNew ? plants : null;
  filter();
}

function rowOfPlant(plant) {
  const words = shownOr(() => wordsOf(plant), [say("problem.not_shown")]);
  const picture = plant.pictures[0] && pictureOf(plant.pictures[0], "");
  const row = rowOf(picture, words, () => openedPlant(plant, row.querySelector(".many__words")));
  return element("li", { className: "many__row", "data-id": plant.id }, row);
}

/** A plant that cannot be shown, such as one of a newer service, hides no other one. */
function shownOr(build, otherwise) {
  try {
    return build();
  } catch (problem) {
    console.warn(problem);
    return otherwise;
  }
}

const pictureOf = (picture, alt) => element("img", { src: URL.createObjectURL(picture), alt, loading: "lazy" });

const wordsOf = ({ answer, date, correction, name, note }) => inShort(answer, { corrected: correction, note, origin: dayOf(date), own: name });

/** Shows the photographs, the answer, and what a person can do with a plant. */
async function openedPlant(plant, words) {
  const { answer, correction } = plant;
  const pictures = [...plant.pictures, ...(plant.earlier ?? [])];
  const model = await modelOf(answer);
  const asksAgain = model && { ...model, corrections: correction === null ? model.corrections : null };
  return [
    element("div", { className: "plants__pictures" }, pictures.map((picture, index) => pictureOf(picture, say("picture.title", { n: index + 1 })))),
    ...shownOr(() => showAnswer(answer, asksAgain, []), [say("problem.not_shown")]), // no files: a correction takes the bytes that were sent
    ownPart(plant, words),
  ];
}

function ownPart(plant, words) {
  const field = (key, maxLength) => {
    const input = element("input", { type: "text", value: plant[key] ?? "", maxLength, autocomplete: "off" });
    input.addEventListener("change", () => attempt(async () => {
      plant[key] = input.value.trim();
      await amendPlant(plant.id, { [key]: plant[key] });
      words.replaceChildren(...wordsOf(plant));
    }));
    return element("label", {}, say(`plants.${key}`), input);
  };
  const same = shownOr(() => sameButtons(plant, rows.map((row) => row.plant), () => attempt(list)), []);
  const forget = element("button", { type: "button", className: "button button--quiet", onclick: () => attempt(async () => {
    await forgetPlant(plant.id);
    await list();
    find("status").focus();
  }) }, say("plants.forget"));
  return element("div", { className: "search plants__own" }, field("name", 100), field("note", 500), same, forget);
}

async function load({ target }) {
  const [file] = target.files;
  const plants = file ? plantsIn(await file.text()) : [];
  target.value = "";
  if (plants === null) {
    find("status").textContent = say("plants.no_file", { file: file.name });
    return;
  }
  const before = rows.length;
  await addPlants(plants);
  await list();
  find("status").textContent = say("plants.imported", { n: rows.length - before, all: plants.length });
}

async function forgetAll() {
  find("sure").returnValue = "no";
  find("sure").showModal();
  await new Promise((resolve) => { find("sure").addEventListener("close", resolve, { once: true }); });
  if (find("sure").returnValue !== "yes") return;
  await forgetAllPlants();
  await list();
}

/** Does something, and says so if this browser keeps nothing or is full. */
async function attempt(work) {
  try {
    await work();
  } catch (problem) {
    console.warn(problem);
    find("status").textContent = notKeptSentence(problem);
  }
}

find("search").addEventListener("input", filter);
find("search-form").addEventListener("submit", (event) => event.preventDefault());
find("export").addEventListener("click", () => attempt(async () => download(await fileOf(rows.map(({ plant }) => plant)), "my-plants.json")));
find("import").addEventListener("change", (event) => attempt(() => load(event)));
find("forget-all").addEventListener("click", () => attempt(forgetAll));
setUpSwitch(find("keeping"));
registerWorker();
setUpLanguages();
noteCorrections();
attempt(list);
