"""The model card of a bundle (Mitchell et al. 2019, "Model Cards for Model Reporting").

Its sections on calibration and on commands say what the tables were fitted on, and what measures the figures again.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Final

import msgspec
import numpy as np

from models.bundle_record import BundleRecord, CommercialUse, MeasuredCoverage, Metric
from models.calibration import Calibration
from models.metrics import NUM_BINS, ReliabilityBin
from models.ranking import RANKS, Promise, Rank
from models.taxonomy import Taxonomy
from training.bundling.place import LEAST_PLANTS, LEAST_RECORDS, MOST_LOST, FittedPlace
from training.bundling.tables import FittedTables
from training.bundling.temperature import MOST_PICTURES
from training.bundling.thresholds import MIN_NAMED, FittedThreshold, FittedThresholds
from training.evaluation.provenance import OTHER_DATA
from training.toml_file import Section

MODEL_CARD_FILE: Final = "MODEL_CARD.md"
_MOST_NAMES: Final = 50
_METRICS: Final = {
    "top1_output": "the most likely output is right",
    "top1_taxon": "the most likely plant is right",
    "top5_taxon": "the right plant is among the five most likely",
    "macro_top1_taxon": "mean over the plants of their top1_taxon",
    "ece": "expected calibration error",
    "left_out_auroc": "chance that a known plant is more familiar than a plant whose taxon is left out",
    "left_out_named_species": "plants whose taxa are left out that get the name of a species",
    "strangers_auroc": "chance that a test plant is more familiar than a plant that the bundle does not know",
    "strangers_named_species": "plants that the bundle does not know that get the name of a species, which is wrong",
    "strangers_named": "plants that the bundle does not know that get a name, at any rank",
    "near_strangers_named_wrong": "other species of genera that the bundle knows that get a wrong name, at any rank",
    "things_auroc": "chance that a plant has a higher plant score than a picture of something else",
    "things_accepted": "pictures of something else whose plant score reaches the cutoff",
    "things_named": "pictures of something else that get the name of a plant, at any rank",
    "nll": "mean negative log-likelihood, nats",
}
_COMMERCIAL_USE: Final[dict[CommercialUse, str]] = {
    "allowed": "All of these licenses allow commercial use.",
    "not_allowed": "May not be used commercially: at least one of these licenses forbids it.",
    "unknown": "It is not known whether all of these licenses allow commercial use.",
}
ENOUGH_PICTURES: Final = 1000
"""With fewer calibration pictures the card warns: their calibration error varies by several points by chance."""
_BAR: Final = 20  # characters of a full bar


def model_card(record: BundleRecord, taxonomy: Taxonomy, *further_sections: str) -> str:
    """Writes the card from the bundle's record and taxonomy; the further sections follow the metrics."""
    sections = [
        f"# {record.name} {record.version}\n\n{record.description}",
        _network(record),
        "## Metrics\n\n"
        + "\n".join([*map(_metric, record.metrics), *map(_coverage, record.networks["fp32"].coverages)]),
        _provenance(record),
        *further_sections,
        _data(record),
        _names(taxonomy),
    ]
    return "\n\n".join(sections) + "\n"


def _network(record: BundleRecord) -> str:
    network, spec = record.architecture, record.input
    return (
        f"## The network\n\n{network.name}, {network.num_parameters:,} parameters, {network.num_outputs:,} outputs. "
        f"Served with pictures of {spec.width} x {spec.height} px; last epoch of training: {spec.train_px} px. "
        f"Start of the training: {record.initial_weights}. "
        f"Trained on: {record.trained_on}."
    )


def _provenance(record: BundleRecord) -> str:
    if record.other_data:
        metrics = f"The metrics come from {OTHER_DATA}: pictures that it was trained on may be among them."
    elif record.manifest_sha256:
        metrics = "The metrics come from the same manifest."
    else:
        metrics = "It is not known whether the metrics come from the same manifest."
    return (
        f"## Provenance\n\nTrained with the manifest {record.manifest_sha256 or 'unknown'} (SHA-256) at commit "
        f"{record.trained_commit}, exported at commit {record.git_commit}. {metrics}"
    )


def _metric(metric: Metric) -> str:
    meaning = f" ({_METRICS[metric.name]})" if metric.name in _METRICS else ""
    return f"* {metric.name}{meaning}: {_figure(metric.value, metric)}"


def _coverage(measured: MeasuredCoverage) -> str:
    figure = _figure(measured.covered, measured)
    return f"* candidate sets, {measured.kind} coverage, {measured.coverage:.2f} asked: {figure}"


def _figure(value: float, of: Metric | MeasuredCoverage) -> str:
    interval = ", 95 % interval {:.3f} to {:.3f}".format(*of.interval_95) if of.interval_95 else ""
    return f"{value:.3f}{interval} ({of.data}, {of.num_pictures} pictures)"


