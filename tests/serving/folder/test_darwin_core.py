"""The Darwin Core archive of a run: read by a library, with the terms and forms that GBIF asks for."""

from datetime import datetime

import pytest
from dwca.read import DwCAReader

from serving.folder.darwin_core import DARWIN_CORE_FILE
from tests.serving.folder.photograph_folder import identify, rows_of

TERMS = "http://rs.tdwg.org/dwc/terms/"
# What GBIF requires of an occurrence, or strongly recommends (ipt.gbif.org/manual/en/ipt/latest/occurrence-data).
NEEDED = ("occurrenceID", "basisOfRecord", "scientificName", "eventDate", "taxonRank", "kingdom", "occurrenceStatus")


@pytest.fixture
def archive(bundle_folder, photographs, out):
    identify(photographs, out, bundle_folder, darwin_core=True)
    with DwCAReader(str(out / DARWIN_CORE_FILE)) as reader:
        yield reader


def test_every_plant_with_a_name_is_an_occurrence(archive, out):
    named = [row for row in rows_of(out).values() if row["verdict_name"]]
    found = [row.data for row in archive]
    assert archive.descriptor.core.type == f"{TERMS}Occurrence"
    assert [each[f"{TERMS}scientificName"] for each in found] == [row["verdict_name"] for row in named]
    assert [each[f"{TERMS}catalogNumber"] for each in found] == [row["path"] for row in named]
    assert all(each[f"{TERMS}identificationVerificationStatus"] == "machine" for each in found)
    assert all("score" in each[f"{TERMS}identificationRemarks"] for each in found)


def test_the_terms_have_the_forms_that_gbif_accepts(archive):
    found = [row.data for row in archive]
    assert len({each[f"{TERMS}occurrenceID"] for each in found}) == len(found) > 0
    for each in found:
        assert {f"{TERMS}{name}" for name in NEEDED} <= each.keys()
        assert each[f"{TERMS}basisOfRecord"] in {"HumanObservation", "MachineObservation", "PreservedSpecimen"}
        assert each[f"{TERMS}taxonRank"] in {"species", "genus", "family"}
        date = each[f"{TERMS}eventDate"]
        assert not date or datetime.fromisoformat(date)
        place = each[f"{TERMS}decimalLatitude"], each[f"{TERMS}decimalLongitude"]
        assert all(place) == any(place) == bool(each[f"{TERMS}geodeticDatum"])
        if all(place):
            assert abs(float(place[0])) <= 90
            assert abs(float(place[1])) <= 180
