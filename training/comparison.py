"""Two bundles on one frozen set of pictures -> what is lost, and why the new one may not be promoted.

The frozen set holds the pictures of a split whose taxa both bundles know, and strangers: pictures of species that
neither knows. Every picture runs alone, as in the service.

Letters in names: N pictures, P plants.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from models.arrays import Columns, Doubles, Flags
from models.bundle import Bundle
from models.bundle_record import BundleRecord, Precision
from models.errors import DataError
from models.metrics import Whole, draw_plants, effective_number, mean_gap
from models.outputs import Plants
from models.ranking import Floats
from models.scoring import decide
from models.taxonomy import Taxonomy
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.fit.pairs import tango_interval
from training.fit.pictures import Pictures, bundle_network, plants_of, run

MOST_LOSS: Final = 0.005
"""A loss of half a point of top-1 is not accepted, and has to be ruled out with 97.5 % confidence."""
UNKNOWN_TAXON: Final = ""
"""Taxon id of a species that neither bundle knows."""
MARGINS: Final = {"names_right": 0.01, "named": 0.02, "strangers_named": 0.02, "ece": 0.02}
"""Loss of each figure of the answers that is accepted as long as it is not proved. That it be ruled out, as that of
top-1 is, would refuse better bundles on few plants."""
_USED: Final[tuple[Split, ...]] = ("train", "validation", "calibration")
"""The splits that decide what a bundle answers: its weights, the choice of its checkpoint, its tables."""


class PairedShare(msgspec.Struct, frozen=True):
    """A share, or a calibration error, of the old and the new bundle on the same pictures."""

    old: float
    """That of the old bundle, in [0, 1]."""
    new: float
    loss: float
    """The difference, above 0 if the new bundle is worse."""
    loss_interval_95: tuple[float, float]
    num_pictures: int
    num_plants: int
    """Pictures of one plant, and near copies, count as one plant."""

    @property
    def reaches_limit(self) -> bool:
        """Whether the upper end of the interval of the loss is 0.5 points or more."""
        return self.loss_interval_95[1] >= MOST_LOSS

    @property
    def is_proved(self) -> bool:
        """Whether the whole interval of the loss is above 0, to a hundredth of a point."""
        return round(self.loss_interval_95[0], 4) > 0


class AnswerShares(msgspec.Struct, frozen=True):
    """What users get from the old and the new bundle, one picture at a time."""

    names_right: PairedShare | None
    """How many verdicts with a name, of any rank, are right; None if a bundle names nothing."""
    named: PairedShare
    """How many verdicts have a name."""
    strangers_named: PairedShare | None
    """How many strangers are named as a species; None without strangers."""
    ece: PairedShare
    """Expected calibration error of the most likely taxon's probability."""

    def exceeding(self, *, only_proved: bool = False) -> dict[str, PairedShare]:
        """Returns the figures whose loss is proved or above its margin, or only those for which both hold."""
        both = all if only_proved else any
        found = {name: share for name, share in msgspec.structs.asdict(self).items() if share is not None}
        return {name: share for name, share in found.items() if both((share.is_proved, share.loss > MARGINS[name]))}


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

    format: int = 3
    """Version of the file. Version 2 has the losses in top-1 alone, and no `num_earlier`."""
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
    """Taxa that the pictures show, without strangers."""
    num_left_out: int
    """Pictures that are neither of a taxon that both bundles know nor of a species that neither knows."""
    micro_top1: PairedShare
    """How often the most likely taxon is the right one, over the pictures."""
    macro_top1: PairedShare
    """Mean of the taxa's shares."""
    answers: AnswerShares
    num_earlier: int | None
    """Comparisons on this split that the registry has from before; None if there is no registry."""
    added_taxa: tuple[str, ...]
    """Names of the taxa that only the new bundle knows, by taxon id."""
    removed_taxa: tuple[str, ...]
    """Names of the taxa that only the old bundle knows."""
    refusals: tuple[str, ...]
    """Why the new bundle is not promoted, as sentences; empty if nothing speaks against it."""
    may_be_accepted: bool
    """Whether a person may promote it all the same: no loss of top-1 is proved, no other loss is proved and larger than
    its margin, and neither bundle saw the pictures."""


