"""Two bundles on one frozen set of pictures -> what is lost in accuracy, and why the new one may not be promoted.

The frozen set holds the pictures of a split whose taxa both bundles know. Every picture runs alone, as in the service.

Letters in names: N pictures, P plants.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision
from models.errors import DataError
from models.metrics import Whole, effective_number, top_k_hits
from models.ranking import Floats, output_probabilities, taxon_probabilities
from models.taxonomy import Taxonomy
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.evaluation.pictures import Pictures, run_side_by_side
from training.evaluation.predictions import Flags, plants_of
from training.evaluation.split_metrics import tango_interval

MOST_LOSS: Final = 0.005
"""A loss of half a point of top-1 is not accepted, and has to be ruled out with 97.5 % confidence."""
_USED: Final[tuple[Split, ...]] = ("train", "validation", "calibration")
"""The splits that decide what a bundle answers: its weights, the choice of its checkpoint, its tables."""


class PairedShare(msgspec.Struct, frozen=True):
    """A share of hits of the old and the new bundle on the same pictures."""

    old: float
    """Share of the old bundle, in [0, 1]."""
    new: float
    loss: float
    """Old minus new: above 0 if the new bundle is worse."""
    loss_interval_95: tuple[float, float]
    num_pictures: int
    num_plants: int
    """Pictures of one plant, and near copies, count as one plant."""

    @property
    def reaches_limit(self) -> bool:
        """Whether the upper end of the interval of the loss is 0.5 points or more."""
        return self.loss_interval_95[1] >= MOST_LOSS


class HeldOut(msgspec.Struct, frozen=True):
    """What is known about the pictures that a bundle was trained on."""

    state: Literal["verified", "stated", "unknown", "seen"]
    """verified: its manifest was compared; stated: the bundle records no manifest, so the folders of --trained-on are
    taken as its data; unknown: its data was not given; seen: it was trained, chosen or calibrated on the pictures."""
    explanation: str
    """A sentence."""
    num_seen: int = 0
    """Pictures of the set that it was trained, chosen or calibrated on."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two bundles on one set of pictures: the content of the JSON file of a comparison."""

    format: int = 2
    """Version of the file."""
    created: str
    """UTC, ISO 8601."""
    old: str
    """Name and version of the bundle to compare with."""
    new: str
    precision: str
    """The networks that were measured."""
    data: str
    """Data and split, in words."""
    manifest_sha256: str
    old_held_out: HeldOut
    new_held_out: HeldOut
    num_taxa: int
    """Taxa that the pictures show."""
    num_left_out: int
    """Pictures of taxa that at least one bundle does not know."""
    micro_top1: PairedShare
    """How often the most likely taxon is the right one, over the pictures."""
    macro_top1: PairedShare
    """Mean of the taxa's shares."""
    added_taxa: tuple[str, ...]
    """Names of the taxa that only the new bundle knows, by taxon id."""
    removed_taxa: tuple[str, ...]
    """Names of the taxa that only the old bundle knows."""
    refusals: tuple[str, ...]
    """Why the new bundle is not promoted, as sentences; empty if nothing speaks against it."""
    may_be_accepted: bool
    """Whether a person may promote it all the same: no loss is proved, and neither bundle saw the pictures."""


