// Shows the reference pictures of a candidate with author and license. They are loaded when they are asked for.

import { element } from "./elements.js";
import { describeTaxon } from "./service.js";

/** Returns null for a taxon without pictures. */
export function comparison({ taxon_id: id, scientific_name: name, num_images: number = 0 }) {
  if (number === 0) return null;
  const pictures = element("div", { className: "references" });
  const details = element("details", { className: "folded candidate__references" },
    element("summary", {}, "Compare with pictures"), pictures);
  details.addEventListener("toggle", async () => {
    if (!details.open || pictures.childElementCount > 0) return;
    try {
      const { images } = await describeTaxon(id);
      pictures.replaceChildren(...images.map((image) => figure(image, name)));
    } catch (problem) {
      pictures.replaceChildren(element("p", {}, problem.title ?? "The pictures could not be loaded."));
    }
  });
  return details;
}

function figure({ url, author, license, source }, name) {
  return element("figure", { className: "reference" },
    element("img", { src: url, alt: name, loading: "lazy" }),
    element("figcaption", {}, [author || source, license].join(", ")));
}
