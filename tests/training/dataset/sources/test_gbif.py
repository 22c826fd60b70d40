"""A download of GBIF becomes training data; its photographs are fetched with care, whatever their servers do."""

import csv
import json
import re
import zipfile
from xml.sax.saxutils import quoteattr

import pyarrow.parquet as pq
import pytest

from models.errors import DataError
from tests.make import from_table
from tests.serving.tiny import encode
from tests.training.dataset.file_server import FileServer
from training.dataset.sources import gbif, photographs
from training.dataset.sources.gbif import import_download
from training.dataset.transfer import Fetcher
from training.drawn import draw_plant
from training.prepare import Gbif, run

DC, DWC, GBIF = "http://purl.org/dc/terms/", "http://rs.tdwg.org/dwc/terms/", "http://rs.gbif.org/terms/1.0/"
MEDIA = "type format identifier references title description source audience created creator contributor publisher"
MEDIA_TERMS = [GBIF + "gbifID", *(DC + word for word in f"{MEDIA} license rightsHolder".split())]
RECORD = "basisOfRecord recordedBy establishmentMeans degreeOfEstablishment eventDate decimalLatitude decimalLongitude"
RANKS = "kingdom order family genus genericName specificEpithet scientificName taxonRank"
RECORD_TERMS = [
    GBIF + "gbifID", DC + "identifier", DC + "license", *(DWC + word for word in RECORD.split()), GBIF + "species",
    *(DWC + word for word in RANKS.split()),
    *(GBIF + word for word in ["hasGeospatialIssues", "speciesKey", "genusKey", "kingdomKey"]),
]  # fmt: skip
BY, NC = "http://creativecommons.org/licenses/by/4.0/", "http://creativecommons.org/licenses/by-nc/4.0/"
NUMBERS = range(4001, 4021)
PLANTS = [("Mitchella repens", "Rubiaceae", 5338762), ("Achillea millefolium", "Asteraceae", 3120060)]
CONTENTS = {f"/{number}.jpg": encode(draw_plant(number % 2, number), "JPEG") for number in range(4001, 4030)}


def record(number, **changes):
    species, family, key = PLANTS[number % 2]
    return {
        "gbifID": number, "license": "CC_BY_NC_4_0", "basisOfRecord": "HUMAN_OBSERVATION", "recordedBy": "Sara Bárrios",
        "eventDate": "2012-04-29T12:47:54", "decimalLatitude": "44.113185", "decimalLongitude": "-72.963711",
        "hasGeospatialIssues": "false", "kingdom": "Plantae", "family": family, "genus": species.split()[0],
        "species": species, "speciesKey": key, "genusKey": 1, **changes,
    }  # fmt: skip


def medium(number, url, **changes):
    return {
        "gbifID": number, "type": "StillImage", "format": "image/jpeg", "identifier": f"{url}/{number}.jpg",
        "creator": "Kim, Hyun-tae", "license": BY, **changes,
    }  # fmt: skip


def archive(path, records, media, left_out=(), defaults=""):
    """Writes an archive as GBIF does: tabs, no quotes, and the records as published in a second table."""
    tables = [
        ("core", "occurrence.txt", DWC + "Occurrence", RECORD_TERMS, records),
        ("extension", "multimedia.txt", GBIF + "Multimedia", MEDIA_TERMS, media),
        ("extension", "verbatim.txt", DWC + "Occurrence", RECORD_TERMS[:3], records),
    ]
    meta = '<archive xmlns="http://rs.tdwg.org/dwc/text/" metadata="metadata.xml">\n'
    with zipfile.ZipFile(path, "w") as stream:
        for kind, name, row_type, terms, rows in tables:
            if name in left_out:
                continue
            words = [term.rpartition("/")[2] for term in terms]
            lines = [words, *([str(row.get(word, "")) for word in words] for row in rows)]
            stream.writestr(name, "".join("\t".join(line) + "\n" for line in lines))
            fields = "".join(f'<field index="{index}" term={quoteattr(term)}/>' for index, term in enumerate(terms))
            fields += defaults if kind == "extension" else ""
            key = "id" if kind == "core" else "coreid"
            meta += (
                f'<{kind} encoding="utf-8" fieldsTerminatedBy="\\t" linesTerminatedBy="\\n" fieldsEnclosedBy="" '
                f'ignoreHeaderLines="1" rowType="{row_type}"><files><location>{name}</location></files>'
                f'<{key} index="0"/>{fields}</{kind}>\n'
            )
        stream.writestr("meta.xml", meta + "</archive>")
    return path


