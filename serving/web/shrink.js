// Makes the pictures that are sent small, upright, in sRGB, and without what a camera notes in them, such as the place; tells blurred and too large ones.

import { fileSize } from "./formats.js";
import { say } from "./text.js";

const FORM_BYTES = 20_000; // room in the request for what is not pictures, such as the names of a choice of plants
const LARGE_BYTES = 300_000;
const LONGEST_PX = 1024; // over twice the side that networks look at, at most 480 px; some 150 kB
const JPEG_QUALITY = 0.9;
const JUDGED_PX = 500; // longest side at which it is judged whether a picture is sharp
const PARTS = 4; // in a row and in a column, each judged by itself
// Of 66 photographs of plants the least sharp one has 241; blurred by 4 of 1000 px, the sharpest has 45.
const SHARP = 100;
const PLAIN = 30; // gray values that a picture spans which shows nothing
const FORMATS = /^image\/(jpeg|png|webp)$/; // that every browser shows, and an export of My plants takes
const NOTES = /exif|ns\.adobe\.com|com\.adobe|xmp |8bim/i; // EXIF, XMP and IPTC data, in whatever format

const shrunkFiles = new WeakMap(); // so that a picture is made smaller once, however often it is sent

/** Returns the files to send; those that this browser cannot read stay as they are, since the service may read them. */
export async function shrunk(files, signal) {
  const sent = [];
  for (const file of files) { // one at a time: 50 decoded megapixels take 200 MB
    signal.throwIfAborted();
    if (!shrunkFiles.has(file)) shrunkFiles.set(file, await isSentAsItIs(file) ? file : await redrawn(file).catch(() => file));
    sent.push(shrunkFiles.get(file));
  }
  return sent;
}

/** Whether a picture is in a format that is kept with an answer. */
export const isKept = ({ type }) => FORMATS.test(type);

/** Whether a picture is small, and tells nothing but what it shows. */
export async function isSentAsItIs(file) {
  return isKept(file) && file.size <= LARGE_BYTES && !NOTES.test(new TextDecoder("latin1").decode(await file.arrayBuffer()));
}

async function redrawn(file) {
  const blob = await jpegOf(await drawn(file, LONGEST_PX));
  return new File([blob], file.name, { type: blob.type });
}

/** Whether a picture is blurred all over; throws if this browser cannot read it. */
export async function isBlurred(file) {
  const canvas = await drawn(file, JUDGED_PX);
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return sharpness(data, width, height) < SHARP;
}

/**
 * Returns the variance of the Laplacian of the gray values in the sharpest part of a picture of RGBA pixels, since what stands behind
 * a plant is often blurred; Infinity if the picture shows nothing.
 */
export function sharpness(pixels, width, height) {
  const gray = Float32Array.from({ length: width * height }, (_, at) => 0.299 * pixels[4 * at] + 0.587 * pixels[4 * at + 1] + 0.114 * pixels[4 * at + 2]);
  const sums = Array.from({ length: PARTS ** 2 }, () => ({ n: 0, sum: 0, squares: 0 }));
  const span = { least: Infinity, most: -Infinity };
  for (let at = width + 1; at < gray.length - width - 1; at += 1) {
    const x = at % width;
    if (x === 0 || x === width - 1) continue;
    const edge = 4 * gray[at] - gray[at - 1] - gray[at + 1] - gray[at - width] - gray[at + width];
    const part = sums[PARTS * Math.floor(PARTS * at / gray.length) + Math.floor(PARTS * x / width)];
    part.n += 1;
    part.sum += edge;
    part.squares += edge ** 2;
    span.least = Math.min(span.least, gray[at]);
    span.most = Math.max(span.most, gray[at]);
  }
  if (!(span.most - span.least > PLAIN)) return Infinity;
  return Math.max(...sums.map(({ n, sum, squares }) => (n ? squares / n - (sum / n) ** 2 : 0)));
}

/** Draws a picture on a canvas, upright. */
async function drawn(file, longestPx) {
  const picture = await createImageBitmap(file, { imageOrientation: "from-image" });
  const canvas = document.createElement("canvas");
  Object.assign(canvas, fitted(picture, longestPx));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // the service, too, lays transparent pictures on white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  picture.close();
  return canvas;
}

function jpegOf(canvas) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no memory for the picture"))), "image/jpeg", JPEG_QUALITY);
  });
}

/** Returns a size of the same proportions whose longest side has at most that many pixels; no picture becomes larger. */
export function fitted({ width, height }, longestPx) {
  const scale = Math.min(1, longestPx / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}

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
