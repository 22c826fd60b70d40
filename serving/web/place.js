// Where the plant grows: an optional button that asks the device once, and sends the place coarsely.

import { element } from "./elements.js";
import { language, say } from "./text.js";

const TIMEOUT_MS = 20_000;

/** Returns a coordinate as it is sent, in tenths of a degree: some 10 km. */
export const coarse = (degrees) => Math.round(degrees * 10) / 10;

/** Sets up the control after another one; where() gives latitude and longitude, or null; show(model) shows it if the model uses places. */
export function setUpPlace(after, onChange) {
  let where = null;
  const status = element("p", { className: "place__status", role: "status" });
  const ask = element("button", { type: "button", className: "button button--quiet", onclick: () => locate() }, say("place.use"));
  const forget = element("button", { type: "button", className: "button button--quiet", hidden: true, onclick: () => set(null, "") }, say("place.forget"));
  const known = element("p", {});
  const control = element("details", { className: "folded place", hidden: true }, element("summary", {}, say("place.title")),
    known, element("div", { className: "buttons" }, ask, forget), status);
  after.after(control);

  function locate() {
    if (!navigator.geolocation) {
      status.textContent = say("place.none");
      return;
    }
    status.textContent = say("place.asking");
    navigator.geolocation.getCurrentPosition(({ coords }) => {
      const place = { latitude: coarse(coords.latitude), longitude: coarse(coords.longitude) };
      set(place, say("place.sent", inWords(place)));
    }, ({ message }) => set(null, message ? say("place.failed", { message }) : say("place.not_told")), { timeout: TIMEOUT_MS });
  }

  function set(place, sentence) {
    const changed = (place === null) !== (where === null) || place !== null;
    where = place;
    status.textContent = sentence;
    forget.hidden = place === null;
    if (changed) onChange();
  }

  function show({ place = null }) {
    control.hidden = place === null;
    if (place === null) return;
    known.textContent = [say("place.known", { n: place.num_records }), place.num_unknown_taxa > 0 && say("place.unknown", { n: place.num_unknown_taxa })].filter(Boolean).join(" ");
  }

  return { where: () => where, show };
}

/** Returns { latitude, longitude } in words, such as "48.1° N". */
function inWords({ latitude, longitude }) {
  return { latitude: say(`place.${latitude < 0 ? "s" : "n"}`, degrees(latitude)), longitude: say(`place.${longitude < 0 ? "w" : "e"}`, degrees(longitude)) };
}

const degrees = (value) => ({ degrees: Math.abs(value).toLocaleString(language, { minimumFractionDigits: 1, maximumFractionDigits: 1 }) });
