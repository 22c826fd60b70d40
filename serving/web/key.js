// The API key, where the service asks for one: it stays in this tab, survives a reload and is gone when the tab closes.

import { element } from "./elements.js";

const PLACE = "botanify-api-key";
let remembered = ""; // for browsers that refuse to store anything

export function readKey() {
  try {
    return sessionStorage.getItem(PLACE) ?? remembered;
  } catch {
    return remembered;
  }
}

export function keepKey(key) {
  remembered = key;
  try {
    if (key) sessionStorage.setItem(PLACE, key);
    else sessionStorage.removeItem(PLACE);
  } catch {
    // kept in memory only, until a reload
  }
}

/** A field that asks for a key; `onKey` is called once one was entered. */
export function keyForm(onKey) {
  // Of visible ASCII only: anything else cannot stand in a header.
  const input = element("input", {
    type: "password", required: true, autocomplete: "off", spellcheck: false,
    pattern: "[\\x21-\\x7e]+", title: "The key as it was given to you, without spaces",
  });
  const enter = (event) => {
    event.preventDefault();
    keepKey(input.value);
    onKey();
  };
  return element("form", { className: "search key", onsubmit: enter },
    element("label", {}, "API key", input),
    element("button", { className: "button", type: "submit" }, "Use this key"),
    element("p", { className: "fineprint" }, "It is kept in this tab only, until the tab is closed."));
}
