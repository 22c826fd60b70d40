"""The pictures with which network files are calibrated and evaluated, preprocessed as in the service."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import track

from models.errors import DataError, PictureError
from models.preprocess import InputSpec, picture_to_input
from models.session import OnnxSession
from training.bundling.precisions.ranges import Pixels
from training.bundling.side_by_side import num_cores, run_side_by_side
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.plants import Plants, plants_of
from training.evaluation.provenance import OTHER_DATA
from training.evaluation.stored_rows import Outputs, store_outputs
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe

LEAST_NEGATIVES: Final = 20
"""Pictures without a plant that a plant head needs; with fewer, cross-validation says nothing."""
BATCH_SIZE: Final = max(32, num_cores())
"""Pictures that are loaded at a time: enough for every core."""
_LEAST_FOLDERS: Final = 5  # as many as folds
_FEW_PICTURES: Final = 200  # which are soon done
_Item = TypeVar("_Item")


class Pictures(msgspec.Struct, frozen=True):
    """Some pictures of prepared data."""

    manifest: Manifest
    rows: npt.NDArray[np.int64]
    """Rows of the manifest."""
    spec: InputSpec
    """Input of the network."""
    name: str
    """Data and split, in words."""
    workers: int = 0
    """Loader processes; 0 loads in this process."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """Position of each picture's output, shape (num_pictures,)."""
        return self.manifest.labels[self.rows]

    @property
    def plants(self) -> Plants:
        """Plant of each picture, shape (num_pictures,)."""
        return plants_of(self.manifest, self.rows)

    @property
    def taxa(self) -> npt.NDArray[np.intp]:
        """Position of each picture's taxon, shape (num_pictures,)."""
        return self.manifest.taxonomy.taxon_of_output[self.labels]

    def outputs(self, network: Path, folder: Path | None = None) -> Outputs:
        """Runs a network file; see `run_network`."""
        return run_network(network, self.pixels(BATCH_SIZE), folder)

    def pixels(self, batch_size: int = 1) -> Iterator[Pixels]:
        """Yields the network input of some pictures at a time, shape (batch_size, 3, height, width)."""
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size)
        for pixels, _ in _shown(loader, self.name, len(self.rows), batch_size):
            yield pixels.numpy()

    def sample(self, most: int, seed: int = 0) -> "Pictures":
        """Returns at most this many of the pictures, each equally likely, and says so in their name."""
        if len(self.rows) <= most:
            return self
        chosen = np.random.default_rng(seed).choice(self.rows, most, replace=False)
        name = f"{self.name}, {most} pictures drawn at random (seed {seed})"
        return msgspec.structs.replace(self, rows=np.sort(chosen), name=name)

    def sample_evenly(self, most: int, seed: int = 0) -> "Pictures":
        """Returns at most this many of the pictures, from every taxon as equally many as it has."""
        if len(self.rows) <= most:
            return self
        order = np.random.default_rng(seed).permutation(len(self.rows))
        by_taxon = order[np.argsort(self.taxa[order], kind="stable")]
        _, start, counts = np.unique(self.taxa[by_taxon], return_index=True, return_counts=True)
        place_in_taxon = np.arange(len(by_taxon)) - np.repeat(start, counts)
        chosen = by_taxon[np.argsort(place_in_taxon, kind="stable")[:most]]
        return msgspec.structs.replace(self, rows=np.sort(self.rows[chosen]))


class PictureFiles(msgspec.Struct, frozen=True):
    """Pictures without a label, such as those that show no plant."""

    paths: tuple[Path, ...]
    spec: InputSpec
    """Input of the network."""
    least: int = 1
    """Number of pictures that must be readable."""
    name: str = "pictures without a plant"
    """What they are, in words."""

    def outputs(self, network: Path, folder: Path | None = None) -> tuple[Outputs, npt.NDArray[np.intp]]:
        """Runs a network file, see `run_network`; pictures that cannot be read are left out.

        Returns:
            The outputs, and the group of each picture: its folder if there are five or more, else the picture itself.
        """
        readable: list[Path] = []
        outputs = run_network(network, in_batches(self._pixels(readable)), folder)
        folders, group_of_picture = np.unique([str(path.parent) for path in readable], return_inverse=True)
        own_groups = np.arange(len(readable))
        return outputs, group_of_picture if len(folders) >= _LEAST_FOLDERS else own_groups

    def _pixels(self, readable: list[Path]) -> Iterator[Pixels]:
        """Yields the network input of each picture that can be read, and appends its path to a list."""
        for path in _shown(self.paths, self.name, len(self.paths)):
            try:
                pixels, _ = picture_to_input(path.read_bytes(), self.spec)
            except (OSError, PictureError):
                continue
            readable.append(path)
            yield pixels
        if len(readable) < self.least:
            raise DataError(
                "too few pictures can be read",
                value=f"{len(readable)} of {len(self.paths)}, the first {self.paths[0]}",
                limit=f"at least {self.least}",
                remedy="add pictures to the folder, or correct its name",
            )


