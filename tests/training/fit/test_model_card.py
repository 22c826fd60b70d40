"""The sections of the model card on calibration and on commands."""

import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tyro
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.calibration import Calibration, FittedOn
from models.figures import metric
from models.metrics import ReliabilityBin, share
from models.outputs import RankScores
from models.ranking import RANKS, Thresholds
from models.scoring import AnswerModel, GuessShare, JointRule
from tests.models.tiny import bundle_record, conformal_table
from tests.training.small import make_taxonomy
from training.export import Export
from training.fit.model import Fitted
from training.fit.names import fit_thresholds
from training.fit.record import card_commands, command_line, describe_fit, model_card
from training.toml_file import without_folders

SURE = ReliabilityBin(low=14 / 15, num_pictures=40, confidence=0.97, accuracy=0.5)


def card(diagrams={"all": [SURE], "a": [SURE]}, num_plants=400, metrics=(), **model):  # noqa: B006
    """All plants reach 0.8; none is wrong. The species takes them all. One of two taxa has calibration plants."""
    scores = {rank: RankScores(np.full(num_plants, 0.8), np.ones(num_plants, dtype=bool)) for rank in RANKS}
    table = conformal_table(np.full((num_plants, 2), 0.5), np.zeros(num_plants, dtype=np.intp), np.array([0.5, 0.5]))
    calibration = Calibration(conformal=table, fitted_on=fitted_on(num_plants))
    fitted = Fitted(AnswerModel(make_taxonomy(2), 1.0, calibration=calibration, **model), fit_thresholds(scores))
    record = replace(bundle_record(), metrics=metrics)
    figures = SimpleNamespace(reliability=diagrams, risk_coverage={"species": SimpleNamespace(area=0.25)})
    return model_card(record, fitted, figures, negatives="spoons", commands=("a", "b"))


def fitted_on(num_pictures):
    return FittedOn("flowers, calibration split", "2026-11-22", num_plants=90, num_pictures=num_pictures)


@pytest.mark.parametrize(("num_pictures", "few"), [(999, True), (1000, False)])
def test_few_pictures_are_said_to_be_few(num_pictures, few):
    text = describe_fit(Calibration(fitted_on=fitted_on(num_pictures)))
    assert f"fitted on {num_pictures:,} pictures of 90 plants (flowers, calibration split; 2026-11-22)" in text
    assert ("These are few" in text) == few


FIGURES = {"things_auroc": 0.93, "things_accepted": share(30, 100), "things_named": share(20, 100)}
FULL = {
    "metrics": tuple(metric(name, figure, "spoons") for name, figure in FIGURES.items()),
    "diagrams": {"all": [SURE], "a": [SURE], "b": [SURE]},
    "guesses": (GuessShare(0.2, 0.4, 0.7, 60), GuessShare(0.0, 0.35, None, 50, "family")),
    "joint": (JointRule(2, 0.7, Thresholds(0.8), 0.3, of_one_plant=True), JointRule(4, 0.5, Thresholds(0.75), 0.3)),
}


@pytest.mark.parametrize(("name", "given"), [("few", {"num_plants": 40}), ("full", FULL)])
def test_the_card_is_the_stored_page(name, given):
    assert card(**given) == Path(__file__).with_name(f"card_{name}.txt").read_text(encoding="utf-8")


NAMES = st.text("abc_ '\".-", min_size=1, max_size=8).filter(lambda name: name.strip(".-") and name[0] != "-")
PATHS = NAMES.map(Path)


@settings(max_examples=40)
@given(
    flags=st.builds(
        Export,
        checkpoint=PATHS,
        data=PATHS,
        out=PATHS,
        name=NAMES,
        precision=st.sampled_from([("fp32",), ("fp32", "fp16")]),
        serve_px=st.none() | st.integers(32, 512),
        negatives=st.lists(PATHS, max_size=2).map(tuple),
        with_weights=st.booleans(),
        thresholds=st.sampled_from([(), ("species=0.6", "genus=0.5")]),
    )
)
def test_the_command_gives_the_same_flags(flags):
    program, *words = shlex.split(command_line("training/export.py", flags))[1:]
    assert program == "training/export.py"
    assert tyro.cli(Export, args=words) == flags


def test_the_commands_name_no_folder_of_the_machine(tmp_path):
    flags = Export(
        checkpoint=tmp_path / "run" / "best.pt",
        data=tmp_path / "flowers",
        out=tmp_path / "out" / "bundle",
        negatives=(tmp_path / "things", Path("other/things")),
    )
    assert card_commands(flags, flags.data, flags.out, other_data=True) == (
        "python training/export.py --checkpoint best.pt --data flowers --out bundle --negatives things other/things",
        "python training/evaluate.py --data flowers --bundle bundle --other-data",
    )


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [
        ("/data/first/last.pt", "last.pt"),
        (r"D:\first\last.pt", "last.pt"),
        ("data/5337", "data/5337"),
        ("s3://bucket/shards", "s3://bucket/shards"),
        ("imagenet", "imagenet"),
        ("", ""),
    ],
)
def test_absolute_paths_of_any_system_are_cut_and_other_words_kept(given_text, kept):
    assert without_folders(given_text) == kept
