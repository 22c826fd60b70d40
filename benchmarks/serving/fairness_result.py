"""The result of the attacks: what an honest client gets before and during each."""

import msgspec

from benchmarks.serving.attacks import AttackName
from benchmarks.serving.flags import Flags, Network, PictureFile, require_positive
from benchmarks.serving.targets import Target, at_least, at_most, target_lines
from training.insight.studies.report import table
from training.machine import Machine

_ANSWERED, _SLOWER = 0.95, 3.0


class Fairness(Flags, frozen=True, kw_only=True):
    """Attacks our service from one address, beside an honest client with another."""

    seconds: float = 30.0
    """Length of each measurement, before and during each attack, s."""
    per_s: float = 2.0
    """Requests of the honest client per second, each a photograph of 1 MP."""
    patience_s: float = 10.0
    """Time after which the honest client gives up, s."""
    lead_in_s: float = 3.0
    """Time for which an attack goes on before it is measured, s."""

    def __post_init__(self) -> None:
        require_positive(self, "seconds", "per_s", "patience_s")


class Honest(msgspec.Struct, frozen=True):
    """What the honest client gets."""

    words: dict[str, int]
    """How often each status, or end without a status, occurred."""
    p50_ms: float | None
    p99_ms: float | None
    """Latency of good answers."""

    @property
    def answered(self) -> float:
        """Share of its requests with a good answer."""
        return self.words.get("200", 0) / max(sum(self.words.values()), 1)


class Attacked(msgspec.Struct, frozen=True):
    """One attack."""

    name: AttackName
    before: Honest
    during: Honest
    attacker: dict[str, int]
    """How often each answer to the attacker occurred."""

    @property
    def slower(self) -> float | None:
        """Median latency during the attack, as a multiple of that before it."""
        if self.before.p50_ms is None or self.during.p50_ms is None:
            return None
        return self.during.p50_ms / self.before.p50_ms


class FairnessResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the program."""

    machine: Machine
    measured_on: str
    setting: Fairness
    network: Network
    photograph: PictureFile
    own_versions: dict[str, str]
    alone: dict[str, int]
    """How often each answer to eight requests at once occurred, from a client that is alone."""
    attacks: list[Attacked]
    targets: list[Target] = []


def targets(result: FairnessResult) -> list[Target]:
    """The goals, for each attack."""
    refused = sum(result.alone.values()) - result.alone.get("200", 0)
    found = [at_most("refusals of a client that is alone", 0, refused)]
    for attack in result.attacks:
        found.append(at_least(f"{attack.name}: share answered", _ANSWERED, attack.during.answered))
        found.append(at_most(f"{attack.name}: slower", _SLOWER, attack.slower, unit="times"))
    return found


def markdown(result: FairnessResult) -> str:
    """The result as a table, then the goals."""
    rows = [
        [
            attack.name,
            f"{attack.during.answered:.0%}",
            _ms(attack.before.p50_ms),
            _ms(attack.during.p50_ms),
            _ms(attack.during.p99_ms),
            ", ".join(f"{count:,} x {word}" for word, count in sorted(attack.attacker.items())),
        ]
        for attack in result.attacks
    ]
    note = f" {result.setting.note}" if result.setting.note else ""
    columns = ["attack", "honest client answered", "p50 before", "p50 during", "p99 during", "attacker's answers"]
    setting = result.setting
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}, {result.measured_on}. An honest client sends {setting.per_s:g} "
            f"requests/s, each a photograph of 1 MP, for {setting.seconds:g} s before and during each attack. A "
            f"trusted proxy tells the clients apart.{note}",
            table(columns, rows),
            target_lines(result.targets),
        ]
    )


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} ms"