@pytest.fixture(autouse=True)
def _limit_of_other_readers():
    limit = csv.field_size_limit()
    yield
    csv.field_size_limit(limit)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(Fetcher, "_wait", lambda self, seconds: None)
    monkeypatch.setattr(photographs, "_LONGEST_PAUSE_S", 0.0)
    monkeypatch.setattr(gbif, "_PAUSE_S", 0.0)
    return FileServer(dict(CONTENTS))


def simple(path, url):
    return archive(path / "download.zip", map(record, NUMBERS), [medium(number, url) for number in NUMBERS])


def listed(download, monkeypatch, **options):
    """The photographs that would be fetched, and what is left out."""
    monkeypatch.setattr(gbif, "import_photographs", lambda photographs, _, left_out, **__: (photographs, left_out))
    return import_download(download, download.with_name("out"), **options)


def names(server):
    return sorted(path for _, path, *_ in server.asked)


def test_a_download_becomes_training_data_with_license_author_day_and_place(server, tmp_path, capsys):
    changes = {
        4002: {"eventDate": "2012-04-29/2012-05-02", "basisOfRecord": "LIVING_SPECIMEN"},
        4003: {"eventDate": "2012-13-45", "decimalLatitude": "144"},
        4004: {"kingdom": "Fungi"},
        4005: {"species": "", "genus": ""},
        4006: {"hasGeospatialIssues": "true", "species": "Achillea\x00\x1b[2J millefolium"},
    }
    with server.running() as url:
        media = [
            *(medium(number, url) for number in NUMBERS if number > 4001),
            medium(4001, url, license="CC0_1_0", creator="", rightsHolder="", identifier=f"{url}/4028.jpg"),
            medium(4001, url, license="CC BY-SA 3.0", identifier=f"{url}/4021.jpg"),
            medium(4001, url, license="CC BY-SA 3.0", identifier=f"{url}/4021.jpg"),
            medium(4001, url, license=NC, identifier=f"{url}/4022.jpg"),
            medium(4001, url, license="", identifier=f"{url}/4023.jpg"),
            medium(4001, url, type="Sound", format="audio/mpeg", identifier=f"{url}/4024.jpg"),
            medium(4001, url, identifier="file:///etc/passwd"),
            medium("../4001", url, identifier=f"{url}/4025.jpg"),
            medium(4099, url, identifier=f"{url}/4026.jpg"),
        ]
        download = archive(
            tmp_path / "0001.zip", [record(number, **changes.get(number, {})) for number in NUMBERS], media
        )
        run(Gbif(download=download, out=tmp_path / "data", licenses=("cc0", "cc-by", "CC-BY-SA"), workers=1))
        assert names(server) == sorted(f"/{number}.jpg" for number in {*NUMBERS, 4021, 4028} - {4001, 4004, 4005})
    said = capsys.readouterr().out
    assert "19 photographs, 8 left out" in said
    for words in (
        "no plant: Fungi", "known to no genus", "no picture: Sound", "license CC-BY-NC-4.0", "license unknown",
        "none of the web", "no record of it",
    ):  # fmt: skip
        assert words in said
    assert "\x1b" not in (tmp_path / "data" / "gbif.csv").read_text()
    rows = pq.read_table(tmp_path / "data" / "manifest.parquet").to_pylist()
    of = {}
    for row in rows:
        of.setdefault(int(re.search(r"photographs/(\d+)-", row["path"])[1]), []).append(row)
    assert len(rows) == 19
    assert {(row["licence"], row["author"]) for row in of[4001]} == {
        ("CC0-1.0", "Sara Bárrios"), ("CC-BY-SA-3.0", "Kim, Hyun-tae")
    }  # fmt: skip
    assert len({row["group"] for row in of[4001]}) == 1  # photographs of one occurrence
    assert {row["group"] for row in of[4001]}.isdisjoint(row["group"] for row in of[4002])
    day, place = "2012-04-29", (44.113185, -72.963711)
    found = {number: (str(of[number][0]["taken_on"]), of[number][0]["latitude"]) for number in (4002, 4003, 4006, 4007)}
    assert found == {
        4002: ("None", None), 4003: ("None", None), 4006: (day, None), 4007: (day, pytest.approx(place[0])),
    }  # fmt: skip


