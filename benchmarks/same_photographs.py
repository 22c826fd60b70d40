"""Program: asks two bundles about the same photographs: known plants, plants that neither knows, and other things.

python benchmarks/same_photographs.py --old BUNDLE --new BUNDLE --data DATA --strangers LIST ... --things DIR
    [--out FILE.json]

DATA is that of the new bundle, and its test split must be no training data of the old one: `training/release.py`
compares the two. `--strangers` are lists with the column scientific_name that took part in no training and no fit; a
picture of a genus that a bundle knows is a near stranger to it.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.result import Measured, percent, table, write_result
from benchmarks.serving.flags import DEMONSTRATION, Network, network_of
from models.arrays import Flags
from models.bundle import Bundle, load_bundle
from models.figures import coverage_figures
from models.metrics import Share, Whole, calibration_error, share
from models.program import run_program
from models.scoring import AnswerModel, Decisions, decide
from training.comparison import UNKNOWN_TAXON, frozen_set
from training.dataset.manifest import Manifest
from training.fit.pictures import PictureFiles, Pictures, bundle_network, run
from training.fit.unknown_plants import UnknownPlants, names_of
from training.loading.negatives import UNKNOWN_PLANT, list_negatives

_COVERAGE: Final = 0.9


class SamePhotographs(msgspec.Struct, frozen=True, kw_only=True):
    """Asks two bundles about the same photographs."""

    old: Path = DEMONSTRATION
    """Bundle to compare with."""
    new: Path
    """The new bundle."""
    data: Path
    """Prepared data of the new bundle."""
    strangers: tuple[Path, ...]
    """Lists of photographs of plants that no bundle knows."""
    things: Path
    """Pictures without a plant: the rows of split test of a list."""
    out: Path | None = None
    """File for the result (JSON)."""


class KnownPlants(msgspec.Struct, frozen=True):
    """Answers to test photographs of taxa that the bundle knows."""

    what: str
    """Data set, or all."""
    top1: Share
    named: Share
    """Those whose verdict has the rank of their taxon: a species, or for a taxon of rank genus a genus."""
    names_right: Share | None
    """Of all names, at any rank; None if there is none."""
    ece: float
    covered: Share | None
    """Those whose candidate set of 90 % holds the right taxon; None if the bundle gives no sets."""


class UnknownFigures(msgspec.Struct, frozen=True):
    """Answers to a list of plants that the bundle does not know, or of other things."""

    what: str
    named_species: Share
    """Those that get the name of a species, which is wrong."""
    wrong: Share
    """Those that get a wrong name at any rank."""
    not_a_plant: Share


class Answers(msgspec.Struct, frozen=True):
    """The answers of one bundle."""

    bundle: str
    """Name and version."""
    network: Network
    known: list[KnownPlants]
    """On the taxa that both bundles know: all, and each data set."""
    own: KnownPlants
    """On all taxa that this bundle knows."""
    unknown: list[UnknownFigures]
    """Each list, those of unknown genera and those of known genera apart, and the things."""


class Result(Measured, frozen=True, kw_only=True):
    """The content of the result file."""

    bundles: tuple[Answers, Answers]
    """The old and the new one."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(SamePhotographs, measure_both, description=__doc__)


def measure_both(command: SamePhotographs) -> Result:
    """Measures, prints the tables, and writes the result if `out` is given."""
    manifest, bundles = Manifest(command.data), (load_bundle(command.old), load_bundle(command.new))
    rows, ids = frozen_set(manifest, "test", *(each.taxonomy for each in bundles))
    shared = rows[ids != UNKNOWN_TAXON]
    old, new = (measure(bundle, manifest, shared, command) for bundle in bundles)
    result = Result(bundles=(old, new))
    write_result(result, markdown(result), command.out)
    return result


