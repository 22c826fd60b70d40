"""The Darwin Core archive of a run: read by a library, with the terms and forms that GBIF asks for."""

from datetime import UTC, datetime

import pytest
from dwca.read import DwCAReader

from serving.folder.darwin_core import DARWIN_CORE_FILE
from tests.serving.folder.photograph_folder import rows_of
from tests.serving.test_place import photograph

TERMS = "http://rs.tdwg.org/dwc/terms/"
# What GBIF requires of an occurrence, or strongly recommends (ipt.gbif.org/manual/en/ipt/latest/occurrence-data).
NEEDED = ("occurrenceID", "basisOfRecord", "scientificName", "eventDate", "taxonRank", "kingdom", "occurrenceStatus")
ODD, ESCAPED = "a\x01\n\x85\\ .jpg", r"a\u0001\u000a\u0085\u005c .jpg"


def occurrences(identify, out):
    identify(out=out, darwin_core=True)
    with DwCAReader(str(out / DARWIN_CORE_FILE)) as reader:
        assert reader.descriptor.core.type == f"{TERMS}Occurrence"
        return [{term.removeprefix(TERMS): value for term, value in row.data.items()} for row in reader]


@pytest.fixture
def found(identify, photographs, out):
    (photographs / "exif.jpg").write_bytes(photograph((52.5, -13.4), "2026-05-31"))
    (photographs / ODD).write_bytes((photographs / "a.jpg").read_bytes())
    return occurrences(identify, out)


def test_every_plant_with_a_name_is_an_occurrence(found, out):
    named = [row for row in rows_of(out).values() if row["verdict_name"]]
    assert [each["scientificName"] for each in found] == [row["verdict_name"] for row in named]
    assert [each["catalogNumber"] for each in found] == [
        ESCAPED if row["path"] == ODD else row["path"] for row in named
    ]
    assert all(each["identificationVerificationStatus"] == "machine" for each in found)
    assert all("score" in each["identificationRemarks"] for each in found)


def test_the_terms_have_the_forms_that_gbif_accepts(found):
    for each in found:
        assert {*NEEDED} <= each.keys()
        assert each["basisOfRecord"] in {"HumanObservation", "MachineObservation", "PreservedSpecimen"}
        assert each["taxonRank"] in {"species", "genus", "family"}
        assert "".join(each.values()).isprintable()


def test_place_and_time_are_those_of_the_photograph(found):
    place = "decimalLatitude", "decimalLongitude", "geodeticDatum", "eventDate"
    by_path = {each["catalogNumber"]: tuple(each[name] for name in place) for each in found}
    assert by_path.pop("exif.jpg") == ("52.5", "-13.4", "EPSG:4326", "2026-05-31T12:00:00")
    assert set(by_path.values()) == {("", "", "", "")}


def test_an_identification_is_of_today_and_its_identifier_of_this_run(found, identify, tmp_path):
    before = datetime.now(UTC).date()
    again = occurrences(identify, tmp_path / "again")
    days = {datetime.fromisoformat(each["dateIdentified"]).date() for each in again}
    assert all(before <= day <= datetime.now(UTC).date() for day in days)
    ids = [each["occurrenceID"] for each in found + again]
    assert len({*ids}) == len(ids) > 0
