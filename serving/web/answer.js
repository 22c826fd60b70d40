// Builds the content of the answer panel while a request is answered, and the answer. Pure functions from data to elements.

import { bar, element, scientificName } from "./elements.js";
import { count, percent, seconds } from "./formats.js";

const HEADINGS = { species: "Species", genus: "Genus", family: "Family", uncertain: "No clear answer", not_a_plant: "No plant" };

export function showProgress(numPictures) {
  const clock = element("span", { className: "wait__clock", "aria-hidden": "true" });
  const node = element("div", { className: "wait" },
    element("span", { className: "wait__leaf", "aria-hidden": "true" }),
    element("p", {}, `Looking at ${count(numPictures, "picture")} … `, clock));
  return { node, tick: (milliseconds) => { clock.textContent = seconds(milliseconds); } };
}

export function showAnswer(answer, elapsedMs) {
  return [
    verdictCard(answer),
    answer.warnings.length > 0 && warningNote(answer.warnings),
    element("h3", { className: "answer__heading" }, answer.verdict.rank === "species" ? "All candidates" : "Closest candidates"),
    element("ol", { className: "candidates" }, answer.predictions.map(candidate)),
    groupList("Genera", answer.genera, scientificName),
    groupList("Families", answer.families, (name) => name),
    element("p", { className: "fineprint" },
      `${count(answer.images.length, "picture")} · ${seconds(elapsedMs)} · request `, element("code", {}, answer.request_id)),
  ].filter(Boolean);
}

/** Returns the sentence for screen readers when an answer arrives. */
export function announceAnswer(answer) {
  const { rank, name, score, reason } = answer.verdict;
  if (name === null) return `${verdictTitle(answer.verdict)}. ${reason}`;
  const [common] = commonNames(answer);
  return `${HEADINGS[rank]}: ${name}${common ? `, ${common}` : ""}, ${percent(score)}.`;
}

function verdictCard(answer) {
  const { rank, name, score, reason } = answer.verdict;
  const common = commonNames(answer);
  return element("div", { className: `verdict verdict--${rank}` },
    element("p", { className: "verdict__rank" }, HEADINGS[rank] ?? rank),
    element("h3", { className: "verdict__name" }, name === null ? verdictTitle(answer.verdict) : printedName(rank, name)),
    common.length > 0 && element("p", { className: "verdict__common" }, common.join(", ")),
    verdictExplanation(answer),
    name !== null && element("div", { className: "verdict__score" }, element("b", {}, percent(score)), bar(score)),
    element("p", { className: "verdict__reason" }, reason));
}

function verdictTitle(verdict) {
  return verdict.rank === "not_a_plant" ? "This does not look like a plant" : "Not sure";
}

function printedName(rank, name) {
  return rank === "family" ? element("span", { lang: "la" }, name) : scientificName(name);
}

function commonNames({ verdict, predictions }) {
  if (verdict.rank !== "species") return [];
  return predictions.find((prediction) => prediction.scientific_name === verdict.name)?.common_names ?? [];
}

function verdictExplanation({ verdict, predictions }) {
  const best = predictions[0];
  const explanations = {
    genus: () => ["A species of the genus ", scientificName(verdict.name), "; the species is not certain."],
    family: () => [`A species of the family ${verdict.name}; neither genus nor species is certain.`],
    uncertain: () => ["The closest match is ", scientificName(best.scientific_name), `, at ${percent(best.score)}.`],
  };
  const explain = best ? explanations[verdict.rank] : undefined;
  return explain ? element("p", { className: "verdict__meaning" }, explain()) : null;
}

function candidate(prediction) {
  const names = prediction.common_names.join(", ");
  return element("li", { className: "candidate" },
    element("div", { className: "candidate__names" },
      element("p", { className: "candidate__name" }, scientificName(prediction.scientific_name),
        prediction.rank === "genus" && element("span", { className: "tag" }, "genus only")),
      names && element("p", { className: "candidate__common" }, names),
      element("p", { className: "candidate__family" }, prediction.family,
        prediction.gbif_id !== null && [prediction.family && " · ", gbifLink(prediction)])),
    element("p", { className: "candidate__score" }, percent(prediction.score)),
    bar(prediction.score));
}

function gbifLink({ gbif_id: id, scientific_name: name }) {
  return element("a", { href: `https://www.gbif.org/species/${encodeURIComponent(id)}`, rel: "noreferrer", target: "_blank",
    "aria-label": `${name} at GBIF, opens a new tab` }, "GBIF");
}

function groupList(title, groups, print) {
  if (!groups.length) return null;
  return element("details", { className: "groups" },
    element("summary", {}, `${title} `, element("span", { className: "groups__best" }, groups[0].name, ` ${percent(groups[0].score)}`)),
    element("ol", {}, groups.map((group) => element("li", {},
      element("span", {}, print(group.name)), bar(group.score), element("span", { className: "groups__score" }, percent(group.score))))));
}

function warningNote(warnings) {
  return element("div", { className: "note note--warning" },
    element("h3", {}, "Please note"),
    element("ul", {}, warnings.map((warning) => element("li", {}, warning))));
}
