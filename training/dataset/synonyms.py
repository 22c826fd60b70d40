"""Accepted names from a Darwin Core Taxon file: GBIF's backbone (`Taxon.tsv`), Kew's WCVP, and others of that format.

Such a file has up to seven million rows, of which a training set needs a few thousand. It is streamed, never held in
memory: once for the rows whose name is wanted, and once for each link of the chains from synonym to accepted name
(nearly always one). A row is parsed only if its first two words are those of a wanted name.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from models.errors import DataError
from models.names import PlantName, Rank, parse_name
from models.text_table import TextTable
from training.dataset.name_table import powo_id_of

_NEEDED: Final = ("taxonid", "scientificname", "acceptednameusageid", "taxonomicstatus")
# Terms of Darwin Core, and how Kew misspells them in its own archive.
_COLUMNS: Final = {
    **dict.fromkeys((*_NEEDED, "family", "kingdom", "canonicalname", "scientificnameid"), ()),
    "scientificname": ("scientfiicname",),
    "scientificnameauthorship": ("scientfiicnameauthorship",),
}
# A status with one of these words does not make a name a synonym.
_NO_SYNONYM: Final = ("misapplied", "pro parte", "proparte", "ambiguous")
_MOST_LINKS: Final = 5  # from synonym to accepted name; longer chains are errors in the file

Standing = Literal["accepted", "synonym", "unplaced"]  # by precedence, which is also the order of the alphabet


class AcceptedName(msgspec.Struct, frozen=True, kw_only=True):
    """The accepted name of a plant."""

    key: str
    """As `PlantName.key`."""
    scientific_name: str
    """Without author."""
    rank: Rank
    """Species, or genus for a genus."""
    genus: str
    author: str = ""
    """Author, as the file writes it."""
    family: str = ""
    gbif_id: int | None = None
    """The row's number in GBIF's backbone, for files with GBIF's column `canonicalName`."""
    powo_id: str = ""
    """The row's `scientificNameID` in Kew's files."""


class _Row(msgspec.Struct, frozen=True):
    """One line."""

    taxon_id: str
    accepted_id: str
    standing: Standing
    name: PlantName
    author: str
    family: str
    powo_id: str


def read_synonyms(path: Path, keys: Collection[str]) -> dict[str, tuple[AcceptedName, ...]]:
    """Looks up the accepted names of names.

    A row in which the name is accepted takes precedence over rows in which it is a synonym, and those over unplaced
    names. Misapplied and pro-parte names are not synonyms. A synonym is ignored if its accepted name is missing from
    the file or has another rank, or if the links form a cycle.

    Args:
        path: UTF-8 text without quoting, a header line, separated by tabs or (as Kew's) by "|". Columns, in any case
            and order: taxonID, scientificName, acceptedNameUsageID, taxonomicStatus; optionally
            scientificNameAuthorship, family, canonicalName, scientificNameID (Kew's), and kingdom, of which only
            Plantae is read.
        keys: Wanted names, as `PlantName.key`.

    Returns:
        The accepted name of each name in the file. Several if the name is a synonym of several plants (different
        authors gave it to different plants).

    Raises:
        DataError: The file is missing, not UTF-8, or lacks a column.
    """
    table = _TaxonFile(path)
    found: dict[str, list[_Row]] = {}
    for row in table.plants("scientificname", _may_be_any_of(keys)):
        if row.name.key in keys:
            found.setdefault(row.name.key, []).append(row)
    for key, rows in found.items():
        best = min(row.standing for row in rows)
        found[key] = [row for row in rows if row.standing == best]
    linked = _follow(table, {row.accepted_id for rows in found.values() for row in rows if row.standing == "synonym"})
    # Only GBIF's files have this column; letters in a key are of the Catalogue of Life, and then digits are too.
    used = [*linked.values(), *(row for rows in found.values() for row in rows)]
    is_gbif = "canonicalname" in table.columns and all(row.taxon_id.isdecimal() for row in used)
    names = {key: _accepted_names(rows, linked, is_gbif=is_gbif) for key, rows in found.items()}
    return {key: accepted for key, accepted in names.items() if accepted}


