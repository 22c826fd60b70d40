"""Program: measures how many pictures a second our service, LitServe, BentoML and FastAPI identify, in closed loop.

python benchmarks/serving/compare.py [--bundle DIR] [--rounds 5] [--out FILE.json]

All servers run the same ONNX file on the same photographs. First each rival is tried with several configurations; the
fastest for each concurrency is used. Then rounds are interleaved: each server is started, warmed up, measured and
stopped, then the next round begins. Ratios are taken within a round, so that a busy machine slows all servers alike.
Only one server runs at a time.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
from rich.progress import track

from benchmarks.result import Measured, in_turns, quotients, spread, table, write_result
from benchmarks.serving.flags import DEMONSTRATION, Flags, Network, PictureFile, network_of, picture_file
from benchmarks.serving.http_client import fetch
from benchmarks.serving.load import closed_loop, latencies_ms, percentile
from benchmarks.serving.photographs import PHOTOGRAPHS, Photograph, others
from benchmarks.serving.server_config import Count, Decoding, Positive, RivalName, ServerConfig
from benchmarks.serving.servers import (
    OURS,
    OURS_IN_BF16,
    Contender,
    Place,
    Running,
    candidates,
    identify,
    own_versions,
    require_environment,
    running,
    top_outputs,
    versions,
)
from models.bundle import load_bundle
from models.errors import DataError
from models.openvino_session import processor_flags
from models.program import run_program
from training.machine import this_machine

# Largest difference in score from ours. A full decode gives other scores than one at a reduced scale, and a temperature
# below 1 enlarges the difference: 0.043 at most on six photographs with the demonstration bundle.
_SAME_SCORE: Final[Mapping[Decoding, float]] = {"reduced": 0.001, "full": 0.06}


class Compare(Flags, frozen=True, kw_only=True):
    """Compares servers in closed loop: each client sends its next request when the last one is answered."""

    servers: tuple[RivalName, ...] = ("LitServe", "BentoML", "FastAPI")
    """Rivals; our own service is always included."""
    also_reduced: bool = True
    """Measure each rival twice: with Pillow's full decode, as in its documentation, and with our decode."""
    concurrencies: tuple[Count, ...] = (1, 8)
    """Numbers of clients."""
    rounds: Count = 5
    """Number of rounds; each starts every server anew, and ratios are taken within a round."""
    seconds: Positive = 8.0
    """Length of one measurement, after its lead-in, s."""
    lead_in_s: float = 1.5
    """Time before each measurement in which requests are sent but not counted, s."""
    warm_up_s: float = 3.0
    """Time of full load after each start, s."""
    tuning_seconds: float = 6.0
    """Length of the measurements that choose a rival's configuration, s; 0 takes the first one."""


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

    def cells(self, photograph: str, concurrency: int) -> list[Cell]:
        """The measurements of one photograph and concurrency, round by round."""
        wanted = (photograph, concurrency)
        return [cell for turn in self.turns for cell in turn.cells if (cell.photograph, cell.concurrency) == wanted]

    def per_s(self, photograph: str, concurrency: int) -> list[float]:
        """Good answers per second, round by round."""
        return [cell.per_s for cell in self.cells(photograph, concurrency)]


class Choice(msgspec.Struct, frozen=True):
    """The fastest configuration of a rival for each concurrency, of all that were tried."""

    contender: Contender
    best: dict[int, ServerConfig]


class AnswerNote(msgspec.Struct, frozen=True):
    """What a server said of a picture."""

    contender: Contender
    picture: str
    taxon_id: str
    score: float


class Comparison(Measured, frozen=True, kw_only=True):
    """What was measured."""

    setting: Compare
    network: Network
    photographs: list[PictureFile]
    versions: dict[str, str]
    """Of what the rivals are made of."""
    own_versions: dict[str, str]
    choices: list[Choice]
    figures: list[Figures]
    answers: list[AnswerNote]
    processor_flags: tuple[str, ...] = ()
    """Those of vector and matrix arithmetic."""

    def ratios(self, rival: Contender, photograph: str, concurrency: int, ours: Contender = OURS) -> list[float]:
        """How many times as many answers ours gave as a rival, round by round."""
        per_s = {each.contender: each.per_s(photograph, concurrency) for each in self.figures}
        return quotients(per_s[ours], per_s[rival])

    @property
    def disagreements(self) -> list[str]:
        """Pictures to which a server gave another answer than ours, in words."""
        ours = {note.picture: note for note in self.answers if note.contender == OURS}
        return [
            f"{note.contender} on {note.picture}: {note.taxon_id} ({note.score:.3f})"
            for note in self.answers
            if note.taxon_id != ours[note.picture].taxon_id
            or abs(note.score - ours[note.picture].score) > _SAME_SCORE[note.contender.decoding]
        ]


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(Compare, measure, description=__doc__)


