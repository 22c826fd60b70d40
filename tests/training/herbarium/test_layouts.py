import csv
import json
from collections import Counter, defaultdict
from pathlib import Path

import imagehash
import numpy as np
import pytest
import tyro
from PIL import Image

from models.errors import DataError, InputError, PictureError, UnsupportedFormat
from models.preprocess import read_picture
from training.dataset.collection import READERS, read_collection
from training.herbarium import Herbarium, layouts, species_name, write_herbarium
from training.herbarium.flora import FULL_WIDTH, NARROW, FloraSize, make_flora
from training.herbarium.layouts import write_layouts

SMALL = FloraSize(
    num_inaturalist=4, num_plantnet=6, num_house=4, num_shared=3, num_animals=1, num_fungi=1, num_outside=2
)
TINY = FloraSize(
    num_inaturalist=1, num_plantnet=3, num_house=1, num_shared=1, num_animals=0, num_fungi=0, num_outside=1
)
SIZE_PX = 36


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Everything once, with faults: 78 pictures."""
    return write_layouts(tmp_path_factory.mktemp("herbarium") / "drawn", SMALL, size_px=SIZE_PX, faults=True)


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    """The lists of a larger flora, without pictures."""
    size = FloraSize(num_inaturalist=40, num_plantnet=100, num_house=8, num_shared=25)
    return write_layouts(tmp_path_factory.mktemp("lists"), size, pictures_per_class=30, pictures=False)


@pytest.fixture(scope="module")
def full():
    return make_flora(FULL_WIDTH)


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def binomial(name):
    """Genus and epithet, without the sign of a hybrid."""
    return " ".join([word for word in name.split() if word not in ("x", "×")][:2])


def one_fault(drawn, kind):
    (fault,) = (fault for fault in drawn.faults if fault.kind == kind)
    return fault


def file_of(drawn, picture_id):
    return drawn.root / picture_id.replace(":", "/", 1)


def taxon_rows(written):
    with (written.root / "taxon.tsv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_full_width_has_the_published_numbers_of_classes(full):
    assert (len(full.inaturalist), len(full.plantnet), len(full.house)) == (4271, 1081, 47)
    assert FULL_WIDTH.num_outputs == 5337
    assert FULL_WIDTH.num_taxa == 5337 - 275


def test_full_width_plantnet_names_repeat_like_the_real_ones(full):
    names = [plant.name for plant in full.plantnet]
    repeats = Counter(map(binomial, names))
    assert len(set(names)) == 1081
    assert len(repeats) == 1019
    assert Counter(repeats.values()) == {1: 962, 2: 52, 3: 5}
    assert sum(name.endswith(" spp.") for name in names) == 6
    assert any(" x " in name for name in names)
    assert any(" × " in name for name in names)


def test_275_species_are_in_two_sources_20_of_them_under_another_name(full):
    inaturalist = {species_name(species).scientific_name for species in full.inaturalist}
    plantnet = {binomial(plant.name) for plant in full.plantnet}
    house = {species_name(plant.species).scientific_name for plant in full.house}
    assert len(inaturalist) == 4271
    assert len(inaturalist & plantnet) == 255
    assert not house & (inaturalist | plantnet)
    renamed = {other.name for other in full.synonyms}
    assert len(renamed) == 20
    assert renamed <= plantnet - inaturalist
    assert {other.species for other in full.synonyms} <= set(full.inaturalist)


def test_names_are_a_genus_and_an_epithet_and_never_shared_by_two_species(full):
    everything = {*full.species, *full.outside, *full.animals, *full.fungi}
    names = [species_name(species).scientific_name for species in everything]
    names += [other.name for other in full.synonyms]
    assert len(set(names)) == len(names)
    for name in names:
        genus, epithet = name.split()
        assert genus.istitle()
        assert epithet.islower()


def test_species_outside_are_in_no_data_set(full):
    assert len(full.outside) == 40
    assert not set(full.outside) & set(full.species)
    families = {species_name(species).family for species in full.species}
    strange = [species_name(species).family not in families for species in full.outside]
    assert sum(strange) == 20


def test_house_plants_have_both_names_or_a_common_name_of_one_or_two_words(full):
    folders = [plant.folder for plant in full.house]
    alone = [folder for folder in folders if "(" not in folder]
    assert len(set(folders)) == 47
    assert {len(folder.split()) for folder in alone} == {1, 2}
    assert len(alone) == 12


def test_another_seed_gives_other_species():
    assert make_flora(NARROW, seed=1).inaturalist != make_flora(NARROW, seed=2).inaturalist


def test_inaturalist_lists_have_the_published_keys(drawn):
    for part in ("train", "val"):
        document = read(drawn.root / "inat2021" / f"{part}.json")
        assert list(document) == ["info", "images", "categories", "annotations", "licenses"]
        assert set(document["info"]) == {"description", "version"}
        assert set(document["images"][0]) == {
            *("id", "width", "height", "file_name", "license", "rights_holder"),
            *("date", "latitude", "longitude", "location_uncertainty"),
        }
        assert set(document["categories"][0]) == {
            *("id", "name", "common_name", "supercategory", "kingdom", "phylum", "class", "order"),
            *("family", "genus", "specific_epithet", "image_dir_name"),
        }
        assert set(document["annotations"][0]) == {"id", "image_id", "category_id"}
        assert [set(entry) for entry in document["licenses"]] == [{"id", "name", "url"}] * 3


def test_inaturalist_pictures_have_the_listed_paths_and_sizes(drawn):
    listed = set()
    for part in ("train", "val"):
        document = read(drawn.root / "inat2021" / f"{part}.json")
        folder_of = {category["id"]: category["image_dir_name"] for category in document["categories"]}
        category_of = {entry["image_id"]: entry["category_id"] for entry in document["annotations"]}
        assert len(category_of) == len(document["images"])
        for image in document["images"]:
            listed.add(image["file_name"])
            assert image["file_name"].startswith(f"{part}/{folder_of[category_of[image['id']]]}/")
            with Image.open(drawn.root / "inat2021" / image["file_name"]) as picture:
                assert picture.size == (image["width"], image["height"])
                assert min(picture.size) == SIZE_PX
    on_disk = {path.relative_to(drawn.root / "inat2021").as_posix() for path in drawn.root.glob("inat2021/*/*/*")}
    assert on_disk == listed


def test_inaturalist_categories_are_numbered_in_the_order_of_their_ranks(lists):
    categories = read(lists.root / "inat2021" / "train.json")["categories"]
    assert [category["id"] for category in categories] == list(range(49))
    folders = [category["image_dir_name"] for category in categories]
    assert [folder[:5] for folder in folders] == [f"{number:05}" for number in range(49)]
    ranks = ("kingdom", "phylum", "class", "order", "family", "genus", "specific_epithet")
    assert [folder[6:].split("_") for folder in folders] == sorted(
        [category[rank] for rank in ranks] for category in categories
    )
    assert Counter(category["kingdom"] for category in categories) == {"Plantae": 40, "Animalia": 6, "Fungi": 3}


def test_plantnet_metadata_names_every_picture_and_no_observation_straddles_but_the_added_one(drawn):
    root = drawn.root / "plantnet300k"
    metadata = read(root / "plantnet300K_metadata.json")
    names = read(root / "plantnet300K_species_id_2_name.json")
    assert {species_id.isdigit() for species_id in names} == {True}
    assert list(names) == sorted(names)
    listed = {f"images/{said['split']}/{said['species_id']}/{name}.jpg" for name, said in metadata.items()}
    assert {path.relative_to(root).as_posix() for path in root.glob("images/*/*/*")} == listed
    splits = defaultdict(set)
    for name, said in metadata.items():
        assert set(said) == {"species_id", "obs_id", "organ", "author", "license", "split"}
        assert said["license"] in {"cc-by-sa", "cc-by-nc", "cc-by-nc-sa"}
        assert len(name) == 40
        splits[said["obs_id"]].add(said["split"])
    assert [split for split in splits.values() if len(split) > 1] == [{"train", "test"}]


def test_observations_are_shared_by_several_pictures(lists):
    metadata = read(lists.root / "plantnet300k" / "plantnet300K_metadata.json")
    sizes = Counter(Counter(said["obs_id"] for said in metadata.values()).values())
    assert set(sizes) == {1, 2, 3}
    split_of = {(said["obs_id"], said["split"]) for said in metadata.values()}
    assert len(split_of) == sizes.total()


def test_plantnet_has_a_long_tail(lists):
    metadata = read(lists.root / "plantnet300k" / "plantnet300K_metadata.json")
    counts = sorted(Counter(said["species_id"] for said in metadata.values()).values(), reverse=True)
    assert len(counts) == 100
    assert counts[-1] < 10
    assert sum(counts[:20]) > 0.6 * sum(counts)
    assert sum(counts) == pytest.approx(30 * 100, rel=0.05)


def test_every_plantnet_class_has_pictures_in_every_split(drawn):
    metadata = read(drawn.root / "plantnet300k" / "plantnet300K_metadata.json")
    splits = defaultdict(set)
    for said in metadata.values():
        splits[said["species_id"]].add(said["split"])
    assert list(splits.values()) == [{"train", "val", "test"}] * 6


def test_house_plants_come_in_the_format_of_their_suffix(drawn):
    formats = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP"}
    seen = set()
    for path in (drawn.root / "house_plants").glob("*/[0-9].*"):
        with Image.open(path) as picture:
            assert picture.format == formats[path.suffix]
        seen.add(path.suffix)
    assert seen == set(formats)


def test_places_and_dates_of_a_species_keep_together(lists):
    document = read(lists.root / "inat2021" / "train.json")
    category_of = {entry["image_id"]: entry["category_id"] for entry in document["annotations"]}
    latitudes, months = defaultdict(list), defaultdict(list)
    for image in document["images"]:
        assert (image["latitude"] is None) == (image["longitude"] is None)
        if image["latitude"] is not None:
            latitudes[category_of[image["id"]]].append(image["latitude"])
        if image["date"] is not None:
            months[category_of[image["id"]]].append(int(image["date"][5:7]))
    for values in (latitudes, months):
        within = np.mean([np.std(of_one) for of_one in values.values()])
        assert within < 0.5 * np.std([value for of_one in values.values() for value in of_one])
    unplaced = [image for image in document["images"] if image["latitude"] is None]
    assert 0.08 < len(unplaced) / len(document["images"]) < 0.25
    assert any(image["date"] is None for image in document["images"])


def test_the_taxon_file_maps_synonyms_and_misspellings_to_the_names_of_inaturalist(drawn):
    rows = taxon_rows(drawn)
    assert list(rows[0]) == [
        *("taxonID", "scientificName", "scientificNameAuthorship", "taxonomicStatus", "acceptedNameUsageID"),
        *("taxonRank", "kingdom", "family", "genus", "canonicalName"),
    ]
    by_id = {row["taxonID"]: row for row in rows}
    assert len(by_id) == len(rows)
    synonyms = {row["canonicalName"]: by_id[row["acceptedNameUsageID"]] for row in rows if row["acceptedNameUsageID"]}
    assert len(synonyms) == SMALL.num_renamed == 2
    assert {row["taxonomicStatus"] for row in synonyms.values()} == {"accepted"}
    categories = {category["name"] for category in read(drawn.root / "inat2021" / "train.json")["categories"]}
    names = read(drawn.root / "plantnet300k" / "plantnet300K_species_id_2_name.json")
    plantnet = set(map(binomial, names.values()))
    accepted = {synonyms[name]["canonicalName"] if name in synonyms else name for name in plantnet}
    assert len(plantnet & categories) == SMALL.num_shared - 2
    assert len(accepted & categories) == SMALL.num_shared


def test_added_files_have_the_declared_faults(drawn):
    def content(kind):
        return file_of(drawn, one_fault(drawn, kind).picture).read_bytes()

    with pytest.raises(PictureError):
        read_picture(content("truncated"))
    with pytest.raises(UnsupportedFormat):
        read_picture(content("html_page"))
    assert one_fault(drawn, "text_file").picture.endswith(".txt")
    assert content("text_file").isascii()
    copy = one_fault(drawn, "copy")
    assert file_of(drawn, copy.picture).read_bytes() == file_of(drawn, copy.original).read_bytes()


def test_near_copies_are_other_bytes_of_the_same_picture_in_another_source(drawn):
    leaks = [fault for fault in drawn.faults if fault.kind == "near_copy"]
    sources = [(leak.picture.partition(":")[0], leak.original.partition("/")[0]) for leak in leaks]
    assert sources == [("house_plants", "inat2021:train"), ("plantnet300k", "inat2021:val")]
    for leak in leaks:
        copy, original = file_of(drawn, leak.picture), file_of(drawn, leak.original)
        assert copy.read_bytes() != original.read_bytes()
        with Image.open(copy) as first, Image.open(original) as second:
            assert imagehash.phash(first) - imagehash.phash(second) <= 4


def test_the_straddling_observation_has_a_test_picture(drawn):
    metadata = read(drawn.root / "plantnet300k" / "plantnet300K_metadata.json")
    faults = [fault for fault in drawn.faults if fault.kind == "observation_split"]
    tested = metadata[Path(faults[0].original).stem]
    assert tested["split"] == "test"
    weak = [name for name, said in metadata.items() if said["obs_id"] == tested["obs_id"] and said["split"] != "test"]
    assert weak == [Path(plant.picture).stem for plant in faults]


def test_classes_with_faults_are_named(drawn):
    names = read(drawn.root / "plantnet300k" / "plantnet300K_species_id_2_name.json")
    assert "_Animalia_" in one_fault(drawn, "animal").picture
    assert "_Fungi_" in one_fault(drawn, "fungus").picture
    assert names[one_fault(drawn, "genus_level").picture.partition(":")[2]].endswith(" spp.")
    double = one_fault(drawn, "double_species")
    first, second = (names[key.partition(":")[2]] for key in (double.picture, double.original))
    assert first != second
    assert binomial(first) == binomial(second)


def test_without_faults_only_those_of_the_published_lists_remain(lists):
    assert {fault.kind for fault in lists.faults} == {*("animal", "fungus", "genus_level", "double_species", "synonym")}


def test_the_readers_read_the_sources_of_the_collection(drawn):
    collection = read_collection(drawn.collection)
    assert collection.expect_outputs == SMALL.num_outputs
    assert collection.synonyms == Path("taxon.tsv")
    assert collection.min_side_px <= SIZE_PX
    num_records = {}
    for name, source in collection.sources.items():
        reading = READERS[source.layout](name, drawn.root / source.root, source.license)
        num_records[name] = len(reading.records)
        assert {bool(record.license) for record in reading.records} == {True}
    # Without the animal and the fungus; with three added pictures in one folder of house plants and one in another.
    assert num_records == {
        "inat2021": drawn.num_pictures["inat2021"] - 8,
        "plantnet300k": drawn.num_pictures["plantnet300k"],
        "house_plants": drawn.num_pictures["house_plants"] + 4,
    }


def test_the_collection_maps_common_names_of_two_words_only(lists):
    mapped = read_collection(lists.collection).sources["house_plants"].names
    folders = {path.name for path in (lists.root / "house_plants").iterdir()}
    assert set(mapped) == {folder for folder in folders if "(" not in folder and " " in folder}
    assert mapped


def test_without_pictures_there_are_lists_and_empty_files(lists):
    images = read(lists.root / "inat2021" / "train.json")["images"]
    assert len(images) == 27 * 49
    assert [path.name for path in (lists.root / "inat2021").iterdir() if path.is_dir()] == []
    files = list((lists.root / "house_plants").glob("*/*"))
    assert len(files) == 8 * 30
    assert {file.stat().st_size for file in files} == {0}


def test_two_processes_write_the_same_files_as_one(tmp_path):
    for name, workers in (("one", 1), ("two", 2)):
        write_layouts(tmp_path / name, TINY, seed=4, size_px=16, workers=workers, faults=True)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())
    assert len(files) == 4 + 12 + 4 + 4 + 5 + 6
    assert {path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file()} == set(
        files
    )
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes(), file


@pytest.mark.parametrize("existed", [True, False])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, existed):
    def fill_disk(root, drawings, **options):
        (root / "inat2021" / "half.jpg").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(layouts, "draw_files", fill_disk)
    root = tmp_path / "herbarium"
    if existed:
        root.mkdir()
    with pytest.raises(OSError, match="No space"):
        write_layouts(root, TINY, size_px=16)
    assert list(tmp_path.rglob("*")) == ([root] if existed else [])


def test_a_folder_that_is_not_empty_is_rejected_unchanged(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(InputError, match="not empty"):
        write_layouts(tmp_path, TINY, size_px=16)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "options", [{"pictures_per_class": 3}, {"size_px": 15}, {"workers": 0}, {"faults": True, "pictures": False}]
)
def test_options_out_of_range_are_rejected_before_anything_is_written(tmp_path, options):
    with pytest.raises(DataError):
        write_layouts(tmp_path / "herbarium", TINY, **options)
    assert not (tmp_path / "herbarium").exists()


@pytest.mark.parametrize(
    "numbers", [{"num_house": 0}, {"num_plantnet": 2}, {"num_outside": -1}, {"num_plantnet": 12, "num_shared": 11}]
)
def test_sizes_out_of_range_are_rejected(numbers):
    with pytest.raises(DataError):
        FloraSize(**numbers)


def test_single_numbers_of_the_command_override_its_preset(tmp_path):
    arguments = [str(tmp_path / "new"), "--num-plantnet", "9", "--num-outside", "0", "--no-pictures"]
    written = write_herbarium(tyro.cli(Herbarium, args=arguments))
    assert (written.size.num_plantnet, written.size.num_outside) == (9, 0)
    assert written.size.num_inaturalist == NARROW.num_inaturalist
    assert not (written.root / "outside").exists()


@pytest.mark.slow
def test_the_command_reaches_full_width(tmp_path):
    arguments = [str(tmp_path / "full"), "--full-width", "--pictures-per-class", "4", "--no-pictures"]
    written = write_herbarium(tyro.cli(Herbarium, args=arguments))
    assert written.size == FULL_WIDTH
    categories = read(written.root / "inat2021" / "val.json")["categories"]
    assert sum(category["kingdom"] == "Plantae" for category in categories) == 4271
    assert read_collection(written.collection).expect_outputs == 5337
