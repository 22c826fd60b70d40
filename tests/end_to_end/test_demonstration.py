"""The released demonstration bundle: its stated figures, in process and over HTTP."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from models.bundle import load_bundle
from models.ranking import output_probabilities, taxon_probabilities
from serving.settings import find_bundle
from tests.end_to_end.photographs import listed
from tests.make import PHOTOS, ROOT, ran
from tests.models.pictures import as_camera_file
from tests.serving import program
from training.dataset.audit.examine import examine
from training.dataset.manifest import Manifest
from training.fit.pictures import Pictures, bundle_network, run
from training.prepare import CACHE_FILE, Sources, prepare

MAX_BUNDLE_BYTES = 15_000_000
NUM_TEST = 1531  # of data_plants
SAME_PHOTOGRAPHS = ROOT / "benchmarks" / "results" / "intel-xeon-2-cores" / "same_photographs.json"
NEAR_COPY_BITS = 8  # as in data_plants.toml


@pytest.fixture(scope="module")
def bundle():
    return load_bundle(find_bundle(None))


@pytest.fixture(scope="module")
def service():
    """The real program on a free port, with its default bundle."""
    with program.service(None) as running, running.client() as client:
        yield client


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    """Photographs of data_plants, whose splits those of the bundle keep."""
    out = tmp_path_factory.mktemp("data") / "plants"
    prepare(Sources(collection=Path("data_plants"), root=PHOTOS, out=out, workers=1))
    return Manifest(out)


def test_demonstration_bundle_is_small_and_complete(bundle):
    assert sum(path.stat().st_size for path in bundle.folder.iterdir()) < MAX_BUNDLE_BYTES
    assert all(check.passed for check in bundle.network("fp32").checks)
    assert "unclear" in json.dumps([source.note for source in bundle.record.sources])


def test_five_lines_of_python_print_the_names_inside_the_network_file(bundle):
    program = (
        "import json, sys, onnxruntime\n"
        "session = onnxruntime.InferenceSession(sys.argv[1])\n"
        "fields = session.get_modelmeta().custom_metadata_map\n"
        "for position, name in enumerate(json.loads(fields['scientific_names'])):\n"
        "    print(position, name)\n"
    )
    network = bundle.folder / bundle.network("fp32").file
    printed = ran(sys.executable, "-c", program, network, check=True)
    names = [bundle.taxonomy.taxa[taxon].scientific_name for taxon in bundle.taxonomy.taxon_of_output]
    assert printed.stdout.splitlines() == [f"{position} {name}" for position, name in enumerate(names)]


def rows_of_flowers17(manifest):
    """Its test photographs."""
    rows = manifest.rows_of("test")
    return rows[manifest.table["source"].take(rows).cast("string").to_numpy() == "flowers17"]


@pytest.mark.photos
@pytest.mark.slow
class TestPhotographs:
    def test_http_and_in_process_agree_and_name_the_published_flowers_as_often_as_stated(
        self, bundle, flowers, service
    ):
        rows = rows_of_flowers17(flowers)
        pictures = Pictures(flowers, rows, bundle.record.input, "published test photographs")
        outputs = run(bundle_network(bundle, "fp32"), pictures)
        taxa, temperature = bundle.taxonomy.taxa, bundle.network("fp32").temperature
        taxa_NT = taxon_probabilities(output_probabilities(outputs.logits[:], temperature), bundle.taxonomy)
        right = [flowers.taxonomy.taxa[taxon].taxon_id for taxon in pictures.taxa]
        top1 = np.mean([taxa[best].taxon_id for best in taxa_NT.argmax(axis=1)] == np.array(right))
        known = json.loads(SAME_PHOTOGRAPHS.read_bytes())["known"]
        stated = next(each["top1"] for each in known if each["what"] == "flowers17")
        assert (len(rows), top1) == (stated["num_pictures"], pytest.approx(stated["value"], abs=6 / 272))
        for row, scores in zip(rows, taxa_NT, strict=True):
            picture = flowers.path(int(row)).read_bytes()
            answer = service.post("/identify?k=17", content=picture, headers={"content-type": "image/jpeg"}).json()
            assert answer["predictions"][0]["taxon_id"] == taxa[int(scores.argmax())].taxon_id
            expected = {taxon.taxon_id: score for taxon, score in zip(taxa, scores, strict=True)}
            for prediction in answer["predictions"]:
                assert prediction["score"] == pytest.approx(expected[prediction["taxon_id"]], abs=1e-4)

    def test_no_test_photograph_was_trained_on(self, flowers):
        places = [(str(row), flowers.path(row)) for row in range(len(flowers))]
        found = examine(places, cache=flowers.folder / CACHE_FILE, workers=1, min_side_px=1)
        hashes = np.array([picture.perceptual_hash for picture in found], dtype=np.uint64)
        tested = np.isin(range(len(flowers)), flowers.rows_of("test"))
        assert (tested.sum(), (~tested).sum()) == (NUM_TEST, 10_439)
        near = np.bitwise_count(hashes[tested][:, None] ^ hashes[~tested]) <= NEAR_COPY_BITS
        assert not (near & (flowers.labels[tested][:, None] == flowers.labels[~tested])).any()
        for column in ("sha256", "group"):
            values = flowers.table[column].to_numpy()
            assert not set(values[tested]) & set(values[~tested])

    def test_the_published_test_photographs_of_the_flowers_are_those_tested(self, flowers):
        published = {row["path"] for row in listed(PHOTOS / "flowers17") if row["split"] == "test"}
        paths = flowers.table["path"].take(rows_of_flowers17(flowers)).to_pylist()
        assert {PHOTOS / "flowers17" / path for path in paths} == published


def scores_of(service, picture):
    answer = service.post("/identify?k=17", files={"image": picture}).raise_for_status().json()
    return {taxon["taxon_id"]: taxon["score"] for taxon in answer["predictions"]}


@pytest.mark.slow
@pytest.mark.photos
@pytest.mark.parametrize("name", ["orientation/landscape_1.jpg", "orientation/portrait_1.jpg", "phone_flower_8mp.jpg"])
def test_one_photograph_in_all_eight_orientations_gets_one_answer(service, name):
    upright = ImageOps.exif_transpose(Image.open(PHOTOS / "photos" / name))
    expected, *others = [
        scores_of(service, as_camera_file(upright, "JPEG", orientation)) for orientation in range(1, 9)
    ]
    first = max(expected, key=expected.get)
    least = min(expected.values())
    for scores in others:
        assert scores[first] > max(scores.values()) - 0.01  # the same name, or a tie on a scene without a flower
        # Which taxa are the last of the 17 may differ where they tie.
        assert all(abs(scores.get(key, least) - expected.get(key, least)) <= 0.02 for key in scores | expected)


@pytest.mark.photos
@pytest.mark.parametrize(("shape", "size"), [("landscape", (600, 450)), ("portrait", (450, 600))])
def test_files_of_all_eight_orientations_have_their_upright_size(service, shape, size):
    # Only the size is compared, since each file shows another large digit in its center (benchmarks/LOG.md).
    for orientation in range(1, 9):
        picture = (PHOTOS / "photos" / "orientation" / f"{shape}_{orientation}.jpg").read_bytes()
        (image,) = service.post("/identify", files={"image": picture}).raise_for_status().json()["images"]
        assert (image["width"], image["height"]) == size


def test_first_question_of_the_readme_is_the_example_of_the_page_and_gets_the_answer_shown(service):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    path = re.search(r"image=@(\S+)", readme)[1]
    shown = re.search(r'"verdict": \{"rank": "\w+", "name": "([^"]+)", "score": ([\d.]+)', readme)
    example = service.get("/model").json()["example"]
    assert path == f"serving{example}"
    picture = service.get(example)
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content == (ROOT / path).read_bytes()
    assert len(picture.content) < 60_000
    verdict = service.post("/identify?k=2", files={"image": picture.content}).json()["verdict"]
    assert verdict["name"] == shown[1]
    assert verdict["score"] == pytest.approx(float(shown[2]), abs=0.001)
