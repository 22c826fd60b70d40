import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DataError
from models.names import genus_families, may_be_latin, parse_name, similar_genera


@pytest.mark.parametrize(
    ("text", "key", "author"),
    [
        ("Acacia farnesiana Willd.", "acacia farnesiana", "Willd."),
        ("Acacia caven (Molina) Molina", "acacia caven", "(Molina) Molina"),
        ("Pancratium maritimum L. L.", "pancratium maritimum", "L. L."),
        ("Tradescantia zebrina hort. ex Bosse", "tradescantia zebrina", "hort. ex Bosse"),
        ("Ophrys araneola sensu auct.plur.", "ophrys araneola", "sensu auct.plur."),
        ("Phedimus spurius (M.Bieb) 't Hart", "phedimus spurius", "(M.Bieb) 't Hart"),
        ("Pelargonium zonale (L.) L'Hér. ex Aiton", "pelargonium zonale", "(L.) L'Hér. ex Aiton"),
        ("Pelargonium × hortorum L.H. Bailey", "pelargonium hortorum", "L.H. Bailey"),
        ("Ficus nodosa d'Urv.", "ficus nodosa", "d'Urv."),
        ("Vriesea splendens de Vriese", "vriesea splendens", "de Vriese"),
        ("Eucalyptus alba von Mueller", "eucalyptus alba", "von Mueller"),
        ("Begonia rex van Royen & Foo", "begonia rex", "van Royen & Foo"),
        ("Prosopis farcta (Banks & Sol.) J.F.Macbr.", "prosopis farcta", "(Banks & Sol.) J.F.Macbr."),
        ("Rosa canina L., 1753", "rosa canina", "L., 1753"),
        ("Psilotum nudum (L.) P. Beauv.", "psilotum nudum", "(L.) P. Beauv."),
    ],
)
def test_the_author_is_no_part_of_the_key(text, key, author):
    name = parse_name(text)
    assert (name.key, name.author, name.common) == (key, author, False)


@pytest.mark.parametrize(
    "author",
    ["Burm. f.", "Burm.f.", "(Burm. f.) Steenis", "L. f.", "Baker f. ex Harms", "Hook. f. & Thomson", "L. f. non Mill.",
     "Hook. f. et Thomson", "L. f. in Foo", "L. f. emend. Foo", "L. f. nom. illeg.", "Rchb.f."],
)  # fmt: skip
def test_the_son_of_an_author_is_no_forma(author):
    name = parse_name(f"Mazus pumilus {author}")
    assert (name.key, name.infraspecific, name.author) == ("mazus pumilus", "", author)


@pytest.mark.parametrize(
    ("text", "below", "author"),
    [
        ("Viola tricolor L. subsp. minima Gaudin", "subsp. minima", "Gaudin"),
        ("Viola tricolor ssp. minima", "subsp. minima", ""),
        ("VIOLA TRICOLOR SUBSP. MINIMA", "subsp. minima", ""),
        ("Viola tricolor var. minima Gaudin", "var. minima", "Gaudin"),
        ("Viola tricolor f. minima", "f. minima", ""),
        ("Viola tricolor L. f. minima Wittr.", "f. minima", "Wittr."),
        ("Viola tricolor L.f. var. minima (L. f.) Foo", "var. minima", "(L. f.) Foo"),
        ("Viola tricolor fo. minima", "f. minima", ""),
        ("Viola tricolor forma minima", "f. minima", ""),
        ("Viola tricolor subsp. saxatilis var. minima", "var. minima", ""),
        ("Viola tricolor minima", "minima", ""),
        ("Viola tricolor nothosubsp. minima", "subsp. minima", ""),
    ],
)
def test_infraspecific_parts_stay_in_the_key(text, below, author):
    name = parse_name(text)
    assert (name.key, name.infraspecific, name.author) == (f"viola tricolor {below}", below, author)
    assert (name.scientific_name, name.rank) == (f"Viola tricolor {below}", "species")


@pytest.mark.parametrize(
    "text",
    ["Fragaria × ananassa", "Fragaria ×ananassa", "Fragaria x ananassa Duchesne", "Fragaria X ananassa",
     "FRAGARIA X ANANASSA", "FRAGARIA × ANANASSA", "fragaria_x_ananassa"],
)  # fmt: skip
def test_hybrid_signs_are_read_however_they_are_written(text):
    name = parse_name(text)
    assert (name.key, name.scientific_name, name.hybrid) == ("fragaria ananassa", "Fragaria × ananassa", True)


@pytest.mark.parametrize("text", ["× Fatshedera lizei", "×Fatshedera lizei", "x Fatshedera lizei", "xFatshedera lizei"])
def test_a_hybrid_of_two_genera_has_its_sign_in_front(text):
    name = parse_name(text)
    assert (name.key, name.scientific_name, name.genus) == ("fatshedera lizei", "× Fatshedera lizei", "Fatshedera")


