// The description of the model, kept for the answers that it gives.

import { describeModel } from "./service.js";

const COVERAGE = 0.9; // how often a set of candidates shall hold the right plant

let known = null;

/** Loads the description of the model that runs. */
export async function loadModel() {
  known = await describeModel();
  return known;
}

/** Returns the description of the model that gave an answer, or null if the service has another one by now, or none. */
export async function modelOf({ model }) {
  const isSame = () => known?.label_hash === model.label_hash && known.version === model.version;
  if (!isSame()) await loadModel().catch(() => null);
  return isSame() ? known : null;
}

/** Returns the description of the model that runs, as it was when the page last looked, or null if there is none. */
export async function currentModel() {
  return known ?? loadModel().catch(() => null);
}

/** Returns the coverage to ask for, or null if the model has no table for sets of candidates. */
export function wantedCoverage(model) {
  const hasTable = Number.isInteger(model?.calibration?.num_uncalibrated_taxa);
  return hasTable ? COVERAGE : null;
}
