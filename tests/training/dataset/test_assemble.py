"""Three data sets in their published layouts, with planted faults, become one training set; every fault is found."""

import json
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from models.preprocess import read_picture
from tests.make import PHOTOS
from training.dataset.manifest import Manifest
from training.dataset.report.page import HTML_FILE, JSON_FILE
from training.prepare import Sources, prepare

COLLECTION = """
name = "layouts"
merge = "{merge}"
calibration_share = 0.1

[sources.inat2021]
layout = "inaturalist"
root = "inat2021"
note = "Non-commercial terms."

[sources.plantnet300k]
layout = "plantnet"
root = "plantnet300k"

[sources.house_plants]
layout = "image_folder"
root = "house_plants"
license = "CC BY-NC-SA 4.0"
"""


def assembled(tmp_path, merge="within_sources", **options):
    if not (PHOTOS / "layouts").is_dir():
        pytest.skip(f"no sample layouts at {PHOTOS}: set BOTANIFY_PHOTOS")
    toml = tmp_path / "data_layouts.toml"
    toml.write_text(COLLECTION.format(merge=merge))
    prepare(Sources(collection=toml, root=PHOTOS / "layouts", out=tmp_path / "data", workers=2, **options))
    return tmp_path / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The three layouts, prepared and packed by one command."""
    folder = tmp_path_factory.mktemp("layouts")
    return assembled(folder, shards=folder / "packed")


@pytest.fixture(scope="module")
def report(data):
    return json.loads((data / JSON_FILE).read_text())


def left_out(report):
    found = defaultdict(dict)
    for entry in report["left_out"]:
        found[entry["code"]][entry["picture"]] = entry["reason"]
    return found


pytestmark = pytest.mark.photos


def test_the_copy_is_found_by_name(report):
    ((copy, reason),) = left_out(report)["copy"].items()
    assert copy == "house_plants:Iris/copy of 0.jpg"
    assert "house_plants:Iris/0.jpg" in reason


def test_the_leak_between_two_sources_is_found_by_name_and_is_in_one_split(report, data):
    leak = "house_plants:Sunflower (Helianthus annuus)/leak.jpg"
    (group,) = [group for group in report["near_copies"] if leak in group]
    assert [name.partition(":")[0] for name in group if name != leak] == ["inat2021"]
    table = Manifest(data).table.select(["picture_id", "split", "group"]).to_pylist()
    assert len({(row["split"], row["group"]) for row in table if row["picture_id"] in group}) == 1


def test_the_repeated_species_and_the_genus_are_found_by_name(report, data):
    assert any("Lilium lancifolium" in json.dumps(row) for row in report["names"]["merged"])
    assert any("Pelargonium" in json.dumps(row) for row in report["names"]["genus_level"])
    ranks = {taxon.scientific_name: taxon.rank for taxon in Manifest(data).taxonomy.taxa}
    assert ranks["Pelargonium"] == "genus"
    assert ranks["Lilium lancifolium"] == "species"


def test_outputs_are_counted_by_the_rule(data, tmp_path):
    by_source = Counter(output.source for output in Manifest(data).taxonomy.outputs)
    assert by_source == {"inat2021": 8, "plantnet300k": 7, "house_plants": 5}
    assert len(Manifest(data).taxonomy.taxa) == 18  # all three data sets contain the sunflower
    across = Manifest(assembled(tmp_path, merge="across_sources")).taxonomy
    assert len(across.outputs) == len(across.taxa) == 18


def test_observations_never_straddle_and_the_weaker_side_is_listed(report, data):
    table = Manifest(data).table
    splits = defaultdict(set)
    for group, split in zip(table["group"].to_pylist(), table["split"].to_pylist(), strict=True):
        splits[group].add(split)
    assert all(len(found) == 1 for found in splits.values())
    metadata = json.loads((PHOTOS / "layouts" / "plantnet300k" / "plantnet300K_metadata.json").read_text())
    published = defaultdict(set)
    for entry in metadata.values():
        published[entry["obs_id"]].add(entry["split"])
    found = left_out(report)["observation_split"]
    for hash_, entry in metadata.items():
        weaker = {"train": {"val", "test"}, "val": {"test"}, "test": set()}[entry["split"]] & published[entry["obs_id"]]
        assert bool(weaker) == any(hash_ in name for name in found), hash_


def test_published_test_pictures_stay_test_pictures(data):
    rows = Manifest(data).table.select(["picture_id", "split"]).to_pylist()
    for row in rows:
        if row["picture_id"].startswith(("inat2021:val/", "plantnet300k:images/test/")):
            assert row["split"] == "test"
        elif row["picture_id"].startswith("inat2021:train/"):
            assert row["split"] in {"train", "validation", "calibration"}
        elif row["picture_id"].startswith("plantnet300k:images/train/"):
            assert row["split"] in {"train", "calibration"}
    assert {row["split"] for row in rows} == {"train", "validation", "calibration", "test"}


def test_the_page_names_the_faults(data):
    page = (data / HTML_FILE).read_text()
    for name in ("truncated.jpg", "actually_html.jpg", "copy of 0.jpg", "leak.jpg", "Lilium lancifolium", "Amanita"):
        assert name in page


def test_the_same_command_packs_the_kept_pictures(data):
    plain, packed = Manifest(data), Manifest(data.parent / "packed")
    assert packed.taxonomy == plain.taxonomy
    assert sorted(packed.table["picture_id"].to_pylist()) == sorted(plain.table["picture_id"].to_pylist())
    place = packed.place(0)
    with Path(place.file).open("rb") as stream:
        stream.seek(place.offset)
        picture = read_picture(stream.read(place.length))
    assert (picture.width, picture.height) == (packed.table["width"][0].as_py(), packed.table["height"][0].as_py())
