import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from models.ranking import RANKS, Verdict
from tests.models.tiny import species
from training.comparison import figures
from training.comparison.answers import COVERAGES, Answer

ROSE, DOG_ROSE, DAISY = species("Rosa rubra", "Rosaceae"), species("Rosa canina", "Rosaceae"), species("Bellis alba")


def answer(top1=True, *, rank="species", right=None, confidence=0.8, right_score=0.8, sizes=(), hits=()):
    name = "a name" if rank in RANKS else None
    return Answer(
        verdict=Verdict(rank, name, confidence, "a reason"),
        verdict_right=(top1 if right is None else right) and rank in RANKS,
        top1=top1,
        top5=True,
        confidence=confidence,
        right_score=right_score,
        set_sizes=sizes,
        set_hits=hits,
    )


def test_few_shot_taxa_are_those_with_fewer_training_pictures_than_the_limit():
    ids = ["rare", "rare", "common", "new"]
    old, new = [answer(top1) for top1 in (1, 1, 1, 0)], [answer(top1) for top1 in (0, 1, 1, 0)]
    counts = {"rare": 19, "common": 20}
    found = figures.few_shot(old, new, np.arange(4), ids, counts, limit=20, counted_in="data")
    assert found.num_taxa == 2
    assert (found.micro_top1.num_pictures, found.micro_top1.loss) == (3, pytest.approx(1 / 3))
    assert found.macro_top1.loss == pytest.approx(1 / 4)
    none = figures.few_shot(old, new, np.arange(4), ids, {**counts, "new": 5}, limit=1, counted_in="data")
    assert (none.num_taxa, none.micro_top1) == (0, None)


def test_genera_are_sorted_by_the_accuracy_of_the_new_bundle():
    taxa = [ROSE, DOG_ROSE, DAISY, DAISY]
    rows = figures.genera([answer()] * 4, [answer(top1) for top1 in (1, 1, 0, 1)], taxa)
    assert [(row.genus, row.num_taxa, row.num_pictures, row.old_top1, row.new_top1) for row in rows] == [
        ("Bellis", 1, 2, 1.0, 0.5),
        ("Rosa", 2, 2, 1.0, 1.0),
    ]
    common = [replace(taxon, genus="") for taxon in taxa[2:]]
    assert [row.genus for row in figures.genera([answer()] * 4, [answer()] * 4, [*taxa[:2], *common])] == ["Rosa"]


def test_negative_log_likelihood_is_that_of_the_right_taxon():
    found = figures.calibration([answer(right_score=0.5), answer(right_score=0.25)], np.arange(2))
    assert found.nll == pytest.approx(1.5 * math.log(2))
    assert found.ece.value == pytest.approx(0.2)


def test_coverage_counts_pictures_and_taxa():
    answers = [answer(sizes=(1, 2, 3), hits=(True, True, True)), answer(sizes=(1, 2, 5), hits=(False, True, True))]
    answers += [answer(sizes=(1, 2, 4), hits=(False, False, True))]
    sets = figures.candidate_sets(answers, np.array([0, 0, 1]))
    assert [each.coverage for each in sets] == list(COVERAGES)
    assert [each.covered.value for each in sets] == pytest.approx([1 / 3, 2 / 3, 1])
    assert [each.macro_covered for each in sets] == pytest.approx([0.25, 0.5, 1])
    assert [each.mean_size for each in sets] == pytest.approx([1, 2, 4])


def test_bundle_without_a_table_has_no_candidate_sets():
    assert figures.candidate_sets([answer()], np.array([0])) == ()


VERDICTS = st.lists(
    st.tuples(*[st.sampled_from(["species", "genus", "family", "uncertain", "not_a_plant"])] * 2, st.booleans()),
    min_size=1,
    max_size=40,
)


@given(VERDICTS)
def test_every_verdict_is_counted_once(pairs):
    old = [answer(right, rank=before) for before, _, right in pairs]
    new = [answer(right, rank=after) for _, after, right in pairs]
    found = figures.verdicts(old)
    named = found.species.num_named + found.genus.num_named + found.family.num_named
    assert named + found.num_uncertain + found.num_not_a_plant == len(pairs)
    crossed = figures.crossings(old, new, [ROSE] * len(pairs), [f"{at}.jpg" for at in range(len(pairs))])
    assert sum(sum(row.values()) for row in crossed.old_to_new.values()) == len(pairs)
    assert crossed.only_old.num_named + crossed.only_new.num_named == len(crossed.pictures)
    expected = [f"{at}.jpg" for at, (before, after, _) in enumerate(pairs) if (before in RANKS) != (after in RANKS)]
    assert [row.picture for row in crossed.pictures] == expected


def test_verdict_that_changes_its_rank_does_not_cross_a_threshold():
    crossed = figures.crossings([answer()], [answer(rank="genus")], [ROSE], ["a.jpg"])
    assert crossed.pictures == ()
    assert crossed.old_to_new == {"species": {"genus": 1}}


def test_rejection_counts_named_things_and_kept_plants():
    things = [Verdict("family", "Rosaceae", 0.6, ""), Verdict("not_a_plant", None, 0.1, "")]
    things += [Verdict("uncertain", None, 0.1, "")]
    answers = [answer(), answer(rank="uncertain"), answer(rank="not_a_plant"), answer(rank="genus")]
    found = figures.rejection(things, answers, has_table=True)
    assert found.things_named.value == pytest.approx(1 / 3)
    assert found.plants_kept.value == pytest.approx(3 / 4)
