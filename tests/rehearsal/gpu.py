"""Starts programs of the project as if there were a GPU: a small library stands in front of CUDA's runtime."""

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
_SOURCE = Path(__file__).with_name("cuda_runtime.c")


def require_rehearsal():
    """Skips the tests of a module where there is nothing to rehearse with."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc), which builds the stand-in for CUDA", allow_module_level=True)
    if torch.version.cuda is None:
        pytest.skip("PyTorch is built without CUDA", allow_module_level=True)
    if _headers() is None:
        pytest.skip("the headers of CUDA, which come with triton, are not installed", allow_module_level=True)


def _headers():
    triton = find_spec("triton")
    folder = triton and Path(triton.origin).parent / "backends" / "nvidia" / "include"
    return folder if folder and (folder / "cuda_runtime_api.h").is_file() else None


@cache
def library(folder):
    """Builds the library once and returns its path."""
    path = Path(folder) / "libcuda.so.1"  # PyTorch opens the driver by this name
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", f"-I{_headers()}", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*command, "-o", path, _SOURCE], check=True)
    return path


def rehearse(recipe, folder, **overrides):
    """Takes two steps of a recipe and returns the report of step.py."""
    path = library(folder)
    environment = os.environ | {
        "LD_PRELOAD": str(path),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(path.parent), os.environ.get("LD_LIBRARY_PATH")])),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "ignore", ROOT / "tests" / "rehearsal" / "step.py", recipe, json.dumps(overrides)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
