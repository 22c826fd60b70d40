"""Turns a download of GBIF, a Darwin Core archive of occurrences and photographs, into a list for `prepare.py table`.

The archive is read where it lies, as the meta.xml in it tells (Darwin Core Text Guide, https://dwc.tdwg.org/text/). It
comes from the network: control characters are dropped, no name in it becomes a path, and a line has a limit.
"""

import csv
import hashlib
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from models.errors import DataError
from training.dataset.audit.licenses import license_id
from training.dataset.sources.photographs import Imported, Photograph, import_photographs, picture_path
from training.dataset.sources.record import place_of

TABLE_FILE: Final = "gbif.csv"
_OCCURRENCES: Final = "http://rs.tdwg.org/dwc/terms/Occurrence"
_MULTIMEDIA: Final = "http://rs.gbif.org/terms/1.0/Multimedia"
_MOST_BYTES: Final = 1_000_000  # of meta.xml and of a line; GBIF's have 20,000
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")  # without the tab, which separates cells
_VERSION: Final = re.compile(r"-\d\.\d$")
_MEDIA_TERMS: Final = ("identifier", "type", "format", "creator", "rightsHolder", "license")
_OCCURRENCE_TERMS: Final = (
    "kingdom", "order", "family", "genus", "genusKey", "species", "speciesKey", "recordedBy", "eventDate",
    "decimalLatitude", "decimalLongitude", "hasGeospatialIssues", "basisOfRecord", "establishmentMeans",
    "degreeOfEstablishment",
)  # fmt: skip
_AT_ONCE: Final = 4
_PAUSE_S: Final = 0.25
# Values of basisOfRecord, establishmentMeans and degreeOfEstablishment, in lower case (GBIF's vocabularies).
_CULTIVATED: Final = frozenset({"living_specimen", "managed", "captive", "cultivated"})
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, LookupError, ValueError, csv.Error)


def import_download(download: Path, out: Path, licenses: Collection[str] = (), default_license: str = "") -> Imported:
    """Fetches the photographs of a download, and writes the list of them.

    Args:
        download: The .zip file, in GBIF's form "Darwin Core archive".
        out: Folder for photographs and list.
        licenses: Those to take, in any spelling and with or without a version; all if there are none. A photograph has
            its own license: that of its record covers the data alone.
        default_license: Of photographs without one.

    Raises:
        DataError: It is no such archive, or no photograph is left. What was fetched stays.
    """
    left_out: Counter[str] = Counter()
    wanted = frozenset(map(license_id, licenses))
    try:
        with zipfile.ZipFile(download) as archive:
            tables = _tables(archive, download)
            media: dict[str, list[dict[str, str]]] = {}
            for picture in _rows(archive, tables[_MULTIMEDIA], _MEDIA_TERMS):
                picture["license"] = picture["license"] or default_license
                if reason := _unusable(picture, wanted):
                    left_out[reason] += 1
                else:
                    media.setdefault(picture["id"], []).append(picture)
            photographs = list(_photographs(archive, tables[_OCCURRENCES], media, left_out))
    except (*_DAMAGED, ElementTree.ParseError, TypeError) as error:
        raise DataError(f"{download} cannot be read", value=error, remedy="download it again from gbif.org") from error
    out.mkdir(parents=True, exist_ok=True)
    return import_photographs(photographs, out / TABLE_FILE, left_out, at_once=_AT_ONCE, pause_s=_PAUSE_S)


def _tables(archive: zipfile.ZipFile, download: Path) -> dict[str, ElementTree.Element]:
    """Returns what meta.xml tells of each table, by its type; of two tables of one type the first, the core.

    (verbatim.txt, in which the records stand as they were published, is called one of occurrences too.)
    """
    with archive.open("meta.xml") as stream:
        root = ElementTree.fromstring(stream.read(_MOST_BYTES))  # expat itself refuses entities that explode
    tables = {table.get("rowType", ""): table for table in reversed(root)}
    needed = {_OCCURRENCES: "occurrences", _MULTIMEDIA: "multimedia"}
    missing = [name for row_type, name in needed.items() if row_type not in tables]
    if missing:
        raise DataError(
            f"{download} has no table of {' and of '.join(missing)}",
            value=", ".join(archive.namelist()[:10]),
            remedy="at gbif.org filter by media type: image, and choose the format Darwin Core archive",
        )
    return tables


