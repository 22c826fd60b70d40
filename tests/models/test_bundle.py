"""A sealed bundle is read as it was written; every change to it after that is detected and named."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE, TAXA_FILE, file_sha256, load_bundle
from models.bundle_record import Check, FailedNetwork, Metric, NetworkFile
from models.calibration import (
    CALIBRATION_FILE,
    CALIBRATION_PART,
    Calibration,
    Cutoffs,
    FeatureTable,
    LogisticHead,
    write_calibration,
)
from models.errors import BundleError
from models.ranking import Thresholds
from tests.make import from_table
from tests.models.tiny import (
    NETWORK,
    SIDE_PX,
    TAXONOMY,
    bundle_record,
    conformal_table,
    seal_tiny,
    write_network,
)


def edit(path, change):
    """Rewrites a JSON file by a function that changes its content in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def merge(patch):
    """A change of JSON by a merge patch (RFC 7396): null removes a field."""

    def change(content):
        for name, value in patch.items():
            if isinstance(value, dict) and value:
                merge(value)(content.setdefault(name, {}))
            elif value is None:
                content.pop(name)
            else:
                content[name] = value

    return change


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
    left_out = FailedNetwork((speed,), (Metric("top1_taxon", 0.7, "drawn", 10, (0.4, 0.9)),), note="Calibrated on ten.")
    bundle = seal_tiny(tmp_path / "tiny", network_file, record=bundle_record(left_out={"fp16": left_out}))
    assert load_bundle(bundle.folder).record.left_out == {"fp16": left_out}
    assert set(bundle.record.networks) == {"fp32"}


def test_each_precision_answers_with_the_look_alikes_of_the_bundle(tmp_path, network_file):
    given = {"rosa-canina": ("crocus", "bellis-perennis"), "crocus": ("rosa-canina",)}
    networks = {precision: NetworkFile(NETWORK, temperature=1.0) for precision in ("fp32", "bf16")}
    bundle = seal_tiny(tmp_path / "tiny", network_file, record=bundle_record(networks=networks, look_alikes=given))
    assert bundle.record.look_alikes == given
    for precision in networks:
        assert bundle.answer_model(precision).look_alikes == {0: (2, 1), 2: (0,)}


def test_missing_precision_is_named(sealed):
    with pytest.raises(BundleError, match=r"no network of that precision \(got fp16; expected fp32\): .*export"):
        load_bundle(sealed).network("fp16")


# ---- unknown parts


def add_part(folder):
    (folder / "ranges.json").write_text("{}")
    edit(folder / BUNDLE_FILE, lambda record: record.update(parts={"ranges": "ranges.json"}))
    rehash(folder, "ranges.json")


def test_unknown_part_is_ignored_with_a_warning(sealed):
    add_part(sealed)
    bundle = load_bundle(sealed)
    assert bundle.warnings == ("This version does not know the bundle part 'ranges' and ignores it.",)
    assert bundle.taxonomy == TAXONOMY


def test_unknown_part_is_verified_too(sealed):
    add_part(sealed)
    (sealed / "ranges.json").write_text("[]")
    assert "SHA-256 of ranges.json differs" in refusal(sealed)


def rehash(folder, *names):
    """Writes the hashes of changed files into the record."""
    edit(
        folder / BUNDLE_FILE,
        lambda record: record["files"].update({name: file_sha256(folder / name) for name in names}),
    )


def edit_and_rehash(folder, change):
    edit(folder / TAXA_FILE, change)
    rehash(folder, TAXA_FILE)


@pytest.mark.parametrize("name", [NETWORK, TAXA_FILE])
@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_one_changed_byte_is_found(sealed, name, place):
    content = bytearray((sealed / name).read_bytes())
    content[int(place * len(content)) if place >= 0 else -1] ^= 1
    (sealed / name).write_bytes(content)
    assert f"SHA-256 of {name} differs" in refusal(sealed)


@pytest.mark.parametrize("change", [lambda path: path.write_text("Any use."), lambda path: path.unlink()])
def test_file_that_no_program_reads_is_verified_too(tmp_path, network_file, change):
    card = tmp_path / "card.md"
    card.write_text("Not for commercial use.")
    folder = seal_tiny(tmp_path / "tiny", network_file, more_files={"MODEL_CARD.md": card}).folder
    change(folder / "MODEL_CARD.md")
    assert "MODEL_CARD.md" in refusal(folder)


@pytest.mark.parametrize("name", [NETWORK, TAXA_FILE, BUNDLE_FILE])
def test_missing_file_is_named(sealed, name):
    (sealed / name).unlink()
    assert name in refusal(sealed)


def test_damaged_record_raises_nothing_but_bundle_errors(sealed):
    path = sealed / BUNDLE_FILE
    sound = path.read_bytes()
    generator = np.random.default_rng(5)
    refused = 0
    for place in generator.choice(len(sound), 150, replace=False):
        changed = bytearray(sound)
        changed[place] ^= int(generator.integers(1, 256))
        path.write_bytes(changed)
        try:
            load_bundle(sealed)
        except BundleError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"{}", b"\xff\xfe", b"PK\3\4"])
def test_file_that_is_not_a_record_is_refused(sealed, content):
    (sealed / BUNDLE_FILE).write_bytes(content)
    assert f"{BUNDLE_FILE} is not a bundle record" in refusal(sealed)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs /proc/self/mem, which not even root can read")
@pytest.mark.parametrize("name", [NETWORK, TAXA_FILE, BUNDLE_FILE])
def test_file_that_cannot_be_read_is_refused(sealed, name):
    (sealed / name).unlink()
    (sealed / name).symlink_to("/proc/self/mem")
    assert "cannot be read (got [Errno 5] Input/output error)" in refusal(sealed)


