"""Manifest rows -> batches of network input, through PyTorch's DataLoader."""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from models.cores import cores
from models.errors import DataError, PictureError
from models.preprocess import InputSpec, cropped_and_resized, needed_side_px, read_picture
from training.dataset.manifest import Ints, Manifest
from training.loading.augment import random_input, seeded
from training.loading.negatives import Negatives, RunInput
from training.loading.sampler import EpochBatches, SampleIndex, labels_for_sampling
from training.loading.storage import PictureStore, unreadable
from training.processes import clean_context, init_loader_worker
from training.recipe import NEGATIVES_SHARE, AugmentRecipe

EVALUATION_BATCH: Final = 32
_EVALUATED_FEATURES: Final = 1024  # in a batch
_PREFETCHED_BATCHES: Final = 4  # of each loader process
Halves = npt.NDArray[np.float16]
_SHARED_MEMORY: Final = "/dev/shm"


class PictureDataset(Dataset[tuple[Tensor, int]]):
    """Pictures indexed by `SampleIndex`, augmented for training.

    Augmentation follows from the seed, the epoch, the row and the repeat; without it pictures are as in the service.
    Rows below 0 are pictures of no class: -1 is the first of all lists in `added`.
    """

    def __init__(
        self,
        store: PictureStore,
        augment: AugmentRecipe | None,
        spec: InputSpec,
        seed: int,
        added: Sequence[Negatives] = (),
    ) -> None:
        self._store = store
        self._augment = augment
        self._spec = spec
        self._seed = seed
        self._added = added

    def __getitems__(self, indexes: Sequence[SampleIndex]) -> list[tuple[Tensor, int]]:
        """Returns a batch, whose plants are read in one round: pixels of shape (3, side, side), uint8, and labels."""
        plants = [index for index in indexes if index.row >= 0]
        files = self._store.read_many([index.row for index in plants])
        manifest = self._store.manifest
        batch = []
        for index, data in zip(plants, files, strict=True):
            with seeded(self._seed, index.epoch, index.row, index.repeat), _naming_picture(manifest, index.row):
                pixels = self._pixels(data, index)
            batch.append((pixels, manifest.label(index.row)))
        return batch + [self._of_no_class(index) for index in indexes if index.row < 0]

    def _pixels(self, data: bytes, index: SampleIndex) -> Tensor:
        if self._augment is not None:
            return random_input(data, self._augment, self._spec, index.side_px)
        image = read_picture(data, min_side_px=needed_side_px(self._spec)).image
        return torch.from_numpy(np.array(cropped_and_resized(image, self._spec))).permute(2, 0, 1)

    def _of_no_class(self, index: SampleIndex) -> tuple[Tensor, int]:
        """A picture of no class, augmented as plants are; the next one takes the place of one that is damaged."""
        place = -1 - index.row
        lists = iter(self._added)
        while place >= len((of := next(lists)).paths):
            place -= len(of.paths)
        for path in of.paths[place:] + of.paths[:place]:
            with suppress(OSError, PictureError), seeded(self._seed, index.epoch, index.row, index.repeat):
                return self._pixels(path.read_bytes(), index), of.label
        raise DataError(
            f"none of the {of.description} can be read",
            value=f"first {of.paths[0]}",
            remedy="restore them, or correct --negatives and --unknown",
        )


class Features(msgspec.Struct, frozen=True, eq=False):
    """The features of a frozen network for all pictures of a run (`training/engine/features.py`)."""

    values: Halves
    """Shape (num_pictures, num_features), float16."""
    labels: Ints
    """Label of each picture: its output, or that of pictures of no class."""
    position: Ints
    """Where each row stands; rows below 0, of pictures of no class, count from its end."""

    def of(self, rows: Ints) -> tuple[Tensor, Tensor]:
        """Returns features, float32, and labels of some rows."""
        at = self.position[rows]
        return torch.from_numpy(self.values[at]).float(), torch.from_numpy(self.labels[at])

    def in_order(self, rows: Ints) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the features and labels of rows in their order, many at a time."""
        for first in range(0, len(rows), _EVALUATED_FEATURES):
            yield self.of(rows[first : first + _EVALUATED_FEATURES])


class FeatureLoader:
    """Yields the batches of an epoch as the loader of pictures does, with features in place of pixels."""

    def __init__(self, features: Features, batches: EpochBatches) -> None:
        self._features = features
        self._batches = batches

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self._batches:
            yield self._features.of(np.array([index.row for index in batch]))


class PictureLoader(DataLoader[Any]):
    """PyTorch's DataLoader; errors read the same whether they come from a loader process or from this one."""

    def check_worker_number_rationality(self) -> None:
        """Says nothing, where PyTorch warns of more processes than cores: the run's lines say which number helps."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yields the batches.

        Raises:
            DataError: A picture cannot be read, or a loader process died. PyTorch puts the traceback of the loader
                process into the message; only its last line is kept.
        """
        try:
            yield from super().__iter__()
        except DataError as error:
            error.__traceback__ = None  # PyTorch leaves a reference cycle in it, which keeps the loader processes alive
            message = [line for line in str(error).splitlines() if line.strip(" .")][-1]
            raise DataError(message.removeprefix("models.errors.DataError: ").rstrip(".")) from None
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker") and "shared memory" not in str(error):
                raise
            raise DataError(
                "a loader process was killed",
                value=str(error).splitlines()[-1],
                remedy="if memory or shared memory ran out, use fewer --workers",
            ) from None


