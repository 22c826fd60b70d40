import csv

import numpy as np
import pytest
from msgspec.structs import replace

from models.errors import DataError
from models.outputs import Outputs
from models.scoring import AnswerModel
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest
from training.fit.heads import fit_features
from training.suspects import COLUMNS, judge_labels, suspects_of, suspects_table, two_folds

NUM_TAXA, NUM_FEATURES, NOISE = 20, 60, 1.0
TAXONOMY = make_taxonomy(NUM_TAXA)
DIRECTIONS = np.random.default_rng(7).normal(size=(NUM_TAXA, NUM_FEATURES))


def draw_features(taxa, plants, noise=NOISE, seed=0):
    """Features around the direction of each taxon; half of the noise is that of the plant."""
    random = np.random.default_rng(seed)
    of_plant = random.normal(0, noise, (plants.max() + 1, NUM_FEATURES))[plants]
    noises = (of_plant + random.normal(0, noise, of_plant.shape)) / np.sqrt(2)
    return (DIRECTIONS[taxa] + noises).astype(np.float32)


def draw_plants(per_taxon=12, num_taxa=NUM_TAXA):
    """The taxon and the plant of two pictures of each plant."""
    taxa = np.repeat(np.arange(num_taxa), 2 * per_taxon)
    return taxa, np.repeat(np.arange(num_taxa * per_taxon), 2)


def mislabel(taxa, plants, num_plants):
    """Labels of which those of some plants are wrong, and which pictures have them."""
    random = np.random.default_rng(3)
    wrong = np.isin(plants, random.choice(plants.max() + 1, num_plants, replace=False))
    shift = random.integers(1, NUM_TAXA, plants.max() + 1)[plants]
    return np.where(wrong, (taxa + shift) % NUM_TAXA, taxa), wrong


def judged(features, labels, plants):
    no_logits = np.zeros((len(labels), 0), np.float32)
    turned = replace(TAXONOMY, outputs=TAXONOMY.outputs[::-1])
    return judge_labels(Outputs(no_logits, features, NUM_TAXA - 1 - labels, plants=plants), turned)


def test_planted_mislabels_are_at_the_top_of_the_list_with_the_right_suggestion():
    taxa, plants = draw_plants()
    labels, wrong = mislabel(taxa, plants, 12)
    found = judged(draw_features(taxa, plants), labels, plants)
    suspects = suspects_of(found)
    top = suspects.rows[: wrong.sum()]
    assert wrong[top].sum() > 0.8 * wrong.sum()
    assert len(suspects.rows) < 1.5 * wrong.sum()
    assert (suspects.named_N == taxa[suspects.rows])[wrong[suspects.rows]].mean() > 0.9
    margins = suspects.confidence_N - suspects.right_N
    assert (np.diff(margins) <= 0).all()
    assert np.array_equal(suspects.taxon_labels_N, labels[suspects.rows])


def test_pictures_of_a_plant_stay_in_one_fold_and_taxa_have_half_of_their_plants_in_each():
    taxa, plants = draw_plants(per_taxon=7)
    shuffled = np.random.default_rng(0).permutation(len(plants))
    folds = two_folds(plants[shuffled], taxa[shuffled])
    for plant in range(plants.max() + 1):
        assert len({*folds[plants[shuffled] == plant]}) == 1
    for taxon in range(NUM_TAXA):
        assert sorted(np.bincount(folds[taxa[shuffled] == taxon])) == [6, 8]


def test_a_picture_is_judged_by_a_fit_without_its_plant(monkeypatch):
    taxa, plants = draw_plants(per_taxon=3)
    features = draw_features(taxa, plants)
    plant_of = {tuple(row): plant for row, plant in zip(features, plants, strict=True)}
    fitted = []

    def fit(rows, labels, genera):
        table = fit_features(rows, labels, genera)
        fitted.append({plant_of[tuple(row)] for row in rows[:]})
        return table

    monkeypatch.setattr("training.suspects.fit_features", fit)
    judged(features, taxa, plants)
    first, second = fitted
    assert first | second == {*plants.tolist()}
    assert not first & second


def test_a_taxon_with_pictures_of_one_plant_is_left_out():
    taxa, plants = draw_plants(num_taxa=3, per_taxon=4)
    plants[taxa == 1] = plants[taxa == 1][0]
    found = judged(draw_features(taxa, plants), taxa, plants)
    assert np.array_equal(found.rows, np.flatnonzero(taxa != 1))
    assert set(found.named_N) == {0, 2}
    assert not len(suspects_of(found).rows)


@pytest.mark.parametrize("num_taxa", [1, 2])
def test_too_few_taxa_with_several_plants_are_one_clear_error(num_taxa):
    taxa, plants = draw_plants(num_taxa=num_taxa, per_taxon=2)
    plants[taxa == 1] = 2
    with pytest.raises(DataError, match=r"too few taxa.*got 1; expected at least 2.*--suspects"):
        judged(draw_features(taxa, plants), taxa, plants)


def answers(*rows, num_taxa=3):
    """Predictions of (label, probabilities of the taxa)."""
    logits = np.log([probabilities for _, probabilities in rows])
    return Outputs(logits, labels=np.array([label for label, _ in rows])).score(
        AnswerModel(make_taxonomy(num_taxa), 1.0)
    )


def test_a_taxon_is_suggested_from_its_own_self_confidence():
    """Taxon 0 has 0.9, taxon 1 has 0.5, and the labels of taxon 2 are rarely contradicted."""
    sure = [(0, (0.98, 0.01, 0.01))] * 9 + [(1, (0.25, 0.5, 0.25))] * 9
    found = answers(*sure, (2, (0.6, 0.1, 0.3)), (2, (0.1, 0.6, 0.3)), (2, (0.03, 0.02, 0.95)))
    assert suspects_of(found).rows.tolist() == [19]


def test_a_label_with_its_usual_probability_is_not_suspected():
    found = answers(*[(0, (0.5, 0.3, 0.2))] * 5, (1, (0.55, 0.4, 0.05)), (1, (0.8, 0.1, 0.1)))
    assert suspects_of(found).rows.tolist() == [6]


def test_the_label_that_is_contradicted_most_comes_first():
    found = answers(
        (0, (0.9, 0.05, 0.05)), *[(1, (0.1, 0.8, 0.1))] * 4, (1, (0.95, 0.04, 0.01)), (1, (0.99, 0.005, 0.005))
    )
    assert suspects_of(found).rows.tolist() == [6, 5]


def test_the_list_has_the_file_the_two_taxa_and_their_scores(tmp_path):
    taxonomy = make_taxonomy(3)
    pictures = [(f"{at}.jpg", taxonomy.output_keys[at % 3], "train") for at in range(6)]
    manifest = Manifest(write_data(tmp_path / "data", tmp_path, pictures, taxonomy))
    found = answers(*[(at % 3, np.full(3, 1 / 3)) for at in range(5)], (2, (0.1, 0.7, 0.2)))
    rows = list(csv.DictReader(suspects_table(found.subset(np.array([5])), manifest).decode().splitlines()))
    label, suggested = taxonomy.taxa[2], taxonomy.taxa[1]
    values = [str(tmp_path / "5.jpg"), label.taxon_id, suggested.taxon_id, "0.200000", "0.700000"]
    assert rows == [dict(zip(COLUMNS, [*values, label.scientific_name, suggested.scientific_name], strict=True))]
