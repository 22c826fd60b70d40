// Builds the lists of an answer: candidates, look-alikes, genera and families, and the pictures. Functions from data to elements.

import { comparison, firstPicture } from "./compare.js";
import { bar, element, printed } from "./elements.js";
import { count, percent } from "./formats.js";
import { nameOf, unusedSentence } from "./sentences.js";

const NUM_SHOWN = 10; // candidates of a set that are shown at once; the others are folded away

export function candidateList(predictions) {
  return element("ol", { className: "candidates" }, predictions.map(candidate));
}

/** Returns the elements for a set of candidates; the service lists at most 100 of them. */
export function candidateSet(taxa) {
  const rest = taxa.slice(NUM_SHOWN);
  return [candidateList(taxa.slice(0, NUM_SHOWN)), rest.length > 0 && folded(count(rest.length, "more candidate"), [candidateList(rest)])];
}

/** A list of genera or families, folded away, with the best one beside its title. */
export function groupList(title, groups, print) {
  if (!groups.length) return null;
  const items = groups.map((group) => element("li", {},
    element("span", {}, print(group.name)), bar(group.score), element("span", { className: "groups__score" }, percent(group.score))));
  return folded(title, [element("ol", { className: "groups" }, items)], `${groups[0].name} ${percent(groups[0].score)}`);
}

export function folded(title, content, hint = "") {
  return element("details", { className: "folded" },
    element("summary", {}, `${title} `, hint && element("span", { className: "folded__hint" }, hint)), content);
}

/** Shows what each of several pictures contributed; returns null for one, and if the model cannot tell how much each shows a plant. */
export function pictureList(images) {
  if (images.length < 2 || images.some(({ plant_score: score = null }) => score === null)) return null;
  return element("section", { className: "shares" },
    element("h3", { className: "answer__heading" }, "What each picture contributed"),
    element("ol", {}, images.map(picture)));
}

function picture({ index, weight, predictions = [], ...image }) {
  const unused = unusedSentence({ weight, ...image });
  return element("li", { className: unused ? "share share--unused" : "share" },
    element("span", { className: "share__title" }, `Picture ${index + 1}`),
    bar(weight),
    element("span", { className: "share__value" }, percent(weight)),
    element("p", { className: "share__note" }, unused ?? aloneWords(predictions)));
}

function aloneWords(predictions) {
  if (!predictions.length) return null;
  const [best] = predictions;
  return printed(["On its own: ", nameOf(best), `, ${percent(best.score)}`]);
}

function candidate(prediction) {
  const names = prediction.common_names.join(", ");
  return element("li", { className: "candidate" },
    element("div", { className: "candidate__names" },
      element("p", { className: "candidate__name" }, printed(nameOf(prediction)),
        prediction.rank === "genus" && element("span", { className: "tag" }, "genus only")),
      names && element("p", { className: "candidate__common" }, names),
      familyLine(prediction),
      Number.isFinite(prediction.prior) && element("p", { className: "candidate__family" },
        `Pictures alone ${percent(prediction.vision_score)}, place and season × ${prediction.prior.toFixed(2)}`)),
    element("p", { className: "candidate__score" }, percent(prediction.score)),
    bar(prediction.score),
    comparison(prediction));
}

function familyLine(taxon) {
  return element("p", { className: "candidate__family" }, [taxon.family, ...links(taxon)]
    .filter(Boolean).flatMap((part, index) => (index ? [" · ", part] : [part])));
}

/** Shows the named species beside those that it is often taken for; returns null without any. */
export function lookAlikeList({ look_alikes: others = [], predictions }) {
  if (!others.length) return null;
  return element("section", { className: "alikes" },
    element("h3", { className: "answer__heading" }, "Often taken for"),
    element("ul", {}, [predictions[0], ...others].map((taxon, index) => element("li", {},
      element("p", { className: "candidate__name" }, printed(nameOf(taxon)),
        index === 0 && [" ", element("span", { className: "tag" }, "the answer")]),
      element("p", { className: "candidate__common" }, taxon.common_names.join(", ")),
      familyLine(taxon),
      firstPicture(taxon)))));
}

function links({ gbif_id: gbif, powo_id: powo, scientific_name: name }) {
  const link = (site, href) => element("a", { href, rel: "noreferrer", target: "_blank",
    "aria-label": `${name} at ${site}, opens a new tab` }, site);
  return [
    gbif !== null && link("GBIF", `https://www.gbif.org/species/${encodeURIComponent(gbif)}`),
    powo && link("POWO", `https://powo.science.kew.org/taxon/urn:lsid:ipni.org:names:${encodeURIComponent(powo)}`),
  ];
}
