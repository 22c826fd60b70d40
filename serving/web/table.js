// The answers of the page for many photographs, as rows of a table. No function needs a document.

import { commonNames, probablePlant } from "./sentences.js";
import { say } from "./text.js";

const FIRST = -1;
const LAST = 2; // scores are in [0, 1]

/** Returns the columns of a row: { photograph, answer, error, corrected }. A photograph without a plant has no name and no score. */
export function columnsOf({ photograph, answer, error = "", corrected = "" }) {
  const [best] = answer && answer.verdict.rank !== "not_a_plant" ? answer.predictions : [];
  const probable = answer && probablePlant(answer);
  return {
    photograph,
    verdict_rank: answer?.verdict.rank ?? "",
    verdict_name: answer?.verdict.name ?? (probable ? say("many.probably", { name: probable.scientific_name }) : ""),
    verdict_score: best ? answer.verdict.score : null,
    best_name: best?.scientific_name ?? "",
    best_score: best?.score ?? null,
    error,
    common_name: best ? commonNames(best)[0] ?? "" : "",
    corrected_name: corrected,
  };
}

/** Returns the rows with the least certain first: those without an answer before all others, those without a plant last. */
export function byUncertainty(rows) {
  const place = ({ answer }) => {
    if (!answer) return FIRST;
    return answer.verdict.rank === "not_a_plant" ? LAST : answer.predictions[0]?.score ?? FIRST;
  };
  return [...rows].sort((one, other) => place(one) - place(other));
}

/** Writes the rows as CSV (RFC 4180), with a byte order mark for spreadsheets; no cell can become a formula there. */
export function csvOf(rows) {
  const lines = [Object.keys(columnsOf({})), ...rows.map((row) => Object.values(columnsOf(row)).map((value) => value ?? ""))];
  return `\ufeff${lines.map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`;
}

function cell(value) {
  const text = /^[=+\-@\t\r]/.test(String(value)) && typeof value !== "number" ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
