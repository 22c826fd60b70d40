"""Program: measures the tables of a bundle that rest on 2, 4, 8 or 16 training pictures of each taxon.

python benchmarks/few_pictures.py [--data DATA --negatives DIR --unknown DIR --outputs FILE.npz] [--before FILE.json]
    [--out FILE.json]

Drawn: species as Gaussian classes around their genus, and a network that knows the true classes. Unknown plants are
other species, half of them of known genera. With --data: the demonstration bundle's features of the photographs that
it was trained with, judged on the test split, on seedlings of species that it does not know, and on other things.
--outputs keeps what the network says, and --before shows the result of an earlier commit beside the new one.
"""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np

from benchmarks.result import read_result, table, write_result
from benchmarks.serving.flags import DEMONSTRATION
from models.answer import decide
from models.bundle import load_bundle
from models.metrics import Share, Whole, share
from models.program import run_program
from models.ranking import Floats
from models.taxonomy import Output, Taxon, Taxonomy
from training.bundling.tables import LabeledOutputs, TableData, fit_tables
from training.dataset.manifest import Manifest
from training.evaluation.answers import StrangerFigures, stranger_figures
from training.evaluation.pictures import PictureFiles, pictures_of
from training.evaluation.predictions import Outputs, one_picture_each
from training.evaluation.split_metrics import auroc
from training.loading.negatives import list_negatives
from training.machine import Machine, this_machine

NUM_PICTURES: Final = (2, 4, 8, 16)
_NUM_GENERA: Final = 150
_MOST_SPECIES: Final = 10  # of a genus
_NUM_FEATURES: Final = 384
_SPECIES: Final = 0.6  # standard deviation of species around their genus, where that of genera is 1
_NOISE: Final = 4.0  # mean standard deviation of pictures around their species: 9 of 10 are named right


class FewPictures(msgspec.Struct, frozen=True, kw_only=True):
    """Measures tables that rest on few training pictures."""

    data: Path | None = None
    """Prepared data that the demonstration bundle was trained with."""
    negatives: Path | None = None
    """Pictures that show no plant: a list with the splits fit and test."""
    unknown: Path | None = None
    """Seedlings of species that the bundle does not know."""
    outputs: Path | None = None
    """File that keeps the outputs of the network; written if it does not exist."""
    before: Path | None = None
    """Result of an earlier commit."""
    out: Path | None = None
    """File for the result (JSON)."""


