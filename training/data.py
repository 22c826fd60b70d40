"""From manifest rows to batches of network input, through the stock DataLoader."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from models.errors import DataError, PictureError
from models.preprocess import InputSpec, picture_to_input
from training.augment import random_input, seeded
from training.manifest import Manifest
from training.processes import clean_context, end_with_parent
from training.recipe import AugmentRecipe, DataRecipe, Recipe
from training.sampler import Draw, EpochBatches


class TrainingPictures(Dataset[tuple[Tensor, int]]):
    """Training pictures, changed at random as the draw decides.

    Args:
        manifest: The data.
        augment: How pictures are changed.
        spec: Mean and standard deviation.
        seed: Decides every change, together with epoch and row.
    """

    def __init__(self, manifest: Manifest, augment: AugmentRecipe, spec: InputSpec, seed: int) -> None:
        self._manifest, self._augment, self._spec, self._seed = manifest, augment, spec, seed

    def __getitem__(self, draw: Draw) -> tuple[Tensor, int]:
        """Gives pixels of shape (3, side, side) and the position of the picture's output."""
        path = self._manifest.path(draw.row)
        with seeded(self._seed, draw.epoch, draw.row), _named(path):
            pixels = random_input(path.read_bytes(), self._augment, self._spec, draw.side_px)
        return pixels, int(self._manifest.labels[draw.row])


class JudgedPictures(Dataset[tuple[Tensor, int]]):
    """Pictures as they are served: original bytes through `models/preprocess.py`, in the order given.

    Args:
        manifest: The data.
        rows: Rows of the manifest.
        spec: What the network expects.
    """

    def __init__(self, manifest: Manifest, rows: npt.NDArray[np.int64], spec: InputSpec) -> None:
        self._manifest, self._rows, self._spec = manifest, rows, spec

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        """Gives pixels of shape (3, height, width) and the position of the picture's output."""
        row = int(self._rows[position])
        path = self._manifest.path(row)
        with _named(path):
            pixels, _ = picture_to_input(path.read_bytes(), self._spec)
        return torch.from_numpy(pixels), int(self._manifest.labels[row])


class PictureLoader(DataLoader[Any]):
    """The stock loader, whose errors read the same from its processes as from this one."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Gives the batches.

        Raises:
            DataError: A picture cannot be read. torch would put the other process's traceback into its message.
        """
        try:
            yield from super().__iter__()
        except DataError as error:
            error.__traceback__ = None  # torch leaves a cycle in it, which keeps the processes waiting to be collected
            told = [line for line in str(error).splitlines() if line.strip(" .")][-1]
            raise DataError(told.removeprefix("models.errors.DataError: ").rstrip(".")) from None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Says which file an error came from: a manifest can be older than its pictures."""
    try:
        yield
    except (PictureError, OSError) as error:
        raise DataError(
            f"a picture of the manifest cannot be read: {path}",
            value=error,
            remedy="restore the file or run training/prepare.py again",
        ) from error


def input_spec(recipe: Recipe) -> InputSpec:
    """The evaluation preprocessing that a recipe asks for."""
    pictures = recipe.pictures
    return InputSpec(
        height=pictures.serve_px,
        width=pictures.serve_px,
        train_px=pictures.picture_px,
        crop_fraction=pictures.crop_fraction,
    )


def training_loader(manifest: Manifest, recipe: Recipe, pin: bool) -> tuple[PictureLoader, EpochBatches]:
    """The loader of training batches, and the sampler that decides where in which epoch it starts."""
    batches = EpochBatches(manifest.rows_of("train"), recipe.schedule.batch_size, recipe.run.seed)
    pictures = TrainingPictures(manifest, recipe.augment, input_spec(recipe), recipe.run.seed)
    return PictureLoader(pictures, batch_sampler=batches, pin_memory=pin, **_worker_options(recipe.data)), batches


def judged_loader(
    manifest: Manifest, rows: npt.NDArray[np.int64], spec: InputSpec, data: DataRecipe, batch_size: int = 32
) -> PictureLoader:
    """A loader of pictures as they are served, in the order of `rows`."""
    options = _worker_options(data) | {"persistent_workers": False}
    return PictureLoader(JudgedPictures(manifest, rows, spec), batch_size=batch_size, **options)


def _worker_options(data: DataRecipe) -> dict[str, Any]:
    if data.workers == 0:
        return {"num_workers": 0}
    return {
        "num_workers": data.workers,
        "prefetch_factor": data.prefetch_factor,
        "persistent_workers": data.persistent_workers,
        "multiprocessing_context": clean_context("training.data"),
        "worker_init_fn": end_with_parent,
    }


def label_names(manifest: Manifest, labels: Sequence[int]) -> list[str]:
    """Scientific names of outputs by position."""
    taxonomy = manifest.taxonomy
    return [taxonomy.taxa[taxonomy.taxon_of_output[label]].scientific_name for label in labels]
