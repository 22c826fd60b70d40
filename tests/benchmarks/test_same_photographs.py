import numpy as np
import pytest
from PIL import Image

from benchmarks.same_photographs import SamePhotographs, markdown, measure_both
from tests.training.color_bundles import good_weights, prepare_flowers, seal_color_bundle
from training.dataset.manifest import Manifest


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """A bundle that confuses two flowers and one that does not, asked about flowers, strangers and things."""
    folder = tmp_path_factory.mktemp("asked")
    data = prepare_flowers(folder)
    manifest = Manifest(data)
    weights = good_weights(manifest)
    old = seal_color_bundle(folder / "old", data, version="1.0.0", weights=weights[:, [1, 0, 2]])
    new = seal_color_bundle(folder / "new", data, version="2.0.0", weights=weights)
    genera = [manifest.taxonomy.taxa[each].genus for each in manifest.taxonomy.taxon_of_output[manifest.labels]]
    row = genera.index("Rosa")
    with Image.open(manifest.path(row)) as first:  # a picture of one of the flowers, under other names
        first.convert("RGB").save(folder / "a.png")
        first.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "b.png")
    (folder / "strangers.csv").write_text("path,scientific_name\na.png,Musa acuminata\nb.png,Rosa aliena\n")
    (folder / "things.csv").write_text("path,split\na.png,test\nb.png,fit\n")
    return measure_both(
        SamePhotographs(
            old=old.folder,
            new=new.folder,
            data=data,
            strangers=(folder / "strangers.csv",),
            things=folder / "things.csv",
        )
    )


def test_both_bundles_are_asked_about_the_same_known_plants(result):
    old, new = result.bundles
    assert [each.known[0].top1.num_pictures for each in (old, new)] == [31, 31]
    assert (old.known[0].top1.value, new.known[0].top1.value) == (pytest.approx(10 / 31), 1)
    assert old.known[0].names_right.value == pytest.approx(old.known[0].top1.value, abs=0.1)


def test_a_near_stranger_may_be_named_by_its_genus_and_a_strange_one_by_nothing(result):
    far, near, things = result.bundles[1].unknown
    assert [each.what for each in (far, near, things)] == [
        "strangers.csv, unknown genera",
        "strangers.csv, known genera",
        "other things",
    ]
    assert [each.named_species.value for each in (far, near)] == [1, 1]  # these bundles cannot tell strangers
    assert [each.wrong.value for each in (far, near)] == [1, 1]
    assert things.named_species.num_pictures == 1
    assert np.isclose(things.not_a_plant.value, 0)


def test_the_table_shows_the_two_side_by_side(result):
    lines = markdown(result).splitlines()
    assert next(line for line in lines if "all that it knows" in line).count("%") == 3
    assert sum("colors 1.0.0" in line for line in lines) == sum("colors 2.0.0" in line for line in lines) > 3
