"""Scores of many pictures, a few at a time, and the best name of each rank."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from models.metrics import top_k_hits
from models.outputs import NO_NAME, ComputedRows, Outputs, chunks
from models.ranking import output_probabilities, taxon_probabilities
from models.scoring import AnswerModel
from tests.make import cases
from tests.models.tiny import genus_only, species, taxonomy_of


@given(st.integers(0, 3000), st.integers(0, 2**20))
def test_chunks_hold_every_row_once_and_stay_small(num_rows, width):
    parts = list(chunks(num_rows, width))
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(num_rows))
    assert all((part.stop - part.start) * width <= 2**18 or part.stop - part.start == 1 for part in parts)


TAXA = (
    species("Rosa alba", "Rosaceae"),
    species("Rosa rubra", "Rosaceae"),
    genus_only("Malus", "Rosaceae"),
    species("Iris lutea"),
)
TAXONOMY = taxonomy_of(*TAXA)


def rank_scores(probabilities, labels, taxonomy):
    return (
        Outputs(np.log(np.maximum(probabilities, 1e-300)), labels=labels).score(AnswerModel(taxonomy, 1.0)).rank_scores
    )


@pytest.mark.parametrize(("probabilities", "label", "scores"), cases(__file__, "rank_scores"))
def test_each_rank_has_a_score_and_may_be_right_where_another_is_wrong(probabilities, label, scores):
    found = rank_scores(np.array([probabilities]), np.array([label]), TAXONOMY)
    assert [[round(float(each.score_N[0]), 6), bool(each.right_N[0])] for each in found.values()] == scores


def test_taxa_without_a_genus_share_none_and_are_never_right():
    taxa = tuple(replace(taxon, genus="") if taxon.rank == "species" else taxon for taxon in TAXA)
    found = rank_scores(np.array([[0.4, 0.3, 0.2, 0.1]]), np.array([0]), replace(TAXONOMY, taxa=taxa))
    assert (found["genus"].score_N[0], found["genus"].right_N[0]) == (pytest.approx(0.2), False)
    assert (found["species"].score_N[0], found["species"].right_N[0]) == (pytest.approx(0.4), True)


def test_a_name_that_leaves_out_a_harmful_genus_has_no_score():
    taxa = tuple(replace(taxon, genus="Toxicodendron") if taxon.genus == "Iris" else taxon for taxon in TAXA)
    found = rank_scores(
        np.array([[0.96, 0.01, 0.0, 0.03], [0.971, 0.01, 0.0, 0.019], [0.1, 0.0, 0.0, 0.9]]),
        np.array([0, 0, 3]),
        replace(TAXONOMY, taxa=taxa),
    )
    assert found["species"].score_N.round(6).tolist() == [NO_NAME, 0.971, 0.9]
    assert found["genus"].score_N.round(6).tolist() == [NO_NAME, 0.981, 0.9]
    assert found["family"].score_N.round(6).tolist() == [NO_NAME, 0.981, NO_NAME]
    assert found["species"].right_N.all()


MANY_TAXA = [
    replace(species(f"Genus{at // 3} species{at}", "" if at == 7 else f"Family{at // 5}"), rank=rank)
    for at, rank in enumerate(["species"] * 4 + ["genus"] + ["species"] * 4)
]
MANY = taxonomy_of(*MANY_TAXA, outputs=[(source, each.scientific_name) for source in "ab" for each in MANY_TAXA])


def assert_equal(found, expected):
    for field in found.__struct_fields__:
        assert np.array_equal(getattr(found, field), getattr(expected, field)), field


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 200), st.floats(0.1, 5), st.booleans())
def test_chunks_give_what_all_pictures_at_once_give(num_pictures, values_at_once, temperature, tied):
    random = np.random.default_rng(num_pictures)
    logits = random.normal(0, 3, (num_pictures, 18)).astype(np.float32)
    logits = logits.round() if tied else logits
    labels = random.integers(0, 18, num_pictures)
    stored = ComputedRows(logits.shape, logits.__getitem__)
    model = AnswerModel(MANY, temperature)
    with mock.patch("models.outputs._VALUES_AT_ONCE", values_at_once):
        found = Outputs(stored, labels=labels).score(model)
    outputs = output_probabilities(logits, temperature)
    taxa, taxon_labels = taxon_probabilities(outputs, MANY), MANY.taxon_of_output[labels]
    assert np.array_equal(found.taxon_labels_N, taxon_labels)
    assert np.array_equal(found.named_N, taxa.argmax(axis=1))
    assert np.array_equal(found.confidence_N, taxa.max(axis=1))
    assert np.array_equal(found.right_N, taxa[np.arange(num_pictures), taxon_labels])
    assert np.array_equal(found.output_rivals_N < 1, top_k_hits(outputs, labels, 1))
    for k in (1, 5):
        assert np.array_equal(found.top_k_hits(k), top_k_hits(taxa, taxon_labels, k))
    assert_equal(found, Outputs(logits, labels=labels).score(model))


def test_a_subset_holds_the_same_predictions():
    logits = np.random.default_rng(0).normal(size=(6, 18)).astype(np.float32)
    labels, rows = np.arange(6), np.arange(10, 16)
    model = AnswerModel(MANY, 1.0)
    whole = Outputs(logits, labels=labels, rows=rows).score(model)
    half = whole.subset(rows % 2 == 0)
    assert_equal(half, Outputs(logits, labels=labels, rows=rows).choose(np.array([0, 2, 4])).score(model))
    assert half.hits.mean() == pytest.approx((half.named_N == half.taxon_labels_N).mean())
