"""The scripts for a GPU machine, run with a script that replaces Python and records its arguments."""

import os
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import tyro

from benchmarks import sweep as sweeps
from benchmarks.gpu.epoch_time import EpochTime
from benchmarks.gpu.service_speed import ServiceSpeed
from benchmarks.gpu.small_weights import SmallWeights
from benchmarks.gpu.step_profile import StepProfile
from benchmarks.serving.network import Network
from benchmarks.train_speed import TrainSpeed
from training import prepare
from training.evaluate import Evaluate
from training.export import Export
from training.train import parse

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "benchmarks" / "gpu").glob("*.sh"))
NUMBERED = [script.name for script in SCRIPTS if script.name[0].isdigit()]
# Records its arguments and writes the files of the program; then it fails (FAILS) or sleeps (LASTS). In bash, which
# starts fast.
STAND_IN = """#!/usr/bin/env bash
if [[ $1 == -c ]]; then
    if [[ ${{HIDE_GPU:-}} && $2 == *cuda* ]]; then exit 1; fi
    if [[ ${{LACKS:-}} && $2 == *litestar* ]]; then echo "not installed: $LACKS"; fi
    exit 0
fi
printf '%s\\t' "$@" >> "{notes}"
echo >> "{notes}"
program=${{1##*/}}
if [[ $1 == -m ]]; then program=$2; fi
while [[ $# -gt 1 ]]; do
    case $1 in
        --out | --run | --junit-xml)
            if [[ $2 == *.json || $2 == *.safetensors || $2 == *.xml ]]; then
                # small_weights.py does not make the folder
                [[ $2 == *.safetensors ]] || mkdir -p "${{2%/*}}"
                echo '[]' > "$2" || exit 1
            else
                mkdir -p "$2/one-seed0"
                for name in optimizations.json optimizations.md batch_sizes.md ablation.json machine.json \\
                    batch_sizes.json model.fp32.onnx bundle.json bundle-test.json log.jsonl best.pt one-seed0/run.json
                do
                    echo '[]' > "$2/$name"
                done
            fi ;;
        drawn)
            mkdir -p "$2"
            echo picture > "$2/one.jpg" ;;
    esac
    shift
done
if [[ ${{FAILS:-}} == "$program" ]]; then exit "$CODE"; fi
if [[ ${{LASTS:-}} == "$program" ]]; then sleep 100; fi
"""


def run(script, folder, *arguments, **variables):
    """Exit code, the arguments of each start of Python, and the script's stderr."""
    python, notes = folder / "python", folder / "notes.txt"
    python.write_text(STAND_IN.format(notes=notes))
    python.chmod(0o755)
    notes.write_text("")
    for name in ("shards", "things"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "weights.pt").touch()
    names = {"PYTHON": "python", "WORK": "work", "OUT": "out", "WEIGHTS": "weights.pt", "IMAGENET": "weights.pt"}
    names |= {"DATA": "shards", "NEGATIVES": "things"}
    found = os.environ | {name: str(folder / place) for name, place in names.items()} | variables
    command = ["bash", ROOT / "benchmarks" / "gpu" / script, *arguments]
    done = subprocess.run(command, env=found, timeout=300, check=False, stderr=subprocess.PIPE, text=True)
    return done.returncode, [line.split("\t")[:-1] for line in notes.read_text().splitlines()], done.stderr


def copied(folder):
    """Paths of the files in OUT."""
    return {str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file()}


COMMANDS = {
    "prepare.py": prepare.Command,
    "train_speed.py": TrainSpeed,
    "export.py": Export,
    "evaluate.py": Evaluate,
    "small_weights.py": SmallWeights,
    "network.py": Network,
    "service_speed.py": ServiceSpeed,
    "epoch_time.py": EpochTime,
    "step_profile.py": StepProfile,
}


def understood(program, *arguments):
    """Parses a command line as the program itself does."""
    if arguments[0] == "torch.distributed.run":
        at = arguments.index("--")
        return understood(*arguments[at + 1 :])
    if program == "-m":
        assert arguments[0] == "pytest"
        assert "tests/training/engine/test_trainer_on_gpu.py" in arguments
        return arguments
    assert (ROOT / program).is_file() or Path(program).is_file()
    name = Path(program).name
    if name == "train.py":
        return parse(list(arguments))
    if name == "sweep.py":
        sweep = sweeps.parse(list(arguments))
        found, _ = sweeps.read_sweep(sweep.sweep)
        for words in sweeps.commands_of(found, "cuda", sweep.only).values():
            parse([*words, *sweep.flags])
        return sweep
    return tyro.cli(COMMANDS[name], args=arguments)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_valid_bash(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK) == (script.name != "bootstrap.sh")


