// The file in which plants go to another device: JSON, with the photographs as data URLs.

const FORMAT = "botanify-plants";
const VERSION = 1;
const PICTURE = /^data:(image\/(?:jpeg|png|webp));base64,([A-Za-z0-9+/]+=*)$/;

/** Returns the file of plants; their JSON is joined as bytes, since one text of it all may be too long for a browser. */
export async function fileOf(plants) {
  const parts = [`{"format":"${FORMAT}","version":${VERSION},"plants":[`];
  for (const [index, plant] of plants.entries()) {
    const pictures = await Promise.all(plant.pictures.map(addressOf));
    parts.push(`${index ? "," : ""}\n${JSON.stringify({ ...plant, pictures })}`);
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

/** Takes over what the page shows and nothing else; throws if something of it is missing. */
function plantOf({ id, date, answer, pictures, correction = null, note = "", where = null }) {
  const isWhole = [id, answer.verdict.rank, answer.model.label_hash].every((text) => typeof text === "string" && text)
    && [answer.predictions, answer.images, answer.warnings].every(Array.isArray);
  if (!isWhole) throw new TypeError("no plant");
  return {
    id, answer, date: new Date(date).toISOString(), pictures: pictures.map(blobOf), note: String(note),
    correction: correction === null ? null : String(correction),
    where: where === null ? null : { latitude: Number(where.latitude), longitude: Number(where.longitude) },
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
