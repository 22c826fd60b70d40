"""The same command again: it continues, adds what is new, and refuses what would mix two runs."""

import hashlib
import json
import os
import shutil
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from models.errors import DataError, InputError
from serving.folder import Outcome, run
from serving.folder.results import PartFiles
from serving.folder.rows import Failure, failed
from tests.serving.folder import photograph_folder
from tests.serving.folder.photograph_folder import COLORS, draw_photographs, parts, rows_of, written
from tests.serving.tiny import BLUE, RED, jpeg


class _KilledError(Exception):
    """The process ends here."""


class ContinuedRuns(RuleBasedStateMachine):
    """Photographs come, change and go, parts get lost, runs are killed, and the same command runs again.

    The answer to a photograph is its content, and that to `bad` is a failure.
    """

    paths = st.sampled_from(["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    contents = st.sampled_from(["one", "two", "bad", None])

    def __init__(self, bundle):
        super().__init__()
        self.bundle, self.root = bundle, TemporaryDirectory()
        self.photographs, self.out = (Path(self.root.name) / name for name in ("photographs", "out"))
        self.photographs.mkdir()
        self.out.mkdir()
        (self.out / ".garden.part").touch()  # not of a run
        self.listed = {}  # path -> time
        self.held = {}  # name of a part -> {(path, time): answer}
        self.frozen = []  # what processes wrote, and may write again
        self.now = 0

    def teardown(self):
        self.root.cleanup()

    @rule(contents=st.dictionaries(paths, contents, min_size=1), is_seen=st.booleans())
    def change(self, contents, is_seen):
        """A change that neither size nor time tells is not seen."""
        self.now += 1
        for path, content in contents.items():
            (self.photographs / path).unlink(missing_ok=True)
            before = self.listed.pop(path, self.now)
            if content is not None:
                self.listed[path] = self.now if is_seen else before
                (self.photographs / path).write_text(content)
                os.utime(self.photographs / path, ns=(0, self.listed[path]))

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 3))
    def lose_a_part(self, number):
        for name in [*self.held][number : number + 1]:
            del self.held[name]
            (self.out / "parts" / name).unlink()

    @precondition(lambda self: self.frozen)
    @rule(number=st.integers(0, 3))
    def thaw(self, number):
        """A process that was taken for dead writes its part after all."""
        for name, answers, write in self.frozen[number : number + 1]:
            before = parts(self.out)
            write()
            if "bad" in self.held.get(name, {"": "bad"}).values():
                self.held[name] = answers
            else:
                assert parts(self.out) == before

    @precondition(lambda self: self.listed)
    @rule(part_rows=st.integers(1, 3), retries=st.booleans(), most_parts=st.sampled_from([0, 1, 99, 99]))
    def run_again(self, part_rows, retries, most_parts):
        again = {None, "bad"} if retries else {None}
        missing = [plant for plant in self.listed.items() if self.answer_to(plant) in again]
        before, self.answered, self.most_parts = parts(self.out), [], most_parts
        flags = {"part_rows": part_rows, "retry_failed": retries}
        with patch.object(run, "open_worker", self.open_worker), suppress(_KilledError):
            outcome = photograph_folder.identify(self.photographs, self.out, self.bundle, **flags)
            assert sorted(self.answered) == sorted(missing)
            answers = {plant[0]: self.answer_to(plant) for plant in sorted(self.listed.items())}
            assert [(path, row["reason"]) for path, row in rows_of(self.out).items()] == [*answers.items()]
            assert outcome == (Outcome.SOME_FAILED if "bad" in answers.values() else Outcome.COMPLETE)
            assert [path.name for path in self.out.rglob("*.part")] == [".garden.part"]
        after = parts(self.out)
        assert after.keys() == self.held.keys()
        assert all(after[name] == before[name] for name in before if self.held[name].keys().isdisjoint(missing))

    def answer_to(self, plant):
        """The answer that is held, `bad` only if there is no other; None if there is none."""
        answers = [answers[plant] for answers in self.held.values() if plant in answers]
        return min(answers, key="bad".__eq__, default=None)

    @asynccontextmanager
    async def open_worker(self, _command, _bundle, files, *_):
        async def write(some, on_row, on_part):
            for number, part in enumerate(some):
                if number == self.most_parts:
                    (self.out / f".results.csv.{number:032x}.part").touch()
                    raise _KilledError
                photographs = [plant.photographs[0] for plant in part.values()]
                answers = [(self.photographs / each.path).read_text() for each in photographs]
                rows = [
                    failed(plant, [Failure("", "")] * (answer == "bad")) | {"reason": answer}
                    for plant, answer in zip(part.values(), answers, strict=True)
                ]
                for row in rows:
                    row["status"] = "failed" if row["num_failed"] else "ok"
                    on_row(row)
                plants = [(each.path, int(each.version)) for each in photographs]
                self.answered += plants
                name = f"{hashlib.sha256(''.join(part).encode()).hexdigest()[:32]}.parquet"
                self.frozen.append((name, dict(zip(plants, answers, strict=True)), partial(files.write, part, rows)))
                self.thaw(len(self.frozen) - 1)
                on_part()

        yield SimpleNamespace(write=write)


