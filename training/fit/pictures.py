"""Runs a network on pictures, preprocessed as in the service and one at a time on each core, as a busy service does.

A batch would give other last bits. The figures of a bundle are those of pictures that run alone, so every picture here
is a run of its own, on one thread. The outputs are stored on disk (`models/outputs.py`).
"""

import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from msgspec.structs import replace
from rich.console import Console
from rich.progress import track

from models.bundle import Bundle
from models.bundle_record import Precision
from models.cores import cores
from models.errors import DataError, PictureError
from models.metrics import Whole
from models.openvino_session import OpenVinoSession
from models.outputs import Outputs, Plants
from models.preprocess import InputSpec, normalized, picture_to_input
from models.ranking import Floats
from models.session import NetworkOutput, NetworkSession, OnnxSession
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.fit.provenance import OTHER_DATA
from training.loading.data import still_loader

Pixels = npt.NDArray[np.float32]
"""A network input or several, shape (..., 3, height, width)."""
Network = Callable[[Iterable[Pixels]], Iterator[NetworkOutput]]
"""Gives the outputs of each batch of network inputs."""
_LEAST_FOLDERS: Final = 5  # as many as folds
_FEW_PICTURES: Final = 200  # which are soon done
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
    def sources(self) -> list[str]:
        """Name of each picture's source."""
        found: list[str] = self.manifest.table["source"].take(self.rows).to_pylist()
        return found

    @property
    def taxa(self) -> Whole:
        """Position of each picture's taxon, shape (num_pictures,)."""
        return self.manifest.taxonomy.taxon_of_output[self.labels]

    def pixels(self, read: list[int]) -> Iterator[Pixels]:
        """Yields the network input of some pictures at a time, shape (batch, 3, height, width).

        The positions of the pictures are appended to a list.
        """
        read += range(len(self))
        loader = still_loader(self.manifest, self.rows, self.spec, self.workers, batch_size=BATCH_SIZE)
        for pixels, _ in _shown(loader, self.name, len(self.rows), BATCH_SIZE):
            yield np.stack([normalized(each, self.spec) for each in pixels.permute(0, 2, 3, 1).numpy()])

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

    @property
    def labels(self) -> Whole:
        """Any output."""
        return np.zeros(len(self.paths), np.int64)

    @property
    def rows(self) -> Whole:
        """Positions among the files."""
        return np.arange(len(self.paths))

    plants = rows

    def groups(self, positions: Whole) -> Whole:
        """Returns the group of some of the pictures: the folder if there are five or more, else the picture itself."""
        folders, group_of_picture = np.unique([str(self.paths[each].parent) for each in positions], return_inverse=True)
        return group_of_picture if len(folders) >= _LEAST_FOLDERS else np.arange(len(positions))

    def pixels(self, read: list[int]) -> Iterator[Pixels]:
        """Yields the network input of some pictures at a time, of those that can be read; see `Pictures.pixels`."""
        batch: list[Pixels] = []
        for position, path in enumerate(_shown(self.paths, self.name, len(self.paths))):
            with suppress(OSError, PictureError):
                batch.append(picture_to_input(path.read_bytes(), self.spec)[0])
                read.append(position)
            if len(batch) == BATCH_SIZE:
                yield np.stack(batch)
                batch.clear()
        if batch:
            yield np.stack(batch)
        if len(read) < self.least:
            raise DataError(
                "too few pictures can be read",
                value=f"{len(read)} of {len(self.paths)}, the first {self.paths[0]}",
                limit=f"at least {self.least}",
                remedy="add pictures to the folder, or correct its name",
            )


class StoredRows:
    """Rows in a file without a name, which the system removes as soon as this process ends, however it ends.

    By default it lies in the system's folder for temporary files, which may be in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  closed with this object
        weakref.finalize(self, self._file.close)
        self.shape: tuple[int, ...] = (0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def append(self, rows: Floats) -> None:
        """Adds rows at the end, all of one width.

        Raises:
            OSError: They could not be written, for example as the disk is full.
        """
        try:
            left = memoryview(rows.astype(np.float32, copy=False).tobytes())
            while left:  # a full disk takes a part first
                left = left[self._file.write(left) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder or tempfile.gettempdir())) from error
        self.shape = (len(self) + len(rows), rows.shape[1])

    def __getitem__(self, chosen: slice | Whole, /) -> Floats:
        """Copies rows into memory. The file is mapped for this moment only, so that pages read earlier do not stay."""
        return np.array(np.memmap(self._file, np.float32, mode="r", shape=self.shape)[chosen])


def run(
    network: Network, pictures: Pictures | PictureFiles, folder: Path | None = None, *, with_logits: bool = True
) -> Outputs:
    """Runs a network on pictures, and stores its outputs in a folder, which is made, see `StoredRows`.

    Pictures that cannot be read are left out. Without logits, which do not fit on a disk for a million pictures, theirs
    are empty.

    Raises:
        OSError: The outputs could not be written.
    """
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    stored = StoredRows(folder)
    features = StoredRows(folder)
    read: list[int] = []
    for batch in network(pictures.pixels(read)):
        features.append(batch.features)
        if with_logits:
            stored.append(batch.logits)
    logits = stored if with_logits else np.empty((len(features), 0), np.float32)
    return Outputs(logits, features, pictures.labels[read], pictures.rows[read], pictures.plants[read])


def run_side_by_side(session: NetworkSession, batches: Iterable[Pixels]) -> Iterator[NetworkOutput]:
    """Yields the outputs of each batch of network inputs; the session has `num_threads=1`."""
    with ThreadPoolExecutor(cores()) as pool:
        for pixels in batches:
            found = pool.map(session.run, pixels[:, None])
            yield NetworkOutput(*(np.concatenate(each) for each in zip(*found, strict=True)))


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


def run_once(path: Path, folder: Path, *, bf16: bool = False) -> Callable[..., Outputs]:
    """Returns what runs a network file as `run` does, once on each set of pictures; its outputs lie in the folder."""
    return cache(partial(run, network_file(path, bf16=bf16), folder=folder))


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


def plants_of(manifest: Manifest, rows: Whole) -> Plants:
    """Returns the plant of each of these rows."""
    codes = pc.dictionary_encode(manifest.table["group"].take(rows).combine_chunks())
    return np.asarray(codes.indices.to_numpy(), dtype=np.int64)


def one_picture_each(plants_N: Plants, seed: int = 0) -> Whole:
    """Returns the positions of one picture of each plant, drawn with a fixed seed, in ascending order."""
    order = np.random.default_rng(seed).permutation(len(plants_N))
    _, first = np.unique(plants_N[order], return_index=True)
    return np.sort(order[first])
