// Builds the lists of an answer: guesses, look-alikes and how they are told apart, all scores, and reference pictures of a plant.

import { bar, element, printed } from "./elements.js";
import { percent } from "./formats.js";
import { chanceOf, commonNames, harmWords, isGenusAlone, knownAs, namedSpecies, nameOf } from "./sentences.js";
import { addressOf, describeTaxon } from "./service.js";
import { language, say } from "./text.js";

const NUM_GUESSES = 3;
const NUM_DIFFERENCES = 3;
const LEAST_GUESS = 0.02; // probability of a guess that is worth a look
const HASH_DIGITS = 12; // enough to distinguish two models; the title attribute has the whole hash

/** Shows the likeliest plants where the answer has no species: those of the genus or family that it names, or all. */
export function guessList(answer, state) {
  const { predictions, verdict, harmful = [] } = answer;
  if (!["genus", "family", "uncertain", "unknown_plant"].includes(state)) return null;
  const fits = (taxon) => verdict.name === null || taxon[state] === verdict.name;
  const likely = predictions.filter((taxon) => fits(taxon) && (taxon.score >= LEAST_GUESS || chanceOf(answer))).slice(0, NUM_GUESSES);
  // A plant that stands above the name is among the guesses, however unlikely it is.
  const warnedOf = harmful.filter(({ is_likely: isLikely = true }) => isLikely).map(({ prediction }) => prediction)
    .filter((taxon) => fits(taxon) && !likely.some(({ taxon_id: id }) => id === taxon.taxon_id));
  const guesses = [...likely, ...warnedOf];
  if (!guesses.length || (isGenusAlone(answer) && guesses.length === 1)) return null;
  return element("section", { className: "guesses" },
    element("h3", { className: "answer__heading" }, say(`guesses.${state === "unknown_plant" ? "resembles" : "title"}`)),
    element("ul", {}, guesses.map((taxon) => candidate(taxon, [readOnLinks(taxon)], comparison(taxon), state !== "unknown_plant"))));
}

/** The name that people know, below it the scientific one, and how it harms. */
function plantNames(taxon) {
  return [
    element("p", { className: "candidate__name" }, printed(knownAs(taxon)),
      taxon.rank === "genus" && element("span", { className: "tag" }, say("candidate.genus_only"))),
    commonNames(taxon).length > 0 && element("p", { className: "candidate__common" }, printed(nameOf(taxon))),
    harmNote(taxon),
  ];
}

/** Says in short how a plant harms; opened, what handbooks say, in English. Returns null if that is not known. */
export function harmNote(taxon) {
  if (!taxon?.harms?.length) return null;
  const lines = taxon.harms.map(({ parts, line, source }) => element("p", { lang: "en" }, `${parts}: ${line} (${source})`));
  return element("details", { className: "harms" }, element("summary", {}, harmWords(taxon)), lines);
}

export function candidateList(predictions) {
  return element("ol", { className: "candidates" }, predictions.map((taxon) => candidate(taxon, [
    taxon.family && element("p", { className: "candidate__family" }, taxon.family),
    Number.isFinite(taxon.prior) && element("p", { className: "candidate__family" },
      say("candidate.place", { share: percent(taxon.vision_score), factor: taxon.prior })),
  ])));
}

export function folded(title, content, className = "") {
  return element("details", { className: `folded ${className}`.trimEnd() }, element("summary", {}, title), ...content.flat(2));
}

/** Names the outputs of a model. */
export function labelHash({ label_hash: hash }) {
  return [`${say("sure.labels")} `, element("code", { title: hash }, hash.slice(0, HASH_DIGITS))];
}

/** A percentage would say too much of a plant that only resembles. */
function candidate(taxon, words, below = null, hasPercent = true) {
  return element("li", { className: "candidate" },
    element("div", { className: "candidate__names" }, plantNames(taxon), words),
    hasPercent && element("p", { className: "candidate__score" }, percent(taxon.score)),
    bar(taxon.score),
    below);
}

