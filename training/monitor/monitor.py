"""The monitor of a run: measures where the time of each epoch goes, and says what limits the run.

The time in the device's stages counts as work. The rest is lost to the loader (while a step waits for it), to
checkpoints, or to the host. The most expensive of these is reported, if it costs enough.
"""

import threading
import time
from contextlib import AbstractContextManager
from typing import Any, Final, Literal

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from models.cores import cores
from training.loading.negatives import num_plants

STAGES: Final = ("wait", "copy", "forward", "backward", "optimizer")
"""The stages of a step, in order; in "wait" the step waits for the loader."""
DEVICE_STAGES: Final = STAGES[1:]
"""The stages on the device; all others are measured with the host's clock."""
_SAMPLE_EVERY_S: Final = 0.5
_GB: Final = 1e9
_MIN_SHARE: Final = 0.1  # of the time; causes that cost less are not reported
_GPU_IN_USE: Final = 0.7  # of the time; below it, and with no other cause, the kernels are too short
ENOUGH_PROCESSOR: Final = 0.5
"""Share of the processor that a training gets on a machine of its own, at least. With less, the threads of a step wait
for one another, and one thread may be several times as fast as two."""


class StepClock:
    """Measures the stages of steps. Stages must not overlap.

    On CUDA a device stage is a pair of events in the stream. The time between them is the device's: work, and idling
    until the host launches more of the stage. On a CPU the host's clock measures all stages.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"
        self._stages: dict[str, _Stage] = {}
        for name in STAGES:
            self.stage(name)

    def stage(self, name: str) -> AbstractContextManager[None]:
        """A context manager that adds its block's time to a stage; a name outside STAGES is a stage of the host."""
        if name not in self._stages:
            self._stages[name] = _Stage(in_stream=self._on_cuda and name in DEVICE_STAGES)
        return self._stages[name]

    def read(self) -> dict[str, float]:
        """Seconds in each stage since the last reading; on CUDA this waits for the last step."""
        return {name: stage.take() for name, stage in self._stages.items()}


class _Stage(AbstractContextManager[None]):
    """A stage between pairs of marks: events in the current stream, or times of the host's clock."""

    def __init__(self, *, in_stream: bool) -> None:
        self._in_stream = in_stream
        self._marks: list[Any] = []

    def __enter__(self) -> None:
        self._mark()

    def __exit__(self, *_: object) -> None:
        self._mark()

    def _mark(self) -> None:
        if self._in_stream:
            self._marks.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
            self._marks[-1].record()
        else:
            self._marks.append(time.perf_counter())

    def take(self) -> float:
        """Seconds so far; resets them. In a stream it waits for the last mark."""
        marks = self._marks
        self._marks = []
        pairs = list(zip(marks[::2], marks[1::2], strict=True))
        if not self._in_stream:
            return float(sum(end - start for start, end in pairs))
        if pairs:
            marks[-1].synchronize()
        return float(sum(start.elapsed_time(end) for start, end in pairs)) / 1000


class Usage(msgspec.Struct, frozen=True):
    """What a run used of its machine; None if unknown."""

    cores: int
    """Cores that this process may use."""
    gpu_use_mean: float | None = None
    """Share of the time in which a kernel ran."""
    gpu_memory_gb_max: float | None = None
    """Of all processes on the GPU."""
    processor: float | None = None
    """Share of the time of steps that the threads of a step had a core, on a CPU with several threads."""


class UsageSampler:
    """Reads the GPU's counters in a background thread from `begin` on, if the run trains on a GPU.

    No error here ends a run: values that a system does not provide are None.
    """

    def __init__(self, device: torch.device) -> None:
        self.gpu_problem = ""
        """Why the GPU cannot be sampled; empty if it can, or if there is none."""
        self._device = device if device.type == "cuda" else None
        if self._device is not None and device.index is None and torch.cuda.is_available():
            self._device = torch.device("cuda", torch.cuda.current_device())  # it may differ between threads
        self._samples: list[tuple[float, float]] = []  # share of the time in use, and memory in GB
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Discards earlier samples and samples from now on."""
        self._samples = []
        if self._device is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(self._device,), name="usage", daemon=True)
            self._thread.start()

    def so_far(self) -> Usage:
        """The usage since `begin`."""
        samples = list(self._samples)
        num_cores = cores()
        if not samples:
            return Usage(num_cores)
        use, memory_gb = zip(*samples, strict=True)
        return Usage(num_cores, round(sum(use) / len(use), 3), max(memory_gb))

    def close(self) -> None:
        """Ends the thread."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, device: torch.device) -> None:
        try:
            while True:
                use = torch.cuda.utilization(device) / 100
                memory_gb = torch.cuda.device_memory_used(device) / _GB
                self._samples.append((use, memory_gb))
                if self._closed.wait(_SAMPLE_EVERY_S):
                    return
        except Exception as error:  # the driver's library can fail in many ways, and none may end a run
            self.gpu_problem = str(error).splitlines()[0] if str(error) else type(error).__name__


class EpochTiming(msgspec.Struct, frozen=True):
    """Where the time of an epoch went, from its first batch on."""

    pictures: int
    """On this rank."""
    seconds: float
    pictures_per_s: float
    start_s: float
    """Before the measured time: starting loader processes and, in the first epoch, compiling and choosing kernels."""
    stages: dict[str, float]
    """Seconds by stage: "wait" for the loader, copy, forward, backward, optimizer, and other stages of the host."""
    usage: Usage

    @property
    def waiting(self) -> float:
        """Share of the time in which steps waited for the loader."""
        return self.stages.get("wait", 0.0) / self.seconds if self.seconds else 0.0


