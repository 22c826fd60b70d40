"""Program: times one setting with the real training step on random pictures.

python -m training.insight.tuning.trial < request.json     the last line of its output is a `Trial` as JSON

Each setting has its own process, so that its memory, kernel selection and crashes do not affect the next one.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
import torch
from torch import Tensor

from models.errors import BotanifyError
from models.network import PlantNetwork
from training.engine.device import choose_device
from training.engine.step import Engine
from training.evaluation.predict import torch_runner
from training.insight.tuning.launch import TrialRequest
from training.insight.tuning.setting import Trial, TrialSetting, setting_of
from training.loading.negatives import NOT_A_PLANT, list_negatives
from training.monitor.memory import is_out_of_memory
from training.recipe import NEGATIVES_SHARE, Recipe, check_recipe

_WARMUP_STEPS: Final = 3  # kernels are selected in the first; fp16 adjusts its loss scale in the first few
_WINDOWS: Final = 5
_WINDOW_S: Final = 0.6
_MAX_STEPS: Final = 200  # per window
_STEPS_PER_EPOCH: Final = 10_000  # enough that the learning rate does not reach zero
_VALIDATION_BATCH: Final = 32  # of training.loading.data.evaluation_loader
_GB: Final = 1e9


def main() -> None:
    """Reads a request and writes its result."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialRequest)
    threading.Thread(target=_exit_without, args=(request.parent_pid,), daemon=True).start()
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(run(request)) + b"\n")


def run(request: TrialRequest) -> Trial:
    """Measures a setting. Running out of memory and recipes that are refused are outcomes, not errors."""
    recipe = check_recipe(request.recipe, "of a trial")
    torch.set_num_threads(request.threads)
    try:
        device = choose_device(recipe.hardware, request.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return _measure(recipe, request, device)
    except BotanifyError as error:
        return Trial(setting=setting_of(recipe), outcome="crashed", note=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Trial(setting=setting_of(recipe), outcome="does_not_fit", note="out of memory")


def _measure(recipe: Recipe, request: TrialRequest, device: torch.device) -> Trial:
    started, setting = time.perf_counter(), setting_of(recipe)
    network = PlantNetwork(
        recipe.network.architecture,
        len(request.classes.taxon_of_output),
        dropout=recipe.network.dropout,
        drop_path=recipe.network.dropout / 2,
    )
    engine = Engine(recipe, network, device, request.classes, steps_per_epoch=_STEPS_PER_EPOCH)
    _validate(engine, recipe.pictures.serve_px)
    step = _steps(engine, setting, request.side_px)
    step_s = _warm_up(step, request.budget_s)
    warmup_s = time.perf_counter() - started
    windows_s = _windows(step, step_s, request.budget_s)
    speed = setting.batch_size / statistics.median(windows_s)
    memory_gb, memory_share = _memory(device)
    return Trial(
        setting=setting,
        pictures_per_s=speed,
        memory_gb=memory_gb,
        memory_share=memory_share,
        warmup_s=warmup_s,
    )


def _steps(engine: Engine, setting: TrialSetting, side_px: int) -> Callable[[int], float]:
    """Returns a function that takes a number of steps and returns their duration, s."""
    on_cuda, taken = engine.device.type == "cuda", 0
    negatives = list_negatives(engine.recipe.negatives.negatives)
    added = negatives.of_batch(NEGATIVES_SHARE, setting.batch_size)
    sizes = setting.batch_size, added
    batches = [_random_batch(sizes, side_px, engine.network.num_outputs, pin=on_cuda) for _ in range(2)]

    def take(num_steps: int) -> float:
        nonlocal taken
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.micro_step(*batches[taken % 2], step=taken)
            taken += 1
        engine.read()  # waits for the device
        engine.clock.read()
        return time.perf_counter() - started

    return take


def _random_batch(sizes: tuple[int, int], side_px: int, num_outputs: int, *, pin: bool) -> tuple[Tensor, Tensor]:
    """A batch of plants and pictures without plants as the loader returns it: uint8, channels last in memory."""
    pixels_BHW3 = torch.randint(0, 256, (sum(sizes), side_px, side_px, 3), dtype=torch.uint8)
    labels_B = torch.randint(0, num_outputs, (sum(sizes),))
    labels_B[sizes[0] :] = NOT_A_PLANT
    if pin:
        pixels_BHW3, labels_B = pixels_BHW3.pin_memory(), labels_B.pin_memory()
    return pixels_BHW3.permute(0, 3, 1, 2), labels_B


def _validate(engine: Engine, serve_px: int) -> None:
    """Runs a validation batch, so that its memory counts."""
    predict = torch_runner(engine.eval_model, engine.device, engine.amp_dtype)
    predict(torch.zeros(_VALIDATION_BATCH if engine.device.type == "cuda" else 1, 3, serve_px, serve_px))
    engine.train_mode()


def _warm_up(take: Callable[[int], float], budget_s: float) -> float:
    """Takes steps until the speed is steady, fewer if they are slow. Returns the duration of the last one, s."""
    step_s = take(1)  # includes compilation and kernel selection
    for _ in range(_WARMUP_STEPS - 1):
        step_s = take(1)
        if step_s > budget_s / 3:
            break
    return step_s


def _windows(take: Callable[[int], float], step_s: float, budget_s: float) -> list[float]:
    """Seconds per step in each window: five windows, or as many as fit the budget, at least one."""
    num_steps = min(max(round(_WINDOW_S / step_s), 1), _MAX_STEPS)
    started, found = time.perf_counter(), [take(num_steps) / num_steps]
    while len(found) < _WINDOWS and time.perf_counter() - started + found[-1] * num_steps < budget_s:
        found.append(take(num_steps) / num_steps)
    return found


def _memory(device: torch.device) -> tuple[float | None, float | None]:
    """Peak memory of the card, GB, and its share of what may be used; includes the CUDA context and other programs."""
    if device.type != "cuda":
        return None, None
    free, total = torch.cuda.mem_get_info(device)
    peak, now = torch.cuda.max_memory_reserved(device), torch.cuda.memory_reserved(device)
    taken = peak + max(total - free - now, 0)
    return taken / _GB, taken / total


def _exit_without(parent_pid: int) -> None:
    """Exits when the parent process has ended, so that the device is free again."""
    while os.getppid() == parent_pid:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
