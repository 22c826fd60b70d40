// A row of Many photographs and of My plants: a picture, the plant in short, and the whole answer when it is opened.

import { element, printed } from "./elements.js";
import { joined } from "./formats.js";
import { chanceOf, harmSentences, knownAs, probablePlant, stateOf, verdictHeading } from "./sentences.js";
import { say } from "./text.js";

/** Returns a line of the words, or nothing without a sentence. */
export const line = (part, sentence) => sentence && element("span", { className: `many__${part}` }, printed(sentence));

/** Returns the plant in short: what may harm, its names, what a person said, and where the answer comes from. */
export function inShort(answer, { corrected, note, origin, own = "" }) {
  const { label, title, latin } = verdictHeading(answer);
  const probable = probablePlant(answer);
  const guesses = stateOf(answer) === "uncertain" && !probable ? answer.predictions.slice(0, chanceOf(answer) ? 3 : 1).map(knownAs) : [];
  return [
    ...harmSentences(answer).map((sentence) => line("harm", sentence)),
    line("plant", own),
    line(own ? "latin" : "plant", probable ? say("many.probably", { name: title }) : title),
    line("latin", guesses.length ? say("many.perhaps", { name: joined(guesses, "disjunction") }) : latin),
    line("corrected", corrected && say("many.corrected", { name: corrected })),
    line("corrected", note),
    line("photograph", `${label} · ${origin}`),
  ].filter(Boolean);
}

/** Returns a row; `open` gives what stands below it once it is opened, or is null if it cannot be opened. */
export function rowOf(picture, words, open) {
  const parts = [element("span", { className: "many__picture" }, picture), element("span", { className: "many__words" }, words)];
  if (open === null) return element("div", { className: "many__line" }, parts);
  const body = element("div", { className: "many__answer" });
  const details = element("details", {}, element("summary", { className: "many__line" }, parts), body);
  details.addEventListener("toggle", async () => body.prepend(...await open()), { once: true });
  return details;
}