def test_whatever_came_between_the_same_command_completes_the_run(bundle_folder):
    # Fifteen steps can be read as they are; to shrink them takes minutes.
    few = settings(max_examples=20, stateful_step_count=15, phases=[Phase.generate])
    run_state_machine_as_test(lambda: ContinuedRuns(bundle_folder), settings=few)


def test_a_run_whose_parts_are_removed_writes_no_table(identify, out, monkeypatch):
    monkeypatch.setattr(PartFiles, "write", lambda *_: None)
    with pytest.raises(InputError, match="removed during the run"):
        identify()
    assert not (out / "results.parquet").exists()


def test_results_among_the_photographs_are_no_photographs(identify, photographs, monkeypatch):
    monkeypatch.chdir(photographs)
    draw_photographs(photographs, {"names/no.jpg": RED, "deep/names/yes.jpg": RED})
    for _ in range(2):
        assert identify(".", photographs / "names") == Outcome.COMPLETE
    assert len(parts(photographs / "names")) == 1
    assert rows_of(photographs / "names").keys() == COLORS.keys() | {"deep/names/yes.jpg"}


def rewrite(file, content):
    """Replaces the content of a file, and keeps its time."""
    times = file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_plant_of_which_one_photograph_failed_is_tried_again(identify, photographs, out):
    file = photographs / "deep" / "d.jpg"
    rewrite(file, bytes(len(jpeg(BLUE))))
    assert identify(group_by="folder") == Outcome.COMPLETE
    assert (rows_of(out)["deep"]["status"], rows_of(out)["deep"]["num_failed"]) == ("ok", 1)
    rewrite(file, jpeg(BLUE))
    assert identify(retry_failed=True, group_by="folder") == Outcome.COMPLETE
    assert rows_of(out)["deep"]["num_failed"] == 0


def test_other_options_and_bundles_cannot_continue(identify, sealed, out):
    identify()
    with pytest.raises(InputError, match=r"changed: k \(5 before\); .*remove the results"):
        identify(k=2)
    with pytest.raises(InputError, match=r"bundle \(tiny 0.0.1 with the hash [0-9a-f]{8} before\)"):
        identify(bundle=sealed("0.0.2"))
    assert len(rows_of(out)) == 5
    shutil.rmtree(out)
    assert identify(k=2) == Outcome.COMPLETE
    assert "name_3" not in next(iter(rows_of(out).values()))


def test_a_run_that_an_older_version_began_is_refused_and_left_as_it_is(identify, out):
    identify()
    record = written(out)
    del record["format"]
    (out / "run.json").write_text(json.dumps(record))
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(InputError, match=r"another version .*got format 1; expected format 3.*another --out"):
        identify()
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


@pytest.mark.parametrize("content", [b"x", b"", b"\x1f\x8b\x08\x00" + bytes(20)])
def test_damaged_results_are_one_error_and_a_damaged_part_can_be_removed(identify, out, content):
    identify()
    (part,) = out.glob("parts/*")
    part.write_bytes(content)
    with pytest.raises(DataError, match=rf"parts/{part.name} of the results is damaged .*: remove this file, and run"):
        identify()
    part.unlink()
    assert identify() == Outcome.COMPLETE


@pytest.mark.parametrize(
    "wrong", [{"taxa": ("Roza",)}, {"taxa": ("list:gone",)}, {"precision": "int8"}, {"list": "gone.csv"}]
)
def test_a_mistake_does_not_start_a_run(identify, wrong, tmp_path):
    paths = {name: tmp_path / value for name, value in wrong.items() if name == "list"}
    with pytest.raises(InputError, match=r"^(?!.*another run)"):
        identify(**wrong | paths)
    assert identify(taxa=("Rosa",)) == Outcome.COMPLETE


def test_another_root_cannot_continue(identify, photographs, tmp_path, monkeypatch):
    identify()
    with pytest.raises(InputError, match=rf"changed: photographs \({photographs} before\)"):
        identify(draw_photographs(tmp_path / "others", {"a.jpg": BLUE}))
    monkeypatch.chdir(photographs)
    assert identify("../photographs/.") == Outcome.COMPLETE


def test_the_precision_of_the_device_and_the_names_in_a_list_are_options(identify, out, tmp_path):
    lists = tmp_path / "lists"
    lists.mkdir()
    (lists / "garden.txt").write_text("Rosa\n")
    flags = {"taxa": ("list:garden",), "taxa_lists": lists}
    identify(**flags)
    options = written(out)["options"]
    assert (options["precision"], list(options["taxa_lists"])) == ("fp32", ["garden"])
    (lists / "garden.txt").write_text("# mine\nRosa\n")
    (lists / "other.txt").write_text("Bellis\n")
    assert identify(precision="fp32", **flags) == Outcome.COMPLETE
    (lists / "garden.txt").write_text("Bellis\n")
    with pytest.raises(InputError, match="changed: taxa_lists"):
        identify(**flags)
