"""The Darwin Core archive of a run: read by a library, with the terms and forms that GBIF asks for."""

from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from dwca.read import DwCAReader

from serving.folder.darwin_core import DARWIN_CORE_FILE
from tests.models.test_exif import at, exif
from tests.serving.folder.photograph_folder import rows_of
from tests.serving.test_place import photograph
from tests.serving.tiny import jpeg

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
    (photographs / "gray.jpg").write_bytes(jpeg((90, 90, 90)))
    (photographs / "broken.jpg").touch()
    return occurrences(identify, out)


def test_every_plant_with_a_name_is_an_occurrence(found, out):
    rows = rows_of(out)
    assert [rows[name]["verdict_rank"] for name in ("gray.jpg", "broken.jpg")] == ["uncertain", None]
    named = [row for row in rows.values() if row["verdict_name"]]
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


def test_datum_and_accuracy_are_those_of_the_photograph(identify, photographs, out):
    place = (35.0, 39.0, 29.16), "N", (139.0, 44.0, 28.88), "E"
    more = {"wgs": {}, "tokyo": {"GPSMapDatum": "TOKYO"}, "sure": {"GPSHPositioningError": 1413.2}}
    for name, tags in more.items():
        (photographs / f"{name}.jpg").write_bytes(jpeg(exif=exif(at(*place, **tags))))
    found = {each["catalogNumber"]: each for each in occurrences(identify, out)}
    assert {
        name: (found[f"{name}.jpg"]["geodeticDatum"], found[f"{name}.jpg"]["coordinateUncertaintyInMeters"])
        for name in more
    } == {"wgs": ("EPSG:4326", ""), "tokyo": ("EPSG:4301", ""), "sure": ("EPSG:4326", "1414")}
    row = rows_of(out)["tokyo.jpg"]
    assert (row["geodetic_datum"], row["latitude"]) == ("EPSG:4301", pytest.approx(35.6581))


def test_a_day_that_is_still_to_come_is_no_date_of_an_event(identify, photographs, out):
    today = datetime.now(UTC)
    days = {f"{number}.jpg": (today + timedelta(days=number)).date().isoformat() for number in (0, 1, 3)}
    for name, day in days.items():
        (photographs / name).write_bytes(photograph((52.5, 13.4), day))
    found = {
        each["catalogNumber"]: (each["eventDate"], each["verbatimEventDate"]) for each in occurrences(identify, out)
    }
    assert [found[name] for name in days] == [
        (f"{days['0.jpg']}T12:00:00", ""),
        (f"{days['1.jpg']}T12:00:00", ""),
        ("", f"{days['3.jpg']}T12:00:00"),
    ]


def test_a_run_of_an_earlier_version_continues_without_the_datum_of_its_rows(identify, photographs, out):
    (photographs / "old.jpg").write_bytes(photograph((52.5, 13.4)))
    identify()
    (part,) = out.glob("parts/*.parquet")
    pq.write_table(pq.read_table(part).drop_columns(["geodetic_datum", "coordinate_uncertainty_m"]), part)
    (photographs / "new.jpg").write_bytes(photograph((52.5, 13.4)))
    found = {
        each["catalogNumber"]: (each["decimalLatitude"], each["geodeticDatum"]) for each in occurrences(identify, out)
    }
    assert [found[name] for name in ("old.jpg", "new.jpg")] == [("52.5", ""), ("52.5", "EPSG:4326")]
    assert part.exists()


def test_an_identification_is_of_today_and_its_identifier_of_this_run(found, identify, tmp_path):
    before = datetime.now(UTC).date()
    again = occurrences(identify, tmp_path / "again")
    days = {datetime.fromisoformat(each["dateIdentified"]).date() for each in again}
    assert all(before <= day <= datetime.now(UTC).date() for day in days)
    ids = [each["occurrenceID"] for each in found + again]
    assert len({*ids}) == len(ids) > 0
