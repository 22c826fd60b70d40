"""Pl@ntNet's interface: requests as its clients send them, and the fields that they read."""

import pytest
from msgspec.structs import replace

from models.errors import InputError
from serving.access.keys import make_key
from serving.app import create_app
from serving.settings import Settings
from tests.serving.conftest import ready_service
from tests.serving.tiny import RED, WHITE, InProcessDecoder, identify, jpeg, scores, tables

RED_ROSE, SHOE = jpeg(RED), jpeg(WHITE)


@pytest.fixture(scope="module")
def client(sealed, tmp_path_factory):
    lists = tmp_path_factory.mktemp("lists")
    (lists / "weurope.txt").write_text("Rosa\n")
    (lists / "moon.txt").write_text("Luna lunae\n")
    (lists / "meadow.txt").write_text("Rosa canina\nBellis perennis\n")
    with ready_service(bundle=sealed(calibration=tables()), taxa_lists=lists, plantnet_api=True) as client:
        yield client


@pytest.fixture
def start_with_key(start):
    """Starts a service with the interface that knows one key; returns a client without it, and the key."""

    def begin(quota="", **more):
        secret, key = make_key("app")
        return start(plantnet_api=True, api_keys=key.line + quota, **more), secret

    return begin


def ask(client, *pictures, project="all", organs=(), **query):
    names = {name.replace("_", "-"): value for name, value in query.items()}
    files = [("images", (f"{index}.jpg", data, "image/jpeg")) for index, data in enumerate(pictures)]
    return client.post(f"/v2/identify/{project}", params=names, files=files, data={"organs": list(organs)})


def test_the_scores_are_those_of_identify(client):
    theirs = ask(client, RED_ROSE).json()["results"]
    assert [each["score"] for each in theirs] == [*scores(identify(client, RED_ROSE)).values()]


def test_a_list_of_the_name_of_all_taxa_is_refused(tmp_path, bundle_folder):
    (tmp_path / "all.txt").write_text("Rosa\n")
    settings = Settings(bundle=bundle_folder, taxa_lists=tmp_path)
    create_app(settings, decoder=InProcessDecoder())
    with pytest.raises(InputError, match=r"stands for all taxa .*all\.txt"):
        create_app(replace(settings, plantnet_api=True), decoder=InProcessDecoder())


@pytest.mark.usefixtures("still_clock")
@pytest.mark.parametrize("limits", [{"rate_per_minute": 60.0, "rate_burst": 2}, {"quota": " 2/day"}])
def test_the_key_of_the_query_is_an_api_key(start_with_key, limits):
    client, secret = start_with_key(**limits)
    left = [ask(client, RED_ROSE, api_key=secret).json()["remainingIdentificationRequests"] for _ in range(2)]
    assert left == [1, 0]
    refused = ask(client, RED_ROSE, api_key=secret)
    assert (refused.status_code, refused.json()["error"]) == (429, "Too Many Requests")
    assert int(refused.headers["Retry-After"]) == 1 or "quota" in limits


def test_the_key_is_in_no_log(start_with_key, capsys):
    client, secret = start_with_key()
    assert ask(client, RED_ROSE, api_key=secret).status_code == 200
    said = "".join(capsys.readouterr())
    assert "/v2/identify/{project}" in said
    assert secret not in said


def test_the_document_lists_the_form_and_the_parameters_in_schemas_that_generators_of_clients_read(client):
    document = client.get("/schema/openapi.json")
    assert '"items":{}' not in document.text  # a list of anything
    assert '"type":["null","object","array"]' not in document.text  # the framework's own error, which no route gives
    operation = document.json()["paths"]["/v2/identify/{project}"]["post"]
    assert {"api-key", "nb-results", "no-reject", "lang", "project"} <= {
        each["name"] for each in operation["parameters"]
    }
    assert [each["schema"]["default"] for each in operation["parameters"] if each["name"] == "nb-results"] == [10]
    assert "images" in operation["requestBody"]["content"]["multipart/form-data"]["schema"]["properties"]
