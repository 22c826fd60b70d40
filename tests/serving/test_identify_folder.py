"""The program in a process of its own: signals and kills lose no row and write none twice."""

import random
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

import psutil
import pytest

from models.ranking import NAMES_ARE_GUESSES
from serving.folder import Outcome, run
from serving.identify_folder import main
from tests.make import ran
from tests.serving.folder import photograph_folder
from tests.serving.folder.photograph_folder import draw_photographs, identify, parts, rows_of
from tests.serving.tiny import BLUE, GREEN, RED
from tests.waiting import wait_until

NUM_PHOTOGRAPHS = 60
MOST_BYTES = 600_000_000
MOST_GROWTH = 1.05


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    return draw_many(tmp_path_factory.mktemp("photographs"), NUM_PHOTOGRAPHS)


def draw_many(folder, number):
    return draw_photographs(folder, {f"{index:04d}.jpg": (RED, GREEN, BLUE)[index % 3] for index in range(number)})


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def start(out, bundle_folder):
    """Starts the program in a process of its own, over photographs, with so many rows in a part."""
    return partial(photograph_folder.start, out=out, bundle=bundle_folder, stderr=subprocess.PIPE, text=True)


def finish(process):
    _, said = process.communicate(timeout=300)
    return process.returncode, said


def wait_for_parts(out, number, process):
    wait_until(lambda: len(parts(out)) >= number, process)  # which may be quicker


def test_the_program_ends_without_the_exit_of_the_interpreter():
    """A thread that frees a network then would abort it."""
    program = "atexit.register(print, 'exit'); runpy.run_module('serving.identify_folder', run_name='__main__')"
    ended = ran(sys.executable, "-c", f"import atexit, runpy; {program}", "--help")
    assert (ended.returncode, ended.stdout.endswith("exit\n")) == (0, False)
    assert "serving.identify_folder" in ended.stdout


def test_a_signal_ends_the_run_and_the_same_command_continues(start, photographs, out):
    process = start(photographs, part_rows=4)
    wait_for_parts(out, 1, process)
    process.send_signal(signal.SIGTERM)
    code, said = finish(process)
    assert (code, said.splitlines()[-1]) in (
        (Outcome.INTERRUPTED, "interrupted; the same command continues"),
        (Outcome.COMPLETE, f"60 rows, 0 failed: {out}/results.csv"),
    )
    code, said = finish(start(photographs, part_rows=4))
    assert code == Outcome.COMPLETE, said
    assert f"60 rows, 0 failed: {out}/results.csv" in said.splitlines()
    assert len(rows_of(out)) == NUM_PHOTOGRAPHS


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("stage", "number"),
    [
        *((stage, signal.SIGINT) for stage in ("group_photographs", "keyed", "write_table", "write_record")),
        ("open_worker", signal.SIGTERM),
    ],
)
def test_a_signal_at_any_stage_is_one_sentence(tmp_path, out, bundle_folder, monkeypatch, capsys, stage, number):
    photographs = draw_many(tmp_path / "photographs", 3)
    original = getattr(run, stage)

    def interrupted(*arguments, **named):
        signal.raise_signal(number)
        return original(*arguments, **named)

    monkeypatch.setattr(run, stage, interrupted)
    with pytest.raises(SystemExit) as exit_code:
        main([str(photographs), "--out", str(out), "--bundle", str(bundle_folder)])
    monkeypatch.undo()
    assert exit_code.value.code == Outcome.INTERRUPTED
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line != NAMES_ARE_GUESSES] == ["interrupted; the same command continues"]
    assert not list(out.rglob("*.part"))
    assert identify(photographs, out, bundle_folder) == Outcome.COMPLETE
    assert len(rows_of(out)) == 3


@pytest.mark.parametrize("num_kills", [2, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_kills_lose_no_row_and_write_none_twice(start, tmp_path, out, num_kills):
    num_photographs, chance, written = 20 * num_kills, random.Random(0), {}
    photographs = draw_many(tmp_path / "photographs", num_photographs)
    for _ in range(num_kills):
        process = start(photographs, part_rows=1)
        if chance.random() < 0.5:
            time.sleep(chance.uniform(0, 3))  # at any moment of the start
        else:
            wait_for_parts(out, len(written) + chance.randint(1, 10), process)
        process.kill()
        process.communicate()
        before, written = written, parts(out)
        assert written.items() >= before.items(), "a part was written twice"
    assert finish(start(photographs, part_rows=1))[0] == Outcome.COMPLETE
    assert len(rows_of(out)) == num_photographs
    assert not list(out.rglob("*.part"))


def resident_bytes(process):
    """Memory of a program and its decoder processes; pages that they share count for each."""
    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return sum(each.memory_info().rss for each in family)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("num_photographs", [5_000, 100_000])
def test_memory_does_not_grow(start, tmp_path, out, num_photographs):
    drawn = draw_many(tmp_path / "drawn", 30)
    photographs, samples = tmp_path / "photographs", []
    for number in range(num_photographs):
        link = photographs / f"{number // 1000:03d}" / f"{number:06d}.jpg"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(drawn / f"{number % 30:04d}.jpg")
    process = start(photographs, part_rows=100)
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):  # the program or a decoder has just ended
            samples.append((len(list(out.glob("parts/*"))), resident_bytes(process)))
        time.sleep(0.2)
    assert finish(process)[0] == Outcome.COMPLETE
    num_parts = num_photographs // 100
    early = statistics.median(size for done, size in samples if 0.3 <= done / num_parts <= 0.4)
    late = statistics.median(size for done, size in samples if done / num_parts >= 0.9)
    most = max(size for _, size in samples)
    print(f"{early / 1e6:.0f} MB after a third, {late / 1e6:.0f} MB at the end, {most / 1e6:.0f} MB at most")
    assert late <= MOST_GROWTH * early
    assert most < MOST_BYTES
