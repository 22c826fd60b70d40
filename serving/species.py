"""Taxa by their names: the JSON records of `/species`, what a search says in words, and the parameter `taxa`.

Fields may be added, but never renamed or removed.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec
import numpy as np

from models.arrays import Flags
from models.errors import InputError, some_of
from models.examples import Example
from models.harmful import harms_of
from models.taxonomy import KnownName, NameMatch, TaxaChoice, Taxon, TaxonNames
from models.text_table import TextTable, text_lines
from serving.errors import BadParameter
from serving.schemas import TaxonView

SpeciesStatus = Literal["known", "synonym", "not_in_model"]
_NUM_NAMED: Final = 3  # names that a sentence repeats; it counts the others
TaxaLists = Mapping[str, Mapping[str, int]]
"""Name of a list -> the names in it, each with the number of its line."""

LIST_PREFIX: Final = "list:"
"""Starts a value that names a list."""
ALL_TAXA: Final = "all"
"""The project of Pl@ntNet's interface with every taxon that the model can name."""
_COMMENT: Final = "#"
_TEXT: Final = ".txt"
# GBIF's species list, and the tables of Kew's WCVP and World Flora Online.
_COLUMNS: Final = {
    "taxon": ("species", "acceptedscientificname", "scientificname", "taxonname"),
    "records": ("numberofoccurrences",),
}
_TOO_FEW: Final = {"0", "1", "2", "3", "4"}  # records: often mistakes, or garden plants
_NAME_LENGTH: Final = 40  # longest part of a name that a message repeats
_LIST_FORM: Final = "a folder with text files NAME.txt in UTF-8, one name a line, or tables NAME.csv or NAME.tsv"


class SpeciesEntry(TaxonView, frozen=True):
    """A taxon that a search found."""

    match: NameMatch | None
    """Why it was found; null if the query was empty."""


class SpeciesList(msgspec.Struct, frozen=True):
    """Taxa found by name, sorted by scientific name."""

    request_id: str
    """The same as in the header `X-Request-ID` and in the logs."""
    species: list[SpeciesEntry]
    total: int
    """How many taxa the model can name."""
    status: SpeciesStatus | None
    """Whether the query is a whole name that the model knows: `known` (an accepted or common name, genus, family, or a
    name below one), a `synonym`, or `not_in_model`; null if it is empty or only the start of names."""
    message: str | None
    """The status as a sentence; null if the query is empty."""
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""


class ExampleView(msgspec.Struct, frozen=True):
    """A reference picture, to compare a photograph with."""

    url: str
    """Where it is: a path on this service."""
    author: str
    """Empty if unknown."""
    license: str
    """Short identifier, such as CC-BY-4.0."""
    source: str
    """Name of the data set."""


class SpeciesDetail(TaxonView, frozen=True):
    """A taxon that the model can name, with everything that the model knows about it."""

    request_id: str
    """The same as in the header `X-Request-ID` and in the logs."""
    author: str
    """Author of the accepted name; empty if unknown."""
    synonyms: tuple[str, ...]
    """Other scientific names of the taxon."""
    num_calibration_plants: int | None
    """Number of plants of this taxon on which candidate sets were calibrated; null if the bundle has none."""
    names: dict[str, tuple[str, ...]]
    """Language -> common names in it, the preferred first; empty if the model has no names by language."""
    images: list[ExampleView]
    """Reference pictures, the most typical first; empty if the bundle has none. Show author and license with them."""


def taxon_fields(taxon: Taxon, languages: Sequence[str]) -> dict[str, Any]:
    """Returns the fields that every JSON record of a taxon has."""
    return {
        "taxon_id": taxon.taxon_id,
        "rank": taxon.rank,
        "scientific_name": taxon.scientific_name,
        "common_names": taxon.common_names_in(languages),
        "genus": taxon.genus,
        "family": taxon.family,
        "gbif_id": taxon.gbif_id,
        "powo_id": taxon.powo_id or None,
        "harms": harms_of(taxon.scientific_name, taxon.genus),
    }


def species_list(
    request_id: str, query: str, limit: int, names: TaxonNames, *, languages: Sequence[str], warnings: list[str]
) -> SpeciesList:
    """Searches and builds the response; slow for many taxa."""
    found = names.search(query, limit)
    status, message = _status(query.strip(), names, is_start=bool(found))
    return SpeciesList(
        request_id=request_id,
        species=[SpeciesEntry(**taxon_fields(each.taxon, languages), match=each.match) for each in found],
        total=len(names.taxonomy.taxa),
        status=status,
        message=message,
        warnings=warnings,
    )


def species_detail(
    request_id: str,
    taxon: Taxon,
    num_calibration_plants: int | None,
    examples: Sequence[Example],
    languages: Sequence[str],
) -> SpeciesDetail:
    """Builds the response about one taxon."""
    path = f"/species/{quote(taxon.taxon_id, safe='')}/images"
    return SpeciesDetail(
        request_id=request_id,
        **taxon_fields(taxon, languages),
        author=taxon.author,
        synonyms=taxon.synonyms,
        names=taxon.names,
        num_calibration_plants=num_calibration_plants,
        images=[
            ExampleView(f"{path}/{number}", each.author, each.license, each.source)
            for number, each in enumerate(examples)
        ],
    )


