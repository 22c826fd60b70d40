"""Whether a bundle was trained on the pictures that it is compared on."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from models.bundle_record import BundleRecord
from training.comparison.frozen_set import FrozenSet
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split

_USED: Final[tuple[Split, ...]] = ("train", "validation", "calibration")
"""The splits that decide what a bundle answers: its weights, the choice of its checkpoint, its tables."""


class HeldOut(msgspec.Struct, frozen=True):
    """What is known about the pictures that a bundle was trained on."""

    state: Literal["verified", "stated", "unknown", "seen"]
    """verified: its manifest was compared; stated: the bundle records no manifest, so the folders of --trained-on are
    taken as its data; unknown: its data was not given; seen: it was trained, chosen or calibrated on the pictures."""
    explanation: str
    """A sentence."""
    num_seen: int = 0
    """Pictures of the set that it was trained, chosen or calibrated on."""


def held_out(record: BundleRecord, pictures: FrozenSet, trained_on: Sequence[Manifest]) -> HeldOut:
    """Compares the pictures of the set with those that a bundle was trained on, by bytes and by name.

    Copies in another encoding under another name are not found.

    Args:
        record: Names the manifest that the bundle was trained with.
        pictures: The frozen set.
        trained_on: Prepared data that bundles were trained on; that of the set itself needs no mention.
    """
    sha256 = record.manifest_sha256
    known = [each for each in (pictures.manifest, *trained_on) if each.has_sha256(sha256)]
    if sha256 and not known:
        return HeldOut("unknown", f"It was trained with the manifest {sha256[:12]}…, which was not given.")
    if not sha256 and not trained_on:
        return HeldOut("unknown", "It does not record what it was trained on, and no data was given.")
    num_seen = max(_num_seen(pictures, each) for each in (known[:1] or trained_on))
    if num_seen:
        return HeldOut("seen", f"It was trained, chosen or calibrated on {num_seen:,} of the pictures.", num_seen)
    if sha256:
        note = " Its tables were fitted on other data, which it does not record." if record.other_data else ""
        return HeldOut("verified", f"None of the pictures is among those of its manifest {sha256[:12]}….{note}")
    return HeldOut("stated", "None of the pictures is in the data that it is said to be trained on.")


def _num_seen(pictures: FrozenSet, trained: Manifest) -> int:
    """Counts the pictures of the set that are in a split that the bundle's data used."""
    used = trained.table.filter(pc.is_in(trained.table["split"].cast(pa.string()), value_set=pa.array(_USED)))
    found = [
        pc.is_in(pictures.manifest.table[column].take(pictures.rows_N), value_set=used[column])
        for column in ("sha256", "picture_id")
    ]
    return int(pc.sum(pc.or_(*found)).as_py() or 0)
