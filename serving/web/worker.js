// The service worker: the page opens without a connection, and takes photographs that a phone's gallery shares with it.
// The service writes two constants above this text: VERSION changes with any file of the page, FILES are the addresses of those that
// the page needs. Everything else, such as /identify and what needs a key, never passes through here.

const SHARED = "botanify-shared"; // install.js takes them out
const PATIENCE_MS = 4000; // longer than any file takes on a connection that is of use
const ROOT = new URL("../", self.location).pathname; // the service may stand behind a path, and others beside it
const SHELLS = `botanify-shell-${ROOT}-`;
const SHELL = SHELLS + VERSION;
const KEPT = FILES.map((path) => ROOT + path.slice(1));
const PAGES = KEPT.filter((path) => path === ROOT || path.endsWith(".html"));

self.addEventListener("install", (event) => {
  self.skipWaiting();
  event.waitUntil(keep(KEPT));
});

self.addEventListener("activate", (event) => {
  const isOld = (name) => (name.startsWith(SHELLS) && name !== SHELL) || /^botanify-shell-\w/.test(name); // older versions named no root
  const forgetOthers = (names) => Promise.all(names.filter(isOld).map((name) => caches.delete(name)));
  event.waitUntil(Promise.all([self.clients.claim(), caches.keys().then(forgetOthers)]));
});

self.addEventListener("fetch", (event) => {
  const { pathname, searchParams, origin } = new URL(event.request.url);
  if (origin !== self.location.origin) return;
  if (event.request.method === "POST" && pathname === `${ROOT}share`) event.respondWith(takeShared(event.request));
  if (event.request.method !== "GET" || !KEPT.includes(pathname)) return;
  const answered = answer(event.request, pathname);
  event.respondWith(answered);
  if (searchParams.has("lang")) event.waitUntil(answered.then(() => keep(PAGES))); // the page remembers the language that was chosen
});

/** Keeps files as the service gives them now, all or none; what a gateway answers in its place has no version. */
async function keep(paths) {
  const responses = await Promise.all(paths.map((path) => fetch(path, { cache: "no-cache" })));
  if (responses.some(({ ok, headers }) => !ok || headers.get("Page-Version") !== VERSION)) throw new Error("not the service, or another version of it");
  const shell = await caches.open(SHELL);
  await Promise.all(paths.map((path, index) => shell.put(path, responses[index])));
}

/** Asks the service, so that no page is older than it; what is kept answers where the service does not, or not in time. */
async function answer(request, pathname) {
  const kept = async () => (await caches.open(SHELL)).match(pathname);
  const asked = fetch(request);
  const late = new Promise((resolve) => { setTimeout(resolve, PATIENCE_MS); }).then(kept);
  try {
    const response = await Promise.race([asked, late]) ?? await asked;
    return response.status >= 500 ? await kept() ?? response : response; // the gateway of a service that is down
  } catch {
    return await kept() ?? Response.error();
  }
}

/** Opens the page for photographs that an app shares; the page asks before it uses them, and says so if there was no room for them. */
async function takeShared(request) {
  const opened = Response.redirect(new URL(`${ROOT}?shared`, self.location), 303);
  if (request.referrer.startsWith("http")) return opened; // from a web page, which is no app: they are not taken
  const form = await request.formData();
  const files = form.getAll("image").filter((file) => file instanceof File);
  await caches.delete(SHARED);
  const shared = await caches.open(SHARED);
  const kept = files.map((file, index) => shared.put(`/shared/${index}`, new Response(file, { headers: { "X-Name": encodeURIComponent(file.name) } })));
  await Promise.allSettled(kept);
  return opened;
}
