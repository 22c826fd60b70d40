"""Program: measures the accuracy of a checkpoint or a bundle on a split, and how often the two agree.

python training/evaluate.py --data DATA --bundle DIR [--checkpoint FILE] [--negatives DIR] [--unknown DIR] [--out DIR]
python training/evaluate.py --data DATA --bundle NEW --against OLD      # what is lost from one bundle to another
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.program import explain_missing_packages, run_program

explain_missing_packages("make train-env")

import msgspec

from models.atomic_file import as_json, replace_together, write_json
from models.bundle import Bundle, load_bundle
from models.bundle_record import Precision
from models.errors import DataError, some_of
from models.figures import ClassMetrics, Figures, ServedAnswers, SplitMetrics, class_metrics, judge_answers, measure
from models.metrics import Share, share
from models.outputs import Predictions
from models.preprocess import InputSpec
from models.scoring import AnswerModel
from models.session import NetworkOutput
from models.text_table import as_csv
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.fit.provenance import OTHER_DATA, is_other_data, require_same_outputs
from training.recipe import HardwareRecipe, WholeNumber
from training.toml_file import Section

# PyTorch takes seconds to load. The functions that need it import it, so that --help and a wrong flag answer at once.
if TYPE_CHECKING:
    from training.comparison import Comparison
    from training.fit.pictures import Network, Pixels

COMPARISON_FILE: Final = "comparison.json"
_MOST_NAMES: Final = 20  # in one line; the JSON has them all


class Measuring(Section, frozen=True, kw_only=True):
    """Options of the programs that measure bundles."""

    shards: str = ""
    """Folder or URL (s3://, gs://) with the shards of packed data; default: the data folder."""
    split: Split = "test"
    """Split whose pictures are used."""
    trained_on: tuple[Path, ...] = ()
    """Folders of prepared data that two bundles to compare were trained on, unless that is DATA itself. They show that
    no picture was trained on."""
    precision: Precision = "fp32"
    """Precision of the network; two bundles to compare must both have it."""
    workers: WholeNumber = 2
    """Loader processes; 0 loads in the main process."""


class Evaluate(Measuring, frozen=True, kw_only=True):
    """Measures a checkpoint, a bundle, or both; or compares two bundles."""

    data: Path
    """Folder written by training/prepare.py."""
    checkpoint: Path | None = None
    """Checkpoint of training/train.py; measured without calibration and in single precision, at the input size of the
    bundle if --bundle is given too."""
    bundle: Path | None = None
    """Bundle; measured as it is served."""
    against: Path | None = None
    """Another bundle: says what is lost from it to --bundle on the pictures of the taxa that both know, and whether
    training/release.py would refuse that. --out then gets comparison.json alone."""
    other_data: bool = False
    """Measure with data that the network was not trained with, such as another split. Its test pictures may be training
    pictures, so every figure and file name says that it is other data."""
    negatives: Path | None = None
    """Pictures that show no plant, a folder or a CSV list: measures how many of them the bundle names as a plant."""
    negatives_split: str = "test"
    """Split whose rows are used, if a list of --negatives or --unknown has the column `split`; export.py fits on the
    rows fit and train."""
    unknown: Path | None = None
    """Pictures of plants whose species the bundle does not know: measures how many of them it names as a species."""
    out: Path | None = None
    """Folder for the report (JSON), the per-class table and the predictions (CSV), and pictures of mistakes."""
    suspects: bool = False
    """Also list the training pictures whose label is probably wrong in --out (CSV), and draw the 50 worst. Judged by
    the features of the checkpoint, or of the bundle without one."""


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Evaluate, lambda command: (compare if command.against else evaluate)(command), description=__doc__)


def compare(command: Evaluate) -> "Comparison":
    """Compares the bundle with another one, says what a promotion would say, and writes it if `out` is given.

    Raises:
        DataError: There is no bundle to compare, or it shall be measured in another way too.
    """
    others = command.checkpoint or command.negatives or command.unknown or command.suspects
    if command.bundle is None or command.against is None or others:
        raise DataError(
            "--against compares two bundles, and measures nothing else",
            limit="--bundle NEW --against OLD",
            remedy="measure the rest by another command",
        )
    old, new = (load_bundle(folder) for folder in (command.against, command.bundle))
    found = compare_bundles(old, new, command, Manifest(command.data, command.shards))
    for reason in found.refusals:
        print(f"A promotion would be refused. {reason}")
    if found.refusals and found.may_be_accepted:
        print("No large loss is proved: a person may promote it with --accept-uncertain.")
    if command.out is not None:
        write_json(command.out / COMPARISON_FILE, found)
        print(f"Written: {command.out / COMPARISON_FILE}")
    return found


