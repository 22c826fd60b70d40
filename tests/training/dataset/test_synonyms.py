import resource

import pytest

from models.errors import DataError
from tests.make import from_table
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
    (found,) = read_synonyms(path, {key})[key]
    return found


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
    cut = row(3, "Rosa canina")[:9]  # as at the end of half a file
    for rows in ([synonym, ACCEPTED, cut], [cut, ACCEPTED, synonym]):
        found = read_synonyms(write(tmp_path, *rows), {"anemone nemorosa", "rosa canina"})
        assert found == {"anemone nemorosa": (expected,)}


def test_digits_are_no_key_of_the_backbone_in_a_file_of_the_catalogue_of_life(tmp_path):
    path = write(tmp_path, row("72394", "Betula pendula"), row("6SQ7R", "Rosa canina"))
    found = read_synonyms(path, {"betula pendula", "rosa canina"})
    assert [name.gbif_id for names in found.values() for name in names] == [None, None]


@from_table
def test_a_name_leads_to_its_accepted_names(rows, key, expected, tmp_path):
    path = write(tmp_path, ("1", "x"), *(row(**each) for each in rows))  # a line with too few cells is skipped
    assert [[name.key, name.gbif_id] for name in read_synonyms(path, {key}).get(key, ())] == [*expected]


@from_table
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
