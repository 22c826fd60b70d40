"""Program: measures one setting with the real step, on generated pictures.

python -m training.insight.tuning.trial < order.json     the last line of its output is a `Trial` as JSON

It runs in a process of its own, so that no memory, kernel choice or crash of one setting touches the next.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self

import msgspec
import torch
from torch import Tensor

from models.errors import BotanifyError
from models.network import PlantNetwork
from training.engine.device import choose_device
from training.engine.step import Engine
from training.evaluation.predict import torch_runner
from training.insight.tuning.launch import Order
from training.insight.tuning.setting import Setting, Trial, setting_of
from training.monitor.memory import is_out_of_memory, limit_memory
from training.recipe import Recipe, check_recipe

_WARMUP_STEPS: Final = 3  # the first one chooses kernels; the first ones in fp16 look for their scale
_WINDOWS: Final = 5
_WINDOW_S: Final = 0.6
_MOST_STEPS: Final = 200  # in a window
_STEPS_PER_EPOCH: Final = 10_000  # so that no rate ends at zero
_JUDGED_BATCH: Final = 32  # of training.loading.data.evaluation_loader
_LOOK_S: Final = 0.2  # between two looks at how busy the GPU is
_GB: Final = 1e9


def main() -> None:
    """Reads an order and writes what came of it."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    threading.Thread(target=_end_without, args=(order.parent,), daemon=True).start()
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(run(order)) + b"\n")


def run(order: Order) -> Trial:
    """Measures the setting of an order's recipe; too little memory and refused recipes are outcomes, not errors."""
    recipe = check_recipe(order.recipe, "of a trial")
    torch.set_num_threads(order.threads)
    try:
        device = choose_device(recipe.hardware, order.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        limit_memory(recipe.hardware.memory_gb, device)
        return _measured(recipe, order, device)
    except BotanifyError as error:
        return Trial(setting=setting_of(recipe), outcome="crashed", note=str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return Trial(setting=setting_of(recipe), outcome="does_not_fit", note="out of memory")


def _measured(recipe: Recipe, order: Order, device: torch.device) -> Trial:
    started, setting = time.perf_counter(), setting_of(recipe)
    network = PlantNetwork(
        recipe.network.architecture,
        len(order.classes.taxon_of_output),
        dropout=recipe.network.dropout,
        drop_path=recipe.network.drop_path,
    )
    engine = Engine(recipe, network, device, order.classes, steps_per_epoch=_STEPS_PER_EPOCH)
    _validate(engine, recipe.pictures.serve_px)
    step = _steps(engine, setting, order.side_px)
    step_s = _warm_up(step, order.budget_s)
    warmup_s = time.perf_counter() - started
    with _Use(device) as use:
        windows_s = _windows(step, step_s, order.budget_s)
    speed = setting.batch_size / statistics.median(windows_s)
    memory_gb, memory_share = _memory(device, recipe.hardware.memory_gb)
    return Trial(
        setting=setting,
        pictures_per_s=speed,
        spread=(max(windows_s) - min(windows_s)) / statistics.median(windows_s),
        memory_gb=memory_gb,
        memory_share=memory_share,
        use=use.share,
        warmup_s=warmup_s,
    )


def _steps(engine: Engine, setting: Setting, side_px: int) -> Callable[[int], float]:
    """Gives a function that takes so many steps and tells how long they took, s."""
    on_cuda, taken = engine.device.type == "cuda", 0
    batches = [_generated(setting.batch_size, side_px, engine.network.num_outputs, pin=on_cuda) for _ in range(2)]

    def take(num_steps: int) -> float:
        nonlocal taken
        started = time.perf_counter()
        for _ in range(num_steps):
            engine.take(*batches[taken % 2], step=taken)
            taken += 1
        engine.read()  # waits for the device
        engine.clock.read()
        return time.perf_counter() - started

    return take


def _generated(batch_size: int, side_px: int, num_outputs: int, *, pin: bool) -> tuple[Tensor, Tensor]:
    """A batch as the loader hands it over: 8 bits, the channels of a pixel side by side."""
    pixels_BHW3 = torch.randint(0, 256, (batch_size, side_px, side_px, 3), dtype=torch.uint8)
    labels_B = torch.randint(0, num_outputs, (batch_size,))
    if pin:
        pixels_BHW3, labels_B = pixels_BHW3.pin_memory(), labels_B.pin_memory()
    return pixels_BHW3.permute(0, 3, 1, 2), labels_B


def _validate(engine: Engine, serve_px: int) -> None:
    """Takes the memory that a validation takes."""
    judge = torch_runner(engine.eval_model, engine.device, engine.amp_dtype)
    judge(torch.zeros(_JUDGED_BATCH if engine.device.type == "cuda" else 1, 3, serve_px, serve_px))
    engine.train_mode()


def _warm_up(take: Callable[[int], float], budget_s: float) -> float:
    """Steps until the speed is steady; slow steps are steady at once. Gives how long the last one took, s."""
    step_s = take(1)  # compiles and chooses kernels, so it tells nothing of the others
    for _ in range(_WARMUP_STEPS - 1):
        step_s = take(1)
        if step_s > budget_s / 3:
            break
    return step_s


def _windows(take: Callable[[int], float], step_s: float, budget_s: float) -> list[float]:
    """Seconds a step in each window: five, or as many as the budget holds, but one."""
    num_steps = min(max(round(_WINDOW_S / step_s), 1), _MOST_STEPS)
    started, found = time.perf_counter(), [take(num_steps) / num_steps]
    while len(found) < _WINDOWS and time.perf_counter() - started + found[-1] * num_steps < budget_s:
        found.append(take(num_steps) / num_steps)
    return found


def _memory(device: torch.device, limit_gb: float) -> tuple[float | None, float | None]:
    """Most memory taken, GB, and its share of what may be used.

    torch's own peak, and whatever else lies on the card: the CUDA context, and what other programs hold.
    """
    if device.type != "cuda":
        return None, None
    free, total = torch.cuda.mem_get_info(device)
    peak, now = torch.cuda.max_memory_reserved(device), torch.cuda.memory_reserved(device)
    taken = peak + max(total - free - now, 0)
    share = taken / total
    if limit_gb:  # torch counts only its own memory against a limit
        share = max(share, peak / (limit_gb * _GB))
    return taken / _GB, share


class _Use:
    """How busy the device is in a `with` block: the GPU as NVML tells, or the cores that torch may use."""

    def __init__(self, device: torch.device) -> None:
        self.share: float | None = None
        self._device, self._done, self._looks = device, threading.Event(), list[float]()
        self._looker = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._started, self._before_s = time.perf_counter(), _cpu_seconds()
        if self._device.type == "cuda":
            self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._device.type == "cuda":
            self._looker.join()
            self.share = statistics.fmean(self._looks) if self._looks else None
            return
        cores = min(torch.get_num_threads(), os.cpu_count() or 1)
        used_s = _cpu_seconds() - self._before_s
        self.share = min(used_s / (time.perf_counter() - self._started) / cores, 1.0)

    def _look(self) -> None:
        with suppress(Exception):  # no NVML, or one that does not tell: then nobody knows
            while not self._done.wait(_LOOK_S):
                self._looks.append(torch.cuda.utilization(self._device) / 100)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _end_without(parent: int) -> None:
    """Ends this process when the one that waits for it is gone: it would keep the device for nobody."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    main()
