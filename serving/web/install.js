// Makes the page an app: registers the service worker, and takes the photographs that a phone's gallery shared with it.

const SHARED = "botanify-shared"; // worker.js puts them there

/** Registers the worker; browsers allow that over HTTPS and on localhost only. */
export function registerWorker() {
  navigator.serviceWorker?.register("/web/worker.js", { scope: "/" }).catch((problem) => console.warn(problem)); // the page works without
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
