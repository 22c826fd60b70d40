"""Turns a download of GBIF, a Darwin Core archive of occurrences and photographs, into a list for `prepare.py table`.

The archive is read where it lies, as the meta.xml in it tells (Darwin Core Text Guide, https://dwc.tdwg.org/text/). It
comes from the network: control characters are dropped, no name in it becomes a path, and a line has a limit.
"""

import csv
import hashlib
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, cast
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from models.errors import DataError, some_of
from models.names import genus_families, parse_name
from training.dataset.audit.licenses import license_id
from training.dataset.sources.photographs import Imported, Photograph, import_photographs, picture_path
from training.dataset.sources.record import day_of, is_col_key, may_be_plant, place_of

TABLE_FILE: Final = "gbif.csv"
_OCCURRENCES: Final = "http://rs.tdwg.org/dwc/terms/Occurrence"
_MULTIMEDIA: Final = "http://rs.gbif.org/terms/1.0/Multimedia"
_MOST_BYTES: Final = 1_000_000  # of meta.xml and of a line; GBIF's have 20,000
_CONTROLS: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")  # without the tab, which separates cells
_VERSION: Final = re.compile(r"-\d\.\d$")
_MEDIA_TERMS: Final = ("identifier", "type", "format", "creator", "rightsHolder", "license")
_KEYS: Final = ("kingdomKey", "orderKey", "familyKey", "genusKey", "speciesKey")
_OCCURRENCE_TERMS: Final = (
    "kingdom", "order", "family", "genus", "genericName", "specificEpithet", "species", "scientificName", "taxonRank",
    *_KEYS, "recordedBy", "eventDate", "decimalLatitude", "decimalLongitude", "hasGeospatialIssues", "basisOfRecord",
    "establishmentMeans", "degreeOfEstablishment",
)  # fmt: skip
# What publishers write as type or format of a photograph; some exchange the two.
_PICTURE: Final = re.compile(r"(?<!moving)(?<!moving[ _])image|photo|jpe?g|png|webp", re.IGNORECASE)
_ABOVE_SPECIES: Final = re.compile("genus|section|series|tribe|family|order|class|phylum|kingdom", re.IGNORECASE)
_REMEDY: Final = "at gbif.org filter by media type: image, and choose the format Darwin Core archive"
_Folder = Path | zipfile.Path  # on the disk, or in an archive
_LISTS: Final = (".csv", ".tsv", ".txt")
_MOST_LISTED: Final = 10
_SIGNS: Final = re.compile(r"[^0-9A-Za-z]")
_MOST_SIGNS: Final = 40  # of an identifier in the name of a file
_AT_ONCE: Final = 4
_PAUSE_S: Final = 0.25
# Values of basisOfRecord, establishmentMeans and degreeOfEstablishment, in lower case (GBIF's vocabularies).
_CULTIVATED: Final = frozenset({"living_specimen", "managed", "captive", "cultivated"})
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, LookupError, ValueError, csv.Error)


