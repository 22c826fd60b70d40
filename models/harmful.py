"""Plants that harm people who touch or eat them: the table `harmful.csv`, and how likely one must be to be told.

Two readers wrote the table, and what stands in one of the two alone is left out. Then each row was looked up: `source`
names what was read, and what nothing confirmed is left out. Of the 386 rows 281 cite stored copies of three lists, with
the rating of the California Poison Control System, the class of Filmer 2012 or the word of TPPT. 32 harmless foods cite
40 CFR 180.41. 73 rows cite other pages, of which mostly the abstract or the beginning was read; 18 of them name who
tells ("as told by", "copy at"). 37 of the 41 deadly rows cite a page about deaths or a deadly amount, four only the
highest classes of the lists. TPPT's "toxic" counts as mild or severe. A row of a species counts in place of that of its
genus. No verdict leaves out a grave harm while it is likely (`models/ranking.py`).
"""

import csv
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

HarmKind = Literal["touch", "eaten"]
"""What one does to be harmed."""
EFFECTS: Final[dict[HarmKind, str]] = {"touch": "can blister the skin", "eaten": "can kill who eats it"}
"""What a grave harm does, after "which" in a sentence."""
Severity = Literal["none", "mild", "severe", "deadly"]


class Harm(msgspec.Struct, frozen=True):
    """How a genus or a species harms people."""

    taxon: str
    """Its scientific name."""
    kind: HarmKind
    """What one does to be harmed."""
    severity: Severity
    """`severe` needs a doctor; `none` is a harmless species of a harmful genus."""
    parts: str
    """Which parts harm, in words."""
    line: str
    """What to know, as a sentence."""
    source: str
    """What was read about it."""

    @property
    def is_grave(self) -> bool:
        """Whether a verdict must not pass it over."""
        return self.severity == "deadly" or (self.kind == "touch" and self.severity == "severe")


LARGEST_LEFT_OUT: Final = 0.02
"""Summed probability of the taxa of a grave harm up to which a verdict may leave them out: one plant in fifty. It was
chosen and not fitted, for calibration splits have few such plants."""
LIKELY: Final = 0.1
"""That from which people are warned above every name."""


@cache
def _table() -> dict[tuple[str, HarmKind], Harm]:
    with Path(__file__).with_name("harmful.csv").open(encoding="utf-8", newline="") as file:
        rows = [msgspec.convert(row, Harm) for row in csv.DictReader(file)]
    return {(harm.taxon, harm.kind): harm for harm in rows}


def harms_of(scientific_name: str, genus: str) -> list[Harm]:
    """Returns how a taxon harms, as far as it is known: at most one row for each kind."""
    table = _table()
    found = [table.get((scientific_name, kind), table.get((genus, kind))) for kind in get_args(HarmKind)]
    return [harm for harm in found if harm is not None and harm.severity != "none"]