@contextmanager
def _naming_picture(manifest: Manifest, row: int) -> Iterator[None]:
    """Turns the error of a picture that does not decode into one that names the picture."""
    try:
        yield
    except PictureError as error:
        raise unreadable(manifest.name(row), error) from error


def collate_channels_last(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Collates pictures of shape (3, side, side) in channels-last memory format.

    `default_collate` alone would make the batch contiguous. It is still used, as it collates into shared memory in
    loader processes.
    """
    pixels_BHW3, labels = default_collate([(pixels.permute(1, 2, 0), label) for pixels, label in items])
    return pixels_BHW3.permute(0, 3, 1, 2), labels


def training_loader(
    manifest: Manifest,
    inputs: RunInput,
    pin: bool,
    rank: int = 0,
    num_ranks: int = 1,
    *,
    persistent: bool = True,
) -> tuple[Iterable[tuple[Tensor, Tensor]], EpochBatches]:
    """The loader of one rank's training batches, and its batch sampler, which sets the epoch and the start in it.

    With stored features it gives these. `persistent` keeps its processes from one epoch to the next.
    """
    rows = manifest.rows_of("train")
    recipe = inputs.recipe
    added = [(len(each.paths), each.of_batch(NEGATIVES_SHARE, recipe.schedule.batch_size)) for each in inputs.others]
    batches = EpochBatches(
        rows,
        recipe.schedule.batch_size,
        recipe.run.seed,
        rank=rank,
        num_ranks=num_ranks,
        order=recipe.data.order,
        sampling=recipe.data.sampling,
        labels=labels_for_sampling(manifest, rows, recipe.loss.target),
        added=added,
    )
    if inputs.features is not None:
        return FeatureLoader(inputs.features, batches), batches
    pictures = PictureDataset(PictureStore(manifest), recipe.augment, inputs.spec, recipe.run.seed, inputs.others)
    options = _worker_options(recipe.data.workers, persistent=persistent)
    largest_px = max(recipe.pictures.picture_px, *(side_px for _, side_px in recipe.pictures.progressive), 0)
    pictures_of_batch = recipe.schedule.batch_size + sum(per_batch for _, per_batch in added)
    _require_shared_memory(
        options["num_workers"],
        3 * max(largest_px**2 * pictures_of_batch, inputs.spec.height * inputs.spec.width * EVALUATION_BATCH),
    )
    loader = PictureLoader(pictures, batch_sampler=batches, collate_fn=collate_channels_last, pin_memory=pin, **options)
    return loader, batches


def still_loader(
    manifest: Manifest,
    rows: Ints,
    spec: InputSpec,
    workers: int,
    *,
    added: Sequence[Negatives] = (),
    batch_size: int = EVALUATION_BATCH,
    pin: bool = False,
) -> PictureLoader:
    """A loader of pictures as in the service, in the order of `rows`; those below 0 are of no class.

    It has `workers` processes, or none for a single batch. Pictures stay uint8, a quarter of the bytes, in
    channels-last memory format, as training batches are.
    """
    indexes = [SampleIndex(0, row, 0) for row in rows.tolist()]
    if len(indexes) <= batch_size:
        workers = 0  # only one of them could make the batch
    options = _worker_options(workers, persistent=False)
    _require_shared_memory(options["num_workers"], 3 * spec.height * spec.width * batch_size)
    return PictureLoader(
        PictureDataset(PictureStore(manifest), None, spec, 0, added),
        batch_sampler=[indexes[first : first + batch_size] for first in range(0, len(indexes), batch_size)],
        collate_fn=collate_channels_last,
        pin_memory=pin,
        **options,
    )


def _worker_options(workers: int, *, persistent: bool) -> dict[str, Any]:
    # Ranks of one machine share its cores; a single rank may have more processes than cores if the recipe says so.
    if "LOCAL_WORLD_SIZE" in os.environ:
        workers = min(workers, cores())
    if workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": workers,
        "prefetch_factor": _PREFETCHED_BATCHES,
        "persistent_workers": persistent,
        "multiprocessing_context": clean_context("training.loading.data"),
        "worker_init_fn": init_loader_worker,
    }


def _require_shared_memory(workers: int, batch_bytes: int) -> None:
    """Checks that the batches that loader processes prepare in advance fit into shared memory.

    Where they do not, a loader process dies of a bus error in the middle of a run. Containers often have 64 MB.

    Raises:
        DataError: They do not fit.
    """
    if workers == 0 or not Path(_SHARED_MEMORY).is_dir():
        return
    needed = workers * _PREFETCHED_BATCHES * batch_bytes
    free = shutil.disk_usage(_SHARED_MEMORY).free
    if needed > free:
        raise DataError(
            "shared memory is too small for the batches of the loader processes",
            value=f"{free / 1e6:.0f} MB are free in {_SHARED_MEMORY}",
            limit=f"{needed / 1e6:.0f} MB for {_PREFETCHED_BATCHES} batches of each of {workers} processes",
            remedy="give the container more, as with docker run --shm-size, or use fewer --workers",
        )
