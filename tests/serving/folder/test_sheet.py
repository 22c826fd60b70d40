"""The contact sheet shows the least certain answers first."""

import re

from serving.folder import sheet
from serving.folder.sheet import contact_sheet


def row(path, score, name="Rosa canina"):
    return {
        "path": path, "status": "ok", "verdict_rank": "species", "verdict_name": name, "name_1": name, "score_1": score,
    }  # fmt: skip


FAILED = {"path": "x.jpg", "status": "failed", "error": "no <picture>", "verdict_rank": None, "verdict_name": None}


def test_order_links_and_text(tmp_path):
    rows = [row("sure.jpg", 0.9), FAILED, row("deep/ä b.jpg", 0.2, name="<b>")]
    page = contact_sheet(rows, str(tmp_path / "photos"), tmp_path / "out" / "results.html")
    assert re.findall(r'<img loading="lazy" src="([^"]*)"', page) == [
        "../photos/deep/%C3%A4%20b.jpg", "../photos/sure.jpg", "../photos/x.jpg",
    ]  # fmt: skip
    assert "&lt;b&gt; 0.20" in page
    assert "no &lt;picture&gt;" in page
    assert "<b>" not in page


def test_photographs_of_a_bucket_and_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "MAX_SHOWN", 2)
    rows = (row(f"{number}.jpg", number / 10) for number in range(5, 0, -1))
    page = contact_sheet(rows, "https://garden.example/2026/", tmp_path / "results.html")
    assert re.findall(r'src="([^"]*)"', page) == [f"https://garden.example/2026/{number}.jpg" for number in (1, 2)]
