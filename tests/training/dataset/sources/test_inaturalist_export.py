"""Observations that iNaturalist exported: photographs are downloaded with care, and become training data."""

import csv

import pyarrow.parquet as pq
import pytest

from models.errors import DataError
from tests.make import from_table
from tests.serving.tiny import BLUE, GREEN, RED, draw, jpeg
from tests.training.dataset.file_server import FileServer
from training.dataset.classes import build_classes
from training.dataset.sources import inaturalist_export
from training.dataset.sources.inaturalist_export import import_observations
from training.dataset.sources.table import read_table
from training.dataset.transfer import Fetcher
from training.prepare import InaturalistExport, run


def observation(number, name="Rosa canina", url="", **more):
    return {
        "id": number, "observed_on": "2024-05-31", "user_login": "ann", "license": "CC-BY-NC", "image_url": url,
        "latitude": "51.5", "longitude": "-0.1", "captive_cultivated": "false", "scientific_name": name,
        "common_name": "dog rose", "iconic_taxon_name": "Plantae", **more,
    }  # fmt: skip


HEADER = [*observation(0)]
PICTURES = {"/1/medium.jpg": jpeg(RED), "/2/medium.jpg": jpeg(GREEN), "/3/medium.jpg": jpeg(BLUE)}


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(inaturalist_export, "_PAUSE_S", 0.0)
    monkeypatch.setattr(Fetcher, "_wait", lambda self, seconds: None)
    return FileServer(PICTURES)


def write(path, rows, header=HEADER):
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, header, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_observations_become_training_data_with_author_license_date_and_place(server, tmp_path, capsys):
    with server.running() as url:
        export = write(
            tmp_path / "observations.csv",
            [
                observation(1, url=f"{url}/1/medium.jpg"),
                observation(2, "Bellis perennis", f"{url}/2/medium.jpg", captive_cultivated="true"),
                observation(3, "Apis mellifera", f"{url}/3/medium.jpg", iconic_taxon_name="Insecta"),
                observation(4, "Quercus robur", f"{url}/4/medium.jpg"),
                observation(5, "", f"{url}/3/medium.jpg"),
                observation(6, "Quercus robur", "file:///etc/passwd"),
            ],
        )
        run(InaturalistExport(export=export, out=tmp_path / "data", workers=1))
    said = capsys.readouterr().out
    for words in ("2 photographs, 4 left out", "no plant: Insecta", "status 404", "cannot be fetched"):
        assert words in said
    rows = pq.read_table(tmp_path / "data" / "manifest.parquet").to_pylist()
    rose, daisy = sorted(rows, key=lambda row: row["path"])
    assert (rose["author"], rose["licence"], str(rose["taken_on"])) == ("ann", "unknown", "2024-05-31")
    assert (rose["latitude"], daisy["latitude"]) == (51.5, None)  # the place of a planted one says nothing
    assert "/3/medium.jpg" not in str(server.asked)


@pytest.mark.parametrize(("default", "elsewhere"), [("", "unknown"), ("CC BY-NC 4.0", "CC-BY-NC-4.0")])
def test_the_license_of_an_observation_is_not_that_of_its_photograph(tmp_path, default, elsewhere):
    hosts = ["static.inaturalist.org", "inaturalist-open-data.s3.amazonaws.com"]
    plants = ["Rosa canina", "Bellis perennis"]
    (tmp_path / "mine").mkdir()
    rows = []
    for number, (host, plant, color) in enumerate(zip(hosts, plants, (RED, GREEN), strict=True)):
        draw(color).save(tmp_path / "mine" / f"{number}.png")
        rows.append(observation(number, plant, f"https://{host}/photos/{number}/medium.jpg", license="CC0"))
    export = write(tmp_path / "observations.csv", rows)
    command = InaturalistExport(
        export=export, out=tmp_path / "data", photographs=tmp_path / "mine", license=default, workers=1
    )
    run(command)
    kept = pq.read_table(tmp_path / "data" / "manifest.parquet").to_pylist()
    assert {row["path"][-5:]: row["licence"] for row in kept} == {"0.png": "all-rights-reserved", "1.png": elsewhere}


HIGHER = ["Cichorieae", "Inuleae", "Lobatae", "Polypodiidae", "Rosaceae"]


def names_of(folder, observations, header):
    """Name in the export -> name in the list; and what was left out."""
    (folder / "mine").mkdir()
    for row in observations:
        (folder / "mine" / f"{row['id']}.jpg").touch()
    imported = import_observations(write(folder / "export.csv", observations, header), folder / "data", folder / "mine")
    written = {str(row["id"]): row["scientific_name"] for row in observations}
    with imported.table.open() as stream:
        return {written[row["group"]]: row["scientific_name"] for row in csv.DictReader(stream)}, imported.left_out


def test_a_word_alone_is_a_genus_by_the_list_or_by_the_name_of_a_species(tmp_path):
    kept = ["Quercus rubra", "Quercus", "Xerophyta", "Danae", "Chara vulgaris", "Chara"]
    rows = [observation(number, name) for number, name in enumerate([*HIGHER, *kept])]
    found, left_out = names_of(tmp_path, rows, HEADER)
    assert found == {name: name for name in kept}
    assert left_out == {
        f"known to no genus: {', '.join(HIGHER)}; if one is a genus, also export the column taxon_genus_name": 5
    }


def test_the_columns_of_ranks_decide_what_a_word_alone_is(tmp_path):
    genera = dict.fromkeys(HIGHER, "") | {"Lobatae": "Quercus", "Zzyzxus": "Zzyzxus", "Quercus rubra": "Quercus"}
    rows = [
        observation(number, name, taxon_genus_name=genus, common_name="")
        for number, (name, genus) in enumerate(genera.items())
    ]
    found, left_out = names_of(tmp_path, rows, [*HEADER, "taxon_genus_name"])
    assert found == {"Lobatae": "Quercus", "Zzyzxus": "Zzyzxus", "Quercus rubra": "Quercus rubra"}
    table = read_table("inaturalist", tmp_path / "data" / "observations.csv")
    taxa = build_classes({"s": [record.plant for record in table.records]}, "within_sources").taxonomy.taxa
    assert [(taxon.scientific_name, taxon.rank, taxon.genus) for taxon in taxa] == [
        ("Quercus", "genus", "Quercus"),
        ("Quercus rubra", "species", "Quercus"),
        ("Zzyzxus", "genus", "Zzyzxus"),
    ]
    assert left_out == {"known to no genus: Cichorieae, Inuleae, Polypodiidae, Rosaceae": 4}


def test_one_photograph_a_second_is_asked_for(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(inaturalist_export, "import_photographs", lambda *_, **options: asked.append(options))
    import_observations(write(tmp_path / "observations.csv", []), tmp_path / "data")
    assert asked == [{"at_once": 1, "pause_s": 1.0}]


def test_photographs_of_a_folder_are_found_by_their_observation(tmp_path):
    (tmp_path / "mine").mkdir()
    draw(RED).save(tmp_path / "mine" / "1.PNG")
    export = write(tmp_path / "observations.csv", [observation(1), observation(2)])
    imported = import_observations(export, tmp_path / "data", tmp_path / "mine")
    assert imported.num_pictures == 1
    assert "2.jpg" in str(imported.left_out)


@from_table
def test_an_export_that_cannot_be_used_is_one_error(tmp_path, content, what):
    path = tmp_path / "observations.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=what):
        import_observations(path, tmp_path / "data")
