"""Program: asks a bundle about photographs with and without the place and the day at which they were taken.

python benchmarks/place.py --bundle BUNDLE --data DATA --records FILE.csv [--outputs FILE.npz] [--out FILE.json]

FILE has the columns taxon, latitude, longitude and taken_on (empty if unknown): where and when plants were recorded. A
photograph with a day stands where its taxon was recorded on that day. Any other stands, without a day, at the place of
a record of its taxon that no prior has seen.

* No prior sees the records of the days of validation, calibration and test photographs, nor undated ones of every fifth
  cell of 20 km.
* Only taxa with records can win: a prior must not gain by telling data that have places from data that have none.
* The rule is chosen on validation photographs, as export does. Temperature, thresholds and candidate sets are fitted on
  calibration plants, without and with the prior alike. The figures are those of test photographs.
"""

import csv
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import numpy.typing as npt
import tyro
from msgspec.structs import replace

from benchmarks.result import table, write_result
from benchmarks.serving.flags import DEMONSTRATION, Network, network_of
from models.answer import AnswerModel, decide
from models.arrays import Flags
from models.bundle import Bundle, load_bundle
from models.metrics import Share, Whole, calibration_error, draw_plants, effective_number, share
from models.place import PlaceRule, cells_at
from models.ranking import Floats, Thresholds
from models.taxonomy import Taxonomy
from training.bundling.place import (
    Records,
    far_away,
    find_rule,
    fit_answers,
    fit_prior,
    months_of,
    placed_rows,
    ratios,
)
from training.bundling.tables import training_prior
from training.dataset.manifest import Manifest
from training.evaluation.answers import coverage_figures
from training.evaluation.pictures import Pictures
from training.evaluation.predictions import Outputs, Plants, Predictions, one_picture_each, plants_of, score_pictures
from training.machine import Machine, this_machine
from training.program import run_program

PRIORS: Final = ("place", "season", "place and season")
GENTLEST: Final = PlaceRule(0.5, 0.7, 1.0, Thresholds())
"""The rule that is measured where none may be used."""
_SPLITS: Final = ("validation", "calibration", "test")
_HELD_OUT: Final = 5  # every fifth cell
_HELD_OUT_KM: Final = 20.0
_NEVER: Final = -1e4  # logit of a taxon without records
_COVERAGE: Final = 0.9
Days = npt.NDArray[np.datetime64]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a bundle with and without place and day."""

    bundle: Path = DEMONSTRATION
    """The bundle; a prior of its own is not used."""
    data: Path
    """Prepared data of the bundle."""
    records: Path
    """Table of where and when plants were recorded."""
    outputs: Path | None = None
    """File that keeps the outputs of the network; written if it does not exist."""
    out: Path | None = None
    """File for the result (JSON)."""


class Figures(msgspec.Struct, frozen=True):
    """Answers to some test photographs; intervals are by plant."""

    where: str
    """Without a prior, or the place that the prior is told."""
    top1: Share
    gain: Share | None
    """Top-1 less that of the same photographs without a prior; None for these."""
    named: Share
    """Those whose verdict has the rank of their taxon."""
    names_right: Share | None
    """Of all names, at any rank; None if there is none."""
    ece: Share
    covered: Share
    """Those whose candidate set of 90 % holds the right taxon."""


class Arm(msgspec.Struct, frozen=True):
    """What one prior does."""

    prior: str
    num_chosen: int
    """Validation photographs, which chose the rule."""
    num_fitted: int
    """Calibration plants."""
    rule: str
    has_rule: bool
    """Whether a rule helps, and costs little enough far away. If not, the gentlest one is measured."""
    dated: list[Figures]
    """Of photographs with a day and a place of their own."""
    undated: list[Figures]
    """Of those that stand at the place of a record."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    network: Network
    num_taxa: int
    """Taxa with records."""
    num_records: int
    """Those that the prior counts."""
    num_held_out: int
    arms: list[Arm]


class Seen(msgspec.Struct, frozen=True):
    """Photographs of taxa with records: what the network says of them, and where they stand."""

    scores: Predictions
    logits: Floats
    labels: Whole
    plants: Plants
    dated: Flags
    split: npt.NDArray[np.str_]
    here: Records

    def subset(self, chosen: Flags) -> "Seen":
        """Returns some of the photographs."""
        return Seen(
            self.scores.subset(chosen),
            self.logits[chosen],
            self.labels[chosen],
            self.plants[chosen],
            self.dated[chosen],
            self.split[chosen],
            self.here.subset(chosen),
        )


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Place, description=__doc__)))


