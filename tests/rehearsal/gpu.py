"""Starts programs of the project as if there were a GPU: a small library stands in front of CUDA's runtime."""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.make import ROOT, ran

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


@cache
def math_library(folder):
    """Builds a library whose cuBLAS and cuDNN compute nothing and report success; returns its path."""
    torch_libraries = (Path(torch.__file__).parent / "lib").glob("libtorch_cuda*.so")
    listed = ran("nm", "-D", "--undefined-only", *torch_libraries, check=True)
    names = sorted(set(re.findall(r" U ((?:cublas|cudnn)\w+)", listed.stdout)))
    lines = ["#include <string.h>", "static long handle[64];"]
    for name in names:
        if "ErrorString" in name or "StatusString" in name:
            lines.append(f'const char *{name}() {{ return "rehearsal"; }}')
        elif "Create" in name:
            lines.append(f"int {name}(void **made) {{ *made = handle; return 0; }}")
        elif (answer := _ANSWERS.get(name)) is not None:
            lines.append(answer)
        else:
            lines.append(f"int {name}() {{ return 0; }}")
    source, path = Path(folder) / "math.c", Path(folder) / "libmath.so"
    source.write_text("\n".join(lines))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-w", "-o", path, source], check=True)
    return path


# Where success is not enough: versions, sizes of working memory, and the one algorithm that is offered.
_SIZE = "int {}({}) {{ *size = 0; return 0; }}"
_FIND = (  # time 1, and no Tensor Cores, which PyTorch checks where TF32 is not allowed
    "int {}({}, int asked, int *count, {} "
    "{{ memset(found, 0, 40); found[2] = 1; ((int *)found)[7] = 3; *count = 1; return 0; }}"
)
_POINTERS = ", ".join(f"void *p{index}" for index in range(13)).split(", ")
_ANSWERS = {
    "cudnnGetVersion": "unsigned long cudnnGetVersion() { return 92200; }",
    "cudnnGetCudartVersion": "unsigned long cudnnGetCudartVersion() { return 13020; }",
    "cublasGetPointerMode_v2": "int cublasGetPointerMode_v2(void *h, int *mode) { *mode = 0; return 0; }",
    "cublasGetMathMode": "int cublasGetMathMode(void *h, int *mode) { *mode = 0; return 0; }",
    "cublasLtMatmulAlgoGetHeuristic": (
        f"int cublasLtMatmulAlgoGetHeuristic({', '.join(_POINTERS[:7])}, int asked, void *r, int *count)"
        " { *count = 1; return 0; }"
    ),
}
for _kind in ("Forward", "BackwardData", "BackwardFilter"):
    _name = f"cudnnFindConvolution{_kind}AlgorithmEx"
    _ANSWERS[_name] = _FIND.format(_name, ", ".join(_POINTERS[:8]), "float *found, void *w, unsigned long s)")
    _name = f"cudnnGetConvolution{_kind}Algorithm_v7"
    _ANSWERS[_name] = _FIND.format(_name, ", ".join(_POINTERS[:5]), "float *found)")
    _name = f"cudnnGetConvolution{_kind}WorkspaceSize"
    _ANSWERS[_name] = _SIZE.format(_name, f"{', '.join(_POINTERS[:5])}, int algorithm, unsigned long *size")
for _name, _count in (
    ("cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize", 5),
    ("cudnnGetBatchNormalizationBackwardExWorkspaceSize", 7),
    ("cudnnGetBatchNormalizationTrainingExReserveSpaceSize", 2),
):
    _taken = ["void *h", "int mode", "int ops", *_POINTERS[:_count], "unsigned long *size"]
    _ANSWERS[_name] = _SIZE.format(_name, ", ".join(_taken))


def on_the_device(folder, *libraries):
    """The environment of a program that finds the GPU that is not there."""
    folders = [str(Path(folder)), os.environ.get("LD_LIBRARY_PATH")]
    return os.environ | {
        "LD_PRELOAD": " ".join(map(str, [library(folder), *libraries])),
        "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders)),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }


def rehearse(cases, folder):
    """Takes two steps of each case, a recipe and what overrides it, and returns the reports of step.py."""
    command = [sys.executable, "-W", "ignore", ROOT / "tests" / "rehearsal" / "step.py", json.dumps(cases)]
    environment = on_the_device(folder)
    done = ran(*command, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_program(folder, program, *arguments, ranks=1):
    """Runs a whole program on a device whose kernels do nothing; returns what it printed, stderr included."""
    start = [sys.executable, "-X", "faulthandler", "-W", "always"]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--"]
    command = [*start, ROOT / "tests" / "rehearsal" / "program.py", ROOT / program, *map(str, arguments)]
    # The older interface of cuDNN asks for single functions, which can be answered; the newer one builds whole plans.
    environment = on_the_device(folder, math_library(folder))
    environment |= {"TORCH_CUDNN_V8_API_DISABLED": "1", "FAKE_GPUS": str(ranks)}
    done = ran(*command, env=environment, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr
