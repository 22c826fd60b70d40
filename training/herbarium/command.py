"""The command that writes drawn plants in the layouts of public data sets."""

import os
from collections import Counter
from pathlib import Path

import msgspec
import tyro
from rich.console import Console

from training.herbarium.flora import FULL_WIDTH, NARROW, FloraSize
from training.herbarium.layouts import WrittenLayouts, write_layouts


class Herbarium(msgspec.Struct, frozen=True, kw_only=True):
    """Drawn plants in the layouts of iNaturalist 2021, Pl@ntNet-300K and a folder of house plants, for rehearsals."""

    out: tyro.conf.Positional[Path]
    """Empty or new folder to write to."""
    full_width: bool = False
    """Write as many classes as the published data sets have, instead of about a dozen each."""
    num_inaturalist: int | None = None
    """Plant species in iNaturalist's list; default 12, at full width 4,271."""
    num_plantnet: int | None = None
    """Ids in Pl@ntNet's list, some of them with repeated names; default 12, at full width 1,081."""
    num_house: int | None = None
    """House plants; default 6, at full width 47."""
    num_shared: int | None = None
    """Species in both iNaturalist's and Pl@ntNet's list; default 4, at full width 275."""
    num_outside: int | None = None
    """Species in none of the data sets, in a separate folder; default 3, at full width 40."""
    pictures_per_class: int = 8
    """Pictures per class, at least 4; the average for Pl@ntNet."""
    size_px: int = 64
    """Shorter side of the pictures, at least 16."""
    seed: int = 0
    """Seed of the species and their pictures."""
    workers: int = os.cpu_count() or 1
    """Processes that draw."""
    faults: bool = False
    """Add broken files, copies, and pictures that leak from test to training."""
    pictures: bool = True
    """Draw the pictures. Otherwise write the lists, and empty files for data sets without a list."""


def write_herbarium(command: Herbarium) -> WrittenLayouts:
    """Writes the data sets and their collection, and prints the next command.

    Raises:
        InputError: The folder is not empty, or a number is out of range.
    """
    written = write_layouts(
        command.out,
        flora_size(command),
        pictures_per_class=command.pictures_per_class,
        seed=command.seed,
        size_px=command.size_px,
        workers=command.workers,
        pictures=command.pictures,
        faults=command.faults,
    )
    _print_summary(written)
    return written


def flora_size(command: Herbarium) -> FloraSize:
    """Returns the sizes that the command sets, and defaults for the others."""
    chosen = FULL_WIDTH if command.full_width else NARROW
    named = {field: getattr(command, field, None) for field in FloraSize.__struct_fields__}
    return msgspec.structs.replace(chosen, **{field: number for field, number in named.items() if number is not None})


def _print_summary(written: WrittenLayouts) -> None:
    lines = [f"{written.size.num_outputs} classes of {written.size.num_taxa} taxa; pictures:"]
    lines += [f"  {source}: {number}" for source, number in written.num_pictures.items()]
    kinds = Counter(fault.kind for fault in written.faults)
    lines += [f"  faults that a preparation should report ({kind}): {number}" for kind, number in kinds.items()]
    follow_up = f"python training/prepare.py sources {written.collection} --root {written.root} --out DATA"
    lines.append(f"Written: {written.collection}. Next: {follow_up}")
    Console(soft_wrap=True, highlight=False, markup=False).print("\n".join(lines))