def compare(
    old: Bundle,
    new: Bundle,
    manifest: Manifest,
    split: Split = "test",
    *,
    trained_on: Sequence[Manifest] = (),
    precision: Precision = "fp32",
    workers: int = 0,
) -> Comparison:
    """Compares two bundles on a split, and decides whether the new one may take the place of the old one.

    `trained_on` is further data that the bundles were trained on.

    Raises:
        BundleError: A bundle has no network of the precision.
        DataError: The bundles and the data share no taxon.
    """
    rows_N, ids_N = frozen_set(manifest, split, old.taxonomy, new.taxonomy)
    name = f"{manifest.folder.name}, {split} split"
    old_hits_N, new_hits_N = (
        _hits(bundle, precision, Pictures(manifest, rows_N, bundle.record.input, name, workers), ids_N)
        for bundle in (old, new)
    )
    plants_N = plants_of(manifest, rows_N)
    micro = micro_share(old_hits_N, new_hits_N, plants_N)
    macro = macro_share(old_hits_N, new_hits_N, plants_N, np.unique(ids_N, return_inverse=True)[1])
    before, after = (held_out(bundle.record, manifest, rows_N, trained_on) for bundle in (old, new))
    has_proved_loss = any(share.loss_interval_95[0] > 0 for share in (micro, macro))
    return Comparison(
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        old=f"{old.record.name} {old.record.version}",
        new=f"{new.record.name} {new.record.version}",
        precision=precision,
        data=name,
        manifest_sha256=manifest.sha256,
        old_held_out=before,
        new_held_out=after,
        num_taxa=len(np.unique(ids_N)),
        num_left_out=len(manifest.rows_of(split)) - len(rows_N),
        micro_top1=micro,
        macro_top1=macro,
        added_taxa=_only_in(new.taxonomy, old.taxonomy),
        removed_taxa=_only_in(old.taxonomy, new.taxonomy),
        refusals=_refusals(before, after, micro, macro),
        may_be_accepted=not has_proved_loss and "seen" not in {before.state, after.state},
    )


def frozen_set(manifest: Manifest, split: Split, old: Taxonomy, new: Taxonomy) -> tuple[Whole, npt.NDArray[np.str_]]:
    """Returns the rows of the pictures whose taxa both bundles know, and the taxon id of each.

    Raises:
        DataError: The split is empty, or the bundles and the data share no taxon.
    """
    rows, taxonomy = manifest.rows_of(split), manifest.taxonomy
    ids = np.array([taxonomy.outputs[label].taxon_id for label in manifest.labels[rows]])
    shared = old.by_id.keys() & new.by_id.keys()
    known_N = np.isin(ids, list(shared))
    if not known_N.any():
        raise DataError(
            "no picture shows a taxon that both bundles know",
            value=f"{len(rows)} {split} pictures of {manifest.folder}",
            limit=f"pictures of the {len(shared)} taxa that both know",
            remedy="give other data",
        )
    return rows[known_N], ids[known_N]


def held_out(record: BundleRecord, manifest: Manifest, rows_N: Whole, trained_on: Sequence[Manifest]) -> HeldOut:
    """Compares the pictures of the set with those that a bundle was trained on, by bytes and by name.

    Copies in another encoding under another name are not found. `trained_on` is prepared data that bundles were trained
    on; that of the set itself needs no mention.
    """
    sha256 = record.manifest_sha256
    known = [each for each in (manifest, *trained_on) if each.has_sha256(sha256)]
    if sha256 and not known:
        return HeldOut("unknown", f"It was trained with the manifest {sha256[:12]}…, which was not given.")
    if not sha256 and not trained_on:
        return HeldOut("unknown", "It does not record what it was trained on, and no data was given.")
    num_seen = 0  # pictures of the set in a split that the bundle's data used
    for each in known[:1] or trained_on:
        used = each.table.filter(pc.is_in(each.table["split"].cast(pa.string()), value_set=pa.array(_USED)))
        same = (pc.is_in(manifest.table[name].take(rows_N), value_set=used[name]) for name in ("sha256", "picture_id"))
        num_seen = max(num_seen, int(pc.sum(pc.or_(*same)).as_py() or 0))
    if num_seen:
        return HeldOut("seen", f"It was trained, chosen or calibrated on {num_seen:,} of the pictures.", num_seen)
    if sha256:
        note = " Its tables were fitted on other data, which it does not record." if record.other_data else ""
        return HeldOut("verified", f"None of the pictures is among those of its manifest {sha256[:12]}….{note}")
    return HeldOut("stated", "None of the pictures is in the data that it is said to be trained on.")


def micro_share(old_hits_N: Flags, new_hits_N: Flags, plants_N: Whole) -> PairedShare:
    """Compares the shares of hits among all pictures, at least one; `plants_N` numbers the plant of each picture."""
    return _weighted_share(old_hits_N, new_hits_N, plants_N, np.full(len(plants_N), 1 / len(plants_N)))


