"""The result of a comparison in closed loop: figures by server, photograph and concurrency, and the goals."""

from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Final

import msgspec

from benchmarks.serving.flags import Flags, Network, PictureFile, require_positive
from benchmarks.serving.overhead import Overhead
from benchmarks.serving.server_config import Decoding, RivalName, ServerConfig
from benchmarks.serving.servers import OURS, Contender
from benchmarks.serving.targets import Target, at_least, at_most, target_lines
from models.errors import RecipeError
from training.insight.studies.report import spread, table
from training.machine import Machine

# Largest difference in score from ours. A full decode gives other scores than one at a reduced scale, and a temperature
# below 1 enlarges the difference: 0.043 at most on six photographs with the demonstration bundle.
_SAME_SCORE: Final[Mapping[Decoding, float]] = {"reduced": 0.001, "full": 0.06}
_OVERHEAD_MS: Final = 5.0
_FACTORS: Final[Mapping[tuple[str, int], Mapping[RivalName, float]]] = {
    ("12 MP", 8): {"LitServe": 2.0, "BentoML": 2.3, "FastAPI": 1.7},
    ("12 MP", 1): {"LitServe": 1.7, "BentoML": 1.7, "FastAPI": 1.7},
    ("1 MP", 8): {"LitServe": 1.2, "BentoML": 1.2, "FastAPI": 1.2},
    ("1 MP", 1): {"LitServe": 0.95, "BentoML": 0.95, "FastAPI": 0.95},
}


class Compare(Flags, frozen=True, kw_only=True):
    """Compares servers in closed loop: each client sends its next request when the last one is answered."""

    servers: tuple[RivalName, ...] = ("LitServe", "BentoML", "FastAPI")
    """Rivals; our own service is always included."""
    also_reduced: bool = True
    """Measure each rival twice: with Pillow's full decode, as in its documentation, and with our decode."""
    concurrencies: tuple[int, ...] = (1, 8)
    """Numbers of clients."""
    rounds: int = 5
    """Number of rounds; each starts every server anew, and ratios are taken within a round."""
    seconds: float = 8.0
    """Length of one measurement, after its lead-in, s."""
    lead_in_s: float = 1.5
    """Time before each measurement in which requests are sent but not counted, s."""
    warm_up_s: float = 3.0
    """Time of full load after each start, s."""
    tuning_seconds: float = 6.0
    """Length of the measurements that choose a rival's configuration, s; 0 takes the first one."""

    def __post_init__(self) -> None:
        require_positive(self, "rounds", "seconds")
        if not self.concurrencies or min(self.concurrencies) < 1:
            raise RecipeError(
                "no clients would send anything",
                value=self.concurrencies,
                limit="numbers of at least 1",
                remedy="correct --concurrencies",
            )


class Cell(msgspec.Struct, frozen=True):
    """One measurement."""

    photograph: str
    concurrency: int
    per_s: float
    """Good answers per second."""
    p50_ms: float | None
    p99_ms: float | None
    words: dict[str, int]
    """How often each status, or end without a status, occurred."""
    generator_share: float
    """Share of one core that the load generator used."""
    core_ms: float | None
    """CPU time of the server per good answer, ms."""


class Turn(msgspec.Struct, frozen=True):
    """The measurements from one start of a server."""

    cells: list[Cell]
    setting: ServerConfig
    start_s: float
    idle_mb: float
    """Memory when the server was ready, MB."""
    end_mb: float
    """Memory after the last measurement, MB."""
    processes_left: int
    """Processes that were left after SIGTERM to the main process."""


class Figures(msgspec.Struct, frozen=True):
    """All turns of one server in order; several in a round if concurrencies have different configurations."""

    contender: Contender
    turns: list[Turn]

    def per_s(self, photograph: str, concurrency: int) -> list[float]:
        """Good answers per second, round by round."""
        return [cell.per_s for cell in self.cells(photograph, concurrency)]

    def cells(self, photograph: str, concurrency: int) -> list[Cell]:
        """The measurements of one photograph and concurrency, round by round."""
        wanted = (photograph, concurrency)
        return [cell for turn in self.turns for cell in turn.cells if (cell.photograph, cell.concurrency) == wanted]


