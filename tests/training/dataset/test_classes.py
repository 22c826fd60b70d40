import time
from collections import Counter
from functools import cache

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.bundle import TAXA_FILE
from models.errors import DataError
from models.scoring import AnswerModel
from models.taxonomy import Taxonomy
from tests.make import ROOT, from_table
from training.dataset.classes import TAXONOMY_VERSION, build_classes, names_to_look_up, similar_pairs
from training.dataset.sources.record import SourceClass
from training.dataset.synonyms import AcceptedName
from training.drawn import species_name

NUM_INAT, NUM_PLANTNET, NUM_HOUSE = 4271, 1019, 47
NUM_SHARED_WITH_PLANTNET, NUM_SHARED_WITH_HOUSE = 75, 25


def plants(*names, **fields):
    return [SourceClass(class_id=str(number), name=name, **fields) for number, name in enumerate(names)]


def built(*names, **fields):
    return build_classes({"s": plants(*names, **fields)}, "within_sources")


def taxa_of(classes):
    return {taxon.taxon_id: taxon for taxon in classes.taxonomy.taxa}


def accepted(name="Anemonoides nemorosa", author="(L.) Holub"):
    return AcceptedName(
        key=name.lower(),
        scientific_name=name,
        rank="species",
        genus=name.split()[0],
        author=author,
        family="Ranunculaceae",
        gbif_id=7,
    )


@cache
def invented_names():
    return [species_name(number).name for number in range(NUM_INAT + NUM_PLANTNET + NUM_HOUSE)]


def plantnet_stand_in():
    """As many names as in Pl@ntNet-300K; 62 of them are another spelling of one of the others."""
    names = invented_names()[-NUM_PLANTNET:]
    ways = ("{} {} (Burm. f.) Steenis", "{} × {} L.", "{}  {}", "{} x {}")
    again = [ways[number % 4].format(*names[200 + number].split()) for number in range(62)]
    return [f"{name} Mill." for name in names] + again


def three_sources(plantnet):
    """Sources of the real sizes that share 100 plants; no plant is in all three."""
    invented = invented_names()
    single = {tuple(name.split()[:2]): name for name in plantnet if not {"x", "×", "spp."} & set(name.split())}
    shared = list(single.values())[:NUM_SHARED_WITH_PLANTNET]
    inat = shared + invented[len(shared) : NUM_INAT]
    house = inat[-NUM_SHARED_WITH_HOUSE:] + invented[NUM_INAT : NUM_INAT + NUM_HOUSE - NUM_SHARED_WITH_HOUSE]
    return {"inat": plants(*inat), "plantnet": plants(*plantnet), "house": plants(*house)}


def test_three_data_sets_give_5337_outputs_and_100_fewer_across_sources():
    names = plantnet_stand_in()
    assert len(names) == 1081
    sources = three_sources(names)
    classes = build_classes(sources, "within_sources")
    by_source = Counter(output.source for output in classes.taxonomy.outputs)
    assert by_source == {"inat": NUM_INAT, "plantnet": NUM_PLANTNET, "house": NUM_HOUSE}
    assert len(classes.taxonomy.outputs) == 5337
    assert len(classes.taxonomy.taxa) == 5237
    assert sum(entry.explanation.startswith("several sources") for entry in classes.names.merged) == 100
    across = build_classes(sources, "across_sources")
    assert len(across.taxonomy.outputs) == len(across.taxonomy.taxa) == 5237
    assert across.taxonomy.taxa == classes.taxonomy.taxa
    assert {output.source for output in across.taxonomy.outputs} == {"all"}


@pytest.mark.untraced
def test_names_of_5337_classes_are_understood_soon():
    sources = three_sources(plantnet_stand_in())
    start = time.process_time()
    build_classes(sources, "within_sources")
    assert time.process_time() - start < 10


