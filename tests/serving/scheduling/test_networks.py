"""The precision of the network that is opened, ONNX Runtime's telemetry, and what runs next."""

import os
import sys
from itertools import combinations

import pytest

from models.bundle_record import NetworkFile
from models.errors import InputError
from serving.engine.networks import choose_precision
from serving.engine.scheduler import cpu_policy
from tests.make import from_table, ran
from tests.models.tiny import bundle_record

FASTEST = {"cpu": ("fp32", "fp16"), "cuda": ("fp16", "fp32")}
SETS = [names for size in (1, 2) for names in combinations(FASTEST["cpu"], size)]


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("provider", FASTEST)
def test_the_fastest_precision_of_the_device_is_opened_unless_another_is_asked_for(names, provider):
    networks = {name: NetworkFile(f"{name}.onnx", temperature=1.0) for name in names}
    record = bundle_record(networks=networks)
    assert choose_precision(record, None, provider) == next(name for name in FASTEST[provider] if name in names)
    assert all(choose_precision(record, name, provider) == name for name in names)


@from_table
def test_bf16_is_for_openvino_on_a_processor_that_has_it(provider, has_bf16, expected, monkeypatch):
    monkeypatch.setattr("serving.engine.networks.bf16_is_faster", lambda: has_bf16)
    single = NetworkFile("model.fp32.onnx", temperature=1.0)
    both = bundle_record(networks={"fp32": single, "bf16": single})
    assert choose_precision(both, None, provider) == expected
    assert choose_precision(bundle_record(networks={"fp32": single}), None, provider) == "fp32"
    if provider != "openvino":
        with pytest.raises(InputError, match="only OpenVINO runs the precision bf16"):
            choose_precision(both, "bf16", provider)


def test_telemetry_is_off_before_onnx_runtime_is_imported_for_cuda():
    program = """
import os, sys, types
class Loaded(types.ModuleType):
    def preload_dlls(self):
        print(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.modules["onnxruntime"] = Loaded("onnxruntime")
from serving.engine.networks import _load_cuda_libraries
_load_cuda_libraries()
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = ran(sys.executable, "-c", program, env=environment, check=True)
    assert done.stdout.strip() == "1"


@from_table
def test_cpu_uses_all_cores_for_a_single_picture_and_one_core_each_under_load(running, alone, expected):
    assert cpu_policy(2).choose(running, alone=alone) == expected


def test_single_core_has_no_latency_mode():
    assert cpu_policy(1).choose((), alone=True) == "throughput"
    assert "alone" not in cpu_policy(1).describe()
