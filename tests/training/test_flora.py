"""From a folder, or from archives, to a registry that can be served, in one command."""

import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from PIL import Image

from models.errors import RecipeError
from tests.make import from_table
from tests.serving.program import service
from tests.training.dataset.file_server import FileServer
from tests.training.published_layouts import write_archives, write_published_layouts
from tests.training.small import RECIPE, ROOT, losses_by_step, write_pictures
from tests.waiting import wait_until
from training import flora as module
from training.dataset.manifest import Manifest
from training.dataset.transfer import NoAnswer
from training.engine.stop_signal import EXIT_REQUEUE
from training.flora import Command, run, steps
from training.machine import Gpu


def command(folder):
    return Command(flora=folder / "plants", out=folder / "out", recipe=str(RECIPE))


def test_a_dry_run_prints_commands_that_can_be_typed_and_starts_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(module, "download", lambda wanted, tell: tell(f"42 GB into {wanted.root}"))
    monkeypatch.setattr(module, "_start", None)
    words = {"out": tmp_path / "out", "root": tmp_path / "raw", "without": ("house_plants",), "yes": True}
    run(Command(flora=Path("mini"), dry_run=True, **words))
    lines = capsys.readouterr().out.splitlines()
    told = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
    assert ", ".join(told) == "forecast, download, prepare, train, export, promote, evaluate, Look at, Serve it"
    assert shlex.split(told["download"])[:4] == ["python", "training/prepare.py", "download", "data_mini"]
    assert "--keep-free-gb 54 " in told["download"]  # the packed pictures, on the same disk
    assert "--without house_plants" in told["prepare"]
    assert f"--data {tmp_path / 'out' / 'packed'}" in told["train"]
    assert shlex.split(told["forecast"])[1:] == ["training/train.py", "mini_24gb", "--forecast", "430000"]
    assert lines[2] == f"  42 GB into {tmp_path / 'raw'}"
    assert not (tmp_path / "out").exists()


def test_the_commands_start_the_programs_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "plants").mkdir()
    monkeypatch.chdir(tmp_path)
    assert all(Path(step.arguments[0]).is_file() for step in steps(command(tmp_path)))


def test_a_dry_run_without_a_network_says_so_and_goes_on(tmp_path, capsys, monkeypatch):
    def no_network(*_, **__):
        raise NoAnswer("the server cannot be reached")

    monkeypatch.setattr(module, "download", no_network)
    run(Command(flora=Path("flora_mini"), out=tmp_path / "out", dry_run=True))
    assert "  the server cannot be reached.\nprepare: " in capsys.readouterr().out


def test_torchrun_may_not_start_it(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="starts torchrun for the training"):
        run(command(tmp_path))


def test_a_step_is_done_when_its_result_is_there(tmp_path):
    write_pictures(tmp_path / "plants", 1)
    (tmp_path / "out" / "bundle").mkdir(parents=True)
    (tmp_path / "out" / "bundle" / "bundle.json").touch()
    left = [step.name for step in steps(command(tmp_path)) if not step.result.exists()]
    assert left == ["prepare", "promote", "evaluate"]


def test_lists_of_the_data_set_reach_training_and_export(tmp_path):
    (tmp_path / "out" / "data").mkdir(parents=True)
    for name in ("negatives.csv", "unknown_train.csv", "unknown_export.csv"):
        (tmp_path / "out" / "data" / name).touch()
    found = {step.name: shlex.join(step.arguments) for step in steps(Command(flora=Path("mini"), out=tmp_path / "out"))}
    assert "unknown_train.csv" in found["train"]
    assert "unknown_export.csv" in found["export"]
    assert "--unknown" not in found["evaluate"]
    assert f"--checkpoint {tmp_path / 'out' / 'run' / 'best.pt'} " in found["export"]
    assert all("negatives.csv" in found[name] for name in ("train", "evaluate", "export"))


