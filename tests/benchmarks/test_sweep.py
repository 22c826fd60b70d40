"""Sweeps with a script that writes a log instead of train.py, and one real sweep."""

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import sweep as module
from benchmarks.sweep import (
    COLUMNS,
    SWEEPS,
    Benchmark,
    Run,
    benchmark,
    commands_of,
    main,
    read_sweep,
    row_of,
    train_arm,
)
from models.errors import RecipeError
from tests.training.small import RECIPE, write_pictures
from training.prepare import Folder, prepare
from training.train import parse as parse_train

BEGUN = Run(arm="larger", seed=3, command=(str(RECIPE), "--batch-size", "8", "--seed", "3"))
STAND_IN = """
import json, os, signal, sys, time
from pathlib import Path

arguments = sys.argv[1:]
run = Path(arguments[arguments.index("--run") + 1])
calls = run / "calls.json"
made = json.loads(calls.read_text()) if calls.exists() else []
calls.write_text(json.dumps([*made, arguments]))
first_time = not made


def write(**event):
    with (run / "log.jsonl").open("a") as log:
        log.write(json.dumps({"time": 100.0, **event}) + "\\n")


def epoch(number, seconds, top1):
    judged = {"top1": {"value": top1, "num_pictures": 40}, "loss": 1.5}
    use = {"seconds": seconds, "stages": {"wait": seconds / 4}}
    write(event="epoch", epoch=number, step=10 * number, seconds=seconds, pictures_per_s=200 / seconds,
          memory_gb=None, use=use, validation=judged)


"""
TWO_EPOCHS = "write(event='start', step=0)\nepoch(1, 8.0, 0.25)\nepoch(2, 4.0, 0.5)\n"
SWEEP = """
recipe = "{recipe}"
seeds = [0, 1]
set = {{ epochs = 2 }}
[arms.first]
[arms.larger]
set = {{ batch_size = 8 }}
[arms.larger_and_plain]
after = "larger"
set = {{ channels_last = false }}
[arms.half]
on = "cuda"
set = {{ amp = "fp16" }}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Replaces train.py by a script; returns the folder of one run."""

    def replace(behavior):
        path = tmp_path / "stand_in.py"
        path.write_text(STAND_IN + behavior)
        monkeypatch.setattr(module, "TRAIN", path)
        return tmp_path / "run"

    return replace


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("prepared")
    prepare(Folder(pictures=write_pictures(folder / "flowers"), out=folder / "data", workers=1))
    return folder / "data"


@pytest.fixture
def sweep(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SWEEP.format(recipe=RECIPE))
    return path


@pytest.fixture
def swept(sweep, data, tmp_path):
    """Runs the sweep on the CPU."""

    def run(out=tmp_path, **options):
        return benchmark(Benchmark(sweep=sweep, data=data, out=out, device="cpu", **options))

    return run


def calls(folder):
    return json.loads((folder / "calls.json").read_text())


def test_an_arm_is_one_run_whose_first_epoch_is_not_timed(program):
    done = train_arm(BEGUN, folder := program(TWO_EPOCHS))
    assert (done.top1, done.pictures_per_s, done.epoch_s, done.waiting, done.error) == (50, 50, 4, 25, "")
    assert calls(folder)[0] == [*BEGUN.command, "--run", str(folder), "--auto-resume"]


CRASHES = [
    ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
    ("raise KeyError('no error of this project')", "KeyError: 'no error of this project'"),
]


def epoch(number, seconds, speed, top1=0.5):
    use = {"seconds": seconds, "stages": {"wait": 0.0}}
    judged = {"top1": {"value": top1}}
    plain = {"event": "epoch", "epoch": number, "seconds": seconds, "pictures_per_s": speed, "memory_gb": 2.0 + number}
    return {**plain, "use": use, "validation": judged}


