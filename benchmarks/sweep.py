"""Program: trains the arms of a sweep with several seeds, and writes one table of accuracy, speed and memory.

  python benchmarks/sweep.py batch_sizes --data DATA --out DIR       batch sizes
  python benchmarks/sweep.py optimizations --data DATA --out DIR     each optimization of speed
  python benchmarks/sweep.py ablation --data DATA --out DIR -- --weights FILE
                                                                       each part of the reference recipe

SWEEP is a TOML file, or the name of one in benchmarks/sweeps. Flags of train.py for all arms follow after `--`. The
same command resumes a sweep that was stopped; finished runs are not repeated.
"""

import random
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import msgspec
import tyro
from msgspec.structs import replace

from benchmarks.result import ROOT, spread, table
from models.atomic_file import as_json, replace_together, write_json
from models.errors import BotanifyError, DataError, RecipeError, without_password
from models.program import clear_errors, read_flags
from training.engine.stop_signal import EXIT_REQUEUE
from training.machine import Machine, this_machine
from training.monitor.log import LOG_FILE, Event, read_log
from training.recipe import check_recipe, read_recipe
from training.toml_file import Section, check_section, flag_words, read_toml, section_to_plain

SWEEPS: Final = ROOT / "benchmarks" / "sweeps"
TRAIN: Final = ROOT / "training" / "train.py"
RUN_FILE: Final = "run.json"
OUTPUT_FILE: Final = "output.txt"
_MACHINE_FILE: Final = "machine.json"
_ERROR: Final = "error ("  # begins the last line of a program of this project that fails
_MAX_CRASHES: Final = 2  # of one run; otherwise a permanent cause would block the sweep
_GRACE_S: Final = 40.0  # for train.py to finish a checkpoint; schedulers often kill a minute after SIGTERM


class Benchmark(msgspec.Struct, frozen=True, kw_only=True):
    """Trains the arms of a sweep with several seeds, and writes one table."""

    sweep: tyro.conf.Positional[Path]
    """A TOML file, or the name of one in benchmarks/sweeps."""
    data: Path
    """Folder that training/prepare.py wrote."""
    out: Path
    """Folder for the runs, and for the table as JSON and Markdown."""
    seeds: tuple[int, ...] = ()
    """Every arm runs once with each seed; default: those of the sweep."""
    only: tuple[str, ...] = ()
    """Names of the arms to run; default: all."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is a GPU."""
    flags: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Flags of train.py for all arms: the part of the command line after `--`."""


class Arm(Section, frozen=True, kw_only=True):
    """One way to train: the settings of another arm, and changes."""

    after: str = ""
    """Name of an arm above it whose settings it shares; empty: those of the recipe."""
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of the recipe that it changes, such as batch_size = 32."""
    on: Literal["any", "cuda"] = "any"
    """Devices that it runs on."""


class Sweep(Section, frozen=True, kw_only=True):
    """A TOML file of arms."""

    recipe: Path
    """The recipe that is varied: a TOML file, or the name of one in training/recipes."""
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (0, 1, 2)
    set: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of all arms."""
    arms: Annotated[dict[str, Arm], msgspec.Meta(min_length=1)]
    """Name -> arm; speeds are compared with the first one."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """An arm with a seed. The first epoch of a process is a warm-up and counts for no figure of speed."""

    arm: str
    seed: int
    command: tuple[str, ...]
    """Recipe and flags of train.py."""
    error: str = ""
    """Why it failed; empty if it did not."""
    top1: float | None = None
    """Validation top-1 of the last epoch, percent; the best epoch would favor runs with more validations."""
    pictures_per_s: float | None = None
    """Median of the epochs."""
    epoch_s: float | None = None
    """Seconds of an epoch without its validation, median."""
    memory_gb: float | None = None
    """Peak GPU memory; None on a CPU."""
    waiting: float | None = None
    """Share of the time in which steps waited for the loader, percent."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the JSON file."""

    sweep: str
    machine: Machine
    """With the commit."""
    device: str
    recipe: str
    data: str
    flags: tuple[str, ...]
    runs: list[Run] = []
    rows: list[list[str]] = []
    """The table: one row for each arm, with `COLUMNS`."""


def main() -> None:
    """Runs the program with the arguments of the command line; after SIGTERM it ends with exit code 75."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_REQUEUE))
    with clear_errors():
        benchmark(parse(sys.argv[1:]))


def parse(arguments: list[str]) -> Benchmark:
    """Reads the command line."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    command: Benchmark = read_flags(Benchmark, arguments[:at], description=__doc__)
    return replace(command, flags=tuple(arguments[at + 1 :]))


