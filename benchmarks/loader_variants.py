"""The loaders that `benchmarks/loader.py` compares: torchvision's, timm's and ours, over the very same files.

Each gives an epoch of normalized float32 batches, channels last, on the CPU: what a network's first convolution gets.
Crop (area and proportions), mirror image and RandAugment (2 operations, magnitude 7) have the same parameters
everywhere. timm's RandAugment has operations of its own, leaves each out with a probability of one half unless told
otherwise, and moves pixels with bicubic interpolation instead of the nearest one.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from benchmarks.timm_loader import timm_training_loader
from models.errors import DataError
from models.preprocess import InputSpec, upright_size
from models.taxonomy import Output, Taxon, Taxonomy
from training.dataset.manifest import Manifest, SourceNote, write_manifest
from training.loading.augment import Normalizer
from training.loading.data import training_loader
from training.loading.shards import Pack, pack
from training.recipe import AugmentRecipe, DataRecipe, Recipe, RunRecipe, ScheduleRecipe

Augmentation = Literal["crop and flip", "RandAugment"]
Variant = Literal["torchvision", "timm", "timm, all operations", "files", "shards"]
Epoch = Callable[[int], Iterator[Tensor]]
"""The batches of an epoch, given its number."""
_CPU: Final = torch.device("cpu")


class Setting(msgspec.Struct, frozen=True):
    """What all loaders of a comparison share."""

    side_px: int
    augmentation: Augmentation
    batch_size: int
    workers: int
    """Loader processes; 0 loads in the process that measures."""

    @property
    def augment(self) -> AugmentRecipe:
        """The recipe's default augmentation, or as much of it as is wanted."""
        return AugmentRecipe() if self.augmentation == "RandAugment" else AugmentRecipe(randaugment_ops=0)

    @property
    def spec(self) -> InputSpec:
        """Mean and standard deviation."""
        return InputSpec(self.side_px, self.side_px, self.side_px)


class PictureSet(msgspec.Struct, frozen=True):
    """The same pictures as an image folder, as prepared data and as shards."""

    name: str
    num_pictures: int
    megapixels: tuple[float, float]
    """Of the smallest and of the largest picture."""
    folder: Path
    plain: Path
    packed: Path


def make_set(name: str, paths: Sequence[Path], num_pictures: int, scratch: Path) -> PictureSet:
    """Lays links to pictures out for every loader; the paths are repeated until there are enough.

    Raises:
        DataError: There are no pictures.
    """
    if not paths:
        raise DataError(f"there are no {name} pictures", limit="a folder with .jpg files", remedy="name one")
    folder, root = scratch / name / "folder", scratch / name
    chosen = [paths[number % len(paths)] for number in range(num_pictures)]
    places = [f"genus species{number % 2}/{number}.jpg" for number in range(num_pictures)]
    for path, place in zip(chosen, places, strict=True):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).symlink_to(path.resolve())
    megapixels = _write_plain(root / "plain", folder, places)
    pack(Pack(data=root / "plain", out=root / "packed", workers=1))
    return PictureSet(name, num_pictures, (min(megapixels), max(megapixels)), folder, root / "plain", root / "packed")


def open_loader(variant: Variant, pictures: PictureSet, setting: Setting) -> Epoch:
    """The epochs of one loader; its processes live as long as what is returned."""
    if variant == "torchvision":
        return _torchvision(pictures.folder, setting)
    if variant == "files":
        return _ours(pictures.plain, setting)
    if variant == "shards":
        return _ours(pictures.packed, setting)
    return _timm(pictures.folder, setting, always=variant != "timm")


def _torchvision(folder: Path, setting: Setting) -> Epoch:
    """Pillow and torchvision.transforms.v2, as in its own training reference."""
    augment, spec, ratio = setting.augment, setting.spec, setting.augment.crop_ratio_max
    steps: list[Any] = [
        v2.RandomResizedCrop(
            setting.side_px,
            scale=(augment.crop_scale_min, 1.0),
            ratio=(1 / ratio, ratio),
            interpolation=v2.InterpolationMode.BICUBIC,
        ),
        v2.RandomHorizontalFlip(augment.flip),
    ]
    if augment.randaugment_ops:
        steps.append(v2.RandAugment(augment.randaugment_ops, augment.randaugment_magnitude))
    steps += [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(list(spec.mean), list(spec.std))]
    loader = DataLoader(
        ImageFolder(str(folder), v2.Compose(steps)),
        batch_size=setting.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=setting.workers,
        persistent_workers=setting.workers > 0,
    )
    return lambda _epoch: (_channels_last(pixels) for pixels, _ in loader)


def _timm(folder: Path, setting: Setting, *, always: bool) -> Epoch:
    loader = timm_training_loader(
        folder,
        setting.augment,
        side_px=setting.side_px,
        batch_size=setting.batch_size,
        workers=setting.workers,
        device=_CPU,
        always=always,
    )
    return lambda _epoch: (_channels_last(pixels) for pixels, _ in loader)


def _ours(data: Path, setting: Setting) -> Epoch:
    recipe = Recipe(
        name="benchmark",
        data=DataRecipe(data=data, workers=setting.workers),
        schedule=ScheduleRecipe(batch_size=setting.batch_size),
        augment=setting.augment,
        run=RunRecipe(seed=1),
    )
    loader, batches = training_loader(Manifest(data), recipe, pin=False)
    batches.side_px = setting.side_px
    normalize = Normalizer(setting.spec, _CPU)

    def epoch(number: int) -> Iterator[Tensor]:
        batches.epoch = number
        return (_channels_last(normalize(pixels)) for pixels, _ in loader)

    return epoch


def _channels_last(pixels: Tensor) -> Tensor:
    return pixels.contiguous(memory_format=torch.channels_last)


def _write_plain(data: Path, folder: Path, places: Sequence[str]) -> list[float]:
    """Writes a manifest of the pictures in a folder, without decoding them; returns their megapixels."""
    names = sorted({Path(place).parent.name for place in places})
    ids = {name: name.replace(" ", "-") for name in names}
    taxonomy = Taxonomy(
        taxonomy_version="benchmark",
        taxa=tuple(
            Taxon(taxon_id=ids[name], rank="species", scientific_name=name, genus=name.split()[0]) for name in names
        ),
        outputs=tuple(Output(key=f"photos:{ids[name]}", source="photos", taxon_id=ids[name]) for name in names),
    )
    rows = [_row(folder, place, f"photos:{ids[Path(place).parent.name]}") for place in places]
    columns = {column: [row[column] for row in rows] for column in rows[0]}
    write_manifest(data, columns, taxonomy, {"photos": SourceNote(str(folder.resolve()))})
    return [row["width"] * row["height"] / 1e6 for row in rows]


def _row(folder: Path, place: str, label: str) -> dict[str, Any]:
    data = (folder / place).read_bytes()
    width, height = upright_size(data)
    known = {"source": "photos", "path": place, "label": label, "split": "train", "width": width, "height": height}
    known |= {"picture_id": f"photos:{place}", "group": place, "sha256": hashlib.sha256(data).hexdigest()}
    empty = dict.fromkeys(("shard", "licence", "author"), "") | dict.fromkeys(("taken_on", "latitude", "longitude"))
    return {"offset": 0, "length": len(data)} | known | empty
