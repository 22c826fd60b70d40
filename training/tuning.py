"""`train.py --tune`: finds batch size, loader processes and learning rates for this machine.

Each batch size is a trial in its own process, which may run out of memory. Layout, precision and compilation are those
of the recipe.
"""

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, Final

import msgspec
import torch
from rich.console import Console

from models.atomic_file import write_json
from models.cores import cores
from models.errors import BotanifyError, one_line
from training.dataset.manifest import Manifest
from training.engine.device import Ranks, describe_device
from training.engine.losses import TrainingClasses, training_classes
from training.loading.data import training_loader
from training.loading.negatives import RunInput, num_plants
from training.processes import end_with_parent
from training.recipe import Recipe, rate_factor
from training.toml_file import flag_words
from training.tuning_trial import MAX_MEMORY_SHARE, Trial, time_batch_size, with_batch_size

RESULT_FILE: Final = "tuning.json"
NEAR: Final = 0.03
"""Relative difference below which two speeds count as equal."""
_START: Final = 8  # pictures, where the search begins
_STEP: Final = 8  # tensor cores are fastest at multiples of 8
_MIN_STEPS: Final = 8  # per epoch; a larger batch would learn in too few steps from so little data
_LOADER_S: Final = 5.0  # for which the loader is timed
_EXIT_S: Final = 10.0  # for a trial to end by itself, which releases what it holds


