"""Pl@ntNet's interface: requests as its clients send them, and the fields that they read."""

import hashlib

import pytest
from msgspec.structs import replace

from models.errors import InputError
from serving.access.keys import make_key
from serving.app import create_app
from serving.plugins.plantnet import UNLIMITED
from serving.settings import Settings
from tests.serving.conftest import ready_service
from tests.serving.tiny import GREEN, RED, TAXA, WHITE, InProcessDecoder, assert_problem, identify, jpeg, scores, tables

RED_ROSE, SHOE = jpeg(RED), jpeg(WHITE)
LISTS = ("projects", "languages", "species", "projects/all/species")


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

    def begin(**more):
        secret, key = make_key("app")
        return start(plantnet_api=True, api_keys=key.line, **more), secret

    return begin


def ask(client, *pictures, project="all", organs=(), **query):
    names = {name.replace("_", "-"): value for name, value in query.items()}
    files = [("images", (f"{index}.jpg", data, "image/jpeg")) for index, data in enumerate(pictures)]
    return client.post(f"/v2/identify/{project}", params=names, files=files, data={"organs": list(organs)})


def assert_failure(response, status, error, message):
    assert response.status_code == status
    found = response.json()
    assert (found["statusCode"], found["error"]) == (status, error)
    assert message in found["message"]
    assert set(found) == {"statusCode", "error", "message"}


def test_an_answer_has_every_field_that_clients_declare(client):
    response = ask(client, RED_ROSE, RED_ROSE, organs=("flower", "leaf"), nb_results=2, lang="en", api_key="any")
    assert response.status_code == 200, response.text
    found = response.json()
    digest = hashlib.md5(RED_ROSE).hexdigest()
    assert found["query"] == {
        "project": "all",
        "images": [digest, digest],
        "organs": ["flower", "leaf"],
        "includeRelatedImages": False,
        "noReject": False,
        "type": None,
    }
    assert (found["language"], found["preferedReferential"], found["predictedOrgans"]) == ("en", "tiny", [])
    assert found["bestMatch"] == "Rosa canina"
    assert found["remainingIdentificationRequests"] == UNLIMITED
    assert found["version"].endswith(")")
    best, second = found["results"]
    assert best["score"] > second["score"]
    assert best["species"] == {
        "scientificNameWithoutAuthor": "Rosa canina",
        "scientificNameAuthorship": "",
        "scientificName": "Rosa canina",
        "genus": {"scientificNameWithoutAuthor": "Rosa", "scientificNameAuthorship": "", "scientificName": "Rosa"},
        "family": {
            "scientificNameWithoutAuthor": "Rosaceae",
            "scientificNameAuthorship": "",
            "scientificName": "Rosaceae",
        },
        "commonNames": ["dog rose"],
    }
    assert (best["gbif"], best["powo"]) == ({"id": "3003446"}, {"id": "732025-1"})
    assert (best["images"], second["gbif"]) == ([], None)


def test_the_scores_are_those_of_identify(client):
    theirs = ask(client, RED_ROSE).json()["results"]
    assert [each["score"] for each in theirs] == [*scores(identify(client, RED_ROSE)).values()]


@pytest.mark.parametrize(
    ("lang", "names"),
    [
        ("fr", []),
        ("de-DE", ["Hundsrose", "Heckenrose"]),
        ("DE", ["Hundsrose", "Heckenrose"]),
        ("EN", ["dog rose"]),
        ("en-GB", ["dog rose"]),
        ("en_US", ["dog rose"]),
        ("", ["dog rose"]),
    ],
)
def test_common_names_are_in_the_language_of_the_request_or_empty(client, lang, names):
    found = ask(client, RED_ROSE, lang=lang).json()
    told = lang.lower().replace("_", "-") or "en"
    assert (found["language"], found["results"][0]["species"]["commonNames"]) == (told, names)
    assert client.get("/v2/species", params={"lang": lang}).json()[0]["commonNames"] == names
    assert client.get("/v2/languages").json() == ["de", "en", "pt-br"]


