"""Answers of a bundle with calibration tables: weights of pictures, rejection, candidate sets, chosen taxa."""

import msgspec
import numpy as np
import pytest
from litestar.testing import TestClient
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE, file_sha256
from models.bundle_record import MeasuredCoverage
from models.calibration import CALIBRATION_FILE, LogisticHead
from models.ranking import Promise, Promises, Thresholds
from serving.access.keys import make_key
from serving.app import create_app
from serving.settings import Settings
from tests.models.test_bundle import edit
from tests.serving.conftest import ready_service
from tests.serving.tiny import (
    BLUE,
    RED,
    TAXA,
    WHITE,
    InProcessDecoder,
    assert_problem,
    identify,
    jpeg,
    scores,
    tables,
    taxon_ids,
)
from tests.waiting import wait_until

PROMISE = Promise(max_risk=0.05, confidence=0.95, num_named=812, num_wrong=21)
MEASURED = MeasuredCoverage("marginal", 0.9, 0.93, 1280, "colors, test split", (0.915, 0.943))
SHOE = jpeg(WHITE)


@pytest.fixture(scope="module")
def calibrated(sealed, tmp_path_factory):
    """The service with a bundle that has tables."""
    lists = tmp_path_factory.mktemp("lists")
    (lists / "roses.txt").write_text("Rosa\nQuercus robur\n")
    bundle = sealed(calibration=tables(), promises=Promises(genus=PROMISE), coverages=(MEASURED,))
    with ready_service(bundle=bundle, taxa_lists=lists) as client:
        yield client


# ---- pictures


def test_each_picture_has_its_share_and_its_own_predictions(calibrated):
    answer = identify(calibrated, jpeg(RED), SHOE, jpeg(BLUE))
    weights = [image["weight"] for image in answer["images"]]
    assert (weights[1], sum(weights)) == (0, pytest.approx(1))
    assert answer["images"][1]["plant_score"] < 0.05 < 0.95 < answer["plant_score"]
    for image, picture in zip(answer["images"], (jpeg(RED), SHOE, jpeg(BLUE)), strict=True):
        alone = identify(calibrated, picture)
        assert image["predictions"] == alone["predictions"][:3]
        assert image["plant_score"] == pytest.approx(alone["plant_score"])


# ---- promises and candidate sets


def test_candidate_set_has_every_field(calibrated):
    answer = identify(calibrated, jpeg(RED), coverage=0.8, coverage_kind="macro")
    found = answer["candidates"]
    by_id = scores(answer)
    assert (found["coverage"], found["kind"], found["guarantee"]) == (0.8, "macro", "macro")
    assert found["num_uncalibrated_taxa"] == 1
    assert found["num_taxa"] == len(found["taxa"]) > 0
    assert found["score"] == pytest.approx(sum(by_id[each] for each in taxon_ids(found["taxa"])))
    assert [entry["position"] for entry in found["taxa"]] == list(range(1, len(found["taxa"]) + 1))
    assert identify(calibrated, jpeg(RED))["candidates"] is None


# ---- look-alikes


def test_look_alikes_are_taxa_like_those_of_the_ranking(start, sealed):
    similar = {"rosa-canina": ("crocus-vernus", "rosa-rugosa")}
    client = start(bundle=sealed(look_alikes=similar, thresholds=Thresholds(species=0.4, genus=0.5)))
    answer = identify(client, lang="de")
    found = answer["look_alikes"]
    assert taxon_ids(found) == ["rosa-rugosa", "crocus-vernus"]
    assert answer["verdict"]["reason"].endswith(" It is often taken for Rosa rugosa or Crocus vernus.")
    ranked = {each["taxon_id"]: each for each in answer["predictions"]}
    assert found == [ranked[each["taxon_id"]] | {"position": at} for at, each in enumerate(found, start=1)]


# ---- chosen taxa


@pytest.mark.parametrize(
    ("taxa", "allowed", "name", "score"),
    [
        (["Asteraceae", "spring crocus"], {"bellis-perennis", "crocus-vernus"}, "Crocus vernus", 0.54),
        (["list:roses", "daisy"], {"rosa-canina", "rosa-rugosa", "bellis-perennis"}, "Rosa", 0.7049),
    ],
)
def test_every_list_of_an_answer_has_the_chosen_taxa_alone(calibrated, taxa, allowed, name, score):
    answer = identify(calibrated, jpeg(BLUE), jpeg(RED), taxa=taxa, coverage=0.9)
    found = answer["candidates"]
    assert set(taxon_ids(found["taxa"])) <= set(scores(answer)) == allowed
    assert {entry["taxon_id"] for image in answer["images"] for entry in image["predictions"]} == allowed
    assert {group["name"] for group in answer["genera"]} == {taxon.genus for taxon in TAXA if taxon.taxon_id in allowed}
    assert sum(scores(answer).values()) == pytest.approx(1)
    free = identify(calibrated, jpeg(BLUE), jpeg(RED))
    assert answer["discarded_mass"] == pytest.approx(1 - sum(scores(free)[name] for name in allowed))
    assert (free["discarded_mass"], found["guarantee"], answer["verdict"]["promise"]) == (None, None, None)
    assert (answer["verdict"]["name"], answer["verdict"]["score"]) == (name, pytest.approx(score, abs=0.0005))
    assert len(answer["warnings"]) == taxa.count("list:roses")