def _data(record: BundleRecord) -> str:
    lines = []
    for source in record.sources:
        licenses = ", ".join(f"{count} {license_}" for license_, count in sorted(source.licenses.items()))
        use = f"{_COMMERCIAL_USE[source.commercial_use]} {source.note}".rstrip()
        authors = f" by {source.num_authors} named authors" if source.num_authors else ""
        lines.append(f"* {source.name}: {source.num_pictures} pictures{authors}; licenses: {licenses}. {use}")
    return "## Training data\n\n" + "\n".join(lines)


def _names(taxonomy: Taxonomy) -> str:
    names = sorted(taxon.scientific_name for taxon in taxonomy.taxa)
    more = f", and {len(names) - _MOST_NAMES} more (`taxa.json`)" if len(names) > _MOST_NAMES else ""
    return (
        f"## Plants it can name\n\n{', '.join(names[:_MOST_NAMES])}{more}. Any other plant gets a wrong name or none."
    )


def calibration_section(
    fitted: FittedTables,
    taxonomy: Taxonomy,
    areas: Mapping[Rank, float],
    diagrams: Mapping[str, Sequence[ReliabilityBin]],
) -> str:
    """Writes the section.

    `areas` are those under the risk-coverage curves of test pictures, and `diagrams` their reliability diagrams: "all",
    and each source.
    """
    of_sources = {name: bins for name, bins in diagrams.items() if name != "all"}
    named = {"all": diagrams["all"]} | (of_sources if len(of_sources) > 1 else {})
    figures = ", ".join(f"{rank} {area:.3f}" for rank, area in areas.items())
    tables = [f"Reliability, {name} test pictures:\n\n{_table(bins)}" for name, bins in named.items()]
    parts = [
        "## Calibration",
        describe_fit(fitted.calibration),
        _verdicts(fitted.thresholds),
        f"Area under the risk-coverage curve of the test pictures (0 is best): {figures}.",
        _rejection(fitted),
        _candidates(fitted.calibration, taxonomy),
        _place(fitted.place, taxonomy),
    ]
    return "\n\n".join([*parts, *tables])


def _place(place: FittedPlace | None, taxonomy: Taxonomy) -> str:
    """Says what answers with a place rest on, or why none do."""
    if place is None:
        return (
            f"Place and season are not used. They would be if {LEAST_RECORDS:,} training pictures and {LEAST_PLANTS:,} "
            "calibration plants had a place, and if place made the right plant likelier."
        )
    counts, rule = place.prior.counts, place.rule
    flat = int((counts == 0).sum())
    before, after = place.top1
    return (
        f"Place and season: learned from {counts.sum():,} training pictures with a place. {flat:,} of "
        f"{len(taxonomy.taxa):,} taxa have none, so that place neither raises nor lowers them. A taxon is lowered to "
        f"no less than {rule.floor**rule.weight:.2g} of its score against one that is as frequent at the place as in "
        f"the world. Top-1 on the {place.num_plants:,} calibration plants with a place: {before:.1%} without it, "
        f"{after:.1%} with it; other plants chose the rule. If each of these stood at the place of one far away, "
        f"it would cost them {100 * MOST_LOST:.0f} points at most."
    )


def describe_fit(calibration: Calibration) -> str:
    """Says which pictures the tables were fitted on, and warns if they are few."""
    fitted_on = calibration.fitted_on
    assert fitted_on is not None
    warning = ""
    if fitted_on.num_pictures < ENOUGH_PICTURES:
        warning = " These are few: trust the interval of `ece` more than the figure."
    if fitted_on.num_pictures > MOST_PICTURES:
        warning = f" The temperature comes from whole plants among them, {MOST_PICTURES:,} pictures at most."
    return (
        f"Temperature, thresholds and tables were fitted on {fitted_on.num_pictures:,} pictures of "
        f"{fitted_on.num_plants:,} plants ({fitted_on.data}; {fitted_on.date}), all plants alike.{warning}"
    )


def describe_threshold(rank: str, threshold: float, promise: Promise | None) -> str:
    """Says from which score a rank is named, and what is promised of the names."""
    start = f"{rank}: named from a score of {threshold:.3f}"
    if promise is None:
        return f"{start}, without a promise"
    return (
        f"{start}; with {promise.confidence:.0%} confidence at most {promise.max_risk:.0%} of the names are wrong "
        f"({promise.num_wrong} of {promise.num_named} calibration plants)"
    )


def _verdicts(fitted: FittedThresholds) -> str:
    lines = []
    for rank, limits in (*zip(RANKS, RANKS, strict=True), ("species that are often mistaken", "mistaken")):
        one: FittedThreshold | None = getattr(fitted, limits)
        if one is None:
            continue
        counted = "" if one.promise else f" ({one.num_wrong} wrong of {one.num_named} calibration plants)"
        lines.append(f"* {describe_threshold(rank, one.threshold, one.promise)}{counted}")
    if any(getattr(fitted, rank).promise is None for rank in RANKS):
        lines.append(
            "\nA rank has no promise if its threshold was given, if it names too few calibration plants (under "
            f"{MIN_NAMED}) or too many wrongly, or if these prove nothing: those of other data, or of the validation "
            "split, which chose the checkpoint. A threshold that was not given is then the least from 0.5 on that "
            "names 20 of them or more, 95 % of these rightly, or else 1: the rank is not named."
        )
    lines += [f"\n{warning}" for warning in fitted.warnings]
    return "\n".join(lines)


