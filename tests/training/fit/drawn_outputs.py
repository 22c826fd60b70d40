"""Drawn outputs of a network: features around the direction of each taxon, and those of other things."""

import numpy as np
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.outputs import Outputs
from tests.training.small import make_taxonomy
from training.fit.model import TableData
from training.fit.pictures import StoredRows

NUM_TAXA, NUM_FEATURES, NOISE = 20, 60, 2.5
TAXONOMY = make_taxonomy(NUM_TAXA)
DIRECTIONS = np.random.default_rng(7).normal(size=(NUM_TAXA, NUM_FEATURES))
NO_NEGATIVES = np.zeros(0, dtype=np.intp)


def draw_outputs(features, **columns):
    logits = features @ DIRECTIONS.T / NOISE**2
    return Outputs(logits.astype(np.float32), features.astype(np.float32), **columns)


def on_disk(outputs, folder=None):
    rows = {name: StoredRows(folder) for name in ("logits", "features")}
    for name, stored in rows.items():
        stored.append(getattr(outputs, name))
    return replace(outputs, **rows)


def draw_plants(per_taxon, seed):
    labels = np.repeat(np.arange(NUM_TAXA), per_taxon)
    noises = np.random.default_rng(seed).normal(0, NOISE, (len(labels), NUM_FEATURES))
    return draw_outputs(DIRECTIONS[labels] + noises, labels=labels)


def answers(fitted, outputs, question=None):
    """The answers about plants of one picture each."""
    return [
        answer_plant(logits[None], features[None], fitted.model, question or Question())
        for logits, features in zip(outputs.logits, outputs.features, strict=True)
    ]


def draw_things(num_pictures, seed):
    return draw_outputs(np.random.default_rng(seed).normal(0.7, NOISE, (num_pictures, NUM_FEATURES)))


TRAINING = draw_plants(30, seed=0)


def table_data(*, with_negatives=True, **changes):
    found = TableData(
        taxonomy=TAXONOMY,
        calibration=draw_plants(40, seed=1),
        training=TRAINING,
        validation=draw_plants(20, seed=5) if with_negatives else None,
        negatives=draw_things(300, seed=3) if with_negatives else None,
        negative_groups=np.arange(300) if with_negatives else NO_NEGATIVES,
        data="drawn",
        num_pictures=900,
    )
    return replace(found, **changes)