class NothingRan(BotanifyError):
    """No batch size could be measured."""

    code = "nothing_ran"


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal and its reasons."""

    device: str
    num_ranks: int
    batch_size: int
    accumulate: int
    """Batches per optimizer step, so that a step averages at least as many pictures as in the recipe."""
    workers: int
    backbone_lr: float
    head_lr: float
    trials: list[Trial]
    reasons: list[str]

    @property
    def flags(self) -> str:
        """The proposal as flags of train.py."""
        names = ("batch_size", "accumulate", "backbone_lr", "head_lr", "workers")
        return " ".join(word for name in names for word in flag_words(name, getattr(self, name)))


def tune(inputs: RunInput, manifest: Manifest, device: torch.device, ranks: Ranks | None = None) -> Tuned | None:
    """Measures batch sizes, prints the result, and writes `tuning.json` into the run's folder; trains nothing.

    Of ranks that train together, the main one measures on its device, and the others return None.

    Raises:
        NothingRan: No batch size could be measured.
    """
    ranks = ranks or Ranks()
    if not ranks.is_main:
        return None
    console = Console()
    recipe = inputs.recipe
    classes = training_classes(manifest, recipe)
    trials = list[Trial]()

    def measure(batch_size: int) -> Trial:
        trial = launch(with_batch_size(recipe, batch_size), classes, device)
        trials.append(trial)
        console.print(f"batch {batch_size}: {describe(trial)}", highlight=False)
        return trial

    num_pictures = len(manifest.rows_of("train")) // ranks.num_ranks
    largest = max(num_pictures // _MIN_STEPS, min(recipe.schedule.batch_size, num_pictures), 1)
    chosen = find_batch_size(measure, largest)
    # The loader is timed after its first batch, for some seconds or an epoch.
    inputs = msgspec.structs.replace(inputs, recipe=with_batch_size(recipe, chosen.batch_size))
    loader, order = training_loader(manifest, inputs, pin=False)
    order.side_px = recipe.pictures.picture_px
    batches = iter(loader)
    next(batches)  # its processes start
    began = time.perf_counter()
    pictures = 0
    seconds = 0.0
    for _, labels in batches:
        pictures += num_plants(labels)
        seconds = time.perf_counter() - began
        if seconds > _LOADER_S:
            break
    loaded_per_s = pictures / seconds if seconds else math.inf
    name = describe_device(device)
    tuned = propose(recipe, chosen, trials, device=name, num_ranks=ranks.num_ranks, loaded_per_s=loaded_per_s)
    for reason in tuned.reasons:
        console.print(reason, highlight=False)
    console.print(f"Next: train.py with {tuned.flags}", highlight=False, soft_wrap=True)
    write_json(recipe.run.run / RESULT_FILE, tuned)
    return tuned


def launch(
    recipe: Recipe,
    classes: TrainingClasses,
    device: torch.device,
    *,
    max_s: float = 180.0,
    budget_s: float = 4.0,
    measure: Callable[[Recipe, TrainingClasses, torch.device, float], Trial] = time_batch_size,
) -> Trial:
    """Measures the batch size of a recipe in a new process; a crash or a timeout is an outcome, not an error.

    The process is killed after `max_s`, or three times that if it compiles. `budget_s` is that of `time_batch_size`.
    """
    max_s *= 1 if recipe.hardware.compile == "off" else 3
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    work = (measure, recipe, classes, device, budget_s)
    process = context.Process(target=_work, args=(sender, torch.get_num_threads(), *work))
    process.start()
    sender.close()  # this process's end of it: if the other one dies, there is no end left
    try:
        if not receiver.poll(max_s):
            return Trial(
                batch_size=recipe.schedule.batch_size, outcome="too_slow", note=f"not done after {max_s:.0f} s"
            )
        trial: Trial = receiver.recv()
        process.join(_EXIT_S)
        return trial
    except EOFError:
        process.join()
        code = process.exitcode or 0
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        killed = "; the machine's memory may have run out" if name == "SIGKILL" else ""
        return Trial(batch_size=recipe.schedule.batch_size, outcome="crashed", note=f"ended by {name}{killed}")
    finally:
        process.kill()
        process.join()
        receiver.close()


def _work(sender: Connection, threads: int, measure: Callable[..., Trial], recipe: Recipe, *work: Any) -> None:
    """Sends the trial; what compilers and libraries print is not shown."""
    end_with_parent()
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    torch.set_num_threads(threads)
    try:
        sender.send(measure(recipe, *work))
    except Exception as error:  # such as that of a compiler
        note = one_line(f"{type(error).__name__}: {error}", 200)
        sender.send(Trial(batch_size=recipe.schedule.batch_size, outcome="crashed", note=note))


def find_batch_size(measure: Callable[[int], Trial], largest: int) -> Trial:
    """Searches the smallest batch size within 3 % of the fastest: powers of two, then multiples of 8.

    It doubles the size until one fails or two in a row are no faster, halves it until that is slower, and looks between
    the largest that fits and the one that does not. The size that it returns was measured and fits.

    Raises:
        NothingRan: No batch size could be measured.
    """
    tried: dict[int, Trial] = {}

    def running() -> list[Trial]:
        return [tried[size] for size in sorted(tried) if tried[size].fits]

    def fastest() -> float:
        return max((trial.pictures_per_s for trial in running()), default=0.0)

    start = size = min(_START, 1 << (largest.bit_length() - 1))
    in_vain = 0
    too_large = largest + 1
    while size <= largest and in_vain < 2:  # a single crash or doubling without gain may be chance
        before = fastest()
        trial = tried[size] = measure(size)
        if trial.outcome in ("does_not_fit", "too_slow") or (trial.outcome == "ran" and not trial.fits):
            too_large = size
            break
        in_vain = 0 if trial.fits and trial.pictures_per_s > before * (1 + NEAR) else in_vain + 1
        size *= 2
    is_slower = False
    size = start
    while size > 1 and not is_slower:
        size //= 2
        trial = tried[size] = measure(size)
        is_slower = trial.fits and trial.pictures_per_s < fastest() * (1 - NEAR)
    if not running():
        first = tried[min(tried)]
        size = first.batch_size
        why = f" ({first.note})" if first.note else ""
        raise NothingRan(f"no batch size could be measured; a batch of {size}: {first.outcome}{why}.")
    size = running()[-1].batch_size
    step = max(size // 4 // _STEP * _STEP, _STEP)
    too_large = min(too_large, 2 * size)
    while in_vain < 2 and size // step < (last := (too_large - 1) // step):
        middle = (size // step + 1 + last) // 2 * step
        tried[middle] = measure(middle)
        if tried[middle].fits:
            size = middle
        else:
            too_large = middle
    return next(trial for trial in running() if trial.pictures_per_s >= fastest() * (1 - NEAR))


def propose(
    recipe: Recipe, chosen: Trial, trials: Sequence[Trial], *, device: str, num_ranks: int, loaded_per_s: float
) -> Tuned:
    """Turns the best trial into a proposal.

    An optimizer step averages at least as many pictures as in the recipe: smaller batches are accumulated, unless the
    recipe compiles with CUDA graphs, which cannot accumulate. The rates
    follow the square-root rule for Adam (Malladi et al. 2022): the noise of a gradient falls with the square root of
    the batch size, and the length of an AdamW step hardly depends on the length of the gradient. The recipe's rates are
    taken to be right for its own pictures per step.

    `loaded_per_s` is how many pictures a second the recipe's loader processes load.
    """
    batch_size = chosen.batch_size
    speed = chosen.pictures_per_s
    num_cores = cores()
    schedule = recipe.schedule
    wanted = schedule.batch_size * schedule.accumulate
    accumulate = max(-(-wanted // (batch_size * num_ranks)), 1)
    if recipe.hardware.compile == "reduce-overhead":
        accumulate = 1
    effective = batch_size * num_ranks * accumulate
    factor = math.sqrt(effective / wanted) / rate_factor(schedule, num_ranks)  # which the run itself applies
    workers = recipe.data.workers
    needed = math.ceil(max(workers, 1) * speed / loaded_per_s)
    limit = "limits the run" if loaded_per_s < speed else "keeps up"
    return Tuned(
        device=device,
        num_ranks=num_ranks,
        batch_size=batch_size,
        accumulate=accumulate,
        workers=workers if loaded_per_s >= speed else max(min(needed, num_cores), workers),
        backbone_lr=float(f"{schedule.backbone_lr * factor:.3g}"),
        head_lr=float(f"{schedule.head_lr * factor:.3g}"),
        trials=list(trials),
        reasons=[
            f"A batch of {batch_size} is the smallest within {NEAR:.0%} of the fastest: {speed:.4g} pictures/s.",
            f"A step averages {effective} pictures, in the recipe {wanted}: the rates are the recipe's times the square"
            " root of the ratio, as derived for Adam (Malladi et al. 2022).",
            f"{workers} loader processes on {num_cores} cores load {loaded_per_s:.4g} pictures/s: the loader {limit}.",
            "Only speed and memory were measured: a larger batch may need more epochs for the same accuracy.",
        ],
    )


def describe(trial: Trial) -> str:
    """The figures of a trial, and why it cannot be chosen."""
    if trial.outcome != "ran":
        return ": ".join(filter(None, (trial.outcome.replace("_", " "), trial.note)))
    memory = "" if trial.memory_gb is None else f", {trial.memory_gb:.1f} GB ({trial.memory_share or 0:.0%})"
    too_much = "" if trial.fits else f", above {MAX_MEMORY_SHARE:.0%} of the memory"
    return f"{trial.pictures_per_s:.4g} pictures/s{memory}{too_much}, {trial.warmup_s:.0f} s to warm up"
