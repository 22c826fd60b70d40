// Builds the answer panel while a request is on its way: pictures are made smaller and sent, the service answers or is busy.

import { element } from "./elements.js";
import { percent, seconds } from "./formats.js";
import { retrySentence } from "./retry.js";
import { say } from "./text.js";

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
