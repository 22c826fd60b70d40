"""Planted results with known figures."""

from training.insight.studies.report import Study, write_study
from training.insight.studies.results import Arm, ArmResult, EpochResult
from training.machine import Gpu, Machine

SEEDS = (0, 1, 2)
MACHINE = Machine(
    processor="drawn",
    num_cores=2,
    memory_gb=8.0,
    system="Linux",
    python="3.11",
    libraries={},
    git_commit="0123456",
    gpus=(Gpu("Drawn GPU", 8.0),),
)


def epoch(number, seconds, pictures_per_s, top1=None, *, judged=10_000, memory_gb=None, side_px=128):
    """One epoch; the first is the warm-up."""
    loss = None if top1 is None else 1.0
    return EpochResult(number, seconds, pictures_per_s, top1, judged, loss, memory_gb, side_px, warm_up=number == 1)


def result(arm, seed, *, top1=50.0, speed=100.0, memory_gb=4.0, error="", judged=10_000):
    """Two epochs of 1,000 pictures; the first is slow. Top-1 in percent."""
    epochs = [
        epoch(1, 30.0, speed / 3, top1 / 200, judged=judged, memory_gb=memory_gb),
        epoch(2, 1000 / speed, speed, top1 / 100, judged=judged, memory_gb=memory_gb),
    ]
    return ArmResult(arm, seed, [] if error else epochs, error)


def written(folder, speed=100.0, machine=MACHINE, name="optimizations", flags=("--workers", "0"), error=""):
    """The JSON file of a study of one arm with two seeds."""
    arm = Arm("amp", ("--amp", "fp16"), "")
    study = Study(
        name=name,
        title="A study",
        about="One arm.",
        machine=machine,
        measured_on="Drawn GPU",
        recipe="tiny",
        data="drawn",
        flags=flags,
        arms=[result(arm, seed, top1=80.0, speed=speed, error=error) for seed in (0, 1)],
        tables=[],
        findings=[],
    )
    write_study(folder, study)
    return folder / f"{name}.json"
