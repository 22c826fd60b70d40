"""One process a device. No test machine has several GPUs: processes that share the cores stand in for them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from models.errors import DataError, InputError
from serving.folder.command import IdentifyFolder
from serving.folder.devices import find_devices
from serving.folder.run import Outcome
from tests.serving.folder.photograph_folder import draw_photographs, identify, rows_of
from tests.serving.program import ENVIRONMENT, ROOT
from tests.serving.tiny import BLUE, GREEN, RED, WEIGHTS, seal_tiny_bundle

PHOTOGRAPHS = {f"{number:02d}.jpg": (RED, GREEN, BLUE)[number % 3] for number in range(12)}


def command(**flags):
    return IdentifyFolder(out="out", **flags)


def test_gpus_are_those_that_cuda_shows(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7,5")
    assert find_devices(command(provider="cuda", devices="all")) == ["3", "GPU-7", "5"]
    assert find_devices(command(provider="cuda", devices=2)) == ["3", "GPU-7"]
    with pytest.raises(InputError, match="more GPUs than there are"):
        find_devices(command(provider="cuda", devices=4))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho 'GPU 1: B (UUID: GPU-2)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert find_devices(command(provider="cuda", devices="all")) == ["0", "1"]
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="more GPUs than there are"):
        find_devices(command(provider="cuda", devices="all"))
    assert len(find_devices(command(devices="all"))) == 1


def test_processes_write_every_part_once(tmp_path, bundle_folder):
    photographs, out = draw_photographs(tmp_path / "photographs", PHOTOGRAPHS), tmp_path / "out"
    assert identify(photographs, out, bundle_folder, devices=2, part_rows=3) == Outcome.COMPLETE
    assert sorted(rows_of(out)) == sorted(PHOTOGRAPHS)
    assert len(list((out / "parts").iterdir())) == 4
    assert identify(photographs, out, bundle_folder, devices=2, part_rows=3) == Outcome.COMPLETE


@pytest.mark.slow
def test_a_process_that_fails_says_why(tmp_path, capfd):
    broken = seal_tiny_bundle(tmp_path / "bundle", tmp_path, weights=WEIGHTS * np.nan).folder
    photographs, out = draw_photographs(tmp_path / "photographs", PHOTOGRAPHS), tmp_path / "out"
    with pytest.raises(DataError, match="device 0, 1"):
        identify(photographs, out, broken, devices=2, part_rows=3)
    assert capfd.readouterr().err.count("logits are not finite") == 2


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_processes_end_with_their_parent(tmp_path, bundle_folder, number):
    photographs = draw_photographs(tmp_path / "photographs", {f"{at:04d}.jpg": RED for at in range(3000)})
    program = [sys.executable, "-m", "serving.identify_folder", photographs, "--out", tmp_path / "out"]
    process = subprocess.Popen(
        [*program, "--bundle", bundle_folder, "--devices", "2", "--part-rows", "5"], cwd=ROOT, env=ENVIRONMENT
    )
    while not (tmp_path / "out" / "parts").is_dir():
        assert process.poll() is None
        time.sleep(0.01)
    family = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    assert process.wait() == (Outcome.INTERRUPTED if number == signal.SIGTERM else -number)
    _, alive = psutil.wait_procs(family, timeout=100)
    assert not alive
