// Builds the content of the answer panel while a request is answered, and the answer. Pure functions from data to elements.

import { adviceFor } from "./advice.js";
import { bar, element, printed, scientificName } from "./elements.js";
import { count, percent, seconds } from "./formats.js";
import { candidateList, candidateSet, folded, groupList, lookAlikeList, pictureList } from "./lists.js";
import {
  alternativesSentence, candidateWords, commonNames, discardedSentence, otherWarnings, placeSentence, stateOf, trustSentence,
  verdictHeading, verdictName, verdictSentence,
} from "./sentences.js";

const LIST_TITLES = { species: "All candidates", unknown_plant: "What it resembles most" };

/** Shows an answer; `model` describes the model that gave it, or is null if that is not known. */
export function showAnswer(answer, model, elapsedMs) {
  const advice = adviceFor(answer);
  const warnings = otherWarnings(answer);
  return [
    verdictCard(answer, model),
    lookAlikeList(answer),
    warnings.length > 0 && note("warning", "Please note", warnings),
    advice.length > 0 && note("advice", "What would help", advice),
    ...plantLists(answer),
    pictureList(answer.images),
    element("p", { className: "fineprint" },
      `${count(answer.images.length, "picture")} · ${seconds(elapsedMs)} · request `, element("code", {}, answer.request_id)),
  ].filter(Boolean);
}

function verdictCard(answer, model) {
  const { rank, name, score, reason } = answer.verdict;
  const { label, title } = verdictHeading(answer);
  const common = commonNames(answer);
  return element("div", { className: `verdict verdict--${rank}` },
    element("p", { className: "verdict__rank" }, label),
    element("h3", { className: "verdict__name" }, name === null ? title : printedName(answer)),
    common.length > 0 && element("p", { className: "verdict__common" }, common.join(", ")),
    paragraph("verdict__meaning", verdictSentence(answer, model)),
    name !== null && element("div", { className: "verdict__score" }, element("b", {}, percent(score)), bar(score)),
    paragraph("verdict__trust", trustSentence(answer, model)),
    paragraph("verdict__trust", alternativesSentence(answer)),
    paragraph("verdict__trust", discardedSentence(answer)),
    paragraph("verdict__trust", placeSentence(answer)),
    paragraph("verdict__reason", `Why: ${reason}`));
}

function paragraph(className, sentence) {
  return sentence !== null && element("p", { className }, printed(sentence));
}

function printedName(answer) {
  const { rank, name } = answer.verdict;
  return rank === "family" ? element("span", { lang: "la" }, name) : printed(verdictName(answer));
}

function note(kind, title, sentences) {
  return element("div", { className: `note note--${kind}` },
    element("h3", {}, title),
    element("ul", {}, sentences.map((sentence) => element("li", {}, sentence))));
}

/** The taxa, genera and families; folded away if the pictures do not look like a plant. */
function plantLists(answer) {
  const lists = [
    ...taxonLists(answer),
    groupList("Genera", answer.genera, scientificName),
    groupList("Families", answer.families, (name) => name),
  ].filter(Boolean);
  return stateOf(answer) === "not_a_plant" ? [folded("Show the closest plants all the same", lists)] : lists;
}

function taxonLists(answer) {
  const words = candidateWords(answer);
  const all = candidateList(answer.predictions);
  if (words === null) return [heading(LIST_TITLES[stateOf(answer)] ?? "Closest candidates"), all];
  return [
    heading(words.heading),
    element("p", { className: "answer__explanation" }, words.explanation),
    ...candidateSet(answer.candidates.taxa),
    folded("Highest scores", [all]),
  ];
}

const heading = (text) => element("h3", { className: "answer__heading" }, text);
