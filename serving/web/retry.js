// Decides when a request that the service had no time for is sent again. No function needs a document.

import { say } from "./text.js";

const MAX_RETRIES = 2;
const BUSY = new Set([429, 503]);
const DEFAULT_WAIT_S = 5; // if the response names no time
const LONGEST_WAIT_S = 60; // nobody watches a countdown for longer

/** Returns the seconds to wait before a refused request is sent again, at least 1, or null if it is not sent again. */
export function waitBeforeRetry({ status, retryAfterS }, numRetries) {
  if (!BUSY.has(status) || numRetries >= MAX_RETRIES) return null;
  const waitS = Math.max(1, retryAfterS ?? DEFAULT_WAIT_S);
  return waitS <= LONGEST_WAIT_S ? waitS : null;
}

/** Sends a request, and sends it again after `wait` while the service has no time for it. */
export async function retried(send, wait, signal) {
  for (let numRetries = 0; ; numRetries += 1) {
    try {
      return await send();
    } catch (problem) {
      const waitS = waitBeforeRetry(problem, numRetries);
      if (signal.aborted || waitS === null) throw problem;
      await wait(waitS, numRetries, problem);
    }
  }
}

/** Returns the seconds that a header Retry-After asks for, as a number or a date (RFC 9110, section 10.2.3), or null. */
export function secondsToWait(header, nowMs) {
  const text = (header ?? "").trim();
  if (/^\d{1,9}$/.test(text)) return Number(text);
  const untilMs = Date.parse(text);
  return Number.isNaN(untilMs) ? null : Math.max(0, Math.ceil((untilMs - nowMs) / 1000));
}

/** Returns the sentence of the countdown. */
export function retrySentence(secondsLeft, numRetries) {
  return say("wait.retry", { n: secondsLeft, attempt: numRetries + 2, attempts: MAX_RETRIES + 1 });
}
