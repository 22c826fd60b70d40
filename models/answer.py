"""The answer about one plant, from the logits and features of its pictures: pure functions over NumPy arrays.

`answer_plant` is the whole way: plant score of each picture -> weight of each picture -> combined logits ->
probabilities -> verdict, lists, and the candidate set. What is the same for thousands of pictures is in
`models/scoring.py`, and what says why, in words, in `models/explanation.py`.

Letters in names: B pictures of one plant, N pictures or plants, F features, O outputs, T taxa.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from models.arrays import Doubles, Flags
from models.calibration import CoverageKind, Cutoffs
from models.explanation import explain, what_place_decided, with_choice, with_look_alikes
from models.harmful import LARGEST_LEFT_OUT, LIKELY, Harm, harms_of
from models.place import Where
from models.ranking import (
    Floats,
    RankedGroup,
    RankedTaxon,
    Verdict,
    best_groups,
    best_names,
    best_taxa,
    combine_pictures,
)
from models.scoring import AnswerModel, GuessShare, Scores, add_place, decide, of_choice, picture_weights, probabilities
from models.taxonomy import Taxonomy

_TAXA_PER_PICTURE: Final = 3
_LISTED_CANDIDATES: Final = 100
# A picture looks different if it is fairly sure of something by itself, and the plant of all pictures is not in it.
# Both limits were chosen on validation photographs: of sets of one taxon few look so, of pairs of genera most do.
_SURE_ALONE: Final = 0.3
_NOT_IN_IT: Final = 0.005


class Question(msgspec.Struct, frozen=True):
    """What a client wants to know about a plant."""

    top_k: int = 5
    """Maximum length of the lists."""
    coverage: float | None = None
    """How often the candidate set shall include the right taxon, in (0, 1); None for no candidate set."""
    coverage_kind: CoverageKind = "marginal"
    allowed_T: Flags | None = None
    """Whether each taxon can be the answer, at least one; None for all."""
    where: Where | None = None
    """Where and when the plant was photographed; None if that shall not count."""


class PlaceNote(msgspec.Struct, frozen=True):
    """How place changed an answer."""

    vision_T: Doubles
    """Probability of each taxon without place."""
    ratio_T: Doubles
    """What place multiplied the probability of each taxon with, before the temperature and the sum of 1."""


class Candidates(msgspec.Struct, frozen=True):
    """A candidate set."""

    taxa: list[RankedTaxon]
    """The most likely candidate first; at most 100 are listed."""
    num_taxa: int
    """Number of taxa in the set."""
    score: float
    """Probability of the whole set."""
    guarantee: CoverageKind | None
    """The kind of coverage that is guaranteed; None if the client restricted the taxa, a picture was left out, the
    verdict is that they show no plant or an unknown one, or the network may have been trained on the calibration
    plants."""
    num_uncalibrated_taxa: int
    """Number of taxa of the model without calibration plants."""


class PictureAnswer(msgspec.Struct, frozen=True):
    """What one picture says by itself."""

    weight: float
    """Share of this picture in the answer; the shares of all pictures sum to 1."""
    plant_score: float | None
    """Probability that it shows a plant, or None without a plant head."""
    taxa: list[RankedTaxon]
    """Its most likely taxa."""
    looks_different: bool
    """Whether it seems to show another plant than all pictures together."""
    place: PlaceNote | None = None
    """None if the answer does not rest on a place."""


class PossibleHarm(msgspec.Struct, frozen=True):
    """A grave harm that cannot be ruled out."""

    harm: Harm
    """That of its most likely taxon."""
    score: float
    """Probability of all taxa that harm so, by all pictures together or by one alone, whichever is higher."""
    is_likely: bool
    """Whether it is to be told above every name."""
    taxon: RankedTaxon
    """Its most likely taxon."""


class PlantAnswer(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    verdict: Verdict
    taxa: list[RankedTaxon]
    genera: list[RankedGroup]
    families: list[RankedGroup]
    pictures: list[PictureAnswer]
    plant_score: float | None
    """Weighted mean of the pictures' plant scores, or None without a plant head."""
    candidates: Candidates | None
    """None if the client asked for none or the model has no table for them."""
    discarded_mass: float | None
    """Probability of the taxa that the client ruled out; None if it ruled out none."""
    place: PlaceNote | None = None
    """None if the answer does not rest on a place."""
    look_alikes: list[RankedTaxon] = []
    """Taxa that the species of the verdict is often taken for on calibration plants, the most likely first; without
    those that the client ruled out."""
    guess: GuessShare | None = None
    """How often the likeliest taxa of such an answer are right; None with a name, and if that was not measured."""
    harmful: list[PossibleHarm] = []
    """Grave harms whose taxa have more than 0.02, or one of which is a candidate or a look-alike; empty where the
    verdict is that there is no plant."""