def import_download(download: Path, out: Path, licenses: Collection[str] = (), default_license: str = "") -> Imported:
    """Fetches the photographs of a download, and writes the list of them.

    Args:
        download: The .zip file, in GBIF's form "Darwin Core archive", or the folder to which it was unpacked.
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
        root = _root(download)
        occurrences, multimedia = _tables(root, download)
        media: dict[str, list[dict[str, str]]] = {}
        for picture in _rows(root, multimedia, _MEDIA_TERMS):
            picture["license"] = picture["license"] or default_license
            if reason := _unusable(picture, wanted):
                left_out[reason] += 1
            else:
                media.setdefault(picture["id"], []).append(picture)
        photographs = list(_photographs(root, occurrences, media, left_out))
    except (*_DAMAGED, ElementTree.ParseError, TypeError) as error:
        raise DataError(f"{download} cannot be read", value=error, remedy="download it again from gbif.org") from error
    return import_photographs(photographs, out / TABLE_FILE, left_out, at_once=_AT_ONCE, pause_s=_PAUSE_S)


def _root(download: Path) -> _Folder:
    """Returns the folder of meta.xml, in the archive or on the disk.

    Raises:
        DataError: The download has another form.
    """
    is_table = download.is_file() and download.suffix.lower() in _LISTS  # of an unpacked archive
    root: Any = download.parent if is_table else download if download.is_dir() else zipfile.Path(download)
    inside = [download] if is_table else [*root.iterdir()]
    if found := next((folder for folder in (root, *inside) if (folder / "meta.xml").is_file()), None):
        return cast(_Folder, found)
    names = sorted(each.name for each in inside)
    is_list = len(names) == 1 and names[0].lower().endswith(_LISTS)
    what = "is a list of GBIF, which has no photographs" if is_list else "is no Darwin Core archive: it lacks meta.xml"
    raise DataError(f"{download} {what}", value=some_of(names, _MOST_LISTED), remedy=_REMEDY)


def _tables(root: _Folder, download: Path) -> tuple[Element, Element]:
    """Returns what meta.xml tells of the tables of occurrences and of photographs.

    Occurrences are the core: verbatim.txt, in which they stand as they were published, is an extension of that type.
    """
    with (root / "meta.xml").open("rb") as stream:
        meta = ElementTree.fromstring(stream.read(_MOST_BYTES))  # expat itself refuses entities that explode
    occurrences = next((each for each in meta.iterfind("{*}core") if each.get("rowType") == _OCCURRENCES), None)
    media = next((each for each in meta.iterfind("{*}extension") if each.get("rowType") == _MULTIMEDIA), None)
    if occurrences is None or media is None:
        found = ", ".join(each.get("rowType", "").rpartition("/")[2] for each in meta)
        limit = "a core Occurrence and an extension Multimedia"
        raise DataError(f"{download} lacks a table", value=found, limit=limit, remedy=_REMEDY)
    return occurrences, media


def _rows(root: _Folder, table: Element, terms: Collection[str]) -> Iterator[dict[str, str]]:
    """Yields the cells of these terms in each row of a table, and as `id` the identifier of the occurrence."""
    key = next(each for each in table if each.tag.rpartition("}")[2] in {"id", "coreid"})
    columns = {"id": int(key.get("index", ""))}
    empty = dict.fromkeys(("id", *terms), "")
    for field in table.iterfind("{*}field"):
        if (term := field.get("term", "").rpartition("/")[2]) in terms:
            empty[term] = field.get("default", "")
            if index := field.get("index"):
                columns[term] = int(index)
    separator = table.get("fieldsTerminatedBy", ",").replace("\\t", "\t")
    quote = table.get("fieldsEnclosedBy", '"')
    csv.field_size_limit(_MOST_BYTES)
    name = PurePosixPath(table.findtext("{*}files/{*}location", "").strip()).name
    with (root / name).open("r", encoding=table.get("encoding", "UTF-8"), newline="\n") as text:
        form: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
        first = int(table.get("ignoreHeaderLines", "0"))
        for cells in csv.reader(islice(_lines(text), first, None), delimiter=separator, **form):
            found = {term: cells[index].strip() for term, index in columns.items() if index < len(cells)}
            yield empty | {term: cell for term, cell in found.items() if cell}


def _lines(text: IO[str]) -> Iterator[str]:
    while line := text.readline(_MOST_BYTES):
        if len(line) == _MOST_BYTES:
            raise ValueError(f"a line has more than {_MOST_BYTES:,} characters")
        yield _CONTROLS.sub(" ", line)


def _unusable(picture: Mapping[str, str], wanted: frozenset[str]) -> str:
    """Returns why a picture is left out, whatever it shows; nothing if it is not."""
    known = license_id(picture["license"])
    if no_picture := [cell for cell in (picture["type"], picture["format"]) if cell and not _PICTURE.search(cell)]:
        return f"no picture: {no_picture[0]}"
    if wanted and wanted.isdisjoint({known, _VERSION.sub("", known)}):
        return f"license {known}"
    return "" if picture_path("any", picture["identifier"]) else "its address is none of the web"


def _photographs(
    root: _Folder, table: Element, media: dict[str, list[dict[str, str]]], left_out: Counter[str]
) -> Iterator[Photograph]:
    for record in _rows(root, table, _OCCURRENCE_TERMS):
        pictures = media.pop(record["id"], [])
        record["genus"] = record["genus"] or record["genericName"]
        name, key = _name_and_key(record)
        if not may_be_plant(record["kingdom"]):
            left_out[f"no plant: {record['kingdom']}"] += len(pictures)
        elif not name:
            left_out["known to no genus"] += len(pictures)
        else:
            stem = _SIGNS.sub("", record["id"])[-_MOST_SIGNS:]
            for picture in pictures:
                digest = hashlib.sha256(picture["identifier"].encode()).hexdigest()
                path = picture_path(f"{stem}-{digest[:12]}", picture["identifier"])
                author = picture["creator"] or picture["rightsHolder"] or record["recordedBy"]
                cells = {"scientific_name": name, "gbif_id": key, "author": author, "license": picture["license"]}
                yield Photograph(path or "", picture["identifier"], cells | _facts(record))
    left_out["no record of it"] += sum(map(len, media.values()))


def _name_and_key(record: Mapping[str, str]) -> tuple[str, str]:
    """Returns name and GBIF's key of the species, else of the genus; nothing if neither is known.

    The columns `species` and of keys are GBIF's own, and `species` may hold the genus alone.
    """
    in_full = "" if _ABOVE_SPECIES.search(record["taxonRank"]) else record["scientificName"]
    in_parts = f"{record['genus']} {record['specificEpithet']}" if record["genus"] else ""
    name = next(filter(_names_species, (record["species"], in_parts, in_full)), "")
    key = record["speciesKey"] if name == record["species"] else ""
    if not name:
        words = [*record["species"].split()[:1], *record["scientificName"].split()[:1]]
        is_genus = record["taxonRank"].lower() == "genus"
        listed = (word for word in words if is_genus or word in genus_families())
        name = record["genus"] or next(listed, "")
        key = record["genusKey"]
    is_col = key and any(is_col_key(record[each]) for each in _KEYS)
    return name, f"COL:{key}" if is_col else key  # a key of digits alone does not tell which list it is of


@lru_cache(maxsize=1 << 16)
def _names_species(name: str) -> bool:
    try:
        return bool(name) and bool(parse_name(name, scientific=True).epithet)
    except DataError:  # letters that are not Latin
        return False


def _facts(record: Mapping[str, str]) -> dict[str, str]:
    """Returns what is known of all photographs of an occurrence; without a day or place that cannot be."""
    first, _, last = record["eventDate"].partition("/")
    day = day_of(first[:10] if last[:10] in {"", first[:10]} else "")  # an interval of several days is none
    place = place_of(record["decimalLatitude"], record["decimalLongitude"])
    latitude, longitude = place if place and record["hasGeospatialIssues"] != "true" else ("", "")
    origins = (record[term].lower() for term in ("basisOfRecord", "establishmentMeans", "degreeOfEstablishment"))
    return {
        **{rank: record[rank] for rank in ("genus", "family", "order")},
        "group": record["id"],
        "taken_on": str(day or ""),
        "latitude": str(latitude),
        "longitude": str(longitude),
        "cultivated": str(not _CULTIVATED.isdisjoint(origins)),
    }