/** Shows what the named species is often taken for; returns null without any. */
export function lookAlikeList({ look_alikes: others = [] }) {
  if (!others.length) return null;
  return element("section", { className: "alikes" },
    element("h3", { className: "answer__heading" }, say("alikes.title")),
    element("ul", {}, others.map((taxon) => element("li", {}, plantNames(taxon), readOnLinks(taxon), typicalPictures(taxon, 1)))));
}

/** Shows how plants of the answer are told apart, with one's own photograph between them; returns null if nothing is known. */
export function differenceList({ differences = [], images, predictions, look_alikes: others = [] }, files) {
  if (!differences.length) return null;
  const side = (name, line, harms) => {
    const taxon = [...predictions, ...others].find(({ scientific_name: own }) => own === name) ?? { scientific_name: name, common_names: [], harms };
    return element("div", {}, plantNames(taxon), element("p", { lang: "en" }, line), typicalPictures(taxon, 1));
  };
  return element("section", { className: "differences" },
    element("h3", { className: "answer__heading" }, say("differences.title")),
    element("ul", {}, differences.slice(0, NUM_DIFFERENCES).map(({ one, other, line_one: lineOne, line_other: lineOther, other_harms: harms, source }) => element("li", {},
      side(one, lineOne, []),
      files.length > 0 && element("img", { src: images[0].preview ?? URL.createObjectURL(files[0]), alt: say("differences.yours") }),
      side(other, lineOther, harms),
      element("p", { className: "fineprint", lang: "en" }, source)))));
}

/** Links for the species of a verdict, or for its genus or family. */
export function readOn(answer) {
  const { verdict } = answer;
  return readOnLinks(namedSpecies(answer) ?? { scientific_name: verdict.name, genus: verdict.name, gbif_id: null });
}

function readOnLinks({ gbif_id: gbif, powo_id: powo, scientific_name: name }) {
  const link = (site, href) => element("a", { href, rel: "noreferrer", target: "_blank", "aria-label": say("link.label", { name, site }) }, site);
  const wikipedia = `https://${language}.wikipedia.org/w/index.php?${new URLSearchParams({ search: name })}`; // goes to the article, if there is one
  const links = [
    link("Wikipedia", wikipedia),
    gbif !== null && link("GBIF", `https://www.gbif.org/species/${encodeURIComponent(gbif)}`),
    powo && link("POWO", `https://powo.science.kew.org/taxon/urn:lsid:ipni.org:names:${encodeURIComponent(powo)}`),
  ].filter(Boolean);
  return element("p", { className: "read-on" }, say("link.read_on"), " ", links.flatMap((each, index) => (index ? [" · ", each] : [each])));
}

/** Returns null for a taxon without pictures. */
function comparison(taxon) {
  if (!taxon.num_images) return null;
  const pictures = element("div", { className: "references" });
  const details = element("details", { className: "folded candidate__references" },
    element("summary", {}, say("compare.title")), pictures);
  details.addEventListener("toggle", async () => {
    if (details.open && pictures.childElementCount === 0) await load(pictures, taxon, Infinity);
  });
  return details;
}

/** Shows the most typical pictures of a taxon at once; returns null for a taxon without pictures. */
export function typicalPictures(taxon, most) {
  if (!taxon?.num_images) return null;
  const pictures = element("div", { className: "references" });
  load(pictures, taxon, most);
  return pictures;
}

async function load(pictures, { taxon_id: id, scientific_name: name }, most) {
  try {
    const { images } = await describeTaxon(id);
    pictures.replaceChildren(...images.slice(0, most).map((image) => figure(image, name)));
  } catch (problem) {
    pictures.replaceChildren(element("p", {}, problem.title ?? say("compare.failed")));
  }
}

function figure({ url, author, license, source }, name) {
  return element("figure", { className: "reference" },
    element("img", { src: addressOf(url), alt: name, loading: "lazy" }),
    element("figcaption", {}, [author || source, license].join(", ")));
}