def test_reload_reads_the_lists_again(start, tmp_path):
    (tmp_path / "mine.txt").write_text("Rosa")
    secret, key = make_key("operator", is_admin=True)
    client = start(taxa_lists=tmp_path, api_keys=key.line)
    client.headers["X-API-Key"] = secret
    assert set(scores(identify(client, SHOE, taxa="list:mine"))) == {"rosa-canina", "rosa-rugosa"}
    (tmp_path / "mine.txt").write_text("daisy")
    assert client.post("/admin/reload").status_code == 200
    assert set(scores(identify(client, SHOE, taxa="list:mine"))) == {"bellis-perennis"}
    (tmp_path / "mine.txt").write_text("")
    assert_problem(client.post("/admin/reload"), 409, "reload_refused")
    assert set(scores(identify(client, SHOE, taxa="list:mine"))) == {"bellis-perennis"}


# ---- bundles without tables


def test_bundle_without_tables_answers_without_them_and_says_so(client):
    answer = identify(client, jpeg(RED), SHOE, coverage=0.9)
    assert (answer["plant_score"], answer["candidates"]) == (None, None)
    assert [(image["plant_score"], image["weight"]) for image in answer["images"]] == [(None, 0.5)] * 2
    assert answer["warnings"] == ["The parameter 'coverage' was ignored: this model has no table for candidate sets."]
    assert set(scores(identify(client, jpeg(RED), taxa="Rosa"))) == {"rosa-canina", "rosa-rugosa"}


def test_bundle_whose_tables_give_no_finite_plant_score_is_refused(sealed):
    features = replace(tables().features, basis_FD=np.full((3, 3), 1e30, np.float32))  # its square is infinite
    folder = sealed(calibration=tables(features=features, plant_head=LogisticHead(np.ones(3), 0, 1, 0)))
    failures = []
    service = create_app(Settings(bundle=folder), decoder=InProcessDecoder(), on_failure=failures.append)
    with TestClient(service.app):
        wait_until(lambda: failures)
    assert "scores that are not finite" in str(failures[0])


# ---- the model


def test_model_says_what_calibrated_it(calibrated, client):
    card = calibrated.get("/model").json()
    assert card["calibration"] == {
        "data": "drawn, calibration split",
        "fitted": "2026-11-22",
        "num_plants": 40,
        "num_pictures": 50,
        "num_negatives": 7,
        "num_uncalibrated_taxa": 1,
        "uncalibrated_taxa": ["crocus"],
        "ece": None,
        "coverages": [msgspec.to_builtins(MEASURED) | {"interval_95": [0.915, 0.943]}],
    }
    assert card["promises"]["genus"]["num_named"] == 812
    assert card["promises"]["species"] is None
    assert card["warnings"] == []
    unproved = client.get("/model").json()
    assert unproved["calibration"] is None
    assert unproved["warnings"][-1].startswith("Names are guesses: ")


@pytest.mark.parametrize(("precision", "shown"), [("fp32", 0.03), ("fp16", None)])
def test_calibration_error_is_that_of_the_network_that_runs(start, sealed, precision, shown):
    folder = sealed(calibration=tables())
    arrays = dict(np.load(folder / CALIBRATION_FILE))
    np.savez(
        folder / CALIBRATION_FILE,
        **{name.replace("fp32", each): array for name, array in arrays.items() for each in ("fp32", "fp16")},
    )

    def measure(record):
        record["metrics"] = [{"name": "ece", "data": "drawn", "num_pictures": 9, "value": 0.03}]
        record["networks"]["fp16"] = record["networks"]["fp32"]
        record["files"][CALIBRATION_FILE] = file_sha256(folder / CALIBRATION_FILE)

    edit(folder / BUNDLE_FILE, measure)
    found = start(bundle=folder, precision=precision).get("/model").json()["calibration"]["ece"]
    assert (found and found["value"]) == shown
