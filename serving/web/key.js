// The API key, if the service requires one. It is kept for this tab only: it survives a reload, but not closing the tab.

import { element } from "./elements.js";

const STORAGE_KEY = "botanify-api-key";
let keyInMemory = ""; // for browsers that refuse session storage

export function readKey() {
  try {
    return sessionStorage.getItem(STORAGE_KEY) ?? keyInMemory;
  } catch {
    return keyInMemory;
  }
}

export function storeKey(key) {
  keyInMemory = key;
  try {
    if (key) sessionStorage.setItem(STORAGE_KEY, key);
    else sessionStorage.removeItem(STORAGE_KEY);
  } catch {
    // kept in memory until a reload
  }
}

/** A form for the key; calls `onKey` once a key was entered. */
export function keyForm(onKey) {
  // The pattern is visible ASCII, the only characters allowed in the header.
  const input = element("input", {
    type: "password", required: true, autocomplete: "off", spellcheck: false,
    pattern: "[\\x21-\\x7e]+", title: "The key that you were given, without spaces",
  });
  const enter = (event) => {
    event.preventDefault();
    storeKey(input.value);
    onKey();
  };
  return element("form", { className: "search key", onsubmit: enter },
    element("label", {}, "API key", input),
    element("button", { className: "button", type: "submit" }, "Use this key"),
    element("p", { className: "fineprint" }, "It is kept in this tab only, until you close the tab."));
}
