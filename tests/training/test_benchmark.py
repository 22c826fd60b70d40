import json

import msgspec
import pytest

from models.errors import DataError
from tests.training.small import RECIPE, require_one_line
from tests.training.studies.planted import MACHINE
from training.benchmark import main, parse, run
from training.machine import Gpu
from training.studies.arms import Arm, ArmResult, EpochResult, StudyPaused
from training.studies.batch_sizes import BatchSizes
from training.studies.comparison import Compare, compare
from training.studies.optimizations import Optimizations
from training.studies.report import Study, write_study


def study(speed=100.0, machine=MACHINE, name="optimizations", flags=("--workers", "0")):
    arm = Arm("amp", ("--amp", "fp16"), "")
    epochs = [EpochResult(n, 1000 / speed, speed, 0.8, 500, 1.0, 4.0) for n in (1, 2)]
    return Study(
        name=name,
        title="A study",
        about="One arm.",
        machine=machine,
        measured_on="Drawn GPU",
        recipe="tiny",
        data="drawn",
        flags=flags,
        arms=[ArmResult(arm, seed, epochs, 1.0) for seed in (0, 1)],
        tables=[],
        findings=[],
    )


def written(folder, result):
    write_study(folder, result)
    return folder / f"{result.name}.json"


def test_flags_of_train_follow_two_dashes():
    command = parse(
        ["optimizations", "--data", "d", "--out", "o", "--seeds", "3", "4", "--", "--workers", "0", "--erase", "0"]
    )
    assert isinstance(command, Optimizations)
    assert command.seeds == (3, 4)
    assert command.flags == ("--workers", "0", "--erase", "0")


def test_batch_sizes_have_sizes_and_a_rule():
    command = parse(["batch-sizes", "--data", "d", "--out", "o", "--sizes", "8", "16", "--rule", "linear"])
    assert isinstance(command, BatchSizes)
    assert (command.sizes, command.rule, command.epochs) == ((8, 16), "linear", 15)


def test_the_ablation_is_a_command_too():
    command = parse(["ablation", "--data", "d", "--weights", "w.pt", "--out", "o", "--", "--workers", "0"])
    assert command.flags == ("--workers", "0")


def test_two_results_stand_side_by_side(tmp_path):
    newer = msgspec.structs.replace(MACHINE, git_commit="fedcba9")
    one = written(tmp_path / "one", study())
    other = written(tmp_path / "other", study(150.0, newer, flags=("--workers", "2")))
    page = compare(Compare(one=one, other=other, out=tmp_path / "page.md"))
    assert "| amp | 100.0 [100.0 to 100.0] | 150.0 [150.0 to 150.0] | 1.50 | 80.0 [80.0 to 80.0] |" in page
    assert "* git_commit 0123456 and fedcba9" in page
    assert "* flags --workers 0 and --workers 2" in page
    assert (tmp_path / "page.md").read_text() == page


def test_results_of_different_machines_are_not_compared(tmp_path, monkeypatch, capsys):
    other = msgspec.structs.replace(MACHINE, gpus=(Gpu("Other GPU", 24.0),))
    files = [str(written(tmp_path / str(n), study(machine=machine))) for n, machine in enumerate((MACHINE, other))]
    monkeypatch.setattr("sys.argv", ["benchmark.py", "compare", *files])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    stderr = capsys.readouterr().err
    require_one_line(stderr, "bad_data")
    assert "gpus Drawn GPU 8 GB and Other GPU 24 GB" in stderr


def test_results_of_different_studies_are_not_compared(tmp_path):
    files = [written(tmp_path / name, study(name=name)) for name in ("optimizations", "batch_sizes")]
    with pytest.raises(DataError, match="only results of one study"):
        compare(Compare(one=files[0], other=files[1]))


def started(monkeypatch, data, out, *more):
    """Exit code of a small study of optimizations on the CPU."""
    command = (
        "benchmark.py",
        "optimizations",
        "--data",
        data,
        "--out",
        out,
        "--recipe",
        RECIPE,
        "--device",
        "cpu",
        *more,
    )
    monkeypatch.setattr("sys.argv", list(map(str, command)))
    try:
        main()
    except SystemExit as ended:
        return ended.code
    return 0


def test_a_study_that_pauses_ends_as_schedulers_expect(data, tmp_path, monkeypatch, capsys):
    def paused(*_args, **_flags):
        raise StudyPaused("the time is over")

    monkeypatch.setattr("training.studies.rounds.run_arm", paused)
    assert started(monkeypatch, data, tmp_path) == 75
    assert "the time is over" in capsys.readouterr().err
    assert not list(tmp_path.glob("optimizations*"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_whose_first_run_fails_is_one_line(data, tmp_path, monkeypatch, capfd):
    code = started(monkeypatch, data, tmp_path, "--", "--architecture", "no_such_network")
    *_, last = capfd.readouterr().err.splitlines()
    assert code == 1
    assert "the first run failed" in last
    assert "no such architecture" in last


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_study_out_of_time_goes_on_where_it_stopped(data, tmp_path, monkeypatch):
    flags = ("--epochs", "2", "--seeds", "0", "--only", "cudnn")
    assert started(monkeypatch, data, tmp_path, *flags, "--stop-after-s", "3") == 75
    assert not (tmp_path / "optimizations.json").exists()
    assert started(monkeypatch, data, tmp_path, *flags) == 0
    result = json.loads((tmp_path / "optimizations.json").read_text())
    assert [arm["arm"]["name"] for arm in result["arms"]] == ["baseline", "cudnn"]


def test_a_comparison_is_printed(tmp_path, capsys):
    one, other = (written(tmp_path / name, study()) for name in ("a", "b"))
    run(Compare(one=one, other=other))
    assert "| amp |" in capsys.readouterr().out