def _rejection(fitted: FittedTables) -> str:
    """Says what is answered with no name although the network has one."""
    unknown = "A plant that is unlike the calibration plants gets no name."
    if fitted.calibration.known_head is not None and fitted.calibration.fitted_on is not None:
        number = fitted.calibration.fitted_on.num_strangers
        unknown += (
            f" Familiarity was fitted on validation plants and {number:,} photographs of plants that the network does"
            " not know. Its cutoff stops 90 % of those of unknown genera, each judged by a fit without its source, but"
            " at most 15 % of the calibration plants. The promises of names hold where one plant in four is a"
            " stranger, and one stranger in eight another species of a known genus."
            " `strangers_named_species` was measured on genera that are in no fit."
        )
    if fitted.left_out is not None:
        named = fitted.left_out.named_species
        unknown += (
            " The cutoff stops 90 % of the calibration plants judged as if their taxa were unknown, but at most 15 % of"
            f" them judged as they are. As if unknown, {named.value:.1%} of {named.num_pictures:,} are named a species"
            f" (AUROC {fitted.left_out.auroc:.3f}). The network was trained with their taxa: of plants that are new to"
            " it, more are named."
        )
    if fitted.rejection is None:
        return f"{unknown} The bundle cannot tell plants from other things: it was exported without pictures of these."
    found = fitted.rejection
    return (
        f"{unknown}\n\nThe plant head was fitted on validation plants and on {found.accepted.num_pictures:,} "
        f"{found.data}; its cutoff keeps 95 % of these plants or more. Of these other things, each judged by"
        f" a fit that left it out, {found.accepted.value:.1%} are taken for plants and {found.named.value:.1%} are"
        f" named (AUROC {found.auroc:.3f}). The cutoff was set on these pictures, so others pass it more often."
    )


def _candidates(calibration: Calibration, taxonomy: Taxonomy) -> str:
    """Says for which taxa the candidate sets were calibrated, and names the others."""
    table = calibration.conformal
    assert table is not None
    without = [taxonomy.taxa[index].scientific_name for index in np.flatnonzero(table.num_plants_T == 0)]
    start = f"Candidate sets were calibrated on {len(table.conformity_N):,} plants"
    if not without:
        return f"{start} of all {len(taxonomy.taxa):,} taxa."
    more = f" and {len(without) - _MOST_NAMES:,} more" if len(without) > _MOST_NAMES else ""
    return (
        f"{start}. {len(without):,} of {len(taxonomy.taxa):,} taxa have none of these plants, and macro coverage says "
        f"nothing of them: {', '.join(sorted(without)[:_MOST_NAMES])}{more}."
    )


def _table(bins: Sequence[ReliabilityBin]) -> str:
    """Draws a diagram as a table: each bar is the accuracy, and its mark stands at the mean confidence."""
    lines = ["| confidence | pictures | mean | right | |", "|---|---:|---:|---:|---|"]
    for each in bins:
        span = f"{each.low:.2f} to {each.low + 1 / NUM_BINS:.2f}"
        filled, mark = round(each.accuracy * _BAR), min(int(each.confidence * _BAR), _BAR - 1)
        bar = "#" * filled + "." * (_BAR - filled)
        bar = f"`{bar[:mark]}!{bar[mark + 1 :]}`"
        cells = (span, str(each.num_pictures), f"{each.confidence:.3f}", f"{each.accuracy:.3f}", bar)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def commands_section(exported: Section, data: Path, out: Path, *, other_data: bool) -> str:
    """Writes the section for the flags of an export, with its folders of data and of the bundle."""
    measured = ["--data", without_folders(str(data)), "--bundle", without_folders(str(out))]
    again = shlex.join(["python", "training/evaluate.py", *measured, *(["--other-data"] if other_data else [])])
    return (
        "## Commands\n\nThe export made all figures of this card:\n\n"
        f"```sh\n{command_line('training/export.py', exported)}\n```\n\n"
        "Accuracy and calibration error of the fp32 network are measured again, together with its answers, by:\n\n"
        f"```sh\n{again}\n```\n\nOf folders above the given ones no names are kept."
    )


def command_line(program: str, flags: Section) -> str:
    """Returns the command that runs a program with these flags; flags at their defaults and folders are left out."""
    words = ["python", program]
    for field in msgspec.structs.fields(flags):
        value = getattr(flags, field.name)
        if value != field.default:
            words += map(without_folders, flag_words(field.name, value))
    return shlex.join(words)


def flag_words(knob: str, value: object) -> list[str]:
    """Returns the words of a command line that give a flag this value."""
    flag = knob.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    return [f"--{flag}", *map(str, value if isinstance(value, tuple) else (value,))]


def without_folders(text: str) -> str:
    """Cuts an absolute path to its last part, so that no folders of a machine are published; keeps other texts."""
    # The path may be from another operating system.
    paths = (PurePosixPath(text), PureWindowsPath(text))
    return next((path.name for path in paths if path.is_absolute()), text)
