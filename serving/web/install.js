// Makes the page an app: registers the service worker, and takes the photographs that a phone's gallery shared with it.

import { element } from "./elements.js";

const SHARED = "botanify-shared"; // worker.js puts them there

/** Registers the worker; browsers allow that over HTTPS and on localhost only. */
export function registerWorker() {
  navigator.serviceWorker?.register("/web/worker.js", { scope: "/" }).catch((problem) => console.warn(problem)); // the page works without
}

/** Lets the chosen photographs outlive a change of the language: the page shares them with itself, if it has its worker. */
export function keepThroughLanguages(chosen) {
  for (const link of document.querySelectorAll(".languages a")) {
    link.addEventListener("click", (event) => {
      if (chosen().length === 0 || !navigator.serviceWorker?.controller) return;
      event.preventDefault();
      const files = new DataTransfer();
      for (const file of chosen()) files.items.add(file);
      const input = Object.assign(element("input", { type: "file", name: "image", multiple: true }), { files: files.files });
      const form = element("form", { method: "post", enctype: "multipart/form-data", action: `/share${link.search}`, hidden: true }, input);
      document.body.append(form);
      form.submit();
    });
  }
}

/** Whether the page was opened to take shared photographs. */
export const isShared = () => new URLSearchParams(location.search).has("shared");

/** Returns the photographs that were shared with the page, once. */
export async function takeShared() {
  history.replaceState(null, "", "/"); // so that a reload does not look for them again
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
