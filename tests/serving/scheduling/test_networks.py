"""The precision of the network that is opened, and ONNX Runtime's telemetry."""

import os
import subprocess
import sys
from itertools import combinations

import pytest

from models.bundle_record import NetworkFile
from serving.scheduling.networks import choose_precision
from tests.models.tiny import bundle_record

FASTEST = {False: ("int8", "fp32", "fp16"), True: ("fp16", "fp32", "int8")}
SETS = [names for size in (1, 2, 3) for names in combinations(FASTEST[False], size)]


@pytest.mark.parametrize("names", SETS, ids="+".join)
@pytest.mark.parametrize("cuda", [False, True], ids=["cpu", "gpu"])
def test_the_fastest_precision_of_the_device_is_opened_unless_another_is_asked_for(names, cuda):
    networks = {name: NetworkFile(f"{name}.onnx", temperature=1.0) for name in names}
    record = bundle_record(networks=networks)
    assert choose_precision(record, None, cuda=cuda) == next(name for name in FASTEST[cuda] if name in names)
    assert all(choose_precision(record, name, cuda=cuda) == name for name in names)


def test_telemetry_is_off_before_onnx_runtime_is_imported_for_cuda():
    program = """
import os, sys, types
class Loaded(types.ModuleType):
    def preload_dlls(self):
        print(os.environ.get("ORT_DISABLE_TELEMETRY"))
sys.modules["onnxruntime"] = Loaded("onnxruntime")
from serving.scheduling.networks import _load_cuda_libraries
_load_cuda_libraries()
"""
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
