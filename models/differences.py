"""How plants that are taken for each other are told apart: the table `differences.csv`.

A row of a genus stands for all its species. Each row names where its lines were looked up.
"""

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from models.harmful import Harm, harms_of
from models.taxonomy import Taxon


class Difference(msgspec.Struct, frozen=True):
    """What to look at on two plants."""

    one: str
    """Scientific name, of a genus or a species."""
    other: str
    """Scientific name of what it may be taken for, which the model need not know."""
    line_one: str
    """What the first one shows, as a phrase in English."""
    line_other: str
    """What the other one shows."""
    source: str
    """Where this was looked up."""
    other_harms: list[Harm] = []
    """How the other one harms people."""


@cache
def _by_name() -> dict[str, list[Difference]]:
    found: dict[str, list[Difference]] = {}
    with Path(__file__).with_name("differences.csv").open(encoding="utf-8", newline="") as file:
        for row in msgspec.convert(list(csv.DictReader(file)), list[Difference]):
            turned = Difference(row.other, row.one, row.line_other, row.line_one, row.source)
            for each in (row, turned):
                found.setdefault(each.one, []).append(each)
    return found


def differences(taxa: Sequence[Taxon]) -> list[Difference]:
    """Returns how taxa of an answer are told from each other, and the first from any plant that harms gravely.

    The names are those of the taxa. Of two taxa the earlier one stands first, and a row of species counts before that
    of their genera.
    """
    found: dict[tuple[str, str], Difference] = {}
    for at, taxon in enumerate(taxa):
        for name in (taxon.scientific_name, taxon.genus):
            for row in _by_name().get(name, []):
                harms = harms_of(row.other, row.other.split()[0])
                names = [
                    each.scientific_name for each in taxa[at + 1 :] if row.other in {each.scientific_name, each.genus}
                ]
                if at == 0 and not names and any(harm.is_grave for harm in harms):
                    names = [row.other]
                for other in names:
                    own = replace(row, one=taxon.scientific_name, other=other, other_harms=harms)
                    found.setdefault((own.one, other), own)
    return list(found.values())