def measure(command: Place) -> Result:
    """Measures, prints the table, and writes the result if `out` is given."""
    bundle, manifest = load_bundle(command.bundle), Manifest(command.data)
    records, day_N = read_records(command.records, bundle.taxonomy)
    rows = np.concatenate([manifest.rows_of(split) for split in _SPLITS])
    days = manifest.table["taken_on"].take(rows).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    cell_N = cells_at(records.latitude_N, records.longitude_N, _HELD_OUT_KM)
    held_N = np.where(np.isnat(day_N), cell_N % _HELD_OUT == 0, np.isin(day_N, days))
    known = records.subset(~held_N)
    has_records_T = np.bincount(known.taxon_N, minlength=len(bundle.taxonomy.taxa)) > 0
    model, labels = bundle.answer_model("fp32"), manifest.labels[rows]
    taxon_N = bundle.taxonomy.taxon_of_output[labels]
    at_N = stand(taxon_N, days, records, day_N, held_N)
    outputs = network_outputs(command.outputs, bundle, Pictures(manifest, rows, bundle.record.input, "photographs", 1))
    logits = outputs.logits[:].copy()
    logits[:, ~has_records_T[bundle.taxonomy.taxon_of_output]] = _NEVER
    dated = ~np.isnat(days)
    here = records.subset(at_N)
    seen = Seen(
        outputs.score(model, labels),
        logits,
        labels,
        plants_of(manifest, rows),
        dated,
        np.array(manifest.table["split"].take(rows).to_pylist()),
        replace(here, month_N=np.where(dated, here.month_N, 0)),
    ).subset((at_N >= 0) & has_records_T[taxon_N])
    prior_T = training_prior(manifest.labels[manifest.rows_of("train")], bundle.taxonomy)
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        network=network_of(bundle),
        num_taxa=int(has_records_T.sum()),
        num_records=len(known),
        num_held_out=int(held_N.sum()),
        arms=[judge(prior, known, seen, model, prior_T) for prior in PRIORS],
    )
    write_result(result, markdown(result), command.out)
    return result


def read_records(path: Path, taxonomy: Taxonomy) -> tuple[Records, Days]:
    """Reads the records of the taxa of a bundle, and their days."""
    position = {taxon.scientific_name: at for at, taxon in enumerate(taxonomy.taxa)}
    with path.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["taxon"] in position]
    day_N = np.array([row["taken_on"] or "NaT" for row in rows], "datetime64[D]")
    taxon_N = np.array([position[row["taxon"]] for row in rows])
    latitude_N, longitude_N = (np.array([float(row[name]) for row in rows]) for name in ("latitude", "longitude"))
    return Records(taxon_N, latitude_N, longitude_N, months_of(day_N)), day_N


def stand(taxon_N: Whole, days: Days, records: Records, day_N: Days, held_N: Flags) -> Whole:
    """Finds the record at whose place each photograph stands, -1 if there is none; see the head of this file."""
    random, at_N = np.random.default_rng(0), np.full(len(taxon_N), -1)
    for photograph, (taxon, day) in enumerate(zip(taxon_N, days, strict=True)):
        found = np.flatnonzero((records.taxon_N == taxon) & held_N & (np.isnat(day) | (day_N == day)))
        if len(found):
            at_N[photograph] = random.choice(found)
    return at_N


def network_outputs(file: Path | None, bundle: Bundle, pictures: Pictures) -> Outputs:
    """Runs the network, or reads what it said of the same pictures before."""
    of = f"{network_of(bundle).sha256} {pictures.manifest.sha256}"
    if file is not None and file.is_file():
        with np.load(file) as stored:
            if str(stored["of"]) == of:
                return Outputs(stored["logits"], stored["features"])
    outputs = pictures.outputs(bundle.network_path("fp32"))
    if file is not None:
        np.savez(file, of=of, logits=outputs.logits[:], features=outputs.features[:])
    return outputs


def judge(prior_name: str, known: Records, seen: Seen, model: AnswerModel, prior_T: Floats) -> Arm:
    """Chooses and fits the rule of one prior, and judges it on the test photographs."""
    bare, prior = model, fit_prior(as_counted(prior_name, known), len(model.taxonomy.taxa))
    seen = replace(seen, here=as_counted(prior_name, seen.here))
    if prior_name == "season":
        seen = seen.subset(seen.dated)
    choosing, fitting, test = (seen.subset(seen.split == split) for split in _SPLITS)
    fitting = fitting.subset(np.isin(np.arange(len(fitting.labels)), one_picture_each(fitting.plants)))
    found = find_rule(prior, choosing.logits, choosing.labels, choosing.here, model)
    rule = found or GENTLEST

    def placed(photographs: Seen, places: Records) -> Floats:
        return placed_rows(photographs.logits, ratios(prior, places), rule, bare)[:]

    without = Answers(test, test.logits, fitted(fitting, fitting.logits, model, prior_T))
    model = fitted(fitting, placed(fitting, fitting.here), model, prior_T)
    there = far_away(test.here)
    right, wrong = (Answers(test, placed(test, places), model) for places in (test.here, there))
    away_N = np.array(
        [prior.records(where, taxon)[0] == 0 for where, taxon in zip(there.places(), there.taxon_N, strict=True)]
    )

    def of(chosen_N: Flags) -> Iterator[Figures]:
        yield without.figures("without", chosen_N)
        yield right.figures("right", chosen_N, without)
        yield wrong.figures("far away" if prior_name != "season" else "another day", chosen_N, without)
        if prior_name != "season":
            yield wrong.figures("far away, not recorded there", chosen_N & away_N, without)

    return Arm(
        prior_name,
        len(choosing.labels),
        len(fitting.labels),
        f"weight {rule.weight}, floor {rule.floor}",
        found is not None,
        list(of(test.dated)),
        [] if test.dated.all() or prior_name == "place and season" else list(of(~test.dated)),
    )


