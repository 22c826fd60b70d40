"""The arms between the constrained baseline and the reference recipe, as data.

Each step is its parent and one change, so that a difference between the two has one cause.
"""

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
    """An arm, as one change of another."""

    name: str
    parent: str
    """Name of the arm that is changed; empty for the first."""
    change: str
    """The change in words."""
    flags: tuple[str, ...]
    """The change as flags of train.py; {assumed}, {best}, {3x} and {10x} stand for learning rates."""
    explains: str
    cuda_only: bool = False
    """Left out on a CPU, where it changes nothing; what stands on it then stands on its parent."""


LADDER: Final = (
    Step(
        BASELINE,
        "",
        "batch 4, FP32, one rate, step decay",
        (
            *("--batch-size", "4", "--accumulate", "1", "--norms", "leave"),
            *("--amp", "off", "--no-tf32", "--no-channels-last", "--no-cudnn-benchmark", "--no-compile"),
            "--persistent-workers",  # in all arms: starting workers anew would time the loader, epoch by epoch
            *("--backbone-lr", "{assumed}", "--head-lr", "{assumed}", "--decay", "step"),
        ),
        "What a translation layer allowed; its rate and the steps of its decay are assumed.",
    ),
    Step(
        BEST_RATE,
        BASELINE,
        "its own best rate",
        ("--backbone-lr", "{best}", "--head-lr", "{best}"),
        "Whether the baseline was only badly tuned: a sweep with a seed of its own picked the rate on validation.",
    ),
    Step(
        "frozen_norms",
        BEST_RATE,
        "BatchNorm keeps its first statistics",
        ("--norms", "frozen"),
        "Whether the noise of BatchNorm over four pictures can be had away without a larger batch.",
    ),
    Step(
        ACCUMULATED,
        BEST_RATE,
        "gradients of 4 batches averaged",
        ("--accumulate", "4"),
        "What an effective batch of 16 gives while BatchNorm still sees four pictures, at the same rate.",
    ),
    Step(
        GROUPS,
        ACCUMULATED,
        "16 pictures in one pass, BatchNorm over groups of 4",
        ("--batch-size", "16", "--accumulate", "1", "--norms", "ghost", "--ghost-size", "4"),
        "A control: the same arithmetic in fewer and larger kernels, so accuracy should not change.",
    ),
    Step(
        BATCH_16,
        GROUPS,
        "BatchNorm over all 16",
        ("--norms", "leave"),
        "BatchNorm alone: nothing differs but the pictures that its statistics are taken over.",
    ),
    Step(
        AMP,
        BATCH_16,
        "mixed precision, fp16",
        ("--amp", "fp16"),
        "What mixed precision costs in accuracy and gives in speed and memory.",
        cuda_only=True,
    ),
    Step(
        TWO_RATES,
        AMP,
        "classifier at 3 times the rate",
        ("--head-lr", "{3x}"),
        "The reference recipe's ratio of 9e-5 to 3e-5; a ratio of 1 is the arm that it is compared with.",
    ),
    Step(
        "two_rates_10x",
        AMP,
        "classifier at 10 times the rate",
        ("--head-lr", "{10x}"),
        "Whether the ratio of 3 is the right one.",
    ),
    Step(
        COSINE,
        TWO_RATES,
        "cosine instead of steps",
        ("--decay", "cosine"),
        "What the cosine gives at the same peak rates and the same length.",
    ),
    Step(
        HARDWARE,
        COSINE,
        "channels_last, cudnn.benchmark and TF32",
        ("--channels-last", "--cudnn-benchmark", "--tf32"),
        "What else the reference recipe asks of the GPU: nearly the same arithmetic through other kernels.",
        cuda_only=True,
    ),
)


def decided_flags() -> list[str]:
    """Flags of train.py that the arms set, in the form that switches them on."""
    flags = (flag for step in LADDER for flag in step.flags if flag.startswith("--"))
    return sorted({flag.replace("--no-", "--", 1) for flag in flags})


def ladder(device: Literal["cuda", "cpu"]) -> tuple[Step, ...]:
    """The steps that mean something on a device, from the baseline to the reference recipe."""
    if device == "cuda":
        return LADDER
    left_out = {step.name: step.parent for step in LADDER if step.cuda_only}
    return tuple(
        msgspec.structs.replace(step, parent=left_out.get(step.parent, step.parent))
        for step in LADDER
        if not step.cuda_only
    )


def arms(steps: Sequence[Step], assumed_rate: float, best_rate: float) -> list[Arm]:
    """The arms of the steps, each with the flags of all that it stands on; the last one of a flag counts."""
    rates = {"assumed": assumed_rate, "best": best_rate, "3x": 3 * best_rate, "10x": 10 * best_rate}
    values = {f"{{{name}}}": f"{rate:.6g}" for name, rate in rates.items()}
    flags: dict[str, tuple[str, ...]] = {"": ()}
    found = []
    for step in steps:
        flags[step.name] = flags[step.parent] + tuple(values.get(flag, flag) for flag in step.flags)
        found.append(Arm(step.name, flags[step.name], f"{step.change[0].upper()}{step.change[1:]}. {step.explains}"))
    return found


def rate_arms(steps: Sequence[Step], rates: Sequence[float]) -> list[Arm]:
    """The arms of the sweep: the baseline at each rate."""
    baseline = steps[0]
    return [
        Arm(f"rate_{rate:g}", arms([baseline], rate, rate)[0].flags, f"The baseline at a rate of {rate:g}.")
        for rate in rates
    ]


def memory_arm(precision: Literal["off", "fp16"], batch_size: int, memory_gb: float) -> Arm:
    """The baseline for two steps, with a batch and a precision, on a card of so much memory."""
    flags = (*("--batch-size", str(batch_size), "--amp", precision), *("--memory-gb", f"{memory_gb:g}"))
    steps = ("--max-steps", "2", "--log-every-steps", "1")
    words = "FP32" if precision == "off" else "mixed precision"
    return Arm(
        f"memory_{precision}_{batch_size}",
        (*arms(LADDER[:1], 1e-5, 1e-5)[0].flags, *flags, *steps),
        f"Whether {batch_size} pictures a step fit {memory_gb:g} GB in {words}.",
    )
