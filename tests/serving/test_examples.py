"""Reference pictures: listed with a taxon, served with caching, counted in answers."""

import pytest

from models.examples import Example
from serving.access.keys import make_key
from tests.serving.conftest import ready_service
from tests.serving.tiny import RED, assert_problem, draw, encode, jpeg

ROSES = [encode(draw(color), "WEBP") for color in (RED, (200, 40, 40))]
EXAMPLES = [
    (Example("rosa-canina", f"00000-{number}.webp", author, "CC-BY-4.0", "drawn"), ROSES[number])
    for number, author in enumerate(("Ann", ""))
]


@pytest.fixture(scope="module")
def folder(sealed):
    return sealed(examples=EXAMPLES)


@pytest.fixture(scope="module")
def client(folder):
    with ready_service(bundle=folder, plantnet_api=True) as client:
        yield client


def test_a_taxon_lists_its_pictures_with_author_and_license_and_each_is_served(client):
    listed = client.get("/species/rosa-canina").json()["images"]
    assert [(each["author"], each["license"], each["source"]) for each in listed] == [
        ("Ann", "CC-BY-4.0", "drawn"),
        ("", "CC-BY-4.0", "drawn"),
    ]
    for each, picture in zip(listed, ROSES, strict=True):
        response = client.get(each["url"])
        assert (response.status_code, response.content) == (200, picture)
        assert response.headers["content-type"] == "image/webp"
        assert "max-age" in response.headers["cache-control"]
    assert client.get("/species/crocus").json()["images"] == []


def test_pictures_need_no_key_since_a_page_cannot_send_one_for_them(start, folder):
    _, key = make_key("app")
    client = start(bundle=folder, api_keys=key.line)
    assert client.get("/species/rosa-canina/images/0").status_code == 200
    assert client.get("/species/rosa-canina").status_code == 401


def test_a_picture_that_was_written_over_is_not_found(start, sealed):
    live = sealed(examples=[(example, picture + bytes(100_000)) for example, picture in EXAMPLES])
    client = start(bundle=live)
    (live / "examples.zip").write_bytes(b"nothing")
    assert_problem(client.get("/species/rosa-canina/images/0"), 404, "unknown_taxon")


def test_pl_ntnets_interface_gives_them_if_asked(client):
    def images(**query):
        answer = client.post("/v2/identify/all", files={"images": jpeg(RED)}, params=query).json()
        return answer["results"][0]["images"]

    assert images() == []
    first, second = images(**{"include-related-images": "true"})
    assert (first["author"], first["license"], first["citation"]) == ("Ann", "CC-BY-4.0", "Ann, drawn, CC-BY-4.0")
    assert second["citation"] == "drawn, CC-BY-4.0"
    assert client.get(first["url"]["o"]).content == ROSES[0]
