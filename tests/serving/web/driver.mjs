// Runs the modules of the page in Node.js, one call a line: [file, function, arguments], or ["", the body of an async function].
// Writes one result a line; undefined becomes null. The arguments name the folder of the page and its language.

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [folder, language] = process.argv.slice(2);
const WEB = pathToFileURL(`${folder}/`);
const AsyncFunction = (async () => {}).constructor;

/** As much of an element as the page needs to build its lists, without a layout. */
class FakeElement extends EventTarget {
  children = [];
  attributes = {};
  className = "";
  value = "";
  checked = false;
  onclick = null;
  style = { setProperty() {} };
  classList = { add() {}, remove() {} };

  append(...more) { this.children.push(...more); }
  prepend(...more) { this.children.unshift(...more); }
  replaceChildren(...more) { this.children = more; }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  get all() { return [this, ...this.children.flatMap((child) => child.all ?? [])]; }
  get textContent() { return this.children.map((child) => child.textContent ?? child).join(""); }
  set textContent(text) { this.children = [text]; }
  querySelector(selector) { return this.all.find(({ className }) => `.${className}` === selector); }
}

const named = new Map();
globalThis.document = Object.assign(new EventTarget(), {
  documentElement: { lang: language },
  createElement: () => new FakeElement(),
  getElementById: (id) => named.get(id) ?? named.set(id, new FakeElement()).get(id),
  querySelectorAll: () => [],
});

function storage() {
  const values = new Map();
  return { getItem: (key) => values.get(key) ?? null, setItem: (key, value) => values.set(key, value), removeItem: (key) => values.delete(key) };
}
globalThis.sessionStorage = storage();
globalThis.location = new URL("https://plants.example/?lang=en#key=of-a-class");
globalThis.history = { replaceState(_state, _title, address) { location.href = new URL(address, location.href).href; } };
globalThis.addEventListener = () => {};
globalThis.localStorage = storage();

/** A request with a form, which the function `answerTo` of a test answers. */
globalThis.XMLHttpRequest = class extends EventTarget {
  status = 200;
  upload = new EventTarget();

  open() {}
  setRequestHeader() {}
  getResponseHeader() { return null; }

  async send(form) {
    this.responseText = JSON.stringify(await globalThis.answerTo(form));
    this.dispatchEvent(new Event("load"));
  }
};
globalThis.fetch = async (address) => new Response(readFileSync(address));

const load = (file) => import(new URL(file, WEB));
const fromBase64 = (key, value) => (value?.base64 === undefined ? value : Uint8Array.from(atob(value.base64), (byte) => byte.charCodeAt(0)).buffer);

for await (const line of createInterface({ input: process.stdin })) {
  const [file, name, args] = JSON.parse(line, fromBase64);
  let result;
  try {
    const work = file ? (await load(file))[name] : new AsyncFunction("load", "...args", name).bind(null, load);
    result = { value: (await work(...args)) ?? null };
  } catch (error) {
    result = { error: String(error.stack) };
  }
  console.log(JSON.stringify(result));
}
