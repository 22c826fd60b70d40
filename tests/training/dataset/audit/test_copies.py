"""Byte-for-byte copies over all sources."""

from itertools import permutations

from tests.training.dataset.labeled import picture
from training.dataset.selection import drop_copies as drop_copies_of

# Two sources may spell the name of a plant differently, so labels are compared by taxon.
TAXA = {
    "all:rosa-rubra": "rosa-rubra",
    "a:rosa-rubra": "rosa-rubra",
    "b:rosa-purpurea": "rosa-rubra",  # a synonym
    "b:iris-caerulea": "iris-caerulea",
}


def drop_copies(pictures):
    return drop_copies_of(pictures, TAXA)


def test_the_copy_in_the_strongest_split_stays_whatever_the_order():
    ranked = [picture(f"wild:{number}.jpg", split=split) for number, split in
              enumerate([None, "train", "calibration", "test", "validation"])]  # fmt: skip
    for order in permutations(ranked):
        kept, copies = drop_copies(order)
        assert [entry.record.split for entry in kept] == ["test"]
        assert len(copies) == 4


def test_of_equal_copies_the_first_by_id_stays_and_the_others_name_it():
    kept, copies = drop_copies([picture("wild:b.jpg"), picture("house:z.jpg"), picture("wild:a.jpg")])
    assert [entry.picture_id for entry in kept] == ["house:z.jpg"]
    assert [(entry.picture, entry.code, entry.reason) for entry in copies] == [
        ("wild:b.jpg", "copy", "the same bytes as house:z.jpg"),
        ("wild:a.jpg", "copy", "the same bytes as house:z.jpg"),
    ]


def test_a_file_stays_and_not_its_copy_of_a_longer_name():
    for copy in ("IMG_1 (1).jpg", "IMG_1 - Copy.jpg", "Copy of IMG_1.jpg"):
        kept, copies = drop_copies([picture(f"wild:Iris/{copy}"), picture("wild:Rosa canina/IMG_1.jpg")])
        assert [entry.picture_id for entry in kept] == ["wild:Rosa canina/IMG_1.jpg"]
        assert [entry.picture for entry in copies] == [f"wild:Iris/{copy}"]


def test_the_reason_names_another_label_of_a_copy_if_its_taxon_differs():
    original, synonym = picture("a:1.jpg", label="a:rosa-rubra"), picture("b:1.jpg", label="b:rosa-purpurea")
    _, copies = drop_copies([original, synonym, picture("b:2.jpg", label="b:iris-caerulea")])
    assert [copy.reason for copy in copies] == [
        "the same bytes as a:1.jpg",
        "the same bytes as a:1.jpg, but labeled b:iris-caerulea here and a:rosa-rubra there",
    ]
