"""The frozen set: the pictures of prepared data that two bundles are compared on."""

from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from models.errors import DataError
from models.preprocess import InputSpec
from models.taxonomy import Taxonomy
from training.bundling.precisions.pictures import BATCH_SIZE, Pictures
from training.bundling.precisions.ranges import Pixels
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.plants import Plants, plants_of


class FrozenSet(msgspec.Struct, frozen=True):
    """The pictures of a split whose taxa both bundles know. N is the number of pictures."""

    manifest: Manifest
    split: Split
    rows_N: npt.NDArray[np.int64]
    """Rows of the manifest."""
    taxon_ids: tuple[str, ...]
    """Taxon of each picture."""
    plants_N: Plants
    """Number of the plant that each picture shows."""
    num_left_out: int
    """Pictures of the split whose taxon at least one bundle does not know."""
    workers: int = 0
    """Loader processes; 0 loads in this process."""

    @property
    def name(self) -> str:
        """Data and split, in words."""
        return f"{self.manifest.folder.name}, {self.split} split"

    @property
    def taxon_numbers(self) -> npt.NDArray[np.int64]:
        """Number of each picture's taxon."""
        return np.unique(np.array(self.taxon_ids), return_inverse=True)[1].astype(np.int64)

    def pixels(self, spec: InputSpec) -> Iterator[Pixels]:
        """Yields the input of a network for some pictures at a time, shape (batch, 3, height, width)."""
        yield from Pictures(self.manifest, self.rows_N, spec, self.name, self.workers).pixels(BATCH_SIZE)


def frozen_set(manifest: Manifest, split: Split, old: Taxonomy, new: Taxonomy, *, workers: int = 0) -> FrozenSet:
    """Chooses the pictures of the taxa that both bundles know.

    Raises:
        DataError: The split is empty, or the bundles and the data share no taxon.
    """
    rows = manifest.rows_of(split)
    ids = taxon_ids(manifest, rows)
    shared = {taxon.taxon_id for taxon in old.taxa} & {taxon.taxon_id for taxon in new.taxa}
    known = np.array([taxon_id in shared for taxon_id in ids], dtype=np.bool_)
    if not known.any():
        raise DataError(
            "no picture shows a taxon that both bundles know",
            value=f"{len(rows)} {split} pictures of {manifest.folder}",
            limit=f"pictures of the {len(shared)} taxa that both know",
            remedy="give other data",
        )
    return FrozenSet(
        manifest=manifest,
        split=split,
        rows_N=rows[known],
        taxon_ids=tuple(taxon_id for taxon_id, kept in zip(ids, known, strict=True) if kept),
        plants_N=plants_of(manifest, rows[known]),
        num_left_out=int((~known).sum()),
        workers=workers,
    )


def taxon_ids(manifest: Manifest, rows: npt.NDArray[np.int64]) -> list[str]:
    """Returns the taxon of each of these pictures."""
    taxonomy = manifest.taxonomy
    of_output = [taxonomy.taxa[position].taxon_id for position in taxonomy.taxon_of_output]
    return [of_output[label] for label in manifest.labels[rows]]