def answer_plant(logits_BO: Floats, features_BF: Floats, model: AnswerModel, question: Question) -> PlantAnswer:
    """Answers a question about one plant. The order of its pictures does not matter.

    Args:
        logits_BO: Raw outputs of the network, shape (num_pictures, num_outputs), at least one picture, all finite.
        features_BF: Pooled features of the same pictures, shape (num_pictures, num_features), all finite.
        model: Taxonomy, temperature, thresholds and tables of the network file.
        question: Length of the lists, coverage of the candidate set, and the allowed taxa.
    """
    allowed_T = question.allowed_T
    logits_BO = np.asarray(logits_BO, dtype=np.float64)
    all_BT = probabilities(logits_BO, model)
    plant_B, familiar_B, _ = model.calibration.scores(features_BF, all_BT.max(axis=1))
    cutoffs = model.calibration.cutoffs or Cutoffs()
    weight_B = picture_weights(np.ones(len(logits_BO)) if plant_B is None else plant_B, cutoffs.plant)
    alone_BT = vision_BT = all_BT if allowed_T is None else probabilities(logits_BO, model, allowed_T)
    # A photograph that is sent twice says nothing new.
    num_used = len(set(map(bytes, logits_BO[weight_B > 0])))
    together = model.for_pictures(num_used)
    combined_O = combine_pictures(logits_BO, weight_B)
    place = None
    log_ratio_T = model.place.log_ratios(question.where) if model.place and question.where else None
    if model.place is not None and log_ratio_T is not None:
        rule = model.place.rule
        place = PlaceNote(probabilities(combined_O, together, allowed_T), np.exp(rule.log_factors(log_ratio_T)))
        combined_O = add_place(combined_O, log_ratio_T, rule, together)
        placed_BO = add_place(logits_BO, log_ratio_T, rule, model)
        model = model.with_place(model.place)
        together = model.for_pictures(num_used)
        alone_BT = probabilities(placed_BO, model, allowed_T)
    taxa_T = probabilities(combined_O, together, allowed_T)
    names = best_names(taxa_T[None], model.taxonomy)
    discarded = None
    if allowed_T is not None:
        all_T = probabilities(combined_O, together)
        discarded = min(float(all_T[~allowed_T].sum()), 1.0)
        names = of_choice(names, all_T, allowed_T, model.taxonomy)
    scores = Scores(*names, _weighted(plant_B, weight_B), _weighted(familiar_B, weight_B), None)
    verdict = explain(scores, decide(scores, together), taxa_T, together)
    if discarded is not None:
        verdict = with_choice(verdict, discarded)
    if place is not None and model.place is not None and question.where is not None and verdict.rank == "species":
        sentence = what_place_decided(place.vision_T, taxa_T, model.place, question.where, model.taxonomy)
        verdict = replace(verdict, reason=f"{verdict.reason} {sentence}".rstrip())
    verdict, look_alikes = with_look_alikes(verdict, taxa_T, model, allowed_T)
    is_known = verdict.rank != "not_a_plant" and not verdict.unknown_plant
    candidates = _candidates(alone_BT, weight_B > 0, taxa_T, model, question, is_known=is_known)
    scores_BT = np.vstack([taxa_T, alone_BT[weight_B > 0]])
    places = [None if place is None else PlaceNote(vision_T, place.ratio_T) for vision_T in vision_BT]
    return PlantAnswer(
        verdict=verdict,
        taxa=best_taxa(taxa_T, model.taxonomy, question.top_k),
        genera=best_groups(taxa_T, model.taxonomy.genera, question.top_k),
        families=best_groups(taxa_T, model.taxonomy.families, question.top_k),
        pictures=_by_picture(alone_BT, weight_B, plant_B, places, model.taxonomy, joint=int(taxa_T.argmax())),
        plant_score=None if scores.plant_N is None else float(scores.plant_N[0]),
        candidates=candidates,
        discarded_mass=discarded,
        place=place,
        look_alikes=look_alikes,
        guess=together.guess(verdict, scores) if allowed_T is None else None,
        harmful=_possible_harm(scores_BT, verdict, candidates, look_alikes, model.taxonomy),
    )


