"""Checks the real program against its OpenAPI document with schemathesis."""

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import (
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.openapi import from_url

from tests.serving.program import service
from tests.serving.tiny import BLUE, GREEN, RED, draw, encode

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
# Some pictures among arbitrary bytes, since arbitrary bytes alone would never get an answer with names.
PICTURES = [encode(draw(color), name) for color in (RED, GREEN, BLUE) for name in ("JPEG", "PNG", "WEBP")]
_BODIES = st.sampled_from(PICTURES) | st.binary(max_size=200)


@pytest.fixture(scope="module")
def schema(bundle_folder):
    schemathesis.openapi.format("binary", _BODIES)
    for kind in ("jpeg", "png", "webp", "heic", "avif"):
        schemathesis.openapi.media_type(f"image/{kind}", _BODIES)
    schemathesis.openapi.media_type("application/octet-stream", _BODIES)
    with service(bundle_folder) as running:
        yield from_url(f"{running.url}/schema/openapi.json")
        assert running.process.poll() is None
        assert not [line for line in running.lines if '"internal"' in line]


def try_operation(schema, path, method, mode, num_examples):
    """Sends generated requests and checks the responses; returns how often each status came back."""
    statuses = Counter()

    @given(case=schema[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def send(case):
        response = case.call_and_validate(checks=CHECKS)
        statuses[response.status_code] += 1

    send()
    return statuses


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_identify_conforms_to_the_schema(schema, mode):
    statuses = try_operation(schema, "/identify", "POST", mode, 30)
    if mode is GenerationMode.POSITIVE:
        assert statuses[200] > 5, statuses
    assert set(statuses) - {200}, statuses


def test_generated_taxon_ids_conform_to_the_schema(schema):
    assert try_operation(schema, "/species/{taxon_id}", "GET", GenerationMode.POSITIVE, 20)[404] > 0


@pytest.mark.parametrize("path", ["/species", "/model", "/health/live", "/health/ready"])
def test_other_routes_conform_to_the_schema(schema, path):
    statuses = try_operation(schema, path, "GET", GenerationMode.POSITIVE, 20)
    assert statuses[200] > 0, statuses