def _rows(archive: zipfile.ZipFile, table: ElementTree.Element, terms: Collection[str]) -> Iterator[dict[str, str]]:
    """Yields the cells of these terms in each row of a table, and as `id` the number of the occurrence."""
    fields = {field.get("term", "").rpartition("/")[2]: field.get("index") for field in table.iterfind("{*}field")}
    key = next((each for each in table if each.tag.rpartition("}")[2] in {"id", "coreid"}), None)
    fields["id"] = None if key is None else key.get("index")
    columns = {term: int(index) for term, index in fields.items() if index and term in {"id", *terms}}
    separator = table.get("fieldsTerminatedBy", ",").replace("\\t", "\t")
    quote = table.get("fieldsEnclosedBy", '"')
    csv.field_size_limit(_MOST_BYTES)
    with archive.open(table.findtext("{*}files/{*}location", "").strip()) as stream:
        text = io.TextIOWrapper(stream, table.get("encoding", "UTF-8"), newline="\n")
        lines = _lines(text)
        for _ in range(int(table.get("ignoreHeaderLines", "0"))):
            next(lines, None)
        form: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
        for cells in csv.reader(lines, delimiter=separator, **form):
            row = dict.fromkeys(("id", *terms), "")
            yield row | {term: cells[index].strip() for term, index in columns.items() if index < len(cells)}


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    while line := text.readline(_MOST_BYTES):
        if len(line) == _MOST_BYTES:
            raise ValueError(f"a line has more than {_MOST_BYTES:,} characters")
        yield _CONTROLS.sub(" ", line)


def _unusable(picture: Mapping[str, str], wanted: frozenset[str]) -> str:
    """Returns why a picture is left out, whatever it shows; nothing if it is not."""
    known = license_id(picture["license"])
    if not (picture["id"].isdecimal() and len(picture["id"]) < 20):
        return "its number is none of GBIF's"
    if picture["type"] not in {"", "StillImage"} or not (picture["format"] or "image").startswith("image"):
        return f"no picture: {picture['type'] or picture['format']}"
    if wanted and wanted.isdisjoint({known, _VERSION.sub("", known)}):
        return f"license {known}"
    return "" if picture_path("", picture["identifier"]) else "its address is none of the web"


def _photographs(
    archive: zipfile.ZipFile,
    table: ElementTree.Element,
    media: dict[str, list[dict[str, str]]],
    left_out: Counter[str],
) -> Iterator[Photograph]:
    for record in _rows(archive, table, _OCCURRENCE_TERMS):
        pictures = media.pop(record["id"], [])
        name = record["species"] or record["genus"]
        if record["kingdom"] not in {"", "Plantae"}:
            left_out[f"no plant: {record['kingdom']}"] += len(pictures)
        elif not name:
            left_out["known to no genus"] += len(pictures)
        else:
            for picture in pictures:
                digest = hashlib.sha256(picture["identifier"].encode()).hexdigest()
                path = picture_path(f"{record['id']}-{digest[:12]}", picture["identifier"])
                author = picture["creator"] or picture["rightsHolder"] or record["recordedBy"]
                cells = {"scientific_name": name, "author": author, "license": picture["license"], **_facts(record)}
                yield Photograph(path or "", picture["identifier"], cells)
    left_out["no record of it"] += sum(map(len, media.values()))


def _facts(record: Mapping[str, str]) -> dict[str, str]:
    """Returns what is known of all photographs of an occurrence; without a day or place that cannot be."""
    first, _, last = record["eventDate"].partition("/")
    day = first[:10] if last[:10] in {"", first[:10]} else ""  # an interval of several days is none
    try:
        day = date.fromisoformat(day).isoformat()
    except ValueError:
        day = ""
    latitude = record["decimalLatitude"]
    longitude = record["decimalLongitude"]
    try:
        has_place = place_of(float(latitude), float(longitude)) and record["hasGeospatialIssues"] != "true"
    except ValueError:
        has_place = None
    origins = (record[term].lower() for term in ("basisOfRecord", "establishmentMeans", "degreeOfEstablishment"))
    return {
        **{rank: record[rank] for rank in ("genus", "family", "order")},
        "gbif_id": record["speciesKey"] if record["species"] else record["genusKey"],
        "group": record["id"],
        "taken_on": day,
        "latitude": latitude if has_place else "",
        "longitude": longitude if has_place else "",
        "cultivated": str(not _CULTIVATED.isdisjoint(origins)),
    }
