import io

import numpy as np
import pytest
from PIL import Image

from models.taxonomy import Output, Taxon, Taxonomy
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest, write_manifest
from training.evaluation.mistakes import SHEETS, confusion_matrix, draw_mistakes
from training.evaluation.predictions import calibrated_predictions

COLORS = ("red", "lime", "blue")
# Test pictures: (labeled output, predicted output, its logit).
ANSWERED = [(0, 1, 4.0), (0, 1, 9.0), (0, 0, 5.0), (1, 1, 5.0), (2, 1, 2.0), (2, 2, 5.0)]


def prepared(folder, taxonomy, answered=ANSWERED, train=(0, 1, 2)):
    """Pictures in the color of their output: one training picture for each output, and the test pictures."""
    keys = taxonomy.output_keys
    pictures = [(f"train/{output}.png", keys[output], "train") for output in train]
    pictures += [(f"test/{at}.png", keys[right], "test") for at, (right, _, _) in enumerate(answered)]
    for path, key, _ in pictures:
        (folder / "pictures" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (300, 300), COLORS[keys.index(key)]).save(folder / "pictures" / path)
    return Manifest(write_data(folder / "data", folder / "pictures", pictures, taxonomy))


def answered_as(manifest, answered=ANSWERED):
    rows = manifest.rows_of("test")
    logits = np.zeros((len(answered), len(manifest.taxonomy.outputs)), np.float32)
    for at, (_, named, logit) in enumerate(answered):
        logits[at, named] = logit
    return calibrated_predictions(logits, manifest.labels[rows], rows, manifest.taxonomy, temperature=1.0)


@pytest.fixture
def manifest(tmp_path):
    return prepared(tmp_path, make_taxonomy(3))


def cells(jpeg):
    """The color in the middle of each cell of a sheet, row by row; "" for an empty cell."""
    sheet = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)
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


def test_captions_name_the_right_plant_and_the_wrong_one(tmp_path):
    def pair(*names):
        """The first mistake and the training picture of the predicted taxon, each with its caption."""
        taxa = tuple(Taxon(taxon_id=name, rank="species", scientific_name=name, genus="G") for name in names)
        outputs = tuple(Output(key=f"drawn:{name}", source="drawn", taxon_id=name) for name in names)
        manifest = prepared(tmp_path / names[0] / names[1], Taxonomy(taxonomy_version="1", taxa=taxa, outputs=outputs))
        jpeg = draw_mistakes(answered_as(manifest), manifest)["surest-mistakes.jpg"]
        sheet = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)
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


def in_a_shard(manifest, folder):
    """The same data with all pictures in one file, like packed data."""
    contents = [manifest.path(row).read_bytes() for row in range(len(manifest))]
    folder.mkdir()
    (folder / "shard.tar").write_bytes(b"".join(contents))
    lengths = [len(content) for content in contents]
    columns = manifest.table.to_pydict() | {
        "shard": ["shard.tar"] * len(contents),
        "offset": np.cumsum([0, *lengths[:-1]]).tolist(),
        "length": lengths,
    }
    write_manifest(folder, columns, manifest.taxonomy, manifest.sources)
    return Manifest(folder)


def test_pictures_in_shards_are_shown_too(manifest, tmp_path):
    packed = in_a_shard(manifest, tmp_path / "packed")
    drawn = draw_mistakes(answered_as(packed), packed)
    assert cells(drawn["confusions.jpg"]) == [["red", "red", "lime", ""], ["blue", "lime", "", ""]]


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
    taxonomy = Taxonomy(taxonomy_version="test", taxa=plain.taxa, outputs=(*plain.outputs, twin))
    answered = [(0, 2, 5.0), (2, 0, 5.0), (1, 1, 5.0)]
    manifest = prepared(tmp_path, taxonomy, answered)
    assert draw_mistakes(answered_as(manifest, answered), manifest) == {}


def test_the_matrix_counts_every_picture_of_the_taxa_that_it_shows():
    labels = np.array([5, 5, 5, 7, 7, 2, 9])
    named = np.array([7, 7, 5, 7, 2, 2, 9])
    shown, counts = confusion_matrix(named, labels, most=10)
    assert shown == [2, 5, 7]  # 9 is never mistaken
    assert counts.tolist() == [[1, 0, 0, 0], [0, 1, 2, 0], [1, 0, 1, 0]]
    shown, counts = confusion_matrix(named, labels, most=2)
    assert shown == [5, 7]
    assert counts.tolist() == [[1, 2, 0], [0, 1, 1]]


def test_the_heat_map_is_darker_where_more_pictures_are(tmp_path):
    def darkness(answered):
        manifest = prepared(tmp_path / str(len(answered)), make_taxonomy(3), answered)
        png = draw_mistakes(answered_as(manifest, answered), manifest)["confusion-matrix.png"]
        shown = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
        return (np.abs(shown - np.array([8, 48, 107])).max(axis=-1) < 4).mean()  # the end of the color map

    assert darkness([(0, 1, 5.0)]) > 2 * darkness([(0, 1, 5.0), (0, 0, 5.0)]) > 0
