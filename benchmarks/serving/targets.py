"""Goals for the service, and whether they are reached."""

from collections.abc import Iterable

import msgspec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A goal and the measured value."""

    name: str
    goal: float
    at_least: bool
    """Whether the goal is a lower limit."""
    unit: str = ""
    value: float | None
    """The measured value; None if a part that it needs was left out."""
    holds: bool | None
    """Whether the goal is reached; None if it was not measured, or does not apply to this network."""


def at_least(name: str, goal: float, value: float | None, *, applies: bool = True, unit: str = "") -> Target:
    """A lower limit; it is not checked unless it `applies` to the measured network."""
    holds = value >= goal if applies and value is not None else None
    return Target(name=name, goal=goal, at_least=True, unit=unit, value=value, holds=holds)


def at_most(name: str, goal: float, value: float | None, *, applies: bool = True, unit: str = "") -> Target:
    """An upper limit; it is not checked unless it `applies` to the measured network."""
    holds = value <= goal if applies and value is not None else None
    return Target(name=name, goal=goal, at_least=False, unit=unit, value=value, holds=holds)


def target_lines(targets: Iterable[Target]) -> str:
    """The goals as a Markdown list, each with whether it was reached."""
    return "\n".join(_line(target) for target in targets)


def _line(target: Target) -> str:
    held = {None: "not judged", True: "reached", False: "MISSED"}[target.holds]
    unit = f" {target.unit}" if target.unit else ""
    value = "not measured" if target.value is None else f"{target.value:.4g}{unit}"
    limit = f"at {'least' if target.at_least else 'most'} {target.goal:g}{unit}"
    return f"* {target.name}: {value}, goal {limit}: {held}"