def measure(bundle: Bundle, manifest: Manifest, shared: Whole, command: SamePhotographs) -> Answers:
    """Measures one bundle; `shared` are the rows whose taxa both bundles know."""
    model, network, spec = bundle.answer_model("fp32"), bundle_network(bundle, "fp32"), bundle.record.input
    first = {output.taxon_id: at for at, output in reversed(list(enumerate(bundle.taxonomy.outputs)))}
    ids = [output.taxon_id for output in manifest.taxonomy.outputs]
    rows = manifest.rows_of("test")
    rows = rows[[ids[label] in first for label in manifest.labels[rows]]]
    pictures = Pictures(manifest, rows, spec, "test", workers=1)
    labels = np.array([first[ids[label]] for label in manifest.labels[rows]])
    outputs = replace(run(network, pictures), labels=labels)
    scores = outputs.score(model)
    sources = np.array(manifest.table["source"].take(rows).to_pylist())
    decisions = decide(scores, model)
    are_right_N = scores.right_names(decisions)
    shared_N = np.isin(rows, shared)
    groups = {"all": shared_N} | {source: shared_N & (sources == source) for source in sorted({*sources[shared_N]})}

    def figures(what: str, chosen: Flags) -> KnownPlants:
        found, at = scores.subset(chosen), np.flatnonzero(chosen)
        own = np.array([model.taxonomy.taxa[taxon].rank for taxon in found.taxon_labels_N])
        right_N = are_right_N[chosen]
        named = decisions.named_N[chosen]
        sets = coverage_figures(outputs.choose(at).logits, found.taxon_labels_N, model)
        return KnownPlants(
            what,
            share(int(found.hits.sum()), len(at)),
            share(int((decisions.rank_N[chosen] == own).sum()), len(at)),
            share(int(right_N[named].sum()), int(named.sum())) if named.any() else None,
            calibration_error(found.confidence_N, found.hits, pictures.plants[chosen]).value,
            next((each.covered for each in sets if (each.kind, each.coverage) == ("marginal", _COVERAGE)), None),
        )

    return Answers(
        f"{bundle.record.name} {bundle.record.version}",
        network_of(bundle),
        [figures(what, chosen) for what, chosen in groups.items()],
        figures("all that it knows", np.ones(len(rows), dtype=bool)),
        list(_unknown(bundle, model, command)),
    )


def _unknown(bundle: Bundle, model: AnswerModel, command: SamePhotographs) -> Iterator[UnknownFigures]:
    """Yields the figures of each list of strangers, and of the things."""
    network, spec = bundle_network(bundle, "fp32"), bundle.record.input
    for given in command.strangers:
        listed = list_negatives((given,), label=UNKNOWN_PLANT)
        paths, names = names_of(listed, model.taxonomy)
        outputs = run(network, PictureFiles(paths, spec, name=given.name))
        names = names.subset(outputs.rows)
        scores = UnknownPlants(outputs, names).predictions(model)
        for what, chosen in (("unknown genera", ~names.near_M), ("known genera", names.near_M)):
            if chosen.any():
                part = scores.subset(chosen)
                decisions = decide(part, model)
                yield _counted(f"{given.name}, {what}", decisions, part.right_names(decisions))
    things = PictureFiles(list_negatives((command.things,), ("test",)).paths, spec)
    decisions = decide(run(network, things).score(model), model)
    yield _counted("other things", decisions, np.zeros(len(decisions.rank_N), dtype=bool))


def _counted(what: str, decisions: Decisions, right_N: Flags) -> UnknownFigures:
    wrong = int((decisions.named_N & ~right_N).sum())
    counts = decisions.count("species"), wrong, decisions.count("not_a_plant")
    return UnknownFigures(what, *(share(each, len(right_N)) for each in counts))


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""
    old, new = result.bundles
    names = [each.bundle for each in result.bundles]

    def known(each: KnownPlants) -> tuple[str, ...]:
        right, covered = ("-" if figure is None else percent(figure) for figure in (each.names_right, each.covered))
        return percent(each.top1), percent(each.named), right, f"{each.ece:.3f}", covered

    shares = ("top-1", "named at its rank", "names right", "ECE", "candidate sets of 90 %")
    columns = ("test photographs", "bundle", *shares)
    rows = [
        (each.what, name, *known(each))
        for pair in zip((*old.known, old.own), (*new.known, new.own), strict=True)
        for name, each in zip(names, pair, strict=True)
    ]
    unknown = [
        (each.what, name, percent(each.named_species), percent(each.wrong), percent(each.not_a_plant))
        for name, answers in zip(names, result.bundles, strict=True)
        for each in answers.unknown
    ]
    return "\n\n".join(
        [
            f"{result.machine}.",
            table(columns, rows),
            table(("photographs", "bundle", "named a species", "wrong name at any rank", "not a plant"), unknown),
        ]
    )


if __name__ == "__main__":
    main()
