import contextlib
import json
import os
import signal
import stat
from pathlib import Path

import pytest
import tyro
from msgspec.structs import replace

from models.bundle import load_bundle
from models.errors import BundleError, DataError
from tests.models.tiny import bundle_record, seal_tiny, write_network
from tests.training.color_bundles import good_weights, seal_color_bundle
from tests.training.small import require_one_line, start_program
from training.dataset.manifest import Manifest
from training.release import CURRENT, HISTORY_FILE, Command, Registry, entry_name, run


@pytest.fixture(scope="module")
def bundles(flowers, tmp_path_factory):
    """The folders of a bundle that confuses two flowers, of a good one, and of the good one with another version."""
    folder, good = tmp_path_factory.mktemp("bundles"), good_weights(Manifest(flowers))
    weights = {"1": good[:, [1, 0, 2]], "2": good, "3": good}
    return [
        seal_color_bundle(folder / version, flowers, version=version, weights=each).folder
        for version, each in weights.items()
    ]


@pytest.fixture
def current(tmp_path, bundles):
    """A registry whose current bundle confuses two flowers."""
    release("promote", bundles[0], tmp_path / "colors")
    return Registry(tmp_path / "colors")


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Three bundles that differ in their version."""
    base = tmp_path_factory.mktemp("versions")
    network = write_network(base / "network.onnx")
    return [seal_tiny(base / version, network, record=bundle_record(version=version)) for version in "123"]


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


def release(*arguments):
    """Runs a command; a comparison loads its pictures in this process."""
    words = [*arguments, *["--workers", 0] * ("--data" in arguments)]
    run(tyro.cli(Command, args=[str(word) for word in words]))


def served_version(registry):
    return load_bundle(registry.folder / CURRENT).record.version


def rollbacks(registry):
    """The versions to which rollbacks return, until no earlier bundle is left."""
    versions = []
    with contextlib.suppress(DataError):
        for _ in registry.history():
            registry.roll_back()
            versions.append(served_version(registry))
    return "".join(versions)


def promote(registry, bundle):
    return registry.promote(bundle, expected=registry.current)


def test_registry_from_first_promotion_to_rollback(bundles, flowers, tmp_path, capsys):
    registry, options = Registry(tmp_path / "registry"), ["--data", flowers]
    release("promote", bundles[0], registry.folder)
    release("promote", bundles[1], registry.folder, *options)
    first, change = registry.history()
    assert (change.before, change.after, served_version(registry)) == (first.after, registry.current, "2")
    facts = json.loads((registry.folder / change.report).read_text())
    assert (facts["old"], facts["new"], facts["refusals"]) == ("colors 1", "colors 2", [])
    with pytest.raises(BundleError, match="not promoted"):
        release("promote", bundles[0], registry.folder, *options)
    release("rollback", registry.folder)
    assert served_version(registry) == "1"
    capsys.readouterr()
    release("list", registry.folder)
    printed = capsys.readouterr().out
    assert printed.count("promote: ") == 2
    assert printed.count("rollback: ") == 1


def test_person_decides_where_a_loss_is_neither_proved_nor_excluded(current, bundles, flowers):
    options = [current.folder, "--data", flowers]
    release("promote", bundles[1], *options)
    with pytest.raises(BundleError, match="--accept-uncertain") as refused:
        release("promote", bundles[2], *options, "--accept-uncertain", " ")
    assert "micro top-1" in str(refused.value)
    assert "macro top-1" in str(refused.value)
    assert served_version(current) == "2"
    assert len(list(current.folder.glob("reports/*.json"))) == 2
    release("promote", bundles[2], *options, "--accept-uncertain", "daisies matter")
    assert served_version(current) == "3"
    assert [change.accepted for change in current.history()] == ["", "", "daisies matter"]


def test_comparison_tells_how_many_came_before_on_its_set(current, bundles, flowers, capsys):
    options = [current.folder, "--data", flowers]
    release("promote", bundles[1], *options)
    (first,) = current.folder.glob("reports/*.json")
    facts = json.loads(first.read_text())
    assert (facts["num_earlier"], facts["format"]) == (0, 3)
    assert "Comparison " not in capsys.readouterr().out
    old = {name: facts[name] for name in ("manifest_sha256", "data", "micro_top1", "refusals")} | {"format": 2}
    others = [{"data": "data, validation split"}, {"manifest_sha256": "0" * 64}, {"data": "moved, test split"}]
    for number, change in enumerate([{}, *others]):
        (first.parent / f"{number}.json").write_text(json.dumps(old | change))
    with pytest.raises(BundleError):
        release("promote", bundles[2], *options)
    (second,) = first.parent.glob("*colors-3*.json")
    assert json.loads(second.read_text())["num_earlier"] == 3
    assert "Comparison 4 on this split" in capsys.readouterr().out
    (first.parent / "0.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        release("promote", bundles[2], *options)


def test_proved_loss_stays_refused_whatever_the_person_says(current, bundles, flowers):
    options = [current.folder, "--data", flowers, "--accept-uncertain", "I like it"]
    release("promote", bundles[1], *options)
    with pytest.raises(BundleError) as refused:
        release("promote", bundles[0], *options)
    assert "--accept-uncertain" not in str(refused.value)
    assert served_version(current) == "2"
    assert {change.accepted for change in current.history()} == {""}


def test_comparison_needs_data_and_another_bundle(current, bundles):
    with pytest.raises(DataError, match="--data"):
        release("promote", bundles[1], current.folder)
    with pytest.raises(DataError, match="already names"):
        release("promote", bundles[0], current.folder)
    assert len(current.history()) == 1


def test_other_taxa_are_shown_with_the_figures(bundles, flowers, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    manifest, registry = Manifest(flowers), tmp_path / "registry"
    taxonomy = manifest.taxonomy
    other = replace(taxonomy.taxa[2], taxon_id="bellis-perennis", scientific_name="Bellis perennis")
    outputs = (*taxonomy.outputs[:2], replace(taxonomy.outputs[2], taxon_id=other.taxon_id))
    taxonomy = replace(taxonomy, taxa=(*taxonomy.taxa[:2], other), outputs=outputs)
    new = seal_color_bundle(tmp_path / "new", flowers, version="3", taxonomy=taxonomy).folder
    options = ["--data", flowers]
    release("promote", bundles[1], registry)
    with pytest.raises(BundleError, match="--accept-uncertain"):
        release("promote", new, registry, *options)
    printed = capsys.readouterr().out
    num_compared = len(manifest.rows_of("test")) - 10
    assert f"Compared on {num_compared} pictures of 2 taxa that both bundles know" in printed
    assert "New taxa (1): Bellis perennis." in printed
    assert "Gone taxa (1): " in printed
    assert "10 pictures were left out" in printed
    release("promote", new, registry, *options, "--accept-uncertain", "daisies matter")
    release("list", registry)
    assert "(accepted: daisies matter)" in capsys.readouterr().out


def test_a_damaged_bundle_does_not_hide_the_others(current, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    (current.folder / current.current / "taxa.json").write_text("{}")
    release("list", current.folder)
    printed = capsys.readouterr().out
    assert "damaged" in printed
    assert "SHA-256 of taxa.json differs" in printed
    assert "promote: none ->" in printed


@pytest.mark.parametrize("command", ["list", "rollback"])
def test_command_needs_a_registry(command, tmp_path):
    with pytest.raises(DataError, match="no registry"):
        release(command, tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
def test_refusal_is_one_line_and_an_exit_code(tmp_path):
    done = start_program("release.py", "rollback", tmp_path / "nothing")
    assert done.returncode == 1
    require_one_line(done.stderr, "bad_data")


def test_copy_is_on_the_disk_before_the_pointer_names_it(registry, versions, monkeypatch):
    synced, write_to_disk = [], os.fsync

    def fsync(descriptor):
        state = os.fstat(descriptor)
        synced.append((state.st_ino, state.st_size if stat.S_ISREG(state.st_mode) else None, registry.current))
        write_to_disk(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    entry = promote(registry, versions[0])
    for path in (registry.folder / entry).iterdir():
        assert (path.stat().st_ino, path.stat().st_size, None) in synced
    copy, folder = ((registry.folder / name).stat().st_ino for name in (entry, ""))
    assert (copy, None, None) in synced
    assert (folder, None, None) in synced  # the name of the copy
    assert synced[-1] == (folder, None, entry)  # the pointer


def test_rollbacks_go_back_through_every_promotion_of_a_bundle_that_was_promoted_twice(registry, versions):
    for bundle in (*versions, versions[1]):
        promote(registry, bundle)
    assert rollbacks(registry) == "321"
    for bundle in (versions[1], versions[0]):
        promote(registry, bundle)
    assert rollbacks(registry) == "21"


def test_promotion_is_refused_if_the_pointer_moved_since_the_comparison(registry, versions):
    promote(registry, versions[0])
    with pytest.raises(DataError, match="in the meantime"):
        registry.promote(versions[1], expected=None)
    assert served_version(registry) == "1"


def test_rollback_to_a_damaged_bundle_is_refused(registry, versions):
    first = promote(registry, versions[0])
    promote(registry, versions[1])
    network = registry.folder / first / "model.fp32.onnx"
    network.write_bytes(network.read_bytes()[:-1] + b"x")
    with pytest.raises(BundleError, match="SHA-256"):
        registry.roll_back()
    assert served_version(registry) == "2"


def test_bundle_that_changes_while_it_is_copied_is_refused(registry, versions, tmp_path):
    promote(registry, versions[0])
    network = versions[1].network_path("fp32")
    damaged = seal_tiny(tmp_path / "damaged", network, record=bundle_record(version="2"))
    (damaged.folder / "taxa.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"taxa\.json"):
        promote(registry, damaged)
    assert served_version(registry) == "1"
    promote(registry, versions[1])
    assert served_version(registry) == "2"
    assert not list(registry.folder.glob(".draft-*"))


def test_two_processes_do_not_change_the_registry_at_once(registry, versions):
    promote(registry, versions[0])
    with registry._locked(), pytest.raises(DataError, match="another process"):
        promote(registry, versions[1])
    promote(registry, versions[1])


@pytest.mark.parametrize("target", ["../elsewhere", "/tmp", None])
def test_pointer_out_of_the_registry_is_refused(registry, target):
    registry.folder.mkdir()
    pointer = registry.folder / CURRENT
    pointer.symlink_to(target) if target else pointer.mkdir()
    with pytest.raises(DataError, match="not the pointer"):
        _ = registry.current


def test_name_of_an_entry_is_a_plain_folder_name(versions, tmp_path):
    odd = bundle_record(name="../a b/ö", version="1 & 2")
    bundle = seal_tiny(tmp_path / "odd", versions[0].network_path("fp32"), record=odd)
    assert entry_name(bundle).startswith("a-b-1-2-")


def test_damaged_history_is_an_error(registry):
    registry.folder.mkdir()
    (registry.folder / HISTORY_FILE).write_text('{"time":')
    with pytest.raises(DataError, match="cannot be read"):
        registry.history()


# Every operation that changes the disk. A crash is possible before each of them.
STEPS = [(os, "fsync"), (Path, "mkdir"), (Path, "rename"), (Path, "replace"), (Path, "symlink_to"), (Path, "unlink")]


def count_steps(monkeypatch, before_step):
    """Calls `before_step(number)` before each operation on the disk."""
    number = 0

    def counted(operation):
        def call(*arguments, **options):
            nonlocal number
            number += 1
            before_step(number)
            return operation(*arguments, **options)

        return call

    for owner, name in STEPS:
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))
    return lambda: number


def ends_before(change, at_step, how):
    """Makes a change that is killed, or fails, before a step; returns whether it ended before that step."""
    with pytest.MonkeyPatch.context() as patch:
        if how == "error":

            def fail(number):
                if number == at_step:
                    raise OSError(28, "No space left on device")

            num_steps = count_steps(patch, fail)
            with contextlib.suppress(OSError):
                change()
            return num_steps() < at_step
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                count_steps(patch, lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == at_step else None)
                change()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        return os.WIFEXITED(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("how", ["error", pytest.param("kill", marks=pytest.mark.slow)])
@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_an_end_at_any_moment_leaves_a_working_pointer(tmp_path, versions, action, how):
    new = {"promote": "3", "rollback": "1"}[action]
    outcomes = []
    step = 0
    ended = False
    while not ended:
        step += 1
        registry = Registry(tmp_path / f"{action}-{step}")
        for bundle in versions[:2]:
            promote(registry, bundle)

        def change(registry=registry):
            return promote(registry, versions[2]) if action == "promote" else registry.roll_back()

        ended = ends_before(change, step, how)
        outcomes.append(served_version(registry))
        if outcomes[-1] == "2":  # the old pointer works, and what was interrupted can be done again
            change()
        assert served_version(registry) == new
        assert rollbacks(registry) == {"promote": "21", "rollback": ""}[action]
    assert outcomes == sorted(outcomes, key=lambda version: version == new)  # the old one, then the new one
    assert set(outcomes) == {"2", new}
    assert len(outcomes) > 6


def test_a_change_removes_what_a_killed_one_left(tmp_path, versions):
    registry = Registry(tmp_path)
    (tmp_path / "reports").mkdir()
    for name in (".history.jsonl.1.part", "reports/.old.json.1.part", "reports/.young.json.1.part"):
        (tmp_path / name).touch()
    os.utime(tmp_path / "reports" / ".old.json.1.part", (0, 0))
    promote(registry, versions[0])
    assert [path.name for path in tmp_path.rglob("*.part")] == [".young.json.1.part"]
