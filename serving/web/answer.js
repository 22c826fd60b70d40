// Builds the card of an answer: a name that people know, how far to trust it, and what to do next. The figures are folded away.

import { adviceFor, morePicturesSentence } from "./advice.js";
import { correction } from "./correct.js";
import { bar, element, printed } from "./elements.js";
import { percent, seconds } from "./formats.js";
import { candidateList, differenceList, folded, guessList, harmNote, labelHash, lookAlikeList, readOn, typicalPictures } from "./lists.js";
import {
  choiceSentence, discardedSentence, foreignNamesSentence, harmSentences, isGuess, namedSpecies, otherWarnings, placeSentence,
  probablePlant, stateOf, trustFigures, trustSentence, unusedSentence, verdictHeading, verdictSentence,
} from "./sentences.js";
import { say } from "./text.js";

const NUM_REFERENCES = 3; // pictures of the named species beside one's own

/**
 * Shows an answer.
 *
 * @param model Describes the model that gave it, or is null if that is not known.
 * @param files The pictures that were sent, for a correction; empty if they are gone.
 * @param elapsedMs How long the answer took, or null.
 * @param leaveOut Removes the picture of an index and asks again, or is null where that cannot be done.
 */
export function showAnswer(answer, model, files, elapsedMs = null, leaveOut = null) {
  const state = stateOf(answer);
  const warnings = otherWarnings(answer);
  return [
    verdictCard(answer, model, state, leaveOut),
    lookAlikeList(answer),
    guessList(answer, state),
    differenceList(answer, files),
    note("advice", say("advice.title"), adviceFor(answer, model), {}, morePicturesSentence(answer, model)),
    note("warning", say("card.note"), warnings, { lang: "en" }),
    sureness(answer, model, state, elapsedMs),
    state !== "not_a_plant" && correction(answer, model, files),
  ].filter(Boolean);
}

function verdictCard(answer, model, state, leaveOut) {
  const { label, title, latin } = verdictHeading(answer);
  const isNamed = answer.verdict.name !== null;
  return element("div", { className: `verdict verdict--${isGuess(answer) ? "guess" : state}` },
    harmSentences(answer).map((sentence) => paragraph("verdict__harm", sentence)),
    element("p", { className: "verdict__rank" }, label),
    element("h3", { className: "verdict__name" }, printed(title)),
    paragraph("verdict__latin", latin),
    harmNote(namedSpecies(answer) ?? probablePlant(answer)),
    answer.images.filter((image) => image.looks_different).map((image) => different(image, leaveOut)),
    answer.images.map((image) => paragraph("verdict__meaning", unusedSentence(image))),
    paragraph("verdict__trust", trustSentence(answer)),
    paragraph("verdict__meaning", verdictSentence(answer, model)),
    paragraph("verdict__meaning", choiceSentence(answer)),
    paragraph("verdict__meaning", placeSentence(answer)),
    state !== "not_a_plant" && paragraph("verdict__caution", say("card.caution")),
    harmSentences(answer, false).map((sentence) => paragraph("verdict__aside", sentence)),
    isNamed && typicalPictures(namedSpecies(answer), NUM_REFERENCES),
    isNamed && readOn(answer),
    state !== "not_a_plant" && paragraph("verdict__aside", foreignNamesSentence(model)));
}

function paragraph(className, sentence, more = {}) {
  return sentence !== null && element("p", { className, ...more }, printed(sentence));
}

function note(kind, title, sentences, more = {}, below = null) {
  return (sentences.length > 0 || below !== null) && element("div", { className: `note note--${kind}` },
    element("h3", {}, title),
    element("ul", more, sentences.map((sentence) => element("li", {}, printed(sentence)))),
    paragraph("note__below", below));
}

/** Asks about a picture that may show another plant. */
function different({ index }, leaveOut) {
  const button = leaveOut && element("button", { type: "button", className: "link", onclick: () => leaveOut(index) }, say("picture.leave_out"));
  return element("p", { className: "verdict__meaning" }, say("picture.different", { n: index + 1 }), " ", button);
}

/** The figures of the answer, folded away. */
function sureness(answer, model, state, elapsedMs) {
  const { verdict, images, request_id: request } = answer;
  const facts = [verdict.name !== null && say("sure.score", { score: percent(verdict.score) }), ...trustFigures(answer, model), discardedSentence(answer)];
  const footer = [say("count.pictures", { n: images.length }), elapsedMs !== null && seconds(elapsedMs)].filter(Boolean).join(" · ");
  return folded(say("sure.title"), [
    verdict.name !== null && bar(verdict.score),
    facts.filter(Boolean).map((fact) => element("p", {}, fact)),
    element("p", { className: "verdict__reason" }, say("sure.why"), " ", element("span", { lang: "en" }, verdict.reason)),
    state !== "not_a_plant" && folded(say("sure.scores"), [candidateList(answer.predictions)]),
    element("p", { className: "fineprint" }, `${footer} · ${answer.model.name} ${answer.model.version} · `, labelHash(answer.model), ` · ${say("sure.request")} `, element("code", {}, request)),
  ], "sureness");
}
