"""The notebook runs from its first cell to its last, against a service with the demonstration bundle."""

import json
import shutil

import matplotlib as mpl
from PIL import Image

from tests.docs.pages import DOCS, ROOT
from tests.serving.program import service

NOTEBOOK = DOCS / "first_steps.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
SUNFLOWER = ROOT / "serving" / "web" / "sunflower.jpg"


def test_the_notebook_holds_no_output():
    for cell in CELLS:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_every_cell_runs(tmp_path, monkeypatch, capfd):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    shutil.copy(SUNFLOWER, photographs / "anywhere.jpg")
    exif = Image.Exif()
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 0.0), 3: "E", 4: (13.0, 24.0, 0.0)})  # GPS: Berlin
    Image.open(SUNFLOWER).save(photographs / "berlin.jpg", exif=exif)
    (photographs / "broken.jpg").write_bytes(b"no picture")
    mpl.use("agg")
    work = tmp_path / "docs"
    work.mkdir()
    (tmp_path / "serving").symlink_to(ROOT / "serving")
    monkeypatch.chdir(work)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BOTANIFY_PHOTOS", str(photographs))
    names = {}
    with service(None) as running:
        monkeypatch.setenv("BOTANIFY_URL", running.url)
        for cell in CELLS:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)  # as a notebook does
    said = capfd.readouterr().out
    assert "family Asteraceae" in said  # of the drawn sunflower the demonstration is not sure enough for a species
    assert "berlin.jpg ok species Helianthus annuus" in said
    assert "broken.jpg failed" in said
    assert [row["path"] for row in names["placed"]] == ["berlin.jpg"]
    mpl.pyplot.close("all")
