// The description of the model, kept for the answers that it gives.

import { describeModel } from "./service.js";

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