def compare_bundles(
    old: Bundle, new: Bundle, command: Measuring, manifest: Manifest, num_earlier: int | None = None
) -> "Comparison":
    """Compares two bundles and prints the figures; `num_earlier` comparisons on the split came before."""
    from rich.console import Console
    from rich.table import Table

    from training import comparison  # loads torch, for which --help does not wait

    found = comparison.compare(
        old,
        new,
        manifest,
        command.split,
        trained_on=[Manifest(folder) for folder in command.trained_on],
        precision=command.precision,
        workers=command.workers,
        num_earlier=num_earlier,
    )
    pictures = f"{found.micro_top1.num_pictures:,} pictures of {found.num_taxa:,} taxa that both bundles know"
    print(f"Compared on {pictures} ({found.data}).")
    if num_earlier:
        print(f"Comparison {num_earlier + 1} on this split: the more, the likelier that a loss passes by chance.")
    table = Table("", "old", "new", "loss, points", "95 % interval", "plants")
    top1 = {"micro top-1": found.micro_top1, "macro top-1": found.macro_top1}
    for name, lost in (top1 | msgspec.structs.asdict(found.answers)).items():
        if lost is None:
            table.add_row(name, "not judged")
            continue
        loss, low, high = (f"{100 * value:+.2f}" for value in (lost.loss, *lost.loss_interval_95))
        table.add_row(name, f"{lost.old:.1%}", f"{lost.new:.1%}", loss, f"{low} to {high}", f"{lost.num_plants:,}")
    Console().print(table)
    for title, names in (("New", found.added_taxa), ("Gone", found.removed_taxa)):
        print(f"{title} taxa ({len(names):,}): {some_of(names, _MOST_NAMES) or 'none'}.")
    if found.num_left_out:
        print(f"{found.num_left_out:,} pictures were left out: a bundle does not know their taxon.")
    return found


class Subject(msgspec.Struct, frozen=True):
    """A network to measure: a checkpoint or a bundle."""

    name: str
    run: "Network"
    input: InputSpec
    output_keys: tuple[str, ...]
    temperature: float
    trained_with: str
    """SHA-256 of the manifest of its training; empty if unknown."""
    bundle: Bundle | None = None
    """None for a checkpoint."""


class Evaluation(msgspec.Struct, frozen=True):
    """What was measured of a network."""

    subject: Subject
    figures: Figures
    predictions: Predictions
    other_data: bool
    """Whether the pictures are of other data than the network was trained with."""


def evaluate(command: Evaluate) -> list[Evaluation]:
    """Measures the checkpoint, the bundle or both, prints the metrics, and writes them if `out` is given.

    Raises:
        DataError: Neither checkpoint nor bundle is given, its outputs are not those of the data, or it was trained with
            other data and `other_data` is not set. Or further pictures are given without a bundle, or cannot be read.
            Or suspects are asked for without a folder, or no label can be judged.
    """
    from training.fit.pictures import PictureFiles, pictures_of, run

    if command.suspects and command.out is None:
        raise DataError(
            "the list of suspect labels has no folder",
            value="--suspects without --out",
            remedy="give --out DIR, or leave out --suspects",
        )
    manifest = Manifest(command.data, command.shards)
    strangers = _unknown_plants(command)
    results: list[Evaluation] = []
    bundle = load_bundle(command.bundle) if command.bundle is not None else None
    subjects = [bundle_subject(bundle, command.precision)] if bundle else []
    if command.checkpoint is not None:
        subjects.insert(0, _checkpoint_subject(command.checkpoint, bundle.record.input if bundle else None))
    if not subjects:
        raise DataError("there is nothing to evaluate", remedy="give --checkpoint FILE, --bundle DIR, or both")
    for subject in subjects:
        require_same_outputs(manifest, subject.output_keys, subject.name)
        other_data = is_other_data(manifest, subject.trained_with, subject.name, allowed=command.other_data)
        pictures = pictures_of(manifest, command.split, subject.input, command.workers)
        outputs = run(subject.run, pictures, command.out)
        predictions = outputs.score(AnswerModel(manifest.taxonomy, subject.temperature))
        figures = measure(predictions, manifest.taxonomy, pictures.sources)
        evaluation = Evaluation(subject, figures, predictions, other_data)
        results.append(evaluation)
        files = {} if command.out is None else _reports(evaluation, command.split, manifest)
        if subject.bundle is not None:
            others = {
                name: run(subject.run, PictureFiles(paths, subject.input), command.out)
                for name, paths in strangers.items()
            }
            # Labels are positions of outputs: the data may have other names, and other taxa that share outputs.
            model = subject.bundle.answer_model(command.precision)
            answers = judge_answers(model, outputs, **others)
            print("\n".join(_in_words(answers)))
            files["-served.json"] = as_json(answers)
        if command.out is not None:
            _write(command.out, evaluation, command.split, files)
    _print(results, command.split)
    if command.suspects:
        _write_suspects(command, subjects[0], manifest, other_data=results[0].other_data)
    return results