def test_a_row_has_medians_ranges_and_the_first_error():
    speeds = {("first", 0): 10.0, ("first", 1): 20.0, ("larger", 0): 20.0, ("larger", 1): 60.0}
    runs = [Run(arm=arm, seed=seed, command=(), pictures_per_s=speed) for (arm, seed), speed in speeds.items()]
    runs.append(Run(arm="larger", seed=2, command=(), error="error (out_of_memory): too large"))
    row = dict(zip(COLUMNS, row_of("larger", runs, first="first", num_runs=3), strict=True))
    assert row["pictures/s"] == "40.0 [20.0 to 60.0]"
    assert row["speed-up"] == "2.50 [2.00 to 3.00]"  # of the same seeds
    assert row["runs"] == "2 of 3; failed: error (out_of_memory): too large"
    assert row["top-1, %"] == "–"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[arms.odd]\nset = { batch_sise = 8 }", "batch_sise"),
        ("[arms.odd]\nset = { batch_size = 0 }", "batch_size"),
        ('[arms.odd]\nafter = "nothing"', "nothing"),
        ("[arms.odd]\nsett = {}", "sett"),
        ("[arms.odd", "not valid TOML"),
    ],
)
def test_a_mistake_in_a_sweep_is_told_before_anything_runs(wrong, told, sweep):
    sweep.write_text(sweep.read_text() + wrong)
    with pytest.raises(RecipeError, match=told):
        commands_of(read_sweep(sweep)[0], "cpu")


@pytest.mark.parametrize("name", sorted(path.stem for path in SWEEPS.glob("*.toml")))
def test_train_understands_every_arm_of_the_shipped_sweeps(name):
    found, _ = read_sweep(Path(name))
    commands = commands_of(found, "cuda")
    assert len(commands) == len(found.arms) > 8
    assert len({words for arm, words in commands.items() if arm != "baseline_again"}) >= len(commands) - 1
    for words in commands.values():
        parse_train(list(words))


def test_a_sweep_runs_its_arms_round_by_round_and_writes_one_table(program, swept, tmp_path, capsys):
    program(TWO_EPOCHS)
    result = swept(tmp_path / "out", flags=("--shards", "s3://a:secret@b"))
    assert [run.seed for run in result.runs] == [0, 0, 0, 1, 1, 1]
    assert [row[0] for row in result.rows] == ["first", "larger", "larger_and_plain"]
    assert "50.0" in capsys.readouterr().out
    assert msgspec.json.decode((tmp_path / "out" / "small.json").read_bytes(), type=module.Result) == result
    told = (tmp_path / "out" / "small.md").read_text()
    assert result.machine.git_commit in told
    assert "| larger | 50.0 [50.0 to 50.0] | 50.0 [50.0 to 50.0] | 1.00 [1.00 to 1.00] |" in told
    published = told + (tmp_path / "out" / "small.json").read_text()
    assert str(tmp_path) not in published
    assert calls(tmp_path / "out" / "first-seed0")[0].count("s3://a:secret@b") == 1
    assert "secret" not in published + (tmp_path / "out" / "first-seed0" / module.RUN_FILE).read_text()


@pytest.fixture
def started(monkeypatch, handlers):
    """Runs the program; returns its exit code."""

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["sweep.py", *map(str, arguments)])
        try:
            main()
        except SystemExit as ended:
            return ended.code
        return 0

    return run


def test_a_sweep_that_is_stopped_has_written_its_table_and_is_resumed(program, sweep, data, tmp_path, started):
    stops = "signal.signal(signal.SIGTERM, lambda *_: (run / 'saved').touch() or sys.exit(75))\n    "
    kills = "os.kill(os.getppid(), signal.SIGTERM)\n    time.sleep(60)\n"
    program(f"if first_time and run.name == 'larger-seed1':\n    {stops}{kills}\n{TWO_EPOCHS}")
    out = tmp_path / "out"
    flags = (sweep, "--data", data, "--out", out, "--device", "cpu")
    assert started(*flags) == 75
    assert len(list(out.glob("*/saved"))) == 1
    assert "1 of 2" in (out / "small.md").read_text()
    assert started(*flags) == 0
    table = (out / "small.md").read_text()
    assert table.count("2 of 2") == 3
    assert "failed" not in table
