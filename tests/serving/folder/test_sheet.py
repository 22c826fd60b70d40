"""The contact sheet shows the least certain answers first."""

import re

from serving.folder import sheet
from serving.folder.sheet import contact_sheet


def row(path, score, name="Rosa canina"):
    return {
        "path": path, "status": "ok", "verdict_rank": "species", "verdict_name": name,
        "verdict_score": score, "name_1": name, "score_1": score,
    }  # fmt: skip


FAILED = {"path": "x.jpg", "status": "failed", "error": "no <picture>", "verdict_rank": None, "verdict_name": None}


def test_order_links_and_text(tmp_path):
    rows = [row("sure.jpg", 0.9), FAILED, row("deep/ä b.jpg", 0.2, name="<b>")]
    page = contact_sheet(rows, str(tmp_path / "photos"), tmp_path / "out" / "results.html")
    assert re.findall(r'<img loading="lazy" src="([^"]*)"', page) == [
        "../photos/deep/%C3%A4%20b.jpg", "../photos/sure.jpg", "../photos/x.jpg",
    ]  # fmt: skip
    assert "<i>&lt;b&gt;</i></b> 0.20" in page
    assert "no &lt;picture&gt;" in page
    assert "<i><b>" not in page


def test_the_most_likely_taxon_is_named_beside_another_verdict(tmp_path):
    genus = row("a.jpg", 0.4) | {"verdict_rank": "genus", "verdict_name": "Rosa", "verdict_score": 0.7}
    rows = [genus, row("b.jpg", 0.9), row("c.jpg", 0.1) | {"verdict_rank": "uncertain", "verdict_name": None}]
    page = contact_sheet(rows, "photos", tmp_path / "results.html")
    assert "<b><i>Rosa</i></b> 0.70</p><p>most likely <i>Rosa canina</i> 0.40</p>" in page
    assert page.count("Rosa canina") == 3
    assert "<b>uncertain</b></p><p>most likely <i>Rosa canina</i> 0.10</p>" in page


def test_photographs_of_a_bucket_and_many_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet, "MAX_SHOWN", 2)
    rows = (row(f"{number}.jpg", number / 10) for number in range(5, 0, -1))
    page = contact_sheet(rows, "https://garden.example/2026/", tmp_path / "results.html")
    assert re.findall(r'src="([^"]*)"', page) == [f"https://garden.example/2026/{number}.jpg" for number in (1, 2)]
    assert "2 of 5 rows." in page
