"""The arms of the ablation, from the constrained baseline to the reference recipe: each is its parent and a change."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from training.insight.studies.results import Arm

BASELINE: Final = "directml_baseline"
BEST_RATE: Final = "best_rate"
ACCUMULATED: Final = "accumulated"
GROUPS: Final = "groups_of_4"
BATCH_16: Final = "batch_16"
AMP: Final = "amp"
TWO_RATES: Final = "two_rates_3x"
COSINE: Final = "cosine"
HARDWARE: Final = "hardware"


class Step(msgspec.Struct, frozen=True):
    """An arm, as a change of another."""

    name: str
    parent: str
    """The arm that is changed; empty for the first."""
    change: str
    """The change in words."""
    flags: tuple[str, ...]
    """The change as flags of train.py; {assumed}, {best}, {3x} and {10x} are replaced by learning rates."""
    explains: str
    cuda_only: bool = False
    """Left out on a CPU, where it has no effect; its children become children of its parent."""


LADDER: Final = (
    Step(
        BASELINE,
        "",
        "batch 4, FP32, one rate, step decay",
        (
            *("--batch-size", "4", "--accumulate", "1", "--norms", "leave"),
            *("--amp", "off", "--no-tf32", "--no-channels-last", "--no-cudnn-benchmark", "--no-compile"),
            "--persistent-workers",  # in all arms, so that the start of loader processes is not timed
            *("--backbone-lr", "{assumed}", "--head-lr", "{assumed}", "--decay", "step"),
        ),
        "What a translation layer allowed. Its rate and the steps of its decay are assumed.",
    ),
    Step(
        BEST_RATE,
        BASELINE,
        "its own best rate",
        ("--backbone-lr", "{best}", "--head-lr", "{best}"),
        "Whether the baseline was only badly tuned. The rate was chosen by validation top-1 with another seed.",
    ),
    Step(
        "frozen_norms",
        BEST_RATE,
        "BatchNorm keeps the statistics of the first weights",
        ("--norms", "frozen"),
        "Whether frozen statistics avoid the noise of BatchNorm over four pictures without a larger batch.",
    ),
    Step(
        ACCUMULATED,
        BEST_RATE,
        "gradients of 4 batches averaged",
        ("--accumulate", "4"),
        "The effect of an effective batch of 16 at the same rate, while BatchNorm still sees four pictures.",
    ),
    Step(
        GROUPS,
        ACCUMULATED,
        "16 pictures in one pass, BatchNorm over groups of 4",
        ("--batch-size", "16", "--accumulate", "1", "--norms", "ghost", "--ghost-size", "4"),
        "A control: the same computation in fewer and larger kernels, so that accuracy should not change.",
    ),
    Step(
        BATCH_16,
        GROUPS,
        "BatchNorm over all 16",
        ("--norms", "leave"),
        "The effect of BatchNorm alone: only the pictures of its statistics differ.",
    ),
    Step(
        AMP,
        BATCH_16,
        "mixed precision, fp16",
        ("--amp", "fp16"),
        "The effect of mixed precision on accuracy, speed and memory.",
        cuda_only=True,
    ),
    Step(
        TWO_RATES,
        AMP,
        "classifier at 3 times the rate",
        ("--head-lr", "{3x}"),
        "The reference recipe's ratio of 9e-5 to 3e-5, compared with a ratio of 1.",
    ),
    Step(
        "two_rates_10x",
        AMP,
        "classifier at 10 times the rate",
        ("--head-lr", "{10x}"),
        "Whether a larger ratio is better.",
    ),
    Step(
        COSINE,
        TWO_RATES,
        "cosine instead of steps",
        ("--decay", "cosine"),
        "The effect of the cosine schedule at the same peak rates and length.",
    ),
    Step(
        HARDWARE,
        COSINE,
        "channels_last, cudnn.benchmark and TF32",
        ("--channels-last", "--cudnn-benchmark", "--tf32"),
        "The other GPU settings of the reference recipe: nearly the same computation with other kernels.",
        cuda_only=True,
    ),
)


def decided_flags() -> list[str]:
    """Flags of train.py that the arms set, without "no-"."""
    flags = (flag for step in LADDER for flag in step.flags if flag.startswith("--"))
    return sorted({flag.replace("--no-", "--", 1) for flag in flags})


def ladder(device: Literal["cuda", "cpu"]) -> tuple[Step, ...]:
    """The steps that have an effect on a device, from the baseline to the reference recipe."""
    if device == "cuda":
        return LADDER
    left_out = {step.name: step.parent for step in LADDER if step.cuda_only}
    return tuple(
        msgspec.structs.replace(step, parent=left_out.get(step.parent, step.parent))
        for step in LADDER
        if not step.cuda_only
    )


def arms(steps: Sequence[Step], assumed_rate: float, best_rate: float) -> list[Arm]:
    """The arms of the steps, each with the flags of its ancestors first; the last occurrence of a flag counts."""
    rates = {"assumed": assumed_rate, "best": best_rate, "3x": 3 * best_rate, "10x": 10 * best_rate}
    values = {f"{{{name}}}": f"{rate:.6g}" for name, rate in rates.items()}
    flags: dict[str, tuple[str, ...]] = {"": ()}
    found = []
    for step in steps:
        flags[step.name] = flags[step.parent] + tuple(values.get(flag, flag) for flag in step.flags)
        found.append(Arm(step.name, flags[step.name], f"{step.change[0].upper()}{step.change[1:]}. {step.explains}"))
    return found


def rate_arms(steps: Sequence[Step], rates: Sequence[float]) -> list[Arm]:
    """The arms of the rate search: the baseline with each rate."""
    baseline = steps[0]
    return [
        Arm(f"rate_{rate:g}", arms([baseline], rate, rate)[0].flags, f"The baseline with a rate of {rate:g}.")
        for rate in rates
    ]