def run_network(network: Path, batches: Iterable[Pixels], folder: Path | None = None) -> Outputs:
    """Runs a network file on every picture alone, on all cores, and stores its outputs on disk.

    Args:
        network: The file.
        batches: Network inputs of at least one picture, each of shape (batch, 3, height, width).
        folder: Where to store, see `StoredRows`.
    """
    return store_outputs(run_side_by_side(OnnxSession(network, num_threads=1), batches), folder)


def _shown(batches: Iterable[_Item], name: str, num_pictures: int, batch_size: int = 1) -> Iterable[_Item]:
    """Shows how many of many pictures are done, and the time left; a network takes hours for 100,000 on a CPU."""
    num_batches, is_short = -(-num_pictures // batch_size), num_pictures < _FEW_PICTURES
    return track(batches, name, num_batches, console=Console(stderr=True), disable=is_short)


def in_batches(pictures: Iterator[Pixels]) -> Iterator[Pixels]:
    """Yields pictures of shape (3, height, width) some at a time, shape (batch, 3, height, width)."""
    while batch := list(islice(pictures, BATCH_SIZE)):
        yield np.stack(batch)


class PictureSets(msgspec.Struct, frozen=True):
    """The pictures for each step of a release."""

    ranges: Pictures
    """Training pictures that set the ranges of int8."""
    validation: Pictures
    """For parity with PyTorch (a sample), and for the agreement of fp16 with fp32."""
    temperature: Pictures
    """For the temperature: the calibration split, or validation if the data has none."""
    features: Pictures
    """Training pictures for the table of distances and for the plant head."""
    tests: tuple[Pictures, ...]
    """For the metrics: the test split, then that of further data."""
    negatives: PictureFiles | None = None
    """Pictures without a plant, for the plant head."""
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with; then each name says so."""


def picture_sets(
    manifests: Sequence[Manifest],
    spec: InputSpec,
    *,
    calibration_pictures: int,
    feature_pictures: int,
    workers: int,
    negatives: PictureFiles | None = None,
    other_data: bool = False,
) -> PictureSets:
    """Chooses the pictures from prepared data.

    Args:
        manifests: The data that the network was trained on, then further data whose test split is measured too.
        spec: Input of the networks.
        calibration_pictures: Maximum number of training pictures that set the ranges of int8.
        feature_pictures: Maximum number of training pictures for the table of distances and the plant head.
        workers: Loader processes; 0 loads in this process.
        negatives: Pictures without a plant; None for no plant head.
        other_data: Whether the network was trained with other data than the first.

    Raises:
        DataError: A test picture of the further data is in the data that the network was trained on.
    """
    trained, *others = manifests
    for further in others:
        _require_unseen(further, trained)

    def split(manifest: Manifest, name: Split) -> Pictures:
        return pictures_of(manifest, name, spec, workers, other_data=other_data)

    return PictureSets(
        ranges=split(trained, "train").sample(calibration_pictures),
        validation=split(trained, "validation"),
        temperature=split(trained, "calibration" if trained.has("calibration") else "validation"),
        features=split(trained, "train").sample_evenly(feature_pictures),
        negatives=negatives,
        tests=tuple(split(each, "test") for each in manifests),
        other_data=other_data,
    )


def pictures_of(
    manifest: Manifest, split: Split, spec: InputSpec, workers: int, *, other_data: bool = False
) -> Pictures:
    """Returns all pictures of a split."""
    note = f" ({OTHER_DATA})" if other_data else ""
    return Pictures(manifest, manifest.rows_of(split), spec, f"{manifest.folder.name}, {split} split{note}", workers)


def _require_unseen(further: Manifest, trained: Manifest) -> None:
    """Refuses test pictures that are also in the training data, in any split, by bytes or by name."""
    shared = 0
    for column in ("sha256", "picture_id"):
        tests = further.table[column].take(further.rows_of("test"))
        shared = max(shared, int(pc.sum(pc.is_in(tests, value_set=trained.table[column])).as_py() or 0))
    if shared:
        raise DataError(
            f"test pictures of {further.folder} are in {trained.folder} too",
            value=f"{shared} of its {len(further.rows_of('test'))} test pictures",
            limit="none, since the network may have been trained on them, and they would count twice",
            remedy="give other data to --judge-on",
        )
