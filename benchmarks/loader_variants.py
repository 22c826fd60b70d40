"""The loaders that `benchmarks/loader.py` compares: torchvision's, timm's and ours, over the same files.

Each yields an epoch of normalized float32 batches on the CPU, channels last: the input of the first convolution. Crop
area and aspect ratio, flip and RandAugment (2 operations, magnitude 7) have the same parameters in all. timm's
RandAugment has other operations, skips each with probability 0.5, which is in its favor, and interpolates bicubically.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import torch
from timm.data.dataset_factory import create_dataset
from timm.data.loader import create_loader
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from models.errors import DataError
from models.preprocess import InputSpec, upright_size
from models.taxonomy import Output, Taxon, Taxonomy
from training.dataset.manifest import Manifest, SourceNote, write_manifest
from training.loading.augment import CROP_RATIO_MAX, FLIPPED, RANDAUGMENT_OPS, Normalizer
from training.loading.data import training_loader
from training.loading.negatives import RunInput
from training.loading.shards import Pack, pack
from training.recipe import AugmentRecipe, DataRecipe, Recipe, RunRecipe, ScheduleRecipe

Augmentation = Literal["crop and flip", "RandAugment"]
Variant = Literal["torchvision", "timm", "files", "shards"]
Epoch = Callable[[int], Iterator[Tensor]]
"""The batches of an epoch, given its number."""
_CPU: Final = torch.device("cpu")
_CLASSES: Final = ("a", "b")


class LoaderOptions(msgspec.Struct, frozen=True):
    """The options that all loaders of a comparison share."""

    side_px: int
    augmentation: Augmentation
    batch_size: int

    @property
    def augment(self) -> AugmentRecipe:
        """The default augmentation of a recipe, with RandAugment or without."""
        return AugmentRecipe() if self.augmentation == "RandAugment" else AugmentRecipe(randaugment_magnitude=0)

    @property
    def spec(self) -> InputSpec:
        """Size, mean and standard deviation of the input."""
        return InputSpec(self.side_px, self.side_px, self.side_px)


class PictureSet(msgspec.Struct, frozen=True):
    """The same pictures as an image folder, as prepared data and as shards."""

    name: str
    num_pictures: int
    megapixels: tuple[float, float]
    """Size of the smallest and of the largest picture."""
    folder: Path
    plain: Path
    packed: Path


def make_set(name: str, paths: Sequence[Path], num_pictures: int, scratch: Path) -> PictureSet:
    """Makes a picture set from links to pictures; paths are repeated until there are enough.

    Raises:
        DataError: There are no pictures.
    """
    if not paths:
        raise DataError(f"there are no {name} pictures", limit="a folder with .jpg files", remedy="name such a folder")
    folder, root = scratch / name / "folder", scratch / name
    chosen = [paths[number % len(paths)] for number in range(num_pictures)]
    places = [f"{_CLASSES[number % len(_CLASSES)]}/{number}.jpg" for number in range(num_pictures)]
    for path, place in zip(chosen, places, strict=True):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).symlink_to(path.resolve())
    megapixels = _write_plain(root / "plain", folder, places)
    pack(Pack(data=root / "plain", out=root / "packed", workers=1))
    return PictureSet(name, num_pictures, (min(megapixels), max(megapixels)), folder, root / "plain", root / "packed")


def open_loader(variant: Variant, pictures: PictureSet, options: LoaderOptions) -> Epoch:
    """Opens one loader; its processes run until the returned function is dropped."""
    if variant == "torchvision":
        return _torchvision(pictures.folder, options)
    if variant == "files":
        return _ours(pictures.plain, options)
    if variant == "shards":
        return _ours(pictures.packed, options)
    return _timm(pictures.folder, options)


def _torchvision(folder: Path, options: LoaderOptions) -> Epoch:
    """Pillow and torchvision.transforms.v2, as in torchvision's reference training."""
    augment, spec, ratio = options.augment, options.spec, CROP_RATIO_MAX
    steps: list[Any] = [
        v2.RandomResizedCrop(
            options.side_px,
            scale=(augment.crop_scale_min, 1.0),
            ratio=(1 / ratio, ratio),
            interpolation=v2.InterpolationMode.BICUBIC,
        ),
        v2.RandomHorizontalFlip(FLIPPED),
    ]
    if augment.randaugment_magnitude:
        steps.append(v2.RandAugment(RANDAUGMENT_OPS, augment.randaugment_magnitude))
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(spec.mean), list(spec.std))]
    loader = DataLoader(
        ImageFolder(str(folder), v2.Compose(steps)),
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
    )
    return lambda _epoch: (_channels_last(pixels) for pixels, _ in loader)


def _timm(folder: Path, options: LoaderOptions) -> Epoch:
    augment = options.augment
    randaugment = f"rand-m{augment.randaugment_magnitude}-n{RANDAUGMENT_OPS}"
    loader: Any = create_loader(
        create_dataset("", root=str(folder), split="train", is_training=True),
        input_size=(3, options.side_px, options.side_px),
        batch_size=options.batch_size,
        is_training=True,
        scale=(augment.crop_scale_min, 1.0),
        ratio=(1 / CROP_RATIO_MAX, CROP_RATIO_MAX),
        hflip=FLIPPED,
        color_jitter=None,  # type: ignore[arg-type]  # None switches it off; timm's signature lacks it
        auto_augment=randaugment if augment.randaugment_magnitude else None,
        interpolation="bicubic",
        num_workers=0,
        pin_memory=False,
        device=_CPU,
    )
    return lambda _epoch: (_channels_last(pixels) for pixels, _ in loader)


def _ours(data: Path, options: LoaderOptions) -> Epoch:
    recipe = Recipe(
        data=DataRecipe(data=data, workers=0),
        schedule=ScheduleRecipe(batch_size=options.batch_size),
        augment=options.augment,
        run=RunRecipe(seed=1),
    )
    loader, batches = training_loader(Manifest(data), RunInput.of(recipe), pin=False)
    batches.side_px = options.side_px
    normalize = Normalizer(options.spec, _CPU)

    def epoch(number: int) -> Iterator[Tensor]:
        batches.epoch = number
        return (_channels_last(normalize(pixels)) for pixels, _ in loader)

    return epoch


def _channels_last(pixels: Tensor) -> Tensor:
    return pixels.contiguous(memory_format=torch.channels_last)


def _write_plain(data: Path, folder: Path, places: Sequence[str]) -> list[float]:
    """Writes a manifest of the pictures in a folder without decoding them, and returns their megapixels."""
    taxonomy = Taxonomy(
        taxonomy_version="benchmark",
        taxa=tuple(Taxon(name, "species", f"Genus {name}", genus="Genus") for name in _CLASSES),
        outputs=tuple(Output(f"photos:{name}", "photos", name) for name in _CLASSES),
    )
    rows = [_row(folder, place) for place in places]
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    write_manifest(data, columns, taxonomy, {"photos": SourceNote(str(folder.resolve()))})
    return [row["width"] * row["height"] / 1e6 for row in rows]


def _row(folder: Path, place: str) -> dict[str, Any]:
    data = (folder / place).read_bytes()
    width, height = upright_size(data)
    known = {"picture_id": f"photos:{place}", "source": "photos", "path": place, "group": place, "split": "train"}
    known |= {"label": f"photos:{Path(place).parent}", "sha256": hashlib.sha256(data).hexdigest()}
    empty = dict.fromkeys(("shard", "licence", "author"), "") | dict.fromkeys(("taken_on", "latitude", "longitude"))
    return {"offset": 0, "length": len(data), "width": width, "height": height} | known | empty
