// Builds the content of the answer panel while a request is on its way, and after a failure. Pure functions from data to elements.

import { element } from "./elements.js";
import { percent, seconds } from "./formats.js";
import { keyForm } from "./key.js";
import { retrySentence } from "./retry.js";
import { say } from "./text.js";

/** Shows a problem and its remedies: remove the refused picture, enter a key, or retry if that can help. */
export function showProblem(problem, files, { onRetry, onRemove }) {
  const refused = files[problem.index];
  const button = (text, onclick) => element("button", { className: "button button--quiet", type: "button", onclick }, text);
  return element("div", { className: "note note--error problem" },
    element("h3", {}, problem.title),
    refused && element("p", {}, say("problem.with", { n: problem.index + 1, file: refused.name })),
    problem.remedy && element("p", {}, problem.remedy),
    problem.detail && element("p", { className: problem.remedy ? "fineprint" : "", ...(problem.code && { lang: "en" }) }, problem.detail),
    waitSentence(problem) && element("p", {}, waitSentence(problem)),
    problem.needsKey && keyForm(onRetry),
    refused && button(say("tray.remove", { n: problem.index + 1 }), () => onRemove(problem.index)),
    !refused && problem.canRetry && button(say("problem.retry"), onRetry),
    problem.requestId && element("p", { className: "fineprint" }, say("sure.request"), " ", element("code", {}, problem.requestId)));
}

/** Returns the sentence for screen readers when a request fails. */
export function announceProblem(problem) {
  const picture = problem.index !== null ? `${say("picture.title", { n: problem.index + 1 })}. ` : "";
  return `${problem.title}. ${picture}${problem.message} ${waitSentence(problem)}`.trimEnd();
}

function waitSentence({ retryAfterS, message }) {
  if (!retryAfterS || retryAfterS > 3600 || /\d seconds?\b/.test(message)) return ""; // some details already name the time, and a quota of the day ends in hours
  return say("problem.retry_in", { n: retryAfterS });
}

/**
 * Shows how far a request is.
 *
 * @returns The element; sent(share) shows how much of the pictures has been sent, from 0 to 1; looking(milliseconds) how
 *   long the service has had them.
 */
export function showProgress(numPictures) {
  const text = element("p", {}, say("wait.preparing", { n: numPictures }));
  const clock = element("span", { className: "wait__clock", "aria-hidden": "true" });
  const meter = element("progress", { className: "wait__sent", max: 1, value: 0, "aria-label": say("wait.share") });
  const show = (words, share, time) => {
    text.textContent = words;
    meter.value = share;
    clock.textContent = time;
  };
  return {
    node: element("div", { className: "wait" }, element("span", { className: "wait__leaf", "aria-hidden": "true" }), text, meter, clock),
    sent: (share) => show(say("wait.sending", { n: numPictures }), share, percent(Math.floor(share * 100) / 100)),
    looking: (milliseconds) => show(say("wait.looking", { n: numPictures }), 1, seconds(milliseconds)),
  };
}

/** Shows that the service is busy and when the pictures are sent again; tick(secondsLeft) counts down. */
export function showBusy(problem, numRetries, onNow) {
  const sentence = element("p", {});
  const now = element("button", { className: "button button--quiet", type: "button", onclick: onNow }, say("wait.now"));
  return {
    node: element("div", { className: "note problem" }, element("h3", {}, problem.title), sentence, now),
    tick: (secondsLeft) => { sentence.textContent = retrySentence(secondsLeft, numRetries); },
  };
}
