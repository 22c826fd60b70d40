// Makes the page an app: registers the service worker, offers to install it, takes the photographs that other apps share with it, and changes the language.

import { keepAsked } from "./kept.js";
import { addressOf } from "./service.js";

const SHARED = "botanify-shared"; // worker.js puts photographs there too
const ANSWERS = "botanify-answers"; // in local storage: how many this browser has had
const ENOUGH_ANSWERS = 3; // to tell whether the page is worth to be installed
const YEAR_S = 365 * 24 * 3600;

/** Registers the worker; browsers allow that over HTTPS and on localhost only. */
export function registerWorker() {
  navigator.serviceWorker?.register(addressOf("/web/worker.js"), { scope: addressOf("/") }).catch((problem) => console.warn(problem)); // the page works without
}

/** Shows the button that installs the page once it has given some answers, where the browser can. */
export function offerInstallation(button) {
  let question = null; // the browser's own
  const show = () => { button.hidden = question === null || countAnswers(0) < ENOUGH_ANSWERS; };
  addEventListener("beforeinstallprompt", (event) => {
    event.preventDefault(); // else some browsers ask at the first visit
    question = event;
    show();
  });
  document.addEventListener("answered", () => {
    countAnswers(1);
    show();
  });
  button.addEventListener("click", () => {
    question.prompt();
    question = null; // it can be asked once
    show();
  });
}

function countAnswers(more) {
  try {
    const n = Number(localStorage.getItem(ANSWERS)) + more;
    localStorage.setItem(ANSWERS, String(n));
    return n;
  } catch {
    return 0; // nothing is stored, and nothing offered
  }
}

/** Remembers a language once the reader chooses it, and lets the chosen photographs outlive the change. */
export function setUpLanguages(chosen = () => []) {
  for (const link of document.querySelectorAll(".languages a")) {
    link.addEventListener("click", async (event) => {
      document.cookie = `lang=${link.lang}; path=${new URL(addressOf("/")).pathname}; max-age=${YEAR_S}; samesite=lax`;
      if (chosen().length === 0) return;
      event.preventDefault();
      await keepAsked(chosen()).catch(() => {}); // where a browser keeps nothing
      location.assign(link.href);
    });
  }
}

/** Whether the page was opened to take shared photographs. */
export const isShared = () => new URLSearchParams(location.search).has("shared");

/** Returns, once, the photographs that were shared with the page. */
export async function takeShared() {
  history.replaceState(null, "", location.pathname); // so that a reload does not look for them again
  const shared = await caches.open(SHARED);
  const requests = await shared.keys();
  const files = await Promise.all(requests.map(async (request) => {
    const response = await shared.match(request);
    const content = await response.blob();
    return new File([content], decodeURIComponent(response.headers.get("X-Name")), { type: content.type });
  }));
  await caches.delete(SHARED);
  return files;
}