def as_counted(prior_name: str, records: Records) -> Records:
    """Leaves out what a prior does not count; for a season, all is at one place."""
    if prior_name == "place":
        return replace(records, month_N=np.zeros_like(records.month_N))
    if prior_name == "season":
        return replace(records, latitude_N=np.full(len(records), 45.0), longitude_N=np.zeros(len(records)))
    return records


def fitted(plants: Seen, logits: Floats, model: AnswerModel, prior_T: Floats) -> AnswerModel:
    """Fits what turns such logits into answers."""
    cutoffs, scores = model.calibration.cutoffs, plants.scores
    kept_N = np.ones(len(plants.labels), dtype=bool)
    if cutoffs is not None and scores.plant_N is not None and scores.familiar_N is not None:
        kept_N = (scores.plant_N >= cutoffs.plant) & (scores.familiar_N >= cutoffs.familiar)
    found = fit_answers(logits, plants.labels, kept_N, taxonomy=model.taxonomy, prior_T=prior_T, fixed={})
    return replace(
        model,
        temperature=found.temperature,
        thresholds=found.thresholds.thresholds,
        mistaken=None,
        calibration=replace(model.calibration, conformal=found.conformal, conformal_mistaken=None),
    )


class Answers:
    """The answers to test photographs."""

    def __init__(self, test: Seen, logits: Floats, model: AnswerModel) -> None:
        self.test, self.logits, self.model = test, logits, model
        alone = score_pictures(logits, test.labels, AnswerModel(model.taxonomy, model.temperature))
        self.found = replace(alone, plant_N=test.scores.plant_N, familiar_N=test.scores.familiar_N)
        self.decisions = decide(self.found, model)
        self.right_N = self.found.right_names(self.decisions)

    def figures(self, where: str, chosen_N: Flags, without: "Answers | None" = None) -> Figures:
        """Returns the figures of some of the photographs."""
        found, plants = self.found.subset(chosen_N), self.test.plants[chosen_N]
        own_rank_N = np.array([self.model.taxonomy.taxa[taxon].rank for taxon in found.taxon_labels_N])
        decisions, right_N = self.decisions.subset(chosen_N), self.right_N[chosen_N]
        named_N = decisions.named_N
        sets = coverage_figures(self.logits[chosen_N], found.taxon_labels_N, self.model)
        covered = next(each.covered for each in sets if (each.kind, each.coverage) == ("marginal", _COVERAGE))

        def of_plants(flags_N: Flags, among_N: Flags) -> Share:
            return share(int(flags_N[among_N].sum()), int(among_N.sum()), effective_number(plants[among_N]))

        every_N = np.ones(len(plants), dtype=bool)
        return Figures(
            where,
            of_plants(found.hits, every_N),
            None if without is None else difference(without.found.hits[chosen_N], found.hits, plants),
            of_plants(decisions.rank_N == own_rank_N, every_N),
            of_plants(right_N, named_N) if named_N.any() else None,
            calibration_error(found.confidence_N, found.hits, plants),
            share(round(covered.value * len(plants)), len(plants), effective_number(plants)),
        )


def difference(before_N: Flags, after_N: Flags, plants_N: Plants) -> Share:
    """Returns how much larger a share has become, with the interval of 1,000 draws of plants."""
    change_N = after_N.astype(np.float64) - before_N
    drawn = [float(np.average(change_N, weights=times_N)) for times_N in draw_plants(plants_N)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Share(float(change_N.mean()), len(change_N), (float(low), float(high)))


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""
    sections = [
        f"{result.machine}; {result.num_records:,} records of {result.num_taxa} taxa, {result.num_held_out:,} more "
        "kept apart. Shares with their 95 % intervals by plant."
    ]

    def cell(figure: Share | None, digits: int = 1) -> str:
        if figure is None:
            return "–"
        low, high = figure.interval_95
        return f"{figure.value:.{digits}%} [{low:.{digits}%}, {high:.{digits}%}]".replace("%", " %")

    for arm in result.arms:
        chosen = "chosen" if arm.has_rule else "none helps enough; the gentlest is measured:"
        sections.append(
            f"Prior of {arm.prior}; rule {chosen} {arm.rule} on {arm.num_chosen:,} validation photographs; fitted on "
            f"{arm.num_fitted:,} calibration plants:"
        )
        rows = []
        for kind, figures in (("own day and place", arm.dated), ("place of a record", arm.undated)):
            for each in figures:
                shares = (each.top1, each.gain, each.named, each.names_right, each.ece, each.covered)
                rows.append((f"{kind}: {each.where}", f"{each.top1.num_pictures:,}", *map(cell, shares)))
        columns = ("photographs", "number", "top-1", "gain", "named", "names right", "ECE", "sets of 90 %")
        sections.append(table(columns, rows))
    return "\n\n".join(sections)


if __name__ == "__main__":
    main()
