// The API key, if the service requires one. It is stored for this tab only, until the tab is closed.

import { element } from "./elements.js";
import { say } from "./text.js";

const STORAGE_KEY = "botanify-api-key";
let keyInMemory = ""; // for browsers that refuse session storage

export function readKey() {
  try {
    keyInMemory = sessionStorage.getItem(STORAGE_KEY) ?? keyInMemory;
  } catch {} // in memory it stays until the page is reloaded
  return keyInMemory;
}

export function storeKey(key) {
  keyInMemory = key;
  try {
    sessionStorage.setItem(STORAGE_KEY, key);
  } catch {} // as above
}

// A link `https://host/#key=KEY` brings the key; what stands after # is never sent to a server.
if (location.hash.startsWith("#key=")) {
  storeKey(location.hash.slice(5));
  history.replaceState(null, "", location.pathname + location.search);
}
addEventListener("hashchange", () => location.hash.startsWith("#key=") && location.reload()); // in a tab that has the page

/** A form for the key; calls `onKey` once a key was entered. */
export function keyForm(onKey) {
  // The pattern is visible ASCII, the only characters allowed in the header.
  const input = element("input", {
    type: "password", required: true, autocomplete: "off", spellcheck: false,
    pattern: "[\\x21-\\x7e]+", title: say("key.hint"),
  });
  const enter = (event) => {
    event.preventDefault();
    storeKey(input.value);
    onKey();
  };
  return element("form", { className: "search key", onsubmit: enter },
    element("label", {}, say("key.label"), input),
    element("button", { className: "button", type: "submit" }, say("key.use")),
    element("p", { className: "fineprint" }, say("key.kept")));
}
