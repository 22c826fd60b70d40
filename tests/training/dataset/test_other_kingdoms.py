"""The list of pictures of an iNaturalist folder that show no plant."""

import csv
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.errors import DataError
from tests.training.dataset.sources.test_inaturalist import document, write
from tests.training.small import write_things
from training.dataset.others import UNKNOWN_LISTS, write_list
from training.dataset.sources.json_layouts import choose_alike
from training.dataset.sources.record import Other
from training.loading.negatives import list_negatives
from training.prepare import Negatives, write_negatives


@pytest.fixture
def inaturalist(tmp_path):
    """Two worms to fit on and two to judge with, beside plants."""
    root = write(tmp_path / "inat", train=document(), val=document("val", first=100))
    for split in ("train", "val"):
        for thing, name in zip(sorted(write_things(tmp_path / split, 2).iterdir()), ("0.jpg", "1.jpg"), strict=True):
            (root / split / "0").mkdir(parents=True, exist_ok=True)
            thing.rename(root / split / "0" / name)
    return root


def test_training_and_evaluation_read_the_pictures_of_their_split(inaturalist, tmp_path):
    out = tmp_path / "lists" / "animals.csv"
    assert write_negatives(Negatives(pictures=inaturalist, out=out)) == {"fit": 2, "test": 2}
    for splits, folder in ((("fit", "train"), "train"), (("test",), "val")):
        found = list_negatives((out,), splits)
        assert [path.resolve() for path in found.paths] == [inaturalist / folder / "0" / f"{at}.jpg" for at in (0, 1)]
        assert found.num_broken == 0


def test_lists_in_a_folder_behind_a_link_name_pictures_that_are_there(inaturalist, tmp_path):
    (tmp_path / "disk" / "far").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "far")
    write_list(tmp_path / "out" / UNKNOWN_LISTS[0], [Other("s", "train/0/0.jpg", "Poa")], {"s": inaturalist})
    write_negatives(Negatives(pictures=inaturalist, out=tmp_path / "out" / "animals.csv"))
    for name in (UNKNOWN_LISTS[0], "animals.csv"):
        assert list_negatives((tmp_path / "out" / name,)).paths[0].resolve() == inaturalist / "train" / "0" / "0.jpg"


def test_the_list_says_what_each_picture_shows_and_holds_no_plant(inaturalist, tmp_path):
    write_negatives(Negatives(pictures=inaturalist, out=tmp_path / "animals.csv", most=1))
    rows = list(csv.DictReader((tmp_path / "animals.csv").read_text().splitlines()))
    assert [(row["split"], row["kingdom"], row["scientific_name"]) for row in rows] == [
        ("fit", "Animalia", "Lumbricus terrestris"),
        ("test", "Animalia", "Lumbricus terrestris"),
    ]
    assert not rows[0]["path"].startswith("/")


def test_a_data_set_of_plants_alone_is_refused(tmp_path):
    content = document()
    for entry in content["categories"]:
        entry["kingdom"] = "Plantae"
    root = write(tmp_path / "inat", train=content)
    with pytest.raises(DataError, match="nothing but plants"):
        write_negatives(Negatives(pictures=root, out=tmp_path / "animals.csv"))
    assert not (tmp_path / "animals.csv").exists()


@settings(max_examples=100)
@given(names=st.lists(st.sampled_from("abcd"), max_size=40), most=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_names_are_chosen_alike_and_the_seed_decides(names, most, seed):
    pictures = [Other("s", str(at), name) for at, name in enumerate(names)]
    chosen = choose_alike(pictures, most, seed)
    assert chosen == choose_alike(pictures, most, seed)
    assert len(chosen) == min(most, len(pictures))
    assert [int(each.path) for each in chosen] == sorted({int(each.path) for each in chosen})
    taken, there = Counter(each.scientific_name for each in chosen), Counter(names)
    for name in there:
        assert taken[name] == there[name] or taken[name] >= max(taken.values()) - 1
