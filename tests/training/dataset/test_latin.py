import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.dataset.names import genus_families, may_be_latin, similar_genera


def _words(text):
    return text.split()


ENGLISH_FIRST = _words(
    "Common Wild Sweet Black White Red Blue Green Yellow Golden Silver Garden Field Water Sea Giant Dwarf Great Lesser "
    "Small Tall Japanese Chinese English African European Indian Mexican Alpine Mountain Wood Marsh Sand Desert "
    "Weeping Prickly Hairy Woolly Bitter Sour Spring Summer Winter Early Double Purple Pink Orange Scarlet Crimson "
    "False Climbing Bearded Spotted Swamp Corn Dog Horse Cow Goose Spider Tiger Moon Sugar Butter Stone Cape "
    "California Carolina Virginia Boston Siberian Norway Devils"
)
ENGLISH_LAST = _words(
    "acacia aloe anemone arum aster banana begonia cactus clematis crocus dahlia geranium guava hibiscus iris lotus "
    "magnolia pea petunia plum tea viola wheat nettle rose lily bean clover grass pepper ginger onion melon lemon"
)


@given(st.sampled_from(ENGLISH_FIRST), st.sampled_from(ENGLISH_LAST))
def test_the_common_name_of_a_plant_is_not_latin_even_if_its_last_word_is(first, last):
    assert not may_be_latin(first, last)


@pytest.mark.parametrize(
    "name",
    ["Maize", "wheat", "Tulip", "Daisy", "bananas", "Papaya", "potato", "Sugar beet", "Fat hen", "Money tree",
     "Peace lily", "Madonna lily", "Class", "leaf", "Loose silky-bent", "Venus flytrap", "Begonia leaf",
     "oleander", "Rosa red"],
)  # fmt: skip
def test_further_common_names_are_not_latin(name):
    assert not may_be_latin(*name.split())


@pytest.mark.parametrize(
    "name",
    ["Quercus suber", "Zea mays", "Cucumis melo", "Cucurbita pepo", "Theobroma cacao", "Citrus limon", "Ginkgo biloba",
     "Allium cepa", "Aloe vera", "Phoenix dactylifera", "Cicer arietinum", "Manihot esculenta", "Carica papaya",
     "Smilax china", "Acer negundo", "Acer rubrum", "Papaver rhoeas", "Silene dioica", "Hedera helix", "Tagetes erecta",
     "Capsella bursa-pastoris", "Hibiscus rosa-sinensis", "Cyclamen persicum", "Ribes nigrum", "Picea abies", "Crocus",
     "Iris", "Solidago", "Triticum aestivum", "Helleborus niger", "Drosera capensis", "Zingiber officinale",
     "Quercus robur", "Panax ginseng"],
)  # fmt: skip
def test_scientific_names_are_latin(name):
    assert may_be_latin(*name.split())


def test_a_genus_has_its_family():
    families = genus_families()
    assert (families["Quercus"], families["Poa"], families["Brassica"]) == ("Fagaceae", "Poaceae", "Brassicaceae")
    assert len(families) == 31_004
    assert all(family.endswith("aceae") for family in families.values())


@pytest.mark.parametrize(
    ("written", "meant"), [("Qercus", "Quercus"), ("Helianhtus", "Helianthus"), ("Papver", "Papaver")]
)
def test_a_misspelt_genus_gets_a_suggestion(written, meant):
    assert similar_genera(written) == [meant]


@pytest.mark.parametrize("written", ["Quercus", "Zzyzx", "Qercus3"])
def test_a_listed_an_unlike_and_a_generated_genus_get_none(written):
    assert similar_genera(written) == []
