// Where the plant grows: an optional button that asks the device once, shows the place on a small map, and sends it coarsely.

import { element } from "./elements.js";

const STEP = 10; // parts of a degree that are sent, some 10 km
const TIMEOUT_MS = 20_000;

/**
 * Sets up the control after another one; it stays hidden until the model is known to use places.
 *
 * @param onChange Called after each change.
 * @returns where() gives latitude and longitude, or null; show(model) shows the control if the model uses places.
 */
export function setUpPlace(after, onChange) {
  let where = null;
  const status = element("p", { className: "place__status", role: "status" });
  const map = element("div", { className: "place__map", hidden: true },
    element("img", { src: "/web/land.svg", alt: "", width: 360, height: 180 }), element("span", { className: "place__dot" }));
  const ask = element("button", { type: "button", className: "button button--quiet", onclick: () => locate() }, "Use where I am");
  const forget = element("button", { type: "button", className: "button button--quiet", hidden: true, onclick: () => set(null, "") }, "Forget it");
  const known = element("p", {});
  const control = element("details", { className: "folded place", hidden: true }, element("summary", {}, "Place (optional)"),
    known, element("div", { className: "buttons" }, ask, forget), status, map);
  after.after(control);

  function locate() {
    if (!navigator.geolocation) {
      status.textContent = "This browser cannot tell where it is.";
      return;
    }
    status.textContent = "Asking this device …";
    navigator.geolocation.getCurrentPosition(({ coords }) => {
      const [latitude, longitude] = [coords.latitude, coords.longitude].map((value) => Math.round(value * STEP) / STEP);
      set({ latitude, longitude }, `${inWords(latitude, "N", "S")}, ${inWords(longitude, "E", "W")}. Only this coarse place is sent, with each answer.`);
    }, ({ message }) => set(null, `The place is not known: ${message || "the device did not tell it"}.`), { timeout: TIMEOUT_MS });
  }

  function set(place, sentence) {
    const changed = (place === null) !== (where === null) || place !== null;
    where = place;
    status.textContent = sentence;
    forget.hidden = map.hidden = place === null;
    if (place !== null) {
      map.lastElementChild.style.setProperty("--x", String((place.longitude + 180) / 3.6));
      map.lastElementChild.style.setProperty("--y", String((90 - place.latitude) / 1.8));
    }
    if (changed) onChange();
  }

  function show({ place = null }) {
    control.hidden = place === null;
    if (place === null) return;
    const unknown = place.num_unknown_taxa ? ` Of ${place.num_unknown_taxa.toLocaleString("en")} plants it knows no place; these are neither raised nor lowered.` : "";
    known.textContent = `The model has ${place.num_records.toLocaleString("en")} records of where and when its plants were photographed, and prefers plants that were recorded near you. A plant in a garden may grow anywhere: leave the place out for it.${unknown}`;
  }

  return { where: () => where, show };
}

function inWords(degrees, positive, negative) {
  return `${Math.abs(degrees).toFixed(1)}° ${degrees < 0 ? negative : positive}`;
}
