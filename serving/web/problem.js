// Builds the content of the answer panel after a failure. Pure functions from data to elements.

import { element } from "./elements.js";
import { keyForm } from "./key.js";
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
  if (!retryAfterS || /\d seconds?\b/.test(message)) return ""; // some details already name the time
  return say("problem.retry_in", { n: retryAfterS });
}
