// Tells the other parts of the page what happened. They listen on the document and need nothing from who tells.

/**
 * Dispatches an event on the document.
 *
 * @param name "answered" when an answer is shown: { answer, files, element }, with the files that were sent and the
 *   element that shows it; "corrected" when a correction is kept: { answer, correction, element }.
 */
export function tell(name, detail) {
  document.dispatchEvent(new CustomEvent(name, { detail }));
}
