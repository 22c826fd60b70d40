// The page: sends the pictures and the choice of plants in one request and shows the answer. A change of
// either cancels the request and sends a new one.

import { setUpSpeciesSearch, showModel } from "./about.js";
import { showAnswer, showProgress } from "./answer.js";
import { setUpChoice } from "./choice.js";
import { count } from "./formats.js";
import { modelOf, wantedCoverage } from "./model.js";
import { announceProblem, showProblem } from "./problem.js";
import { announcement, choiceLabel } from "./sentences.js";
import { identify, ServiceProblem } from "./service.js";
import { setUpTray } from "./tray.js";

const DEBOUNCE_MS = 350; // pictures added or removed in quick succession make one request
const CLOCK_MS = 100;

const find = (id) => document.getElementById(id);
const tray = setUpTray(ask);
const choice = setUpChoice(onChoiceChanged);
let request = new AbortController();

/** Cancels the request in flight and sends the pictures once neither they nor the choice of plants change. */
function ask() {
  request.abort();
  request = new AbortController();
  const files = tray.files();
  find("answer").hidden = files.length === 0;
  if (files.length) requestAnswer(files, request.signal);
  else find("status").textContent = "No pictures.";
}

function onChoiceChanged() {
  if (tray.files().length) ask();
  else find("status").textContent = `${choiceLabel(choice.names())}.`;
}

async function requestAnswer(files, signal) {
  const progress = showProgress(files.length);
  let clock = 0;
  render([progress.node], `Looking at ${count(files.length, "picture")}.`);
  try {
    await debounce(signal);
    const startMs = performance.now();
    clock = setInterval(() => progress.tick(performance.now() - startMs), CLOCK_MS);
    const answer = await identify(files, { coverage: await wantedCoverage(), taxa: choice.names() }, signal);
    const elapsedMs = performance.now() - startMs;
    const model = await modelOf(answer);
    signal.throwIfAborted();
    render(showAnswer(answer, model, elapsedMs), announcement(answer, model));
  } catch (problem) {
    if (signal.aborted) return;
    showFailure(toServiceProblem(problem), files);
  } finally {
    clearInterval(clock);
  }
}

function showFailure(problem, files) {
  if (problem.index !== null) tray.mark(problem.index);
  const remedies = { onRetry: ask, onRemove: tray.remove };
  render([showProblem(problem, files, remedies)], announceProblem(problem));
  if (problem.needsKey) find("answer-body").querySelector("input").focus();
}

/** Converts an unexpected error, such as an answer with missing fields, so that the page shows it. */
function toServiceProblem(problem) {
  if (problem instanceof ServiceProblem) return problem;
  console.error(problem);
  const detail = "The answer does not have the format that this page expects. Reload the page: the service may have been updated.";
  return new ServiceProblem({ title: "The answer could not be shown", detail, canRetry: false });
}

function debounce(signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, DEBOUNCE_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

function render(nodes, sentence) {
  find("answer-body").replaceChildren(...nodes);
  find("status").textContent = sentence;
}

setUpSpeciesSearch();
showModel();