SPECIES_KEY, GENUS_KEY = "3120060", "3120041"
OAK = {"speciesKey": SPECIES_KEY, "genusKey": GENUS_KEY, "genus": "Quercus", "species": ""}
FULL = {"scientificName": "Quercus petraea (Matt.) Liebl.", "taxonRank": "SPECIES"}


@from_table
def test_a_record_has_the_name_and_key_of_its_species_or_genus(tmp_path, monkeypatch, changes, name, key):
    download = archive(tmp_path / "0001.zip", [record(4001, **OAK | changes)], [medium(4001, "https://host")])
    photographs, left_out = listed(download, monkeypatch)
    found = [(each.cells["scientific_name"], each.cells["gbif_id"], each.cells["group"]) for each in photographs]
    assert found == ([(name, key, "4001")] if name else [])
    assert left_out["known to no genus"] == (name is None)


@pytest.mark.parametrize("key", ["72394", "4RNCX"])
def test_keys_of_the_catalogue_of_life_are_left_out_of_a_whole_download(server, tmp_path, capsys, key):
    with server.running() as url:
        records = [record(4001, speciesKey=key), record(4002, speciesKey="6SQ7R")]
        download = archive(tmp_path / "1.zip", records, [medium(4001, url), medium(4002, url, license="")])
        run(Gbif(download=download, out=tmp_path / "data", licenses=("cc-by", NC), license=NC, workers=1))
    taxa = json.loads((tmp_path / "data" / "taxa.json").read_text())["taxa"]
    assert [taxon.get("gbif_id") for taxon in taxa] == [None, None]
    licenses = pq.read_table(tmp_path / "data" / "manifest.parquet")["licence"].to_pylist()
    assert sorted(licenses) == ["CC-BY-4.0", "CC-BY-NC-4.0"]  # its own, and that of the command
    assert capsys.readouterr().out.count("Catalogue of Life") == 1


@from_table
def test_type_and_format_of_a_photograph_may_be_exchanged(tmp_path, monkeypatch, changes, reason):
    download = archive(tmp_path / "0001.zip", [record(4001)], [medium(4001, "https://host", **changes)])
    photographs, left_out = listed(download, monkeypatch)
    assert (len(photographs), [*+left_out]) == ((0, [reason]) if reason else (1, []))


def test_an_archive_of_another_publisher_may_have_any_identifier_and_defaults(tmp_path, monkeypatch):
    ids = ["urn:catalog:B:10 1", "../4001"]
    records = [record(0, gbifID=each, species="", specificEpithet="alba", genus="Salix") for each in ids]
    media = [medium(number, "https://host", identifier="https://host/1.jpg", license="") for number in ids]
    defaults = f'<field term="{DC}license" default="{NC}"/>'
    download = archive(tmp_path / "0001.zip", records, media, defaults=defaults)
    photographs, _ = listed(download, monkeypatch, default_license="CC0")
    assert [each.cells["group"] for each in photographs] == ids
    assert {each.cells["license"] for each in photographs} == {NC}
    stems = [re.fullmatch(r"photographs/(\w+)-[0-9a-f]{12}\.jpg", each.path)[1] for each in photographs]
    assert stems == ["urncatalogB101", "4001"]


def test_an_unpacked_archive_is_read_where_it_lies(tmp_path, monkeypatch):
    packed = listed(simple(tmp_path, "https://host"), monkeypatch)
    with zipfile.ZipFile(tmp_path / "download.zip") as stream:
        stream.extractall(tmp_path / "unpacked" / "inner")
    for path in ("unpacked", "unpacked/inner", "unpacked/inner/occurrence.txt"):
        assert listed(tmp_path / path, monkeypatch) == packed