def _unknown_plants(command: Evaluate) -> dict[str, tuple[Path, ...]]:
    """Lists the pictures that judge the answers of a bundle, before anything is measured."""
    from training.loading.negatives import NOT_A_PLANT, UNKNOWN_PLANT, list_negatives

    given = {"things": (command.negatives, NOT_A_PLANT), "unknown": (command.unknown, UNKNOWN_PLANT)}
    folder = command.negatives or command.unknown
    if folder is not None and command.bundle is None:
        raise DataError(
            "pictures without a label judge the answers of a bundle, and none is given",
            value=folder,
            remedy="give --bundle DIR, or leave out --negatives and --unknown",
        )
    return {
        # A missing folder is an error that names the flag of its label.
        name: list_negatives((folder,), (command.negatives_split,), label).paths
        for name, (folder, label) in given.items()
        if folder is not None
    }


def bundle_subject(bundle: Bundle, precision: Precision) -> Subject:
    """Returns a bundle's network, run one picture at a time as the service does on a CPU."""
    from training.fit.pictures import bundle_network

    run = bundle_network(bundle, precision)
    temperature = bundle.network(precision).temperature
    record = bundle.record
    output_keys = bundle.taxonomy.output_keys
    return Subject("bundle", run, record.input, output_keys, temperature, record.manifest_sha256, bundle)


def _checkpoint_subject(path: Path, served: InputSpec | None) -> Subject:
    """Returns a checkpoint's network, without calibration: the moving average of its weights if it has one.

    `served` is the input of the bundle to compare with; default: that of the recipe.
    """
    import torch

    from models.network import ExportableNetwork
    from training.engine.checkpoint import read_checkpoint
    from training.engine.device import allow_tf32, choose_device
    from training.network_input import stored_input_spec

    checkpoint = read_checkpoint(path)
    device = choose_device(HardwareRecipe(amp="off"))
    allow_tf32(device, False)  # single precision, which PyTorch's default for convolutions is not
    exported = ExportableNetwork(checkpoint.trained_network()).to(device).eval()

    def run(batches: "Iterable[Pixels]") -> Iterator[NetworkOutput]:
        for pixels in batches:
            with torch.inference_mode():
                found = exported(torch.from_numpy(pixels).to(device, memory_format=torch.channels_last))
            yield NetworkOutput(*(each.float().cpu().numpy() for each in found))

    spec = served or stored_input_spec(checkpoint.recipe, origin=str(path))
    output_keys = tuple(checkpoint.output_keys)
    return Subject("checkpoint", run, spec, output_keys, temperature=1.0, trained_with=checkpoint.trained_with)


def _write_suspects(command: Evaluate, subject: Subject, manifest: Manifest, *, other_data: bool) -> None:
    """Lists the training pictures whose label is probably wrong, and draws the worst beside what they may be."""
    from training.fit.drawings import draw_suspects
    from training.fit.pictures import pictures_of, run
    from training.suspects import judge_labels, suspects_of, suspects_table

    assert command.out is not None  # `evaluate` has checked it
    pictures = pictures_of(manifest, "train", subject.input, command.workers)
    found = judge_labels(run(subject.run, pictures, command.out, with_logits=False), manifest.taxonomy)
    suspects = suspects_of(found)
    stem = f"{subject.name}-train{'-other-data' if other_data else ''}-suspects"
    files = {f"{stem}.csv": suspects_table(suspects, manifest)}
    if len(suspects.rows):
        files[f"{stem}.jpg"] = draw_suspects(suspects, manifest)
    else:
        (command.out / f"{stem}.jpg").unlink(missing_ok=True)  # of an earlier evaluation
    replace_together(command.out, files)
    print(f"{len(suspects.rows)} of {len(found.rows)} training pictures have a suspect label: {command.out / stem}.csv")
    if num_left_out := len(pictures) - len(found.rows):
        print(f"  {num_left_out} more were not judged, since their taxon has pictures of only one plant")


