"""Every change to a bundle after it was sealed is detected and named."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from models.bundle import (
    BUNDLE_FILE,
    TAXA_FILE,
    file_sha256,
    load_bundle,
)
from models.calibration import (
    CALIBRATION_FILE,
    CALIBRATION_PART,
    Calibration,
    Cutoffs,
    FeatureTable,
    PlantHead,
    write_calibration,
)
from models.errors import BundleError
from tests.models.test_bundle import edit, refusal
from tests.models.tiny import (
    NETWORK,
    TAXONOMY,
    bundle_record,
    conformal_table,
    seal_tiny,
    write_network,
)


def edit_and_rehash(folder, change):
    """Changes `taxa.json` and updates its hash."""
    edit(folder / TAXA_FILE, change)
    edit(folder / BUNDLE_FILE, lambda record: record["files"].update({TAXA_FILE: file_sha256(folder / TAXA_FILE)}))


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
    assert "cannot be read" in refusal(tmp_path / "a")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("depth", [100, 2_000, 100_000])
def test_record_that_is_nested_too_deeply_is_refused(sealed, version, depth):
    path, key = sealed / BUNDLE_FILE, '"deep": ' + "[" * depth + "]" * depth
    path.write_text(
        path.read_text().replace("{", f"{{{key},", 1).replace('"format_version": 2', f'"format_version": {version}')
    )
    if depth > 1_000:
        assert "nested too deeply" in refusal(sealed)
    else:
        load_bundle(sealed)


def test_missing_folder_is_named(tmp_path):
    message = refusal(tmp_path / "nowhere")
    assert "the folder is not a bundle" in message
    assert str(tmp_path / "nowhere") in message


def test_file_in_place_of_the_folder_is_refused(network_file):
    assert "the folder is not a bundle" in refusal(network_file)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["networks"]["fp32"].update(temperature=0.0),
        lambda record: record["networks"]["fp32"].update(temperature=None),
        lambda record: record["networks"]["fp32"].update(temperature=1e-300),
        lambda record: record["networks"]["fp32"].update(temperature=1e300),
        lambda record: record["networks"].update(fp8=record["networks"]["fp32"]),
        lambda record: record["networks"]["fp32"]["thresholds"].update(species=1.5),
        lambda record: record["input"].update(height=0),
        lambda record: record["input"].update(heigth=380),
        lambda record: record["networks"]["fp32"]["thresholds"].update(order=0.5),
        lambda record: record.update(manifest_sha256="abc"),
        lambda record: record["input"].update(std=[0.2, 0.0, 0.2]),
        lambda record: record.update(label_hash="abc"),
        lambda record: record.pop("name"),
    ],
)
def test_value_out_of_its_range_is_refused(sealed, change):
    edit(sealed / BUNDLE_FILE, change)
    assert f"{BUNDLE_FILE} cannot be read" in refusal(sealed)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (Calibration(conformal_table(np.ones((2, 2)), np.array([0, 1]), np.ones(2))), "number of taxa .*got 2"),
        (Calibration(plant_head=PlantHead(np.ones(7), 0.1, 0.2, 0.3)), "number of features .*got 7; expected 3"),
        (Calibration(features=FeatureTable(np.zeros(7), np.zeros((7, 2)), np.ones(2), np.eye(2), np.ones((1, 2)))),
         "number of features .*got 7; expected 3"),
        (Calibration(cutoffs=Cutoffs(plant=np.nan)), "cannot be read .*plant"),
    ],
    ids=["taxa", "plant head", "features", "cutoff"],
)  # fmt: skip
def test_tables_that_do_not_fit_the_bundle_are_not_sealed(tmp_path, network_file, tables, message):
    write_calibration(tmp_path / CALIBRATION_FILE, {"fp32": tables})
    record = bundle_record(parts={CALIBRATION_PART: CALIBRATION_FILE})
    with pytest.raises(BundleError, match=message):
        seal_tiny(
            tmp_path / "tiny", network_file, record=record, more_files={CALIBRATION_FILE: tmp_path / CALIBRATION_FILE}
        )
    assert not (tmp_path / "tiny").exists()


def test_taxa_that_are_not_text_are_refused(sealed):
    (sealed / TAXA_FILE).write_bytes(b'{"taxonomy_version": "\xff"}')
    edit(sealed / BUNDLE_FILE, lambda record: record["files"].update({TAXA_FILE: file_sha256(sealed / TAXA_FILE)}))
    assert f"{TAXA_FILE} cannot be read" in refusal(sealed)


def test_unknown_field_of_the_taxa_is_refused(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["taxa"][0].update(comon_names=["rose"]))
    message = refusal(sealed)
    assert f"{TAXA_FILE} cannot be read" in message
    assert "comon_names" in message


def test_contradicting_taxa_are_refused(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["taxa"].pop())
    assert re.search(r"the taxon of output .* is not listed", refusal(sealed))


def test_wrong_label_hash_is_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record.update(label_hash="0" * 64))
    assert f"the label hash differs between {BUNDLE_FILE} and {TAXA_FILE}" in refusal(sealed)


def test_reordered_outputs_are_refused(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["outputs"].reverse())
    assert "the label hash differs" in refusal(sealed)


def test_corrected_names_need_no_new_network(sealed):
    edit_and_rehash(sealed, lambda taxa: taxa["taxa"][0].update(scientific_name="Rosa nova"))
    bundle = load_bundle(sealed)
    assert bundle.taxonomy.taxa[0].scientific_name == "Rosa nova"
    assert bundle.open_session("fp32", num_threads=1).output_keys == TAXONOMY.output_keys


def test_wrong_number_of_outputs_is_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record["architecture"].update(num_outputs=5))
    message = refusal(sealed)
    assert f"the number of outputs differs between {BUNDLE_FILE} and {TAXA_FILE} (got 4; expected 5)" in message


def test_file_without_a_hash_is_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record["files"].pop(NETWORK))
    assert f"has no hash for {NETWORK}" in refusal(sealed)


def test_bundle_without_a_network_is_refused(sealed):
    edit(sealed / BUNDLE_FILE, lambda record: record.update(networks={}))
    assert "the bundle has no network" in refusal(sealed)


@pytest.mark.parametrize("is_listed", [True, False])
def test_network_with_weights_in_another_file_is_refused(sealed, is_listed):
    path = sealed / NETWORK
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=60, location="weights.bin")
    names = [NETWORK, "weights.bin"] if is_listed else [NETWORK]
    edit(
        sealed / BUNDLE_FILE,
        lambda record: record["files"].update({name: file_sha256(sealed / name) for name in names}),
    )
    assert f"{NETWORK} keeps weights in another file" in refusal(sealed)


def test_network_of_other_outputs_is_refused_when_it_is_opened(tmp_path):
    network = write_network(tmp_path / NETWORK, keys=TAXONOMY.output_keys[::-1])
    bundle = seal_tiny(tmp_path / "tiny", network)
    with pytest.raises(
        BundleError, match=rf"{NETWORK} and {TAXA_FILE} name different outputs.*: export the bundle again"
    ):
        bundle.open_session("fp32", num_threads=1)
