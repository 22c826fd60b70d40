"""Top-1 of answers about several pictures of one species, drawn from pictures of a split.

The pictures of a question are of the same species and not always of the same plant, as a split has few pictures of one
plant. Real pictures of one plant are more alike, so they help less.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.answer import AnswerModel, picture_weights
from models.metrics import Share, share
from models.ranking import combine_pictures, output_probabilities, taxon_probabilities
from training.evaluation.picture_scores import PictureScores
from training.evaluation.stored_rows import Rows

NUM_PICTURES: Final = (1, 2, 3, 5)
_MOST_QUESTIONS: Final = 2000


class SeveralPictures(msgspec.Struct, frozen=True):
    """Answers about a number of pictures at once."""

    num_pictures: int
    """Number of pictures in each question."""
    top1: Share
    """Questions whose most likely taxon is right."""


def several_pictures(logits: Rows, scores: PictureScores, model: AnswerModel, seed: int = 0) -> list[SeveralPictures]:
    """Measures questions of 1, 2, 3 and 5 pictures.

    Every picture opens one question of each size, at most 2,000 of a size; the others are drawn from the same taxon.
    The questions of one picture nest, so that the sizes are compared on the same pictures. Taxa with fewer than 5
    pictures are left out.

    Args:
        logits: Logits of each picture.
        scores: Its plant score, which says how much it counts, and its taxon.
        model: The bundle's tables.
        seed: Seed of the draws.
    """
    questions = _questions(scores.found.taxon_labels_N, seed)
    found = []
    for size in NUM_PICTURES if questions else ():
        hits = sum(_is_right(logits, scores, chosen[:size], model) for chosen in questions)
        found.append(SeveralPictures(size, share(hits, len(questions))))
    return found


def _questions(labels_N: npt.NDArray[np.intp], seed: int) -> list[npt.NDArray[np.intp]]:
    """Draws the positions of 5 pictures of one taxon for each question, without repeats."""
    random, most = np.random.default_rng(seed), max(NUM_PICTURES)
    of_taxon = {int(taxon): np.flatnonzero(labels_N == taxon) for taxon in np.unique(labels_N)}
    drawn = []
    for first in random.permutation(len(labels_N)):
        same = of_taxon[int(labels_N[first])]
        if len(same) >= most:
            others = random.choice(same[same != first], most - 1, replace=False)
            drawn.append(np.concatenate(([first], others)))
        if len(drawn) == _MOST_QUESTIONS:
            break
    return drawn


def _is_right(logits: Rows, scores: PictureScores, chosen: npt.NDArray[np.intp], model: AnswerModel) -> bool:
    """Returns whether the service's most likely taxon is right, without the rest of its answer."""
    weight_B, cutoffs = np.full(len(chosen), 1 / len(chosen)), model.calibration.cutoffs
    if scores.plant_N is not None and cutoffs is not None:
        weight_B = picture_weights(scores.plant_N[chosen], cutoffs.plant)
    combined_O = combine_pictures(logits[chosen], weight_B)
    taxa_T = taxon_probabilities(output_probabilities(combined_O, model.temperature), model.taxonomy)
    return bool(taxa_T.argmax() == scores.found.taxon_labels_N[chosen[0]])
