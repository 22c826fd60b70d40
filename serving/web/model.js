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

/** Returns the coverage to ask for, or null if the model has no table for sets of candidates. */
export async function wantedCoverage() {
  const model = known ?? await loadModel().catch(() => null);
  const hasTable = Number.isInteger(model?.calibration?.num_uncalibrated_taxa);
  return hasTable ? COVERAGE : null;
}
