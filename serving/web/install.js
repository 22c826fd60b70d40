// Makes the page an app: registers the service worker, takes the photographs that other apps share with it, and changes the language.

import { addressOf } from "./service.js";

const SHARED = "botanify-shared"; // worker.js puts photographs there too
const OWN = "botanify-own"; // in the tab's session storage, while the photographs there are those of this tab
const YEAR_S = 365 * 24 * 3600;

/** Registers the worker; browsers allow that over HTTPS and on localhost only. */
export function registerWorker() {
  navigator.serviceWorker?.register(addressOf("/web/worker.js"), { scope: addressOf("/") }).catch((problem) => console.warn(problem)); // the page works without
}

/** Remembers a language once the reader chooses it, and lets the chosen photographs outlive the change, if the page has its worker. */
export function setUpLanguages(chosen = () => []) {
  for (const link of document.querySelectorAll(".languages a")) {
    link.addEventListener("click", async (event) => {
      document.cookie = `lang=${link.lang}; path=${new URL(addressOf("/")).pathname}; max-age=${YEAR_S}; samesite=lax`;
      if (chosen().length === 0 || !navigator.serviceWorker?.controller) return;
      event.preventDefault();
      await caches.delete(SHARED);
      const shared = await caches.open(SHARED);
      await Promise.allSettled(chosen().map((file, index) => shared.put(`/shared/${index}`, new Response(file, { headers: { "X-Name": encodeURIComponent(file.name) } }))));
      sessionStorage.setItem(OWN, "yes");
      location.assign(`${link.href}&shared`);
    });
  }
}

/** Whether the page was opened to take shared photographs. */
export const isShared = () => new URLSearchParams(location.search).has("shared");

/** Returns { files, isOwn }, once: the photographs that were shared with the page, and whether this tab itself did so. */
export async function takeShared() {
  const isOwn = sessionStorage.getItem(OWN) !== null;
  sessionStorage.removeItem(OWN);
  history.replaceState(null, "", location.pathname); // so that a reload does not look for them again
  const shared = await caches.open(SHARED);
  const requests = await shared.keys();
  const files = await Promise.all(requests.map(async (request) => {
    const response = await shared.match(request);
    const content = await response.blob();
    return new File([content], decodeURIComponent(response.headers.get("X-Name")), { type: content.type });
  }));
  await caches.delete(SHARED);
  return { files, isOwn };
}