def _reports(evaluation: Evaluation, split: Split, manifest: Manifest) -> dict[str, bytes]:
    """Returns the files of one network, by the end of their names."""
    from training.fit.drawings import draw_mistakes

    taxa = manifest.taxonomy.taxa
    predictions = evaluation.predictions
    found = (predictions.rows, predictions.taxon_labels_N, predictions.named_N, predictions.confidence_N)
    answers = [
        (manifest.name(int(row)), taxa[right].taxon_id, taxa[named].taxon_id, f"{score:.6f}")
        for row, right, named, score in zip(*found, strict=True)
    ]
    classes = map(msgspec.structs.astuple, class_metrics(predictions, manifest.taxonomy))
    return {
        ".json": as_json(
            {
                "network": evaluation.subject.name,
                "split": split,
                "temperature": evaluation.subject.temperature,
                **msgspec.structs.asdict(evaluation.figures),
                "other_data": evaluation.other_data,
            }
        ),
        "-classes.csv": as_csv(ClassMetrics.__struct_fields__, classes),
        "-answers.csv": as_csv(("picture", "right_taxon_id", "named_taxon_id", "score"), answers),
        **{f"-{name}": content for name, content in draw_mistakes(predictions, manifest).items()},
    }


def _write(folder: Path, evaluation: Evaluation, split: Split, files: Mapping[str, bytes]) -> None:
    """Writes all files of one network, and removes pictures of an earlier evaluation that this one did not draw."""
    from training.fit.drawings import SHEETS

    stem = f"{evaluation.subject.name}-{split}{'-other-data' if evaluation.other_data else ''}"
    replace_together(folder, {f"{stem}{ending}": content for ending, content in files.items()})
    for name in SHEETS:
        if f"-{name}" not in files:
            (folder / f"{stem}-{name}").unlink(missing_ok=True)


def _in_words(found: ServedAnswers) -> Iterator[str]:
    """Yields the figures as lines of text."""
    counts = found.verdicts
    total = counts.num_pictures
    yield f"verdicts on {total} pictures, one at a time:"
    for rank, names in counts.by_rank.items():
        if names.right is not None:
            num_right = round(names.right.value * names.num_named)
            yield f"  {rank}: {names.num_named / total:.1%} of {total}, right {share(num_right, total)}"
    yield f"  uncertain: {counts.num_uncertain / total:.1%}; not a plant: {counts.num_not_a_plant / total:.1%}"
    for each in found.candidates:
        yield (
            f"candidate sets, {each.kind} coverage {each.coverage:.2f}: {each.covered}, "
            f"mean over taxa {each.macro_covered:.1%}, {each.mean_size:.1f} taxa on average"
        )
    for several in found.several_pictures:
        yield (
            f"{several.num_pictures} pictures of a species at once: top-1 {several.top1}; named {several.named}, "
            f"{several.right} of these right"
        )
    for name, strangers in (("other things", found.things), ("plants of unknown species", found.unknown)):
        if strangers is not None:
            yield (
                f"{name}: AUROC {strangers.auroc:.3f}, at 95 % of known plants kept {strangers.fpr95} "
                f"({strangers.score}); named at any rank {strangers.named}, as a species "
                f"{strangers.named_species}"
            )


def _print(results: list[Evaluation], split: Split) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for evaluation in results:
        name = evaluation.subject.name
        figures = evaluation.figures
        other = f" ({OTHER_DATA})" if evaluation.other_data else ""
        # A single source has the figures of all.
        by_source = figures.by_source if len(figures.by_source) > 1 else {}
        print(f"{name}, {split} split{other}:")  # as a title it would wrap at the table's width
        table = Table("", "all", *by_source)
        for field in SplitMetrics.__struct_fields__:
            told = f"{field} (before calibration)" if (name, field) == ("checkpoint", "ece") else field
            shown = (getattr(each, field) for each in (figures.all, *by_source.values()))
            cells = (str(each) if isinstance(each, Share) else f"{each:.4f}" for each in shown)
            table.add_row(told, *cells)
        console.print(table)
    if len(results) == 2:
        names = [evaluation.subject.name for evaluation in results]
        first, second = (evaluation.predictions.named_N for evaluation in results)
        console.print(f"{' and '.join(names)} name the same taxon: {(first == second).sum()} of {len(first)}")


if __name__ == "__main__":
    main()
