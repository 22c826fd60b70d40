"""The optimizations study: the effect of each optimization on speed and memory, alone and in combination.

Two speeds differ if the 95 % interval of their ratio over the rounds lies beyond the tolerance (`Speedups.tolerance`);
memory likewise. With one round, no difference is stated. One comparison in twenty exceeds its interval by chance.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from training.insight.studies.figures import epoch_s, known, memory_gb, pictures_per_s, warm_up_s
from training.insight.studies.intervals import Interval
from training.insight.studies.plots import Bars, Curves
from training.insight.studies.report import Content, Finding, Study, Table, spread
from training.insight.studies.results import Arm, ArmResult
from training.insight.studies.rounds import StudyOptions, require_known, run_rounds, run_study
from training.insight.studies.speedups import AGAIN, BASELINE, CUDA_ONLY, PARTS, Speedups

_NAME: Final = "optimizations"
_ON: Final[Mapping[str, str]] = {
    "workers": "--persistent-workers",
    "cudnn": "--cudnn-benchmark",
    "channels_last": "--channels-last",
    "compile": "--compile",
    "tf32": "--tf32",
}
_WORDS: Final[Mapping[str, str]] = {
    "amp": "mixed precision",
    "workers": "persistent workers",
    "cudnn": "cudnn.benchmark",
    "channels_last": "channels_last",
    "compile": "torch.compile",
    "tf32": "TF32 instead of FP32",
}


class Optimizations(StudyOptions, frozen=True, kw_only=True):
    """Measures the effect of each optimization, alone and in combination."""

    amp: Literal["auto", "fp16", "bf16"] = "auto"
    """Mixed precision of the arms that use it; auto: fp16 on a GPU, bf16 on a CPU."""
    only: tuple[str, ...] = ()
    """Names of the arms to run beside the baseline; default: all."""

    @property
    def precision(self) -> Literal["fp16", "bf16"]:
        """Mixed precision of the arms that use it."""
        if self.amp == "auto":
            return "fp16" if self.device_type == "cuda" else "bf16"
        return self.amp


def measure_optimizations(command: Optimizations) -> Study:
    """Runs what is missing and writes the result.

    Raises:
        BotanifyError: The options are wrong, or the baseline fails.
        StudyPaused: The time is over, or this process received SIGTERM or Ctrl-C.
    """
    chosen = arms(command.device_type, command.precision, command.only)
    results: list[ArmResult] = []
    return run_study(
        command,
        ("--amp", *_ON.values()),
        run=lambda until: run_rounds(command, chosen, _NAME, results, until=until),
        describe=lambda: _describe(command, results),
    )


def arms(device: Literal["cuda", "cpu"], precision: str, only: Sequence[str] = ()) -> list[Arm]:
    """The arms of a device, the baseline first. Each sets all six switches, so that the recipe's have no effect.

    Raises:
        RecipeError: `only` names an unknown arm.
    """
    known_arms = [name for name in PARTS if device == "cuda" or name not in CUDA_ONLY]
    require_known(only, known_arms, device)
    names = [name for name in known_arms if not only or name in only or name == BASELINE]
    return [Arm(name, _flags(PARTS[name], precision), _explanation(name)) for name in names]


def tables(speedups: Speedups) -> list[Table]:
    """Speed and memory of each arm, and the duration of each epoch."""
    return [_speed_table(speedups), _epoch_table(speedups)]


def plots(speedups: Speedups) -> list[Bars | Curves]:
    """Speed-ups as bars, and the duration of each epoch as curves."""
    seconds = {
        name: [[(float(epoch.epoch), epoch.seconds) for epoch in result.epochs] for result in speedups.of(name)]
        for name in speedups.names
    }
    ratios = {name: list(speedups.by_round(name).values()) for name in speedups.names}
    return [
        Bars("speed", "Speed relative to the baseline", "times", ratios, mark=1.0),
        Curves("epochs", "Duration of each epoch; the first is the warm-up", "epoch", "seconds", seconds),
    ]


def findings(speedups: Speedups) -> list[Finding]:
    """The conclusions."""
    rules = (_noise, _fastest, _slower, _memory, _combinations, _warm_up)
    chosen = rules if speedups.num_rounds > 1 else (_too_few_rounds,)
    return [finding for rule in (*chosen, _failed, _untimed) for finding in rule(speedups)]


def _describe(command: Optimizations, results: list[ArmResult]) -> Content:
    speedups = Speedups(results, command.device_type)
    return Content(
        name=_NAME,
        title="Effect of each optimization",
        about=_about(command),
        arms=results,
        tables=tables(speedups),
        findings=findings(speedups),
        plots=plots(speedups),
    )


def _speed_table(speedups: Speedups) -> Table:
    columns = ["arm", "pictures/s", "epoch, s", "speed-up", "product of its parts", "GPU memory, GB", "warm-up, s"]
    return Table(
        "Speed and memory after the first epoch; median [range] over the rounds",
        columns,
        [_speed_row(speedups, name) for name in speedups.names],
    )


def _speed_row(speedups: Speedups, name: str) -> list[str]:
    parts = speedups.product_of_parts(name).values() if len(PARTS[name]) > 1 else []
    return [
        name,
        spread(known(pictures_per_s, speedups.of(name))),
        spread([speedups.median(name, epoch_s)]),
        spread(speedups.by_round(name).values(), digits=2),
        f"{statistics.median(parts):.2f}" if parts else "–",
        spread([speedups.median(name, memory_gb)], digits=2),
        spread([speedups.median(name, warm_up_s)]),
    ]


def _epoch_table(speedups: Speedups) -> Table:
    longest = max((len(result.epochs) for name in speedups.names for result in speedups.of(name)), default=0)
    rows = []
    for name in speedups.names:
        taken = [[epoch.seconds for epoch in result.epochs] for result in speedups.of(name)]
        rows.append([name, *(spread(epochs[at] for epochs in taken if at < len(epochs)) for at in range(longest))])
    columns = ["arm", *(f"epoch {number + 1}" for number in range(longest))]
    return Table("Duration of each epoch, s; median [range] over the rounds", columns, rows)


def _too_few_rounds(_: Speedups) -> Iterator[Finding]:
    yield Finding("noise", "One round shows no differences: a study needs two rounds (--seeds), better three.")


def _noise(speedups: Speedups) -> Iterator[Finding]:
    text = (
        f"Two speeds differ if the 95 % interval of their ratio over {speedups.num_rounds} rounds lies more than "
        f"{100 * speedups.tolerance:.1f} % from 1. One comparison in twenty does so by chance."
    )
    if speedups.noise is not None:
        text += f" The baseline, run a second time, had {_times(speedups.noise)} its own speed."
    yield Finding("noise", text)


def _fastest(speedups: Speedups) -> Iterator[Finding]:
    ratios = {name: speedups.times(name) for name in speedups.names if name not in {BASELINE, AGAIN}}
    measured = {name: ratio for name, ratio in ratios.items() if ratio is not None and ratio.low is not None}
    best = max(measured, key=lambda name: measured[name].mean, default=BASELINE)
    if best == BASELINE or not speedups.is_more(measured[best]):
        yield Finding("fastest", "No arm is significantly faster than the baseline.")
        return
    text = f"The fastest arm is {best}: {_times(measured[best])} the baseline's speed."
    alike = [name for name in measured if name != best and not speedups.is_less(speedups.times(name, best))]
    if alike:
        text += f" Not significantly slower: {', '.join(alike)}."
    yield Finding("fastest", text)


def _slower(speedups: Speedups) -> Iterator[Finding]:
    for name in speedups.names:
        ratio = speedups.times(name)
        if name != AGAIN and ratio is not None and speedups.is_less(ratio):
            yield Finding("slower", f"{name} is slower than the baseline: {_times(ratio)} its speed.")


def _memory(speedups: Speedups) -> Iterator[Finding]:
    ratio = speedups.memory_times("amp")
    full, mixed = speedups.median(BASELINE, memory_gb), speedups.median("amp", memory_gb)
    if ratio is None or full is None or mixed is None:
        why = "this is a CPU." if speedups.device == "cpu" else "the baseline or the arm amp has no figure."
        yield Finding("memory", f"GPU memory was not measured: {why}")
        return
    how = "more" if speedups.is_more(ratio) else "less" if speedups.is_less(ratio) else "not significantly different"
    figures = f"{mixed:.2f} GB against {full:.2f} GB in FP32"
    yield Finding("memory", f"GPU memory with mixed precision is {how}: {figures}.")


def _combinations(speedups: Speedups) -> Iterator[Finding]:
    for name, parts in PARTS.items():
        share, found = speedups.share_of_product(name), speedups.times(name)
        if len(parts) < 2 or share is None or found is None or not (speedups.is_less(share) or speedups.is_more(share)):
            continue
        less = "less" if speedups.is_less(share) else "more"
        text = f"{name} gives {less} than the product of its parts: {found.mean:.2f} times the baseline's speed, "
        yield Finding("combination", f"{text}{_times(share)} the product.")


def _warm_up(speedups: Speedups) -> Iterator[Finding]:
    for name in speedups.names:
        more, baseline_s, own_s = (
            speedups.longer_warm_up_s(name),
            speedups.median(BASELINE, epoch_s),
            speedups.median(name, epoch_s),
        )
        if name == AGAIN or more is None or not speedups.is_longer(more) or baseline_s is None or own_s is None:
            continue
        text = f"The warm-up of {name} takes {more.mean:,.1f} s longer than the baseline's"
        if speedups.is_more(speedups.times(name)):
            epochs = math.ceil(more.mean / (baseline_s - own_s))
            yield Finding(
                "warm_up", f"{text}; at {baseline_s - own_s:,.1f} s per epoch it pays off in {epochs} epochs."
            )
        else:
            yield Finding("warm_up", f"{text} and does not pay off.")


def _failed(speedups: Speedups) -> Iterator[Finding]:
    errors: dict[str, str] = {}
    for result in speedups.failed:
        errors.setdefault(result.arm.name, result.error or "it ended before its first epoch did")
    for name, error in errors.items():
        yield Finding("failed", f"{name} failed: {error}")


def _untimed(speedups: Speedups) -> Iterator[Finding]:
    for name in speedups.names:
        for result in speedups.of(name):
            if pictures_per_s(result) is None:
                text = f"{name} has no speed with seed {result.seed}: each epoch was interrupted or a warm-up."
                yield Finding("untimed", f"{text} Remove its folder to run it again.")


def _times(ratio: Interval) -> str:
    """A ratio with its interval."""
    if ratio.low is None or ratio.high is None:
        return f"{ratio.mean:.2f} times"
    return f"{ratio.mean:.2f} times ({ratio.low:.2f} to {ratio.high:.2f})"


def _flags(parts: Sequence[str], precision: str) -> tuple[str, ...]:
    switches = [flag if part in parts else flag.replace("--", "--no-", 1) for part, flag in _ON.items()]
    return ("--amp", precision if "amp" in parts else "off", *switches)


def _explanation(name: str) -> str:
    if name == AGAIN:
        return "The baseline once more: its difference from the baseline is noise."
    if not PARTS[name]:
        return "FP32 without TF32, NCHW, new loader processes in each epoch, cuDNN's default kernels."
    return f"The baseline with {', '.join(_WORDS[part] for part in PARTS[name])}."


def _about(command: Optimizations) -> str:
    text = (
        f"Each arm trains for {command.epochs} epochs in its own process, in {len(command.seeds)} rounds with random "
        f"order. Mixed precision is {command.precision}. Speeds are medians over the epochs after the first. Speed-ups "
        "are relative to the baseline of the same round. Memory is the peak that PyTorch reserved."
    )
    if command.device_type == "cuda":
        return f"{text} The product of parts leaves out TF32 if there is mixed precision, which leaves it no effect."
    return f"{text} Arms that need TF32 or cuDNN are left out on a CPU."
