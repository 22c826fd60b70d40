"""Requests with their stored answers, in `requests.json`: a row says a fact, what is sent, and what comes back.

A row tells a part of the answer: the keys that it names, lists as long as in the answer, and numbers to a thousandth.
"""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from models.bundle_record import MeasuredCoverage
from models.calibration import Cutoffs
from models.differences import Difference
from models.ranking import Promises
from tests.models.pictures import claiming_size, png
from tests.serving.access.test_keys import KEY
from tests.serving.conftest import ready_service
from tests.serving.test_examples import EXAMPLES
from tests.serving.test_place import BERLIN, PRIOR, RULE, SYDNEY, WINTER, photograph
from tests.serving.test_questions import PROMISE
from tests.serving.tiny import BLUE, GREEN, RED, WHITE, draw, encode, jpeg, tables

ROWS = json.loads(Path(__file__).with_name("requests.json").read_text())
PICTURES = {
    **{name: jpeg(color) for name, color in {"red": RED, "green": GREEN, "blue": BLUE, "shoe": WHITE}.items()},
    **{kind: encode(draw(RED), kind) for kind in ("PNG", "WEBP", "AVIF", "HEIF")},
    "gray": jpeg((90, 90, 90)),
    "tall": jpeg(GREEN, (20, 90)),
    "black and white": encode(draw(mode="1"), "PNG"),
    "cut off": jpeg()[:-2],
    "half": jpeg(size=(300, 300))[:500],
    "text": b"just some text",
    "empty": b"",
    "head of HEIC": b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(50),
    "PNG without pixels": png((100, 100), 8, 2, []),
    "too large": claiming_size("PNG", (10_000, 10_000)),
    "Sydney": photograph(SYDNEY),
    "Berlin in winter": photograph(BERLIN, WINTER),
    "the sea": photograph((0, -140)),
}
LISTS = {"roses": "Rosa\nQuercus robur\n", "moon": "Luna lunae\n", "meadow": "Rosa canina\nBellis perennis\n"}
MEASURED = MeasuredCoverage("marginal", 0.9, 0.93, 1280, "colors, test split", (0.915, 0.943))


@pytest.fixture(scope="module")
def ask(sealed, bundle_folder, tmp_path_factory):
    """Sends a row to the service that it names: one with a bundle of everything, a plain one, or one with a key."""
    lists = tmp_path_factory.mktemp("lists")
    for name, content in LISTS.items():
        (lists / f"{name}.txt").write_text(content)
    full = sealed(
        calibration=tables(),
        promises=Promises(genus=PROMISE),
        coverages=(MEASURED,),
        examples=EXAMPLES,
        place=(PRIOR, RULE),
        look_alikes={"rosa-canina": ("crocus-vernus", "rosa-rugosa")},
    )
    ignorant = sealed(calibration=tables(cutoffs=Cutoffs(plant=0.0, familiar=1.0)))
    roses = Difference("Rosa canina", "Rosa rugosa", "few straight hairs", "many bristles", "a flora")
    with (
        patch("models.differences._by_name", lambda: {"Rosa canina": [roses]}),
        ready_service(bundle=full, taxa_lists=lists, plantnet_api=True) as full_client,
        ready_service(bundle=bundle_folder) as plain_client,
        ready_service(bundle=ignorant, plantnet_api=True) as ignorant_client,
        ready_service(bundle=bundle_folder, plantnet_api=True, api_keys=KEY.line) as keyed_client,
    ):
        clients = {"full": full_client, "plain": plain_client, "keyed": keyed_client, "knowing none": ignorant_client}
        yield lambda row: send(clients[row["of"]], row)


def send(client, row):
    """Sends what a row says: pictures and fields in a form, or one picture as the body."""
    method, address = row["ask"].split(" ")
    sent = {"headers": row.get("headers", {})}
    if "body" in row:
        sent["content"] = PICTURES[row["body"]]
    elif "images" in row or "fields" in row:
        name = "images" if address.startswith("/v2") else "image"
        pictures = [(name, ("a.jpg", PICTURES[each])) for each in row.get("images", ())]
        sent["files"] = pictures + [(name, (None, value)) for name, value in row.get("fields", ())]
    return client.request(method, address, **sent)


def assert_within(told, found, at="answer"):
    """Checks that the answer has what the row tells."""
    if isinstance(told, dict):
        for key, value in told.items():
            assert key in found, f"{at} has no {key}"
            assert_within(value, found[key], f"{at}.{key}")
    elif isinstance(told, list):
        assert len(found) == len(told), f"{at}: {found}"
        for number, value in enumerate(told):
            assert_within(value, found[number], f"{at}[{number}]")
    elif isinstance(told, float):
        assert found == pytest.approx(told, abs=1e-3), at
    else:
        assert found == told, at


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["fact"])
def test_request_has_its_stored_answer(ask, row):
    response = ask(row)
    assert response.status_code == row["status"], response.text
    is_problem = response.status_code >= 400 and not row["ask"].partition(" ")[2].startswith("/v2")
    if is_problem and response.content:
        problem = response.json()
        assert (response.headers["content-type"], problem["status"]) == ("application/problem+json", row["status"])
        assert problem["type"] == f"urn:botanify:problem:{problem['code']}"
        assert problem["request_id"] == response.headers["x-request-id"]
        assert len(problem["detail"]) < 400
    for name, value in row.get("response_headers", {}).items():
        assert response.headers[name] == value
    if "answer" in row:
        assert_within(row["answer"], response.json())
