"""The command that writes a drawn flora in the layouts of public data sets."""

import os
from collections import Counter
from pathlib import Path

import msgspec
import tyro
from rich.console import Console

from training.herbarium.flora import FULL_WIDTH, NARROW, FloraSize
from training.herbarium.layouts import WrittenLayouts, write_layouts


class Herbarium(msgspec.Struct, frozen=True, kw_only=True):
    """Drawn plants in the layouts of iNaturalist 2021, Pl@ntNet-300K and a folder of house plants, to rehearse with."""

    out: tyro.conf.Positional[Path]
    """Folder to write to, empty or new."""
    full_width: bool = False
    """As many classes as the published data sets have; otherwise a dozen or so in each."""
    num_inaturalist: int | None = None
    """Plant species in iNaturalist's list; default 12, at full width 4,271."""
    num_plantnet: int | None = None
    """Ids in Pl@ntNet's list, some of which repeat a name; default 12, at full width 1,081."""
    num_house: int | None = None
    """House plants; default 6, at full width 47."""
    num_shared: int | None = None
    """Species in both iNaturalist's and Pl@ntNet's list; default 4, at full width 275."""
    num_outside: int | None = None
    """Species in none of the lists, in a folder of their own; default 3, at full width 40."""
    pictures_per_class: int = 8
    """Pictures a class, at least 4; in Pl@ntNet's long tail on average."""
    size_px: int = 64
    """Shorter side of the pictures, at least 16."""
    seed: int = 0
    """Another seed is another flora."""
    workers: int = os.cpu_count() or 1
    """Processes that draw."""
    faults: bool = False
    """Plant broken files, copies, and pictures that leak from test to training."""
    pictures: bool = True
    """Draw the pictures; if not, only the lists are written, and empty files where a data set has no list."""


def write_herbarium(command: Herbarium) -> WrittenLayouts:
    """Writes the data sets and the collection that names them, and says what to do next.

    Raises:
        InputError: The folder is not empty, or a number cannot be used.
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
    """The sizes that the command asks for: those it names, the others as narrow or as wide as it says."""
    chosen = FULL_WIDTH if command.full_width else NARROW
    named = {field: getattr(command, field, None) for field in FloraSize.__struct_fields__}
    return msgspec.structs.replace(chosen, **{field: number for field, number in named.items() if number is not None})


def _print_summary(written: WrittenLayouts) -> None:
    lines = [f"{written.size.num_outputs} classes of {written.size.num_taxa} taxa; pictures:"]
    lines += [f"  {source}: {number}" for source, number in written.num_pictures.items()]
    kinds = Counter(planted.kind for planted in written.planted)
    lines += [f"  a preparation should notice ({kind}): {number}" for kind, number in kinds.items()]
    follow_up = f"python training/prepare.py sources {written.collection} --root {written.root} --out DATA"
    lines.append(f"Written: {written.collection}. Next: {follow_up}")
    Console(soft_wrap=True, highlight=False, markup=False).print("\n".join(lines))
