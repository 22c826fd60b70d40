import resource

import pytest

from models.errors import DataError
from training.dataset.synonyms import AcceptedName, read_synonyms

HEADER = (
    "taxonID", "datasetID", "acceptedNameUsageID", "scientificName", "scientificNameAuthorship", "canonicalName",
    "taxonRank", "taxonomicStatus", "kingdom", "family", "genus",
)  # fmt: skip


def row(taxon_id, name, accepted="", status="", author="L.", **fields):
    values = {
        "taxonID": str(taxon_id),
        "acceptedNameUsageID": str(accepted),
        "scientificName": f"{name} {author}".strip(),
        "scientificNameAuthorship": author,
        "canonicalName": name,
        "taxonomicStatus": status or ("synonym" if accepted else "accepted"),
        "kingdom": "Plantae",
        "family": "Ranunculaceae",
        **fields,
    }
    return [values.get(column, "") for column in HEADER]


def write(folder, *rows, header=HEADER, separator="\t"):
    path = folder / "Taxon.tsv"
    path.write_text("".join(separator.join(line) + "\n" for line in (header, *rows)), encoding="utf-8")
    return path


def look_up(path, key):
    """The one accepted name, or the keys of several."""
    found = read_synonyms(path, {key}).get(key, ())
    return found[0] if len(found) == 1 else tuple(name.key for name in found)


ACCEPTED = row(2, "Anemonoides nemorosa", author="(L.) Holub")


def test_a_synonym_leads_to_its_accepted_name_in_any_row(tmp_path):
    synonym = row(1, "Anemone nemorosa", accepted=2)
    expected = AcceptedName(
        key="anemonoides nemorosa",
        scientific_name="Anemonoides nemorosa",
        rank="species",
        genus="Anemonoides",
        author="(L.) Holub",
        family="Ranunculaceae",
        gbif_id=2,
    )
    for rows in ([synonym, ACCEPTED], [ACCEPTED, synonym]):
        found = read_synonyms(write(tmp_path, *rows), {"anemone nemorosa", "rosa canina"})
        assert found == {"anemone nemorosa": (expected,)}


def test_digits_are_no_key_of_the_backbone_in_a_file_of_the_catalogue_of_life(tmp_path):
    path = write(tmp_path, row("72394", "Betula pendula"), row("6SQ7R", "Rosa canina"))
    found = read_synonyms(path, {"betula pendula", "rosa canina"})
    assert [name.gbif_id for names in found.values() for name in names] == [None, None]


def test_the_accepted_name_takes_precedence_over_synonyms_with_the_same_spelling(tmp_path):
    homonyms = [row(1, "Rosa alba", accepted=2, author="All."), row(3, "Rosa alba"), row(4, "Rosa alba", accepted=2)]
    assert look_up(write(tmp_path, *homonyms, ACCEPTED), "rosa alba").gbif_id == 3


def test_homonyms_of_different_plants_are_ambiguous(tmp_path):
    rows = [row(1, "Rosa alba", 2), row(3, "Rosa alba", 4, author="All."), row(4, "Rosa mollis"), ACCEPTED]
    assert look_up(write(tmp_path, *rows), "rosa alba") == ("anemonoides nemorosa", "rosa mollis")


def test_chains_are_followed_to_their_end(tmp_path):
    rows = [row(1, "Rosa alba", 3), row(3, "Rosa bella", 4), row(4, "Rosa candida", 2), ACCEPTED]
    assert look_up(write(tmp_path, *rows), "rosa alba").key == "anemonoides nemorosa"


@pytest.mark.parametrize(("link", "found"), [(1, ["rosa alba"]), (3, []), (99, [])], ids=["itself", "cycle", "nothing"])
def test_a_synonym_that_leads_nowhere_ends_without_an_error(link, found, tmp_path):
    path = write(tmp_path, row(1, "Rosa alba", link), row(3, "Rosa bella", 1))
    assert [name.key for name in read_synonyms(path, {"rosa alba"}).get("rosa alba", ())] == found


@pytest.mark.parametrize("status", ["misapplied", "Misapplied", "proparte synonym"])
def test_misapplied_and_pro_parte_names_are_not_synonyms(status, tmp_path):
    assert read_synonyms(write(tmp_path, row(1, "Rosa alba", 2, status), ACCEPTED), {"rosa alba"}) == {}


def test_a_synonym_of_another_rank_is_ignored(tmp_path):
    path = write(tmp_path, row(1, "Rosa alba", 2), row(2, "Rosa"))
    assert read_synonyms(path, {"rosa alba"}) == {}
    assert look_up(path, "rosa").rank == "genus"