class Trial(msgspec.Struct, frozen=True):
    """A configuration that was tried."""

    setting: ServerConfig
    per_s: dict[int, float]
    """Concurrency -> good answers per second with the large photograph; empty if nothing was tried."""


class Choice(msgspec.Struct, frozen=True):
    """The configurations that a rival was tried with."""

    contender: Contender
    trials: list[Trial]

    def best(self, concurrency: int) -> ServerConfig:
        """The configuration with most answers per second."""
        return max(self.trials, key=lambda trial: trial.per_s.get(concurrency, 0.0)).setting


class AnswerNote(msgspec.Struct, frozen=True):
    """What a server said of a picture."""

    contender: Contender
    picture: str
    taxon_id: str
    score: float


class GeneratorCost(msgspec.Struct, frozen=True):
    """What the load generator itself takes, against a server that answers at once with nothing."""

    photograph: str
    core_ms: float
    """Processor time a request."""
    per_s: float
    """Requests a second that it can send, with as much left for that server."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    machine: Machine
    measured_on: str
    """Date."""
    setting: Compare
    network: Network
    photographs: list[PictureFile]
    versions: dict[str, str]
    """Of what the rivals are made of."""
    own_versions: dict[str, str]
    generator: list[GeneratorCost]
    choices: list[Choice]
    figures: list[Figures]
    answers: list[AnswerNote]
    overhead: list[Overhead]
    targets: list[Target] = []

    def ratios(self, rival: Contender, photograph: str, concurrency: int) -> list[float]:
        """How many times as many answers ours gave as a rival, round by round."""
        per_s = {each.contender: each.per_s(photograph, concurrency) for each in self.figures}
        pairs = zip(per_s.get(OURS, []), per_s.get(rival, []), strict=False)
        return [ours / other for ours, other in pairs if other > 0]

    @property
    def disagreements(self) -> list[str]:
        """Pictures to which a server gave another answer than ours, in words."""
        ours = {note.picture: note for note in self.answers if note.contender == OURS}
        return [
            f"{note.contender} on {note.picture}: {note.taxon_id} ({note.score:.3f})"
            for note in self.answers
            if (reference := ours.get(note.picture)) is not None
            and _differ(note, reference, _SAME_SCORE[note.contender.decoding])
        ]

    @property
    def num_different(self) -> int:
        """Pictures to which ours gives another answer than to all before: another taxon, or a score far away."""
        found: list[AnswerNote] = []
        for note in self.answers:
            if note.contender == OURS and all(_differ(note, other, max(_SAME_SCORE.values())) for other in found):
                found.append(note)
        return len(found)


def _differ(note: AnswerNote, other: AnswerNote, same_score: float) -> bool:
    return note.taxon_id != other.taxon_id or abs(note.score - other.score) > same_score


def targets(result: Comparison) -> list[Target]:
    """The goals. They apply to EfficientNet-B4 at 380 px and to rivals that decode as their documentation shows."""
    found = []
    for (photograph, concurrency), factors in _FACTORS.items():
        for rival, goal in factors.items():
            ratios = result.ratios(Contender(rival, "full"), photograph, concurrency)
            name = f"{photograph}, {concurrency} at a time, against {rival}"
            value = median(ratios) if ratios else None
            found.append(at_least(name, goal, value, applies=result.network.is_reference, unit="x"))
    found += [
        at_most(f"{each.photograph}, beyond decode and run, p50", _OVERHEAD_MS, each.rest_ms, unit="ms")
        for each in result.overhead
    ]
    return found


def markdown(result: Comparison) -> str:
    """The result as tables, medians with their ranges, then the goals."""
    kinds = [(photograph.name, number) for photograph in result.photographs for number in result.setting.concurrencies]
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}; {result.setting.rounds} interleaved rounds, {result.measured_on}. "
            f"Valid answers per second [range].{' ' if result.setting.note else ''}{result.setting.note}",
            table(["server", *(f"{name}, {number} at a time" for name, number in kinds)], _rate_rows(result, kinds)),
            "Answers per second of ours as a multiple of each rival's, median [range] of the rounds:",
            table(["rival", *(f"{name}, {number}" for name, number in kinds)], _ratio_rows(result, kinds)),
            table(
                [
                    "server",
                    "p99 at the largest load",
                    "core time per answer",
                    "idle memory",
                    "at the end",
                    "left by SIGTERM",
                ],
                _other_rows(result),
            ),
            "The best setting of each rival, of all that were tried:",
            table(["rival", *(f"{each} at a time" for each in result.setting.concurrencies)], _config_rows(result)),
            _sentences(result),
            target_lines(result.targets),
        ]
    )


def _rate_rows(result: Comparison, kinds: list[tuple[str, int]]) -> list[list[str]]:
    return [[str(each.contender), *(spread(each.per_s(*kind)) for kind in kinds)] for each in result.figures]


def _ratio_rows(result: Comparison, kinds: list[tuple[str, int]]) -> list[list[str]]:
    rivals = [each.contender for each in result.figures if each.contender != OURS]
    return [[str(rival), *(spread(result.ratios(rival, *kind), 2) for kind in kinds)] for rival in rivals]


def _other_rows(result: Comparison) -> list[list[str]]:
    largest = (result.photographs[-1].name, max(result.setting.concurrencies))
    return [
        [
            str(each.contender),
            spread((cell.p99_ms for cell in each.cells(*largest)), 0, " ms"),
            spread((cell.core_ms for cell in each.cells(*largest)), 0, " ms"),
            spread((turn.idle_mb for turn in each.turns), 0, " MB"),
            spread((turn.end_mb for turn in each.turns), 0, " MB"),
            str(max(turn.processes_left for turn in each.turns)),
        ]
        for each in result.figures
    ]


def _other_words(result: Comparison) -> str:
    found = []
    for each in result.figures:
        counts = Counter[str]()
        for turn in each.turns:
            for cell in turn.cells:
                counts.update({word: count for word, count in cell.words.items() if word != "200"})
        found += [f"{each.contender} {count} x {word}" for word, count in sorted(counts.items())]
    return ", ".join(found) or "none"


def _config_rows(result: Comparison) -> list[list[str]]:
    numbers = result.setting.concurrencies
    return [[str(choice.contender), *(str(choice.best(number)) for number in numbers)] for choice in result.choices]


def _agreement(result: Comparison) -> str:
    if result.disagreements:
        return f"Answers differ: {'; '.join(result.disagreements)}."
    pictures = len({note.picture for note in result.answers})
    if result.num_different < 2:
        return f"The network gave one answer to all {pictures} pictures, so whether the servers agree was not tested."
    return f"All servers gave the same answers to {pictures} pictures, of which {result.num_different} differ."


def _sentences(result: Comparison) -> str:
    costs = ", ".join(f"{each.core_ms:.1f} ms at {each.photograph}" for each in result.generator)
    overhead = [
        f"{each.photograph} alone: {each.latency_ms:.0f} ms, of which decode {each.decode_ms:.0f}, run "
        f"{each.run_ms:.0f}, all else {each.rest_ms:.1f}."
        for each in result.overhead
    ]
    return "\n".join(
        [
            f"* The load generator takes {costs} of a core per request.",
            f"* Requests that did not end with 200: {_other_words(result)}.",
            f"* {_agreement(result)}",
            *(f"* {sentence}" for sentence in overhead),
            f"* Versions: {', '.join(f'{name} {version}' for name, version in result.versions.items())}.",
        ]
    )
