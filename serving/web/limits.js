// Compares pictures with the limits of the service before they are sent. No function needs a document.

import { fileSize } from "./formats.js";

const FORM_BYTES = 20_000; // room in the request for what is not pictures, such as the names of a choice of plants

/**
 * Returns why the service would refuse the pictures, as the fields of a ServiceProblem, or null.
 *
 * @param pictures The files to send.
 * @param limits As `GET /model` gives them, or null if they are not known.
 */
export function refusal(pictures, limits) {
  if (limits === null) return null;
  const index = pictures.findIndex(({ size }) => size > limits.picture_bytes);
  if (index >= 0) {
    return { title: "The picture is too large", detail: `It has ${compared(pictures[index].size, limits.picture_bytes)}. Choose a smaller version.`, index, canRetry: false };
  }
  const sum = pictures.reduce((total, { size }) => total + size, 0);
  if (sum <= limits.request_bytes - FORM_BYTES) return null;
  return { title: "The pictures are too large", detail: `Together they have ${compared(sum, limits.request_bytes)}. Remove one or more.`, canRetry: false };
}

const compared = (size, limit) => `${fileSize(size, Math.ceil)}, and the service takes at most ${fileSize(limit, Math.floor)}`;
