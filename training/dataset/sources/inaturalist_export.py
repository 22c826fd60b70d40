"""Turns the CSV file of iNaturalist's page "Export observations" into a list of pictures for `prepare.py table`.

The photographs are downloaded, one at a time and slowly, since iNaturalist asks for at most one request a second; or
they are in a folder already. The list is in the same folder, so that a second run continues.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Final

from models.errors import DataError
from models.text_table import TextTable
from training.dataset.sources.photographs import SUFFIXES, Imported, Photograph, import_photographs, picture_path

TABLE_FILE: Final = "observations.csv"
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
_READ: Final = dict.fromkeys((*_NEEDED, "iconic_taxon_name", *_COLUMNS.values()), ())
_PAUSE_S: Final = 1.0
# Names of families, orders, classes and phyla (ICN, articles 16 to 18), and of groups above them.
_ABOVE_GENUS: Final = re.compile(r"\w+(?:aceae|oideae|inae|ales|opsida|phyta|phytina)|Plantae|Angiospermae|Life")


def import_observations(export: Path, out: Path, photographs: Path | None = None) -> Imported:
    """Downloads the photographs of an export, and writes the list of them.

    Args:
        export: The CSV file, with the columns id, scientific_name and image_url; optionally common_name, user_login,
            license, observed_on, latitude, longitude, captive_cultivated and iconic_taxon_name.
        out: Folder for photographs and list.
        photographs: Folder of photographs, named by the id of their observation (123.jpg), instead of a download.

    Raises:
        DataError: The export cannot be read, or no photograph is left. What was downloaded stays.
    """
    left_out: Counter[str] = Counter()
    found: list[Photograph] = []
    in_folder = {} if photographs is None else _in_folder(photographs)
    table = TextTable(export, _NEEDED, _READ, remedy="choose it when you export your observations")
    for _, row in table.rows():
        path: str | None
        if photographs is not None:
            path = in_folder.get(row["id"])
            reason = f"no {row['id']}.jpg in {photographs.resolve()}"
        else:
            path = picture_path(row["id"], row["image_url"]) if row["id"].isalnum() else None
            reason = f"the address {row['image_url'][:100]!r} cannot be fetched"
        if not row["scientific_name"]:
            reason = "no scientific name"
        elif _ABOVE_GENUS.fullmatch(row["scientific_name"]):
            reason = f"known to no genus: {row['scientific_name']}"
        elif row["iconic_taxon_name"] not in {"", "Plantae"}:
            reason = f"no plant: {row['iconic_taxon_name']}"
        elif path is not None:
            cells = {ours: row[theirs] for ours, theirs in _COLUMNS.items()}
            if "license" in table.columns:
                cells["license"] = cells["license"] or "all rights reserved"  # what iNaturalist means by none
            found.append(Photograph(path, row["image_url"] if photographs is None else "", cells))
            continue
        left_out[f"observation {row['id']}: {reason}"] += 1
    out.mkdir(parents=True, exist_ok=True)
    return import_photographs(found, out / TABLE_FILE, left_out, at_once=1, pause_s=_PAUSE_S)


def _in_folder(photographs: Path) -> dict[str, str]:
    """Returns name without suffix -> path of the photographs of a folder."""
    if not photographs.is_dir():
        raise DataError("the folder of photographs does not exist", value=photographs, remedy="correct --photographs")
    files = sorted(photographs.resolve().iterdir())
    return {path.stem: str(path) for path in files if path.suffix.lower() in SUFFIXES}
