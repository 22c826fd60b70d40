"""Which pictures show the same plant, so that a plant with many pictures counts no more than one with a single picture.

Pictures of one observation, and near copies, are one group of the manifest. A group is taken as one plant.
"""

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from training.dataset.manifest import Manifest

Plants = npt.NDArray[np.int64]
"""Number of each picture's plant, 0 or more; shape (num_pictures,)."""


def plants_of(manifest: Manifest, rows: npt.NDArray[np.int64]) -> Plants:
    """Returns the plant of each of these rows."""
    codes = pc.dictionary_encode(manifest.table["group"].take(rows).combine_chunks())
    return np.asarray(codes.indices.to_numpy(), dtype=np.int64)


def picture_weights(plants_N: Plants) -> npt.NDArray[np.float64]:
    """Returns the weight of each picture: the pictures of a plant share a weight of 1."""
    return np.asarray(1.0 / np.bincount(plants_N)[plants_N])


def one_picture_each(plants_N: Plants, seed: int = 0) -> npt.NDArray[np.intp]:
    """Returns the positions of one picture of each plant, drawn with a fixed seed, in ascending order."""
    order = np.random.default_rng(seed).permutation(len(plants_N))
    _, first = np.unique(plants_N[order], return_index=True)
    return np.sort(order[first])