def measure(command: Compare) -> Comparison:
    """Tries configurations, runs all rounds, prints tables and, with `out`, writes the result.

    Raises:
        DataError: Photographs or the rivals' environment are missing, or a server does not start.
        BundleError: The bundle is missing or damaged.
    """
    place, machine, pictures = command.place(), this_machine(), list(command.pictures().values())
    require_environment(place.environment, command.servers)
    decodings: tuple[Decoding, ...] = ("full", "reduced") if command.also_reduced else ("full",)
    rivals = [Contender(server, decoding) for decoding in decodings for server in command.servers]
    choices = [_choice(command, place, rival, pictures, machine.num_cores) for rival in rivals]
    ours = [OURS, *([OURS_IN_BF16] if "bf16" in place.bundle.record.networks else [])]
    plans = {each: _plan(dict.fromkeys(command.concurrencies, ServerConfig())) for each in ours}
    plans |= {choice.contender: _plan(choice.best) for choice in choices}
    turns: dict[Contender, list[Turn]] = {contender: [] for contender in plans}
    for _, contender in in_turns(plans, command.rounds):
        for config, concurrencies in plans[contender].items():
            with running(place, contender, config) as server:
                turns[contender].append(_turn(command, server, config, concurrencies, pictures))
    result = Comparison(
        machine=machine,
        setting=command.without_paths(),
        network=network_of(place.bundle),
        photographs=[picture_file(each) for each in pictures],
        versions=versions(place.environment),
        own_versions=own_versions(),
        choices=choices,
        figures=[Figures(contender, found) for contender, found in turns.items()],
        processor_flags=tuple(sorted(flag for flag in processor_flags() if flag.startswith(("avx", "amx")))),
        answers=[note for each in [OURS, *rivals] for note in _answers(command, place, each, pictures)],
    )
    write_result(result, markdown(result), command.out)
    return result


def _choice(command: Compare, place: Place, rival: Contender, pictures: Sequence[Photograph], cores: int) -> Choice:
    """Tries all configurations of a rival with the large photograph."""
    configs = candidates(rival.server, cores)
    if command.tuning_seconds <= 0:
        return Choice(rival, dict.fromkeys(command.concurrencies, configs[0]))
    per_s: dict[int, list[float]] = {number: [] for number in command.concurrencies}
    for config in track(configs, f"configurations of {rival}", disable=not sys.stderr.isatty()):
        with running(place, rival, config) as server:
            _warm(command, server, pictures)
            for number, found in per_s.items():
                cell = measure_cell(server, pictures[-1], number, command.tuning_seconds, command.lead_in_s)
                found.append(cell.per_s)
    return Choice(rival, {number: configs[found.index(max(found))] for number, found in per_s.items()})


def _plan(best: Mapping[int, ServerConfig]) -> dict[ServerConfig, list[int]]:
    """Configuration -> the concurrencies that are measured with it."""
    plan: dict[ServerConfig, list[int]] = {}
    for number, config in best.items():
        plan.setdefault(config, []).append(number)
    return plan


def _turn(
    command: Compare, server: Running, config: ServerConfig, concurrencies: list[int], pictures: list[Photograph]
) -> Turn:
    idle_mb = server.tree.memory_mb()
    _warm(command, server, pictures)
    cells = [
        measure_cell(server, picture, number, command.seconds, command.lead_in_s)
        for picture in pictures
        for number in concurrencies
    ]
    return Turn(cells, config, server.start_s, idle_mb, server.tree.memory_mb(), server.tree.end())


