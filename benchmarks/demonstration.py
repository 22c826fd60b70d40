"""Program: measures how far the answers of the demonstration bundle can be believed.

python benchmarks/demonstration.py --data DATA --negatives DIR --unknown DIR --photographs DIR
    [--out FILE.json]

The test split judges names, scores and candidate sets; `--negatives` shows other things, `--unknown` seedlings. What
becomes of wild flowers that a bundle does not know is measured by benchmarks/same_photographs.py.
"""

import csv
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import numpy as np

from benchmarks.result import percent, table, write_result
from benchmarks.serving.flags import DEMONSTRATION, Network, network_of
from benchmarks.serving.photographs import drawn_photographs
from models.answer import PlantAnswer, Question, answer_plant, decide
from models.bundle import Bundle, load_bundle
from models.metrics import Share, share
from models.preprocess import picture_to_input
from models.program import run_program
from models.ranking import Promise, Promises, Thresholds, VerdictRank
from training.dataset.manifest import Manifest
from training.evaluate import Evaluate, bundle_subject, evaluate, measure
from training.evaluation.answers import ServedAnswers
from training.evaluation.pictures import PictureFiles
from training.evaluation.split_metrics import SplitMetrics, class_metrics, evaluate_predictions
from training.machine import Machine, this_machine

_NUM_WORST: Final = 10
_TIMED: Final = 30
_SERVED_FILE: Final = "bundle-test-served.json"


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """Measures the answers of a bundle, with its tables."""

    bundle: Path = DEMONSTRATION
    """The bundle."""
    data: Path
    """Prepared data that it was trained with."""
    negatives: Path
    """Pictures that show no plant, see training/evaluate.py."""
    unknown: Path
    """Seedlings: a folder with labels.csv (path, scientific_name)."""
    photographs: Path
    """Folder of phone photographs; those named phone_flower* and phone_leaf* show plants that the bundle does not
    know."""
    workers: int = 2
    """Loader processes; 0 loads in the main process."""
    out: Path | None = None
    """File for the result (JSON)."""


