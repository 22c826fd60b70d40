"""Steps on a GPU that is not there: nothing waits, every type and layout is as meant, memory fits."""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.make import ROOT, ran

HEADERS = find_spec("triton") and Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "include"
pytestmark = [
    pytest.mark.timeout(3600),  # half a minute of processor for whole recipes, on a busy machine too
    pytest.mark.skipif(
        not (shutil.which("cc") and torch.version.cuda and HEADERS and (HEADERS / "cuda_runtime_api.h").is_file()),
        reason="the stand-in for CUDA needs a C compiler (cc), PyTorch with CUDA, and the headers of triton",
    ),
]
# Kernels of a step and peak memory in MB, measured in this rehearsal with torch 2.15. They may fall; a change that
# raises one says why. The memory is that of the allocator, without the context of CUDA.
SMALL_LIMITS = (948, 379)
RECIPES = {"b4_5337": (1660, 5675), "plants": (1503, 1248)}
# A gradient of a mean over the map has no layout of its own, and mixing flips the batch.
ALLOWED = {f"NCHW: {name}" for name in ("div", "silu_backward", "native_batch_norm_backward")}
ALLOWED |= {f"NCHW: {name}" for name in ("roll", "mul_", "add_", "copy_", "cat")} | {"NHWC"}
SMALL = {
    "num_outputs": 40,
    "network": {"architecture": "test_efficientnet"},
    "negatives": {"negatives": ["negatives"]},
    "augment": {"mixup": 0.2, "cutmix": 1.0},
    "loss": {"target": "taxon", "logit_adjustment": 1.0},
    "schedule": {"accumulate": 3, "clip_norm": 1.0, "ema_decay": 0.999},
}
DEFECTS = ("waits: _local_scalar_dense", "waits: a copy to the host", "blocks", "not in float16", "layout NCHW")


def rehearse(cases, folder):
    """Takes two steps of each case, a recipe and what overrides it, and returns the reports of step.py by name."""
    library = folder / "libcuda.so.1"  # PyTorch opens the driver by this name
    source = ["-o", library, ROOT / "tests" / "rehearsal" / "cuda_runtime.c"]
    command = ["cc", "-shared", "-fPIC", "-O1", "-w", f"-I{HEADERS}", f"-Wl,-soname,{library.name}", *source]
    subprocess.run(command, check=True)
    found = os.pathsep.join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))
    on_device = {"LD_PRELOAD": str(library), "LD_LIBRARY_PATH": found, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    program = ROOT / "tests" / "rehearsal" / "step.py"
    done = ran(sys.executable, "-W", "ignore", program, json.dumps([*cases.values()]), env=os.environ | on_device)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(cases, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A small network with everything that a recipe can switch on, as it is and with all defects at once."""
    cases = {"sound": ("b4_5337", SMALL), "planted": ("b4_5337", SMALL | {"planted": DEFECTS})}
    return rehearse(cases, tmp_path_factory.mktemp("cuda"))


def faults(report):
    """Says what a step must not do."""
    found = [f"waits: {place}" for place in report["waits"]]
    found += [f"blocks: {place}" for _, is_later, place in report["to_device"] if not is_later]
    found += [f"not in {report['amp']}: {kind}" for kind in report["types"] if not kind.endswith(f": {report['amp']}")]
    found += [f"layout {layout}" for layout in report["layouts"] if layout not in ALLOWED]
    return found + [f"state or weight in {kind}" for kind in report["stored"] if kind != "torch.float32"]


def require_no_more(report, limits):
    kernels, peak_mb = limits
    assert report["kernels"] <= 1.01 * kernels
    assert report["peak_mb"] <= 1.01 * peak_mb


def test_a_step_with_everything_that_a_recipe_can_switch_on_waits_for_nothing(small):
    assert faults(small["sound"]) == []
    assert [kind for kind, _, _ in small["sound"]["to_device"]] == ["int64", "uint8"] * 3
    require_no_more(small["sound"], SMALL_LIMITS)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_is_found(defect, small):
    assert [fault for fault in faults(small["planted"]) if fault.startswith(defect)]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_at_full_width_waits_for_nothing_and_needs_no_more_than_before(recipe, tmp_path):
    report = rehearse({recipe: (recipe, {})}, tmp_path)[recipe]
    assert faults(report) == []
    require_no_more(report, RECIPES[recipe])
