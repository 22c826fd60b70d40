"""Whole programs on a GPU whose kernels do nothing: they end well, on the device, with no warning but those listed."""

import re

import pytest

from tests.rehearsal.gpu import require_rehearsal, run_program
from tests.training.small import events, write_things

require_rehearsal()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
FP16 = ("--device", "cuda", "--amp", "fp16", "--workers", 1)
# Of the rehearsal, and of libraries that the project does not choose.
KNOWN_WARNINGS = (
    "NVML Shared Library Not Found",
    "leaked semaphore objects",
    "unclosed file",
)


def run_quietly(*arguments):
    """What a program says that warns of nothing."""
    said = run_program(*arguments)
    lines = [line for line in said.splitlines() if re.search(r"[Ww]arning", line)]
    assert [line for line in lines if not any(known in line for known in KNOWN_WARNINGS)] == []
    return said


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(scope="module")
def trained(place):
    """A run with everything that a step can have, stopped after three steps."""
    flags = ("--negatives", write_things(place / "things", count=40), "--ema-decay", 0.9, "--accumulate", 2)
    flags += ("--clip-norm", 1, "--mixup", 0.2, "--cutmix", 1, "--epochs", 2)
    command = ("debug", "--data", place / "data", "--run", place / "run", *FP16, *flags)
    return command, run_quietly(place, "training/train.py", *command, "--max-steps", 3)


def test_a_run_takes_its_steps_on_the_device_in_fp16(trained, place):
    _, said = trained
    assert "device: Rehearsal, fp16" in said
    assert events(place / "run", "checkpoint")[-1]["step"] == 3


def test_a_run_is_resumed_and_validated(trained, place):
    command, _ = trained
    said = run_quietly(place, "training/train.py", *command, "--resume")
    assert "2 of 2 epochs" in said


def test_a_checkpoint_is_evaluated(trained, place):
    data = ("--data", place / "data", "--split", "validation")
    said = run_quietly(
        place, "training/evaluate.py", "--checkpoint", place / "run" / "last.pt", *data, "--out", place / "evaluation"
    )
    assert "checkpoint, validation split" in said


def test_a_checkpoint_is_exported_with_its_parity_check(trained, place):
    flags = ("--checkpoint", place / "run" / "last.pt", "--data", place / "data", "--negatives", place / "things")
    run_quietly(place, "training/export.py", *flags, "--out", place / "bundle")
    assert (place / "bundle" / "bundle.json").is_file()


def test_settings_are_tuned(place):
    run = ("--run", place / "tuned", *FP16, "--batch-size", 4)
    said = run_quietly(place, "training/train.py", "debug", "--data", place / "data", *run, "--tune")
    assert re.search(r"Next: train.py with --batch-size \d+ .*--workers \d+", said)


def test_two_ranks_train_together(place):
    run = ("--run", place / "ranks", *FP16, "--epochs", 1, "--accumulate", 2)
    said = run_program(place, "training/train.py", "debug", "--data", place / "data", *run, ranks=2)
    assert "2 ranks, each on Rehearsal, fp16" in said
    assert "1 of 1 epochs" in said
