"""How many cores this process may use."""

import os
from collections.abc import Iterator
from pathlib import Path

_CGROUP_ROOT = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")


def cores(cgroup_root: Path = _CGROUP_ROOT, own_cgroup: Path = _OWN_CGROUP) -> int:
    """Returns the smaller of CPU affinity and cgroup quota, divided by the ranks of this machine; at least 1.

    torchrun tells each rank how many there are in LOCAL_WORLD_SIZE.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    available = min([affinity, *_quotas_v2(cgroup_root, own_cgroup), *_quota_v1(cgroup_root)])
    return max(1, int(available / int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def _quotas_v2(root: Path, own_cgroup: Path) -> Iterator[float]:
    """Quotas of this process's cgroup and of each parent; all of them apply (kernel docs, cgroup-v2, cpu.max)."""
    path = next((line[3:].strip("/") for line in _lines(own_cgroup) if line.startswith("0::")), "")
    for folder in (root / path, *(root / path).parents):
        words = _words(folder / "cpu.max") if folder.is_relative_to(root) else []
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
            yield int(words[0]) / int(words[1])


def _quota_v1(root: Path) -> Iterator[float]:
    quota = _words(root / "cpu" / "cpu.cfs_quota_us")
    period = _words(root / "cpu" / "cpu.cfs_period_us")
    if quota and period and quota[0].isdigit() and period[0].isdigit():  # "-1" means no quota
        yield int(quota[0]) / int(period[0])


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
