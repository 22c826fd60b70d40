// Asks whether an answer is right. The photographs go along if the person agrees. After the thanks, the form is gone.

import { suggestWhileTyping } from "./choice.js";
import { element, tell } from "./elements.js";
import { knownAs, stateOf } from "./sentences.js";
import { correctAnswer, takeBack } from "./service.js";
import { plainText, say } from "./text.js";

const LEAST_OFFERED = 0.3; // probability from which a plant that has no verdict is offered by name
let forms = 0; // on this page, for ids of their own

/** Returns the form, or null if the service keeps no corrections; `pictures` are the bytes that were identified. */
export function correction(answer, model, pictures) {
  if (!model?.corrections) return null;
  forms += 1;
  const status = element("p", { className: "correction__status", role: "status" });
  const [certain, certainLine] = checkbox("certain", say("correction.certain"));
  const [consent, consentLine] = checkbox("consent", say("correction.consent", { n: pictures.length, duration: say("count.days", { n: model.corrections.days }) }));
  const content = element("div", { className: "correction__form" });
  const section = element("section", { className: "correction" }, content, status);

  async function send(wish) {
    status.textContent = say("correction.sending");
    try {
      const kept = await correctAnswer(answer.request_id, { ...wish, certain: certain.checked }, consent.checked ? pictures : []);
      const undo = element("button", { type: "button", className: "link", onclick: () => remove(kept.correction_id) }, say("correction.take_back"));
      const what = say("correction.kept", { name: kept.name, n: kept.num_pictures, duration: say("count.days", { n: kept.days }) });
      content.hidden = true;
      status.replaceChildren(what, " ", undo);
      tell("corrected", { answer, correction: kept, element: section });
    } catch (problem) {
      status.textContent = wordsOf(problem);
    }
  }

  async function remove(id) {
    try {
      await takeBack(id);
      content.hidden = false;
      tell("corrected", { answer, correction: null, element: section });
      status.textContent = say("correction.deleted");
    } catch (problem) {
      status.textContent = wordsOf(problem);
    }
  }

  // What goes along with an answer stands above the buttons that send it.
  const [question, ...senders] = questions(answer, send);
  content.append(question, certainLine, ...(pictures.length ? [consentLine] : []), ...senders);
  return section;
}

const wordsOf = (problem) => `${problem.title ?? say("correction.failed")}. ${problem.message}`;

function checkbox(name, text) {
  const box = element("input", { type: "checkbox", id: `correction-${name}-${forms}` });
  return [box, element("p", {}, box, " ", element("label", { htmlFor: box.id }, text))];
}

/** The question, the button for the best name, and the field for another one. */
function questions(answer, send) {
  const state = stateOf(answer);
  const [best] = answer.predictions;
  const yes = (state === "species" || best?.score >= LEAST_OFFERED) && element("button", { type: "button", className: "button", onclick: () => send({ taxon: best.taxon_id }) },
    say(state === "species" ? "correction.yes" : "correction.it_is_name", { name: plainText(knownAs(best)) }));
  return [
    element("h3", { className: "answer__heading" }, say(state === "species" ? "correction.question" : "correction.open_question")),
    element("div", { className: "correction__buttons" }, yes),
    otherName(send),
  ];
}

function otherName(send) {
  const list = element("datalist", { id: `correction-names-${forms}` });
  const name = element("input", { type: "text", id: `correction-name-${forms}`, autocomplete: "off", maxLength: 200 });
  name.setAttribute("list", list.id); // the property of that name is read-only
  const known = suggestWhileTyping(name, list);
  const form = element("form", { className: "correction__other" },
    element("label", { htmlFor: name.id }, say("correction.it_is")), name, list, element("button", { type: "submit", className: "button button--quiet" }, say("correction.send")));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = name.value.trim();
    const taxon = known.get(text.toLowerCase());
    if (text) send(taxon ? { taxon } : { other: text });
  });
  return form;
}
