"""Program: measures how many pictures a second our service, LitServe, BentoML and FastAPI identify, in closed loop.

python benchmarks/serving/compare.py [--bundle DIR] [--rounds 5] [--out FILE.json]

All servers run the same ONNX file on the same photographs. First each rival is tried with several configurations; the
fastest for each concurrency is used. Then rounds are interleaved: each server is started, warmed up, measured and
stopped, then the next round begins. Ratios are taken within a round, so that a busy machine slows all servers alike.
Only one server runs at a time.
"""

import asyncio
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import msgspec
import tyro
from rich.progress import track

from benchmarks.serving.comparison import (
    AnswerNote,
    Cell,
    Choice,
    Compare,
    Comparison,
    Figures,
    GeneratorCost,
    Trial,
    Turn,
    markdown,
    targets,
)
from benchmarks.serving.flags import DEMONSTRATION, for_readers, network_of, picture_file, turns_of, write_result
from benchmarks.serving.http_client import fetch
from benchmarks.serving.load import closed_loop, percentile
from benchmarks.serving.null_server import null_server
from benchmarks.serving.overhead import Overhead, overhead
from benchmarks.serving.photographs import Photograph, others
from benchmarks.serving.server_config import Decoding, ServerConfig
from benchmarks.serving.servers import (
    OURS,
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
from training.machine import this_machine
from training.program import run_program

_QUICK: Final = {"rounds": 1, "seconds": 1.0, "lead_in_s": 0.3, "warm_up_s": 0.5, "tuning_seconds": 0.0}
_OVERHEAD_REQUESTS: Final = 40
_GENERATOR_SECONDS: Final = 3.0


def main() -> None:
    """Runs the program with the arguments of the command line."""
    run_program(lambda: measure(tyro.cli(Compare, description=__doc__)))


def measure(command: Compare) -> Comparison:
    """Tries configurations, runs all rounds, prints tables and, with `out`, writes the result.

    Raises:
        DataError: Photographs or the rivals' environment are missing, or a server does not start.
        BundleError: The bundle is missing or damaged.
    """
    return _Run(msgspec.structs.replace(command, **_QUICK) if command.quick else command).result()


class _Run:
    """One run of the program."""

    def __init__(self, command: Compare) -> None:
        self._command, self._place = command, command.place()
        require_environment(self._place.environment, command.servers)
        self._pictures = list(command.pictures().values())
        self._machine = this_machine()
        decodings: tuple[Decoding, ...] = ("full", "reduced") if command.also_reduced else ("full",)
        self._rivals = [Contender(server, decoding) for decoding in decodings for server in command.servers]
        self._turns = turns_of(command, self._machine)

    def result(self) -> Comparison:
        """Measures everything that is not measured yet."""
        command = self._command
        choices = [self._choice(rival) for rival in self._rivals]
        generator = self._turns.take("generator", list[GeneratorCost], partial(_generator_costs, self._pictures))
        turns = self._rounds({choice.contender: choice for choice in choices})
        answers = [note for contender in self._contenders for note in self._answers(contender)]
        result = Comparison(
            machine=self._machine,
            measured_on=datetime.now(UTC).date().isoformat(),
            setting=for_readers(command),
            network=network_of(self._place.bundle),
            photographs=[picture_file(each) for each in self._pictures],
            versions=versions(self._place.environment),
            own_versions=own_versions(),
            generator=generator,
            choices=choices,
            figures=[Figures(contender, found) for contender, found in turns.items()],
            answers=answers,
            overhead=self._turns.take("overhead", list[Overhead], self._overhead),
        )
        result = msgspec.structs.replace(result, targets=targets(result))
        print(markdown(result))
        write_result(result, command.out)
        self._turns.forget()
        return result

    @property
    def _contenders(self) -> list[Contender]:
        return [OURS, *self._rivals]

    def _choice(self, rival: Contender) -> Choice:
        configs = candidates(rival.server, self._machine.num_cores)
        if self._command.tuning_seconds <= 0:
            return Choice(rival, [Trial(configs[0], {})])
        trials = []
        for number, config in enumerate(track(configs, f"configurations of {rival}", disable=not sys.stderr.isatty())):
            trials.append(self._turns.take(f"trial of {rival} {number}", Trial, partial(self._trial, rival, config)))
        return Choice(rival, trials)

    def _trial(self, rival: Contender, config: ServerConfig) -> Trial:
        command, picture = self._command, self._pictures[-1]
        with running(self._place, rival, config) as server:
            self._warm(server)
            cells = [_cell(server, picture, number, command, command.tuning_seconds) for number in self._concurrencies]
        return Trial(config, {cell.concurrency: cell.per_s for cell in cells})

    def _rounds(self, choices: dict[Contender, Choice]) -> dict[Contender, list[Turn]]:
        found: dict[Contender, list[Turn]] = {contender: [] for contender in self._contenders}
        for number in track(range(self._command.rounds), "rounds", disable=not sys.stderr.isatty()):
            first = number % len(self._contenders)  # another order in each round
            for contender in self._contenders[first:] + self._contenders[:first]:
                for config, concurrencies in self._plan(choices.get(contender)).items():
                    key = f"round {number}: {contender}, {config}"
                    measure = partial(self._turn, contender, config, concurrencies)
                    found[contender].append(self._turns.take(key, Turn, measure))
        return found

    def _plan(self, choice: Choice | None) -> dict[ServerConfig, list[int]]:
        """Configuration -> the concurrencies that are measured with it."""
        plan: dict[ServerConfig, list[int]] = {}
        for number in self._concurrencies:
            plan.setdefault(choice.best(number) if choice else ServerConfig(), []).append(number)
        return plan

    def _turn(self, contender: Contender, config: ServerConfig, concurrencies: Sequence[int]) -> Turn:
        command = self._command
        with running(self._place, contender, config) as server:
            idle_mb = server.tree.memory_mb()
            self._warm(server)
            cells = [
                _cell(server, picture, number, command, command.seconds)
                for picture in self._pictures
                for number in concurrencies
            ]
            end_mb = server.tree.memory_mb()
            left = server.tree.end()
        return Turn(cells, config, server.start_s, idle_mb, end_mb, left)

    def _answers(self, contender: Contender) -> list[AnswerNote]:
        """Answers of a trained network: one with random weights may give one answer to all pictures."""
        more = [] if self._command.quick else others(self._command.folder)
        place = msgspec.structs.replace(self._place, bundle=load_bundle(DEMONSTRATION))

        def ask() -> list[AnswerNote]:
            with running(place, contender, ServerConfig()) as server:
                return [_note(server, place, each) for each in [*self._pictures, *more]]

        return self._turns.take(f"answers of {contender}", list[AnswerNote], ask)

    def _overhead(self) -> list[Overhead]:
        requests = 3 if self._command.quick else _OVERHEAD_REQUESTS
        with running(self._place, OURS, ServerConfig()) as server:
            return [overhead(server.port, each, requests) for each in self._pictures]

    def _warm(self, server: Running) -> None:
        requests = [identify(each.data) for each in self._pictures]
        most = max(self._concurrencies)
        asyncio.run(closed_loop(server.port, requests, concurrency=most, seconds=self._command.warm_up_s))

    @property
    def _concurrencies(self) -> tuple[int, ...]:
        return self._command.concurrencies


def _cell(server: Running, picture: Photograph, concurrency: int, command: Compare, seconds: float) -> Cell:
    before_s = server.tree.core_s()
    load = asyncio.run(
        closed_loop(
            server.port,
            [identify(picture.data)],
            concurrency=concurrency,
            seconds=seconds,
            lead_in_s=command.lead_in_s,
        )
    )
    latencies = [outcome.latency_s * 1000 for outcome in load.good]
    p50_ms, p99_ms = percentile(latencies, 50), percentile(latencies, 99)
    core_ms = (server.tree.core_s() - before_s) * 1000 / load.num_good if load.num_good else None
    return Cell(picture.name, concurrency, load.per_s, p50_ms, p99_ms, load.words, load.generator_share, core_ms)


def _note(server: Running, place: Place, picture: Photograph) -> AnswerNote:
    answer = asyncio.run(fetch(server.port, identify(picture.data)))
    if answer.status != 200:
        raise DataError(
            f"{server.contender} does not answer", value=f"status {answer.status}: {answer.body[:200]!r}", limit="200"
        )
    taxon_id, score = top_outputs(server.contender, place.bundle, answer.body)[0]
    return AnswerNote(server.contender, picture.name, taxon_id, score)


def _generator_costs(pictures: Sequence[Photograph]) -> list[GeneratorCost]:
    costs = []
    with null_server() as port:
        for each in pictures:
            request = [identify(each.data)]
            load = asyncio.run(closed_loop(port, request, concurrency=8, seconds=_GENERATOR_SECONDS, lead_in_s=0.5))
            costs.append(GeneratorCost(each.name, 1000 * load.generator_share / load.per_s, load.per_s))
    return costs


if __name__ == "__main__":
    main()