def test_animals_of_the_same_name_are_not_read(tmp_path):
    path = write(
        tmp_path, row(1, "Arctium minus", kingdom="Animalia"), row(2, "Arctium minus", 3), row(3, "Lappa minor")
    )
    assert look_up(path, "arctium minus").key == "lappa minor"


@pytest.mark.parametrize(
    ("written", "author", "key"),
    [
        ("Fragaria ×ananassa", "(Weston) Duchesne", "fragaria ananassa"),
        ("Fragaria × ananassa", "Duchesne", "fragaria ananassa"),
        ("×Fatshedera lizei", "(Cochet) Guillaumin", "fatshedera lizei"),
        ("x Fatshedera lizei", "", "fatshedera lizei"),
        ("Viola tricolor subsp. minima", "Gaudin", "viola tricolor subsp. minima"),
        ("Haworthia", "Duval", "haworthia"),
        ("Crocus", "L.", "crocus"),
        ("Isoëtes lacustris", "L.", "isoetes lacustris"),
        ("Epipactis mülleri", "Godfery", "epipactis muelleri"),
        ("Mazus pumilus", "(Burm. f.) Steenis", "mazus pumilus"),
        ("MAZUS PUMILUS", "Steenis", "mazus pumilus"),
    ],
)
def test_names_are_found_however_they_are_written(written, author, key, tmp_path):
    rows = [row(1, 'Rosa "alba'), row(2, written, author=author), row(3, "Rosa bella")]
    name = look_up(write(tmp_path, *rows), key)  # a quotation mark does not extend a field over the next lines
    assert (name.gbif_id, name.author) == (2, author)


def test_the_archive_of_kew_is_read_as_it_is(tmp_path):
    header = ("taxonid", "family", "genus", "scientfiicname", "scientfiicnameauthorship", "taxonrank",
              "taxonomicstatus", "acceptednameusageid")  # fmt: skip
    rows = [
        ("11", "Rosaceae", "Rosa", "Rosa alba", "L.", "Species", "Illegitimate", "12"),
        ("12", "Rosaceae", "Rosa", "Rosa mollis", "Sm.", "Species", "Accepted", "12"),
    ]
    name = look_up(write(tmp_path, *rows, header=header, separator="|"), "rosa alba")
    assert (name.key, name.author, name.family) == ("rosa mollis", "Sm.", "Rosaceae")
    assert name.gbif_id is None  # these numbers are Kew's


def test_short_lines_and_names_of_other_alphabets_are_skipped(tmp_path):
    path = write(tmp_path, ("1", "x"), row(5, "Роза белая"), ACCEPTED)
    assert look_up(path, "anemonoides nemorosa").gbif_id == 2


def test_a_missing_file_or_column_is_one_clear_error(tmp_path):
    with pytest.raises(DataError, match=r"Taxon.tsv cannot be read .*No such file"):
        read_synonyms(tmp_path / "Taxon.tsv", {"rosa alba"})
    with pytest.raises(DataError, match="lacks the column acceptednameusageid"):
        read_synonyms(write(tmp_path, header=("taxonID", "scientificName", "taxonomicStatus")), {"rosa alba"})
    with pytest.raises(DataError, match="an empty file"):
        read_synonyms(write(tmp_path, header=("",)), {"rosa alba"})
    path = write(tmp_path)
    path.write_bytes(path.read_bytes() + "\t".join(row(1, "Rosa alba", author="Hér.")).encode("latin-1"))
    with pytest.raises(DataError, match="UTF-8"):
        read_synonyms(path, {"rosa alba"})


@pytest.mark.slow
def test_a_large_file_is_read_without_being_held(tmp_path):
    path = tmp_path / "Taxon.tsv"
    with path.open("w", encoding="utf-8") as stream:
        stream.write("\t".join(HEADER) + "\n")
        for number in range(400_000):
            genus = "".join("abcdefghij"[int(digit)] for digit in f"{number // 10:06}").capitalize()
            fields = row(number, f"{genus} alba", accepted=number - 1 if number % 2 else "")
            stream.write("\t".join(fields) + "\n")
    keys = {"aaaaaa alba", "abbaab alba"}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert set(read_synonyms(path, keys)) == keys
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB; the file has 40 MB


def test_kews_table_gives_the_id_of_the_accepted_name(tmp_path):
    header = (*HEADER, "scientificNameID")
    rows = [[*row(1, "Anemone nemorosa", accepted=2), "ipni:77-1"], [*ACCEPTED, "ipni:30001404-2"]]
    assert look_up(write(tmp_path, *rows, header=header), "anemone nemorosa").powo_id == "30001404-2"
