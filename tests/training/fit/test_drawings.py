import io

import numpy as np
import pytest
from msgspec.structs import replace
from PIL import Image

from models.outputs import Outputs
from models.scoring import AnswerModel
from models.taxonomy import Output
from tests.models.pictures import DISPLAY_P3, color_profile
from tests.models.tiny import species, taxonomy_of
from tests.training.small import make_taxonomy, with_columns, write_data
from training.dataset.manifest import Manifest
from training.fit.drawings import SHEETS, draw_mistakes, draw_suspects


def pixels(file):
    return np.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int)


COLORS = ("red", "lime", "blue")
# Test pictures: (labeled output, predicted output, its logit).
ANSWERED = [(0, 1, 4.0), (0, 1, 9.0), (0, 0, 5.0), (1, 1, 5.0), (2, 1, 2.0), (2, 2, 5.0)]


def prepared(folder, taxonomy, answered=ANSWERED, train=(0, 1, 2), **options):
    """Pictures in the color of their output: one training picture for each output, and the test pictures."""
    keys = taxonomy.output_keys
    pictures = [(f"train/{output}.png", keys[output], "train") for output in train]
    pictures += [(f"test/{at}.png", keys[right], "test") for at, (right, _, _) in enumerate(answered)]
    for path, key, _ in pictures:
        (folder / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 300), COLORS[keys.index(key)]).save(folder / "pictures" / path, **options)
    return Manifest(write_data(folder / "data", folder / "pictures", pictures, taxonomy))


def answered_as(manifest, answered=ANSWERED):
    rows = manifest.rows_of("test")
    logits = np.zeros((len(answered), len(manifest.taxonomy.outputs)), np.float32)
    for at, (_, named, logit) in enumerate(answered):
        logits[at, named] = logit
    return Outputs(logits, labels=manifest.labels[rows], rows=rows).score(AnswerModel(manifest.taxonomy, 1.0))


@pytest.fixture
def manifest(tmp_path):
    return prepared(tmp_path, make_taxonomy(3))


def cells(jpeg):
    """The color in the middle of each cell of a sheet, row by row; "" for an empty cell."""
    sheet = pixels(jpeg)
    down, across = 314, 294  # 288 px a picture, 20 px of caption, gaps of 6 px
    found = []
    for top in range(6, sheet.shape[0] - 300, down):
        middles = [sheet[top + 144, left + 144] for left in range(6, sheet.shape[1] - 280, across)]
        found.append([COLORS[int(middle.argmax())] if np.ptp(middle) > 100 else "" for middle in middles])
    return found


def test_a_confusion_stands_beside_a_training_picture_of_what_it_was_taken_for(manifest):
    drawn = draw_mistakes(answered_as(manifest), manifest)
    assert sorted(drawn) == sorted(SHEETS)
    # Red was mistaken for lime twice, blue once; lime has one training picture.
    assert cells(drawn["confusions.jpg"]) == [["red", "red", "lime", ""], ["blue", "lime", "", ""]]


def test_the_surest_mistake_comes_first(tmp_path):
    answered = [(0, 1, 2.0), (2, 1, 9.0), (1, 1, 9.9)]
    manifest = prepared(tmp_path, make_taxonomy(3), answered)
    drawn = draw_mistakes(answered_as(manifest, answered), manifest)
    assert cells(drawn["surest-mistakes.jpg"]) == [["blue", "lime", "red", "lime"]]


def test_suspects_are_drawn_in_their_order_beside_what_they_may_be(manifest):
    suspects = answered_as(manifest).subset(np.array([4, 0]))
    assert cells(draw_suspects(suspects, manifest)) == [["blue", "lime", "red", "lime"]]


def test_a_suspect_is_no_example_of_its_label(manifest):
    rows = np.array([manifest.rows_of("test")[0], manifest.rows_of("train")[1]])
    logits = np.array([[0, 5, 0], [5, 0, 0]], np.float32)  # red as lime, and the only training picture of lime as red
    suspects = Outputs(logits, labels=np.array([0, 1]), rows=rows).score(AnswerModel(manifest.taxonomy, 1.0))
    assert cells(draw_suspects(suspects, manifest)) == [["red", "", "lime", "red"]]


def test_captions_name_the_right_plant_and_the_wrong_one(tmp_path):
    def pair(*names):
        """The first mistake and the training picture of the predicted taxon, each with its caption."""
        manifest = prepared(tmp_path / names[0] / names[1], taxonomy_of(*map(species, names)))
        jpeg = draw_mistakes(answered_as(manifest), manifest)["surest-mistakes.jpg"]
        sheet = pixels(jpeg)
        return sheet[6:290, :588], sheet[297:314, 6:290], sheet[297:314, 300:588]

    def same(one, other):
        return np.abs(one - other).max() < 60

    pictures, right, named = pair("G alba", "G nigra", "G media")
    other_pictures, other_right, same_named = pair("G longa", "G nigra", "G media")
    assert same(pictures, other_pictures)
    assert same(named, same_named)
    assert not same(right, other_right)
    _, same_right, other_named = pair("G alba", "G minima", "G media")
    assert same(right, same_right)
    assert not same(named, other_named)


def test_pictures_in_shards_are_shown_too(manifest, tmp_path):
    contents = [manifest.path(row).read_bytes() for row in range(len(manifest))]
    lengths = [len(content) for content in contents]
    shards = {"shard": ["shard.tar"] * len(contents), "offset": np.cumsum([0, *lengths[:-1]]), "length": lengths}
    packed = Manifest(with_columns(manifest, tmp_path / "packed", **shards))
    (packed.folder / "shard.tar").write_bytes(b"".join(contents))
    drawn = draw_mistakes(answered_as(packed), packed)
    assert cells(drawn["confusions.jpg"]) == [["red", "red", "lime", ""], ["blue", "lime", "", ""]]


def test_pictures_are_shown_in_srgb(tmp_path):
    exchanged = color_profile(*DISPLAY_P3[::-1])  # its red is blue
    manifest = prepared(tmp_path, make_taxonomy(3), icc_profile=exchanged)
    assert cells(draw_mistakes(answered_as(manifest), manifest)["confusions.jpg"])[0] == ["blue", "blue", "lime", ""]


def test_training_pictures_that_are_not_there_leave_their_places_empty(manifest):
    for path in (manifest.folder.parent / "pictures" / "train").iterdir():
        path.unlink()
    assert cells(draw_mistakes(answered_as(manifest), manifest)["confusions.jpg"])[0] == ["red", "red", "", ""]


def test_data_without_training_pictures_still_shows_the_mistakes(tmp_path):
    manifest = prepared(tmp_path, make_taxonomy(3), train=())
    assert cells(draw_mistakes(answered_as(manifest), manifest)["confusions.jpg"])[0] == ["red", "red", "", ""]


def test_outputs_of_one_plant_are_no_confusion(tmp_path):
    plain = make_taxonomy(2)
    twin = Output(key="drawn:twin", source="drawn", taxon_id=plain.taxa[0].taxon_id)
    taxonomy = replace(plain, outputs=(*plain.outputs, twin))
    answered = [(0, 2, 5.0), (2, 0, 5.0), (1, 1, 5.0)]
    manifest = prepared(tmp_path, taxonomy, answered)
    assert draw_mistakes(answered_as(manifest, answered), manifest) == {}
