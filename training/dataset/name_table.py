"""Common names in several languages and identifiers of taxa, from a table that the user has (`--names`)."""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from models.errors import DataError, some_of
from models.taxonomy import LANGUAGE, Taxon, TaxonNames, Taxonomy
from models.text_table import TextTable
from training.dataset.sources.record import COL_KEYS_LEFT_OUT, is_col_key

# Our columns and how the Darwin Core tables of GBIF and Kew spell them; case and signs do not matter.
_COLUMNS: Final = {
    "taxon": ("scientificname", "taxonid"),
    "language": ("lang",),
    "name": ("vernacularname", "commonname"),
    "preferred": ("ispreferredname",),
    "gbif_id": ("taxonkey",),
    "powo_id": ("ipniid", "scientificnameid"),
}
_FORM: Final = "CSV in UTF-8 with the columns taxon, and language with name, gbif_id or powo_id (docs/data_sets.md)"
_YES: Final = frozenset({"1", "true", "yes"})
_MOST_LISTED: Final = 100
# Codes of ISO 639-2 for the languages that docs/ names. RFC 5646, 2.2.1, wants the shorter code, and browsers send it.
_SHORTER: Final = {"deu": "de", "ger": "de", "eng": "en", "spa": "es", "fra": "fr", "fre": "fr", "por": "pt"}
_POWO: Final = re.compile(r"(?:urn:lsid:ipni\.org:names:|ipni:)?(\d+-\d+)")
# Column, what its cells match, and the same in words.
_FORMS: Final = (
    ("language", LANGUAGE, "a code such as de or pt-BR"),
    ("gbif_id", "[0-9]+", "a number"),
    ("powo_id", _POWO, "as in 30001404-2"),
)


class _Row(msgspec.Struct, frozen=True):
    """One row, whose cells are checked."""

    language: str
    name: str
    preferred: bool
    gbif_id: int | None
    powo_id: str


def powo_id_of(text: str) -> str:
    """Returns the id in "ipni:30001404-2", "urn:lsid:ipni.org:names:30001404-2" or "30001404-2", else ""."""
    found = _POWO.fullmatch(text.strip())
    return found[1] if found else ""


def with_names(taxonomy: Taxonomy, path: Path) -> tuple[Taxonomy, str]:
    """Adds the names and identifiers of a table to a taxonomy.

    Args:
        taxonomy: Its taxa are found by id, GBIF key, accepted name or synonym, with or without author.
        path: CSV (UTF-8, with a header; separated by commas, semicolons, tabs or bars). A row has `taxon`, and
            `language` (as in de or pt-BR) with `name`, and `preferred` if that name is first; or `gbif_id`, `powo_id`.

    Returns:
        The new taxonomy, and a sentence about what was read.

    Raises:
        DataError: The table cannot be read, lacks a column or has a wrong cell, or names no taxon of the taxonomy.
    """
    position_of = taxon_finder(taxonomy)
    rows: dict[int, list[_Row]] = {}
    num_ignored = 0
    faults: list[str] = []
    needed = ("taxon", "language or gbif_id or powo_id", "name or gbif_id or powo_id")
    table = TextTable(path, needed, _COLUMNS, unquoted="\t|", remedy=f"give {_FORM}")  # GBIF's have stray quotes
    has_col_keys = any(is_col_key(cells["taxon"]) or is_col_key(cells["gbif_id"]) for _, cells in table.rows())
    for line, cells in table.rows():
        if has_col_keys:
            cells["gbif_id"] = ""
        index = None if has_col_keys and cells["taxon"].isdecimal() else position_of(cells["taxon"])
        if not cells["name"]:
            cells["language"] = ""
        if index is None or (cells["name"] and not cells["language"]):
            num_ignored += 1
        elif fault := _fault(cells):
            faults.append(f"line {line}: {fault}")
        else:
            rows.setdefault(index, []).append(_row(cells))
    if faults:
        raise DataError(
            f"{path}: cells of {len(faults):,} rows cannot be used",
            value=some_of(faults, _MOST_LISTED, "; "),
            remedy="correct or empty the cells; a name without a language is ignored",
        )
    if not rows:
        raise DataError(f"{path} names no taxon of the data", limit=_FORM, remedy="write the names as in the data")
    taxa = tuple(_with_rows(taxon, rows.get(index, [])) for index, taxon in enumerate(taxonomy.taxa))
    languages = {row.language for each in rows.values() for row in each if row.language}
    note = f"{path.name}: names or ids of {len(rows):,} of {len(taxa):,} taxa, names in {len(languages):,} languages"
    ignored = f"; {num_ignored:,} rows about other plants or without a language were ignored" if num_ignored else ""
    keys = f". {COL_KEYS_LEFT_OUT}" if has_col_keys else ""
    return msgspec.structs.replace(taxonomy, taxa=taxa), f"{note}{ignored}{keys}."


def taxon_finder(taxonomy: Taxonomy) -> Callable[[str], int | None]:
    """Returns a function that finds the position of a taxon by what a table writes."""
    names = TaxonNames(taxonomy)
    by_key = {str(taxon.gbif_id): index for index, taxon in enumerate(taxonomy.taxa) if taxon.gbif_id}

    def find(text: str) -> int | None:
        if text.isdecimal():
            return by_key.get(text)
        known = names.find(text)
        if known is None or known.match.kind in {"below", "common"}:
            return None
        itself = [at for at in known.taxa.tolist() if taxonomy.taxa[at].scientific_name == known.match.name]
        return next(iter(itself if known.is_group else known.taxa.tolist()), None)

    return cache(find)


def _with_rows(taxon: Taxon, rows: list[_Row]) -> Taxon:
    names: dict[str, tuple[str, ...]] = {}
    for row in sorted(rows, key=lambda row: (row.language, not row.preferred)):  # a stable sort keeps the table's order
        if row.name:
            names[row.language] = tuple(dict.fromkeys((*names.get(row.language, ()), row.name)))
    return msgspec.structs.replace(
        taxon,
        names=names or taxon.names,
        gbif_id=next((row.gbif_id for row in rows if row.gbif_id is not None), taxon.gbif_id),
        powo_id=next((row.powo_id for row in rows if row.powo_id), taxon.powo_id),
    )


def _fault(cells: dict[str, str]) -> str:
    """Returns what is wrong with the cells of a row, or nothing."""
    return " and ".join(
        f"{column} {cells[column][:40]!r}, expected {words}"
        for column, form, words in _FORMS
        if cells[column] and not re.fullmatch(form, cells[column])
    )


def _row(cells: dict[str, str]) -> _Row:
    language, *subtags = re.split("[-_]", cells["language"].lower())
    return _Row(
        language="-".join((_SHORTER.get(language, language), *subtags)),
        name=cells["name"],
        preferred=cells["preferred"].lower() in _YES,
        gbif_id=int(cells["gbif_id"] or 0) or None,
        powo_id=powo_id_of(cells["powo_id"]),
    )
