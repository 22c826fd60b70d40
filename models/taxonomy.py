"""Taxa, their names and ranks, and the taxon of each network output.

Several outputs may belong to one taxon (the same plant in two data sets); their probabilities are summed. An output is
identified by its key, a taxon by its taxon id, never by an index.
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
    """A plant with its botanical names.

    A taxon of rank "genus" stands for pictures that are identified only to their genus ("Crocus spp."). Its probability
    counts for the genus, and an answer never names it as a species. A class that is known by its common name alone
    ("Maize") is a species without a genus: an answer may name it, and it counts for no genus.

    Raises:
        DataError: A taxon of rank genus has no genus.
    """

    taxon_id: NonEmpty
    """Stable identifier, which stays the same after retraining and when names are corrected."""
    rank: Rank
    """Taxonomic rank of the accepted name."""
    scientific_name: NonEmpty
    """Accepted name without the author."""
    genus: str
    """Genus of the accepted name; empty for a class that is known by its common name alone."""
    family: str = ""
    """Botanical family, empty if unknown."""
    author: str = ""
    """Author of the name, as cited after it."""
    synonyms: tuple[str, ...] = ()
    """Other scientific names of the same taxon."""
    common_names: tuple[str, ...] = ()
    """Common names, the best known first."""
    gbif_id: int | None = None
    """Key in the GBIF backbone taxonomy, if known."""

    def __post_init__(self) -> None:
        if self.rank == "genus" and not self.genus:
            raise DataError(f"taxon {self.taxon_id!r} of rank genus has no genus", remedy="add its genus")


class Output(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One output of the network, in the order of the logits."""

    key: NonEmpty
    """Unique name of the output: its source, a colon, and the name in that source or the taxon id."""
    source: NonEmpty
    """Data set whose pictures this output was trained on."""
    taxon_id: NonEmpty
    """The taxon of this output."""


class Taxonomy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The taxa that a network can name, and its outputs in order: the content of `taxa.json`.

    Raises:
        DataError: Two taxa have the same id, two outputs have the same key, or the taxon of an output is not listed.
    """

    taxonomy_version: NonEmpty
    """Edition of the names; changes without retraining."""
    taxa: tuple[Taxon, ...]
    """All taxa, in any order."""
    outputs: tuple[Output, ...]
    """All network outputs, in the order of the logits."""

    def __post_init__(self) -> None:
        _require_unique("taxon id", (taxon.taxon_id for taxon in self.taxa))
        _require_unique("output key", (output.key for output in self.outputs))
        known = {taxon.taxon_id for taxon in self.taxa}
        for output in self.outputs:
            if output.taxon_id not in known:
                raise DataError(
                    f"the taxon of output {output.key!r} is not listed",
                    value=output.taxon_id,
                    remedy="add the taxon to `taxa`, or correct the output",
                )

    @property
    def output_keys(self) -> tuple[str, ...]:
        """The keys of the outputs in order; the label hash depends on nothing else."""
        return tuple(output.key for output in self.outputs)

    @cached_property
    def label_hash(self) -> str:
        """SHA-256 of the output keys in order, without names, so that names can be corrected without retraining."""
        return label_hash(self.output_keys)

    @cached_property
    def taxon_of_output(self) -> npt.NDArray[np.intp]:
        """Position in `taxa` of each output's taxon, shape (num_outputs,)."""
        position = {taxon.taxon_id: index for index, taxon in enumerate(self.taxa)}
        return np.array([position[output.taxon_id] for output in self.outputs], dtype=np.intp)

    @cached_property
    def by_id(self) -> dict[str, Taxon]:
        """The taxa by their ids."""
        return {taxon.taxon_id: taxon for taxon in self.taxa}

    @cached_property
    def genera(self) -> "Groups":
        """The taxa grouped by genus; the group "" holds the taxa without one."""
        return Groups.of([taxon.genus for taxon in self.taxa])

    @cached_property
    def families(self) -> "Groups":
        """The taxa grouped by family; the group "" holds the taxa whose family is unknown."""
        return Groups.of([taxon.family for taxon in self.taxa])


class Groups(msgspec.Struct, frozen=True):
    """A partition of the taxa into groups, such as genera."""

    names: tuple[str, ...]
    """Distinct names of the groups, sorted."""
    of_taxon: npt.NDArray[np.intp]
    """Position of each taxon's group in `names`, shape (num_taxa,)."""

    @classmethod
    def of(cls, names: Sequence[str]) -> "Groups":
        """Groups taxa by `names`, which has one name for each taxon, in the order of the taxa."""
        distinct = sorted(set(names))
        position = {name: index for index, name in enumerate(distinct)}
        return cls(tuple(distinct), np.array([position[name] for name in names], dtype=np.intp))


def label_hash(output_keys: Iterable[str]) -> str:
    """Returns the SHA-256, in hex, of the output keys in order, each followed by a line feed."""
    return hashlib.sha256("".join(f"{key}\n" for key in output_keys).encode()).hexdigest()


def taxon_id_from_name(scientific_name: str) -> str:
    """Derives the id of a taxon from its accepted name: "Carex × alba" -> "carex-x-alba"."""
    return re.sub(r"[^a-z0-9]+", "-", fold(scientific_name.replace("×", "x "))).strip("-")


def fold(text: str) -> str:
    """Normalizes text for a search: no accents, no case, single spaces."""
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", text)
        text = "".join(char for char in plain if not unicodedata.combining(char))
    return " ".join(text.casefold().split())


def _require_unique(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise DataError(f"duplicate {what}", value=value, remedy=f"list every {what} once")
        seen.add(value)