def macro_share(old_hits_N: Flags, new_hits_N: Flags, plants_N: Whole, taxa_N: Whole) -> PairedShare:
    """Compares the means over the taxa of each taxon's share of hits; `taxa_N` numbers the taxon of each picture."""
    _, index_N, counts = np.unique(taxa_N, return_inverse=True, return_counts=True)
    return _weighted_share(old_hits_N, new_hits_N, plants_N, 1 / (len(counts) * counts[index_N]))


def _hits(bundle: Bundle, precision: Precision, pictures: Pictures, ids_N: npt.NDArray[np.str_]) -> Flags:
    """Returns whether the most likely taxon of each picture is the right one; ties and NaN count as misses."""
    session, temperature = bundle.open_session(precision, num_threads=1), bundle.network(precision).temperature
    position = {taxon.taxon_id: index for index, taxon in enumerate(bundle.taxonomy.taxa)}
    right_N = np.array([position[taxon_id] for taxon_id in ids_N])
    hits: list[Flags] = []
    for output in run_side_by_side(session, pictures.pixels()):
        taxa_BT = taxon_probabilities(output_probabilities(output.logits, temperature), bundle.taxonomy)
        hits.append(top_k_hits(taxa_BT, right_N[: len(taxa_BT)], 1))
        right_N = right_N[len(taxa_BT) :]
    return np.concatenate(hits)


def _weighted_share(old_hits_N: Flags, new_hits_N: Flags, plants_N: Whole, weights_N: Floats) -> PairedShare:
    """Computes the interval of Tango (1998) with an effective number of plants in place of the number of pictures.

    For single pictures of equal weight it is Tango's interval. For macro top-1 it was chosen by simulation (17 to 1,000
    taxa with 1 to 60 pictures, 3,000 samples each): where the true loss is 0.5 points, its upper end is below that in
    at most 2.8 % of the samples, also if all changes are in the rarest fifth of the taxa. With Kish's number alone it
    is up to 9 %. A normal interval with half a picture added to each cell of each taxon almost never ends below 0.5
    points, even where nothing is lost.
    """
    lost_N, won_N = old_hits_N & ~new_hits_N, new_hits_N & ~old_hits_N
    # The number of equal plants whose mean varies as much as the weighted mean; pictures of one plant count as one. Of
    # two numbers it is the smaller: Kish's (1965) for all plants, and the one for the plants whose answers changed,
    # which matches mean and variance as Fay and Feuer (1997) do for weighted rates.
    number, changed_P = effective_number(plants_N, weights_N), np.bincount(plants_N, weights_N * (lost_N | won_N))
    if changed_P.any():
        number = min(number, float(changed_P.sum() / (changed_P**2).sum()))
    # Rounding errors can raise a sum of weights 1e-16 above 1.
    old, new, lost, won = (min(float(weights_N[each].sum()), 1.0) for each in (old_hits_N, new_hits_N, lost_N, won_N))
    return PairedShare(
        old=old,
        new=new,
        loss=lost - won,
        loss_interval_95=tango_interval(lost * number, won * number, number),
        num_pictures=len(plants_N),
        num_plants=len(np.unique(plants_N)),
    )


def _refusals(old: HeldOut, new: HeldOut, micro: PairedShare, macro: PairedShare) -> tuple[str, ...]:
    reasons = []
    for which, known in (("old", old), ("new", new)):
        if known.state in {"unknown", "seen"}:
            remedy = " Give the data that it was trained on with --trained-on." if known.state == "unknown" else ""
            reasons.append(f"The {which} bundle may not be judged on these pictures: {known.explanation}{remedy}")
    for kind, share in (("micro", micro), ("macro", macro)):
        if share.reaches_limit:
            low, high = (100 * end for end in share.loss_interval_95)
            reasons.append(
                f"The loss in {kind} top-1 is {100 * share.loss:+.2f} points (95 % interval {low:+.2f} to {high:+.2f}, "
                f"{share.num_plants:,} plants), and the interval must end below {100 * MOST_LOSS:+.2f} points."
            )
    return tuple(reasons)


def _only_in(one: Taxonomy, other: Taxonomy) -> tuple[str, ...]:
    return tuple(sorted(one.by_id[taxon_id].scientific_name for taxon_id in one.by_id.keys() - other.by_id.keys()))
