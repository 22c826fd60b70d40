// Keeps plants in this browser's IndexedDB: answers, small copies of their photographs, and what a person said; and the photographs of a
// question that the service could not answer yet. Nothing leaves the device.
// A plant is { id, date, answer, pictures, earlier, correction, name, note, where }: the id of the answer's request, a time as ISO text, an
// answer of the service, Blobs, those of the plants that were joined to it, the name of a species or null, what the person calls it, a
// text, and { latitude, longitude } or null. Plants of older versions have no `earlier` and no `name`.

const DATABASE = "botanify-plants";
const VERSION = 2;
const PLANTS = "plants";
const ASKED = "asked";
const own = [`${performance.timeOrigin}-${Math.random()}`]; // ids of this page's questions: no tab erases that of another one

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, VERSION);
    request.onupgradeneeded = () => {
      const { objectStoreNames: names } = request.result;
      for (const name of [PLANTS, ASKED]) if (!names.contains(name)) request.result.createObjectStore(name, { keyPath: "id" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Lets `work` use a store in one transaction: either all that it does is kept, or nothing. */
async function within(mode, work, name = PLANTS) {
  const database = await opened();
  try {
    return await new Promise((resolve, reject) => {
      const transaction = database.transaction(name, mode);
      const request = work(transaction.objectStore(name));
      transaction.oncomplete = () => resolve(request?.result);
      transaction.onabort = () => reject(transaction.error);
    });
  } finally {
    database.close();
  }
}

/** Returns all plants, the newest first. */
export async function allPlants() {
  const plants = await within("readonly", (store) => store.getAll());
  return plants.sort((one, other) => (one.date < other.date ? 1 : -1));
}

/** Keeps a plant; if it replaces an earlier answer about the same pictures, it has what a person said of that one. */
export function keepPlant(plant, replacedId = null) {
  return within("readwrite", (store) => {
    if (replacedId === null) {
      store.put(plant);
      return;
    }
    store.get(replacedId).onsuccess = ({ target: { result: earlier } }) => {
      store.delete(replacedId);
      store.put({ ...plant, ...(earlier && said(earlier)) });
    };
  });
}

const said = ({ note, correction, name = "", earlier = [] }) => ({ note, correction, name, earlier });

/** Joins an earlier plant to one that is the same: its photographs, and what a person said of it. */
export function joinPlants(id, earlierId) {
  return within("readwrite", (store) => {
    store.getAll().onsuccess = ({ target: { result: plants } }) => {
      const plant = plants.find((each) => each.id === id);
      const other = plants.find((each) => each.id === earlierId);
      if (!plant || !other) return;
      const notes = [plant.note, other.note].filter(Boolean).join(" · ");
      const earlier = [...said(plant).earlier, ...other.pictures, ...said(other).earlier];
      const { correction = null, where = null, name = "" } = { ...other, ...Object.fromEntries(Object.entries(plant).filter(([, value]) => value)) };
      store.put({ ...plant, name, note: notes, correction, where, earlier });
      store.delete(earlierId);
    };
  });
}

/** Keeps plants from a file, all or none; those that are there already stay as they are. */
export function addPlants(plants) {
  return within("readwrite", (store) => {
    for (const plant of plants) {
      store.count(plant.id).onsuccess = ({ target }) => { if (target.result === 0) store.put(plant); };
    }
  });
}

/** Changes fields of a plant, unless it is gone. */
export function amendPlant(id, changes) {
  return within("readwrite", (store) => {
    store.get(id).onsuccess = ({ target: { result: plant } }) => { if (plant) store.put({ ...plant, ...changes }); };
  });
}

export const countPlants = () => within("readonly", (store) => store.count());

export const forgetPlant = (id) => within("readwrite", (store) => store.delete(id));

export const forgetAllPlants = () => within("readwrite", (store) => store.clear());

/** Keeps the photographs of this page's question until it is answered. */
export const keepAsked = (files) => within("readwrite", (store) => store.put({ id: own[0], files }), ASKED);

/** Returns the photographs of a question that this page or one before it left unanswered, if there is one. */
export async function askedFiles() {
  const [asked] = await within("readonly", (store) => store.getAll(null, 1), ASKED);
  if (asked) own.push(asked.id);
  return asked?.files ?? [];
}

export const forgetAsked = () => within("readwrite", (store) => own.forEach((id) => store.delete(id)), ASKED);