@pytest.mark.parametrize(("cards", "recipe"), [((), "probe"), ((Gpu("A card", 12.0),), "own_folder")])
def test_a_folder_takes_the_recipe_for_what_the_machine_has_and_says_so(cards, recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "find_gpus", lambda: (cards, ""))
    write_pictures(tmp_path / "plants", 1)
    monkeypatch.chdir(tmp_path)
    asked = Command(flora=tmp_path / "plants", out=tmp_path / "out", weights="local.safetensors", dry_run=True)
    with pytest.raises(RecipeError, match=r"no such initial weights \(got local"):
        run(asked)
    Path("local.safetensors").touch()
    capsys.readouterr()
    run(asked)
    said = capsys.readouterr().out
    assert said.startswith(f"recipe: {recipe}, since this machine has {cards[0] if cards else 'no GPU'}")
    assert f"training/train.py {recipe} --weights local.safetensors --data" in said


def test_a_misspelt_recipe_ends_before_anything_starts(tmp_path, monkeypatch, capsys):
    (tmp_path / "plants").mkdir()
    with pytest.raises(RecipeError, match="no such recipe"):
        run(Command(flora=tmp_path / "plants", out=tmp_path / "out", recipe="plant"))
    assert not (tmp_path / "out").exists()


def test_an_unknown_flora_is_one_clear_error(tmp_path):
    with pytest.raises(RecipeError, match="no such folder or flora"):
        run(Command(flora=Path("nothing"), out=tmp_path, dry_run=True))


