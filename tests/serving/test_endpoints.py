"""Everything except /identify: health, model, species, metrics, documents, pages, headers, log lines."""

import json
import re

import pytest
import structlog

from tests.serving.tiny import TAXONOMY, assert_problem, jpeg, post

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


def test_model_describes_the_bundle(client):
    card = client.get("/model").json()
    assert (card["name"], card["version"], card["label_hash"]) == ("tiny", "0.0.1", TAXONOMY.label_hash)
    assert card["architecture"]["num_outputs"] == 6
    assert (card["input"]["height"], card["input"]["width"]) == (32, 32)
    assert card["precision"] == "fp32"
    assert card["providers"] == ["CPUExecutionProvider"]
    assert card["metrics"][0]["num_pictures"] == 10
    assert card["sources"][0]["licenses"] == card["sources"][0]["licences"] == {"CC0": 10}
    assert card["sources"][0]["note"] == "for tests"
    assert card["thresholds"] == {"species": 0.5, "genus": 0.5, "family": 0.5}
    assert card["description"] == "Distinguishes colors."
    assert (card["num_taxa"], card["num_species"], card["num_genera"], card["example"]) == (5, 4, 1, None)
    assert card["languages"] == ["en", "de", "pt"]
    assert (card["manifest_sha256"], card["trained_commit"], card["other_data"]) == ("", "unknown", False)


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


def test_openapi_declares_both_kinds_of_body(client):
    operation = client.get("/schema/openapi.json").json()["paths"]["/identify"]["post"]
    assert {"multipart/form-data", "image/jpeg", "image/heic"} <= set(operation["requestBody"]["content"])
    image = operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]["image"]
    assert (image["type"], image["minItems"], image["maxItems"]) == ("array", 1, 5)
    (k,) = [parameter for parameter in operation["parameters"] if parameter["name"] == "k"]
    assert (k["name"], k["schema"]["type"], k["schema"]["minimum"], k["schema"]["maximum"]) == ("k", "integer", 1, 50)


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


def test_viewer_and_page_load_nothing_from_other_hosts(client):
    for address in ("/", "/schema"):
        response = client.get(address)
        assert response.headers["content-type"].startswith("text/html")
        assert not re.search(r"""(src|href|url)\s*=\s*["']?(https?:)?//""", response.text)
        assert "default-src 'self'" in response.headers["content-security-policy"]


# ---- addresses and methods


@pytest.mark.parametrize(
    "address",
    ["/nowhere", "/schema/nowhere", "/schema/nowhere.json", "/web/nowhere", "/web/%00", f"/web/{'x' * 5000}", "/web",
     "/web/..%2fapp.py", "/web/../app.py", "/web//etc/passwd", "/identify/x"],
)  # fmt: skip
def test_unknown_address_is_a_problem_document(client, address):
    response = client.get(address)
    assert_problem(response, 404, "not_found")
    assert "/work" not in response.text


@pytest.mark.parametrize(
    ("method", "address", "allowed"),
    [
        ("GET", "/identify", {"POST", "OPTIONS"}),
        ("DELETE", "/model", {"GET", "HEAD", "OPTIONS"}),
        ("POST", "/", {"GET", "HEAD", "OPTIONS"}),
        ("HEAD", "/identify", {"POST", "OPTIONS"}),
    ],
)
def test_unknown_method_is_a_problem_document_with_allow(client, method, address, allowed):
    response = client.request(method, address)
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == allowed
    if method != "HEAD":
        assert_problem(response, 405, "method_not_allowed")


@pytest.mark.parametrize("address", ["/", "/model", "/health/ready", "/schema/openapi.json", "/web/style.css"])
def test_head_is_get_without_the_body(client, address):
    head, get = client.head(address), client.get(address)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == get.headers["content-length"]
    assert head.headers["content-type"] == get.headers["content-type"]
