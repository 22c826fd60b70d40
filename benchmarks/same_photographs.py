"""Program: asks a bundle about photographs: known plants, alone and together, strangers, and other things.

Figures of two bundles compare if they were asked about the same photographs.

python benchmarks/same_photographs.py BUNDLE --data DATA --strangers LIST ... --things DIR [--out FILE.json]

The bundle was not trained, fitted or chosen on the test split of DATA. `--strangers` are lists with the column
scientific_name that took part in no training and no fit; a picture of a genus that the bundle knows is a near stranger.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np
import tyro

from benchmarks.result import Measured, percent, table, write_result
from benchmarks.serving.flags import Network, network_of
from models.answer import PlantAnswer, Question, answer_plant
from models.arrays import Flags
from models.bundle import Bundle, load_bundle
from models.figures import SeveralPictures, several_pictures
from models.harmful import harms_of
from models.metrics import Share, calibration_error, share
from models.outputs import Outputs
from models.program import run_program
from models.scoring import AnswerModel, Decisions, GuessShare, decide
from models.taxonomy import Taxon
from training.dataset.manifest import Manifest
from training.fit.pictures import PictureFiles, bundle_network, pictures_of, run
from training.fit.provenance import require_same_outputs
from training.fit.unknown_plants import UnknownPlants, names_of
from training.loading.negatives import UNKNOWN_PLANT, list_negatives

_STRANGERS: Final = 1 / 3  # for each known plant: one plant in four, as in what a bundle tells of its guesses


class SamePhotographs(msgspec.Struct, frozen=True, kw_only=True):
    """Asks a bundle about photographs."""

    bundle: tyro.conf.Positional[Path]
    """Folder of the bundle."""
    data: Path
    """Prepared data."""
    strangers: tuple[Path, ...]
    """Lists of photographs of plants that the bundle does not know."""
    things: Path
    """Pictures without a plant: the rows of split test of a list."""
    out: Path | None = None
    """File for the result (JSON)."""


class Guesses(msgspec.Struct, frozen=True):
    """What answers without a name tell of their guesses, and what was true, where one plant in four is a stranger."""

    number: int
    """Of known plants with such an answer."""
    told: float
    """Mean share of right first guesses."""
    right: float
    told_three: float
    """The same of one among the first three."""
    right_three: float


class KnownPlants(msgspec.Struct, frozen=True):
    """Answers to test photographs of taxa that the bundle knows."""

    what: str
    """Data set, or those that the network was trained on, or those that it was not."""
    top1: Share
    named: Share
    """Those whose verdict has the rank of their taxon: a species, or for a taxon of rank genus a genus."""
    names_right: Share | None
    """Of all names, at any rank; None if there is none."""
    ece: float
    several: list[SeveralPictures]
    """Photographs of one taxon together."""
    guesses: Guesses | None
    warned: Share | None
    """Plants that do not harm gravely by touch with a warning of touch above every name."""
    harmless: Share | None
    """Plants that harm gravely that get the name of a taxon that does not."""


class UnknownFigures(msgspec.Struct, frozen=True):
    """Answers to a list of plants that the bundle does not know, or of other things."""

    what: str
    named_species: Share
    """Those that get the name of a species, which is wrong."""
    wrong: Share
    """Those that get a wrong name at any rank."""
    not_a_plant: Share


class Result(Measured, frozen=True, kw_only=True):
    """The content of the result file."""

    bundle: str
    """Name and version."""
    network: Network
    known: list[KnownPlants]
    """Of trained sources, of others, and of each trained one."""
    unknown: list[UnknownFigures]
    """Each list, those of unknown genera and those of known genera apart, and the things."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(SamePhotographs, measure, description=__doc__)


def measure(command: SamePhotographs) -> Result:
    """Measures, prints the tables, and writes the result if `out` is given."""
    bundle, manifest = load_bundle(command.bundle), Manifest(command.data)
    require_same_outputs(manifest, bundle.taxonomy.output_keys, "bundle")
    model, pictures = bundle.answer_model("fp32"), pictures_of(manifest, "test", bundle.record.input, workers=1)
    outputs, sources = run(bundle_network(bundle, "fp32"), pictures), np.array(pictures.sources)
    unknown, doubts = [], []
    for part, answers in _unknown(bundle, model, command):
        unknown.append(part)
        doubts += [each.guess for each in answers]
    trained = sorted({*manifest.table["source"].take(manifest.rows_of("train")).to_pylist()})
    own = np.isin(sources, trained)
    groups = {"trained sources": own, "other sources": ~own} | {each: sources == each for each in trained}
    known = [
        known_plants(what, outputs.choose(np.flatnonzero(chosen)), doubts, model)
        for what, chosen in groups.items()
        if chosen.any()
    ]
    name = f"{bundle.record.name} {bundle.record.version}"
    result = Result(bundle=name, network=network_of(bundle), known=known, unknown=unknown)
    write_result(result, markdown(result), command.out)
    return result


