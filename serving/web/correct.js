// Two buttons under an answer: it is right, or it is another plant. The photographs go along if the person agrees.

import { element } from "./elements.js";
import { tell } from "./events.js";
import { count } from "./formats.js";
import { correctAnswer, findSpecies, takeBack } from "./service.js";

const SUGGESTIONS = 8;

/** Returns the form, or null if the service keeps no corrections; `pictures` are the bytes that were identified. */
export function correction(answer, model, pictures) {
  if (!model?.corrections) return null;
  const status = element("p", { className: "correction__status", role: "status" });
  const consent = element("input", { type: "checkbox", id: "correction-consent" });
  const certain = element("input", { type: "checkbox", id: "correction-certain" });
  const list = element("datalist", { id: "correction-names" });
  const name = element("input", { type: "text", id: "correction-name", autocomplete: "off", maxLength: 200 });
  name.setAttribute("list", list.id); // the property of that name is read-only
  const known = new Map();
  const buttons = element("div", { className: "correction__buttons" });

  async function send(wish) {
    status.textContent = "Sending …";
    try {
      const kept = await correctAnswer(answer.request_id, { ...wish, certain: certain.checked }, consent.checked ? pictures : []);
      const undo = element("button", { type: "button", className: "button button--quiet", onclick: () => remove(kept.correction_id) }, "Take it back");
      status.replaceChildren(`Thank you. Kept: ${kept.name}, ${count(kept.num_pictures, "photograph")}, for ${count(kept.days, "day")}. `, undo);
      tell("corrected", { answer, correction: kept, element: status.closest("section") });
    } catch (problem) {
      status.textContent = `${problem.title ?? "It could not be sent"}. ${problem.message}`;
    }
  }

  async function remove(id) {
    try {
      await takeBack(id);
      status.textContent = "It is deleted.";
    } catch (problem) {
      status.textContent = `${problem.title}. ${problem.message}`;
    }
  }

  name.addEventListener("input", async () => {
    if (name.value.trim().length < 2) return;
    const { species } = await findSpecies(name.value, SUGGESTIONS, undefined).catch(() => ({ species: [] }));
    for (const taxon of species) known.set(taxon.scientific_name.toLowerCase(), taxon.taxon_id);
    list.replaceChildren(...species.map((taxon) => element("option", { value: taxon.scientific_name }, taxon.common_names.join(", "))));
  });
  const best = answer.predictions[0];
  buttons.append(element("button", { type: "button", className: "button", onclick: () => send({ taxon: best.taxon_id }) }, `Yes, ${best.scientific_name}`));
  const other = element("form", { className: "correction__other" },
    element("label", { htmlFor: "correction-name" }, "It is "), name, list, element("button", { type: "submit", className: "button button--quiet" }, "Send"));
  other.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = name.value.trim();
    const taxon = known.get(text.toLowerCase());
    if (text) send(taxon ? { taxon } : { other: text });
  });
  return element("section", { className: "correction" },
    element("h3", { className: "answer__heading" }, "Is that right?"),
    element("p", {}, certain, element("label", { htmlFor: "correction-certain" }, " I am certain")),
    element("p", {}, consent, element("label", { htmlFor: "correction-consent" },
      ` The operator of this service may keep my ${pictures.length === 1 ? "photograph" : "photographs"}, with the place and date in ${pictures.length === 1 ? "it" : "them"}, for ${count(model.corrections.days, "day")} to improve the model`)),
    buttons, other, status);
}
