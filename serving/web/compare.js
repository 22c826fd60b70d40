// Shows the reference pictures of a taxon with author and license. Those of a candidate are loaded when they are asked for.

import { element } from "./elements.js";
import { addressOf, describeTaxon } from "./service.js";
import { say } from "./text.js";

/** Returns null for a taxon without pictures. */
export function comparison(taxon) {
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
