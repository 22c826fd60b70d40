// The page: pictures come in, one question goes out, its answer is shown. A change of the pictures abandons the question.

import { introduceModel, openSpeciesSearch } from "./about.js";
import { showAnswer, showProblem, showWait, speakAnswer, speakProblem } from "./answer.js";
import { count } from "./elements.js";
import { identify, ServiceProblem } from "./service.js";
import { openTray } from "./tray.js";

const SETTLING_MS = 350; // pictures added or removed in quick succession become one question
const CLOCK_MS = 100;

const find = (id) => document.getElementById(id);
const tray = openTray(consider);
let question = new AbortController();

/** Drops the question in flight and, once the pictures have settled, asks about the new ones. */
function consider(files) {
  question.abort();
  question = new AbortController();
  find("answer").hidden = files.length === 0;
  if (files.length) inquire(files, question.signal);
  else find("status").textContent = "No pictures.";
}

async function inquire(files, signal) {
  const wait = showWait(files.length);
  let clock = 0;
  present([wait.node], `Looking at ${count(files.length, "picture")}.`);
  try {
    await settled(signal);
    const startMs = performance.now();
    clock = setInterval(() => wait.tick(performance.now() - startMs), CLOCK_MS);
    const answer = await identify(files, signal);
    present(showAnswer(answer, performance.now() - startMs), speakAnswer(answer));
  } catch (problem) {
    if (signal.aborted) return;
    refuse(readable(problem), files);
  } finally {
    clearInterval(clock);
  }
}

function refuse(problem, files) {
  if (problem.index !== null) tray.mark(problem.index);
  const ways = { onRetry: () => consider(files), onLeaveOut: tray.remove };
  present([showProblem(problem, files, ways)], speakProblem(problem));
  if (problem.needsKey) find("answer-body").querySelector("input").focus();
}

/** An answer that does not keep to its contract must not leave the page waiting for ever. */
function readable(problem) {
  if (problem instanceof ServiceProblem) return problem;
  console.error(problem);
  const detail = "It is not of the form that this page expects. Reload the page: the service may have been updated.";
  return new ServiceProblem({ title: "The answer could not be shown", detail, canRetry: false });
}

function settled(signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, SETTLING_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

function present(nodes, sentence) {
  find("answer-body").replaceChildren(...nodes);
  find("status").textContent = sentence;
}

openSpeciesSearch();
introduceModel();
