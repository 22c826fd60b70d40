"""Runs a network on pictures, preprocessed as in the service and one at a time on each core, as a busy service does.

A batch would give other last bits. The figures of a bundle are those of pictures that run alone, so every picture here
is a run of its own, on one thread.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace
from rich.console import Console
from rich.progress import track

from models.bundle import Bundle
from models.bundle_record import Precision
from models.cores import cores
from models.errors import DataError, PictureError
from models.metrics import Whole
from models.openvino_session import OpenVinoSession
from models.preprocess import InputSpec, picture_to_input
from models.scoring import AnswerModel
from models.session import NetworkOutput, NetworkSession, OnnxSession
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.predictions import (
    Outputs,
    Plants,
    Predictions,
    Rows,
    plants_of,
    score_pictures,
    store_outputs,
)
from training.evaluation.provenance import OTHER_DATA
from training.loading.data import evaluation_loader
from training.recipe import DataRecipe

Pixels = npt.NDArray[np.float32]
"""A network input or several, shape (..., 3, height, width)."""
Network = Callable[[Iterable[Pixels]], Iterator[NetworkOutput]]
"""Gives the outputs of each batch of network inputs."""
_LEAST_FOLDERS: Final = 5  # as many as folds
_FEW_PICTURES: Final = 200  # which are soon done


def run_side_by_side(session: NetworkSession, batches: Iterable[Pixels]) -> Iterator[NetworkOutput]:
    """Yields the outputs of each batch of network inputs; the session has `num_threads=1`."""
    with ThreadPoolExecutor(cores()) as pool:
        for pixels in batches:
            found = pool.map(session.run, pixels[:, None])
            yield NetworkOutput(*(np.concatenate(each) for each in zip(*found, strict=True)))


BATCH_SIZE: Final = max(32, cores())
"""Pictures that are loaded at a time: enough for every core."""
_Item = TypeVar("_Item")


class Pictures(msgspec.Struct, frozen=True, eq=False):
    """Some pictures of prepared data."""

    manifest: Manifest
    rows: Whole
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
    def labels(self) -> Whole:
        """Position of each picture's output, shape (num_pictures,)."""
        return self.manifest.labels[self.rows]

    @property
    def plants(self) -> Plants:
        """Plant of each picture, shape (num_pictures,)."""
        return plants_of(self.manifest, self.rows)

    @property
    def taxa(self) -> Whole:
        """Position of each picture's taxon, shape (num_pictures,)."""
        return self.manifest.taxonomy.taxon_of_output[self.labels]

    def outputs(self, network: Network, folder: Path | None = None) -> Outputs:
        """Runs a network, and stores its outputs in the folder, see `StoredRows`."""
        return store_outputs(network(self.pixels()), folder)

    def features(self, network: Network, folder: Path | None = None) -> Rows:
        """Runs a network, and stores the features alone."""
        return store_outputs(network(self.pixels()), folder, with_logits=False).features

    def predictions(self, outputs: Outputs, model: AnswerModel) -> Predictions:
        """Returns what the service would say of each of these pictures, from a network's outputs for them."""
        return score_pictures(outputs.logits, self.labels, model, outputs.features, rows=self.rows, plants=self.plants)

    def pixels(self) -> Iterator[Pixels]:
        """Yields the network input of some pictures at a time, shape (batch, 3, height, width)."""
        loader = evaluation_loader(self.manifest, self.rows, self.spec, DataRecipe(workers=self.workers), BATCH_SIZE)
        for pixels, _ in _shown(loader, self.name, len(self.rows), BATCH_SIZE):
            yield pixels.numpy()

    def sample(self, most: int) -> "Pictures":
        """Returns at most this many of the pictures, each equally likely, and says so in their name."""
        if len(self.rows) <= most:
            return self
        chosen = np.random.default_rng(0).choice(self.rows, most, replace=False)
        name = f"{self.name}, {most} pictures drawn at random (seed 0)"
        return replace(self, rows=np.sort(chosen), name=name)


class PictureFiles(msgspec.Struct, frozen=True):
    """Pictures without a label, such as those that show no plant."""

    paths: tuple[Path, ...]
    spec: InputSpec
    """Input of the network."""
    least: int = 1
    """Number of pictures that must be readable."""
    name: str = "pictures without a plant"
    """What they are, in words."""

    def outputs(self, network: Network, folder: Path | None = None) -> tuple[Outputs, Whole]:
        """Runs a network, and stores its outputs in the folder; pictures that cannot be read are left out.

        Also returns the positions of those that can be read.
        """
        readable: list[int] = []
        pictures = self._pixels(readable)
        batches = iter(lambda: list(islice(pictures, BATCH_SIZE)), [])
        outputs = store_outputs(network(map(np.stack, batches)), folder)
        return outputs, np.array(readable)

    def groups(self, positions: Whole) -> Whole:
        """Returns the group of some of the pictures: the folder if there are five or more, else the picture itself."""
        folders, group_of_picture = np.unique([str(self.paths[each].parent) for each in positions], return_inverse=True)
        return group_of_picture if len(folders) >= _LEAST_FOLDERS else np.arange(len(positions))

    def _pixels(self, readable: list[int]) -> Iterator[Pixels]:
        """Yields the network input of each picture that can be read, and appends its position to a list."""
        for position, path in enumerate(_shown(self.paths, self.name, len(self.paths))):
            try:
                pixels, _ = picture_to_input(path.read_bytes(), self.spec)
            except (OSError, PictureError):
                continue
            readable.append(position)
            yield pixels
        if len(readable) < self.least:
            raise DataError(
                "too few pictures can be read",
                value=f"{len(readable)} of {len(self.paths)}, the first {self.paths[0]}",
                limit=f"at least {self.least}",
                remedy="add pictures to the folder, or correct its name",
            )


def network_file(path: Path, *, bf16: bool = False) -> Network:
    """Returns what runs a network file, opened when it runs: each picture alone, on all cores.

    `bf16` computes in bfloat16 with OpenVINO, rather than with ONNX Runtime.
    """

    def run(batches: Iterable[Pixels]) -> Iterator[NetworkOutput]:
        session: NetworkSession
        if bf16:
            session = OpenVinoSession(path, bf16=True, num_threads=1, num_runs=cores())
        else:
            session = OnnxSession(path, num_threads=1)
        return run_side_by_side(session, batches)

    return run


def bundle_network(bundle: Bundle, precision: Precision) -> Network:
    """Returns what runs a network of a bundle, see `network_file`."""
    return network_file(bundle.network_path(precision), bf16=precision == "bf16")


def _shown(batches: Iterable[_Item], name: str, num_pictures: int, batch_size: int = 1) -> Iterable[_Item]:
    """Shows how many of many pictures are done, and the time left; a network takes hours for 100,000 on a CPU."""
    num_batches = -(-num_pictures // batch_size)
    is_short = num_pictures < _FEW_PICTURES
    return track(batches, name, num_batches, console=Console(stderr=True), disable=is_short)


def pictures_of(
    manifest: Manifest, split: Split, spec: InputSpec, workers: int, *, other_data: bool = False
) -> Pictures:
    """Returns all pictures of a split."""
    note = f" ({OTHER_DATA})" if other_data else ""
    return Pictures(manifest, manifest.rows_of(split), spec, f"{manifest.folder.name}, {split} split{note}", workers)