def benchmark(command: Benchmark) -> Result:
    """Trains what is missing, writes the table after each run, and prints it in the end.

    Raises:
        BotanifyError: The sweep, the data or the command line is wrong, or every run failed.
    """
    from training.dataset.manifest import Manifest

    sweep, name = read_sweep(command.sweep)
    manifest = Manifest(command.data)
    manifest.rows_of("validation")  # raises now if there are none, not after the first run
    machine, path = this_machine(), command.out / _MACHINE_FILE
    if not path.is_file():
        write_json(path, machine)
    elif (other := str(msgspec.json.decode(path.read_bytes(), type=Machine))) != str(machine):
        raise DataError(
            "the folder has figures of another machine",
            value=f"{other}; this is {machine}",
            remedy="measure all arms on one machine, in a folder of its own",
        )
    device = command.device if command.device != "auto" else "cuda" if machine.gpus else "cpu"
    arms = commands_of(sweep, device, command.only)
    flags = ("--data", str(command.data), "--device", device, *command.flags)
    seeds = command.seeds or sweep.seeds
    order = [(arm, seed) for seed in seeds for arm in random.Random(seed).sample(list(arms), len(arms))]
    runs: list[Run] = []
    result = Result(
        sweep=name,
        machine=machine,
        device=device,
        recipe=sweep.recipe.stem,
        data=f"{command.data.resolve().name}, {len(manifest):,} pictures, manifest {manifest.sha256[:12]}",
        flags=_without_paths(command.flags),
    )
    for number, (arm, seed) in enumerate(order, 1):
        print(f"{number} of {len(order)}: {arm}, seed {seed}", file=sys.stderr)
        begun = Run(arm=arm, seed=seed, command=(*arms[arm], *flags, "--seed", str(seed)))
        runs.append(train_arm(begun, command.out / f"{arm}-seed{seed}"))
        result = replace(
            result,
            runs=[replace(run, command=_without_paths(run.command)) for run in runs],
            rows=[row_of(arm, runs, first=next(iter(arms)), num_runs=len(seeds)) for arm in arms],
        )
        replace_together(command.out, {f"{name}.json": as_json(result), f"{name}.md": markdown(result).encode()})
    print(markdown(result), end="")
    if all(run.error for run in runs):
        raise BotanifyError(f"every run failed; the first error: {runs[0].error}")
    return result


def read_sweep(path: Path) -> tuple[Sweep, str]:
    """Reads a sweep, and its name; a bare name such as "ablation" also finds `benchmarks/sweeps/ablation.toml`.

    Raises:
        RecipeError: The file is missing or not a sweep.
    """
    content, origin = read_toml(path, known=sorted(SWEEPS.glob("*.toml")), what="sweep")
    return check_section(content, Sweep, origin, what="sweep"), Path(origin).stem


