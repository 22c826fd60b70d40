"""The names of a flora as a Darwin Core Taxon file, the format of the GBIF backbone and WCVP."""

import csv
import io
from typing import Final

from training.herbarium.flora import Flora
from training.herbarium.names import species_name
from training.herbarium.spelling import author_of, binomial

TAXON_FILE: Final = "taxon.tsv"
_COLUMNS: Final = (
    "taxonID",
    "scientificName",
    "scientificNameAuthorship",
    "taxonomicStatus",
    "acceptedNameUsageID",
    "taxonRank",
    "kingdom",
    "family",
    "genus",
    "canonicalName",
)
_FIRST_SYNONYM: Final = 1_000_000
_FIRST_GENUS: Final = 2_000_000


def taxon_file(flora: Flora) -> bytes:
    """Returns all listed species and genera with their family, and the synonyms; tab-separated UTF-8 with a header."""
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
    table.writerow(_COLUMNS)
    table.writerows([*_species(flora), *_synonyms(flora), *_genera(flora)])
    return text.getvalue().encode()


def _species(flora: Flora) -> list[tuple[str, ...]]:
    return [
        _row(str(species), binomial(species, flora.seed), author_of(species, flora.seed), species, flora)
        for species in flora.species
    ]


def _synonyms(flora: Flora) -> list[tuple[str, ...]]:
    return [
        _row(str(_FIRST_SYNONYM + place), other.name, other.author, other.species, flora, accepted=str(other.species))
        for place, other in enumerate(flora.synonyms)
    ]


def _genera(flora: Flora) -> list[tuple[str, ...]]:
    members = {species_name(species, flora.seed).genus: species for species in flora.species}
    return [
        _row(str(_FIRST_GENUS + place), genus, "L.", species, flora, rank="genus")
        for place, (genus, species) in enumerate(members.items())
    ]


def _row(
    taxon_id: str, name: str, author: str, species: int, flora: Flora, *, accepted: str = "", rank: str = "species"
) -> tuple[str, ...]:
    """Returns one line; a synonym has the family of its species, and the genus of its own name."""
    family, genus = species_name(species, flora.seed).family, name.partition(" ")[0]
    status = "synonym" if accepted else "accepted"
    return taxon_id, f"{name} {author}", author, status, accepted, rank, "Plantae", family, genus, name