@pytest.mark.parametrize("tiny", ["0", "1"])
@pytest.mark.parametrize("script", NUMBERED)
def test_every_command_is_parsed_and_run_once(script, tiny, tmp_path):
    code, asked, _ = run(script, tmp_path, TINY=tiny)
    assert code == 0
    assert asked
    for program, *arguments in asked:
        understood(program, *arguments)
    again, asked, _ = run(script, tmp_path, TINY=tiny)
    assert (again, asked) == (0, [])


@pytest.mark.parametrize(("script", "bring"), [*((script, "") for script in NUMBERED), ("5_scratch.sh", "weights")])
def test_the_copied_results_fit_the_limits_of_a_lent_machine(script, bring, tmp_path):
    assert run(script, tmp_path, **({"BRING": bring} if bring else {}))[0] == 0
    places = copied(tmp_path)
    assert 0 < len(places) <= 8
    assert max(place.count("/") for place in places) <= 2
    if script == "4_speed.sh":
        assert {"train_speed.json", "optimizations.json", "state.tar.gz"} <= places
    if script == "5_scratch.sh":
        part = "weights.part.00" if bring == "weights" else "scratch.part.00"
        assert f"scratch/{part}" in places
        assert "scratch/log.jsonl" in places or bring == "weights"
    if script == "1_plants.sh":
        assert places == {f"plants/{name}" for name in ("log.jsonl", "plants-speed.json", "bundle.part.00")}


@pytest.mark.parametrize("script", ["4_speed.sh", "6_sweep.sh"])
def test_a_paused_sweep_copies_its_table_and_its_finished_runs(script, tmp_path):
    code, asked, _ = run(script, tmp_path, FAILS="sweep.py", CODE="75")
    assert code == 75
    assert any(place.endswith((".json", ".md")) and "speed" not in place for place in copied(tmp_path))
    with tarfile.open(tmp_path / "out" / "state.tar.gz") as state:
        assert any(name.endswith("run.json") for name in state.getnames())
    ended, rest, _ = run(script, tmp_path)
    assert ended == 0
    assert [words[:2] for words in rest] == [asked[-1][:2]]