def commands_of(sweep: Sweep, device: str, only: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The recipe and the flags of train.py of each arm that runs on a device, in the order of the file.

    Raises:
        RecipeError: An arm has an unknown setting or a wrong value, or there is no arm of a name.
    """
    recipe = section_to_plain(read_recipe(sweep.recipe))
    section_of = {key: section for section, part in recipe.items() for key in part}
    settings: dict[str, dict[str, Any]] = {}
    for name, arm in sweep.arms.items():
        if arm.after and arm.after not in settings:
            raise RecipeError(f"the arm {name} comes after an arm that is not above it", value=arm.after)
        settings[name] = settings.get(arm.after, sweep.set) | arm.set
        changed = {section: dict(part) for section, part in recipe.items()}
        for key, value in settings[name].items():
            if key not in section_of:
                raise RecipeError(f"the arm {name} has an unknown setting", value=key, limit="settings of recipes")
            changed[section_of[key]][key] = value
        check_recipe(changed, f"of the arm {name}")
    known = [name for name, arm in sweep.arms.items() if arm.on in ("any", device)]
    if unknown := sorted(set(only) - set(known)):
        raise RecipeError(
            f"no such arm on {device}", value=", ".join(unknown), limit=", ".join(known), remedy="correct --only"
        )
    return {
        name: (str(sweep.recipe), *(word for item in settings[name].items() for word in flag_words(*item)))
        for name in known
        if not only or name in only
    }


def train_arm(begun: Run, folder: Path) -> Run:
    """Runs train.py for an arm and a seed, unless its result exists; an interrupted run is resumed.

    The error that train.py reports is the result; remove the folder to try again. If it crashes or is killed, it is
    resumed once. Weights are removed at the end.

    Raises:
        RecipeError: The folder holds the arm with other settings.
    """
    path, arguments = folder / RUN_FILE, begun.command
    begun = replace(begun, command=tuple(map(without_password, arguments)))
    if path.is_file():
        done = msgspec.json.decode(path.read_bytes(), type=Run)
        if done.command == begun.command:
            return done
        told, remedy = " ".join(done.command), "choose another folder with --out, or remove that one"
        raise RecipeError("the folder holds this arm with other settings", value=folder, limit=told, remedy=remedy)
    folder.mkdir(parents=True, exist_ok=True)
    error = ""
    for _ in range(_MAX_CRASHES):
        error = _train((*arguments, "--run", str(folder), "--auto-resume"), folder / OUTPUT_FILE)
        if not error or error.startswith(_ERROR):
            break
    events = without_repeats(read_log(folder)) if (folder / LOG_FILE).is_file() else []
    done = read_figures(replace(begun, error=error), events)
    write_json(path, done)
    for weights in folder.glob("*.pt"):
        weights.unlink()
    return done


def _train(arguments: Sequence[str], output: Path) -> str:
    """Runs train.py; returns why it failed, or nothing if it succeeded."""
    with output.open("wb") as stream:
        process = subprocess.Popen([sys.executable, str(TRAIN), *arguments], stdout=stream, stderr=subprocess.STDOUT)
        try:
            code = process.wait()
        finally:  # on SIGTERM or Ctrl-C it still runs; these have no effect on a process that has ended
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            process.kill()
    if code <= 0:
        return f"killed by signal {-code}" if code else ""
    lines = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(_ERROR)]
    return (errors or lines or [f"exit code {code}"])[-1].strip()


def without_repeats(events: Iterable[Event]) -> list[Event]:
    """The events without those of steps that were repeated after a resume."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "start":
            kept = [earlier for earlier in kept if earlier.get("step", 0) <= event["step"]]
        kept.append(event)
    return kept


def read_figures(run: Run, events: Sequence[Event]) -> Run:
    """Adds the figures of a run's log; a run that failed has only its memory."""
    epochs = [event for event in events if event["event"] == "epoch"]
    peaks = [epoch["memory_gb"] for epoch in epochs if epoch["memory_gb"] is not None]
    run = replace(run, memory_gb=max(peaks, default=None))
    if run.error or not epochs:
        return run
    timed, warm = [], False
    for event in events:
        if event["event"] == "start":
            warm = False
        elif event["event"] == "epoch" and event["pictures_per_s"] > 0:  # 0: it was resumed to be validated
            timed += [event] if warm else []
            warm = True
    running_s = sum(epoch["use"]["seconds"] for epoch in timed)
    waiting_s = sum(epoch["use"]["stages"].get("wait", 0.0) for epoch in timed)
    validation = epochs[-1].get("validation") or {}
    return replace(
        run,
        top1=100 * validation["top1"]["value"] if validation else None,
        pictures_per_s=statistics.median(epoch["pictures_per_s"] for epoch in timed) if timed else None,
        epoch_s=statistics.median(epoch["seconds"] for epoch in timed) if timed else None,
        waiting=100 * waiting_s / running_s if running_s else None,
    )


COLUMNS: Final = ["arm", "top-1, %", "pictures/s", "speed-up", "epoch, s", "GPU memory, GB", "waiting, %", "runs"]


def row_of(arm: str, runs: Sequence[Run], *, first: str, num_runs: int) -> list[str]:
    """The row of an arm: medians and ranges over the seeds; speed-ups are over the first arm with the same seed."""
    own = [run for run in runs if run.arm == arm]
    of_first = {run.seed: run.pictures_per_s for run in runs if run.arm == first}
    ratios = [run.pictures_per_s / speed for run in own if run.pictures_per_s and (speed := of_first.get(run.seed))]
    errors = [run.error for run in own if run.error]
    told = f"{len(own) - len(errors)} of {num_runs}"
    return [
        arm,
        spread([run.top1 for run in own]),
        spread([run.pictures_per_s for run in own]),
        spread(ratios, digits=2),
        spread([run.epoch_s for run in own]),
        spread([run.memory_gb for run in own], digits=2),
        spread([run.waiting for run in own]),
        f"{told}; failed: {errors[0]}" if errors else told,
    ]


def markdown(result: Result) -> str:
    """The table with its machine, commit and setting."""
    return (
        f"# {result.sweep}\n\nMeasured on {result.device}: {result.machine}. Commit {result.machine.git_commit}, "
        f"recipe {result.recipe}, data {result.data}, flags `{' '.join(result.flags) or 'none'}`. Median [range] over "
        f"the seeds; the first epoch of each run is not timed.\n\n{table(COLUMNS, result.rows)}\n"
    )


def _without_paths(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(Path(word).name if "/" in word else word for word in map(without_password, words))


if __name__ == "__main__":
    main()