def unpacked(folder, text, replacement):
    """An unpacked archive with another meta.xml; its table of occurrences lies beside the folder."""
    with zipfile.ZipFile(simple(folder, "https://host")) as stream:
        stream.extractall(folder / "inner")
    meta = folder / "inner" / "meta.xml"
    meta.write_text(meta.read_text().replace(text, replacement))
    (folder / "inner" / "occurrence.txt").rename(folder / "occurrence.txt")
    return folder / "inner"


LAUGHS = "".join(f'<!ENTITY {chr(97 + at)} "{f"&{chr(96 + at)};" * 10 if at else "ha" * 99}">' for at in range(9))


@pytest.mark.parametrize(
    ("text", "replacement", "why"),
    [
        (">occurrence.txt", ">../occurrence.txt", "No such file"),
        ("<archive", f"<!DOCTYPE x [{LAUGHS}]><archive about='&i;'", "amplification"),
    ],
)
def test_no_table_is_read_from_elsewhere_and_no_entity_explodes(tmp_path, monkeypatch, text, replacement, why):
    with pytest.raises(DataError, match=f"inner cannot be read .*{why}"):
        listed(unpacked(tmp_path, text, replacement), monkeypatch)


@pytest.mark.parametrize("form", ["1.zip", "1/1.csv", "1.csv"])
def test_a_list_without_photographs_is_told_from_an_archive(tmp_path, form):
    table = "gbifID\tspecies\n1\tRosa canina\n"
    path = tmp_path / form
    if form == "1.zip":
        with zipfile.ZipFile(path, "w") as stream:
            stream.writestr("0001-25.csv", table)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(table)
    with pytest.raises(DataError, match=r"list of GBIF, which has no photographs.*format Darwin Core archive"):
        import_download(path.parent if form == "1/1.csv" else path, tmp_path / "data")


def test_what_fails_is_listed_and_tried_again_and_nothing_is_fetched_twice(server, tmp_path):
    missing = server.files.pop("/4007.jpg")
    server.faults = ["cut", (503, "120"), (503, "120"), "cut"]
    with server.running() as url:
        download = simple(tmp_path, url)
        imported = import_download(download, tmp_path / "data")
        assert imported.num_pictures == 19
        assert imported.left_out == {"not fetched: status 404": 1}
        assert names(server).count("/4007.jpg") <= 2  # a fault may have come first
        with (tmp_path / "data" / "failed.csv").open() as stream:
            (failed,) = csv.DictReader(stream)
        assert failed["url"] == f"{url}/4007.jpg"
        assert "status 404" in failed["reason"]
        server.asked.clear()
        server.files["/4007.jpg"] = missing
        assert import_download(download, tmp_path / "data").num_pictures == 20
        assert names(server) == ["/4007.jpg"]
    assert not (tmp_path / "data" / "failed.csv").exists()
    stored = sorted(path.read_bytes() for path in (tmp_path / "data" / "photographs").iterdir())
    assert stored == sorted(CONTENTS[f"/{number}.jpg"] for number in NUMBERS)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("no photographs", r"lacks a table \(got Occurrence, Occurrence; .*media type: image"),
        (b"no archive", "download it again"),
        ("other", "no photograph is left.*license CC-BY-4.0: 20"),
        ("long", "a line has more than"),
    ],
)
def test_a_download_that_cannot_be_used_is_one_error(tmp_path, monkeypatch, content, what):
    download = simple(tmp_path, "http://127.0.0.1:9")
    if content == "no photographs":
        archive(download, map(record, NUMBERS), [], left_out=("multimedia.txt",))
    elif content == "long":
        monkeypatch.setattr(gbif, "_MOST_BYTES", 20_000)
        archive(download, [record(4001, species="x" * 20_000)], [medium(4001, "http://127.0.0.1:9")])
    elif isinstance(content, bytes):
        download.write_bytes(content)
    with pytest.raises(DataError, match=what):
        import_download(download, tmp_path / "data", ["cc0"] if content == "other" else [])