def _warm(command: Compare, server: Running, pictures: Sequence[Photograph]) -> None:
    requests, most = [identify(each.data) for each in pictures], max(command.concurrencies)
    asyncio.run(closed_loop(server.port, requests, concurrency=most, seconds=command.warm_up_s))


def measure_cell(server: Running, picture: Photograph, concurrency: int, seconds: float, lead_in_s: float) -> Cell:
    """Measures a server in closed loop with one photograph."""
    before_s, requests = server.tree.core_s(), [identify(picture.data)]
    load = asyncio.run(
        closed_loop(server.port, requests, concurrency=concurrency, seconds=seconds, lead_in_s=lead_in_s)
    )
    p50_ms, p99_ms = (percentile(latencies_ms(load.good), percent) for percent in (50, 99))
    core_ms = (server.tree.core_s() - before_s) * 1000 / load.num_good if load.num_good else None
    return Cell(picture.name, concurrency, load.per_s, p50_ms, p99_ms, load.words, load.generator_share, core_ms)


def _answers(command: Compare, place: Place, contender: Contender, pictures: list[Photograph]) -> list[AnswerNote]:
    """Answers of a trained network: one with random weights may give one answer to all pictures."""
    place = msgspec.structs.replace(place, bundle=load_bundle(DEMONSTRATION))
    notes = []
    with running(place, contender, ServerConfig()) as server:
        for picture in [*pictures, *others(command.photographs or PHOTOGRAPHS)]:
            answer = asyncio.run(fetch(server.port, identify(picture.data)))
            if answer.status != 200:
                said = f"status {answer.status}: {answer.body[:200]!r}"
                raise DataError(f"{contender} does not answer", value=said, limit="200")
            taxon_id, score = top_outputs(contender, place.bundle, answer.body)[0]
            notes.append(AnswerNote(contender, picture.name, taxon_id, score))
    return notes


def markdown(result: Comparison) -> str:
    """The result as tables, medians with their ranges."""
    numbers = result.setting.concurrencies
    kinds = [(photograph.name, number) for photograph in result.photographs for number in numbers]
    ours = [each.contender for each in result.figures if each.contender.server == "ours"]
    rivals = [each.contender for each in result.figures if each.contender not in ours]
    others_ended = Counter[str]()
    for each in result.figures:
        for word, count in ((w, c) for turn in each.turns for cell in turn.cells for w, c in cell.words.items()):
            others_ended.update({f"{each.contender}: {word}": count} if word != "200" else {})
    pictures = len({note.picture for note in result.answers})
    agreement = "; ".join(result.disagreements) or f"none on {pictures} pictures"
    return "\n\n".join(
        [
            f"{result.machine}: {result.network}; {result.setting.rounds} interleaved rounds, {result.measured_on}. "
            "Valid answers per second [range].",
            table(
                ["server", *(f"{name}, {number} at a time" for name, number in kinds)],
                [[str(each.contender), *(spread(each.per_s(*kind)) for kind in kinds)] for each in result.figures],
            ),
            "Answers per second of ours as a multiple of each rival's, median [range] of the rounds:",
            table(
                ["rival", *(f"{name}, {number}" for name, number in kinds)],
                [
                    [f"{rival}{', by ours in bf16' if each == OURS_IN_BF16 else ''}"]
                    + [spread(result.ratios(rival, *kind, each), 2) for kind in kinds]
                    for each in ours
                    for rival in rivals
                ],
            ),
            _costs(result),
            "The best setting of each rival, of all that were tried:",
            table(
                ["rival", *(f"{each} at a time" for each in numbers)],
                [[str(choice.contender), *(str(choice.best[each]) for each in numbers)] for choice in result.choices],
            ),
            f"* Answers of rivals that differ from ours: {agreement}.\n"
            f"* Requests that did not end with 200: "
            f"{', '.join(f'{count} x {word}' for word, count in sorted(others_ended.items())) or 'none'}.\n"
            f"* Versions: {', '.join(f'{name} {version}' for name, version in result.versions.items())}.",
        ]
    )


def _costs(result: Comparison) -> str:
    largest = (result.photographs[-1].name, max(result.setting.concurrencies))
    columns = ["server", "p99 at the largest load", "core time per answer", "idle memory", "at the end"]
    rows = [
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
    return table([*columns, "left by SIGTERM"], rows)


if __name__ == "__main__":
    main()
