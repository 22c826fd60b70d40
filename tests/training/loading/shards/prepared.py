"""Prepared data of a few drawn pictures, written without going through prepare."""

import hashlib

from models.preprocess import upright_size
from tests.models.pictures import encode, exif
from tests.training.dataset.labeled import picture
from tests.training.small import draw, make_taxonomy
from training.dataset.manifest import SourceNote, write_manifest
from training.dataset.selection import manifest_columns

COLORS = ("crimson", "royalblue", "gold", "orchid")


def picture_bytes(variant=0, size=(80, 64), image_format="JPEG", orientation=1):
    """One drawn picture as a file's bytes."""
    image = draw(COLORS[variant % len(COLORS)], "ellipse", variant, size)
    tags = exif(orientation) if orientation > 1 else b""
    return encode(image, image_format, quality=92, subsampling=2, exif=tags)


def write_prepared(folder, pictures):
    """Writes a data folder of (path, split, bytes), the pictures in `folder/pictures`."""
    root = folder / "pictures"
    taxonomy = make_taxonomy(2)
    labeled = []
    for number, (path, _, data) in enumerate(pictures):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
        width, height = upright_size(data)
        sha256 = hashlib.sha256(data).hexdigest()
        facts = {"num_bytes": len(data), "sha256": sha256, "width": width, "height": height}
        labeled.append(picture(f"drawn:{path}", taxonomy.output_keys[number % 2], facts=facts, license="CC0"))
    groups = [f"plant {number // 2}" for number in range(len(pictures))]
    columns = manifest_columns(labeled, [split for _, split, _ in pictures], groups)
    write_manifest(folder, columns, taxonomy, {"drawn": SourceNote("pictures", "Drawn.")})
    return folder


def write_mixed(folder, num_train=24, size=(120, 96)):
    """Training pictures, most of which a short side of 64 px reduces, and some pictures of every other split."""
    train = [
        (f"train/{number}.jpg", "train", picture_bytes(number, (60, 50) if number % 4 == 0 else size))
        for number in range(num_train)
    ]
    kept = [
        (f"{split}/{number}.png", split, picture_bytes(100 + number, size, "PNG"))
        for split in ("validation", "test")
        for number in range(3)
    ]
    return write_prepared(folder, [*kept, *train])


def hashes(folder):
    """Name -> hash of every file in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
