// Makes large pictures smaller before they are sent: upright, in sRGB, and without EXIF, which may tell the place.

const LARGE_BYTES = 2_000_000;
const LONGEST_PX = 1600; // over three times the side that networks look at, at most 480 px
const JPEG_QUALITY = 0.9;

const shrunkFiles = new WeakMap(); // so that a picture is made smaller once, however often it is sent

/** Returns the files to send; those that this browser cannot read stay as they are, since the service may read them. */
export async function shrunk(files, signal) {
  const sent = [];
  for (const file of files) { // one at a time: 50 decoded megapixels take 200 MB
    signal.throwIfAborted();
    if (file.size > LARGE_BYTES && !shrunkFiles.has(file)) shrunkFiles.set(file, await redrawn(file).catch(() => file));
    sent.push(shrunkFiles.get(file) ?? file);
  }
  return sent;
}

/** Returns a JPEG copy whose longest side has at most `longestPx`, or null if this browser cannot read the picture. */
export const copyOf = (file, longestPx) => redrawn(file, longestPx).catch(() => null);

async function redrawn(file, longestPx = LONGEST_PX) {
  const picture = await createImageBitmap(file, { imageOrientation: "from-image" });
  try {
    const blob = await jpegOf(drawn(picture, longestPx));
    return new File([blob], file.name, { type: blob.type });
  } finally {
    picture.close();
  }
}

function drawn(picture, longestPx) {
  const canvas = document.createElement("canvas");
  Object.assign(canvas, fitted(picture, longestPx));
  const context = canvas.getContext("2d");
  context.imageSmoothingQuality = "high";
  context.fillStyle = "white"; // the service, too, lays transparent pictures on white
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}

function jpegOf(canvas) {
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no memory for the picture"))), "image/jpeg", JPEG_QUALITY);
  });
}

/** Returns a size of the same proportions whose longest side has at most that many pixels; no picture becomes larger. */
export function fitted({ width, height }, longestPx = LONGEST_PX) {
  const scale = Math.min(1, longestPx / Math.max(width, height));
  return { width: Math.max(1, Math.round(width * scale)), height: Math.max(1, Math.round(height * scale)) };
}