class Bottleneck(msgspec.Struct, frozen=True):
    """What limits a run."""

    kind: Literal["balanced", "loader", "checkpoints", "host", "small batch", "processor"]
    sentence: str
    """The cause, with the figures that show it."""
    fix: str = ""
    """What to change; empty if nothing needs to change."""
    gain: float = 1.0
    """Upper bound of the speed-up by the fix; 1 if there is none or if it is unknown."""

    def __str__(self) -> str:
        gain = f" (up to {self.gain:.1f} times as fast)" if self.gain > 1 else ""
        return f"{self.sentence}: {self.fix}{gain}." if self.fix else f"{self.sentence}."


class Monitor:
    """Measures a run without changing what it learns.

    The measured time of an epoch starts with its first batch. In the first epoch it starts with the first reading of
    the losses, since kernels are compiled and cuDNN tries its algorithms before.
    """

    def __init__(self, device: torch.device) -> None:
        self.clock = StepClock(device)
        self._num_threads = torch.get_num_threads() if device.type == "cpu" else 1
        self._processor_began = 0.0
        self.sampler = UsageSampler(device)
        self._is_warm = self._has_begun = False
        self._epoch_began = self._began = 0.0
        self._pictures = 0
        self._stages: dict[str, float] = {}
        self._warmup: EpochTiming | None = None

    def begin_epoch(self) -> None:
        """Resets the figures."""
        self._epoch_began = self._began = time.perf_counter()
        self._has_begun = False
        self._warmup = None

    def count(self, labels: Tensor) -> None:
        """Counts a batch from the loader; the first one of an epoch starts the measured time."""
        if not self._has_begun:
            self._has_begun = True
            self._restart()
        self._pictures += num_plants(labels)

    def so_far(self) -> EpochTiming:
        """The epoch until now. Call it right after a reading of the losses, which waits for the device."""
        timing = self._timing()
        if not self._is_warm:
            self._is_warm = True
            self._warmup = timing
            self._restart()
        return timing

    def end_epoch(self) -> EpochTiming:
        """The whole epoch. Call it right after a reading of the losses, which waits for the device."""
        timing = self._timing()
        return self._warmup if timing.pictures == 0 and self._warmup is not None else timing

    def _restart(self) -> None:
        """Starts the measured time."""
        self.clock.read()
        self._stages = {}
        self._pictures = 0
        self._began = time.perf_counter()
        self._processor_began = time.process_time()
        self.sampler.begin()

    def _timing(self) -> EpochTiming:
        for name, value in self.clock.read().items():
            self._stages[name] = self._stages.get(name, 0.0) + value
        seconds = time.perf_counter() - self._began
        usage = self.sampler.so_far()
        steps_s = sum(self._stages.get(name, 0.0) for name in DEVICE_STAGES)
        if self._num_threads > 1 and steps_s:
            processor_s = time.process_time() - self._processor_began
            usage = replace(usage, processor=round(processor_s / steps_s / self._num_threads, 3))
        return EpochTiming(
            pictures=self._pictures,
            seconds=round(seconds, 3),
            pictures_per_s=round(self._pictures / seconds, 4),
            start_s=round(self._began - self._epoch_began, 3),
            stages={name: round(value, 4) for name, value in self._stages.items()},
            usage=usage,
        )


def find_bottleneck(timing: EpochTiming, workers: int, device: torch.device) -> Bottleneck:
    """Finds the most expensive cause, for a run with so many loader processes."""
    if timing.pictures_per_s == 0:
        return Bottleneck("balanced", "no step was measured")
    processor = timing.usage.processor
    if processor is not None and processor < ENOUGH_PROCESSOR:
        sentence = f"other programs keep the cores busy: the threads of a step get {processor:.0%} of their time"
        return Bottleneck("processor", sentence, "start with OMP_NUM_THREADS=1 before python, and --resume")
    # On CUDA the host runs ahead, so waits of the host cost nothing while the device works: only its gaps count.
    gap_s = max(timing.seconds - sum(timing.stages.get(name, 0.0) for name in DEVICE_STAGES), 0.0)
    save_s = min(timing.stages.get("save", 0.0), gap_s)
    wait_s = min(timing.stages.get("wait", 0.0), gap_s - save_s)
    largest_s = max(wait_s, save_s, gap_s - save_s - wait_s)
    share = min(largest_s / timing.seconds, 0.99)
    gain = round(1 / (1 - share), 2)
    used = timing.usage.gpu_use_mean
    cores = timing.usage.cores
    if share < _MIN_SHARE and device.type == "cuda" and used is not None and used < _GPU_IN_USE:
        sentence = f"the GPU is in use {used:.0%} of the time, and nothing else waits: its kernels are too short"
        return Bottleneck("small batch", sentence, "a larger batch, or --compile reduce-overhead")
    if share < _MIN_SHARE:
        gpu = "" if used is None else f" (GPU in use {used:.0%})"
        return Bottleneck("balanced", f"the network limits the run{gpu}")
    if largest_s == wait_s:
        sentence = f"steps wait for pictures {share:.0%} of the time (--workers {workers}; cores: {cores})"
        fix = "store smaller pictures in shards (training/prepare.py pack), or use a faster disk or more cores"
        if workers < cores:
            fix = f"--workers {min(max(2 * workers, 4), cores)}"
        return Bottleneck("loader", sentence, fix, gain)
    if largest_s == save_s:
        fix = "fewer checkpoints (a larger --checkpoint-every-steps), or a faster disk"
        return Bottleneck("checkpoints", f"writing checkpoints takes {share:.0%} of the time", fix, gain)
    fix = "a larger --log-every-steps, and no calls in the step that wait, such as .item()"
    return Bottleneck("host", f"the device waits for the host {share:.0%} of the time", fix, gain)
