"""Everything except /identify: health, model, species, metrics, documents, pages, headers, log lines."""

import json
import re

import msgspec
import pytest
import structlog

from serving.schemas import Identification, Problem
from tests.serving.tiny import jpeg, post

ERROR_STATUSES = {"400", "401", "408", "413", "415", "422", "429", "500", "503", "504"}


# ---- request id


def test_request_id_of_the_client_is_in_headers_body_and_log(client):
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        response = post(client, headers={"x-request-id": "plant-42"})
    assert response.headers["x-request-id"] == "plant-42"
    assert response.json()["request_id"] == "plant-42"
    assert [line["request_id"] for line in lines] == ["plant-42"]


@pytest.mark.parametrize("sent", ["a b", "x" * 129, "garden/42", "/", ".", ".."])
def test_request_id_that_cannot_be_a_part_of_an_address_is_replaced(client, sent):
    answer = post(client, headers={"x-request-id": sent})
    assert re.fullmatch("[0-9a-f]{32}", answer.json()["request_id"])
    assert answer.headers["x-request-id"] == answer.json()["request_id"]


def test_each_request_has_one_log_line_without_file_names(client):
    with structlog.testing.capture_logs() as lines:
        client.post("/identify?k=2", files=[("image", ("my garden.jpg", jpeg(), "image/jpeg"))])
        client.post("/identify", content=b"")
    assert [line["event"] for line in lines] == ["request", "request"]
    assert [(line["route"], line["status"], line.get("code")) for line in lines] == [
        ("/identify", 200, None),
        ("/identify", 400, "no_image"),
    ]
    assert "garden" not in json.dumps(lines)


# ---- health and model


@pytest.mark.parametrize(("address", "page"), [("/docs", "/schema"), ("/openapi.json", "/schema/openapi.json")])
def test_usual_addresses_of_documentation_lead_to_ours(client, address, page):
    response = client.get(address)
    assert (response.url.path, response.status_code) == (page, 200)


# ---- metrics


def test_metrics_count_requests_stages_pictures_and_refusals(start):
    client = start(in_process=False)
    post(client, jpeg(), jpeg())
    post(client, b"text")
    client.get("/nowhere/at/all")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in response.text.splitlines() if not line.startswith("#"))
    assert values['botanify_requests_total{method="POST",route="/identify",status="200"}'] == "1.0"
    assert values['botanify_requests_total{method="POST",route="/identify",status="415"}'] == "1.0"
    assert values['botanify_requests_total{method="GET",route="unmatched",status="404"}'] == "1.0"
    assert values['botanify_refusals_total{code="unsupported_format"}'] == "1.0"
    assert values['botanify_pictures_total{format="JPEG"}'] == "2.0"
    assert values["botanify_requests_in_flight"] == "1.0"  # the request for the metrics
    for stage in ("read", "decode", "queue", "run", "rank"):
        assert float(values[f'botanify_stage_seconds_count{{stage="{stage}"}}']) >= 1
    assert any(line.startswith("botanify_model_info") and 'name="tiny"' in line for line in values)


# ---- documents


def test_openapi_declares_every_error_as_a_problem_document(client):
    paths = client.get("/schema/openapi.json").json()["paths"]
    responses = paths["/identify"]["post"]["responses"]
    assert set(responses) == {"200"} | ERROR_STATUSES
    errors = [
        content
        for path in paths.values()
        for operation in path.values()
        for status, response in operation["responses"].items()
        if status != "200"
        for content in response["content"]
    ]
    assert set(errors) == {"application/problem+json"}


def test_openapi_describes_every_field_and_shows_what_identify_answers(client):
    document = client.get("/schema/openapi.json").json()
    asked = document["paths"]["/identify"]["post"]
    assert all(parameter["description"] and parameter["schema"]["type"] for parameter in asked["parameters"])
    for name, record in document["components"]["schemas"].items():
        assert all(field["description"] for field in record["properties"].values()), name
    shares = document["components"]["schemas"]["Prediction"]["properties"]
    assert shares["score"]["description"] == "Probability in [0, 1]."
    for status, kind in (("200", Identification), ("422", Problem), ("429", Problem), ("503", Problem)):
        [content] = asked["responses"][status]["content"].values()
        shown = msgspec.json.encode(msgspec.convert(content["example"], kind))
        assert json.loads(shown) == content["example"]


def test_viewer_and_page_load_nothing_from_other_hosts(client):
    for address in ("/", "/schema"):
        response = client.get(address)
        assert response.headers["content-type"].startswith("text/html")
        assert not re.search(r"""(src|href|url)\s*=\s*["']?(https?:)?//""", response.text)
        assert "default-src 'self'" in response.headers["content-security-policy"]


# ---- addresses and methods


@pytest.mark.parametrize("address", ["/", "/model", "/health/ready", "/schema/openapi.json", "/web/style.css"])
def test_head_is_get_without_the_body(client, address):
    head, get = client.head(address), client.get(address)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]
    assert head.headers["content-type"] == get.headers["content-type"]
