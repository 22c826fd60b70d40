"""The machine that a figure was measured on; stands in every result."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

import msgspec

from training.checkpoint import current_commit

_LIBRARIES = ("numpy", "pillow", "torch", "torchvision", "timm", "simplejpeg", "pyarrow")


class Machine(msgspec.Struct, frozen=True):
    """What decides a figure besides the code."""

    processor: str
    num_cores: int
    """Cores that this process may use."""
    memory_gb: float
    system: str
    python: str
    libraries: dict[str, str]
    git_commit: str


def this_machine() -> Machine:
    """Describes the machine this runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        processor=_processor(),
        num_cores=len(os.sched_getaffinity(0)),
        memory_gb=round(memory / 1e9, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        libraries={name: version(name) for name in _LIBRARIES},
        git_commit=current_commit(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
