"""The fit of drawn outputs, number by number: a plant in the wrong group or a cutoff in the wrong place moves some."""

import json
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from models.outputs import Outputs
from tests.training.fit.drawn_outputs import (
    DIRECTIONS,
    NOISE,
    NUM_FEATURES,
    NUM_TAXA,
    TAXONOMY,
    Drawn,
    drawn_sets,
    fit_drawn,
)
from training.fit.place import PlaceData, Records, count_records
from training.fit.unknown_plants import UnknownNames

STORED = Path(__file__).with_name("fit.json")
ALIKE = DIRECTIONS.copy()  # the taxa 0 to 9 resemble each other in pairs
ALIKE[1:10:2] = ALIKE[0:10:2] + 0.35 * ALIKE[1:10:2]


def drawn(directions, seed, **columns):
    features = directions + np.random.default_rng(seed).normal(0, NOISE, directions.shape)
    logits = (features @ ALIKE.T - (ALIKE**2).sum(axis=1) / 2) / NOISE**2
    return Outputs(logits.astype(np.float32), features.astype(np.float32), **columns)


def plants(per_taxon, seed):
    labels = np.repeat(np.arange(NUM_TAXA), per_taxon)
    return drawn(ALIKE[labels], seed, labels=labels)


def places(calibration):
    """Those of a pair grow at different places and in different months; every seventh plant has no place."""
    has_place_N = np.arange(len(calibration.labels)) % 7 > 0
    taxon_N = calibration.labels[has_place_N]
    records = Records(taxon_N, np.full(len(taxon_N), 45.0), taxon_N % 2 * 90.0, taxon_N % 2 * 6 + 1)
    return PlaceData(count_records(records, NUM_TAXA, 10.0), records, has_place_N)


def strangers():
    """Ten plants of each of 60 kinds, three of a genus, of which the network knows every fourth; of three sources."""
    genus_M = np.arange(60).repeat(10)
    near_M = genus_M % 4 == 0
    label_M = genus_M % NUM_TAXA
    names = UnknownNames(
        genus_M % 3, np.arange(600) // 3, np.zeros(600, bool), label_M, near_M, near_M | (genus_M % 2 == 0)
    )
    others = np.random.default_rng(9).normal(size=(60, NUM_FEATURES))
    outputs = drawn(np.where(near_M[:, None], ALIKE[label_M], others[genus_M]), 8)
    return Drawn(outputs, "strangers", names=names)


@cache
def fit(name):
    calibration = plants(70, seed=1)
    validation = plants(40, seed=5)
    validation.labels[440:450] = 12  # a quarter of taxon 11 among the validation plants alone
    sets = drawn_sets(
        training=Drawn(plants(30, seed=0)),
        calibration=Drawn(calibration),
        plants=np.arange(len(calibration.labels)),
        place=places(calibration),
        heads=Drawn(validation),
        negatives=Drawn(drawn(np.full((300, NUM_FEATURES), 0.7), 3), "pictures without a plant"),
    )
    match name:
        case "all":
            return fit_drawn(replace(sets, unknown=strangers()))
        case "things":
            return fit_drawn(replace(sets, other_data=True), temperature=1.1)
        case "given":
            return fit_drawn(replace(sets, negatives=None), {"species": 0.6}, 0.9)
        case _:
            return fit_drawn(replace(sets, negatives=None, heads=None), {"species": 0.6}, 0.9)


def numbers(fitted):
    model = fitted.model
    tables = model.calibration
    place = model.place
    heads = [each for each in (tables.plant_head, tables.known_head) if each is not None]
    conformal = filter(None, (tables.conformal, tables.conformal_mistaken, place and place.conformal))
    return {
        "thresholds": fitted.thresholds,
        "model": [model.thresholds, model.promises],
        "mistaken": model.mistaken,
        "look_alikes": sorted(model.look_alikes.items()),
        "cutoffs": tables.cutoffs,
        "heads": [[each.bias, each.weight_confidence, each.weight_distance, *each.weight_F[:3]] for each in heads],
        "candidates": [[each.num_plants_T, each.conformity_N[::100], each.macro_weight_N.sum()] for each in conformal],
        "familiarity": None if tables.familiarity is None else tables.familiarity.distance_N[::100],
        "place": [place.rule, fitted.place_top1] if place else None,
        "metrics": [[each.name, each.data, each.value, each.num_pictures] for each in fitted.metrics],
        "fitted_on": replace(tables.fitted_on, date=str(len(tables.fitted_on.date))),
    }


def assert_close(found, stored, where):
    if isinstance(stored, dict):
        assert found.keys() == stored.keys(), where
        found, stored = list(found.values()), list(stored.values())
    if isinstance(stored, list):
        assert len(found) == len(stored), where
        for at, (one, other) in enumerate(zip(found, stored, strict=True)):
            assert_close(one, other, f"{where} {at}")
    else:
        assert found == (pytest.approx(stored, rel=1e-3, abs=1e-5) if isinstance(stored, float) else stored), where


@pytest.mark.parametrize("name", ["all", "things", "alone", "given"])
def test_the_numbers_are_those_that_are_stored(name):
    found = msgspec.json.decode(msgspec.json.encode(numbers(fit(name)), enc_hook=lambda array: array.tolist()))
    assert_close(found, json.loads(STORED.read_text())[name], name)


def test_a_model_knows_the_limits_and_promises_of_its_mistaken_taxa():
    model = fit("all").model
    assert [rule.num_pictures for rule in model.joint] == [2, 3], "no four strangers are of one genus"
    assert model.mistaken.threshold != model.thresholds.species
    limits = [model.mistaken.threshold, model.thresholds.species]
    assert model.threshold("species", np.array([0, 19])).tolist() == limits
    promises = [model.promise("species", TAXONOMY.taxa[at]) for at in (0, 19)]
    assert promises == [model.mistaken.promise, model.promises.species]
