"""Prepared data of a few drawn pictures, written without going through prepare."""

import hashlib
import tarfile

from models.preprocess import upright_size
from tests.models.pictures import encode, exif
from tests.training.small import draw, make_taxonomy, write_data
from training.loading.storage import PictureStore

OPTIONS = {"short_side_px": 64, "shard_mb": 0.02, "workers": 1}
COLORS = ("crimson", "royalblue", "gold", "orchid")


def require_hashes(manifest):
    """Asserts that each stored picture has the bytes whose hash the manifest holds, in a tar of such members."""
    stored = PictureStore(manifest).read_many([*range(len(manifest))])
    assert [hashlib.sha256(data).hexdigest() for data in stored] == manifest.table["sha256"].to_pylist()
    for path in manifest.folder.glob("*.tar"):
        with tarfile.open(path) as tar:
            offsets = {member.offset_data: member.size for member in tar}
        own = [place for place in map(manifest.place, range(len(manifest))) if place.file == str(path)]
        assert {place.offset: place.length for place in own}.items() <= offsets.items()


def picture_bytes(variant=0, size=(80, 64), image_format="JPEG", orientation=1):
    """One drawn picture as a file's bytes."""
    image = draw(COLORS[variant % len(COLORS)], "ellipse", variant, size)
    tags = exif(orientation) if orientation > 1 else b""
    return encode(image, image_format, quality=92, subsampling=2, exif=tags)


def write_prepared(folder, pictures):
    """Writes a data folder of (path, split, bytes), the pictures in `folder/pictures`."""
    for path, _, data in pictures:
        (folder / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "pictures" / path).write_bytes(data)
    taxonomy = make_taxonomy(2)
    rows = [(path, taxonomy.output_keys[number % 2], split) for number, (path, split, _) in enumerate(pictures)]
    contents = [data for _, _, data in pictures]
    width, height = zip(*map(upright_size, contents), strict=True)
    facts = {"length": [*map(len, contents)], "sha256": [hashlib.sha256(data).hexdigest() for data in contents]}
    groups = [f"plant {number // 2}" for number in range(len(pictures))]
    return write_data(folder, "pictures", rows, taxonomy, groups, **facts, width=width, height=height)


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
