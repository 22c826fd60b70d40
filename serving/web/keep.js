// Keeps each answer that the page shows in My plants, and says so below it.

import { blobOf } from "./exchange.js";
import { element } from "./elements.js";
import { placeIn } from "./exif.js";
import { dayOf, samePlants, titleOf } from "./garden.js";
import { allPlants, amendPlant, countPlants, forgetPlant, joinPlants, keepPlant } from "./kept.js";
import { isKept } from "./shrink.js";
import { say } from "./text.js";

const SWITCH = "botanify-keep"; // in local storage: "no" where the person wants nothing kept
const LATEST = "botanify-latest"; // in the tab's session storage: { id, photographs } of the answer that was kept last

let done = Promise.resolve(); // one after the other, so that a correction finds its answer

/** Whether new answers are kept; so it is until somebody switches it off. */
export function isKeeping() {
  try {
    return localStorage.getItem(SWITCH) !== "no";
  } catch {
    return false; // a browser that refuses local storage refuses IndexedDB too
  }
}

/** Makes a checkbox the switch; where the browser stores nothing it cannot be ticked. */
export function setUpSwitch(box) {
  box.checked = isKeeping();
  box.addEventListener("change", () => {
    try {
      localStorage.setItem(SWITCH, box.checked ? "yes" : "no");
    } catch {
      box.checked = false;
    }
  });
}

/** Keeps what the page tells from now on. */
export function setUpKeeping() {
  document.addEventListener("answered", ({ detail }) => {
    if (isKeeping() && detail.answer.verdict.rank !== "not_a_plant") inTurn(() => keepAnswer(detail));
  });
  noteCorrections();
}

/** Notes in the plants that are kept what a person says about their answers. */
export function noteCorrections() {
  document.addEventListener("corrected", ({ detail: { answer, correction } }) => {
    inTurn(() => amendPlant(answer.request_id, { correction: correction?.name ?? null }));
  });
}

function inTurn(work) {
  done = done.then(work).catch((problem) => console.warn(problem)); // the page works without My plants
}

/** An answer about more or fewer photographs of the same plant, or in another language, takes the place of the one before. */
async function keepAnswer({ answer, files, originals, where, element: shown }) {
  const line = element("p", { className: "kept fineprint", role: "status" });
  shown.append(line);
  try {
    const latest = JSON.parse(sessionStorage.getItem(LATEST) ?? "{}");
    const photographs = originals.map(({ name, size }) => `${size} ${name}`);
    const replacedId = photographs.some((photograph) => latest.photographs?.includes(photograph)) ? latest.id : null;
    const images = answer.images.map((image) => ({ ...image, preview: null })); // the pictures are kept by themselves
    const pictures = files.map((file, index) => {
      const preview = answer.images[index]?.preview; // the service shows what this browser cannot
      return isKept(file) ? file : preview && blobOf(preview);
    });
    await keepPlant({
      id: answer.request_id, date: new Date().toISOString(), answer: { ...answer, images }, pictures: pictures.filter(Boolean), earlier: [],
      correction: null, name: "", note: "", where: await placeIn(originals) ?? where,
    }, replacedId);
    sessionStorage.setItem(LATEST, JSON.stringify({ id: answer.request_id, photographs }));
    const plants = await allPlants();
    const plant = plants.find(({ id }) => id === answer.request_id);
    line.replaceChildren(...keptWords(line, plant.id), ...sameButtons(plant, plants, () => line.replaceChildren(...keptWords(line, plant.id))));
    const isFirst = replacedId === null && await countPlants() === 1;
    if (isFirst) navigator.storage?.persist?.().catch(() => {}); // some browsers ask the person: once is enough, and nothing waits for it
  } catch (problem) {
    line.replaceChildren(notKeptSentence(problem));
  }
}

function keptWords(line, id) {
  const forget = element("button", {
    type: "button", className: "link",
    onclick: async () => {
      await forgetPlant(id);
      line.textContent = say("plants.forgotten");
    },
  }, say("plants.forget"));
  return [element("a", { href: new URL("plants.html", import.meta.url) }, say("plants.kept")), " · ", forget];
}

/** Returns buttons that join a plant to others of its species: the newer of the two keeps its answer. */
export function sameButtons(plant, plants, onJoined) {
  return samePlants(plant, plants).map((other) => element("button", {
    type: "button", className: "button button--quiet kept__same",
    onclick: async () => {
      const [newer, earlier] = plant.date < other.date ? [other, plant] : [plant, other];
      await joinPlants(newer.id, earlier.id);
      await onJoined();
    },
  }, say("plants.same", { name: titleOf(other), day: dayOf(other.date) })));
}

/** Says why something could not be kept. */
export const notKeptSentence = (problem) => say(problem?.name === "QuotaExceededError" ? "plants.full" : "plants.not_kept");
