"""Describes the machine that a result was measured on. Results of different machines must not be mixed."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import pynvml  # type: ignore[import-untyped]

_LIBRARIES: Final = ("numpy", "pillow", "torch", "torchvision", "timm", "simplejpeg", "pyarrow")
_HARDWARE: Final = ("processor", "num_cores", "memory_gb", "system", "gpus")


class Gpu(msgspec.Struct, frozen=True):
    """A graphics card."""

    name: str
    memory_gb: float


class Machine(msgspec.Struct, frozen=True):
    """Hardware and software that measured figures depend on."""

    processor: str
    num_cores: int
    """CPU cores that this process may use."""
    memory_gb: float
    system: str
    python: str
    libraries: dict[str, str]
    git_commit: str
    gpus: tuple[Gpu, ...] = ()
    driver: str = ""
    """Version of NVIDIA's driver; empty without a GPU."""
    cuda: str = ""
    """Version of CUDA that PyTorch was built for; empty without a GPU."""
    cudnn: str = ""
    """Version of cuDNN that PyTorch uses; empty without a GPU."""

    def differences(self, other: "Machine") -> list[str]:
        """The differences in hardware, in words; empty if figures of both machines may be compared."""
        return _differences(self, other, _HARDWARE)

    def other_software(self, other: "Machine") -> list[str]:
        """The differences in software, in words: commit, driver, versions."""
        plain = [field for field in self.__struct_fields__ if field not in (*_HARDWARE, "libraries")]
        names = sorted(self.libraries.keys() | other.libraries.keys())
        pairs = {name: (self.libraries.get(name, "none"), other.libraries.get(name, "none")) for name in names}
        return _differences(self, other, plain) + [f"{k} {a} and {b}" for k, (a, b) in pairs.items() if a != b]

    def __str__(self) -> str:
        cards = [f"{gpu.name} ({gpu.memory_gb:g} GB)" for gpu in self.gpus]
        return ", ".join([*cards, f"{self.processor}, {self.num_cores} cores, {self.memory_gb:g} GB"])


def this_machine() -> Machine:
    """Describes this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    gpus, driver = find_gpus()
    cuda, cudnn = _cuda_versions() if gpus else ("", "")
    return Machine(
        processor=_processor(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory / 1e9, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        libraries={name: version(name) for name in _LIBRARIES},
        git_commit=current_commit(),
        gpus=gpus,
        driver=driver,
        cuda=cuda,
        cudnn=cudnn,
    )


@cache
def current_commit() -> str:
    """The git commit of this checkout at the first call, with "+" if it has changes; "unknown" outside a checkout."""
    root = Path(__file__).parents[1]
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs and the driver, from NVML, since a query through PyTorch would allocate GPU memory."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        cards = tuple(Gpu(pynvml.nvmlDeviceGetName(each), _memory_gb(each)) for each in handles)
        return cards, pynvml.nvmlSystemGetDriverVersion() if cards else ""
    finally:
        pynvml.nvmlShutdown()


def _memory_gb(handle: object) -> float:
    return round(float(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / 1e9, 1)


def _cuda_versions() -> tuple[str, str]:
    """The versions of CUDA and cuDNN that PyTorch uses, which is loaded for this."""
    import torch

    number: int = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
    cudnn = f"{number // 10000}.{number // 100 % 100}.{number % 100}" if number else ""
    return torch.version.cuda or "", cudnn


def _differences(one: Machine, other: Machine, fields: tuple[str, ...] | list[str]) -> list[str]:
    pairs = [(field, getattr(one, field), getattr(other, field)) for field in fields]
    return [f"{name} {_in_words(a)} and {_in_words(b)}" for name, a, b in pairs if a != b]


def _in_words(value: object) -> str:
    if isinstance(value, tuple):
        return " + ".join(f"{gpu.name} {gpu.memory_gb:g} GB" for gpu in value) or "none"
    return str(value) or "none"
