"""The pictures with which network files are calibrated and evaluated, preprocessed as in the service."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from models.errors import DataError
from models.preprocess import InputSpec
from models.session import OnnxSession
from training.bundling.precisions.ranges import Pixels
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.plants import Plants, plants_of
from training.evaluation.predict import Logits, predict
from training.evaluation.provenance import OTHER_DATA
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe


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

    def logits(self, network: Path) -> Logits:
        """Runs a network file, one picture at a time as the service does on a CPU."""
        session = OnnxSession(network)
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        return predict(loader, lambda pixels: session.run(pixels.numpy()).logits)[0]

    def pixels(self) -> Iterator[Pixels]:
        """Yields the network input of one picture at a time, shape (1, 3, height, width)."""
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), batch_size=1)
        for pixels, _ in loader:
            yield pixels.numpy()

    def sample(self, most: int, seed: int = 0) -> "Pictures":
        """Returns at most this many of the pictures, chosen at random with a fixed seed."""
        if len(self.rows) <= most:
            return self
        chosen = np.random.default_rng(seed).choice(self.rows, most, replace=False)
        return msgspec.structs.replace(self, rows=np.sort(chosen))


class PictureSets(msgspec.Struct, frozen=True):
    """The pictures for each step of a release."""

    ranges: Pictures
    """Training pictures that set the ranges of int8."""
    validation: Pictures
    """For parity with PyTorch, and for the agreement of fp16 with fp32."""
    temperature: Pictures
    """For the temperature: the calibration split, or validation if the data has none."""
    tests: tuple[Pictures, ...]
    """For the metrics: the test split, then that of further data."""
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with; then each name says so."""


def picture_sets(
    manifests: Sequence[Manifest],
    spec: InputSpec,
    *,
    calibration_pictures: int,
    workers: int,
    other_data: bool = False,
) -> PictureSets:
    """Chooses the pictures from prepared data.

    Args:
        manifests: The data that the network was trained on, then further data whose test split is measured too.
        spec: Input of the networks.
        calibration_pictures: Maximum number of training pictures that set the ranges of int8.
        workers: Loader processes; 0 loads in this process.
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
