"""From manifest rows to batches of network input, through the stock DataLoader."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from models.errors import DataError, PictureError
from models.preprocess import InputSpec, picture_to_input
from training.dataset.manifest import Manifest
from training.loading.augment import random_input, seeded
from training.loading.sampler import Draw, EpochBatches, labels_for_sampling
from training.loading.storage import PictureStore, unreadable
from training.processes import clean_context, serve_training
from training.recipe import AugmentRecipe, DataRecipe, Recipe


class TrainingPictures(Dataset[tuple[Tensor, int]]):
    """Training pictures, changed at random as the draw decides.

    Args:
        store: Reads the pictures of the data.
        augment: How pictures are changed.
        spec: Mean and standard deviation.
        seed: Decides every change, together with epoch, row and copy.
    """

    def __init__(self, store: PictureStore, augment: AugmentRecipe, spec: InputSpec, seed: int) -> None:
        self._store, self._augment, self._spec, self._seed = store, augment, spec, seed

    def __getitem__(self, draw: Draw) -> tuple[Tensor, int]:
        """Gives pixels of shape (3, side, side), uint8, and the position of the picture's output."""
        return self.__getitems__([draw])[0]

    def __getitems__(self, draws: Sequence[Draw]) -> list[tuple[Tensor, int]]:
        """Gives a batch, whose bytes are asked for all at once."""
        found = self._store.read_many([draw.row for draw in draws])
        return [self._changed(draw, data) for draw, data in zip(draws, found, strict=True)]

    def _changed(self, draw: Draw, data: bytes) -> tuple[Tensor, int]:
        manifest = self._store.manifest
        with seeded(self._seed, draw.epoch, draw.row, draw.copy), _named(manifest, draw.row):
            pixels = random_input(data, self._augment, self._spec, draw.side_px)
        return pixels, manifest.label(draw.row)


class JudgedPictures(Dataset[tuple[Tensor, int]]):
    """Pictures as they are served: original bytes through `models/preprocess.py`, in the order given.

    Args:
        store: Reads the pictures of the data.
        rows: Rows of the manifest.
        spec: What the network expects.
    """

    def __init__(self, store: PictureStore, rows: npt.NDArray[np.int64], spec: InputSpec) -> None:
        self._store, self._rows, self._spec = store, rows, spec

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        """Gives pixels of shape (3, height, width), normalized, and the position of the picture's output."""
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Gives a batch, whose bytes are asked for all at once."""
        rows = [int(self._rows[position]) for position in positions]
        return [self._judged(row, data) for row, data in zip(rows, self._store.read_many(rows), strict=True)]

    def _judged(self, row: int, data: bytes) -> tuple[Tensor, int]:
        with _named(self._store.manifest, row):
            pixels, _ = picture_to_input(data, self._spec)
        return torch.from_numpy(pixels), self._store.manifest.label(row)


class PictureLoader(DataLoader[Any]):
    """The stock loader, whose errors read the same from its processes as from this one."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Gives the batches.

        Raises:
            DataError: A picture cannot be read, or a process of the loader died. torch would put the other process's
                traceback into its message.
        """
        try:
            yield from super().__iter__()
        except DataError as error:
            error.__traceback__ = None  # torch leaves a cycle in it, which keeps the processes waiting to be collected
            told = [line for line in str(error).splitlines() if line.strip(" .")][-1]
            raise DataError(told.removeprefix("models.errors.DataError: ").rstrip(".")) from None
        except RuntimeError as error:
            if not str(error).startswith("DataLoader worker"):
                raise
            raise DataError(
                "a loader process was ended from outside",
                value=str(error).splitlines()[0],
                remedy="if memory or shared memory ran out, use fewer --workers or a smaller --prefetch-factor",
            ) from None


@contextmanager
def _named(manifest: Manifest, row: int) -> Iterator[None]:
    """Says which picture does not decode."""
    try:
        yield
    except PictureError as error:
        raise unreadable(manifest.name(row), error) from error


def collate_channels_last(items: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """Puts pictures of shape (3, side, side) together as they lie in memory: the channels of a pixel side by side.

    torch's own collation, which also knows the memory that processes share, would put the channels apart.
    """
    pixels_BHW3, labels = default_collate([(pixels.permute(1, 2, 0), label) for pixels, label in items])
    return pixels_BHW3.permute(0, 3, 1, 2), labels


def input_spec(recipe: Recipe) -> InputSpec:
    """The evaluation preprocessing that a recipe asks for."""
    pictures = recipe.pictures
    return InputSpec(
        height=pictures.serve_px,
        width=pictures.serve_px,
        train_px=pictures.picture_px,
        crop_fraction=pictures.crop_fraction,
    )


def training_loader(
    manifest: Manifest, recipe: Recipe, pin: bool, rank: int = 0, num_ranks: int = 1
) -> tuple[PictureLoader, EpochBatches]:
    """The loader of one rank's training batches, and the sampler that decides where in which epoch it starts."""
    rows = manifest.rows_of("train")
    batches = EpochBatches(
        rows,
        recipe.schedule.batch_size,
        recipe.run.seed,
        rank=rank,
        num_ranks=num_ranks,
        order=recipe.data.order,
        sampling=recipe.data.sampling,
        labels=labels_for_sampling(manifest, rows, recipe.loss.target),
    )
    pictures = TrainingPictures(PictureStore(manifest), recipe.augment, input_spec(recipe), recipe.run.seed)
    loader = PictureLoader(
        pictures,
        batch_sampler=batches,
        collate_fn=collate_channels_last,
        pin_memory=pin,
        **_worker_options(recipe.data),
    )
    return loader, batches


def judged_loader(
    manifest: Manifest, rows: npt.NDArray[np.int64], spec: InputSpec, data: DataRecipe, batch_size: int = 32
) -> PictureLoader:
    """A loader of pictures as they are served, in the order of `rows`."""
    options = _worker_options(data) | {"persistent_workers": False}
    return PictureLoader(JudgedPictures(PictureStore(manifest), rows, spec), batch_size=batch_size, **options)


def _worker_options(data: DataRecipe) -> dict[str, Any]:
    if data.workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": data.workers,
        "prefetch_factor": data.prefetch_factor,
        "persistent_workers": data.persistent_workers,
        "multiprocessing_context": clean_context("training.loading.data"),
        "worker_init_fn": serve_training,
    }


def label_names(manifest: Manifest, labels: Sequence[int]) -> list[str]:
    """Scientific names of outputs by position."""
    taxonomy = manifest.taxonomy
    return [taxonomy.taxa[taxonomy.taxon_of_output[label]].scientific_name for label in labels]
