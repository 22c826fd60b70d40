// The page for many photographs: identifies each by itself, a few at a time, and shows a row for each answer.

import { element, printed } from "./elements.js";
import { percent } from "./formats.js";
import { waitBeforeRetry } from "./retry.js";
import { identify } from "./service.js";
import { shrunk } from "./shrink.js";
import { byUncertainty, csvOf, failedRow, rowOf } from "./table.js";
import { say } from "./text.js";

const AT_ONCE = 2; // more would only wait in the service, where others wait too
const KEPT = "botanify-many"; // in the tab's session storage

const find = (id) => document.getElementById(id);
const pictures = new Map(); // name of a photograph -> address of the picture in this tab
let rows = JSON.parse(sessionStorage.getItem(KEPT) ?? "[]");
let waiting = [];
let running = 0;
let stopping = new AbortController();

function add(files) {
  const known = new Set([...rows.map((row) => row.photograph), ...waiting.map(nameOf)]);
  waiting.push(...files.filter((file) => !known.has(nameOf(file)) && !/\.(csv|txt|json|xml|html?|pdf)$/i.test(file.name)));
  if (stopping.signal.aborted) stopping = new AbortController();
  for (let number = Math.min(AT_ONCE - running, waiting.length); number > 0; number -= 1) work();
  show();
}

const nameOf = (file) => file.webkitRelativePath || file.name;

/** Answers one photograph after another until none is left. */
async function work() {
  running += 1;
  for (let file = waiting.shift(); file !== undefined; file = waiting.shift()) {
    const { signal } = stopping;
    pictures.set(nameOf(file), URL.createObjectURL(file));
    try {
      const answer = await answerTo(file, signal);
      if (answer.images[0].preview) pictures.set(nameOf(file), answer.images[0].preview);
      rows.push(rowOf(nameOf(file), answer));
    } catch (problem) {
      if (!signal.aborted) rows.push(failedRow(nameOf(file), problem.detail || problem.title || String(problem)));
    }
    keep();
    show();
  }
  running -= 1;
  show();
}

async function answerTo(file, signal) {
  const sent = await shrunk([file], signal);
  for (let numRetries = 0; ; numRetries += 1) {
    try {
      return await identify(sent, { coverage: null, taxa: [], preview: /\.hei[cf]$/i.test(file.name) }, { signal, onSent: () => {} });
    } catch (problem) {
      const waitS = waitBeforeRetry(problem, numRetries);
      if (signal.aborted || waitS === null) throw problem;
      await new Promise((resolve) => { setTimeout(resolve, 1000 * waitS); });
    }
  }
}

/** Keeps the answers for a reload of the page. */
function keep() {
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(rows));
  } catch {
    sessionStorage.removeItem(KEPT); // full, after some ten thousand rows: the page still shows them, and saves them as CSV
  }
}

function show() {
  const isSorted = find("sort").getAttribute("aria-pressed") === "true";
  find("rows").replaceChildren(...(isSorted ? byUncertainty(rows) : rows).map(tableRow));
  find("table").hidden = rows.length === 0;
  find("actions").hidden = rows.length === 0 && running === 0;
  find("stop").hidden = running === 0;
  find("status").textContent = statusSentence();
}

function statusSentence() {
  if (running > 0) return say("many.progress", { n: rows.length, left: waiting.length + running });
  if (rows.length === 0) return "";
  const failed = rows.filter((row) => row.error).length;
  return [say("many.done", { n: rows.length }), failed > 0 && say("many.failed", { n: failed })].filter(Boolean).join(" ");
}

function tableRow(row) {
  const address = pictures.get(row.photograph);
  const picture = address && element("img", { src: address, alt: "", loading: "lazy" });
  picture?.addEventListener("error", () => picture.remove(), { once: true }); // HEIC before its answer
  return element("tr", {},
    element("td", {}, element("div", { className: "many__photo" }, picture, element("span", {}, row.photograph))),
    element("td", {}, row.error || printed(plantOf(row))),
    element("td", { className: "many__score" }, row.best_score === null ? "" : percent(row.verdict_name ? row.verdict_score : row.best_score)));
}

function plantOf({ verdict_rank: rank, verdict_name: name, best_name: best }) {
  if (name) return { name };
  const title = say(`card.title.${rank}`);
  return rank === "not_a_plant" || !best ? title : [`${title}, `, say("many.perhaps", { name: { name: best } })].flat();
}

function stop() {
  waiting = [];
  stopping.abort();
  show();
}

function clear() {
  stop();
  rows = [];
  for (const address of pictures.values()) URL.revokeObjectURL(address);
  pictures.clear();
  sessionStorage.removeItem(KEPT);
  show();
  find("files").focus();
}

function save() {
  const address = URL.createObjectURL(new Blob([csvOf(rows)], { type: "text/csv" }));
  element("a", { href: address, download: "plants.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

function sort() {
  const button = find("sort");
  button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
  show();
}

/** Returns the files of a drop; of a folder all files below it. */
async function dropped(items) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const files = await Promise.all(entries.map(filesOf));
  return files.flat();
}

async function filesOf(entry) {
  if (entry.isFile) return [await new Promise((resolve, reject) => { entry.file(resolve, reject); })];
  const reader = entry.createReader();
  const found = [];
  for (;;) { // a reader gives at most 100 entries at a time
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (some.length === 0) return found;
    for (const inner of some) found.push(...await filesOf(inner));
  }
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
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  drop.classList.remove("many__drop--over");
  add(await dropped(event.dataTransfer.items));
});
find("sort").addEventListener("click", sort);
find("save").addEventListener("click", save);
find("stop").addEventListener("click", stop);
find("clear").addEventListener("click", clear);
show();
