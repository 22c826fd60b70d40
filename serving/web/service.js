// The service's HTTP interface: what to ask, and every failure as one kind of error that people can read.

import { keepKey, readKey } from "./key.js";

const TEMPORARY = new Set([408, 429]); // of the refusals, those that the same pictures may get past later
const UNAUTHORIZED = 401;

/** A failure with a title and a sentence for people; `index` counts the blamed picture from 0. */
export class ServiceProblem extends Error {
  constructor({ title, detail = "", index = null, requestId = null, retryAfterS = null, canRetry = true, needsKey = false }) {
    super(detail || title);
    Object.assign(this, { title, detail, index, requestId, retryAfterS, canRetry, needsKey });
  }
}

export function identify(files, signal) {
  const form = new FormData();
  for (const file of files) form.append("image", file, file.name || "picture");
  return ask("/identify", { method: "POST", body: form, signal });
}

export const describeModel = () => ask("/model");

export function findSpecies(query, limit, signal) {
  return ask(`/species?${new URLSearchParams({ q: query, limit })}`, { signal });
}

async function ask(url, options = {}) {
  const key = readKey();
  const headers = { Accept: "application/json, application/problem+json", ...(key && { Authorization: `Bearer ${key}` }) };
  let response, body;
  try {
    response = await fetch(url, { headers, ...options });
    body = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) throw unreachable();
    body = null; // an answer that is not JSON, such as a gateway's own error page
  }
  if (response.ok && body !== null) return body;
  throw response.status === UNAUTHORIZED ? keyProblem(key, body) : problemOf(response, body);
}

/** The service tells programs which header it wants; people are told where a key comes from. */
function keyProblem(key, body) {
  if (key && key === readKey()) keepKey("");
  return new ServiceProblem({
    title: "This service asks for an API key",
    detail: key ? "It does not know the key that was entered." : "Whoever runs it can give you one.",
    requestId: body?.request_id ?? null,
    canRetry: false,
    needsKey: true,
  });
}

function unreachable() {
  return new ServiceProblem({
    title: "The service did not answer",
    detail: "Check that it is running and that this device is connected to it. Very large pictures can be refused this way too.",
  });
}

function problemOf(response, body) {
  const known = body !== null && typeof body === "object" ? body : {};
  const retryAfterS = Number.parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new ServiceProblem({
    title: known.title || `The service answered with status ${response.status}`,
    detail: known.detail || (known.title ? "" : "It gave no reason. Its log may know more."),
    index: Number.isInteger(known.index) ? known.index : null,
    requestId: known.request_id ?? null,
    retryAfterS: Number.isNaN(retryAfterS) ? null : retryAfterS,
    canRetry: response.status >= 500 || TEMPORARY.has(response.status),
  });
}
