// The tray of chosen pictures: adds files that are chosen, dropped or pasted, shows them, and lets the user remove them.

import { element, find } from "./elements.js";
import { joined } from "./formats.js";
import { MAX_PICTURES } from "./service.js";
import { say } from "./text.js";

/**
 * Sets up the tray.
 *
 * @returns add(files) adds pictures; files() gives the files in the order of the request; mark(index) outlines a picture that the service refused;
 *   remove(index) removes it; preview(index, address) shows it where the browser could not; offer(files) asks before it adds
 *   those that came from elsewhere; tellBlurred(areBlurred) advises to replace pictures.
 */
export function setUpTray(onChange) {
  let pictures = []; // { file, tile }, in the order of the request

  function add(files) {
    const isSame = (file, { file: other }) => ["name", "size", "lastModified"].every((key) => file[key] === other[key]);
    const added = files.filter((file) => !pictures.some((picture) => isSame(file, picture)));
    const taken = added.slice(0, MAX_PICTURES - pictures.length);
    const numLeftOut = added.length - taken.length;
    showNotice(numLeftOut ? say("tray.left_out", { n: numLeftOut, most: MAX_PICTURES }) : "");
    if (!taken.length) return;
    for (const file of taken) {
      const picture = { file, tile: null };
      picture.tile = makeTile(file, () => remove(picture));
      pictures.push(picture);
    }
    update();
    find("tiles").scrollIntoView({ block: "nearest" });
  }

  function offer(files) {
    showNotice(say(files.length ? "tray.shared" : "tray.shared_none", { n: files.length }));
    const button = element("button", { className: "button", type: "button", onclick: () => add(files) }, say("tray.add"));
    if (files.length) find("notice").append(" ", button);
  }

  function tellBlurred(areBlurred) {
    const numbers = areBlurred.flatMap((is, index) => (is ? [String(index + 1)] : []));
    if (numbers.length) showNotice(say("tray.blurred", { n: numbers.length, numbers: joined(numbers) }));
  }

  function remove(picture) {
    const position = pictures.indexOf(picture);
    pictures = pictures.filter((other) => other !== picture);
    showNotice("");
    update();
    const neighbor = pictures[Math.min(position, pictures.length - 1)];
    (neighbor ? neighbor.tile.querySelector("button") : find("choose")).focus();
  }

  function clear() {
    pictures = [];
    showNotice("");
    update();
    find("choose").focus();
  }

  function update() {
    const tiles = pictures.map((picture) => picture.tile);
    for (const removed of [...find("tiles").children].filter((tile) => !tiles.includes(tile))) {
      URL.revokeObjectURL(removed.dataset.url);
      removed.remove();
    }
    find("tiles").append(...tiles.filter((tile) => !tile.isConnected));
    tiles.forEach(number);
    showCount(pictures.length);
    onChange();
  }

  addFromInputs(add);
  addFromDrops(add);
  addFromPaste(add);
  find("clear").addEventListener("click", clear);
  return {
    add,
    files: () => pictures.map((picture) => picture.file),
    mark: (index) => pictures[index]?.tile.classList.add("tile--refused"),
    remove: (index) => remove(pictures[index]),
    offer,
    tellBlurred,
    preview: (index, address) => showPreview(pictures[index].tile, address),
  };
}

function makeTile(file, onRemove) {
  const name = file.name || say("tray.unnamed");
  const image = element("img", { className: "tile__image", decoding: "async", src: URL.createObjectURL(file) });
  image.addEventListener("error", () => image.replaceWith(placeholder(name, image.alt)), { once: true });
  const button = element("button", { className: "tile__remove", type: "button", onclick: onRemove });
  return element("li", { className: "tile", "data-name": name, "data-url": image.src, title: name },
    image, element("span", { className: "tile__number", "aria-hidden": "true" }), button);
}

/** Replaces a picture that this browser cannot show; the service may still be able to read it. */
function placeholder(name, label) {
  const extension = name.includes(".") ? name.split(".").pop().slice(0, 5).toUpperCase() : say("tray.file");
  return element("span", { className: "tile__image tile__image--none", role: "img", "aria-label": label },
    element("b", {}, extension), element("span", { className: "tile__name" }, name));
}

function showPreview(tile, address) {
  const none = tile.querySelector(".tile__image--none");
  none?.replaceWith(element("img", { className: "tile__image", src: address, alt: none.getAttribute("aria-label") }));
}

function number(tile, index) {
  const label = say("tray.label", { n: index + 1, file: tile.dataset.name });
  const image = tile.querySelector(".tile__image");
  tile.classList.remove("tile--refused");
  tile.querySelector(".tile__number").textContent = String(index + 1);
  tile.querySelector("button").setAttribute("aria-label", say("tray.remove_file", { n: index + 1, file: tile.dataset.name }));
  if (image instanceof HTMLImageElement) image.alt = label;
  else image.setAttribute("aria-label", label);
}

function showCount(numPictures) {
  const full = numPictures === MAX_PICTURES;
  document.body.classList.toggle("has-pictures", numPictures > 0);
  find("tiles").hidden = find("tray-foot").hidden = numPictures === 0;
  find("dropzone").hidden = full;
  find("choose-label").textContent = say(numPictures ? "tray.add" : "tray.choose");
}

function showNotice(text) {
  find("notice").hidden = !text;
  find("notice").textContent = text;
  if (text) find("status").textContent = text;
}

function addFromInputs(add) {
  for (const input of [find("choose"), find("photograph")]) {
    input.addEventListener("change", () => {
      add([...input.files]);
      input.value = ""; // so that a removed file can be chosen again
    });
  }
}

function addFromDrops(add) {
  const holdsFiles = (event) => event.dataTransfer?.types.includes("Files");
  const highlight = (on) => document.body.classList.toggle("is-dropping", on);
  document.addEventListener("dragover", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    highlight(true);
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) highlight(false); });
  document.addEventListener("drop", (event) => {
    if (!holdsFiles(event)) return;
    event.preventDefault();
    highlight(false);
    add([...event.dataTransfer.files]);
  });
}

function addFromPaste(add) {
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    add(files);
  });
}