class Row(msgspec.Struct, frozen=True):
    """Figures of tables with so many training pictures of each taxon."""

    num_pictures: int
    distance_auroc: float
    """Chance that a known plant is nearer than an unknown one."""
    unknown: StrangerFigures
    things: StrangerFigures
    not_a_plant: Share
    """Known plants that are taken for other things."""
    named_species: Share
    """Known plants that get the name of a species."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    drawn: list[Row]
    photographs: list[Row]
    """Empty without data."""
    before: "Result | None" = None
    """The result of an earlier commit."""


class Pictures(msgspec.Struct, frozen=True):
    """What a network says of pictures, one of each plant but for training."""

    taxonomy: Taxonomy
    temperature: float
    training: LabeledOutputs
    validation: LabeledOutputs
    calibration: LabeledOutputs
    test: LabeledOutputs
    unknown: Outputs
    fit_things: Outputs
    test_things: Outputs


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(FewPictures, measure_all, description=__doc__)


def measure_all(command: FewPictures) -> Result:
    """Measures, prints the table, and writes the result if `out` is given."""
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        drawn=list(measure(drawn())),
        photographs=[] if command.data is None else list(measure(photographs(command, Manifest(command.data)))),
        before=None if command.before is None else read_result(command.before, Result),
    )
    write_result(result, markdown(result), command.out)
    return result


def measure(pictures: Pictures) -> Iterator[Row]:
    """Yields the figures for each number of training pictures."""
    taxonomy, test = pictures.taxonomy, pictures.test
    for most in NUM_PICTURES:
        training = chosen(pictures.training, some_of_each(pictures.training.labels, most))
        data = TableData(
            taxonomy=taxonomy,
            calibration=pictures.calibration,
            training_features=training.outputs.features,
            training_labels=training.labels,
            validation=pictures.validation,
            negatives=pictures.fit_things,
            negative_groups=np.arange(len(pictures.fit_things.logits)),
            data="calibration",
            num_pictures=len(pictures.calibration.labels),
        )
        fitted = fit_tables(data, pictures.temperature, {})
        model = fitted.model
        known = test.outputs.score(model, test.labels)
        unknown, things = (each.score(model) for each in (pictures.unknown, pictures.test_things))
        verdicts = decide(known, model)
        assert known.distance_N is not None
        assert unknown.distance_N is not None
        yield Row(
            num_pictures=most,
            distance_auroc=auroc(-known.distance_N, -unknown.distance_N),
            unknown=stranger_figures("familiarity", known, unknown, model),
            things=stranger_figures("plant score", known, things, model),
            not_a_plant=share(verdicts.count("not_a_plant"), len(test.labels)),
            named_species=share(verdicts.count("species"), len(test.labels)),
        )


def some_of_each(labels: Whole, most: int) -> Whole:
    """Returns the positions of at most so many pictures of each label, drawn with a fixed seed."""
    order = np.random.default_rng(0).permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    _, start, counts = np.unique(labels[by_label], return_index=True, return_counts=True)
    return by_label[np.arange(len(labels)) - np.repeat(start, counts) < most]


def chosen(pictures: LabeledOutputs, positions: Whole) -> LabeledOutputs:
    """Returns some of the pictures."""
    return LabeledOutputs(pictures.outputs.choose(positions), pictures.labels[positions])


def drawn() -> Pictures:
    """Draws species of known and of new genera, and their pictures."""
    random = np.random.default_rng(0)
    genus_T = np.repeat(np.arange(_NUM_GENERA), random.integers(1, _MOST_SPECIES + 1, _NUM_GENERA))
    genera_GF = random.normal(size=(_NUM_GENERA, _NUM_FEATURES))
    means_TF = genera_GF[genus_T] + random.normal(0, _SPECIES, (len(genus_T), _NUM_FEATURES))
    scale_F = np.linspace(1.5, 0.5, _NUM_FEATURES) * _NOISE
    is_new_T = genus_T >= 0.9 * _NUM_GENERA  # as many as the unknown species of known genera
    is_known_T = ~is_new_T & (random.random(len(genus_T)) > is_new_T.mean())
    known_TF = means_TF[is_known_T]
    taxa = tuple(
        Taxon(taxon_id=str(at), rank="species", scientific_name=f"Genus{genus} s{at}", genus=f"Genus{genus}")
        for at, genus in enumerate(genus_T[is_known_T])
    )
    outputs = tuple(Output(taxon.taxon_id, "drawn", taxon.taxon_id) for taxon in taxa)

    def network(mean_NF: Floats) -> Outputs:
        features = mean_NF + random.normal(size=mean_NF.shape) * scale_F
        scaled, means = features / scale_F, known_TF / scale_F
        logits = scaled @ means.T - (means**2).sum(axis=1) / 2
        return Outputs(logits.astype(np.float32), features.astype(np.float32))

    def plants(each: int) -> LabeledOutputs:
        labels = np.repeat(np.arange(len(taxa)), each)
        return LabeledOutputs(network(known_TF[labels]), labels)

    shift_F = random.normal(0, 0.4, _NUM_FEATURES)
    return Pictures(
        taxonomy=Taxonomy("drawn", taxa, outputs),
        temperature=1.0,
        training=plants(max(NUM_PICTURES)),
        validation=plants(2),
        calibration=plants(2),
        test=plants(2),
        unknown=network(np.repeat(means_TF[~is_known_T], 5, axis=0)),
        fit_things=network(shift_F + random.normal(0, 0.8, (300, _NUM_FEATURES))),
        test_things=network(shift_F + random.normal(0, 0.8, (1000, _NUM_FEATURES))),
    )


def photographs(command: FewPictures, manifest: Manifest) -> Pictures:
    """Runs the demonstration bundle on photographs, or reads what an earlier run kept."""
    bundle = load_bundle(DEMONSTRATION)
    network, spec = bundle.network_path("fp32"), bundle.record.input
    found: dict[str, Outputs] = {}
    if command.outputs is not None and command.outputs.exists():
        with np.load(command.outputs) as file:
            found = {name: Outputs(file[f"{name}/logits"], file[f"{name}/features"]) for name in file["names"]}
    labels: dict[str, Whole] = {}
    for split in ("train", "validation", "calibration", "test"):
        pictures = pictures_of(manifest, split, spec, workers=2)
        some = one_picture_each(pictures.plants)
        if split == "train":
            some = some_of_each(pictures.labels, max(NUM_PICTURES))
        pictures = msgspec.structs.replace(pictures, rows=pictures.rows[some])
        labels[split] = pictures.labels
        if split not in found:
            found[split] = pictures.outputs(network)
    lists = {
        "unknown": (command.unknown, "test"),
        "fit": (command.negatives, "fit"),
        "things": (command.negatives, "test"),
    }
    for name, (folder, split) in lists.items():
        if name not in found and folder is not None:
            found[name], _ = PictureFiles(list_negatives((folder,), (split,)).paths, spec).outputs(network)
    if command.outputs is not None and not command.outputs.exists():
        arrays = {f"{name}/{field}": rows[:] for name, of in found.items() for field, rows in of._asdict().items()}
        np.savez(command.outputs, names=np.array(list(found)), **arrays)
    return Pictures(
        taxonomy=bundle.taxonomy,
        temperature=bundle.network("fp32").temperature,
        training=LabeledOutputs(found["train"], labels["train"]),
        validation=LabeledOutputs(found["validation"], labels["validation"]),
        calibration=LabeledOutputs(found["calibration"], labels["calibration"]),
        test=LabeledOutputs(found["test"], labels["test"]),
        unknown=found["unknown"],
        fit_things=found["fit"],
        test_things=found["things"],
    )


def markdown(result: Result) -> str:
    """Returns the figures as a table; with an earlier result each cell has its figure first."""
    columns = (
        "pictures of a taxon",
        "unknown plants: AUROC of the distance",
        "of familiarity",
        "named as a species",
        "other things: AUROC",
        "named",
        "known plants: taken for things",
        "named as a species",
    )
    rows = []
    for title in ("drawn", "photographs"):
        now: list[Row] = getattr(result, title)
        past: list[Row] = getattr(result.before, title) if result.before else []
        for at, row in enumerate(now):
            pairs = zip(*(figures(each) for each in (*past[at : at + 1], row)), strict=True)
            rows.append((f"{title}, {row.num_pictures}", *(" to ".join(pair) for pair in pairs)))
    return table(columns, rows)


def figures(row: Row) -> tuple[str, ...]:
    """Returns the cells of a row after the first."""
    aurocs = row.distance_auroc, row.unknown.auroc, row.things.auroc
    distance, familiarity, things = (f"{each:.3f}" for each in aurocs)
    shares = row.unknown.named_species, row.things.named, row.not_a_plant, row.named_species
    unknown, named, stopped, species = (f"{100 * each.value:.1f} %" for each in shares)
    return distance, familiarity, unknown, things, named, stopped, species


if __name__ == "__main__":
    main()
