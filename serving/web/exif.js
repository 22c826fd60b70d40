// Reads where a JPEG photograph was taken, from its EXIF data. No function needs a document.

const HEAD_BYTES = 128 * 1024; // EXIF data stands within the first 64 kB
const [SOI, APP1] = [0xffd8, 0xffe1];
const EXIF = 0x45786966; // "Exif"
const GPS_FOLDER = 0x8825;
const [LATITUDE_SIDE, LATITUDE, LONGITUDE_SIDE, LONGITUDE, STATUS] = [1, 2, 3, 4, 9];
const ENTRY_BYTES = 12;

/** Returns the place of the first photograph that tells one, or null. */
export async function placeIn(files) {
  for (const file of files) {
    const place = placeOf(await file.slice(0, HEAD_BYTES).arrayBuffer());
    if (place !== null) return place;
  }
  return null;
}

/** Returns { latitude, longitude } of the first bytes of a file, or null. */
export function placeOf(bytes) {
  try {
    return placeBehind(new DataView(bytes));
  } catch (problem) {
    if (problem instanceof RangeError) return null; // cut off, or broken
    throw problem;
  }
}

/** Whether both are coordinates, in degrees; cameras without a fix write zeros. */
export function isPlace({ latitude, longitude }) {
  const areNumbers = Number.isFinite(latitude) && Number.isFinite(longitude);
  return areNumbers && Math.abs(latitude) <= 90 && Math.abs(longitude) <= 180 && (latitude !== 0 || longitude !== 0);
}

function placeBehind(view) {
  if (view.getUint16(0) !== SOI) return null;
  for (let at = 2; view.getUint8(at) === 0xff; at += 2 + view.getUint16(at + 2)) {
    if (view.getUint16(at) === APP1 && view.getUint32(at + 4) === EXIF) return placeInTiff(new DataView(view.buffer, at + 10));
  }
  return null;
}

function placeInTiff(tiff) {
  const isLittle = tiff.getUint16(0) === 0x4949;
  const gpsAt = folder(tiff, tiff.getUint32(4, isLittle), isLittle).get(GPS_FOLDER);
  if (gpsAt === undefined) return null;
  const gps = folder(tiff, tiff.getUint32(gpsAt, isLittle), isLittle);
  const count = (tag) => tiff.getUint32(gps.get(tag) - 4, isLittle);
  const farAt = (tag) => tiff.getUint32(gps.get(tag), isLittle); // of a value of more than 4 bytes
  const letter = (tag) => String.fromCharCode(tiff.getUint8(count(tag) > 4 ? farAt(tag) : gps.get(tag))).toUpperCase();
  if (gps.has(STATUS) && letter(STATUS) === "V") return null; // no measurement: where the camera was before
  const degrees = (tag, sideTag, signs) => {
    if (!gps.has(tag) || !gps.has(sideTag) || ![2, 3].includes(count(tag))) return NaN;
    const part = (index) => tiff.getUint32(farAt(tag) + 8 * index, isLittle) / tiff.getUint32(farAt(tag) + 8 * index + 4, isLittle);
    return signs[letter(sideTag)] * (part(0) + part(1) / 60 + ((count(tag) === 3 && part(2)) || 0) / 3600); // seconds of 0/0: the minutes have decimals
  };
  const place = { latitude: degrees(LATITUDE, LATITUDE_SIDE, { N: 1, S: -1 }), longitude: degrees(LONGITUDE, LONGITUDE_SIDE, { E: 1, W: -1 }) };
  return isPlace(place) ? place : null;
}

/** Returns tag -> position of its value, for the entries of a folder. */
function folder(tiff, at, isLittle) {
  const positions = Array.from({ length: tiff.getUint16(at, isLittle) }, (_, index) => at + 2 + ENTRY_BYTES * index);
  return new Map(positions.map((position) => [tiff.getUint16(position, isLittle), position + 8]));
}