def test_what_is_no_plant_is_not_found_unless_the_client_wants_the_list(client):
    assert ask(client, SHOE).json() == {"statusCode": 404, "error": "Not Found", "message": "Species not found"}
    found = ask(client, SHOE, no_reject="true").json()
    assert found["query"]["noReject"] is True
    assert len(found["results"]) == len(TAXA)


def test_an_answer_without_a_certain_name_has_a_warning_or_is_not_found_as_the_program_wants(client):
    gray = jpeg((90, 90, 90))
    (warning,) = ask(client, gray).json()["warnings"]
    assert warning.startswith("No name is certain enough: ")
    assert_failure(ask(client, gray, reject_uncertain="true"), 404, "Not Found", "Species not found")
    assert ask(client, RED_ROSE, reject_uncertain="true").json()["warnings"] == []
    cut_off = ask(client, RED_ROSE[:-2]).json()["warnings"]
    assert cut_off == ["Picture 1 is cut off at its end, where a few rows may be missing."]


@pytest.mark.parametrize(
    ("color", "project", "score", "warnings"),
    [
        (GREEN, "weurope", 0.007, ["No name is certain enough: 0.99"]),
        ((90, 90, 90), "meadow", 0.309, ["The plant may be none of this project: species 0.57 reaches 0.50. 0.58"]),
        (GREEN, "meadow", 0.963, []),
    ],
)
def test_a_project_that_lacks_the_plant_has_a_warning_and_low_scores(client, color, project, score, warnings):
    found = ask(client, jpeg(color), project=project).json()
    assert found["results"][0]["score"] == pytest.approx(score, abs=0.0005)
    outside = " of the probability is on plants that the request does not allow."
    assert found["warnings"] == [f"{each}{outside}" for each in warnings]


def test_a_project_is_a_list_of_taxa(client):
    found = ask(client, SHOE, project="weurope", no_reject="true").json()
    assert {each["species"]["genus"]["scientificName"] for each in found["results"]} == {"Rosa"}
    everything, _, moon, europe = client.get("/v2/projects").json()
    assert (everything["id"], everything["speciesCount"]) == ("all", len(TAXA))
    assert (europe["id"], europe["speciesCount"]) == ("weurope", 2)
    assert (moon["id"], moon["speciesCount"]) == ("moon", 0)
    assert_failure(ask(client, RED_ROSE, project="moon"), 404, "Not Found", "no species of this project")
    listed = client.get("/v2/projects/weurope/species").json()
    assert [each["scientificNameWithoutAuthor"] for each in listed] == ["Rosa canina", "Rosa rugosa"]
    assert len(client.get("/v2/species").json()) == len(TAXA)
    for response in (ask(client, RED_ROSE, project="mars"), client.get("/v2/projects/mars/species")):
        assert_failure(response, 404, "Not Found", "Project not found")


@pytest.mark.parametrize(
    ("pictures", "status", "error", "message"),
    [
        (
            [b""],
            400,
            "Bad Request",
            "`images` is empty (got 0 bytes): send the original photograph in the form field `images`",
        ),
        ([b"GIF89a no picture of a kind that is read"], 415, "Unsupported Media Type", "not"),
        ([RED_ROSE[:300]], 422, "Unprocessable", "does not decode"),
        ([RED_ROSE] * 6, 422, "Unprocessable", "too many pictures"),
    ],
)
def test_errors_have_the_form_of_the_interface(client, pictures, status, error, message):
    found = ask(client, *pictures, organs=("auto",))
    assert error in found.json()["error"]
    assert_failure(found, status, found.json()["error"], message)


def test_a_form_without_pictures_is_an_error(client):
    form = {"files": [("organs", (None, "leaf"))]}
    assert_failure(client.post("/v2/identify/all", **form), 400, "Bad Request", "in the form field `images`")
    assert_failure(client.post("/v2/identify/all"), 400, "Bad Request", "in the form field `images`")


