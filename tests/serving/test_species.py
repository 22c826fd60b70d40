"""The routes /species and /species/{taxon_id}."""

import pytest

from models.taxonomy import TaxonNames
from serving.species import species_list
from tests.models.tiny import species, taxonomy_of
from tests.serving.tiny import TAXA, assert_problem

PRIMROSES = TaxonNames(
    taxonomy_of(
        species("Primula vulgaris", "Primulaceae", synonyms=("Primula acaulis",), common_names=("primrose",)),
        *(species(f"Primula {name}", "Primulaceae", common_names=("cowslip",)) for name in ("veris", "elatior")),
        *(
            species(f"Rosa {name}", "Rosaceae", common_names=("rose",))
            for name in ("canina", "gallica", "rugosa", "alba")
        ),
    )
)


def answer(query):
    return species_list("id", query, 20, PRIMROSES, [])


@pytest.mark.parametrize(
    ("query", "found"),
    [("ros", ["Rosa canina", "Rosa rugosa"]), ("DAISY", ["Bellis perennis"]), ("ferox", ["Rosa rugosa"]), ("zzz", [])],
)
def test_species_are_found_by_any_of_their_names(client, query, found):
    body = client.get("/species", params={"q": query}).json()
    assert [entry["scientific_name"] for entry in body["species"]] == found
    assert body["total"] == len(TAXA)


def test_species_entry_has_every_field(client):
    (entry,) = client.get("/species", params={"q": "rosa c"}).json()["species"]
    assert entry == {
        "taxon_id": "rosa-canina",
        "rank": "species",
        "scientific_name": "Rosa canina",
        "common_names": ["dog rose"],
        "genus": "Rosa",
        "family": "Rosaceae",
        "gbif_id": 3003446,
        "match": {"kind": "prefix", "name": "Rosa canina"},
    }


@pytest.mark.parametrize("query", [{"limit": "0"}, {"limit": "201"}, {"limit": "x"}, {"q": "x" * 201}])
def test_bad_species_parameters_are_problems(client, query):
    assert_problem(client.get("/species", params=query), 422, "bad_parameter")


# ---- what the query is


@pytest.mark.parametrize(
    ("query", "status", "message"),
    [
        ("", None, None),
        ("primula Veris", "known", "This model can name Primula veris."),
        ("primula acaulis", "synonym", "Primula acaulis is a synonym of Primula vulgaris, which this model can name."),
        ("Primrose", "known", "primrose is a common name of Primula vulgaris, which this model can name."),
        (
            "COWSLIP",
            "known",
            "cowslip is a common name of Primula veris and Primula elatior, which this model can name.",
        ),
        (
            "rosa",
            "known",
            "Rosa is a genus, of which this model can name Rosa canina, Rosa gallica, Rosa rugosa and 1 other.",
        ),
        ("prim", None, "No name is exactly 'prim'; the taxa listed have a name in which a word starts with it."),
        (" oak ", "not_in_model", "This model cannot name 'oak': none of its 7 taxa has that name."),
    ],
)
def test_search_says_whether_the_model_knows_the_name(query, status, message):
    found = answer(query)
    assert (found.status, found.message) == (status, message)
    assert bool(found.species) == (status != "not_in_model")


# ---- one taxon


def test_taxon_has_every_field(client):
    body = client.get("/species/rosa-rugosa").json()
    assert body.pop("request_id")
    assert body == {
        "taxon_id": "rosa-rugosa",
        "rank": "species",
        "scientific_name": "Rosa rugosa",
        "author": "",
        "synonyms": ["Rosa ferox"],
        "common_names": [],
        "genus": "Rosa",
        "family": "Rosaceae",
        "gbif_id": None,
        "num_calibration_plants": None,
    }


@pytest.mark.parametrize("taxon_id", ["quercus-robur", "Rosa-rugosa", "%00", "x" * 3000, "%F0%9F%8C%BB", "..%2fmodel"])
def test_unknown_taxon_is_a_problem_document(client, taxon_id):
    response = client.get(f"/species/{taxon_id}")
    problem = assert_problem(response, 404, response.json()["code"])
    assert problem["code"] in {"unknown_taxon", "not_found"}
    assert len(problem["detail"]) < 200
