"""What a bundle says of itself: the recipe and the sources in `bundle.json`, and the model card."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from jinja2 import Environment, StrictUndefined

from models.bundle_record import BundleRecord, Check, DataSource, Precision
from models.calibration import Calibration
from models.figures import Figures
from models.metrics import NUM_BINS, ReliabilityBin
from models.ranking import RANKS, Promise
from training.dataset.audit.licenses import joint_commercial_use
from training.dataset.manifest import Manifest
from training.fit.model import Fitted
from training.fit.names import MIN_NAMED, MOST_PICTURES
from training.fit.provenance import OTHER_DATA
from training.toml_file import Section, flag_words, without_folders

MODEL_CARD_FILE: Final = "MODEL_CARD.md"
ENOUGH_PICTURES: Final = 1000
"""With fewer calibration pictures the card warns: their calibration error varies by several points by chance."""
_BAR: Final = 20  # characters of a full bar


def model_card(
    record: BundleRecord,
    fitted: Fitted,
    figures: Figures,
    *,
    negatives: str,
    commands: Sequence[str],
) -> str:
    """Writes the card.

    Args:
        record: That of the bundle.
        fitted: What was fitted to the fp32 network.
        figures: Those of the fp32 network on test pictures.
        negatives: What the pictures without a plant are, in words.
        commands: The command of the export, and that which measures the figures again.
    """
    diagrams = figures.reliability
    taxa = fitted.model.taxonomy.taxa
    thresholds = fitted.thresholds
    tables = fitted.model.calibration
    networks = record.networks | record.left_out
    conformal = [each for each in (tables.conformal, tables.conformal_mistaken) if each is not None]
    environment = Environment(keep_trailing_newline=True, trim_blocks=True, undefined=StrictUndefined)
    template = environment.from_string(Path(__file__).with_name("model_card.md.jinja").read_text(encoding="utf-8"))
    return template.render(
        record=record,
        fitted=fitted,
        checks={precision: networks[precision].checks for precision in get_args(Precision) if precision in networks},
        areas={rank: curve.area for rank, curve in figures.risk_coverage.items()},
        diagrams=diagrams if len(diagrams) > 2 else {"all": diagrams["all"]},
        negatives=negatives,
        commands=commands,
        metrics={metric.name: metric for metric in record.metrics},
        limits={rank: getattr(thresholds, rank) for rank in RANKS}
        | {"species that are often mistaken": thresholds.mistaken},
        guesses={1: fitted.model.guesses} | {rule.num_pictures: rule.guesses for rule in fitted.model.joint},
        names=sorted(taxon.scientific_name for taxon in taxa),
        num_calibrated=sum(len(each.conformity_N) for each in conformal),
        uncalibrated=sorted(taxa[position].scientific_name for position in tables.uncalibrated_taxa),
        other_data=OTHER_DATA,
        min_named=MIN_NAMED,
        num_bins=NUM_BINS,
        n="{:,}".format,
        bar=_bar,
        describe_check=describe_check,
        describe_fit=describe_fit,
        describe_threshold=describe_threshold,
    )


def _bar(each: ReliabilityBin) -> str:
    """Draws a range of confidence: the bar is the accuracy, and its mark stands at the mean confidence."""
    filled = round(each.accuracy * _BAR)
    mark = min(int(each.confidence * _BAR), _BAR - 1)
    bar = "#" * filled + "." * (_BAR - filled)
    return f"{bar[:mark]}!{bar[mark + 1 :]}"


def describe_check(check: Check) -> str:
    """Returns a check and its result as one line of text."""
    bound = f"at {'least' if check.at_least else 'most'} {check.limit:g}"
    on = f", {check.num_pictures} pictures" if check.num_pictures else ""
    return f"{'passed' if check.passed else 'FAILED'} {check.name}: {check.value:.3g} ({bound}{on})"


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


def card_commands(exported: Section, data: Path, out: Path, *, other_data: bool) -> tuple[str, str]:
    """Returns the command of an export with its folders of data and of the bundle, and that which measures it again."""
    measured = ["--data", without_folders(str(data)), "--bundle", without_folders(str(out))]
    again = ["python", "training/evaluate.py", *measured, *(["--other-data"] if other_data else [])]
    return command_line("training/export.py", exported), shlex.join(again)


def command_line(program: str, flags: Section) -> str:
    """Returns the command that runs a program with these flags; flags at their defaults and folders are left out."""
    words = ["python", program]
    for field in msgspec.structs.fields(flags):
        value = getattr(flags, field.name)
        if value != field.default:
            words += map(without_folders, flag_words(field.name, value))
    return shlex.join(words)


def recipe_without_folders(value: Any) -> Any:
    """Cuts the absolute paths of a recipe to their last part."""
    if isinstance(value, Mapping):
        return {key: recipe_without_folders(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [recipe_without_folders(each) for each in value]
    return without_folders(value) if isinstance(value, str) else value


def sources_of(manifest: Manifest, *notes: str) -> tuple[DataSource, ...]:
    """Summarizes the sources of the training pictures; the notes, in sentences, are about all of them."""
    trained = manifest.table.select(["source", "licence", "author"]).take(manifest.rows_of("train"))
    licenses: dict[str, dict[str, int]] = {}
    for row in trained.group_by(["source", "licence"]).aggregate([([], "count_all")]).to_pylist():
        licenses.setdefault(row["source"], {})[row["licence"]] = row["count_all"]
    authors = trained.group_by(["source", "author"]).aggregate([]).to_pylist()
    num_authors = Counter(row["source"] for row in authors if row["author"])
    return tuple(
        DataSource(
            name,
            sum(counts.values()),
            counts,
            note=" ".join(filter(None, (manifest.sources[name].note, *notes))),
            num_authors=num_authors[name],
            commercial_use=joint_commercial_use(counts),
        )
        for name, counts in sorted(licenses.items())
    )
