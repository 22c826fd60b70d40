"""True names beside the answers: what counts as right, and how often it is."""

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.bundle import load_bundle
from models.errors import DataError
from models.taxonomy import Taxon, Taxonomy
from serving.folder.photographs import Photograph
from serving.folder.plants import Plant
from serving.folder.truth import TrueNames, in_words, judge, names_by_rank, require_truths
from tests.make import cases
from tests.serving.tiny import TAXA, TAXONOMY

MEANINGS = cases(__file__, "true_names")


def row(truth, best="Rosa canina", score=0.5, verdict=("species", "Rosa canina"), status="ok"):
    if status == "failed":
        return {"path": "a.jpg", "status": status, "list_truth": truth}
    return {
        "path": "a.jpg", "status": status, "list_truth": truth, "name_1": best, "score_1": score,
        "verdict_rank": verdict[0], "verdict_name": verdict[1],
    }  # fmt: skip


@pytest.fixture(scope="module")
def bundle(bundle_folder):
    return load_bundle(bundle_folder)


@pytest.mark.parametrize(("text", "names"), MEANINGS.items())
def test_true_names_are_understood_as_the_service_understands_names(text, names):
    assert TrueNames(TAXONOMY).find(text) == names


def test_a_name_of_several_plants_counts_where_they_agree():
    rose, guelder = (
        Taxon(f"rosa-{name}", "species", f"Rosa {name}", "Rosa", "Rosaceae", common_names=("rose", "thorn"))
        for name in ("alba", "gallica")
    )
    other = Taxon("ilex-alba", "species", "Ilex alba", "Ilex", "Aquifoliaceae", common_names=("thorn",))
    names = TrueNames(Taxonomy("1", (rose, guelder, other), ()))
    assert names.find("rose") == {"genus": "Rosa", "family": "Rosaceae"}
    assert names.find("thorn") == {}


ROWS = st.lists(
    st.builds(
        row,
        st.sampled_from(["", None, *MEANINGS]),
        st.sampled_from([taxon.scientific_name for taxon in TAXA]),
        st.floats(0, 1),
        st.sampled_from([("species", "Rosa canina"), ("genus", "Crocus"), ("family", "Rosaceae"), ("uncertain", None)]),
        st.sampled_from(["ok", "ok", "failed"]),
    ),
    max_size=30,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_figures_are_those_of_counting_by_hand(bundle, rows):
    report = judge(rows, "truth", bundle)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
    named = [each for each in rows if each["list_truth"]]
    assert (report.num_rows, report.num_without_truth) == (len(named), len(rows) - len(named))
    assert report.num_failed == sum(each["status"] == "failed" for each in named)
    assert report.unknown == Counter(each["list_truth"] for each in named if not MEANINGS[each["list_truth"]])
    taxa = {taxon.scientific_name: names_by_rank(taxon) for taxon in TAXA}
    for rank in ("species", "genus", "family"):
        true = [MEANINGS[each["list_truth"]] for each in named]
        if not any(rank in names for names in true):
            assert rank not in report.by_rank
            continue
        right = sum(
            rank in names and each["status"] == "ok" and taxa[each["name_1"]].get(rank) == names[rank]
            for names, each in zip(true, named, strict=True)
        )
        figures = report.by_rank[rank]
        num_judged = sum(rank in names or not names for names in true)
        assert (figures.right.num_pictures, figures.right.value) == (num_judged, right / num_judged)


def test_failed_rows_and_unknown_names_are_not_right(bundle):
    rows = [row("Rosa canina"), row("Rosa canina", status="failed"), row("Helianthus annuus"), row("")]
    report = judge(rows, "truth", bundle)
    species = report.by_rank["species"]
    assert (species.right.value, species.right.num_pictures) == (1 / 3, 3)
    assert report.unknown == {"Helianthus annuus": 1}
    assert (species.verdicts.num_named, species.verdicts.right.value) == (2, 0.5)
    assert in_words(report).splitlines()[::3] == [
        "species: 33.3% (6.1% to 79.2%) of 3 rows right; 50.0% of 2 verdicts",
        "1 true names are unknown to the model, 1 rows failed",
    ]


def test_a_subspecies_counts_as_its_species_and_is_told(bundle):
    report = judge([row("Rosa canina subsp. canina")], "truth", bundle)
    assert report.by_rank["species"].right.value == 1
    assert report.below == {"Rosa canina subsp. canina": "Rosa canina"}
    assert "more precise than the model: Rosa canina subsp. canina as Rosa canina" in in_words(report).splitlines()


def test_the_most_frequent_mistakes_of_species_are_told(bundle):
    rows = [row("Rosa rugosa")] * 3 + [row("Rosa canina")] * 2 + [row("Crocus", "Bellis perennis")]
    report = judge(rows, "truth", bundle)
    assert [(each.right, each.named, each.count) for each in report.confusions] == [("Rosa rugosa", "Rosa canina", 3)]
    assert in_words(report).splitlines()[-1] == "  3 x Rosa rugosa named Rosa canina"


def test_verdicts_of_a_more_precise_rank_than_the_true_name_are_not_judged(bundle):
    rows = [row("Rosa"), row("Rosa", verdict=("genus", "Rosa")), row("Bellis", verdict=("genus", "Rosa"))]
    rows += [row("Rosa", verdict=("uncertain", None)), row("Rosa", verdict=("not_a_plant", None))]
    report = judge(rows, "truth", bundle)
    assert "species" not in report.by_rank
    assert (report.by_rank["genus"].verdicts.num_named, report.by_rank["genus"].verdicts.right.value) == (2, 0.5)
    assert report.num_verdicts == {"species": 1, "genus": 2, "uncertain": 1, "not_a_plant": 1}
    assert report.confusions == []


def plant(*truths):
    photographs = (Photograph(f"{at}.jpg", 1, "1", {"truth": truth}) for at, truth in enumerate(truths))
    return Plant("bed", tuple(photographs))


def test_true_names_are_checked_before_the_run():
    require_truths([plant(""), plant("Rosa", "Rosa ")], "truth")
    with pytest.raises(DataError, match="no photograph has a value in the column species"):
        require_truths([plant("Rosa")], "species")
    with pytest.raises(DataError, match=r"different true names .*bed: Bellis, Rosa"):
        require_truths([plant("Rosa", "Bellis")], "truth")


def test_the_folder_of_a_photograph_is_its_true_name_unless_the_list_has_such_a_column(bundle):
    rows = [row(None) | {"path": path} for path in ("train/Rosa canina/a.jpg", "Rosa spp/b.jpg", "c.jpg")]
    report = judge([*rows, row(None) | {"path": "Rosa/d.jpg", "list_folder": ""}], "folder", bundle)
    assert (report.num_rows, report.num_without_truth, report.unknown) == (2, 2, {})
    assert report.by_rank["species"].right.num_pictures == 1
    require_truths([Plant("a", (Photograph("Rosa canina/a.jpg", 1, "1"),))], "folder")
    with pytest.raises(DataError, match="no photograph is in a folder"):
        require_truths([Plant("a", (Photograph("a.jpg", 1, "1"),))], "folder")
