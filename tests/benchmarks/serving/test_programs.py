"""The programs as a person starts them, at their quick size, over a tiny bundle."""

import asyncio
import json
import sys

import pytest

from benchmarks.serving.compare import Compare
from benchmarks.serving.compare import measure as compare
from benchmarks.serving.flags import ENVIRONMENT
from benchmarks.serving.http_client import fetch
from benchmarks.serving.memory import Memory
from benchmarks.serving.memory import measure as weigh
from benchmarks.serving.overload import Overload
from benchmarks.serving.overload import measure as overload
from benchmarks.serving.photographs import drawn
from benchmarks.serving.server_config import ServerConfig
from benchmarks.serving.servers import OURS, Contender, Place, candidates, identify, running, top_outputs
from models.bundle import load_bundle
from models.errors import DataError
from tests.make import ROOT, ran

SERVING = ROOT / "benchmarks" / "serving"
needs_rivals = pytest.mark.skipif(
    not (ENVIRONMENT / "bin" / "python").exists(), reason="the rivals' environment is not installed"
)


@pytest.fixture(scope="module")
def bundle(sealed):
    return sealed()


@pytest.mark.parametrize("program", ["compare.py", "overload.py", "memory.py", "network.py"])
@pytest.mark.slow
def test_every_program_has_a_help_text(program, tmp_path):
    ended = ran(sys.executable, SERVING / program, "--help", cwd=tmp_path, check=True)
    assert "--out" in ended.stdout


@pytest.mark.slow
def test_a_quick_comparison_measures_every_cell(bundle, tmp_path, capsys):
    out = tmp_path / "serving.json"
    result = compare(Compare(bundle=bundle, servers=(), quick=True, out=out))
    (ours,) = result.figures
    cells = [(cell.photograph, cell.concurrency) for turn in ours.turns for cell in turn.cells]
    assert cells == [("1 MP", 1), ("1 MP", 8), ("12 MP", 1), ("12 MP", 8)]
    assert all(cell.per_s > 0 for turn in ours.turns for cell in turn.cells)
    assert ours.turns[0].processes_left == 0
    written = json.loads(out.read_text())
    assert written["setting"]["bundle"] is None
    assert str(tmp_path) not in out.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["serving.json"]
    assert "| ours |" in capsys.readouterr().out


@pytest.mark.slow
def test_a_quick_overload_counts_how_every_request_ended(bundle, tmp_path):
    out = tmp_path / "serving_overload.json"
    result = overload(Overload(bundle=bundle, servers=(), quick=True, out=out))
    (ours,) = result.servers
    (burst,) = ours.bursts
    assert sum(burst.words.values()) == pytest.approx(2 * burst.offered_per_s)
    assert burst.offered_per_s > 1.5 * burst.capacity_per_s
    assert burst.peak_mb >= 0.8 * burst.before_mb > 0
    assert out.is_file()


@pytest.mark.slow
def test_a_quick_memory_run_counts_how_every_request_ended(bundle, tmp_path):
    result = weigh(Memory(bundle=bundle, quick=True, out=tmp_path / "serving_memory.json"))
    assert len(result.life.course_mb) == 20
    assert [word for word in result.life.unexpected if not word.endswith(("429", "503"))] == []
    assert result.hostile.status == 422
    assert result.flood.high_water_mb > 0


def test_the_error_of_a_missing_environment_has_a_remedy(bundle, tmp_path):
    with pytest.raises(DataError, match=r"requirements\.txt"):
        compare(Compare(bundle=bundle, quick=True, environment=tmp_path))


def test_the_error_of_a_server_that_does_not_start_holds_its_log(bundle):
    place = Place(load_bundle(bundle), ENVIRONMENT, ours=("--no-such-flag",))
    with pytest.raises(DataError, match=r"ended at its start.*no-such-flag"), running(place, OURS, ServerConfig()):
        pass


@needs_rivals
@pytest.mark.slow
@pytest.mark.parametrize("decoding", ["full", "reduced"])
@pytest.mark.parametrize("server", ["LitServe", "BentoML", "FastAPI"])
def test_a_rival_gives_our_answer_and_leaves_no_process(server, decoding, bundle):
    place, contender, picture = Place(load_bundle(bundle), ENVIRONMENT), Contender(server, decoding), drawn(640, 480)
    found = {}
    for each in (OURS, contender):
        with running(place, each, candidates(each.server, 2)[0]) as started:
            answer = asyncio.run(fetch(started.port, identify(picture)))
            assert answer.status == 200
            found[each] = top_outputs(each, place.bundle, answer.body)[0]
            members = started.tree.members()
        assert not any(process.is_running() for process in members)
    assert found[contender][0] == found[OURS][0]
    assert found[contender][1] == pytest.approx(found[OURS][1], abs=0.02)