def compare(
    old: Bundle,
    new: Bundle,
    manifest: Manifest,
    split: Split = "test",
    *,
    trained_on: Sequence[Manifest] = (),
    precision: Precision = "fp32",
    workers: int = 0,
    num_earlier: int | None = None,
) -> Comparison:
    """Compares two bundles on a split, and decides whether the new one may take the place of the old one.

    `trained_on` is further data that the bundles were trained on, and `num_earlier` the number of comparisons on this
    split before this one.

    Raises:
        BundleError: A bundle has no network of the precision.
        DataError: The bundles and the data share no taxon.
    """
    rows_N, ids_N = frozen_set(manifest, split, old.taxonomy, new.taxonomy)
    name = f"{manifest.folder.name}, {split} split"
    old_N, new_N = (
        _answers(bundle, precision, Pictures(manifest, rows_N, bundle.record.input, name, workers), ids_N)
        for bundle in (old, new)
    )
    plants_N = plants_of(manifest, rows_N)
    known_N = ids_N != UNKNOWN_TAXON
    hits = (old_N.top1_N[known_N], new_N.top1_N[known_N], plants_N[known_N])
    micro = micro_share(*hits)
    macro = macro_share(*hits, np.unique(ids_N[known_N], return_inverse=True)[1])
    answers = answer_shares(old_N, new_N, plants_N, known_N)
    before, after = (held_out(bundle.record, manifest, rows_N, trained_on) for bundle in (old, new))
    has_proved_loss = micro.is_proved or macro.is_proved or answers.exceeding(only_proved=True)
    return Comparison(
        created=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        old=f"{old.record.name} {old.record.version}",
        new=f"{new.record.name} {new.record.version}",
        precision=precision,
        data=name,
        manifest_sha256=manifest.sha256,
        old_held_out=before,
        new_held_out=after,
        num_taxa=len(np.unique(ids_N[known_N])),
        num_left_out=len(manifest.rows_of(split)) - len(rows_N),
        micro_top1=micro,
        macro_top1=macro,
        answers=answers,
        num_earlier=num_earlier,
        added_taxa=_only_in(new.taxonomy, old.taxonomy),
        removed_taxa=_only_in(old.taxonomy, new.taxonomy),
        refusals=_refusals(before, after, micro, macro, answers),
        may_be_accepted=not has_proved_loss and "seen" not in {before.state, after.state},
    )


def frozen_set(manifest: Manifest, split: Split, old: Taxonomy, new: Taxonomy) -> tuple[Whole, npt.NDArray[np.str_]]:
    """Returns the rows of the pictures, and the taxon id of each, `UNKNOWN_TAXON` for species that neither knows.

    A picture that shows no more than a genus is not a stranger: a species of that genus may be its right name.

    Raises:
        DataError: The split is empty, or the bundles and the data share no taxon.
    """
    rows = manifest.rows_of(split)
    taxonomy = manifest.taxonomy
    ids = np.array([taxonomy.outputs[label].taxon_id for label in manifest.labels[rows]])
    old_ids, new_ids = ({output.taxon_id for output in each.outputs} for each in (old, new))
    species = {taxon.taxon_id for taxon in taxonomy.taxa if taxon.rank == "species"}
    known_N, strange_N = (np.isin(ids, list(some)) for some in (old_ids & new_ids, species - old_ids - new_ids))
    if not known_N.any():
        raise DataError(
            "no picture shows a taxon that both bundles know",
            value=f"{len(rows)} {split} pictures of {manifest.folder}",
            limit=f"pictures of the {len(old_ids & new_ids)} taxa that both know",
            remedy="give other data",
        )
    chosen_N = known_N | strange_N
    return rows[chosen_N], np.where(strange_N, UNKNOWN_TAXON, ids)[chosen_N]


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


class Answers(Columns, frozen=True):
    """What a bundle answers about each picture alone."""

    top1_N: Flags
    """Whether the most likely taxon is the right one; ties and NaN count as misses."""
    confidence_N: Doubles
    """Probability of the most likely taxon."""
    named_N: Flags
    """Whether the verdict has a name, of any rank."""
    species_N: Flags
    """Whether the verdict names a species."""
    right_N: Flags
    """Whether the verdict names the right taxon, its genus or its family."""


def answer_shares(old: Answers, new: Answers, plants_N: Plants, known_N: Flags) -> AnswerShares:
    """Compares what users get; `known_N` says whether a picture is not of a stranger."""
    strangers_named = names_right = None
    if not known_N.all():
        strangers = (old.subset(~known_N), new.subset(~known_N), plants_N[~known_N])
        strangers_named = _drawn_share(lambda each, times_N: _mean(each.species_N, times_N), *strangers, -1)
    known = (old.subset(known_N), new.subset(known_N), plants_N[known_N])
    if all(each.named_N.any() for each in known[:2]):
        names_right = _drawn_share(lambda each, times_N: _mean(each.right_N, times_N * each.named_N), *known)
    return AnswerShares(
        names_right=names_right,
        named=_drawn_share(lambda each, times_N: _mean(each.named_N, times_N), *known),
        strangers_named=strangers_named,
        ece=_drawn_share(lambda each, times_N: mean_gap(each.confidence_N, each.top1_N, times_N), *known, -1),
    )


