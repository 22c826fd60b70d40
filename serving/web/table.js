// The rows of the page for many photographs, as data. No function needs a document.

const COLUMNS = ["photograph", "verdict_rank", "verdict_name", "verdict_score", "best_name", "best_score", "error"];

/** Returns the row of an answer. */
export function rowOf(name, { verdict, predictions }) {
  const [best = { scientific_name: "", score: 0 }] = predictions;
  return {
    photograph: name,
    verdict_rank: verdict.rank,
    verdict_name: verdict.name ?? "",
    verdict_score: verdict.score,
    best_name: best.scientific_name,
    best_score: best.score,
    error: "",
  };
}

/** Returns the row of a photograph without an answer. */
export function failedRow(name, reason) {
  return { photograph: name, verdict_rank: "", verdict_name: "", verdict_score: null, best_name: "", best_score: null, error: reason };
}

/** Returns the rows with the least certain answers first; those without an answer come before all others. */
export function byUncertainty(rows) {
  return [...rows].sort((one, other) => (one.best_score ?? -1) - (other.best_score ?? -1));
}

/** Writes the rows as CSV (RFC 4180), with a byte order mark for spreadsheets; no cell can become a formula there. */
export function csvOf(rows) {
  const lines = [COLUMNS, ...rows.map((row) => COLUMNS.map((column) => row[column] ?? ""))];
  return `\ufeff${lines.map((line) => line.map(cell).join(",")).join("\r\n")}\r\n`;
}

function cell(value) {
  const text = /^[=+\-@\t\r]/.test(String(value)) && typeof value !== "number" ? `'${value}` : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
