"""Turns the CSV file of iNaturalist's page "Export observations" into a list of pictures for `prepare.py table`.

The photographs are downloaded, one at a time and slowly, since iNaturalist asks for at most one request a second; or
they are in a folder already. The list is in the same folder, so that a second run continues.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from models.errors import DataError, some_of
from models.names import genus_families
from models.text_table import TextTable
from training.dataset.sources.photographs import SUFFIXES, Imported, Photograph, import_photographs, picture_path
from training.dataset.sources.record import may_be_plant

TABLE_FILE: Final = "observations.csv"
_NEEDED: Final = ("id", "scientific_name", "image_url")
# Our column -> theirs. Their coordinates are public ones: iNaturalist has moved those of rare plants by up to 20 km.
_COLUMNS: Final = {
    "scientific_name": "scientific_name",
    "common_name": "common_name",
    "genus": "taxon_genus_name",
    "group": "id",
    "author": "user_login",
    "taken_on": "observed_on",
    "latitude": "latitude",
    "longitude": "longitude",
    "cultivated": "captive_cultivated",
}
_OF_TAXON: Final = ("iconic_taxon_name", "taxon_species_name")
_READ: Final = dict.fromkeys((*_NEEDED, *_OF_TAXON, *_COLUMNS.values()), ())
_PAUSE_S: Final = 1.0
_MOST_LISTED: Final = 100
# The column `license` is that of the observation. A photograph without an open license lies here, one with such a
# license elsewhere (https://api.inaturalist.org/v1/docs), but the export does not tell which it is.
_RESERVED_HOST: Final = "//static.inaturalist.org/"


def import_observations(export: Path, out: Path, photographs: Path | None = None) -> Imported:
    """Downloads the photographs of an export, and writes the list of them.

    Args:
        export: The CSV file, with the columns id, scientific_name and image_url; optionally common_name, user_login,
            observed_on, latitude, longitude, captive_cultivated, iconic_taxon_name, taxon_genus_name and
            taxon_species_name.
        out: Folder for photographs and list.
        photographs: Folder of photographs, named by the id of their observation (123.jpg), instead of a download.

    Raises:
        DataError: The export cannot be read, or no photograph is left. What was downloaded stays.
    """
    left_out: Counter[str] = Counter()
    above_genus: Counter[str] = Counter()
    found: list[Photograph] = []
    in_folder = {} if photographs is None else _in_folder(photographs)
    table = TextTable(export, _NEEDED, _READ, remedy="choose it when you export your observations")
    has_ranks = "taxon_genus_name" in table.columns
    names = (row["scientific_name"].split() for _, row in table.rows())
    genera = None if has_ranks else {words[0] for words in names if len(words) > 1}
    for _, row in table.rows():
        path: str | None
        if photographs is not None:
            path = in_folder.get(row["id"])
            reason = f"no {row['id']}.jpg in {photographs.resolve()}"
        else:
            path = picture_path(row["id"], row["image_url"])
            reason = (
                f"observation {row['id'][:30]}: its number or the address {row['image_url'][:100]!r} cannot be fetched"
            )
        written = row["scientific_name"]
        name = _name(row, genera)
        if not written:
            reason = "no scientific name"
        elif not may_be_plant(row["iconic_taxon_name"]):
            reason = f"no plant: {row['iconic_taxon_name']}"
        elif not name:
            above_genus[written] += 1
            continue
        elif path is not None:
            is_reserved = _RESERVED_HOST in row["image_url"].lower()
            cells = {ours: row[theirs] for ours, theirs in _COLUMNS.items()}
            cells["license"] = "all rights reserved" if is_reserved else ""
            if name != written:
                cells |= {"scientific_name": name, "common_name": ""}
            found.append(Photograph(path, row["image_url"] if photographs is None else "", cells))
            continue
        left_out[reason] += 1
    if above_genus:
        remedy = "" if has_ranks else "; if one is a genus, also export the column taxon_genus_name"
        left_out[f"known to no genus: {some_of([*above_genus], _MOST_LISTED)}{remedy}"] = above_genus.total()
    return import_photographs(found, out / TABLE_FILE, left_out, at_once=1, pause_s=_PAUSE_S)


def _name(row: Mapping[str, str], genera: Collection[str] | None) -> str:
    """Returns the species or genus of an observation; nothing if it is known to neither.

    Args:
        row: The observation.
        genera: Those of the species in the export; None if its columns tell the ranks of a name.
    """
    name = row["scientific_name"]
    if not name.isalpha():
        return name
    if genera is None:
        return row["taxon_species_name"] or row["taxon_genus_name"]
    return name if name in genera or name in genus_families() else ""


def _in_folder(photographs: Path) -> dict[str, str]:
    """Returns name without suffix -> path of the photographs of a folder."""
    if not photographs.is_dir():
        raise DataError("the folder of photographs does not exist", value=photographs, remedy="correct --photographs")
    files = sorted(photographs.resolve().iterdir())
    return {path.stem: str(path) for path in files if path.suffix.lower() in SUFFIXES}
