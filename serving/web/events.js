// Tells the other parts of the page what happened. They listen on the document and need nothing from who tells.

/**
 * Dispatches an event on the document.
 *
 * @param name "answered" when an answer is shown: { answer, files, originals, where, element }, with the files that were sent, the
 *   same as they were chosen, the place that was sent or null, and the element that shows the answer; "corrected" when a correction
 *   is kept or, with null, taken back: { answer, correction, element }.
 */
export function tell(name, detail) {
  document.dispatchEvent(new CustomEvent(name, { detail }));
}
