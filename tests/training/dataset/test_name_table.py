"""Names in several languages and identifiers, from a table."""

import pytest

from models.errors import DataError
from tests.make import from_table
from tests.models.tiny import genus_only, species, taxonomy_of
from training.dataset.name_table import with_names

TAXONOMY = taxonomy_of(
    species("Helianthus annuus", common_names=("sunflower",), gbif_id=9206251),
    species("Rosa canina", synonyms=("Rosa corymbifera",)),
    genus_only("Rosa"),
)


def read(folder, text):
    path = folder / "names.csv"
    path.write_text(text, encoding="utf-8")
    return with_names(TAXONOMY, path)


def test_names_keep_their_order_behind_the_preferred_one(tmp_path):
    taxonomy, note = read(
        tmp_path,
        "taxon,language,name,preferred\n"
        "Helianthus annuus L.,de,Gewöhnliche Sonnenblume,\nhelianthus-annuus,de,Sonnenblume,true\n"
        "9206251,pt_BR,girassol,\n"
        "Rosa corymbifera,fr,rosier des chiens,\nRosa,fr,rosier,\nQuercus robur,de,Stieleiche,\nRosa,,rose,\n"
        "Rosa canina var. alba,fr,blanche,\n",
    )
    sunflower, dog_rose, rose = taxonomy.taxa
    assert sunflower.names == {"de": ("Sonnenblume", "Gewöhnliche Sonnenblume"), "pt-br": ("girassol",)}
    assert sunflower.common_names == ("sunflower",)
    assert (dog_rose.names, rose.names) == ({"fr": ("rosier des chiens",)}, {"fr": ("rosier",)})
    assert all(fact in note for fact in ("3 of 3 taxa", "3 languages", "3 rows"))


def test_identifiers_are_read_in_every_usual_form(tmp_path):
    taxonomy, _ = read(
        tmp_path,
        "taxon;gbif_id;powo_id\nRosa canina;8395064;ipni:732025-1\n"
        "Helianthus annuus;;urn:lsid:ipni.org:names:119003-2\n",
    )
    assert [(taxon.gbif_id, taxon.powo_id) for taxon in taxonomy.taxa] == [
        (9206251, "119003-2"),
        (8395064, "732025-1"),
        (None, ""),
    ]


def test_the_table_of_names_of_gbifs_backbone_is_read_as_it_is(tmp_path):
    text = 'taxonID\tvernacularName\tlanguage\tsource\n9206251\t"Maravilla grande\tes\tX\n9206251\t"name"\ten\tY\n'
    assert read(tmp_path, text)[0].taxa[0].names == {"es": ('"Maravilla grande',), "en": ("name",)}


@pytest.mark.parametrize("other", ["6SQ7R,,en,hound rose", "Rosa canina,6SQ7R,en,dog rose"])
def test_digits_are_no_key_of_the_backbone_in_a_table_with_a_key_of_the_catalogue_of_life(tmp_path, other):
    text = f"taxon,gbif_id,language,name\n9206251,,en,lion\nHelianthus annuus,72394,en,sunflower\n{other}\n"
    taxonomy, note = read(tmp_path, text)
    assert (taxonomy.taxa[0].names, taxonomy.taxa[0].gbif_id) == ({"en": ("sunflower",)}, 9206251)
    assert taxonomy.taxa[1].gbif_id is None
    assert note.count("Catalogue of Life") == 1


@from_table
def test_a_table_that_cannot_be_used_is_an_error(tmp_path, text, what):
    with pytest.raises(DataError, match=what):
        read(tmp_path, text)


def test_all_cells_that_cannot_be_used_are_in_one_error(tmp_path):
    text = (
        "taxon,language,name,gbif_id,powo_id\nRosa canina,german!,Rose,,\nRosa canina,de,Hundsrose,,\n"
        "Quercus robur,?,Eiche,,\nRosa canina,de,Rose,many,rose\nRosa,d,Rose,,\n"
    )
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    for fact in (
        "3 rows",
        "line 2: language 'german!'",
        "line 5: gbif_id 'many'",
        "and powo_id 'rose'",
        "line 6: language 'd'",
    ):
        assert fact in str(caught.value)
    assert "line 4" not in str(caught.value)


def test_an_error_about_many_cells_stays_short(tmp_path):
    with pytest.raises(DataError, match=r"1,000 rows.*line 101: .* and 900 more") as caught:
        read(tmp_path, "taxon,language,name\n" + "Rosa canina,?,Rose\n" * 1000)
    assert "line 102" not in str(caught.value)


@from_table
def test_a_code_of_three_letters_is_that_of_two_which_requests_use(tmp_path, written, kept):
    taxonomy, _ = read(tmp_path, f"taxon,language,name\nRosa canina,{written},Rose\n")
    assert taxonomy.taxa[1].names == {kept: ("Rose",)}