def _by_picture(
    alone_BT: Doubles,
    weight_B: Doubles,
    plant_B: Doubles | None,
    places: Sequence[PlaceNote | None],
    taxonomy: Taxonomy,
    *,
    joint: int,
) -> list[PictureAnswer]:
    """Returns what each picture says by itself, with and without the place; `joint` is the taxon of all together."""
    different_B = (weight_B > 0) & (alone_BT.max(axis=1) >= _SURE_ALONE) & (alone_BT[:, joint] < _NOT_IN_IT)
    return [
        PictureAnswer(
            weight=float(weight),
            plant_score=None if plant_B is None else float(plant_B[index]),
            taxa=best_taxa(alone_BT[index], taxonomy, _TAXA_PER_PICTURE),
            looks_different=bool(different_B[index]),
            place=places[index],
        )
        for index, weight in enumerate(weight_B)
    ]


def _possible_harm(
    scores_BT: Doubles,
    verdict: Verdict,
    candidates: Candidates | None,
    look_alikes: list[RankedTaxon],
    taxonomy: Taxonomy,
) -> list[PossibleHarm]:
    """Returns the grave harms that cannot be ruled out.

    Args:
        scores_BT: Probabilities on all pictures together, then on each picture that counts.
        verdict: Of all pictures together; without a plant there is no harm.
        candidates: Of all pictures together, or None.
        look_alikes: What the species of the verdict is often taken for.
        taxonomy: The taxa of the model.
    """
    if verdict.rank == "not_a_plant":
        return []
    listed = [*look_alikes, *(candidates.taxa if candidates is not None else [])]
    listed_T = [taxonomy.position_of[each.taxon.taxon_id] for each in listed]
    found: list[PossibleHarm] = []
    for kind, (grave_T, _, _) in taxonomy.grave_harms.items():
        score = float(np.minimum(scores_BT @ grave_T, 1.0).max())
        if score > LARGEST_LEFT_OUT or grave_T[listed_T].any():
            best = int(np.where(grave_T, scores_BT.max(axis=0), -1.0).argmax())
            taxon = taxonomy.taxa[best]
            harm = next(each for each in harms_of(taxon.scientific_name, taxon.genus) if each.kind == kind)
            found.append(PossibleHarm(harm, score, score >= LIKELY, RankedTaxon(taxon, float(scores_BT[0, best]))))
    return found


def _candidates(
    alone_BT: Doubles,
    used_B: Flags,
    taxa_T: Doubles,
    model: AnswerModel,
    question: Question,
    *,
    is_known: bool,
) -> Candidates | None:
    """Finds the candidate set.

    Nothing is guaranteed if a picture was left out: the pictures of the calibration plants were not chosen by score.
    Nor if the network may have been trained on those plants. A set of known taxa cannot hold an unknown plant.

    Args:
        alone_BT: Probabilities of all taxa on each picture alone.
        used_B: Whether each picture has a weight; the set rests on these.
        taxa_T: Probabilities on all pictures together, which the answer shows.
        model: Gives the table.
        question: Gives the coverage.
        is_known: Whether the verdict takes the pictures for a plant that the network knows.
    """
    if model.calibration.conformal is None or question.coverage is None:
        return None
    chosen = model.candidates(alone_BT[used_B], question.coverage, question.coverage_kind)
    if question.allowed_T is not None:
        chosen = chosen[question.allowed_T[chosen]]
    chosen = chosen[np.argsort(-taxa_T[chosen], kind="stable")]
    has_guarantee = is_known and question.allowed_T is None and used_B.all() and model.is_held_out
    return Candidates(
        taxa=[RankedTaxon(model.taxonomy.taxa[index], float(taxa_T[index])) for index in chosen[:_LISTED_CANDIDATES]],
        num_taxa=len(chosen),
        score=float(min(taxa_T[chosen].sum(), 1.0)),
        guarantee=question.coverage_kind if has_guarantee else None,
        num_uncalibrated_taxa=len(model.calibration.uncalibrated_taxa),
    )


def _weighted(score_B: Doubles | None, weight_B: Doubles) -> Doubles | None:
    """Returns the weighted mean, shape (1,); rounding cannot carry it past the scores, which may equal a cutoff."""
    if score_B is None:
        return None
    used_B = score_B[weight_B > 0]
    return np.clip([weight_B @ score_B], used_B.min(), used_B.max())
