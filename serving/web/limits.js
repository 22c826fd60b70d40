// Compares pictures with the limits of the service before they are sent. No function needs a document.

import { fileSize } from "./formats.js";
import { say } from "./text.js";

const FORM_BYTES = 20_000; // room in the request for what is not pictures, such as the names of a choice of plants

/** Returns why the service would refuse the pictures, as the fields of a ServiceProblem, or null; `limits` are those of `GET /model`, if known. */
export function refusal(pictures, limits) {
  if (limits === null) return null;
  const index = pictures.findIndex(({ size }) => size > limits.picture_bytes);
  if (index >= 0) {
    return { title: say("limits.picture"), detail: say("limits.picture.detail", compared(pictures[index].size, limits.picture_bytes)), index, canRetry: false };
  }
  const sum = pictures.reduce((total, { size }) => total + size, 0);
  if (sum <= limits.request_bytes - FORM_BYTES) return null;
  return { title: say("limits.request"), detail: say("limits.request.detail", compared(sum, limits.request_bytes)), canRetry: false };
}

const compared = (size, limit) => ({ size: fileSize(size, Math.ceil), limit: fileSize(limit, Math.floor) });
