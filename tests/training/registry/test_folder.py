import contextlib
import os
import signal
import stat
from pathlib import Path

import pytest

from models.bundle import load_bundle
from models.errors import BundleError, DataError
from tests.models.tiny import bundle_record, seal_tiny, write_network
from training.registry import folder as registry_folder
from training.registry.folder import CURRENT, Registry, entry_name
from training.registry.history import entries_in_use, read_history


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    """Three bundles that differ in their version."""
    base = tmp_path_factory.mktemp("versions")
    network = write_network(base / "network.onnx")
    return [seal_tiny(base / version, network, record=bundle_record(version=version)) for version in "123"]


@pytest.fixture
def registry(tmp_path):
    return Registry(tmp_path / "registry")


def served_version(registry):
    return load_bundle(registry.folder / CURRENT).record.version


def promote(registry, bundle):
    return registry.promote(bundle, expected=registry.current)


def test_promotion_copies_the_bundle_and_moves_the_pointer(registry, versions):
    assert registry.current is None
    entry = promote(registry, versions[0])
    assert entry.startswith("tiny-1-")
    assert registry.entries() == [entry] == [registry.current]
    assert served_version(registry) == "1"
    promote(registry, versions[1])
    assert served_version(registry) == "2"
    assert len(registry.entries()) == 2


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


def test_pointer_is_relative_so_that_the_registry_can_be_moved(registry, versions, tmp_path):
    promote(registry, versions[0])
    registry.folder.rename(tmp_path / "elsewhere")
    assert served_version(Registry(tmp_path / "elsewhere")) == "1"


def test_each_rollback_goes_one_step_back(registry, versions):
    first, second, third = (promote(registry, bundle) for bundle in versions)
    assert registry.roll_back() == (third, second)
    assert registry.roll_back() == (second, first)
    assert served_version(registry) == "1"
    with pytest.raises(DataError, match="no earlier bundle"):
        registry.roll_back()
    assert len(read_history(registry.folder)) == 5


def test_rollback_after_a_promotion_that_followed_a_rollback(registry, versions):
    first, second = (promote(registry, bundle) for bundle in versions[:2])
    registry.roll_back()
    third = promote(registry, versions[2])
    assert registry.roll_back() == (third, first)
    assert promote(registry, versions[1]) == second


def test_current_bundle_is_not_promoted_again(registry, versions):
    promote(registry, versions[0])
    with pytest.raises(DataError, match="already names"):
        promote(registry, versions[0])
    assert len(read_history(registry.folder)) == 1


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


def test_bundle_that_changes_while_it_is_copied_is_refused(registry, versions, monkeypatch):
    promote(registry, versions[0])
    copy = registry_folder._copy

    def copy_damaged(bundle, target):
        copy(bundle, target)
        (target / "taxa.json").write_bytes(b"{}")

    monkeypatch.setattr(registry_folder, "_copy", copy_damaged)
    with pytest.raises(BundleError, match=r"taxa\.json"):
        promote(registry, versions[1])
    assert served_version(registry) == "1"
    monkeypatch.undo()
    promote(registry, versions[1])
    assert served_version(registry) == "2"
    assert not list(registry.folder.glob(".draft-*"))


def test_two_processes_do_not_change_the_registry_at_once(registry, versions):
    promote(registry, versions[0])
    with registry._locked(), pytest.raises(DataError, match="another process"):
        promote(registry, versions[1])
    promote(registry, versions[1])


@pytest.mark.parametrize("target", ["../elsewhere", "/tmp"])
def test_pointer_out_of_the_registry_is_refused(registry, versions, target):
    promote(registry, versions[0])
    (registry.folder / CURRENT).unlink()
    (registry.folder / CURRENT).symlink_to(target)
    with pytest.raises(DataError, match="not the pointer"):
        _ = registry.current


def test_folder_in_place_of_the_pointer_is_refused(registry):
    (registry.folder / CURRENT).mkdir(parents=True)
    with pytest.raises(DataError, match="not the pointer"):
        _ = registry.current


def test_rollback_needs_a_registry(registry):
    with pytest.raises(DataError, match="no registry"):
        registry.roll_back()
    assert not registry.folder.exists()


def test_name_of_an_entry_is_a_plain_folder_name(versions, tmp_path):
    odd = bundle_record(name="../a b/ö", version="1 & 2")
    bundle = seal_tiny(tmp_path / "odd", versions[0].network_path("fp32"), record=odd)
    assert entry_name(bundle).startswith("a-b-1-2-")


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


def run_and_kill(change, at_step):
    """Runs a change in a child process that is killed before a step; returns whether it ended before that step."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            with pytest.MonkeyPatch.context() as patch:
                count_steps(patch, lambda number: os.kill(os.getpid(), signal.SIGKILL) if number == at_step else None)
                change()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFEXITED(status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("action", ["promote", "rollback"])
@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_working_pointer(tmp_path, versions, action):
    outcomes, step, ended = [], 0, False
    while not ended:
        step += 1
        registry = Registry(tmp_path / f"{action}-{step}")
        first, second = (promote(registry, bundle) for bundle in versions[:2])

        def change(registry=registry):
            return promote(registry, versions[2]) if action == "promote" else registry.roll_back()

        ended = run_and_kill(change, step)
        outcomes.append(served_version(registry))
        if outcomes[-1] == "2":  # the old pointer works, and what was interrupted can be done again
            assert entries_in_use(read_history(registry.folder), registry.current) == [first, second]
            change()
        after = {"promote": [first, second, entry_name(versions[2])], "rollback": [first]}[action]
        assert entries_in_use(read_history(registry.folder), registry.current) == after
    new = {"promote": "3", "rollback": "1"}[action]
    assert outcomes == sorted(outcomes, key=lambda version: version == new)  # the old one, then the new one
    assert set(outcomes) == {"2", new}
    assert len(outcomes) > 6


@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_error_at_any_moment_leaves_a_working_pointer(tmp_path, versions, action, monkeypatch):
    step, failed = 0, True
    while failed:
        step += 1
        registry = Registry(tmp_path / f"{action}-{step}")
        entries = [promote(registry, bundle) for bundle in versions[:2]]

        def fail(number, step=step):
            if number == step:
                raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            num_steps = count_steps(patch, fail)
            with contextlib.suppress(OSError):
                promote(registry, versions[2]) if action == "promote" else registry.roll_back()
            failed = num_steps() >= step
        in_use = entries_in_use(read_history(registry.folder), registry.current)
        assert in_use[0] == entries[0]
        assert in_use[-1] == registry.current
        assert served_version(registry) in "123"
