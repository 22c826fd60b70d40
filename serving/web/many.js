// The page for many photographs: identifies each by itself, a few at a time, and lists the answers in the order of the photographs.

import { showAnswer } from "./answer.js";
import { download, element, find, tell } from "./elements.js";
import { setUpLanguages } from "./install.js";
import { setUpKeeping, setUpSwitch } from "./keep.js";
import { retried } from "./retry.js";
import { inShort, line, rowOf } from "./row.js";
import { identify, isHeic, modelOf } from "./service.js";
import { shrunk } from "./shrink.js";
import { byUncertainty, csvOf } from "./table.js";
import { say } from "./text.js";

const AT_ONCE = 2; // more would only wait in the service, where others wait too
const KEPT = "botanify-many-answers"; // in the tab's session storage

let rows = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]"); // { photograph, answer, error, corrected }, in the order of the photographs
const shown = new Map(); // row -> { item, picture, files }: its element, the address of its picture, and what was sent
let waiting = []; // { row, file }
let running = 0;
let stopping = new AbortController();

function add(files) {
  const known = new Set(rows.map((row) => row.photograph));
  if (stopping.signal.aborted) stopping = new AbortController();
  for (const file of files) {
    if (known.has(nameOf(file)) || /\.(csv|txt|json|xml|html?|pdf)$/i.test(file.name)) continue;
    const row = { photograph: nameOf(file), answer: null, error: "", corrected: "" };
    shown.set(row, { item: element("li", { className: "many__row" }), picture: URL.createObjectURL(file), files: [] });
    rows.push(row);
    waiting.push({ row, file });
    showRow(row);
  }
  for (let number = Math.min(AT_ONCE - running, waiting.length); number > 0; number -= 1) work();
  show();
}

const nameOf = (file) => file.webkitRelativePath || file.name;

/** Answers one photograph after another until none is left. */
async function work() {
  running += 1;
  for (let next = waiting.shift(); next !== undefined; next = waiting.shift()) {
    const { row, file } = next;
    const { signal } = stopping;
    try {
      const files = await shrunk([file], signal);
      const send = () => identify(files, { coverage: null, taxa: [], preview: isHeic(file) }, { signal, onSent: () => {} });
      row.answer = await retried(send, (waitS) => new Promise((resolve) => { setTimeout(resolve, 1000 * waitS); }), signal);
      shown.get(row).files = files;
    } catch (problem) {
      if (signal.aborted) rows = rows.filter((other) => other !== row);
      else row.error = problem.title ? `${problem.title}. ${problem.message}` : String(problem);
    }
    if (!rows.includes(row)) continue; // it was stopped or cleared
    showRow(row);
    if (row.answer) tell("answered", { answer: row.answer, files: shown.get(row).files, originals: [file], where: null, element: shown.get(row).item.querySelector(".many__answer") });
    keep();
    show();
  }
  running -= 1;
  show();
}

/** Keeps the answers for a reload of the page. */
function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(answered()));
  } catch {
    sessionStorage.removeItem(KEPT); // full, after a thousand answers: the page still shows them, and saves them as CSV
  }
}

const answered = () => rows.filter((row) => row.answer || row.error);

function show() {
  const isSorted = find("sort").getAttribute("aria-pressed") === "true";
  const items = (isSorted ? byUncertainty(rows) : rows).map((row) => shown.get(row).item);
  if (items.some((item, index) => item !== find("rows").children[index]) || items.length !== find("rows").children.length) find("rows").replaceChildren(...items);
  find("actions").hidden = rows.length === 0;
  find("stop").hidden = running === 0;
  find("status").textContent = statusSentence();
}

function statusSentence() {
  const done = answered();
  if (running > 0) return say("many.progress", { n: done.length, left: rows.length - done.length });
  if (done.length === 0) return "";
  const failed = done.filter((row) => row.error).length;
  return [say("many.done", { n: done.length }), failed > 0 && say("many.failed", { n: failed })].filter(Boolean).join(" ");
}

/** Shows a row anew: the photograph, the plant in short, and the whole answer when it is opened. */
function showRow(row) {
  const { item, picture } = shown.get(row);
  const address = row.answer?.images[0].preview ?? picture;
  const image = address && element("img", { src: address, alt: "", loading: "lazy" });
  image?.addEventListener("error", () => image.remove(), { once: true }); // HEIC before its answer
  const open = async () => showAnswer(row.answer, await modelOf(row.answer), shown.get(row).files);
  item.replaceChildren(rowOf(image, words(row), row.answer && open));
}

function words({ photograph, answer, error, corrected }) {
  if (answer) return inShort(answer, { corrected, origin: photograph });
  return [line("plant", error || say("many.waiting")), line("photograph", photograph)];
}

function stop() {
  const left = new Set(waiting.map(({ row }) => row));
  rows = rows.filter((row) => !left.has(row));
  waiting = [];
  stopping.abort();
  show();
}

function clear() {
  stop();
  rows = [];
  for (const { picture } of shown.values()) if (picture) URL.revokeObjectURL(picture);
  shown.clear();
  sessionStorage.removeItem(KEPT);
  show();
  find("files").focus();
}

/** Notes what a person said about an answer; the card stays open. */
function noteCorrection({ detail: { answer, correction } }) {
  const row = rows.find((each) => each.answer?.request_id === answer.request_id);
  if (!row) return;
  row.corrected = correction?.name ?? "";
  shown.get(row).item.querySelector(".many__words").replaceChildren(...words(row));
  keep();
}

for (const id of ["files", "folder"]) {
  find(id).addEventListener("change", ({ target }) => {
    add([...target.files]);
    target.value = "";
  });
}
const drop = find("drop");
drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("many__drop--over"); });
drop.addEventListener("dragleave", () => drop.classList.remove("many__drop--over"));
drop.addEventListener("drop", (event) => {
  event.preventDefault();
  drop.classList.remove("many__drop--over");
  add([...event.dataTransfer.files]);
});
find("sort").addEventListener("click", ({ currentTarget: button }) => {
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  show();
});
find("save").addEventListener("click", () => download(new Blob([csvOf(answered())], { type: "text/csv" }), "plants.csv"));
find("stop").addEventListener("click", stop);
find("clear").addEventListener("click", clear);
document.addEventListener("corrected", noteCorrection);
setUpKeeping();
setUpSwitch(find("keeping"));
setUpLanguages();
for (const row of rows) {
  shown.set(row, { item: element("li", { className: "many__row" }), picture: null, files: [] });
  showRow(row);
}
show();
