"""Figures of pictures that are read a few at a time are those of the plain computation on all of them."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.metrics import top_k_hits
from models.ranking import RANKS, output_probabilities, taxon_probabilities
from models.taxonomy import Output, Taxon, Taxonomy
from training.evaluation.predictions import calibrated_predictions
from training.evaluation.rank_scores import rank_scores
from training.evaluation.stored_rows import StoredRows

TAXA = tuple(
    Taxon(
        taxon_id=str(at),
        rank="genus" if at == 4 else "species",
        scientific_name=f"Genus{at // 3} species{at}",
        genus=f"Genus{at // 3}",
        family="" if at == 7 else f"Family{at // 5}",
    )
    for at in range(9)
)
TAXONOMY = Taxonomy(
    taxonomy_version="test",
    taxa=TAXA,
    outputs=tuple(Output(key=f"{source}:{at}", source=source, taxon_id=str(at)) for source in "ab" for at in range(9)),
)


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(1, 200), st.floats(0.1, 5), st.booleans())
def test_chunks_give_what_all_pictures_at_once_give(num_pictures, values_at_once, temperature, tied):
    random = np.random.default_rng(num_pictures)
    logits = random.normal(0, 3, (num_pictures, 18)).astype(np.float32)
    logits = logits.round() if tied else logits
    labels, stored = random.integers(0, 18, num_pictures), StoredRows()
    stored.append(logits)
    with mock.patch("training.evaluation.stored_rows._VALUES_AT_ONCE", values_at_once):
        found = calibrated_predictions(stored, labels, np.arange(num_pictures), TAXONOMY, temperature)
    outputs = output_probabilities(logits, temperature)
    taxa, taxon_labels = taxon_probabilities(outputs, TAXONOMY), TAXONOMY.taxon_of_output[labels]
    assert np.array_equal(found.taxon_labels_N, taxon_labels)
    assert np.array_equal(found.named_N, taxa.argmax(axis=1))
    assert np.array_equal(found.confidence_N, taxa.max(axis=1))
    assert np.array_equal(found.right_N, taxa[np.arange(num_pictures), taxon_labels])
    assert np.array_equal(found.output_rivals_N < 1, top_k_hits(outputs, labels, 1))
    for k in (1, 5):
        assert np.array_equal(found.top_k_hits(k), top_k_hits(taxa, taxon_labels, k))
    expected = rank_scores(taxa, taxon_labels, TAXONOMY)
    for rank in RANKS:
        assert np.array_equal(found.rank_scores[rank].score_N, expected[rank].score_N)
        assert np.array_equal(found.rank_scores[rank].right_N, expected[rank].right_N)


def test_a_subset_holds_the_same_predictions():
    logits = np.random.default_rng(0).normal(size=(6, 18)).astype(np.float32)
    labels, rows = np.arange(6), np.arange(10, 16)
    whole = calibrated_predictions(logits, labels, rows, TAXONOMY, 1.0)
    half = whole.subset(rows % 2 == 0)
    alone = calibrated_predictions(logits[::2], labels[::2], rows[::2], TAXONOMY, 1.0, plants=np.array([0, 2, 4]))
    for field in whole.__struct_fields__:
        assert np.array_equal(getattr(half, field), getattr(alone, field))
    assert half.hits.mean() == pytest.approx((half.named_N == half.taxon_labels_N).mean())
