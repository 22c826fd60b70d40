"""Manifest rows -> batches of network input, through PyTorch's DataLoader; a batch as a picture, to check it by eye."""

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import one_hot
from torch.utils.data import DataLoader, Dataset, default_collate

from models.atomic_file import replaced
from models.cores import cores
from models.errors import DataError, PictureError
from models.preprocess import InputSpec, cropped_and_resized, needed_side_px, picture_to_input, read_picture
from training.dataset.manifest import Ints, Manifest
from training.loading.augment import BatchMixer, Normalizer, random_input, seeded
from training.loading.negatives import NOT_A_PLANT, Negatives, RunInput, num_plants, num_unknown
from training.loading.sampler import EpochBatches, SampleIndex, labels_for_sampling
from training.loading.storage import PictureStore, unreadable
from training.processes import clean_context, init_loader_worker
from training.recipe import NEGATIVES_SHARE, AugmentRecipe, DataRecipe, side_at_epoch

EVALUATION_BATCH: Final = 32
_PREFETCHED_BATCHES: Final = 4  # of each loader process
_SHARED_MEMORY: Final = "/dev/shm"


class TrainingPictures(Dataset[tuple[Tensor, int]]):
    """Augmented training pictures, indexed by `SampleIndex`.

    Augmentation follows from the seed, the epoch, the row and the repeat. Rows below 0 are pictures of no class: -1 is
    the first of all lists in `added`.
    """

    def __init__(
        self,
        store: PictureStore,
        augment: AugmentRecipe,
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
                pixels = random_input(data, self._augment, self._spec, index.side_px)
            batch.append((pixels, manifest.label(index.row)))
        return batch + [self._of_no_class(index) for index in indexes if index.row < 0]

    def _of_no_class(self, index: SampleIndex) -> tuple[Tensor, int]:
        """A picture of no class, augmented as plants are; the next one takes the place of one that is damaged."""
        place = -1 - index.row
        lists = iter(self._added)
        while place >= len((of := next(lists)).paths):
            place -= len(of.paths)
        for path in of.paths[place:] + of.paths[:place]:
            with suppress(OSError, PictureError), seeded(self._seed, index.epoch, index.row, index.repeat):
                return random_input(path.read_bytes(), self._augment, self._spec, index.side_px), of.label
        raise DataError(
            f"none of the {of.description} can be read",
            value=f"first {of.paths[0]}",
            remedy="restore them, or correct --negatives and --unknown",
        )


class EvaluationPictures(Dataset[tuple[Tensor, int]]):
    """Pictures preprocessed as in the service, by `models/preprocess.py`, in the order of `rows` of the manifest.

    With `normalized` off they stay uint8, a quarter of the bytes, for a device that normalizes them.
    """

    def __init__(self, store: PictureStore, rows: Ints, spec: InputSpec, *, normalized: bool = True) -> None:
        self._store = store
        self._rows = rows
        self._spec = spec
        self._normalized = normalized

    def __len__(self) -> int:
        return len(self._rows)

    def __getitems__(self, positions: Sequence[int]) -> list[tuple[Tensor, int]]:
        """Returns a batch, whose files are read in one round: pixels of shape (3, height, width), and labels."""
        rows = [int(self._rows[position]) for position in positions]
        manifest = self._store.manifest
        batch = []
        for row, data in zip(rows, self._store.read_many(rows), strict=True):
            with _naming_picture(manifest, row):
                if self._normalized:
                    pixels = torch.from_numpy(picture_to_input(data, self._spec)[0])
                else:
                    image = read_picture(data, min_side_px=needed_side_px(self._spec)).image
                    pixels = torch.from_numpy(np.array(cropped_and_resized(image, self._spec))).permute(2, 0, 1)
            batch.append((pixels, manifest.label(row)))
        return batch


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
            if not str(error).startswith("DataLoader worker"):
                raise
            raise DataError(
                "a loader process was killed",
                value=str(error).splitlines()[0],
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
) -> tuple[PictureLoader, EpochBatches]:
    """The loader of one rank's training batches, and its batch sampler, which sets the epoch and the start in it.

    `persistent` keeps its processes from one epoch to the next.
    """
    rows = manifest.rows_of("train")
    recipe = inputs.recipe
    lists = (inputs.negatives, inputs.unknown)
    added = [(len(each.paths), each.of_batch(NEGATIVES_SHARE, recipe.schedule.batch_size)) for each in lists]
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
    pictures = TrainingPictures(PictureStore(manifest), recipe.augment, inputs.spec, recipe.run.seed, lists)
    options = _worker_options(recipe.data, persistent=persistent)
    largest_px = max(recipe.pictures.picture_px, *(side_px for _, side_px in recipe.pictures.progressive), 0)
    pictures_of_batch = recipe.schedule.batch_size + sum(per_batch for _, per_batch in added)
    _require_shared_memory(options["num_workers"], 3 * largest_px**2 * pictures_of_batch)
    loader = PictureLoader(pictures, batch_sampler=batches, collate_fn=collate_channels_last, pin_memory=pin, **options)
    return loader, batches


def evaluation_loader(
    manifest: Manifest,
    rows: Ints,
    spec: InputSpec,
    data: DataRecipe,
    batch_size: int = EVALUATION_BATCH,
) -> PictureLoader:
    """A loader of pictures preprocessed as in the service, in the order of `rows`."""
    options = _worker_options(data, persistent=False)
    return PictureLoader(EvaluationPictures(PictureStore(manifest), rows, spec), batch_size=batch_size, **options)


def validation_loader(manifest: Manifest, rows: Ints, spec: InputSpec, data: DataRecipe, *, pin: bool) -> PictureLoader:
    """A loader of the same pictures as uint8 in channels-last memory format, as training batches are."""
    return PictureLoader(
        EvaluationPictures(PictureStore(manifest), rows, spec, normalized=False),
        batch_size=EVALUATION_BATCH,
        collate_fn=collate_channels_last,
        pin_memory=pin,
        **_worker_options(data, persistent=False),
    )


def _worker_options(data: DataRecipe, *, persistent: bool) -> dict[str, Any]:
    # Ranks of one machine share its cores; a single rank may have more processes than cores if the recipe says so.
    workers = min(data.workers, cores()) if "LOCAL_WORLD_SIZE" in os.environ else data.workers
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


_CAPTION_PX = 14
_CAPTION_LINES = 2  # a mixed picture has two names
_MIN_WIDTH_PX = 180  # for a long name above a small picture
_MOST_PICTURES = 64
_WHOLE = 0.995  # a share that rounds to 100 %


def show_batch(manifest: Manifest, inputs: RunInput, path: Path) -> None:
    """Writes the first batch of the first epoch, as the network would get it, to a PNG file."""
    loader, batches = training_loader(manifest, inputs, pin=False)
    recipe = inputs.recipe
    batches.side_px = side_at_epoch(recipe.pictures, epoch=0)
    pixels, labels = next(iter(loader))
    num_outputs = len(manifest.taxonomy.outputs)
    mixed, targets = BatchMixer(recipe.augment, num_outputs, recipe.run.seed)(
        Normalizer(inputs.spec, pixels.device)(pixels),
        labels[: num_plants(labels)],
        step=0,
        unknown=num_unknown(labels),
    )
    shares = targets if targets.ndim == 2 else one_hot(targets, num_outputs)
    captions = [caption(manifest, row) for row in shares]
    captions += ["not a plant" if label == NOT_A_PLANT else "unknown plant" for label in labels[len(shares) :].tolist()]
    with replaced(path) as stream:
        _grid(to_pictures(mixed[:_MOST_PICTURES], inputs.spec), captions[:_MOST_PICTURES]).save(stream, "PNG")


def caption(manifest: Manifest, shares: Tensor) -> str:
    """The names of a picture's classes, the larger share first: "60% Iris germanica, 40% Viola tricolor"."""
    taxonomy = manifest.taxonomy
    best = shares.float().topk(min(2, len(shares)))
    names: list[str] = [
        taxonomy.taxa[taxonomy.taxon_of_output[label]].scientific_name for label in best.indices.tolist()
    ]
    if best.values[0] > _WHOLE:
        return names[0]
    found = zip(best.values.tolist(), names, strict=True)
    return ", ".join(f"{value:.0%} {name}" for value, name in found if value > 0)


def to_pictures(pixels: Tensor, spec: InputSpec) -> list[Image.Image]:
    """Converts normalized network input of shape (batch, 3, height, width) back to pictures."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (spec.mean, spec.std))
    hw3 = ((pixels * std + mean).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(np.ascontiguousarray(picture)) for picture in hw3]


def _grid(pictures: list[Image.Image], captions: list[str]) -> Image.Image:
    columns = math.ceil(math.sqrt(len(pictures)))
    width = max(pictures[0].width, _MIN_WIDTH_PX)
    height = pictures[0].height + _CAPTION_PX * _CAPTION_LINES
    sheet = Image.new("RGB", (columns * width, math.ceil(len(pictures) / columns) * height), "white")
    pen = ImageDraw.Draw(sheet)
    for position, (picture, text) in enumerate(zip(pictures, captions, strict=True)):
        left = position % columns * width
        top = position // columns * height
        pen.text((left + 2, top + 1), text.replace(", ", "\n"), fill="black", font_size=_CAPTION_PX - 3)
        sheet.paste(picture, (left, top + _CAPTION_PX * _CAPTION_LINES))
    return sheet
