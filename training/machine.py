"""Describes the machine that a result was measured on. Results of different machines must not be mixed."""

import os
import platform
import subprocess
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Final

import msgspec
import pynvml  # type: ignore[import-untyped]

from models.cores import cores

_LIBRARIES: Final = ("numpy", "pillow", "torch", "torchvision", "timm", "simplejpeg", "pyarrow")


class Gpu(msgspec.Struct, frozen=True):
    """A graphics card."""

    name: str
    memory_gb: float

    def __str__(self) -> str:
        return f"{self.name} {self.memory_gb:g} GB"


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

    def __str__(self) -> str:
        """The hardware; the same for machines whose figures may be compared."""
        cards = [f"{gpu.name} ({gpu.memory_gb:g} GB)" for gpu in self.gpus]
        return ", ".join([*cards, f"{self.processor}, {self.num_cores} cores, {self.memory_gb:g} GB"])


def this_machine() -> Machine:
    """Describes this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    processor = platform.processor() or "unknown"
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        processor = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    gpus, driver = find_gpus()
    cuda = ""
    cudnn = ""
    if gpus:
        import torch

        number: int = torch.backends.cudnn.version() or 0  # type: ignore[no-untyped-call]
        cuda = torch.version.cuda or ""
        cudnn = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    return Machine(
        processor=processor,
        num_cores=cores(),
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


def current_commit() -> str:
    """The git commit of this checkout, with "+" if it has changes.

    A copy without .git has what the variable GIT_COMMIT says, or "unknown".
    """
    root = Path(__file__).parents[1]
    told = os.environ.get("GIT_COMMIT", "unknown")
    if not (root / ".git").exists():  # git would look for it in the folders above
        return told
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--abbrev=40", "--dirty=+"],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return told
    return commit.stdout.strip()


def find_gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs and the driver, from NVML, since a query through PyTorch would allocate GPU memory."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return (), ""
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        sizes_gb = [round(float(pynvml.nvmlDeviceGetMemoryInfo(each).total) / 1e9, 1) for each in handles]
        names = [pynvml.nvmlDeviceGetName(each) for each in handles]
        cards = tuple(Gpu(name, size_gb) for name, size_gb in zip(names, sizes_gb, strict=True))
        return cards, pynvml.nvmlSystemGetDriverVersion() if cards else ""
    finally:
        pynvml.nvmlShutdown()