def known_plants(what: str, outputs: Outputs, doubts: list[GuessShare | None], model: AnswerModel) -> KnownPlants:
    """Measures the answers to known plants; `doubts` are those that answers to strangers tell."""
    scores, answers = outputs.score(model), answers_of(outputs, model)
    decisions = decide(scores, model)
    named_N = decisions.named_N
    taxa = [model.taxonomy.taxa[taxon] for taxon in scores.taxon_labels_N]
    shown = list(zip(answers, taxa, strict=True))
    own_rank = sum(answer.verdict.rank == taxon.rank for answer, taxon in shown)
    grave_T = model.taxonomy.grave_harms["touch"][0]
    warned = [
        any(harm.is_likely and harm.harm.kind == "touch" for harm in answer.harmful)
        for answer, taxon in zip(answers, scores.taxon_labels_N, strict=True)
        if not grave_T[taxon]
    ]
    harmless = [
        answer.verdict.rank in ("species", "genus") and not harms_gravely(answer.taxa[0].taxon)
        for answer, taxon in shown
        if harms_gravely(taxon)
    ]
    return KnownPlants(
        what,
        share(int(scores.hits.sum()), len(taxa)),
        share(own_rank, len(taxa)),
        _share_of(scores.right_names(decisions)[named_N].tolist()),
        calibration_error(scores.confidence_N, scores.hits, outputs.plants).value,
        several_pictures(outputs, scores.taxon_labels_N, model),
        guesses(shown, doubts),
        _share_of(warned),
        _share_of(harmless),
    )


def answers_of(outputs: Outputs, model: AnswerModel) -> list[PlantAnswer]:
    """Returns the answer about each picture alone."""
    each_alone = np.arange(len(outputs.labels))[:, None]
    return [answer_plant(outputs.logits[at], outputs.features[at], model, Question(top_k=3)) for at in each_alone]


def _share_of(flags: list[bool]) -> Share | None:
    return share(sum(flags), len(flags)) if flags else None


def harms_gravely(taxon: Taxon) -> bool:
    """Tells whether a taxon harms gravely, by touch or if it is eaten."""
    return any(harm.is_grave for harm in harms_of(taxon.scientific_name, taxon.genus))


def guesses(known: list[tuple[PlantAnswer, Taxon]], doubts: list[GuessShare | None]) -> Guesses | None:
    """Compares what is told of guesses with what is true; strangers are so many that every fourth plant is one."""
    rows = []
    for answer, taxon in known:
        if (guess := answer.guess) is not None and guess.three is not None:
            names = [each.taxon.taxon_id for each in answer.taxa]
            rows.append((1.0, guess.first, names[0] == taxon.taxon_id, guess.three, taxon.taxon_id in names))
    if not (number := len(rows)):
        return None
    weight = len(known) * _STRANGERS / max(len(doubts), 1)
    rows += [(weight, each.first, False, each.three, False) for each in doubts if each and each.three is not None]
    weights, *columns = np.array(rows, float).T
    return Guesses(number, *(float(np.average(each, weights=weights)) for each in columns))


def _unknown(
    bundle: Bundle, model: AnswerModel, command: SamePhotographs
) -> Iterator[tuple[UnknownFigures, list[PlantAnswer]]]:
    """Yields the figures of each list of strangers with the answers to them, and of the things without any."""
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
                counted = _counted(f"{given.name}, {what}", decisions, part.right_names(decisions))
                yield counted, answers_of(outputs.choose(np.flatnonzero(chosen)), model)
    things = PictureFiles(list_negatives((command.things,), ("test",)).paths, spec)
    decisions = decide(run(network, things).score(model), model)
    yield _counted("other things", decisions, np.zeros(len(decisions.rank_N), dtype=bool)), []


def _counted(what: str, decisions: Decisions, right_N: Flags) -> UnknownFigures:
    wrong = int((decisions.named_N & ~right_N).sum())
    counts = decisions.count("species"), wrong, decisions.count("not_a_plant")
    return UnknownFigures(what, *(share(each, len(right_N)) for each in counts))


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""

    def shown(figure: Share | None) -> str:
        return "-" if figure is None else percent(figure)

    several = [(each.what, one) for each in result.known for one in each.several]
    guessed = [(each.what, each.guesses) for each in result.known if each.guesses is not None]
    tables = [
        table(
            ("test photographs", "top-1", "named at its rank", "names right", "ECE"),
            [
                (each.what, *map(shown, (each.top1, each.named, each.names_right)), f"{each.ece:.3f}")
                for each in result.known
            ],
        ),
        table(
            ("test photographs", "of one taxon", "top-1", "named", "names right"),
            [(what, str(one.num_pictures), *map(shown, (one.top1, one.named, one.right))) for what, one in several],
        ),
        table(
            ("test photographs", "without a name", "first is right: told", "true", "one of three: told", "true"),
            [
                (what, str(one.number), *map("{:.0%}".format, (one.told, one.right, one.told_three, one.right_three)))
                for what, one in guessed
            ],
        ),
        table(
            ("test photographs", "harmless to touch, but warned of", "harmful, named as harmless"),
            [(each.what, shown(each.warned), shown(each.harmless)) for each in result.known],
        ),
        table(
            ("photographs", "named a species", "wrong name at any rank", "not a plant"),
            [(each.what, *map(shown, (each.named_species, each.wrong, each.not_a_plant))) for each in result.unknown],
        ),
    ]
    return "\n\n".join([f"{result.bundle}. {result.machine}.", *tables])


if __name__ == "__main__":
    main()