def test_fields_that_nobody_filled_in_count_as_not_sent(client):
    form = [("images", ("", b"")), ("images", ("a.jpg", RED_ROSE)), ("organs", (None, "leaf")), ("organs", (None, ""))]
    query = {"nb-results": "", "lang": "", "no-reject": "", "api-key": ""}
    answer = client.post("/v2/identify/all", files=form, params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["query"]["organs"] == ["leaf"]


def test_more_organs_than_pictures_are_an_error(client):
    words = "(got 2 organs; expected at most 1, the number of pictures)"
    assert_failure(ask(client, RED_ROSE, organs=("leaf", "flower")), 422, "Unprocessable Entity", words)


def test_what_has_no_route_is_an_error_in_the_form_of_the_interface_below_its_address_only(client):
    assert_failure(client.get("/v2/nowhere"), 404, "Not Found", "nothing at this address")
    refused = client.delete("/v2/projects")
    assert_failure(refused, 405, "Method Not Allowed", "does not support the method")
    assert set(refused.headers["Allow"].split(", ")) >= {"GET", "HEAD"}
    assert_problem(client.get("/nowhere"), 404, "not_found")


def test_a_list_of_the_name_of_all_taxa_is_refused(tmp_path, bundle_folder):
    (tmp_path / "all.txt").write_text("Rosa\n")
    settings = Settings(bundle=bundle_folder, taxa_lists=tmp_path)
    create_app(settings, decoder=InProcessDecoder())
    with pytest.raises(InputError, match=r"stands for all taxa .*all\.txt"):
        create_app(replace(settings, plantnet_api=True), decoder=InProcessDecoder())


def test_a_wrong_number_of_results_is_an_error_and_a_large_one_is_cut(client):
    assert_failure(ask(client, RED_ROSE, nb_results="few"), 422, "Unprocessable Entity", "`nb-results`")
    assert len(ask(client, RED_ROSE, nb_results=1000).json()["results"]) == len(TAXA)


def test_addresses_of_pictures_are_refused_in_words(client):
    response = client.get("/v2/identify/all", params={"images": "https://example.org/rose.jpg", "organs": "auto"})
    assert_failure(response, 422, "Unprocessable Entity", "fetches no pictures from addresses")


@pytest.mark.usefixtures("still_clock")
def test_the_key_of_the_query_is_an_api_key(start_with_key):
    client, secret = start_with_key(rate_per_minute=60.0, rate_burst=2)
    assert_failure(ask(client, RED_ROSE), 401, "Unauthorized", "required: send a key as the parameter `api-key`")
    assert_failure(ask(client, RED_ROSE, api_key="wrong"), 401, "Unauthorized", "not valid")
    left = [ask(client, RED_ROSE, api_key=secret).json()["remainingIdentificationRequests"] for _ in range(2)]
    assert left == [1, 0]
    refused = ask(client, RED_ROSE, api_key=secret)
    assert_failure(refused, 429, "Too Many Requests", "rate")
    assert refused.headers["Retry-After"] == "1"


@pytest.mark.usefixtures("still_clock")
def test_lists_count_for_the_rate_of_answers_alone(start, monkeypatch):
    monkeypatch.setattr("serving.access.control._OPEN_REQUEST", 1.0)  # as much as the address may send
    client = start(plantnet_api=True, rate_per_minute=60.0, rate_burst=1)
    lists = [client.get(f"/v2/{path}").status_code for path in (*LISTS, "identify/all")]
    assert lists == [200, 429, 429, 429, 429]
    assert [client.get("/model").status_code for _ in range(2)] == [200, 429]


@pytest.mark.parametrize("path", LISTS)
def test_lists_need_a_key_where_answers_do(start_with_key, path):
    client, secret = start_with_key()
    assert_failure(client.get(f"/v2/{path}"), 401, "Unauthorized", "required")
    assert client.get(f"/v2/{path}", params={"api-key": secret}).status_code == 200


def test_the_key_is_in_no_log(start_with_key, capsys):
    client, secret = start_with_key()
    assert ask(client, RED_ROSE, api_key=secret).status_code == 200
    said = "".join(capsys.readouterr())
    assert "/v2/identify/{project}" in said
    assert secret not in said
    assert client.get("/species", params={"api-key": secret}).status_code == 401  # only this interface reads it there


def test_the_interface_is_off_by_default(start):
    assert ask(start(), RED_ROSE).status_code == 404


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


def test_the_status_says_ok(client):
    assert client.get("/v2/_status").json() == {"status": "ok"}
