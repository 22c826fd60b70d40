"""A sealed bundle is read as it was written, and unknown parts are ignored with a warning."""

import json
import shutil

import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE, TAXA_FILE, file_sha256, load_bundle
from models.bundle_record import Check, LeftOut, Metric, NetworkFile
from models.errors import BundleError
from models.ranking import Thresholds
from tests.models.tiny import (
    NETWORK,
    SIDE_PX,
    TAXONOMY,
    bundle_record,
    seal_tiny,
)


def edit(path, change):
    """Rewrites a JSON file by a function that changes its content in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refusal(folder):
    """The message with which a bundle is refused; it ends in a remedy."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert any(word in message.rpartition(": ")[2] for word in ("export", "fetch", "name the folder")), message
    return message


# ---- a valid bundle


def test_sealed_bundle_is_what_was_given(tmp_path, network_file):
    record = bundle_record(description="Tells colors apart.", trained_on="nothing")
    bundle = seal_tiny(tmp_path / "new" / "tiny", network_file, record=record)
    assert bundle.folder == tmp_path / "new" / "tiny"
    assert bundle.taxonomy == TAXONOMY
    assert set(bundle.record.files) == {NETWORK, TAXA_FILE}
    assert replace(bundle.record, files={}) == record
    assert load_bundle(bundle.folder).record == bundle.record
    assert sorted(path.name for path in bundle.folder.iterdir()) == [BUNDLE_FILE, NETWORK, TAXA_FILE]
    assert (bundle.folder / NETWORK).read_bytes() == network_file.read_bytes()


def test_link_that_moves_while_the_bundle_is_read_is_followed_once(tmp_path, network_file, monkeypatch):
    folders = [seal_tiny(tmp_path / name, network_file, record=bundle_record(version=name)).folder for name in "12"]
    link = tmp_path / "current"
    link.symlink_to("1")

    def move_the_link(path):
        link.unlink()
        link.symlink_to("2")
        monkeypatch.undo()
        return file_sha256(path)

    monkeypatch.setattr("models.bundle.file_sha256", move_the_link)
    bundle = load_bundle(link)
    assert (bundle.record.version, bundle.folder) == ("1", folders[0])
    assert bundle.network_path("fp32").parent == folders[0]
    assert load_bundle(link).folder == folders[1]


def test_sealing_leaves_nothing_beside_the_bundle(tmp_path, network_file):
    seal_tiny(tmp_path / "tiny", network_file)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_hashes_are_those_that_sha256sum_gives(sealed):
    (sealed / "abc").write_bytes(b"abc")
    assert file_sha256(sealed / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    files = json.loads((sealed / BUNDLE_FILE).read_text())["files"]
    assert files[NETWORK] == file_sha256(sealed / NETWORK)


def test_moved_bundle_still_loads(sealed, tmp_path):
    shutil.copytree(sealed, tmp_path / "elsewhere")
    shutil.rmtree(sealed)
    assert load_bundle(tmp_path / "elsewhere").taxonomy == TAXONOMY


def test_bundle_opens_its_network(sealed):
    session = load_bundle(sealed).open_session("fp32", num_threads=1)
    output = session.run(np.zeros((3, 3, SIDE_PX, SIDE_PX), dtype=np.float32))
    assert (output.logits.shape, output.features.shape) == ((3, 4), (3, 3))


def test_each_precision_has_its_own_temperature(tmp_path, network_file):
    half = NetworkFile("model.fp16.onnx", temperature=0.8, thresholds=Thresholds(species=0.7), stored_as="float16")
    record = bundle_record(networks={"fp32": NetworkFile(NETWORK, temperature=0.9), "fp16": half})
    bundle = seal_tiny(tmp_path / "tiny", network_file, record=record, more_files={"model.fp16.onnx": network_file})
    assert bundle.network("fp16") == half
    assert bundle.network("fp32").temperature == 0.9
    assert bundle.open_session("fp16", num_threads=1).output_keys == TAXONOMY.output_keys


def test_figures_of_a_precision_that_was_left_out_are_kept(tmp_path, network_file):
    speed = Check("speed", value=1.1, limit=1.25, passed=False, num_pictures=40, at_least=True)
    left_out = LeftOut((speed,), (Metric("top1_taxon", 0.7, "drawn", 10, (0.4, 0.9)),), note="Calibrated on ten.")
    bundle = seal_tiny(tmp_path / "tiny", network_file, record=bundle_record(left_out={"int8": left_out}))
    assert load_bundle(bundle.folder).record.left_out == {"int8": left_out}
    assert set(bundle.record.networks) == {"fp32"}


def test_precision_both_released_and_left_out_is_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record.update(left_out={"fp32": {"checks": []}}))
    assert "a precision is both released and left out (got fp32)" in refusal(sealed)


def test_missing_precision_is_named(sealed):
    with pytest.raises(BundleError, match=r"no network of that precision \(got int8; expected fp32\): .*export"):
        load_bundle(sealed).network("int8")


# ---- unknown parts


def add_part(folder, name="ranges", file="ranges.json"):
    (folder / file).write_text("{}")

    def change(record):
        record["parts"] = {name: file}
        record["files"][file] = file_sha256(folder / file)

    edit(folder / BUNDLE_FILE, change)


def test_unknown_part_is_ignored_with_a_warning(sealed):
    add_part(sealed)
    bundle = load_bundle(sealed)
    assert bundle.warnings == ("This version does not know the bundle part 'ranges' and ignores it.",)
    assert bundle.taxonomy == TAXONOMY


def test_unknown_part_is_verified_too(sealed):
    add_part(sealed)
    (sealed / "ranges.json").write_text("[]")
    assert "SHA-256 of ranges.json differs" in refusal(sealed)


def test_bundle_without_parts_gives_no_warning(sealed):
    assert load_bundle(sealed).warnings == ()