def test_another_machine_resumes_from_the_state_file(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    run("4_speed.sh", one, FAILS="sweep.py", CODE="75")
    code, asked, _ = run("4_speed.sh", other, STATE=str(one / "out" / "state.tar.gz"), FAILS="sweep.py", CODE="75")
    assert code == 75
    assert [words for words in asked if "train_speed.json" in words[-1]] == []
    assert "drawn" in {word for words in asked for word in words}  # the pictures are drawn again
    assert (other / "work" / "optimizations" / "one-seed0" / "run.json").is_file()
    assert {"train_speed.json"} <= copied(other)


@pytest.mark.slow
def test_a_command_that_can_resume_is_paused_when_the_time_is_over(tmp_path):
    began = time.monotonic()
    code, asked, _ = run("5_scratch.sh", tmp_path, LASTS="train.py", LIMIT_S="4")
    assert code == 75
    assert time.monotonic() - began < 60
    assert asked[-1][0].endswith("train.py")


@pytest.mark.slow
def test_a_command_that_ran_out_of_time_is_repeated(tmp_path):
    for _ in range(2):
        code, asked, _ = run("5_scratch.sh", tmp_path, LASTS="small_weights.py", LIMIT_S="4")
        assert (code, asked[-1][0]) == (75, "benchmarks/gpu/small_weights.py")
    assert run("5_scratch.sh", tmp_path, LIMIT_S="60")[0] == 0


@pytest.mark.parametrize("code", [1, 137])
def test_a_failure_ends_a_script_with_its_own_code(code, tmp_path):
    assert run("5_scratch.sh", tmp_path, FAILS="train.py", CODE=str(code))[0] == code


def test_failed_tests_end_the_script_with_an_error_after_everything_else(tmp_path):
    code, asked, said = run("0_first.sh", tmp_path, FAILS="pytest", CODE="1")
    assert (code, asked[-1][0]) == (1, "benchmarks/gpu/step_profile.py")
    assert copied(tmp_path) == {"gpu.xml", "gpu.txt", "torchrun.txt", "loops.json", "step_profile.json"}
    assert "tests failed" in said


def test_the_tests_are_not_skipped_silently_without_a_gpu(tmp_path):
    code, asked, said = run("0_first.sh", tmp_path, HIDE_GPU="1")
    assert (code, asked) == (1, [])
    assert "sees no GPU" in said


def test_a_copy_without_git_is_asked_for_its_commit_which_results_then_name(tmp_path):
    copy = tmp_path / "copy"
    for folder in ("benchmarks/gpu", "tests"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)  # a repository around the copy is not its own
    code, asked, said = run(copy / "benchmarks" / "gpu" / "0_first.sh", tmp_path, GIT_COMMIT="")
    assert (code, asked) == (1, [])
    assert said == "error: this copy has no .git, and each result names its commit: set GIT_COMMIT to it\n"
    assert run(copy / "benchmarks" / "gpu" / "0_first.sh", tmp_path, GIT_COMMIT="0" * 40)[0] == 0


def test_the_service_is_skipped_with_a_reason_where_its_packages_are_missing(tmp_path):
    code, asked, _ = run("3_service.sh", tmp_path, LACKS="litestar")
    assert (code, asked) == (0, [])
    assert copied(tmp_path) == {"service/skipped.txt"}
    assert (tmp_path / "out" / "service" / "skipped.txt").read_text() == "skipped: not installed: litestar\n"


def test_a_script_without_time_pauses_before_its_first_command(tmp_path):
    assert run("6_sweep.sh", tmp_path, LIMIT_S="0")[:2] == (75, [])


def test_a_script_asks_for_its_weights(tmp_path):
    code, asked, said = run("6_sweep.sh", tmp_path, WEIGHTS=str(tmp_path / "missing.pt"))
    assert (code, asked) == (1, [])
    assert "5_scratch.sh first" in said


def test_the_ablation_takes_its_size_from_variables(tmp_path):
    asked = run("6_sweep.sh", tmp_path, SEEDS="5 6", ARMS="batch_16 fp16", EPOCHS="7")[1]
    sweep = understood(*asked[-1])
    assert (sweep.seeds, sweep.only) == ((5, 6), ("batch_16", "fp16"))
    assert parse(["b4_5337", *sweep.flags]).recipe.schedule.epochs == 7


def test_the_plants_ask_for_their_shards(tmp_path):
    code, asked, said = run("1_plants.sh", tmp_path, DATA=str(tmp_path / "nowhere"))
    assert (code, asked) == (1, [])
    assert said == f"error: {tmp_path}/nowhere is not there: the head of this script says what it is\n"


def test_the_demonstration_takes_further_flags_of_the_training(tmp_path):
    asked = run("1_plants.sh", tmp_path, EPOCHS="500", FLAGS="--picture-px 192 --progressive 0 96 450 192")[1]
    (recipe,) = (understood(*words).recipe for words in asked if words[0].endswith("train.py"))
    assert recipe.schedule.epochs == 500
    assert (recipe.pictures.progressive, recipe.pictures.picture_px) == (((0, 96), (450, 192)), 192)
    assert len(recipe.negatives.negatives) == 1


@pytest.mark.parametrize(
    ("script", "argument", "bring"),
    [("5_scratch.sh", "", "all"), ("6_sweep.sh", "nosuch", "")],
)
def test_an_unknown_argument_is_an_error(script, argument, bring, tmp_path):
    code, asked, said = run(script, tmp_path, *filter(None, [argument]), BRING=bring or "bundle")
    assert (code, asked) == (1, [])
    assert said.startswith("error: ")


@pytest.mark.parametrize(
    ("argument", "needed"),
    [
        ("", {"msgspec", "tyro", "typeguard", "simplejpeg", "imagehash", "pytest", "hypothesis"}),
        ("service", {"msgspec", "litestar", "httptools", "structlog"}),
    ],
)
def test_the_wheels_are_those_of_the_lock(argument, needed, tmp_path):
    shutil.copytree(ROOT / "benchmarks" / "gpu", tmp_path / "benchmarks" / "gpu")
    shutil.copy(ROOT / "requirements.lock", tmp_path)
    code, asked, _ = run(tmp_path / "benchmarks" / "gpu" / "wheels.sh", tmp_path, *filter(None, [argument]))
    assert code == 0
    pins = [argument for argument in asked[0] if "==" in argument]
    assert {pin.partition("==")[0] for pin in pins} >= needed
    assert all(f"\n{pin} " in (ROOT / "requirements.lock").read_text() for pin in pins)
