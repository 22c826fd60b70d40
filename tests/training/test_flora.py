"""From a folder, or from archives, to a registry that can be served, in one command."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.bundle import load_bundle
from models.errors import RecipeError
from tests.training.published_layouts import NUM_OUTPUTS, write_archives, write_published_layouts
from tests.training.small import ROOT, write_pictures
from training.flora import Command, run, steps

TINY = str(ROOT / "tests" / "training" / "tiny.toml")


def command(folder):
    return Command(flora=folder / "plants", out=folder / "out", recipe=TINY)


def start(folder):
    program = [sys.executable, "training/flora.py", folder / "plants", "--out", folder / "out", "--recipe", TINY]
    return subprocess.Popen(program, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def losses(folder):
    lines = (folder / "out" / "run" / "log.jsonl").read_text().splitlines()
    return {line["step"]: line["loss"] for line in map(json.loads, lines) if "loss" in line}


def test_a_dry_run_prints_commands_that_can_be_typed_and_starts_nothing(tmp_path, capsys):
    run(Command(flora=Path("mini"), out=tmp_path / "out", without=("house_plants",), yes=True, dry_run=True))
    told = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert list(told) == ["download", "prepare", "train", "export", "evaluate", "promote", "Serve it"]
    assert shlex.split(told["download"])[:4] == ["python", "training/prepare.py", "download", "data_mini"]
    assert "--without house_plants" in told["prepare"]
    assert f"--data {tmp_path / 'out' / 'packed'}" in told["train"]
    assert not (tmp_path / "out").exists()


def test_a_step_is_done_when_its_result_is_there(tmp_path):
    write_pictures(tmp_path / "plants", 1)
    (tmp_path / "out" / "bundle").mkdir(parents=True)
    (tmp_path / "out" / "bundle" / "bundle.json").touch()
    left = [step.name for step in steps(command(tmp_path)) if not step.result.exists()]
    assert left == ["prepare", "evaluate", "promote"]


def test_lists_of_the_data_set_reach_training_and_export(tmp_path):
    (tmp_path / "out" / "data").mkdir(parents=True)
    for name in ("negatives.csv", "unknown_train.csv", "unknown_export.csv"):
        (tmp_path / "out" / "data" / name).touch()
    found = {step.name: shlex.join(step.arguments) for step in steps(Command(flora=Path("mini"), out=tmp_path / "out"))}
    assert "unknown_train.csv" in found["train"]
    assert "unknown_export.csv" in found["export"]
    assert "--unknown" not in found["evaluate"]
    assert all("negatives.csv" in found[name] for name in ("train", "evaluate", "export"))


def test_an_unknown_flora_is_one_clear_error(tmp_path):
    with pytest.raises(RecipeError, match="no such flora"):
        run(Command(flora=Path("nothing"), out=tmp_path, dry_run=True))


def test_a_step_that_fails_ends_with_its_code(tmp_path, capfd):
    (tmp_path / "plants").mkdir()
    with pytest.raises(SystemExit) as ended:
        run(command(tmp_path))
    assert ended.value.code == 1
    assert "prepare ended with code 1" in capfd.readouterr().err


@pytest.mark.slow
def test_a_folder_becomes_a_registry_and_kills_change_nothing(tmp_path):
    for name in ("whole", "killed"):
        write_pictures(tmp_path / name / "plants", 12)
    assert start(tmp_path / "whole").wait() == 0
    for after_s in (4, 9, 14, 19):
        process = start(tmp_path / "killed")
        time.sleep(after_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        subprocess.run(["pkill", "-KILL", "-f", str(tmp_path / "killed")], check=False)
    assert start(tmp_path / "killed").wait() == 0
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    whole, killed = (load_bundle(tmp_path / name / "out" / "registry" / "current") for name in ("whole", "killed"))
    assert whole.taxonomy == killed.taxonomy


FLORA = """
name = "published"
description = "Drawn plants."
collection = "{collection}"
recipe = "{recipe}"
"""


@pytest.mark.slow
def test_archives_on_a_server_become_a_service_in_one_command(tmp_path):
    written = write_published_layouts(tmp_path / "unpacked")
    (tmp_path / "site").mkdir()
    site = write_archives(written.root, tmp_path / "site")
    text = (site / "collection.toml").read_text()
    parts = [f"https://example.org/{name}.tar.gz" for name in ("train", "val", "train.json", "val.json")]
    files = {"inat2021": parts, "plantnet300k": ["https://example.org/plantnet_300K.zip"]}
    files["house_plants"] = ["https://example.org/house_plants.tar"]
    for name, addresses in files.items():
        text = text.replace(f"[sources.{name}]", f"[sources.{name}]\nfiles = {addresses}")
    (tmp_path / "collection.toml").write_text(text.replace("taxon.tsv", str(written.root / "taxon.tsv")))
    toml = tmp_path / "flora.toml"
    toml.write_text(FLORA.format(collection=tmp_path / "collection.toml", recipe=TINY))
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        cwd=site,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        address = re.search(r"http://[\d.:]+", server.stdout.readline())[0]
        words = [toml, "--out", tmp_path / "out", "--root", tmp_path / "raw", "--mirror", address, "--yes"]
        done = subprocess.run(
            [sys.executable, "training/flora.py", *words], cwd=ROOT, capture_output=True, text=True, check=False
        )
    finally:
        server.kill()
        server.communicate()
    assert done.returncode == 0, done.stderr[-3000:]
    assert not (tmp_path / "raw" / "inat2021" / "train").exists()  # nothing is unpacked
    bundle = load_bundle(tmp_path / "out" / "registry" / "current")
    assert len(bundle.taxonomy.outputs) == NUM_OUTPUTS
