"""Figures of the optimizations: speed, memory and warm-up of every arm, beside those of the same round's baseline."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from training.studies.arms import ArmResult

BASELINE: Final = "baseline"
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    BASELINE: (),
    "amp": ("amp",),
    "workers": ("workers",),
    "cudnn": ("cudnn",),
    "amp+cudnn": ("amp", "cudnn"),
    "amp+cudnn+workers": ("amp", "cudnn", "workers"),
    "channels_last": ("channels_last",),
    "compile": ("compile",),
    "all": ("amp", "workers", "cudnn", "channels_last", "compile"),
}
"""Arm -> the optimizations that it has."""
_LEAST_NOISE: Final = 0.02  # clocks of processors and cards move by this much on an idle machine


class Measured:
    """What the arms gave.

    Args:
        results: Of all arms and rounds; those that failed are left out of every figure.
        device: Where they were trained.
    """

    def __init__(self, results: Iterable[ArmResult], device: Literal["cuda", "cpu"]) -> None:
        self.device = device
        self.failed: list[ArmResult] = []
        self._of: dict[str, dict[int, ArmResult]] = {}
        for result in results:
            if result.error or not result.epochs:
                self.failed.append(result)
            else:
                self._of.setdefault(result.arm.name, {})[result.seed] = result

    @property
    def names(self) -> list[str]:
        """The arms that gave figures, in the study's order."""
        return [name for name in PARTS if name in self._of]

    def of(self, name: str) -> list[ArmResult]:
        """The results of one arm, by round."""
        return [result for _, result in sorted(self._of.get(name, {}).items())]

    def speeds(self, name: str) -> list[float]:
        """Pictures/s after the warm-up, by round."""
        return [_speed(result) for result in self.of(name)]

    def ratios(self, name: str, against: str = BASELINE) -> dict[int, float]:
        """Round -> how many times as fast an arm is as another in the same round."""
        both = sorted(self._of.get(name, {}).keys() & self._of.get(against, {}).keys())
        return {seed: _speed(self._of[name][seed]) / _speed(self._of[against][seed]) for seed in both}

    def speedups(self, name: str) -> list[float]:
        """How many times as fast as the baseline, by round."""
        return list(self.ratios(name).values())

    def product_of_parts(self, name: str) -> dict[int, float]:
        """Round -> the speed-up of an arm if its parts' single ones multiplied; empty where a part was not measured."""
        parts = [self.ratios(part) for part in PARTS[name]]
        rounds = set.intersection(*(set(part) for part in parts)) if parts else set()
        found = dict.fromkeys(sorted(rounds), 1.0)
        for part in parts:
            found = {seed: product * part[seed] for seed, product in found.items()}
        return found

    def memory_gb(self, name: str) -> float | None:
        """Most GPU memory held, median of the rounds, GB; None where it was not measured."""
        return median_or_none(peak for result in self.of(name) for peak in [_peak_gb(result)] if peak is not None)

    def epoch_s(self, result: ArmResult) -> list[float]:
        """How long each epoch takes, s; one that was interrupted counts as if it had run to its end at its pace."""
        pictures = max(
            each.seconds * each.pictures_per_s for other in self.of(result.arm.name) for each in other.epochs
        )
        return [pictures / epoch.pictures_per_s for epoch in result.epochs]

    def steady_epoch_s(self, name: str) -> float:
        """How long an epoch takes after the warm-up, median, s."""
        return statistics.median(statistics.median(_steady(self.epoch_s(result))) for result in self.of(name))

    def warm_up_s(self, name: str) -> float:
        """What the first epoch takes longer than those after it, median of the rounds, s."""
        taken = [self.epoch_s(result) for result in self.of(name)]
        return statistics.median(epochs[0] - statistics.median(_steady(epochs)) for epochs in taken)

    @property
    def no_operations(self) -> list[tuple[str, str]]:
        """Pairs of arms whose difference changes nothing on this device: cuDNN does not run on a CPU."""
        if self.device == "cuda":
            return []
        pairs = [("cudnn", BASELINE), ("amp+cudnn", "amp")]
        return [(name, against) for name, against in pairs if self.ratios(name, against)]

    @property
    def noise(self) -> float:
        """How far a ratio of speeds strays from 1 with no cause, as a share; at least 2 %.

        The furthest stray of pairs of arms that are the same to the device; where there are none, that of the
        baseline's epochs after the warm-up from their median.
        """
        if self.no_operations:
            strays = [abs(ratio - 1) for pair in self.no_operations for ratio in self.ratios(*pair).values()]
        else:
            strays = [stray for result in self.of(BASELINE) for stray in _strays(_steady(self.epoch_s(result)))]
        return max([_LEAST_NOISE, *strays])


def median_or_none(values: Iterable[float]) -> float | None:
    """The median; None where there is nothing."""
    known = list(values)
    return statistics.median(known) if known else None


def _speed(result: ArmResult) -> float:
    return statistics.median(epoch.pictures_per_s for epoch in result.steady_epochs)


def _peak_gb(result: ArmResult) -> float | None:
    return max((epoch.memory_gb for epoch in result.epochs if epoch.memory_gb is not None), default=None)


def _steady(epochs_s: Sequence[float]) -> Sequence[float]:
    return epochs_s[1:] or epochs_s


def _strays(values: Sequence[float]) -> list[float]:
    return [abs(value / statistics.median(values) - 1) for value in values]
