import json

import msgspec
import pytest

from tests.training.insight.studies.planted import MACHINE, written
from tests.training.small import RECIPE, ROOT, require_one_line
from training.benchmark import main, parse, run
from training.insight.studies.ablation import Ablate
from training.insight.studies.arms import StudyPaused
from training.insight.studies.batch_sizes import BatchSizes
from training.insight.studies.comparison import Compare
from training.insight.studies.optimizations import Optimizations
from training.insight.studies.report import Page, read_study
from training.machine import Gpu


def test_flags_of_train_follow_two_dashes():
    command = parse(
        ["optimizations", "--data", "d", "--out", "o", "--seeds", "3", "4", "--", "--workers", "0", "--erase", "0"]
    )
    assert isinstance(command, Optimizations)
    assert command.seeds == (3, 4)
    assert command.flags == ("--workers", "0", "--erase", "0")


def test_batch_sizes_is_a_command():
    command = parse(["batch-sizes", "--data", "d", "--out", "o", "--sizes", "8", "16"])
    assert isinstance(command, BatchSizes)
    assert (command.sizes, command.epochs) == ((8, 16), 15)


def test_the_ablation_is_a_command_too():
    command = parse(
        [
            *("ablation", "--data", "d", "--weights", "w.pt", "--out", "o", "--only", "batch_16", "amp"),
            *("--no-equal-time", "--rates", "1e-4", "--", "--workers", "0"),
        ]
    )
    assert isinstance(command, Ablate)
    assert (command.flags, command.only, command.rates) == (("--workers", "0"), ("batch_16", "amp"), (1e-4,))
    assert (command.equal_time, command.epochs) == (False, 15)


def test_results_of_different_machines_are_not_compared(tmp_path, monkeypatch, capsys):
    other = msgspec.structs.replace(MACHINE, gpus=(Gpu("Other GPU", 24.0),))
    files = [str(written(tmp_path / str(n), machine=machine)) for n, machine in enumerate((MACHINE, other))]
    monkeypatch.setattr("sys.argv", ["benchmark.py", "compare", *files])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    stderr = capsys.readouterr().err
    require_one_line(stderr, "bad_data")
    assert "gpus Drawn GPU 8 GB and Other GPU 24 GB" in stderr


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


def test_a_paused_study_ends_with_code_75(data, tmp_path, monkeypatch, capsys):
    def paused(*_args, **_flags):
        raise StudyPaused("the time is over")

    monkeypatch.setattr("training.insight.studies.rounds.run_arm", paused)
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
def test_a_study_out_of_time_is_resumed(data, tmp_path, monkeypatch):
    flags = ("--epochs", "2", "--seeds", "0", "--only", "amp")
    assert started(monkeypatch, data, tmp_path, *flags, "--stop-after-s", "3") == 75
    assert not (tmp_path / "optimizations.json").exists()
    assert started(monkeypatch, data, tmp_path, *flags) == 0
    result = json.loads((tmp_path / "optimizations.json").read_text())
    assert [arm["arm"]["name"] for arm in result["arms"]] == ["baseline", "amp"]


def test_a_comparison_is_printed(tmp_path, capsys):
    one, other = (written(tmp_path / name) for name in ("a", "b"))
    run(Compare(one=one, other=other))
    assert "| amp |" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["optimizations", "batch_sizes", "ablation"])
def test_the_pages_of_the_docs_show_the_committed_results(name, tmp_path):
    (result,) = ROOT.glob(f"benchmarks/results/*/{name}.json")
    run(Page(result=result, out=tmp_path / f"{name}.md"))
    assert (ROOT / "docs" / "studies" / f"{name}.md").read_text() == (tmp_path / f"{name}.md").read_text()
    assert {path.name for path in tmp_path.glob("*.svg")} <= {
        path.name for path in (ROOT / "docs" / "studies").iterdir()
    }
    assert not read_study(result).machine.git_commit.endswith("+")
