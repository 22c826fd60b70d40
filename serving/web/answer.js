// Builds the card of an answer: a name that people know, how far to trust it, and what to do next. The figures are folded away.

import { adviceFor } from "./advice.js";
import { typicalPictures } from "./compare.js";
import { correction } from "./correct.js";
import { bar, element, printed } from "./elements.js";
import { percent, seconds } from "./formats.js";
import { candidateList, candidateSet, folded, groupList, guessList, labelHash, lookAlikeList, pictureList, readOn } from "./lists.js";
import {
  aloneSentence, choiceSentence, foreignNamesSentence, harmSentences, isGuess, namedSpecies, otherWarnings, placeSentence, stateOf, trustSentence, unusedSentence,
  verdictHeading, verdictSentence,
} from "./sentences.js";
import { candidateWords, discardedSentence, trustFigures } from "./sure.js";
import { say } from "./text.js";

const NUM_REFERENCES = 3; // pictures of the named species beside one's own

/**
 * Shows an answer.
 *
 * @param model Describes the model that gave it, or is null if that is not known.
 * @param files The pictures that were sent, for a correction; empty if they are gone.
 * @param elapsedMs How long the answer took, or null.
 */
export function showAnswer(answer, model, files, elapsedMs = null) {
  const state = stateOf(answer);
  const warnings = otherWarnings(answer);
  return [
    verdictCard(answer, model, state),
    state === "contradictory" && alone(answer.images),
    lookAlikeList(answer),
    guessList(answer, state),
    note("advice", say("advice.title"), adviceFor(answer, model)),
    note("warning", say("card.note"), warnings, { lang: "en" }),
    sureness(answer, model, state, elapsedMs),
    state !== "not_a_plant" && correction(answer, model, files),
  ].filter(Boolean);
}

function verdictCard(answer, model, state) {
  const { label, title, latin } = verdictHeading(answer);
  const isNamed = answer.verdict.name !== null && state !== "contradictory";
  return element("div", { className: `verdict verdict--${isNamed && isGuess(answer) ? "guess" : state}` },
    harmSentences(answer).map((sentence) => paragraph("verdict__harm", sentence)),
    element("p", { className: "verdict__rank" }, label),
    element("h3", { className: "verdict__name" }, printed(title)),
    paragraph("verdict__latin", latin),
    paragraph("verdict__trust", trustSentence(answer)),
    paragraph("verdict__meaning", verdictSentence(answer, model)),
    paragraph("verdict__meaning", choiceSentence(answer)),
    paragraph("verdict__meaning", placeSentence(answer)),
    state !== "not_a_plant" && paragraph("verdict__caution", say("card.caution")),
    isNamed && !answer.look_alikes?.length && typicalPictures(namedSpecies(answer), NUM_REFERENCES),
    isNamed && readOn(answer),
    state !== "not_a_plant" && paragraph("verdict__languages", foreignNamesSentence(model)));
}

function paragraph(className, sentence, more = {}) {
  return sentence !== null && element("p", { className, ...more }, printed(sentence));
}

function note(kind, title, sentences, more = {}) {
  return sentences.length > 0 && element("div", { className: `note note--${kind}` },
    element("h3", {}, title),
    element("ul", more, sentences.map((sentence) => element("li", {}, printed(sentence)))));
}

/** What each photograph shows by itself, where they show different plants. */
function alone(images) {
  return element("ol", { className: "alone" }, images.map((image) => element("li", {},
    element("b", {}, say("picture.title", { n: image.index + 1 })), " ", printed(unusedSentence(image) ?? aloneSentence(image)))));
}

/** The figures of the answer, folded away. */
function sureness(answer, model, state, elapsedMs) {
  const { verdict, images, request_id: request } = answer;
  const words = candidateWords(answer);
  const facts = [verdict.name !== null && say("sure.score", { score: percent(verdict.score) }), ...trustFigures(answer, model), discardedSentence(answer)];
  const footer = [say("count.pictures", { n: images.length }), elapsedMs !== null && seconds(elapsedMs)].filter(Boolean).join(" · ");
  return folded(say("sure.title"), [
    verdict.name !== null && bar(verdict.score),
    facts.filter(Boolean).map((fact) => element("p", {}, fact)),
    element("p", { className: "verdict__reason" }, say("sure.why"), " ", element("span", { lang: "en" }, verdict.reason)),
    words && [element("h4", { className: "answer__heading" }, words.heading), words.sentences.map((sentence) => element("p", {}, sentence)), candidateSet(answer.candidates.taxa)],
    state !== "not_a_plant" && plantLists(answer),
    pictureList(images),
    element("p", { className: "fineprint" }, `${footer} · ${answer.model.name} ${answer.model.version} · `, labelHash(answer.model), ` · ${say("sure.request")} `, element("code", {}, request)),
  ], "", "sureness");
}

function plantLists(answer) {
  return [
    folded(say("sure.scores"), [candidateList(answer.predictions)]),
    groupList(say("sure.genera"), answer.genera, (name) => ({ name })),
    groupList(say("sure.families"), answer.families, (name) => name),
  ];
}
