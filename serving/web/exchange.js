// The file in which plants go to another device: JSON, with the photographs as data URLs.

import { isPlace } from "./exif.js";
import { MAX_PICTURES } from "./service.js";

const FORMAT = "botanify-plants";
const VERSION = 1;
const LONGEST_ID = 128; // as the service has it
const LONGEST_TEXT = 5000; // of the notes of plants that were joined, 500 each
const MOST_EARLIER = 1000; // photographs of plants that were joined
const LONGEST_ANSWER = 1_000_000; // in characters: a hundred candidates take some 50,000
const PICTURE = /^data:(image\/(?:jpeg|png|webp));base64,([A-Za-z0-9+/]+=*)$/;

/** Returns the file of plants; their JSON is joined as bytes, since one text of it all may be too long for a browser. */
export async function fileOf(plants) {
  const parts = [`{"format":"${FORMAT}","version":${VERSION},"plants":[`];
  for (const [index, plant] of plants.entries()) {
    const [pictures, earlier] = await Promise.all([plant.pictures, plant.earlier ?? []].map((blobs) => Promise.all(blobs.map(addressOf))));
    parts.push(`${index ? "," : ""}\n${JSON.stringify({ ...plant, pictures, earlier })}`);
  }
  return new Blob([...parts, "\n]}\n"], { type: "application/json" });
}

/** Returns the plants of a file, or null if it is no such file. */
export function plantsIn(text) {
  try {
    const { format, version, plants } = JSON.parse(text);
    return format === FORMAT && version === VERSION ? plants.map(plantOf) : null;
  } catch {
    return null;
  }
}

/** Takes over what the page shows and nothing else; throws if something of it is missing, or is no answer of the service. */
function plantOf({ id, date, answer, pictures, earlier = [], correction = null, name = "", note = "", where = null }) {
  const { verdict, model, predictions, images, warnings } = answer;
  const isWhole = [id, date, verdict.rank, verdict.name ?? "none", model.label_hash].every((text) => typeof text === "string" && text)
    && [predictions, images, warnings].every(Array.isArray)
    && typeof verdict.score === "number" && verdict.score >= 0 && verdict.score <= 1
    && id.length <= LONGEST_ID && JSON.stringify(answer).length <= LONGEST_ANSWER && pictures.length <= MAX_PICTURES && earlier.length <= MOST_EARLIER;
  if (!isWhole) throw new TypeError("no plant");
  const said = (text) => (typeof text === "string" ? text.slice(0, LONGEST_TEXT) : "");
  return {
    id, answer, date: new Date(date).toISOString(), pictures: pictures.map(blobOf), earlier: earlier.map(blobOf), name: said(name), note: said(note), correction: said(correction) || null,
    where: where !== null && isPlace(where) ? { latitude: where.latitude, longitude: where.longitude } : null,
  };
}

function addressOf(picture) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(picture);
  });
}

/** Returns the picture of a data URL; the page may not fetch one. */
export function blobOf(address) {
  const [, type, content] = PICTURE.exec(address);
  return new Blob([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], { type });
}
