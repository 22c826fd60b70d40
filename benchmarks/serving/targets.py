"""Figures that the service aims at, and whether they were reached."""

from collections.abc import Iterable

import msgspec


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A goal and what was measured."""

    name: str
    goal: float
    at_least: bool
    """Whether more is better."""
    unit: str = ""
    value: float | None
    """What was measured; None where a part that it needs was left out."""
    holds: bool | None
    """None where nothing was measured, or not on what the goal is for."""


def at_least(name: str, goal: float, value: float | None, *, meant: bool = True, unit: str = "") -> Target:
    """A goal to reach or exceed; not judged where the run is not what the goal is `meant` for."""
    holds = value >= goal if meant and value is not None else None
    return Target(name=name, goal=goal, at_least=True, unit=unit, value=value, holds=holds)


def at_most(name: str, goal: float, value: float | None, *, meant: bool = True, unit: str = "") -> Target:
    """A goal to stay at or below."""
    holds = value <= goal if meant and value is not None else None
    return Target(name=name, goal=goal, at_least=False, unit=unit, value=value, holds=holds)


def target_lines(targets: Iterable[Target]) -> str:
    """The goals as a Markdown list, each with yes or no."""
    return "\n".join(_line(target) for target in targets)


def _line(target: Target) -> str:
    held = {None: "not judged here", True: "yes", False: "NO"}[target.holds]
    unit = f" {target.unit}" if target.unit else ""
    value = "not measured" if target.value is None else f"{target.value:.4g}{unit}"
    limit = f"at {'least' if target.at_least else 'most'} {target.goal:g}{unit}"
    return f"* {target.name}: {value}, asked for {limit}: {held}"