@from_table
def test_after_a_failure_or_a_signal_nothing_is_started_and_a_scheduler_may_start_it_again(
    program, code, said, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(module, "_PROJECT", tmp_path)
    for name in ("plants", "training", "out/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "training" / "prepare.py").write_text(program)
    with pytest.raises(SystemExit) as ended:
        run(command(tmp_path))
    assert ended.value.code == code
    told = capsys.readouterr()
    assert said in told.err
    assert "train: " not in told.out


def test_sigterm_between_two_steps_is_not_forgotten(tmp_path, monkeypatch, capsys):
    (tmp_path / "plants").mkdir()
    monkeypatch.setattr(module, "_start", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(SystemExit) as ended:
        run(command(tmp_path))
    assert ended.value.code == EXIT_REQUEUE
    assert "train: " not in capsys.readouterr().out


@from_table
def test_a_mistake_in_a_flora_ends_before_anything_starts(change, problem, tmp_path):
    flora = {"name": "mine", "description": "", "collection": "data_mini", "recipe": str(RECIPE)} | change
    (tmp_path / "mine.toml").write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in flora.items()))
    with pytest.raises(RecipeError, match=problem):
        list(steps(Command(flora=tmp_path / "mine.toml", out=tmp_path / "out")))


def test_values_that_look_like_flags_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("-plants").mkdir()
    asked = Command(flora=Path("-plants"), out=Path("-out"), recipe=str(RECIPE), weights="-w", description="--yes")
    with pytest.raises(RecipeError, match="the name '-plants'"):
        list(steps(asked))
    Path("-plants").rename("plants")
    Path("-w").touch()
    found = {step.name: step.arguments[1:] for step in steps(replace(asked, flora=Path("plants")))}
    assert found["prepare"] == ["folder", "plants", "--out", "./-out/data"]
    assert "--weights=-w" in found["train"]
    assert found["export"][-1] == "--description=--yes"


def test_what_comes_next_is_not_told_by_a_step_since_flora_starts_it(tmp_path, capfd):
    write_pictures(tmp_path / "plants", 1)
    step = next(step for step in steps(command(tmp_path)) if step.name == "prepare")
    module._start(step, [])
    said = capfd.readouterr().out
    assert f"Written: {step.result}" in said
    assert "Next:" not in said


def test_description_and_calibration_share_reach_the_steps_that_ask_for_them(tmp_path):
    write_pictures(tmp_path / "plants", 1)
    asked = replace(command(tmp_path), description="My garden", calibration_share=0.1)
    found = {step.name: step.arguments for step in steps(asked)}
    assert found["prepare"][-2:] == ["--calibration-share", "0.1"]
    assert found["export"][-2:] == ["--description", "My garden"]
    with pytest.raises(RecipeError, match="set calibration_share in data_mini"):
        list(steps(replace(asked, flora=Path("mini"))))


FLORA = """
name = "published"
description = "Drawn plants."
collection = "{collection}"
recipe = "{recipe}"
"""
# Each is killed at a random moment, up to that many seconds after a step has begun.
KILLS = {"download": (0.5, 1, 2), "prepare": (4, 6, 8), "train": (6, 9), "export": (6, 9)}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A flora of drawn plants whose archives lie on a server, and the address of the server."""
    root = tmp_path_factory.mktemp("published")
    write_published_layouts(root / "unpacked")
    (root / "site").mkdir()
    site = write_archives(root / "unpacked", root / "site")
    text = (site / "collection.toml").read_text()
    parts = [f"https://example.org/{name}.tar.gz" for name in ("train", "val", "train.json", "val.json")]
    files = {"inat2021": parts, "plantnet300k": ["https://example.org/plantnet_300K.zip"]}
    files["house_plants"] = ["https://example.org/house_plants.tar"]
    for name, addresses in files.items():
        text = text.replace(f"[sources.{name}]", f"[sources.{name}]\nfiles = {addresses}")
    (root / "collection.toml").write_text(text.replace("taxon.tsv", str(root / "unpacked" / "taxon.tsv")))
    (root / "flora.toml").write_text(FLORA.format(collection=root / "collection.toml", recipe=RECIPE))
    contents = {f"/{path.relative_to(site)}": path.read_bytes() for path in site.rglob("*") if path.is_file()}
    server = FileServer(contents)
    with server.running() as address:
        yield SimpleNamespace(toml=root / "flora.toml", server=server, address=address)


@contextmanager
def started(published, folder):
    """The command in a process; after the block nothing of it is left."""
    words = ["--out", folder / "out", "--root", folder / "raw", "--mirror", published.address, "--yes"]
    program = [sys.executable, "training/flora.py", published.toml, *words]
    with (
        (folder / "log.txt").open("w") as log,
        subprocess.Popen(program, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        yield process
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def kill_in(published, folder, step, after_s):
    """Starts the command, and kills it that long after the step has begun."""
    published.server.faults = ["hold"] if step == "download" else []
    with started(published, folder) as process:
        wait_until(lambda: f"{step}: python" in (folder / "log.txt").read_text(), process)
        time.sleep(after_s)
    published.server.hold.set()
    published.server.hold.clear()


def whole_run(published, folder):
    """Runs the command to its end; returns manifest, losses and bundle but for the dates, which the card has too."""
    published.server.faults = []
    with started(published, folder) as process:
        assert process.wait() == 0, (folder / "log.txt").read_text()[-3000:]
    assert "Next:" not in (folder / "log.txt").read_text()
    bundle = (folder / "out" / "registry" / "current").resolve()
    record = json.loads((bundle / "bundle.json").read_text())
    del record["created"], record["files"]
    contents = [bundle / name for name in ("model.fp32.onnx", "calibration.npz", "taxa.json", "golden.json")]
    losses = losses_by_step(folder / "out" / "run")
    return Manifest(folder / "out" / "packed").sha256, losses, record, [path.read_bytes() for path in contents]


@pytest.mark.slow
def test_archives_on_a_server_become_a_service_in_one_command_and_kills_change_nothing(published, tmp_path):
    folder = tmp_path / "flora"  # the same for both, since a manifest names the places of its pictures
    folder.mkdir()
    undisturbed = whole_run(published, folder)
    shutil.rmtree(folder)
    folder.mkdir()
    random = Random(5)
    for step, moments in KILLS.items():
        for longest_s in moments:
            kill_in(published, folder, step, random.uniform(0, longest_s))
    assert whole_run(published, folder) == undisturbed
    assert not (folder / "raw" / "inat2021" / "train").exists()  # nothing is unpacked
    current = folder / "out" / "registry" / "current"
    with service(current) as running, running.client() as client:
        sent = io.BytesIO()
        Image.new("RGB", (60, 60), "green").save(sent, "PNG")
        answer = client.post("/identify", files={"image": sent.getvalue()})
        model = client.get("/model")
    assert answer.status_code == 200
    assert model.json()["name"] == "published"
