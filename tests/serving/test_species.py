"""Taxa by their names: the search, and the choice in a request."""

import os

import numpy as np
import pytest
from msgspec.structs import replace

from models.errors import InputError
from models.taxonomy import TaxonNames
from serving.errors import BadParameter
from serving.species import TaxaSelector, read_taxa_lists, species_list
from tests.make import from_table
from tests.models.tiny import species, taxonomy_of
from tests.serving.tiny import TAXA, TAXONOMY

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
    return species_list("id", query, 20, PRIMROSES, languages=(), warnings=[])


# ---- what the query is


@from_table
def test_search_says_whether_the_model_knows_the_name(query, status, message):
    found = answer(query)
    assert (found.status, found.message) == (status, message)
    assert bool(found.species) == (status != "not_in_model")


NAMES = TaxonNames(TAXONOMY)
LISTS = {"garden": {"Bellis perennis L.": 2, "Rosa": 3, "Quercus robur": 7}, "sea": {"Zostera marina": 1}}
SELECTOR = TaxaSelector(NAMES, LISTS)


def selected(*values):
    allowed_T, _ = SELECTOR.select(values)
    return {TAXA[position].taxon_id for position in np.flatnonzero(allowed_T)}


# ---- files


def test_list_is_a_text_file_with_one_name_per_line_and_comments_or_a_table(tmp_path):
    (tmp_path / "my garden.txt").write_text(
        "# roses\n\n Rosa canina # by the gate\nCrocus\r\n&#215; A\n", encoding="utf-8-sig"
    )
    (tmp_path / "region.tsv").write_text(
        "scientificName\tspecies\tnumberOfOccurrences\nCrocus L.\t\t9\nA b L.\tA b\t5\nA c L.\tA c\t4\n"
    )
    (tmp_path / "notes.md").write_text("not a list")
    (tmp_path / "folder").mkdir()
    (tmp_path / "._my garden.txt").write_bytes(b"\xff")
    (tmp_path / ".#open.txt").symlink_to("nowhere")
    expected = {"my garden": {"Rosa canina": 3, "Crocus": 4, "× A": 5}, "region": {"A b": 3}}
    assert read_taxa_lists(tmp_path) == expected


def test_two_lists_of_one_name_are_an_error(tmp_path):
    for name in ("germany.txt", "germany.tsv"):
        (tmp_path / name).write_text("taxon\nCrocus\n")
    with pytest.raises(InputError, match=r"same name \(got .*germany\.txt\): rename or remove one"):
        read_taxa_lists(tmp_path)


@pytest.mark.parametrize("sign", ["\u2028", "\x85", "\f", "\r"])
def test_only_a_line_feed_ends_a_name_of_a_list(tmp_path, sign):
    (tmp_path / "garden.txt").write_bytes(f"# not{sign}Rosa\r\nCrocus\r\n".encode())
    assert read_taxa_lists(tmp_path) == {"garden": {"Crocus": 2}}


def test_a_list_that_is_a_pipe_is_an_error_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(InputError, match=r"pipe\.txt cannot be read \(got this is no regular file"):
        read_taxa_lists(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"# nothing\n\n", "has no names"), (b"", "has no names"), (b"\xff\xfe", "cannot be read")],
)
def test_unusable_list_is_an_error_that_names_the_file(tmp_path, content, message):
    (tmp_path / "bad.txt").write_bytes(content)
    with pytest.raises(InputError, match=rf"bad\.txt {message}"):
        read_taxa_lists(tmp_path)


# ---- choices


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["rosa"], {"rosa-canina", "rosa-rugosa"}),
        (["daisy", "Rosa ferox"], {"bellis-perennis", "rosa-rugosa"}),
        (["Iridaceae"], {"crocus", "crocus-vernus"}),
        (["Crocus vernus (L.) Hill"], {"crocus-vernus"}),
        (["list:garden"], {"bellis-perennis", "rosa-canina", "rosa-rugosa"}),
        (["list:garden", "crocus"], {"bellis-perennis", "rosa-canina", "rosa-rugosa", "crocus", "crocus-vernus"}),
    ],
)
def test_values_add_up(values, expected):
    assert selected(*values) == expected


def test_names_that_are_not_understood_are_counted_per_source():
    values = ["Rosa", *(f"oak {number}" for number in range(1, 6)), "list:garden"]
    assert SELECTOR.select(values)[1] == [
        "Not known to this model and ignored, in the parameter `taxa`: 'oak 1', 'oak 2', 'oak 3' and 2 more.",
        "Not known to this model and ignored, in the list 'garden': 'Quercus robur' (line 7).",
    ]
    assert SELECTOR.select(["Rosa canina var. alba"])[1] == [
        "Below what this model knows, and so taken wider, in the parameter `taxa`: "
        "'Rosa canina var. alba' as Rosa canina."
    ]


def test_taxa_without_outputs_cannot_be_the_answer():
    without_roses = replace(TAXONOMY, outputs=TAXONOMY.outputs[2:])
    selector = TaxaSelector(TaxonNames(without_roses), {})
    assert selector.select(["Rosa", "daisy"])[0].tolist() == [False, False, True, False, False]
    with pytest.raises(BadParameter, match="knows none of the names"):
        selector.select(["Rosa"])


@pytest.mark.parametrize("name", ["", "Garden", "../secret", "garden.txt"])
def test_list_that_does_not_exist_is_a_bad_parameter_that_names_the_lists(name):
    with pytest.raises(BadParameter, match="expected garden, sea"):
        SELECTOR.select(["Rosa", f"list:{name}"])
    with pytest.raises(BadParameter, match="this service has none"):
        TaxaSelector(NAMES, {}).select([f"list:{name}"])
