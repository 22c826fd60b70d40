"""Look-alikes in the answer: those of the bundle, as taxa like others, for a species and within what was asked for."""

import pytest

from models.examples import Example
from models.ranking import Thresholds
from tests.serving.conftest import ready_service
from tests.serving.tiny import BLUE, GREEN, RED, draw, encode, identify, jpeg, taxon_ids


@pytest.fixture(scope="module")
def client(sealed):
    similar = {
        "rosa-canina": ("crocus-vernus", "rosa-rugosa"),
        "bellis-perennis": ("rosa-canina",),
        "crocus": ("rosa-rugosa",),
    }
    folder = sealed(
        examples=[(Example("rosa-canina", "0.webp", "Ann", "CC-BY-4.0", "drawn"), encode(draw(RED), "WEBP"))],
        look_alikes=similar,
        thresholds=Thresholds(species=0.4, genus=0.5),
    )
    with ready_service(bundle=folder) as client:
        yield client


def test_look_alikes_are_taxa_like_those_of_the_ranking(client):
    answer = identify(client, lang="de")
    similar = answer["look_alikes"]
    assert (answer["verdict"]["rank"], answer["verdict"]["name"]) == ("species", "Rosa canina")
    assert answer["verdict"]["reason"].endswith(" It is often taken for Rosa rugosa or Crocus vernus.")
    assert [each["position"] for each in similar] == [1, 2]
    ranked = {each["taxon_id"]: each for each in answer["predictions"]}
    for each in similar:
        assert each == ranked[each["taxon_id"]] | {"position": each["position"]}


def test_a_genus_has_none(client):
    answer = identify(client, jpeg(BLUE))
    assert (answer["verdict"]["rank"], answer["predictions"][0]["taxon_id"]) == ("genus", "crocus")
    assert answer["look_alikes"] == []


def test_a_choice_of_taxa_leaves_out_the_others(client):
    answer = identify(client, taxa=["Rosa canina", "Rosa rugosa", "Bellis"])
    assert taxon_ids(answer["look_alikes"]) == ["rosa-rugosa"]
    assert answer["verdict"]["reason"].endswith(" It is often taken for Rosa rugosa.")


def test_pictures_of_a_look_alike_are_counted(client):
    (similar,) = identify(client, jpeg(GREEN))["look_alikes"]
    assert (similar["taxon_id"], similar["num_images"]) == ("rosa-canina", 1)
