import pytest

from models.errors import DataError
from training.dataset.names import parse_name


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
