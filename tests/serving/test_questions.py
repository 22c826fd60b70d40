"""Answers of a bundle with calibration tables: weights of pictures, rejection, candidate sets, chosen taxa."""

import numpy as np
import pytest
from msgspec.structs import replace

from models.bundle import BUNDLE_FILE, file_sha256
from models.calibration import CALIBRATION_FILE, LogisticHead
from models.ranking import Promise
from serving.access.keys import make_key
from tests.models.test_bundle import edit
from tests.serving.conftest import failure_of_start
from tests.serving.tiny import (
    WHITE,
    assert_problem,
    identify,
    jpeg,
    scores,
    tables,
)

PROMISE = Promise(max_risk=0.05, confidence=0.95, num_named=812, num_wrong=21)
SHOE = jpeg(WHITE)


# ---- chosen taxa


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


def test_bundle_whose_tables_give_no_finite_plant_score_is_refused(sealed):
    features = replace(tables().features, basis_FD=np.full((3, 3), 1e30, np.float32))  # its square is infinite
    folder = sealed(calibration=tables(features=features, plant_head=LogisticHead(np.ones(3), 0, 1, 0)))
    assert "scores that are not finite" in failure_of_start(bundle=folder)


# ---- the model


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