def test_links_in_a_circle_are_refused(tmp_path):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    told = refusal(tmp_path / "a")
    assert "cannot be read" in told or "is not a bundle" in told  # from Python 3.13 on


@pytest.mark.parametrize("depth", [100, 100_000])
def test_record_that_is_nested_too_deeply_is_refused(sealed, depth):
    path, key = sealed / BUNDLE_FILE, '"deep": ' + "[" * depth + "]" * depth
    path.write_text(path.read_text().replace("{", f"{{{key},", 1))
    if depth > 1_000:
        assert "nested too deeply" in refusal(sealed)
    else:
        load_bundle(sealed)


def test_missing_folder_is_named(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert "the folder is not a bundle" in message
    assert str(tmp_path / "nowhere") in message


@from_table
def test_value_out_of_its_range_is_refused(sealed, change):
    edit(sealed / BUNDLE_FILE, merge(change))
    assert f"{BUNDLE_FILE} cannot be read" in refusal(sealed)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (Calibration(conformal_table(np.ones((2, 2)), np.array([0, 1]), np.ones(2))), "number of taxa .*got 2"),
        (Calibration(conformal_mistaken=conformal_table(np.ones((2, 2)), np.array([0, 1]), np.ones(2))),
         "number of taxa .*got 2"),
        (Calibration(plant_head=LogisticHead(np.ones(7), 0.1, 0.2, 0.3)), "number of features .*got 7; expected 3"),
        (Calibration(known_head=LogisticHead(np.ones(7), 0.1, 0.2, 0.3)), "number of features .*got 7; expected 3"),
        (Calibration(features=FeatureTable(np.zeros(7), np.zeros((7, 2)), np.ones(2), np.eye(2), np.ones((1, 2)))),
         "number of features .*got 7; expected 3"),
        (Calibration(cutoffs=Cutoffs(plant=np.nan)), "cannot be read .*plant"),
    ],
    ids=["taxa", "mistaken taxa", "plant head", "known head", "features", "cutoff"],
)  # fmt: skip
def test_tables_that_do_not_fit_the_bundle_are_not_sealed(tmp_path, network_file, tables, message):
    write_calibration(tmp_path / CALIBRATION_FILE, {"fp32": tables})
    record = bundle_record(parts={CALIBRATION_PART: CALIBRATION_FILE})
    with pytest.raises(BundleError, match=message):
        seal_tiny(
            tmp_path / "tiny", network_file, record=record, more_files={CALIBRATION_FILE: tmp_path / CALIBRATION_FILE}
        )
    assert not (tmp_path / "tiny").exists()


def test_a_damaged_part_of_places_is_not_sealed(tmp_path, network_file):
    write_calibration(tmp_path / CALIBRATION_FILE, {"fp32": Calibration(cutoffs=Cutoffs())})
    (tmp_path / "place.npz").write_bytes(b"PK")
    record = bundle_record(parts={CALIBRATION_PART: CALIBRATION_FILE, "place": "place.npz"})
    files = {name: tmp_path / name for name in record.parts.values()}
    with pytest.raises(BundleError, match=r"place\.npz cannot be read"):
        seal_tiny(tmp_path / "tiny", network_file, record=record, more_files=files)


def test_taxa_that_are_not_text_are_refused(sealed):
    (sealed / TAXA_FILE).write_bytes(b'{"taxonomy_version": "\xff"}')
    rehash(sealed, TAXA_FILE)
    assert f"{TAXA_FILE} cannot be read" in refusal(sealed)


def test_contradicting_taxa_are_refused(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["taxa"].pop())
    assert re.search(r"the taxon of output .* is not listed", refusal(sealed))


@from_table
def test_record_that_contradicts_the_bundle_is_refused(sealed, change, message):
    edit(sealed / BUNDLE_FILE, merge(change))
    assert message in refusal(sealed)


def test_more_than_a_thousand_metrics_are_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record.update(metrics=record["metrics"] * 1_001))
    assert "array` of length <= 1000" in refusal(sealed)


def test_corrected_names_need_no_new_network(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["taxa"][0].update(scientific_name="Rosa nova"))
    bundle = load_bundle(sealed)
    assert bundle.taxonomy.taxa[0].scientific_name == "Rosa nova"
    assert bundle.open_session("fp32", num_threads=1).output_keys == TAXONOMY.output_keys


@pytest.mark.parametrize("is_listed", [True, False])
def test_network_with_weights_in_another_file_is_refused(sealed, is_listed):
    path = sealed / NETWORK
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=60, location="weights.bin")
    rehash(sealed, NETWORK, *["weights.bin"] * is_listed)
    assert f"{NETWORK} keeps weights in another file" in refusal(sealed)


def test_the_name_of_another_file_is_found_wherever_it_stands(sealed):
    (sealed / NETWORK).write_bytes(bytes(1_000_000 - 5) + b"\n\x08location\x12")  # across two reads
    rehash(sealed, NETWORK)
    assert "weights in another file" in refusal(sealed)


def test_network_of_other_outputs_is_refused_when_it_is_opened(tmp_path):
    network = write_network(tmp_path / NETWORK, keys=TAXONOMY.output_keys[::-1])
    bundle = seal_tiny(tmp_path / "tiny", network)
    with pytest.raises(
        BundleError, match=rf"{NETWORK} and {TAXA_FILE} name different outputs.*: export the bundle again"
    ):
        bundle.open_session("fp32", num_threads=1)
