import os
import platform
import re
import sys

import pytest
import torch

from models.errors import RecipeError
from tests.make import from_table, ran
from training.engine import device
from training.engine.device import amp_dtype, cpu_warnings
from training.machine import Gpu
from training.recipe import HardwareRecipe

PROGRAM = """
import ctypes, resource, sys
from training.engine.device import keep_freed_memory
from training.recipe import HardwareRecipe
if sys.argv[1] == "keep":
    assert keep_freed_memory(HardwareRecipe(device="cpu"))
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def step():
    block = libc.malloc(64_000_000)
    ctypes.memset(block, 1, 64_000_000)
    libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(how):
    done = ran(sys.executable, "-c", PROGRAM, how, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has mallopt")
@pytest.mark.slow
def test_memory_that_was_freed_is_used_again_without_page_faults():
    faults = {how: page_faults(how) for how in ("plain", "keep")}
    assert faults["plain"] > 100  # 64 MB are 15,625 pages, or 30 huge ones
    assert faults["keep"] < faults["plain"] / 10


CPU = torch.device("cpu")


@pytest.fixture
def cards(monkeypatch):
    """The NVIDIA cards of the machine; none unless a test adds some."""
    found = []
    monkeypatch.setattr(device, "find_gpus", lambda: (tuple(found), "550.54" * bool(found)))
    return found


@from_table
def test_a_small_card_gets_memory_that_grows_in_place_unless_the_user_says_otherwise(
    gigabytes, expected, monkeypatch, cards
):
    cards += [Gpu("any", gigabytes), Gpu("large", 80)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", None)  # which would start CUDA
    for given, found in (({}, expected), ({"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, "max_split_size_mb:64")):
        monkeypatch.setattr(os, "environ", given)
        device.avoid_fragments(torch.device("cuda", 0))
        assert given.get("PYTORCH_ALLOC_CONF") == found


@pytest.mark.parametrize(("kind", "variable", "lacking"), [("cpu", "CXX", "g++"), ("cuda", "CC", "gcc")])
def test_without_a_compiler_a_recipe_that_compiles_is_refused_at_once(kind, variable, lacking, monkeypatch):
    monkeypatch.setenv(variable, "/nowhere")
    compiled = HardwareRecipe(compile="default")
    with pytest.raises(RecipeError, match=rf"compile = default, and no {re.escape(lacking)}.*--compile off"):
        device.require_compiler(compiled, torch.device(kind))
    device.require_compiler(HardwareRecipe(), torch.device(kind))
    monkeypatch.setenv(variable, sys.executable)  # anything that is there
    device.require_compiler(compiled, torch.device(kind))
    monkeypatch.setattr("sysconfig.get_path", lambda _name: "/nowhere")
    with pytest.raises(RecipeError, match=r"no Python\.h"):
        device.require_compiler(compiled, torch.device(kind))


@from_table
def test_a_cpu_where_a_gpu_was_expected_is_a_warning_or_an_error(cuda, card, is_warned, reason, monkeypatch, cards):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    cards += [Gpu(card, 150.1)] if card else []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    warnings = cpu_warnings(HardwareRecipe(amp="off"), CPU)
    assert len(warnings) == is_warned
    with pytest.raises(RecipeError, match=reason) as caught:
        device.choose_device(HardwareRecipe(device="cuda"))
    assert all(str(caught.value) in warning for warning in warnings)
    assert "--device cpu" in str(caught.value)


@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_a_cpu_that_was_asked_for_is_no_surprise_but_has_no_fp16(amp, monkeypatch, cards):
    monkeypatch.setattr("training.engine.device.processor_flags", lambda: {"avx512_bf16"})
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    warnings = cpu_warnings(HardwareRecipe(device="cpu", amp=amp), CPU)
    assert [warning for warning in warnings if "fp16" not in warning] == []
    assert len(warnings) == (amp == "fp16")
    assert cpu_warnings(HardwareRecipe(amp="fp16"), torch.device("cuda", 0)) == []


def test_a_processor_on_which_bf16_is_slow_computes_in_float32_and_says_so(monkeypatch):
    monkeypatch.setattr("training.engine.device.processor_flags", frozenset)
    hardware = HardwareRecipe(device="cpu", amp="bf16")
    assert amp_dtype(hardware, CPU) is None
    (warning,) = cpu_warnings(hardware, CPU)
    assert "float32" in warning