def test_an_answer_never_lists_a_plant_twice_and_sums_its_outputs():
    sources = {"a": plants("Rosa canina L.", "Rosa alba"), "b": plants("Rosa canina", "Viola odorata")}
    taxonomy = build_classes(sources, "within_sources").taxonomy
    logits = np.log([0.25 if output.taxon_id == "rosa-canina" else 0.2 for output in taxonomy.outputs])
    answer = answer_plant(logits[None], np.zeros((1, 1)), AnswerModel(taxonomy, temperature=1.0), Question())
    assert [entry.taxon.taxon_id for entry in answer.taxa].count("rosa-canina") == 1
    assert answer.taxa[0].taxon.scientific_name == "Rosa canina"
    assert answer.taxa[0].score == pytest.approx(0.5 / 0.9)


def test_outputs_are_sorted_by_key_whatever_the_order_of_the_classes():
    names = ("Viola odorata", "Abies alba", "Rosa canina", "Abies alba L.")
    keys = ("s:abies-alba", "s:rosa-canina", "s:viola-odorata")
    assert built(*names).taxonomy.output_keys == built(*names[::-1]).taxonomy.output_keys == keys


def test_every_class_has_the_label_of_its_output():
    sources = {"a": plants("Rosa canina L.", "Rosa  canina"), "b": plants("Rosa canina")}
    within, across = (build_classes(sources, merge).labels for merge in ("within_sources", "across_sources"))
    assert within == {("a", "0"): "a:rosa-canina", ("a", "1"): "a:rosa-canina", ("b", "0"): "b:rosa-canina"}
    assert set(across.values()) == {"all:rosa-canina"}
    assert across.keys() == within.keys()


def test_the_demonstration_keeps_its_taxa():
    file = ROOT / "models" / "releases" / "garden_and_wild_plants" / TAXA_FILE
    released = msgspec.json.decode(file.read_bytes(), type=Taxonomy).taxa
    given = {
        f"source {number}": [
            SourceClass(
                class_id=taxon.taxon_id,
                name=taxon.scientific_name,
                common_name=taxon.common_names[number],
                genus=taxon.genus,
                family=taxon.family,
            )
            for taxon in released
            if len(taxon.common_names) > number
        ]
        for number in range(3)
    }
    named = [replace(taxon, names={}) for taxon in released]
    assert [*build_classes(given, "across_sources").taxonomy.taxa] == named


def listed(findings, kind):
    """Names and members of findings; of those on spelling, the explanation with the name."""
    if kind == "misspelt":
        return [[f"{entry.name}: {entry.explanation}"] for entry in findings]
    return [[entry.name, *(entry.members if kind in {"joined", "similar"} else ())] for entry in findings]


@from_table
def test_classes_become_taxa_with_names_to_check(sources, taxa, names):
    given = {
        source: [SourceClass(class_id=str(at), **fields) for at, fields in enumerate(classes)]
        for source, classes in sources.items()
    }
    classes = build_classes(given, "within_sources")
    unknown = {"genus": "", "family": "", "author": "", "synonyms": [], "common_names": []}
    found = [unknown | facts for facts in msgspec.json.decode(msgspec.json.encode(classes.taxonomy.taxa))]
    assert [facts | wanted for facts, wanted in zip(found, taxa, strict=True)] == found
    assert {kind: listed(getattr(classes.names, kind), kind) for kind in names} == names


def test_synonyms_share_the_taxon_of_the_accepted_name():
    sources = {"a": plants("Anemone nemorosa L."), "b": plants("Anemonoides nemorosa")}
    synonyms = {"anemone nemorosa": (accepted(),), "anemonoides nemorosa": (accepted(),)}
    classes = build_classes(sources, "within_sources", synonyms, synonyms_from="Taxon.tsv")
    (taxon,) = classes.taxonomy.taxa
    assert classes.taxonomy.output_keys == ("a:anemone-nemorosa", "b:anemonoides-nemorosa")
    assert (taxon.scientific_name, taxon.genus, taxon.gbif_id) == ("Anemonoides nemorosa", "Anemonoides", 7)
    assert (taxon.author, taxon.family) == ("(L.) Holub", "Ranunculaceae")
    assert taxon.synonyms == ("Anemone nemorosa",)
    found = [(entry.explanation.partition(" ")[0], len(entry.members)) for entry in classes.names.merged]
    assert found == [("several", 2), ("synonyms", 1)]
    assert classes.taxonomy.taxonomy_version == f"{TAXONOMY_VERSION}, synonyms by Taxon.tsv"
    assert classes.notes == ("Taxon.tsv has 2 of 2 names.",)
    one = build_classes(sources, "within_sources", {"anemone nemorosa": (accepted(),)}, synonyms_from="Taxon.tsv")
    assert one.notes == ("Taxon.tsv has 1 of 2 names, not Anemonoides nemorosa.",)
    assert (built("Rosa").taxonomy.taxonomy_version, built("Rosa").notes) == (TAXONOMY_VERSION, ())


