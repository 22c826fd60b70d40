"""Turns the CSV file of iNaturalist's page "Export observations" into a list of pictures for `prepare.py table`.

The photographs are downloaded, one at a time and slowly, since iNaturalist asks for at most one request a second; or
they are in a folder already. The list is in the same folder, so that a second run continues.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import msgspec

from models.atomic_file import replaced
from models.errors import DataError
from training.dataset.transfer import Fetcher, RemoteFile

TABLE_FILE: Final = "observations.csv"
_PICTURES: Final = "photographs"
_NEEDED: Final = ("id", "scientific_name", "image_url")
# Our column -> theirs. Their coordinates are public ones: iNaturalist has moved those of rare plants by up to 20 km.
_COLUMNS: Final = {
    "scientific_name": "scientific_name",
    "common_name": "common_name",
    "group": "id",
    "author": "user_login",
    "license": "license",
    "taken_on": "observed_on",
    "latitude": "latitude",
    "longitude": "longitude",
    "cultivated": "captive_cultivated",
}
_IF_EMPTY: Final = {"license": "all rights reserved"}  # what iNaturalist means by it
_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".gif", ".webp", ".heic")
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 1.0
_MAX_BYTES: Final = 50_000_000
# Names of families, orders, classes and phyla (ICN, articles 16 to 18), and of groups above them.
_ABOVE_GENUS: Final = re.compile(r"\w+(?:aceae|oideae|inae|ales|opsida|phyta|phytina)|Plantae|Angiospermae|Life")


class Imported(msgspec.Struct, frozen=True):
    """What an export gave."""

    table: Path
    """A list for `prepare.py table`."""
    num_pictures: int
    left_out: tuple[str, ...]
    """A sentence for each observation without a picture, a name or a plant."""


def import_observations(
    export: Path, out: Path, photographs: Path | None = None, *, tell: Callable[[str], None] = print
) -> Imported:
    """Downloads the photographs of an export, and writes the list of them.

    Args:
        export: The CSV file, with the columns id, scientific_name and image_url; optionally common_name, user_login,
            license, observed_on, latitude, longitude, captive_cultivated and iconic_taxon_name.
        out: Folder for photographs and list.
        photographs: Folder of photographs, named by the id of their observation (123.jpg), instead of a download.
        tell: Gets a sentence about the progress now and then.

    Raises:
        DataError: The export cannot be read, or no photograph is left. What was downloaded stays.
    """
    left_out: list[str] = []
    rows = []
    (out / _PICTURES).mkdir(parents=True, exist_ok=True)
    fetch = _Downloader(out, tell) if photographs is None else _Finder(photographs)
    for row in _observations(export):
        name = f"observation {row['id']}"
        if not row["scientific_name"]:
            left_out.append(f"{name} has no scientific name")
        elif _ABOVE_GENUS.fullmatch(row["scientific_name"]):
            left_out.append(f"{name} is known to no genus: {row['scientific_name']}")
        elif row.get("iconic_taxon_name") not in {None, "", "Plantae"}:
            left_out.append(f"{name} is no plant: {row['iconic_taxon_name']}")
        else:
            path, reason = fetch(row)
            if path is None:
                left_out.append(f"{name} has no photograph: {reason}")
            else:
                rows.append({"path": path, **{ours: row.get(theirs, "") for ours, theirs in _COLUMNS.items()}})
    if not rows:
        raise DataError("the export gave no photograph", value="; ".join(left_out[:3]), remedy="check its columns")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, ["path", *_COLUMNS])
    writer.writeheader()
    writer.writerows(rows)
    with replaced(out / TABLE_FILE) as stream:
        stream.write(text.getvalue().encode())
    return Imported(out / TABLE_FILE, len(rows), tuple(left_out))


def _observations(export: Path) -> Iterator[dict[str, str]]:
    try:
        with export.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(
                    f"{export} lacks the column {' and '.join(missing)}",
                    value=", ".join(reader.fieldnames or ()) or "an empty file",
                    remedy="choose these columns when you export your observations",
                )
            for row in reader:
                yield {name: (value or "").strip() or _IF_EMPTY.get(name, "") for name, value in row.items() if name}
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{export} cannot be read", value=error, remedy="give the CSV file of the export") from error


class _Finder:
    """Finds photographs in a folder by the id of their observation."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise DataError("the folder of photographs does not exist", value=folder, remedy="correct --photographs")
        self._folder = folder.resolve()
        self._paths = {path.stem: path for path in sorted(folder.iterdir()) if path.suffix.lower() in _SUFFIXES}

    def __call__(self, row: Mapping[str, str]) -> tuple[str | None, str]:
        path = self._paths.get(row["id"])
        return (None, f"no {row['id']}.jpg in {self._folder}") if path is None else (str(path.resolve()), "")


class _Downloader:
    """Downloads photographs one at a time, with pauses; those that are there already are not asked for again."""

    def __init__(self, out: Path, tell: Callable[[str], None]) -> None:
        self._out = out
        self._tell = tell
        self._fetcher = Fetcher(attempts=_ATTEMPTS, pause_s=_PAUSE_S, tell=tell)
        self._number = 0

    def __call__(self, row: Mapping[str, str]) -> tuple[str | None, str]:
        """Returns the path of a photograph below the folder, or None and why there is none."""
        try:
            address = urlsplit(row["image_url"])
        except ValueError:
            address = urlsplit("")
        if address.scheme not in {"http", "https"} or not (row["id"].isalnum() and row["image_url"].isascii()):
            return None, f"the address {row['image_url'][:100]!r} cannot be fetched"
        suffix = PurePosixPath(address.path).suffix.lower()
        name = f"{_PICTURES}/{row['id']}{suffix if suffix in _SUFFIXES else '.jpg'}"
        if (self._out / name).exists():
            return name, ""
        try:
            self._fetcher.fetch(RemoteFile(row["image_url"], self._out / name), max_bytes=_MAX_BYTES)
        except DataError as error:
            return None, str(error)
        self._number += 1
        if self._number % 100 == 0:
            self._tell(f"{self._number:,} photographs downloaded")
        return name, ""
