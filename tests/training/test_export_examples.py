"""Reference pictures of a bundle: near the middle of their taxon, apart from each other, and free to be shown."""

import io

import numpy as np
import pytest
from msgspec.structs import astuple
from PIL import Image

from models.errors import DataError
from tests.make import cases
from tests.models.pictures import DISPLAY_P3, color_profile, encode
from tests.models.tiny import species, taxonomy_of
from tests.training.small import with_columns
from training.dataset.audit.licenses import may_be_shown
from training.dataset.manifest import Manifest
from training.fit.examples import EXAMPLE_PX, _small, example_pictures, listed_pictures, typical
from training.fit.pictures import pictures_of


def directions(*degrees):
    radians = np.deg2rad(degrees)
    return np.column_stack([np.cos(radians), np.sin(radians)]).astype(np.float32)


def test_the_first_is_the_nearest_to_the_middle_and_an_outlier_is_not_chosen():
    features = directions(0, 10, 20, 25, 30, 170)  # the last picture is odd
    chosen = typical(features, 3)
    assert len(set(chosen)) == 3
    assert 5 not in chosen
    assert chosen[0] == np.linalg.norm(features - features.mean(axis=0), axis=1).argmin()


def test_further_ones_are_apart_within_the_half_nearest_to_the_middle():
    assert sorted(typical(directions(*range(21)), 3)) == [5, 10, 15]


@pytest.mark.parametrize(("number", "most", "expected"), [(0, 3, 0), (2, 3, 2), (5, 0, 0), (1, 1, 1)])
def test_there_are_at_most_as_many_as_there_are(number, most, expected):
    assert len(set(typical(directions(*range(number)).reshape(number, 2), most))) == expected


@pytest.mark.parametrize(("license_", "expected"), cases(__file__, "licenses"))
def test_a_picture_is_shown_only_if_its_license_allows_a_smaller_copy(license_, expected):
    assert may_be_shown(license_) is expected


def test_a_bundle_has_small_pictures_of_each_taxon(other_bundle):
    examples = other_bundle.examples()
    for taxon in other_bundle.taxonomy.taxa:
        found = examples.of(taxon.taxon_id)
        assert len(found) == 2
        for example in found:
            with Image.open(io.BytesIO(examples.picture(example))) as picture:
                assert (picture.format, max(picture.size) <= EXAMPLE_PX) == ("WEBP", True)


def test_a_bundle_has_the_pictures_of_a_list(bundle):
    found = [bundle.examples().of(taxon.taxon_id) for taxon in bundle.taxonomy.taxa]
    assert [[each.source for each in of_taxon] for of_taxon in found] == [["a book"], [], []]


def test_an_example_is_in_srgb():
    wide = encode(Image.new("RGB", (300, 200), (234, 51, 35)), "PNG", icc_profile=color_profile(*DISPLAY_P3))
    with Image.open(io.BytesIO(_small(wide))) as picture:
        assert picture.getpixel((30, 30)) == pytest.approx((255, 0, 0), abs=3)


def test_an_example_is_the_picture_of_its_author(manifest, bundle, tmp_path):
    """Pictures of which only every second one is a training picture, and only every fourth one has a license."""
    every = range(len(manifest))
    columns = {
        "split": ["train" if row % 2 else "test" for row in every],
        "licence": ["CC0-1.0" if row % 4 == 3 else "unknown" for row in every],
        "author": [str(row) for row in every],
    }
    pictures = pictures_of(
        Manifest(with_columns(manifest, tmp_path / "data", **columns)), "train", bundle.record.input, workers=0
    )
    features = np.random.default_rng(0).normal(size=(len(pictures), 4)).astype(np.float32)
    found = list(example_pictures(pictures, features, 2))
    assert len(found) == 6
    originals = [np.asarray(Image.open(manifest.path(row)), float) for row in every]
    for example, data in found:
        shown = np.asarray(Image.open(io.BytesIO(data)), float)
        assert int(example.author) == np.argmin([np.abs(shown - original).mean() for original in originals])
        assert int(example.author) % 4 == 3


LISTED = """path,scientific_name,author,license,source
{picture},Rosa canina,Ada,CC BY 4.0,https://example.org/1
{picture},Quercus robur,Ada,all rights reserved,
"""


def test_a_list_gives_its_pictures_of_known_taxa(manifest, tmp_path):
    listed = tmp_path / "shown.csv"
    picture = tmp_path / "picture.jpg"
    picture.write_bytes(encode(Image.new("RGB", (300, 200), "red"), "JPEG"))
    taxonomy = taxonomy_of(species("Bellis perennis"), species("Rosa canina"))

    def found(text):
        listed.write_text(text)
        return list(listed_pictures(listed, taxonomy))

    ((example, _),) = found(LISTED.format(picture="picture.jpg"))
    assert astuple(example) == (taxonomy.taxa[1].taxon_id, "00001-0.webp", "Ada", "CC-BY-4.0", "https://example.org/1")
    with pytest.raises(DataError, match=r"line 2 of .*shown.csv has a picture that may not be shown"):
        found(LISTED.format(picture=picture).replace("CC BY", "CC BY-ND"))
    with pytest.raises(DataError, match=r"line 2 of .*shown.csv has a picture that cannot be read .*JPEG"):
        found(LISTED.format(picture="shown.csv"))
    with pytest.raises(DataError, match="names no taxon"):
        found(LISTED.format(picture=picture).replace("Rosa", "Salix"))