def _status(query: str, names: TaxonNames, *, is_start: bool) -> tuple[SpeciesStatus | None, str | None]:
    if not query:
        return None, None
    known = names.find(query)
    if known is not None:
        taxa = [names.taxonomy.taxa[position].scientific_name for position in known.taxa]
        meaning = _meaning(known, taxa)
        if known.match.kind == "below":
            meaning = f"This model knows nothing below {known.match.name}, where {query!r} belongs. {meaning}"
        return ("synonym" if known.kind == "synonym" else "known"), meaning
    if is_start:
        return None, f"No name is exactly {query!r}; the taxa listed have a name in which a word starts with it."
    return (
        "not_in_model",
        f"This model cannot name {query!r}: none of its {len(names.taxonomy.taxa):,} taxa has that name.",
    )


def _meaning(known: KnownName, taxa: Sequence[str]) -> str:
    name = known.match.name
    kind = known.kind
    if kind == "accepted":
        return f"This model can name {name}."
    if kind in {"genus", "family"}:
        return f"{name} is a {kind}, of which this model can name {some_of(taxa, _NUM_NAMED)}."
    what = "synonym" if kind == "synonym" else "common name"
    return f"{name} is a {what} of {some_of(taxa, _NUM_NAMED)}, which this model can name."


# ---- The choice of taxa in a request: names, and named lists of names that the operator keeps in a folder


def read_taxa_lists(folder: Path | None) -> TaxaLists:
    """Reads the lists of a folder: files NAME.txt with one name per line, where # starts a comment, and tables.

    A table has a column of names; species with fewer than 5 records in a table of GBIF are left out. So are hidden
    files.

    Raises:
        InputError: The folder or a file cannot be read, a list is empty, or two have the same name.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise InputError(
            "the folder of --taxa-lists does not exist", value=folder, limit=_LIST_FORM, remedy="correct the path"
        )
    lists: dict[str, dict[str, int]] = {}
    for path in sorted(folder.glob("[!.]*")):  # editors hide files
        if path.suffix in {_TEXT, ".csv", ".tsv"}:
            if path.stem in lists:
                raise InputError("two lists have the same name", value=path, remedy="rename or remove one")
            lists[path.stem] = _read_list(path)
    return lists


def _read_list(path: Path) -> dict[str, int]:
    lines = enumerate(text_lines(path, "\n"), start=1) if path.suffix == _TEXT else _names_in_table(path)
    names = {name: number for number, line in lines if (name := html.unescape(line).partition(_COMMENT)[0].strip())}
    if not names:
        raise InputError(f"the list {path} has no names", limit=_LIST_FORM, remedy="add names or remove the file")
    return names


def _names_in_table(path: Path) -> Iterator[tuple[int, str]]:
    for number, row in TextTable(path, ["taxon"], _COLUMNS).rows():
        if row["records"] not in _TOO_FEW:
            yield number, row["taxon"]


class TaxaSelector:
    """Understands the parameter `taxa`; the lists that requests can name are looked up once, here."""

    def __init__(self, names: TaxonNames, lists: TaxaLists) -> None:
        self._names = names
        taxonomy = names.taxonomy
        self._has_output_T = np.bincount(taxonomy.taxon_of_output, minlength=len(taxonomy.taxa)) > 0
        self._lines = lists
        self.lists = {name: names.choose(content) for name, content in lists.items()}

    def select(self, values: Sequence[str]) -> tuple[Flags | None, list[str]]:
        """Chooses the taxa that any of the values means; no values mean that all taxa are allowed.

        Values are names of species, genera and families, synonyms, common names, and `list:NAME`.

        Returns:
            Whether each taxon can be the answer, None for all, and a sentence for each place of names that are unknown.

        Raises:
            BadParameter: A list does not exist, or the model knows none of the names.
        """
        if not values:
            return None, []
        lists = [value.removeprefix(LIST_PREFIX) for value in values if value.startswith(LIST_PREFIX)]
        by_name = self._names.choose(value for value in values if not value.startswith(LIST_PREFIX))
        by_list = {name: self._find(name) for name in dict.fromkeys(lists)}
        allowed_T = np.any([by_name.chosen_T, *(choice.chosen_T for choice in by_list.values())], axis=0)
        allowed_T &= self._has_output_T  # without any output no probability would be left to share
        if not allowed_T.any():
            raise BadParameter(
                "the model knows none of the names in the parameter `taxa`",
                value=_quoted(values),
                limit="names of genera, families and species, synonyms, common names, or list:NAME",
                remedy="look for names that the model knows with /species?q=",
            )
        sentences = _to_tell("the parameter `taxa`", by_name, {})
        for name, choice in by_list.items():
            sentences += _to_tell(f"the list {name!r}", choice, self._lines[name])
        return allowed_T, sentences

    def _find(self, name: str) -> TaxaChoice:
        found = self.lists.get(name)
        if found is None:
            raise BadParameter.of(
                "taxa",
                name,
                "names a list that does not exist",
                limit=", ".join(self.lists) or "no list, since this service has none",
                remedy="choose another list, or send names",
            )
        return found


def _to_tell(where: str, choice: TaxaChoice, lines: Mapping[str, int]) -> list[str]:
    """Returns what was not understood, or as less than it says, with its lines if these are known."""
    told = []
    if choice.unknown:
        told.append(f"Not known to this model and ignored, in {where}: {_quoted(choice.unknown, lines)}.")
    if choice.below:
        as_known = [f"{_quoted([name], lines)} as {known}" for name, known in choice.below.items()]
        told.append(f"Below what this model knows, and so taken wider, in {where}: {some_of(as_known, _NUM_NAMED)}.")
    return told


def _quoted(names: Sequence[str], lines: Mapping[str, int] | None = None) -> str:
    at = {name: f" (line {number})" for name, number in (lines or {}).items()}
    return some_of([f"{name[:_NAME_LENGTH]!r}{at.get(name, '')}" for name in names], _NUM_NAMED)