def test_a_hybrid_formula_is_neither_of_its_parents():
    assert parse_name("Salix alba × fragilis").key == "salix alba x fragilis"
    assert parse_name("Salix alba").key == "salix alba"


@pytest.mark.parametrize(
    "text",
    ["Crocus", "crocus", "CROCUS", "Crocus L.", "Crocus Tourn. ex L.", "Crocus Mill ex Foo", "Crocus (L.) Hér.",
     "Crocus sp.", "Crocus spp.", "Crocus  SPP", "Crocus sp. 1", "Crocus sp2", "Crocus ssp.", "Crocus sect. Nudiflori",
     "Crocus aff. vernus", "Crocus hybrids", "Crocus N.E.Br."],
)  # fmt: skip
def test_a_name_without_an_epithet_has_the_rank_genus(text):
    name = parse_name(text)
    assert (name.key, name.rank, name.scientific_name, name.common) == ("crocus", "genus", "Crocus", False)


@pytest.mark.parametrize(
    "text",
    ["Monstera deliciosa", "monstera deliciosa", "MONSTERA DELICIOSA", "Monstera_deliciosa", "  Monstera \t deliciosa ",
     "Monstera\u00a0deliciosa", "\ufeffMonstera deli\u00adciosa\u200b", "Monstera cf. deliciosa Liebm.",
     "Monstera deliciosa agg.", "MONSTERA DELICIOSA LIEBM."],
)  # fmt: skip
def test_case_spaces_and_qualifiers_do_not_matter(text):
    name = parse_name(text)
    assert (name.key, name.scientific_name, name.rank) == ("monstera deliciosa", "Monstera deliciosa", "species")


@pytest.mark.parametrize(
    "text",
    ["Venus Flytrap", "Money Tree", "Lily of the valley", "Bird of paradise", "Snake's Head Fritillary",
     "St. John's Wort", "Devil's ivy", "Tomato___Bacterial_spot", "class 4", "Fleur de lis", "Rosa (red)",
     "Rosa canina (red)", "4", "Common wheat", "maize", "Peace lily", "Swiss cheese plant"],
)  # fmt: skip
def test_a_text_that_is_not_a_scientific_name_stays_whole_and_names_no_species(text):
    name = parse_name(text)
    words = " ".join(text.replace("_", " ").split())
    assert (name.common, name.rank, name.key) == (True, "genus", words.lower())
    assert name.genus == name.scientific_name == words[0].upper() + words[1:]


def test_two_folders_are_not_merged_because_part_of_a_name_was_not_parsed():
    names = [
        "class 1",
        "class 2",
        "Rosa (red)",
        "Rosa (white)",
        "Corn_(maize)___healthy",
        "Corn_(maize)___rust",
        "Rosa",
    ]
    assert len({parse_name(name).key for name in names}) == len(names)


def test_a_capitalized_epithet_is_read_where_the_name_is_known_to_be_scientific():
    assert parse_name("Monstera Deliciosa").common
    known = parse_name("Monstera Deliciosa Liebm.", scientific=True)
    assert (known.scientific_name, known.author) == ("Monstera deliciosa", "Liebm.")
    assert parse_name("Monstera Deliciosa").key == known.key
    assert parse_name("Crocus Mill.", scientific=True).rank == "genus"


@pytest.mark.parametrize("text", ["Rosa 'Peace'", "Rosa cv. Peace", "Rosa ‘Peace’ hort.", 'Rosa "Peace"'])
def test_a_cultivar_is_a_name_of_its_own(text):
    name = parse_name(text)
    assert (name.key, name.scientific_name, name.rank) == ("rosa cv. peace", "Rosa 'Peace'", "genus")
    assert parse_name("Acer palmatum 'Garnet Star'").key == "acer palmatum cv. garnet star"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Isoëtes lacustris", "isoetes lacustris"),
        ("Epipactis Mülleri", "epipactis muelleri"),
        ("Hyacinthoides non‑scripta", "hyacinthoides non-scripta"),
        ("Vaccinium vitis-idaea L.", "vaccinium vitis-idaea"),
        ("Gagea bœhmica", "gagea boehmica"),
    ],
)
def test_keys_are_ascii(text, key):
    assert parse_name(text, scientific=True).key == key


@pytest.mark.parametrize("text", ["ромашка", "Rosa обыкновенная", "虎尾兰", "", "  ", "×", "spp.", "?!"])
def test_a_name_without_latin_letters_is_refused_rather_than_merged_with_others(text):
    with pytest.raises(DataError, match=r"Latin letters.*name its folder"):
        parse_name(text)


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
