"""From the names that sources give to the ordered outputs of a network and the taxa they mean."""

import re
from collections.abc import Iterable

from models.errors import DataError
from models.taxonomy import Output, Taxon, Taxonomy, taxon_id_from_name
from training.sources.record import PictureRecord

_GENUS_LEVEL = re.compile(r"\s+(sp|spp)\.?$", re.IGNORECASE)
TAXONOMY_VERSION = "names as given by the sources"


def output_key(source: str, record: PictureRecord) -> str:
    """The key of the output that a picture teaches: source, colon, taxon id.

    Raises:
        DataError: The name has no Latin letter or digit, and with it no taxon id.
    """
    return f"{source}:{_taxon_id(_name(record))}"


def build_taxonomy(source: str, records: Iterable[PictureRecord]) -> Taxonomy:
    """Builds the outputs, sorted by key, and their taxa from the records of one source.

    A name of one word, or one that ends in "sp." or "spp.", is a taxon of rank genus. Ranks and common names come from
    the first record of a class that has them.
    """
    taxa: dict[str, Taxon] = {}
    outputs: dict[str, Output] = {}
    for record in records:
        taxon = _taxon(record)
        known = taxa.get(taxon.taxon_id)
        if known is None or (not known.family and taxon.family):
            taxa[taxon.taxon_id] = taxon
        key = output_key(source, record)
        outputs[key] = Output(key=key, source=source, taxon_id=taxon.taxon_id)
    return Taxonomy(
        taxonomy_version=TAXONOMY_VERSION,
        taxa=tuple(taxa[taxon_id] for taxon_id in sorted(taxa)),
        outputs=tuple(outputs[key] for key in sorted(outputs)),
    )


def _taxon(record: PictureRecord) -> Taxon:
    name = _name(record)
    return Taxon(
        taxon_id=_taxon_id(name),
        rank="species" if " " in name else "genus",
        scientific_name=name,
        genus=record.genus or name.split()[0],
        family=record.family,
        common_names=(record.common_name,) if record.common_name else (),
    )


def _taxon_id(name: str) -> str:
    taxon_id = taxon_id_from_name(name)
    if not taxon_id:
        raise DataError(
            "a class has no name in Latin letters, and would be one with every other such class",
            value=name,
            limit="a scientific name",
            remedy="name its folder Common (Scientific)",
        )
    return taxon_id


def _name(record: PictureRecord) -> str:
    return _GENUS_LEVEL.sub("", " ".join(record.original_name.split()))