class PhoneAnswer(msgspec.Struct, frozen=True):
    """The answer to one phone photograph."""

    file: str
    verdict: VerdictRank
    name: str | None
    score: float
    best: str
    """The likeliest taxon, whether or not it is named."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the result file."""

    machine: Machine
    measured_on: str
    network: Network
    thresholds: Thresholds
    promises: Promises
    metrics: SplitMetrics
    """The figures of `evaluate.py` on the test split."""
    served: ServedAnswers
    """Its figures of the answers as they are served; `unknown` are the seedlings of species that it does not know."""
    top1_by_set: dict[str, Share]
    """Data set -> top-1 on its test photographs."""
    worst: list[tuple[str, float, int]]
    """Name, top-1 and test photographs of the taxa that are named right least often."""
    named_at_own_rank: Share
    """Test photographs whose verdict has the rank of their taxon: a species, or for a taxon of rank genus a genus."""
    named_species: Share
    """Of the test photographs of species, those whose verdict is a species."""
    seedlings: dict[str, dict[VerdictRank, int]]
    """Species, marked if the bundle knows it -> number of its seedlings by rank of the verdict."""
    seedlings_not_a_plant: Share
    """Seedlings of all species that are taken for other things."""
    photographs: list[PhoneAnswer]
    answer_ms: float
    """Median time of one answer to a picture of 1 MP on one thread: decoding, network and tables."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Demonstration, measure_all, description=__doc__)


def measure_all(command: Demonstration) -> Result:
    """Measures, prints the tables, and writes the result if `out` is given."""
    bundle, manifest = load_bundle(command.bundle), Manifest(command.data)
    model = bundle.answer_model("fp32")
    predictions, outputs = measure(bundle_subject(bundle, "fp32"), manifest, "test", command.workers)
    evaluation = evaluate_predictions(
        predictions, manifest, network="bundle", split="test", temperature=model.temperature
    )
    rank_N = decide(outputs.score(model, predictions.labels_N), model).rank_N
    own_N = np.array([bundle.taxonomy.taxa[taxon].rank for taxon in predictions.taxon_labels_N])
    seedlings, strangers = _seedlings(command.unknown, bundle)
    verdicts = Counter(rank for ranks in seedlings.values() for rank in ranks.elements())
    result = Result(
        machine=this_machine(),
        measured_on=datetime.now(UTC).date().isoformat(),
        network=network_of(bundle),
        thresholds=model.thresholds,
        promises=model.promises,
        metrics=evaluation.all,
        served=_served(command, strangers),
        top1_by_set={source: each.top1_taxon for source, each in evaluation.by_source.items()},
        worst=[
            (each.scientific_name, each.top1, each.num_pictures)
            for each in list(class_metrics(predictions, manifest.taxonomy))[:_NUM_WORST]
        ],
        named_at_own_rank=share(int((rank_N == own_N).sum()), len(own_N)),
        named_species=share(int((rank_N[own_N == "species"] == "species").sum()), int((own_N == "species").sum())),
        seedlings={name: dict(ranks) for name, ranks in seedlings.items()},
        seedlings_not_a_plant=share(verdicts["not_a_plant"], verdicts.total()),
        photographs=_phone_answers(bundle, command.photographs),
        answer_ms=_answer_ms(bundle),
    )
    write_result(result, markdown(result), command.out)
    return result


def _seedlings(folder: Path, bundle: Bundle) -> tuple[dict[str, Counter[VerdictRank]], tuple[Path, ...]]:
    """Returns the verdicts by species, and the photographs of species that the bundle does not know."""
    with (folder / "labels.csv").open(newline="", encoding="utf-8") as stream:
        names = {folder.resolve() / row["path"]: row["scientific_name"] for row in csv.DictReader(stream)}
    taxa = {taxon.scientific_name for taxon in bundle.taxonomy.taxa}
    verdicts: dict[str, Counter[VerdictRank]] = {}
    for name, answer in zip(names.values(), _answers(bundle, tuple(names)), strict=True):
        marked = f"{name} (known)" if name in taxa else name
        verdicts.setdefault(marked, Counter())[answer.verdict.rank] += 1
    return verdicts, tuple(path for path, name in names.items() if name not in taxa)


def _phone_answers(bundle: Bundle, folder: Path) -> list[PhoneAnswer]:
    paths = tuple(sorted([*folder.glob("phone_flower*"), *folder.glob("phone_leaf*")]))
    found = _answers(bundle, paths) if paths else []
    return [
        PhoneAnswer(
            path.name, each.verdict.rank, each.verdict.name, each.taxa[0].score, each.taxa[0].taxon.scientific_name
        )
        for path, each in zip(paths, found, strict=True)
    ]


def _answers(bundle: Bundle, paths: tuple[Path, ...]) -> list[PlantAnswer]:
    """Returns the answer of the service to each photograph alone."""
    files = PictureFiles(paths, bundle.record.input, least=len(paths))
    outputs, model = files.outputs(bundle.network_path("fp32"))[0], bundle.answer_model("fp32")
    pairs = zip(outputs.logits[:], outputs.features[:], strict=True)
    return [answer_plant(logits_O[None], features_F[None], model, Question()) for logits_O, features_F in pairs]


def _served(command: Demonstration, strangers: tuple[Path, ...]) -> ServedAnswers:
    with tempfile.TemporaryDirectory(prefix="demonstration-") as temporary:
        unknown = Path(temporary) / "seedlings.csv"
        unknown.write_text("\n".join(["path", *map(str, strangers), ""]), encoding="utf-8")
        return _evaluated(command.data, command.bundle, unknown, command.workers, negatives=command.negatives)[1]


def _evaluated(
    data: Path, bundle: Path, unknown: Path, workers: int, *, negatives: Path | None = None
) -> tuple[SplitMetrics, ServedAnswers]:
    """Runs training/evaluate.py on the test split; returns its figures."""
    with tempfile.TemporaryDirectory(prefix="demonstration-") as out:
        flags = Evaluate(data=data, bundle=bundle, negatives=negatives, unknown=unknown, out=Path(out), workers=workers)
        (evaluation,) = evaluate(flags)
        served = (Path(out) / _SERVED_FILE).read_bytes()
    return evaluation.all, msgspec.json.decode(served, type=ServedAnswers)


def _answer_ms(bundle: Bundle) -> float:
    """Times one answer to a picture of 1 MP on one thread, decoding included."""
    session, model = bundle.open_session("fp32", num_threads=1), bundle.answer_model("fp32")
    content, times = drawn_photographs()["1 MP"].data, []
    for _ in range(_TIMED):
        start = time.perf_counter()
        pixels, _ = picture_to_input(content, bundle.record.input)
        found = session.run(pixels[None])
        answer_plant(found.logits, found.features, model, Question(coverage=0.9))
        times.append(1e3 * (time.perf_counter() - start))
    return float(np.median(times))


def markdown(result: Result) -> str:
    """Returns the result as Markdown tables."""
    sets = [(name, percent(each)) for name, each in result.top1_by_set.items()]
    worst = [(name, f"{top1:.0%} of {number}") for name, top1, number in result.worst]
    ranks: tuple[VerdictRank, ...] = ("species", "genus", "family", "uncertain", "not_a_plant")
    seedlings = [(name, *(str(each.get(rank, 0)) for rank in ranks)) for name, each in result.seedlings.items()]
    phones = [
        (each.file, each.verdict, each.name or "-", f"{each.best} {each.score:.2f}") for each in result.photographs
    ]
    columns = ("candidate sets", "asked", "plants covered", "mean of the taxa", "mean size")
    sets_of = [
        (
            each.kind,
            f"{each.coverage:.2f}",
            percent(each.covered),
            f"{each.macro_covered:.3f}",
            f"{each.mean_size:.2f}",
        )
        for each in result.served.candidates
    ]
    further = [
        ("top-5", percent(result.metrics.top5_taxon)),
        ("plants named at the rank of their taxon", percent(result.named_at_own_rank)),
        ("species named a species", percent(result.named_species)),
        ("seedlings taken for other things", percent(result.seedlings_not_a_plant)),
        ("one answer to 1 MP on one thread", f"{result.answer_ms:.0f} ms"),
    ]
    tables = [
        table(("figure", "measured"), _figures(result)),
        table(columns, sets_of),
        table(("figure", "measured"), further),
        table(("data set", "top-1"), sets),
        table(("worst taxa", "top-1"), worst),
        table(("seedlings", *ranks), seedlings),
        table(("phone photograph", "verdict", "name", "likeliest"), phones),
    ]
    return "\n\n".join([f"{result.machine}: {result.network}.", *tables])


def _figures(result: Result) -> list[tuple[str, str]]:
    """Accuracy, verdicts and rejection, in words and figures."""
    rows = [
        ("top-1", percent(result.metrics.top1_taxon)),
        ("calibration error (ECE, 15 bins)", f"{result.metrics.ece.value:.4f}"),
    ]
    for rank, names in result.served.verdicts.by_rank.items():
        promise: Promise | None = getattr(result.promises, rank)
        if names.right:
            promised = f"at least {100 * (1 - promise.max_risk):.0f} %" if promise else "nothing"
            rows.append((f"right names of rank {rank}", f"{percent(names.right)}; promised: {promised}"))
    rows += [(f"top-1 of {each.num_pictures} pictures", percent(each.top1)) for each in result.served.several_pictures]
    for name, strangers in (("other things", result.served.things), ("unknown plants", result.served.unknown)):
        if strangers:
            rows.append((f"{name}: AUROC of the {strangers.score}", f"{strangers.auroc:.3f}"))
            rows.append((f"{name} accepted where 95 % of known plants are", percent(strangers.fpr95)))
            rows.append((f"{name} named at any rank", percent(strangers.named)))
            rows.append((f"{name} named a species", percent(strangers.named_species)))
    return rows


if __name__ == "__main__":
    main()
