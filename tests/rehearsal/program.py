"""Runs a program of the project on a GPU whose kernels do nothing: python tests/rehearsal/program.py PROGRAM FLAGS

What a kernel would compute is whatever lies in memory, mostly zeros. So every question whether values are finite is
answered with yes, on the CPU, and ranks exchange values through Gloo.
"""

import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

_is_finite, _where, _join = torch.Tensor.isfinite, torch.where, dist.init_process_group


def _always_finite(tensor):
    return torch.ones(tensor.shape, dtype=torch.bool) if tensor.is_cuda else _is_finite(tensor)


def _where_on_device(condition, *values):
    return _where(condition.to(values[0].device) if values else condition, *values)


def _join_by_gloo(_backend=None, **options):
    return _join("gloo", **{name: value for name, value in options.items() if name != "device_id"})


torch.Tensor.isfinite, torch.where, dist.init_process_group = _always_finite, _where_on_device, _join_by_gloo
sys.argv = sys.argv[1:]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
