"""The notebook runs from its first cell to its last, against a service with the demonstration bundle."""

import json
import shutil

import matplotlib as mpl
from PIL import Image

from tests.docs.pages import DOCS, ROOT
from tests.serving.program import service

NOTEBOOK = DOCS / "first_steps.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
EXAMPLE = ROOT / "serving" / "web" / "love-in-a-mist.jpg"


def test_the_notebook_holds_no_output():
    for cell in CELLS:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_every_cell_runs(tmp_path, monkeypatch, capfd):
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    shutil.copy(EXAMPLE, photographs / "anywhere.jpg")
    exif = Image.Exif()
    exif.get_ifd(0x8825).update({1: "N", 2: (52.0, 30.0, 0.0), 3: "E", 4: (13.0, 24.0, 0.0)})  # GPS: Berlin
    Image.open(EXAMPLE).save(photographs / "berlin.jpg", exif=exif)
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
    assert "species Nigella damascena" in said
    assert "berlin.jpg ok species Nigella damascena" in said
    assert "broken.jpg failed" in said
    assert [row["path"] for row in names["placed"]] == ["berlin.jpg"]
    mpl.pyplot.close("all")
