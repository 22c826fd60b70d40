// The service's HTTP API, and the description of its model, which is kept for the answers that it gives. Every failure becomes a ServiceProblem.

import { storeKey, readKey } from "./key.js";
import { secondsToWait } from "./retry.js";
import { hasText, language, say } from "./text.js";

export const MAX_PICTURES = 5; // in one request
const COVERAGE = 0.9; // how often a set of candidates shall hold the right plant

const ROOT = new URL("../", import.meta.url); // the service may stand behind a path

/** Returns the address of what the service gives below its root, such as "/model". */
export const addressOf = (path) => new URL(path.replace(/^\//, ""), ROOT).href;

/** Whether few browsers show a file, so that the service shall send a small picture of it back. */
export const isHeic = ({ name }) => /\.hei[cf]$/i.test(name);

/**
 * A failure with a title, a remedy and a detail for people; the detail is the service's own, in English, if there is a code.
 * `index` is the position of the refused picture, from 0; `isGone` tells that the service cannot be reached.
 */
export class ServiceProblem extends Error {
  constructor({ title, remedy = "", detail = "", code = null, status = null, index = null, requestId = null, retryAfterS = null, canRetry = true, needsKey = false, isGone = false }) {
    super(remedy || detail || title);
    Object.assign(this, { title, remedy, detail, code, status, index, requestId, retryAfterS, canRetry, needsKey, isGone });
  }
}

/**
 * Identifies the plant on the pictures.
 *
 * @param coverage How often the set of candidates shall hold the right plant, or null for no set.
 * @param preview Whether the service sends small pictures back.
 * @param where Latitude, longitude and date of the plant, or null.
 * @param taxa Names that restrict the answer, unless there are none.
 * @param onSent Called with the share of the pictures that has been sent, from 0 to 1.
 */
export function identify(files, { coverage, taxa, preview = false, where = null }, { signal, onSent }) {
  const form = new FormData();
  if (where !== null) for (const [name, value] of Object.entries(where)) form.append(name, value);
  form.append("lang", language);
  if (preview) form.append("preview", "true");
  if (coverage !== null) form.append("coverage", coverage);
  for (const name of taxa) form.append("taxa", name);
  for (const file of files) form.append("image", file, file.name || "picture");
  return request("/identify", { body: form, signal, onSent }, upload);
}

/** Says what the plant of an answer is: `taxon` (an id) or `other` (words); keeps the pictures given. */
export function correctAnswer(requestId, { taxon, other, certain }, pictures) {
  const form = new FormData();
  if (taxon) form.append("taxon", taxon);
  else form.append("other", other);
  form.append("certain", String(certain));
  for (const file of pictures) form.append("image", file, file.name || "picture");
  return request(`/identify/${encodeURIComponent(requestId)}/correction`, { method: "POST", body: form });
}

export const takeBack = (id) => request(`/corrections/${encodeURIComponent(id)}`, { method: "DELETE" });

let known = null;

/** Loads the description of the model that runs. */
export async function loadModel() {
  known = await request("/model");
  return known;
}

/** Returns the description of the model that gave an answer, or null if the service has another one by now, or none. */
export async function modelOf({ model }) {
  const isSame = () => known?.label_hash === model.label_hash && known.version === model.version;
  if (!isSame()) await loadModel().catch(() => null);
  return isSame() ? known : null;
}

/** Returns the description of the model that runs, as it was when the page last looked, or null if there is none. */
export async function currentModel() {
  return known ?? loadModel().catch(() => null);
}

/** Returns the coverage to ask for, or null if the model has no table for sets of candidates. */
export function wantedCoverage(model) {
  const hasTable = Number.isInteger(model?.calibration?.num_uncalibrated_taxa);
  return hasTable ? COVERAGE : null;
}

export function findSpecies(query, limit, signal) {
  return request(`/species?${new URLSearchParams({ q: query, limit, lang: language })}`, { signal });
}

export const describeTaxon = (id) => request(`/species/${encodeURIComponent(id)}`);

async function request(url, options = {}, send = fetch) {
  const key = readKey();
  const headers = { Accept: "application/json, application/problem+json", ...(key && { Authorization: `Bearer ${key}` }) };
  let response, body;
  try {
    response = await send(addressOf(url), { headers, ...options });
    if (response.status === 204) return null;
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) throw new ServiceProblem({ title: say("problem.gone"), detail: say("problem.gone.detail"), isGone: true });
    body = null; // not JSON, such as the error page of a gateway
  }
  if (response.ok && body !== null) return body;
  throw response.status === 401 ? keyProblem(key, body) : problemOf(response, body);
}

/** Replaces the detail in the response, which names headers and is written for programs. */
function keyProblem(key, body) {
  if (key && key === readKey()) storeKey("");
  return new ServiceProblem({
    title: say("problem.key"),
    detail: say(key ? "problem.key.invalid" : "problem.key.ask"),
    requestId: body?.request_id ?? null,
    canRetry: false,
    needsKey: true,
  });
}

function problemOf(response, body) {
  const known = body !== null && typeof body === "object" ? body : {};
  return new ServiceProblem({
    code: known.code ?? null,
    title: hasText(`problem.${known.code}`) ? say(`problem.${known.code}`) : known.title || say("problem.status", { status: String(response.status) }),
    remedy: hasText(`problem.${known.code}.detail`) ? say(`problem.${known.code}.detail`) : "",
    detail: known.detail || (known.title ? "" : say("problem.status.detail")),
    status: response.status,
    index: Number.isInteger(known.index) ? known.index : null,
    requestId: known.request_id ?? null,
    retryAfterS: secondsToWait(response.headers.get("Retry-After"), Date.now()),
    isGone: response.status >= 500 && body === null, // a gateway answers in its place
    canRetry: response.status >= 500 || [408, 429].includes(response.status), // others fail again
  });
}

/** Sends a form as a POST request and tells how much of it has left this device, which fetch cannot tell; returns the Response as fetch gives it, but of its headers only Retry-After. */
function upload(url, { headers, body, signal, onSent }) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", ({ loaded, total }) => { if (total) onSent(loaded / total); });
    request.addEventListener("load", () => {
      const retryAfter = request.getResponseHeader("Retry-After");
      resolve(new Response(request.responseText, { status: request.status, headers: retryAfter === null ? {} : { "Retry-After": retryAfter } }));
    });
    request.addEventListener("error", () => reject(new TypeError("the connection was lost")));
    signal.addEventListener("abort", () => {
      request.abort();
      reject(signal.reason);
    }, { once: true });
    request.send(body);
  });
}
