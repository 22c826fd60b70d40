"""Drawn outputs of a network: features around the direction of each taxon, and those of other things."""

from types import SimpleNamespace
from unittest import mock

import msgspec
import numpy as np
from msgspec.structs import replace

from models.answer import Question, answer_plant
from models.outputs import Outputs
from tests.training.small import make_taxonomy
from training.fit.model import PictureSets, fit_model
from training.fit.pictures import StoredRows
from training.fit.unknown_plants import UnknownNames

NUM_TAXA, NUM_FEATURES, NOISE = 20, 60, 2.5
TAXONOMY = make_taxonomy(NUM_TAXA)
DIRECTIONS = np.random.default_rng(7).normal(size=(NUM_TAXA, NUM_FEATURES))


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


class Drawn(msgspec.Struct):
    """A set of pictures, with what a network says of them."""

    outputs: Outputs
    name: str = "drawn"
    manifest: SimpleNamespace = SimpleNamespace(taxonomy=TAXONOMY)
    names: UnknownNames | None = None

    def __len__(self):
        return len(self.outputs.labels) + 1  # one plant has a second picture

    def groups(self, rows):
        return rows // 3


def drawn_sets(*, with_negatives=True, **changes):
    found = PictureSets(
        training=Drawn(TRAINING),
        validation=None,
        calibration=Drawn(draw_plants(40, seed=1)),
        plants=np.arange(800),
        heads=Drawn(draw_plants(20, seed=5)) if with_negatives else None,
        test=None,
        negatives=Drawn(draw_things(300, seed=3), "pictures without a plant") if with_negatives else None,
    )
    return replace(found, **changes)


def fit_drawn(sets, given={}, temperature=1.0):  # noqa: B006
    """The fit at a temperature."""
    with mock.patch("training.fit.model.fit_temperature", return_value=temperature):
        return fit_model(lambda pictures, **_: pictures.outputs, sets, given)
