"""Taxa, their names and ranks, and which network output means which taxon.

Several outputs may be one taxon (the same plant in two data sets), so output -> taxon is many to one and probabilities
are summed, never compared. An output is known by its *key*, a taxon by its *taxon id*; neither is ever an index.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from models.errors import DataError

Rank = Literal["species", "genus"]
NonEmpty = Annotated[str, msgspec.Meta(min_length=1)]


class Taxon(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One plant as botany names it.

    A taxon of rank "genus" stands for pictures that were only named to their genus ("Crocus spp."): it counts for its
    genus and is never called a species.
    """

    taxon_id: NonEmpty
    """Stable identifier, never an index: survives retraining and corrected names."""
    rank: Rank
    """Taxonomic rank of the accepted name."""
    scientific_name: NonEmpty
    """Accepted name without its author."""
    genus: NonEmpty
    """Genus of the accepted name."""
    family: str = ""
    """Botanical family, empty where unknown."""
    author: str = ""
    """Author of the name, as cited after it."""
    synonyms: tuple[str, ...] = ()
    """Other scientific names of the same taxon."""
    common_names: tuple[str, ...] = ()
    """Names in everyday language, the best known first."""
    gbif_id: int | None = None
    """Key in the GBIF backbone taxonomy, where known."""


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output of the network, in the order of the logits."""

    key: NonEmpty
    """Unique name of the output: source, colon, the name that its pictures carry there (or the taxon id)."""
    source: NonEmpty
    """Data set whose pictures taught this output."""
    taxon_id: NonEmpty
    """The taxon that this output means."""


class Taxonomy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The taxa that a network can name and the order of its outputs (the file `taxa.json`).

    Raises:
        DataError: Two taxa or two outputs share a name, or an output means a taxon that is not listed.
    """

    taxonomy_version: NonEmpty
    """Which edition of the names this is; changes without retraining."""
    taxa: tuple[Taxon, ...]
    """Every taxon once, in any order."""
    outputs: tuple[Output, ...]
    """Every network output, in the order of the logits."""

    def __post_init__(self) -> None:
        _require_unique("taxon id", (taxon.taxon_id for taxon in self.taxa))
        _require_unique("output key", (output.key for output in self.outputs))
        known = {taxon.taxon_id for taxon in self.taxa}
        for output in self.outputs:
            if output.taxon_id not in known:
                raise DataError(
                    f"output {output.key!r} means a taxon that is not listed",
                    value=output.taxon_id,
                    remedy="add the taxon to `taxa` or correct the output",
                )

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The ordered keys of the outputs; with nothing else they decide the label hash."""
        return tuple(output.key for output in self.outputs)

    @cached_property
    def label_hash(self) -> str:
        """SHA-256 over the ordered output keys only, so that names can be corrected without retraining."""
        return label_hash(self.output_keys)

    @cached_property
    def taxon_of_output(self) -> npt.NDArray[np.intp]:
        """For each output the position of its taxon in `taxa`; shape (num_outputs,)."""
        position = {taxon.taxon_id: index for index, taxon in enumerate(self.taxa)}
        return np.array([position[output.taxon_id] for output in self.outputs], dtype=np.intp)

    @cached_property
    def genera(self) -> "Groups":
        """The genera, and the genus of each taxon."""
        return Groups.of([taxon.genus for taxon in self.taxa])

    @cached_property
    def families(self) -> "Groups":
        """The families, and the family of each taxon; taxa of unknown family share the name ""."""
        return Groups.of([taxon.family for taxon in self.taxa])

    def search(self, query: str, limit: int = 20) -> list[Taxon]:
        """Finds taxa whose scientific name, synonym, common name or family has a word that starts with the query.

        Args:
            query: What a person typed; case, accents and surrounding space do not matter. Empty finds every taxon.
            limit: Most taxa to return.

        Returns:
            Taxa sorted by scientific name.
        """
        wanted = fold(query)
        return [taxon for taxon, words in self._searchable if f" {wanted}" in words][:limit]

    @cached_property
    def _searchable(self) -> list[tuple[Taxon, str]]:
        """The taxa by scientific name, each with all its folded names, a space in front of every word.

        Folding 5,337 taxa takes 50 ms, so it is done once.
        """
        ordered = sorted(self.taxa, key=lambda taxon: taxon.scientific_name)
        return [(taxon, "".join(f" {fold(name)}\n" for name in _names(taxon))) for taxon in ordered]


class Groups(msgspec.Struct, frozen=True):
    """A partition of the taxa: the group names in order, and for each taxon the position of its group."""

    names: tuple[str, ...]
    """Distinct names, sorted."""
    of_taxon: npt.NDArray[np.intp]
    """Shape (num_taxa,), values in [0, len(names))."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "Groups":
        """Groups taxa by one name each, given in the order of the taxa."""
        distinct = sorted(set(names))
        position = {name: index for index, name in enumerate(distinct)}
        return cls(tuple(distinct), np.array([position[name] for name in names], dtype=np.intp))


def label_hash(output_keys: Iterable[str]) -> str:
    """SHA-256, in hex, of the ordered output keys; a line feed ends each key."""
    return hashlib.sha256("".join(f"{key}\n" for key in output_keys).encode()).hexdigest()


def taxon_id_from_name(scientific_name: str) -> str:
    """Derives the stable id of a taxon from its accepted name: "Carex × alba" -> "carex-x-alba"."""
    return re.sub(r"[^a-z0-9]+", "-", fold(scientific_name.replace("×", "x "))).strip("-")


def fold(text: str) -> str:
    """Reduces text to what a search compares: no accents, no case, single spaces."""
    plain = unicodedata.normalize("NFKD", text)
    return " ".join("".join(char for char in plain if not unicodedata.combining(char)).casefold().split())


def _names(taxon: Taxon) -> Iterable[str]:
    return (taxon.scientific_name, *taxon.synonyms, *taxon.common_names, taxon.family)


def _require_unique(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise DataError(f"the same {what} stands twice", value=value, remedy=f"give every {what} once")
        seen.add(value)