def test_a_list_of_synonyms_never_changes_the_outputs_of_the_sources():
    sources = {"a": plants("Anemone nemorosa L.", "Anemonoides nemorosa"), "b": plants("Anemonoides nemorosa")}
    synonyms = {"anemone nemorosa": (accepted(),), "anemonoides nemorosa": (accepted(),)}
    apart, joined = build_classes(sources, "within_sources"), build_classes(sources, "within_sources", synonyms)
    assert joined.taxonomy.label_hash == apart.taxonomy.label_hash
    assert (len(joined.taxonomy.outputs), len(joined.taxonomy.taxa), len(apart.taxonomy.taxa)) == (3, 1, 2)
    assert len(build_classes(sources, "across_sources", synonyms).taxonomy.outputs) == 1


def test_an_ambiguous_synonym_stays_as_written_and_is_listed():
    classes = build_classes(
        {"a": plants("Rosa alba")}, "within_sources", {"rosa alba": (accepted(), accepted("Rosa mollis"))}
    )
    assert classes.taxonomy.taxa[0].scientific_name == "Rosa alba"
    (found,) = classes.names.similar
    assert found.members == ("a: Rosa alba",)
    assert found.explanation.endswith(": Anemonoides nemorosa, Rosa mollis")


@pytest.mark.parametrize("text", ["ромашка", "Rosa обыкновенная", "虎尾兰", "", "  ", "×", "spp.", "?!"])
def test_a_name_without_latin_letters_is_refused_rather_than_merged_with_others(text):
    with pytest.raises(DataError, match=r"Latin letters.*name its folder"):
        built(text)


def test_the_recipe_maps_names_that_are_common_or_misspelt():
    sources = {"house": plants("Venus Flytrap", "Sanseviera", "Rosa cannina", "ромашка")}
    names = {
        "house": {
            "Venus Flytrap": "Dionaea muscipula J.Ellis",
            "Sanseviera": "Sansevieria",
            "2": "Rosa canina",
            "ромашка": "Matricaria Chamomilla",
        }
    }
    taxa = taxa_of(build_classes(sources, "within_sources", corrections=names))
    assert set(taxa) == {"dionaea-muscipula", "sansevieria", "rosa-canina", "matricaria-chamomilla"}
    assert taxa["dionaea-muscipula"].common_names == ("Venus Flytrap",)
    assert taxa["matricaria-chamomilla"].common_names == ("ромашка",)
    assert taxa["rosa-canina"].common_names == ()
    assert names_to_look_up(sources, names) == {
        "dionaea muscipula", "sansevieria", "rosa canina", "matricaria chamomilla",
    }  # fmt: skip


def test_a_mapped_name_that_no_class_has_is_an_error_that_names_it():
    with pytest.raises(DataError, match=r"house: 'Venus Flytrpa'.*under `names`"):
        build_classes(
            {"house": plants("Venus Flytrap")}, "within_sources", corrections={"house": {"Venus Flytrpa": "Rosa"}}
        )


@from_table
def test_epithets_one_letter_or_one_ending_apart_are_similar(first, second):
    assert similar_pairs(["vulgaris", first, "repens", second]) == [(1, 3)]


@from_table
def test_other_epithets_are_not(pair):
    assert similar_pairs(pair) == []


@pytest.mark.slow
def test_a_genus_of_thousands_is_compared_quickly():
    letters = "abcdefghijklmnopqrst"
    epithets = [f"{a}{b}{c}orix{c}{a}{b}x" for a in letters for b in letters for c in letters]
    start = time.process_time()
    assert similar_pairs(epithets) == []
    assert time.process_time() - start < 20