def _drawn_share(
    figure: Callable[[Answers, Doubles], float], old: Answers, new: Answers, plants_N: Plants, sign: int = 1
) -> PairedShare:
    """Compares a figure, which is computed from the answers and how often each picture counts.

    The interval is that of 1,000 draws of plants, the same for both bundles. A `sign` of -1 says that less is better.
    """
    before, after = (figure(each, np.ones(len(plants_N))) for each in (old, new))
    drawn = [sign * (figure(old, times_N) - figure(new, times_N)) for times_N in draw_plants(plants_N)]
    loss = sign * (before - after)
    (low, high) = np.nanquantile(drawn, [0.025, 0.975])
    interval = (min(float(low), loss), max(float(high), loss))
    return PairedShare(before, after, loss, interval, len(plants_N), len(np.unique(plants_N)))


def _mean(flags_N: Flags, weight_N: Doubles) -> float:
    """Returns the weighted share; NaN in a draw in which nothing has a weight."""
    total = float(weight_N.sum())
    return float(weight_N[flags_N].sum()) / total if total else np.nan


def _answers(bundle: Bundle, precision: Precision, pictures: Pictures, ids_N: npt.NDArray[np.str_]) -> Answers:
    """Runs a bundle on pictures, each alone; the right taxon of each has this id."""
    model = bundle.answer_model(precision)
    output_of = {output.taxon_id: index for index, output in enumerate(bundle.taxonomy.outputs)}
    labels_N = np.array([output_of.get(taxon_id, 0) for taxon_id in ids_N])  # any output for a stranger
    scores = replace(run(bundle_network(bundle, precision), pictures), labels=labels_N).score(model)
    decisions = decide(scores, model)
    return Answers(
        scores.top_k_hits(1),
        scores.confidence_N,
        decisions.named_N,
        decisions.rank_N == "species",
        scores.right_names(decisions),
    )


def _weighted_share(old_hits_N: Flags, new_hits_N: Flags, plants_N: Whole, weights_N: Floats) -> PairedShare:
    """Computes the interval of Tango (1998) with an effective number of plants in place of the number of pictures.

    For single pictures of equal weight it is Tango's interval. For macro top-1 it was chosen by simulation (17 to 1,000
    taxa with 1 to 60 pictures, 3,000 samples each): where the true loss is 0.5 points, its upper end is below that in
    at most 2.8 % of the samples, also if all changes are in the rarest fifth of the taxa. With Kish's number alone it
    is up to 9 %. A normal interval with half a picture added to each cell of each taxon almost never ends below 0.5
    points, even where nothing is lost.
    """
    lost_N = old_hits_N & ~new_hits_N
    won_N = new_hits_N & ~old_hits_N
    # The number of equal plants whose mean varies as much as the weighted mean; pictures of one plant count as one. Of
    # two numbers it is the smaller: Kish's (1965) for all plants, and the one for the plants whose answers changed,
    # which matches mean and variance as Fay and Feuer (1997) do for weighted rates.
    number = effective_number(plants_N, weights_N)
    changed_P = np.bincount(plants_N, weights_N * (lost_N | won_N))
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


def _refusals(
    old: HeldOut, new: HeldOut, micro: PairedShare, macro: PairedShare, answers: AnswerShares
) -> tuple[str, ...]:
    reasons = []
    for which, known in (("old", old), ("new", new)):
        if known.state in {"unknown", "seen"}:
            remedy = " Give the data that it was trained on with --trained-on." if known.state == "unknown" else ""
            reasons.append(f"The {which} bundle may not be judged on these pictures: {known.explanation}{remedy}")
    top1 = {name: share for name, share in (("micro top-1", micro), ("macro top-1", macro)) if share.reaches_limit}
    for name, share in (top1 | answers.exceeding()).items():
        loss, low, high = (f"{100 * value:+.2f}" for value in (share.loss, *share.loss_interval_95))
        limit = f"the interval must end below {100 * MOST_LOSS:+.2f} points"
        if name in MARGINS:
            limit = f"it may be neither proved (an interval above 0) nor above {100 * MARGINS[name]:+.2f} points"
        reasons.append(
            f"The loss in {name} is {loss} points (95 % interval {low} to {high}, {share.num_plants:,} plants), and "
            f"{limit}."
        )
    return tuple(reasons)


def _only_in(one: Taxonomy, other: Taxonomy) -> tuple[str, ...]:
    return tuple(sorted(one.by_id[taxon_id].scientific_name for taxon_id in one.by_id.keys() - other.by_id.keys()))
