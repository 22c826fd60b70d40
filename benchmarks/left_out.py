"""Program: leaves taxa out of prepared data, to measure what a network says of plants that it cannot know.

python benchmarks/left_out.py --data DATA --out SMALLER --taxa 25          taxa drawn at random
python benchmarks/left_out.py --data DATA --out SMALLER --source SOURCE    every taxon that only one data set has

Train and export with SMALLER. Then `training/evaluate.py --unknown SMALLER/left_out.csv` judges the bundle with the
photographs that were left out.
"""

import csv
import io
import sys
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import tyro

from models.errors import DataError
from training.dataset.manifest import SCHEMA, Manifest, write_manifest
from training.program import run_program

LIST: Final = "left_out.csv"


class LeaveOut(msgspec.Struct, frozen=True, kw_only=True):
    """Leaves taxa out of prepared data."""

    data: Path
    """Folder written by training/prepare.py; not packed."""
    out: Path
    """Folder for the smaller data and the list of the photographs that were left out."""
    taxa: int = 0
    """Number of taxa to draw."""
    source: str = ""
    """Data set whose own taxa are left out, in place of drawn ones."""
    seed: int = 0
    """Seed of the draw."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: leave_out(tyro.cli(LeaveOut, description=__doc__)))


def leave_out(command: LeaveOut) -> None:
    """Writes the data without the taxa, and the list of their photographs.

    Raises:
        DataError: No taxon, or every taxon, would be left out.
    """
    manifest = Manifest(command.data)
    taxon_N = manifest.taxonomy.taxon_of_output[manifest.labels]
    gone = _taxa(command, manifest, taxon_N)
    if not 0 < len(gone) < len(manifest.taxonomy.taxa):
        raise DataError(
            "no taxa to leave out, or all",
            value=f"{len(gone)} of {len(manifest.taxonomy.taxa)}",
            limit="some of them",
            remedy="give --taxa, or --source with a data set that has taxa of its own",
        )
    gone_N = np.isin(taxon_N, list(gone))
    kept_ids = {taxon.taxon_id for index, taxon in enumerate(manifest.taxonomy.taxa) if index not in gone}
    taxonomy = msgspec.structs.replace(
        manifest.taxonomy,
        taxa=tuple(taxon for taxon in manifest.taxonomy.taxa if taxon.taxon_id in kept_ids),
        outputs=tuple(output for output in manifest.taxonomy.outputs if output.taxon_id in kept_ids),
    )
    listed = io.StringIO()
    rows = csv.writer(listed)
    rows.writerow(("path", "scientific_name", "split"))
    for row in np.flatnonzero(gone_N).tolist():
        rows.writerow((manifest.path(row), manifest.taxonomy.taxa[taxon_N[row]].scientific_name, "test"))
    kept = manifest.table.take(np.flatnonzero(~gone_N))
    columns = {name: kept[name].to_pylist() for name in SCHEMA.names}
    further = {LIST: listed.getvalue().encode()}
    command.out.mkdir(parents=True, exist_ok=True)
    write_manifest(command.out, columns, taxonomy, manifest.sources, further_files=further)
    print(f"Left out: {len(gone)} taxa with {gone_N.sum():,} photographs, listed in {command.out / LIST}.")


def _taxa(command: LeaveOut, manifest: Manifest, taxon_N: np.ndarray) -> set[int]:
    """Returns the positions of the taxa to leave out."""
    if not command.source:
        drawn = np.random.default_rng(command.seed).permutation(len(manifest.taxonomy.taxa))[: command.taxa]
        return set(drawn.tolist())
    of_source_N = np.array(manifest.table["source"].to_pylist()) == command.source
    return set(taxon_N[of_source_N].tolist()) - set(taxon_N[~of_source_N].tolist())


if __name__ == "__main__":
    main()
