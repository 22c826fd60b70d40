"""A bundle is written atomically, and every later change to it is detected and named."""

import json
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle import (
    BUNDLE_FILE,
    TAXA_FILE,
    Architecture,
    Check,
    LeftOut,
    Metric,
    NetworkFile,
    file_sha256,
    load_bundle,
)
from models.errors import BundleError, InputError
from models.preprocess import InputSpec
from models.verdict import Thresholds
from tests.models.tiny import (
    DAISY,
    NETWORK,
    SIDE_PX,
    TAXONOMY,
    bundle_record,
    seal_tiny,
    species,
    taxonomy_of,
    write_network,
)


def edit(path, change):
    """Rewrites a JSON file by a function that changes its content in place."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_and_rehash(folder, change):
    """Changes `taxa.json` and updates its hash."""
    edit(folder / TAXA_FILE, change)
    edit(folder / BUNDLE_FILE, lambda record: record["files"].update({TAXA_FILE: file_sha256(folder / TAXA_FILE)}))


def refusal(folder):
    """The message with which a bundle is refused; it ends in a remedy."""
    with pytest.raises(BundleError) as caught:
        load_bundle(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert any(word in message.rpartition(": ")[2] for word in ("export", "fetch", "name the folder")), message
    return message


def nothing_is_left_in(folder):
    return list(folder.iterdir()) == []


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


# ---- changed after sealing


@pytest.mark.parametrize("name", [NETWORK, TAXA_FILE])
@pytest.mark.parametrize("place", [0, 0.5, -1])
def test_one_changed_byte_is_found(sealed, name, place):
    content = bytearray((sealed / name).read_bytes())
    content[int(place * len(content)) if place >= 0 else -1] ^= 1
    (sealed / name).write_bytes(content)
    assert f"SHA-256 of {name} differs" in refusal(sealed)


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


def test_network_of_other_outputs_is_refused_when_it_is_opened(tmp_path):
    network = write_network(tmp_path / NETWORK, keys=TAXONOMY.output_keys[::-1])
    bundle = seal_tiny(tmp_path / "tiny", network)
    with pytest.raises(
        BundleError, match=rf"{NETWORK} and {TAXA_FILE} name different outputs.*: export the bundle again"
    ):
        bundle.open_session("fp32", num_threads=1)


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


# ---- paths in file names

TRAVERSALS = ["../secret", "a/b", "..", ".hidden", "", "a\\b", "nul\0"]


@pytest.mark.parametrize("name", [*TRAVERSALS, "/dev/null"])
@pytest.mark.parametrize("where", ["network", "part", "hash"])
def test_file_name_of_a_record_cannot_be_a_path(sealed, name, where):
    (sealed.parent / "secret").write_text("secret")

    def change(record):
        if where == "network":
            record["networks"]["fp32"]["file"] = name
        elif where == "part":
            record["parts"] = {"ranges": name}
        else:
            record["files"][name] = "0" * 64

    edit(sealed / BUNDLE_FILE, change)
    assert f"{BUNDLE_FILE} cannot be read" in refusal(sealed)


@pytest.mark.parametrize("name", [*TRAVERSALS, "../../secret", BUNDLE_FILE, TAXA_FILE])
def test_sealing_writes_only_inside_the_folder(tmp_path, network_file, name):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(BundleError, match=r"in a bundle cannot have that name.*: rename it"):
        seal_tiny(place / "tiny", network_file, more_files={name: network_file})
    assert nothing_is_left_in(place)
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


def test_sealing_writes_to_no_absolute_path(tmp_path, network_file):
    elsewhere = tmp_path / "elsewhere"
    with pytest.raises(BundleError, match="in a bundle cannot have that name"):
        seal_tiny(tmp_path / "tiny", network_file, more_files={str(elsewhere): network_file})
    assert nothing_is_left_in(tmp_path)


# ---- sealing that fails


def test_existing_folder_is_not_overwritten(sealed, network_file):
    before = {path.name: path.read_bytes() for path in sealed.iterdir()}
    with pytest.raises(BundleError, match=r"immutable, and its folder already exists .*tiny\): choose a new folder"):
        seal_tiny(sealed, network_file, record=bundle_record(name="other"))
    assert {path.name: path.read_bytes() for path in sealed.iterdir()} == before
    assert [path.name for path in sealed.parent.iterdir()] == ["tiny"]


def test_empty_folder_counts_as_existing(tmp_path, network_file):
    (tmp_path / "tiny").mkdir()
    with pytest.raises(BundleError, match="already exists"):
        seal_tiny(tmp_path / "tiny", network_file)
    assert nothing_is_left_in(tmp_path / "tiny")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"label_hash": "0" * 64}, "label hash"),
        ({"architecture": Architecture("tiny", num_outputs=5, num_features=3, num_parameters=12)}, "number of outputs"),
        ({"networks": {"fp32": NetworkFile("model.int8.onnx", temperature=1.0)}}, "has no hash for model.int8.onnx"),
        ({"networks": {"fp32": NetworkFile(NETWORK, temperature=-1.0)}}, "temperature"),
        ({"networks": {"fp32": NetworkFile(NETWORK, temperature=float("nan"))}}, "temperature"),
        ({"networks": {}}, "no network"),
        ({"input": InputSpec(height=1, width=8, train_px=8)}, "height"),
    ],
    ids=["hash", "outputs", "file", "temperature", "no number", "no network", "input"],
)
def test_bundle_that_does_not_verify_leaves_nothing(tmp_path, network_file, change, expected):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(BundleError, match=expected):
        seal_tiny(place / "tiny", network_file, record=bundle_record(**change))
    assert nothing_is_left_in(place)


def test_taxonomy_of_another_network_leaves_nothing(tmp_path, network_file):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(BundleError, match="label hash"):
        seal_tiny(place / "tiny", network_file, taxonomy=taxonomy_of(DAISY, species("Acer campestre")))
    assert nothing_is_left_in(place)


def test_missing_source_file_leaves_nothing(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises((InputError, FileNotFoundError), match=r"model\.fp32\.onnx"):
        seal_tiny(place / "tiny", tmp_path / "nowhere" / NETWORK)
    assert nothing_is_left_in(place)


def test_record_is_indented_json(sealed):
    lines = (sealed / BUNDLE_FILE).read_text().splitlines()
    assert len(lines) > 40
    assert msgspec.json.decode((sealed / BUNDLE_FILE).read_bytes())["name"] == "tiny"