class _TaxonFile(TextTable):
    """A Darwin Core Taxon file, without quotes."""

    def __init__(self, path: Path) -> None:
        remedy = "set `synonyms` to Taxon.tsv of the archive, separated by tabs"
        super().__init__(path, _NEEDED, _COLUMNS, separators="\t|", remedy=remedy)

    def plants(self, column: str, test: Callable[[bytes], bool]) -> Iterator[_Row]:
        """Yields the plants whose value in a column passes a test; a line with too few fields is skipped.

        Lines are tested as bytes, because there are seven million of them.
        """
        separator = self.separator.encode()
        position = self.header.index(self.columns[column])
        with self.path.open("rb") as stream:
            next(stream)
            for line in stream:
                head = line.rstrip(b"\r\n").split(separator, position + 1)
                if len(head) > position and test(head[position].strip()):
                    row = self._row(line)
                    if row is not None:
                        yield row

    def _row(self, line: bytes) -> _Row | None:
        """Parses a line; returns None if it names no plant, or is neither accepted nor a synonym of one."""
        try:
            fields = line.decode().rstrip("\r\n").split(self.separator)
        except UnicodeDecodeError as error:
            raise DataError(f"{self.path} is not UTF-8 text", value=error, remedy="save it as UTF-8") from error
        cells = dict(zip(self.header, map(str.strip, fields), strict=False))
        cells = defaultdict(str, {ours: cells.get(theirs, "") for ours, theirs in self.columns.items()})
        if len(fields) < len(self.header) or ("kingdom" in cells and cells["kingdom"] != "Plantae"):
            return None
        author = cells["scientificnameauthorship"]
        name = parse_name(cells["scientificname"].removesuffix(author), scientific=True)
        taxon_id = cells["taxonid"]
        accepted_id = cells["acceptednameusageid"]
        status = cells["taxonomicstatus"].lower()
        if any(word in status for word in _NO_SYNONYM):
            return None
        standing: Standing = "unplaced"
        if accepted_id not in {"", taxon_id}:
            standing = "synonym"
        elif "accepted" in status or status in {"valid", "artificial hybrid"}:
            standing = "accepted"
        powo_id = powo_id_of(cells["scientificnameid"])
        return _Row(taxon_id, accepted_id, standing, name, author or name.author, cells["family"], powo_id)


def _may_be_any_of(keys: Collection[str]) -> Callable[[bytes], bool]:
    """Returns a fast test that every row of a wanted name passes, and few others; nearly all fail at the genus."""
    heads = {tuple(key.encode().split()[:2]) for key in keys}
    genera = {spelt for head in heads for spelt in (head[0], head[0].capitalize(), head[0].upper())}

    def may_be_wanted(name: bytes) -> bool:
        words = name.split(None, 2)
        if not words:
            return False
        genus = words[0]
        if genus not in genera:
            return genus[:1] in b"x+" or genus == b"X" or not genus.isascii()  # a hybrid sign, or an umlaut
        genus = genus.lower()
        if len(words) == 1 or (genus,) in heads:
            return (genus,) in heads
        epithet = words[1].lower()
        return (genus, epithet) in heads or epithet in b"x+" or not epithet.isascii()

    return may_be_wanted


def _follow(table: _TaxonFile, ids: set[str]) -> dict[str, _Row]:
    """Returns the rows of these identifiers, and of those that they link to, by identifier."""
    known: dict[str, _Row] = {}
    requested: set[str] = set()
    for _ in range(_MOST_LINKS):
        if ids:
            requested |= ids
            rows = table.plants("taxonid", {taxon_id.encode() for taxon_id in ids}.__contains__)
            known |= {row.taxon_id: row for row in rows}
            ids = {row.accepted_id for row in known.values() if row.standing == "synonym"} - requested
    return known


def _accepted_names(rows: Sequence[_Row], linked: dict[str, _Row], *, is_gbif: bool) -> tuple[AcceptedName, ...]:
    """Returns the accepted names that the rows of one name lead to, sorted by key."""
    ends: dict[str, list[_Row]] = {}
    for row in rows:
        end: _Row | None = row
        for _ in range(_MOST_LINKS):
            if end is not None and end.standing == "synonym":
                end = linked.get(end.accepted_id)
        # A chain that goes on is a cycle.
        if end is not None and end.standing != "synonym" and end.name.rank == row.name.rank:
            ends.setdefault(end.name.key, []).append(end)
    return tuple(_agreed(ends[key], is_gbif=is_gbif) for key in sorted(ends))


def _agreed(rows: Sequence[_Row], *, is_gbif: bool) -> AcceptedName:
    """Returns the name of rows with the same key; what the rows disagree about is empty."""
    name = rows[0].name

    def agreed(field: str) -> str:
        values = {getattr(row, field) for row in rows}
        return values.pop() if len(values) == 1 else ""

    taxon_id = agreed("taxon_id")
    return AcceptedName(
        key=name.key,
        scientific_name=name.scientific_name,
        rank=name.rank,
        genus=name.genus,
        author=agreed("author"),
        family=agreed("family"),
        gbif_id=int(taxon_id) if is_gbif and taxon_id.isdecimal() else None,
        powo_id=agreed("powo_id"),
    )
