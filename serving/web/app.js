// The page: sends the pictures and the choice of plants in one request and shows the answer. A change of
// either cancels the request and sends a new one.

import { setUpSpeciesSearch, showModel } from "./about.js";
import { showAnswer } from "./answer.js";
import { setUpChoice } from "./choice.js";
import { find, tell } from "./elements.js";
import { isShared, offerInstallation, registerWorker, setUpLanguages, takeShared } from "./install.js";
import { setUpKeeping } from "./keep.js";
import { askedFiles, forgetAsked, keepAsked } from "./kept.js";
import { setUpPlace } from "./place.js";
import { announceProblem, showBusy, showProblem, showProgress } from "./problem.js";
import { retried, retrySentence } from "./retry.js";
import { announcement, choiceLabel } from "./sentences.js";
import { currentModel, identify, isHeic, loadModel, modelOf, ServiceProblem, wantedCoverage } from "./service.js";
import { isBlurred, refusal, shrunk } from "./shrink.js";
import { say } from "./text.js";
import { setUpTray } from "./tray.js";

const DEBOUNCE_MS = 350; // pictures added or removed in quick succession make one request
const CLOCK_MS = 100;
const ASK_AGAIN_MS = 20_000; // of a service that is gone

const tray = setUpTray(ask);
const choice = setUpChoice(() => {
  if (tray.files().length) ask();
  else find("status").textContent = `${choiceLabel(choice.names())}.`;
});
const place = setUpPlace(document.querySelector(".choice"), () => { if (tray.files().length) ask(); });
let request = new AbortController();

/** Cancels the request in flight and sends the pictures once neither they nor the choice of plants change. */
function ask() {
  request.abort();
  request = new AbortController();
  const files = tray.files();
  find("answer").hidden = files.length === 0;
  if (files.length) {
    requestAnswer(files, request.signal);
    return;
  }
  find("status").textContent = say("tray.none");
  forgetAsked().catch(() => {});
}

async function requestAnswer(files, signal) {
  const progress = showProgress(files.length);
  render([progress.node], say("wait.looking", { n: files.length }));
  const where = place.where();
  try {
    await pause(DEBOUNCE_MS, signal);
    const { answer, pictures, elapsedMs } = await answerTo(files, where, progress, signal);
    const model = await modelOf(answer);
    signal.throwIfAborted();
    if (!history.state?.isAnswer) history.pushState({ isAnswer: true }, "");
    render(showAnswer(answer, model, pictures, elapsedMs, tray.remove), announcement(answer, model));
    for (const { index, preview } of answer.images) if (preview) tray.preview(index, preview);
    forgetAsked().catch(() => {}); // where a browser keeps nothing
    tell("answered", { answer, files: pictures, originals: files, where, element: find("answer-body") });
  } catch (problem) {
    if (!signal.aborted) await showFailure(toServiceProblem(problem), files, signal);
  }
}

/** Sends the pictures, and sends them again after a while if the service has no time for them. */
async function answerTo(files, where, progress, signal) {
  const pictures = await shrunk(files, signal);
  tray.tellBlurred(await Promise.all(pictures.map((picture) => isBlurred(picture).catch(() => false))));
  const model = await currentModel();
  const refused = refusal(pictures, model?.limits ?? null);
  if (refused) throw new ServiceProblem(refused);
  const wish = { coverage: wantedCoverage(model), taxa: choice.names(), where, preview: files.some(isHeic) };
  return retried(() => send(pictures, wish, progress, signal), async (waitS, numRetries, problem) => {
    await countDown(problem, waitS, numRetries, signal);
    render([progress.node], say("wait.again"));
  }, signal);
}

async function send(pictures, wish, progress, signal) {
  const startMs = performance.now();
  let clock = 0;
  const onSent = (share) => {
    progress.sent(share);
    if (share === 1 && !clock) clock = setInterval(() => progress.looking(performance.now() - startMs), CLOCK_MS);
  };
  try {
    onSent(0);
    return { pictures, answer: await identify(pictures, wish, { signal, onSent }), elapsedMs: performance.now() - startMs };
  } finally {
    clearInterval(clock);
  }
}

/** Counts the seconds down until the pictures are sent again, or until the user wants that at once. */
async function countDown(problem, waitS, numRetries, signal) {
  const untilMs = performance.now() + waitS * 1000;
  let busy;
  const wanted = new Promise((resolve) => { busy = showBusy(problem, numRetries, resolve); });
  const tick = () => busy.tick(Math.max(0, Math.ceil((untilMs - performance.now()) / 1000)));
  tick();
  render([busy.node], `${problem.title}. ${retrySentence(waitS, numRetries)}`);
  const clock = setInterval(tick, CLOCK_MS);
  await Promise.race([pause(waitS * 1000, signal), wanted]).finally(() => clearInterval(clock));
}

async function showFailure(problem, files, signal) {
  if (problem.index !== null) tray.mark(problem.index);
  const isKept = problem.isGone && await keepAsked(files).then(() => true, () => false);
  if (signal.aborted) return;
  if (isKept) Object.assign(problem, { remedy: "", detail: say("problem.kept"), message: say("problem.kept") });
  const remedies = { onRetry: ask, onRemove: tray.remove };
  render([showProblem(problem, files, remedies)], announceProblem(problem));
  if (problem.needsKey) find("answer-body").querySelector("input").focus();
  if (isKept) askOnceThere(signal).catch(() => {}); // the question changed
}

/** Asks again once the service is there: it looks as soon as the connection is back, and every now and then. */
async function askOnceThere(signal) {
  do {
    const online = new Promise((resolve) => { addEventListener("online", resolve, { once: true, signal }); });
    await Promise.race([pause(ASK_AGAIN_MS, signal), online]);
  } while (await loadModel().catch(() => null) === null);
  if (!signal.aborted) ask();
}

/** Converts an unexpected error, such as an answer with missing fields, so that the page shows it. */
function toServiceProblem(problem) {
  if (problem instanceof ServiceProblem) return problem;
  console.error(problem);
  return new ServiceProblem({ title: say("problem.not_shown"), detail: say("problem.not_shown.detail"), canRetry: false });
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

/** Shows elements in the answer panel; the focus stays in the panel if one of those that it replaces had it. */
function render(nodes, sentence) {
  const hadFocus = find("answer-body").contains(document.activeElement);
  find("answer-body").replaceChildren(...nodes);
  find("status").textContent = sentence;
  if (hadFocus) find("answer").focus({ preventScroll: true });
}

/** Back leaves the answer, and forward returns to it; a link to a part of the page changes nothing. */
addEventListener("popstate", ({ state }) => {
  if (location.hash) return;
  const isAnswer = Boolean(state?.isAnswer) && tray.files().length > 0;
  find("answer").hidden = !isAnswer;
  if (isAnswer) return;
  request.abort();
  find("tiles").scrollIntoView({ block: "nearest" });
});

if (history.state) history.replaceState(null, ""); // of an answer before the page was loaded anew
registerWorker();
setUpKeeping();
setUpSpeciesSearch();
showModel(tray.add);
setUpLanguages(tray.files);
offerInstallation(find("install"));
currentModel().then((model) => { if (model) place.show(model); });
askedFiles().then((files) => files.length && tray.add(files), () => {}).then(() => isShared() && takeShared().then(tray.offer));
