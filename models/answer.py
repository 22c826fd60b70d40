"""The answer about one plant, from the logits and features of its pictures: pure functions over NumPy arrays.

`answer_plant` is the whole way: plant score of each picture -> weight of each picture -> combined logits ->
probabilities -> ranking -> verdict, and the candidate set.

Letters in names: B pictures of one plant, F features, O outputs, T taxa.
"""

from functools import cached_property
from typing import Final

import msgspec
import numpy as np

from models.arrays import Doubles, Flags
from models.calibration import Calibration, CoverageKind, candidate_set
from models.place import PlaceModel, Where
from models.ranking import (
    Floats,
    MistakenTaxa,
    Promises,
    Rank,
    RankedGroup,
    RankedTaxon,
    Thresholds,
    Verdict,
    best_taxa,
    combine_pictures,
    decide,
    name_of_taxon,
    not_a_plant,
    output_probabilities,
    rank,
    taxon_probabilities,
    unknown_plant,
)
from models.taxonomy import Taxonomy

_TAXA_PER_PICTURE: Final = 3
_LISTED_CANDIDATES: Final = 100


class AnswerModel(msgspec.Struct, frozen=True, dict=True):
    """What turns the outputs of one network file into answers."""

    taxonomy: Taxonomy
    temperature: float
    """Divides the logits before the softmax."""
    thresholds: Thresholds = Thresholds()
    promises: Promises = Promises()
    calibration: Calibration = Calibration()
    is_held_out: bool = True
    """Whether the network was not trained on the calibration plants, as far as is known. Otherwise its candidate sets
    have no guarantee."""
    place: PlaceModel | None = None
    """What answers with a place need; None if the bundle has no prior, or place does not help its network."""
    look_alikes: dict[int, tuple[int, ...]] = {}
    """Position of a taxon -> positions of the taxa that it is often taken for."""
    mistaken: MistakenTaxa | None = None
    """Taxa with a species threshold, a promise and candidate sets of their own; None if no taxon has these."""

    @cached_property
    def is_mistaken(self) -> Flags:
        """Whether each taxon is one of these."""
        ids = () if self.mistaken is None else self.mistaken.taxon_ids
        return np.isin([taxon.taxon_id for taxon in self.taxonomy.taxa], ids)

    def limits_of(self, best: RankedTaxon) -> tuple[Thresholds, Promises]:
        """Returns the thresholds and promises of the names of an answer, by its most likely taxon."""
        if self.mistaken is None or best.taxon.taxon_id not in self.mistaken.taxon_ids:
            return self.thresholds, self.promises
        return (
            msgspec.structs.replace(self.thresholds, species=self.mistaken.threshold),
            msgspec.structs.replace(self.promises, species=self.mistaken.promise),
        )


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
    place: PlaceNote | None = None
    """None if the answer does not rest on a place."""


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


def answer_plant(logits_BO: Floats, features_BF: Floats, model: AnswerModel, question: Question) -> PlantAnswer:
    """Answers a question about one plant. The order of its pictures does not matter.

    Args:
        logits_BO: Raw outputs of the network, shape (num_pictures, num_outputs), at least one picture, all finite.
        features_BF: Pooled features of the same pictures, shape (num_pictures, num_features), all finite.
        model: Taxonomy, temperature, thresholds and tables of the network file.
        question: Length of the lists, coverage of the candidate set, and the allowed taxa.
    """
    logits_BO = np.asarray(logits_BO, dtype=np.float64)
    allowed_T = question.allowed_T
    all_BT = _taxon_probabilities(logits_BO, model)
    plant_B, familiar_B = _scores(all_BT, features_BF, model.calibration)
    weight_B = np.full(len(logits_BO), 1 / len(logits_BO))
    if plant_B is not None and model.calibration.cutoffs is not None:
        weight_B = picture_weights(plant_B, model.calibration.cutoffs.plant)
    vision_T = _taxon_probabilities(combine_pictures(logits_BO, weight_B), model, allowed_T)
    place, vision_BT = None, all_BT
    if question.where is not None and model.place is not None and model.place.knows(question.where):
        vision_BT = _taxon_probabilities(logits_BO, model, allowed_T)
        logits_BO, model, place = _with_place(logits_BO, vision_T, model, model.place, question.where)
        all_BT = _taxon_probabilities(logits_BO, model)
    combined_O = combine_pictures(logits_BO, weight_B)
    taxa_T = _taxon_probabilities(combined_O, model, allowed_T)
    alone_BT = all_BT if allowed_T is None else _taxon_probabilities(logits_BO, model, allowed_T)
    ranking = rank(taxa_T, model.taxonomy, question.top_k)
    plant, familiar = _weighted(plant_B, weight_B), _weighted(familiar_B, weight_B)
    verdict = rejection = _rejection(plant, familiar, ranking.taxa[0], model)
    if verdict is None:
        thresholds, promises = model.limits_of(ranking.taxa[0])
        promises = promises if allowed_T is None else Promises()
        verdict = decide(ranking, thresholds, promises, _shared_ranks(allowed_T, model.taxonomy))
    if place is not None and model.place is not None and question.where is not None and verdict.rank == "species":
        sentence = _what_place_decided(vision_T, taxa_T, model, model.place, question.where)
        verdict = msgspec.structs.replace(verdict, reason=f"{verdict.reason} {sentence}".rstrip())
    verdict, look_alikes = _with_look_alikes(verdict, taxa_T, model, allowed_T)
    discarded_mass = None
    if allowed_T is not None:
        discarded_mass = float(min(_taxon_probabilities(combined_O, model)[~allowed_T].sum(), 1.0))
    return PlantAnswer(
        verdict=verdict,
        taxa=ranking.taxa,
        genera=ranking.genera,
        families=ranking.families,
        pictures=[
            PictureAnswer(
                weight=float(weight),
                plant_score=None if plant_B is None else float(plant_B[index]),
                taxa=best_taxa(alone_BT[index], model.taxonomy, _TAXA_PER_PICTURE),
                place=None if place is None else PlaceNote(vision_BT[index], place.ratio_T),
            )
            for index, weight in enumerate(weight_B)
        ],
        plant_score=plant,
        candidates=_candidates(alone_BT, weight_B > 0, taxa_T, model, question, is_known=rejection is None),
        discarded_mass=discarded_mass,
        place=place,
        look_alikes=look_alikes,
    )


def _with_place(
    logits_BO: Doubles,
    vision_T: Doubles,
    model: AnswerModel,
    place: PlaceModel,
    where: Where,
) -> tuple[Doubles, AnswerModel, PlaceNote]:
    """Returns the logits with the place, the model with what was fitted with places, and a note for the answer."""
    factor_T = place.log_factors(where)
    shift_O = model.temperature * factor_T[model.taxonomy.taxon_of_output]
    placed = msgspec.structs.replace(
        model,
        temperature=place.rule.temperature,
        thresholds=place.rule.thresholds,
        promises=place.rule.promises,
        calibration=msgspec.structs.replace(model.calibration, conformal=place.conformal, conformal_mistaken=None),
        mistaken=None,
    )
    return logits_BO + shift_O, placed, PlaceNote(vision_T, np.exp(factor_T))


def _what_place_decided(
    vision_T: Doubles,
    taxa_T: Doubles,
    model: AnswerModel,
    place: PlaceModel,
    where: Where,
) -> str:
    """Says why another taxon ranks first than without place; nothing if it is the same."""
    before, after = int(vision_T.argmax()), int(taxa_T.argmax())
    if before == after:
        return ""
    (rare, total), (frequent, _) = (place.prior.records(where, taxon) for taxon in (before, after))
    one, other = (model.taxonomy.taxa[taxon].scientific_name for taxon in (before, after))
    if not total:
        return f"Place or season decided: {one} would rank first by the pictures alone."
    return (
        f"Place or season decided: of {total:,} plant records within about 200 km, {frequent:,} are {other} and "
        f"{rare:,} are {one}, which would rank first by the pictures alone."
    )


def _with_look_alikes(
    verdict: Verdict, taxa_T: Doubles, model: AnswerModel, allowed_T: Flags | None
) -> tuple[Verdict, list[RankedTaxon]]:
    """Returns the verdict and what its species is often taken for, which its reason then names."""
    positions = model.look_alikes.get(int(taxa_T.argmax()), ()) if verdict.rank == "species" else ()
    likely = sorted(positions, key=lambda at: -taxa_T[at])
    found = [
        RankedTaxon(model.taxonomy.taxa[at], float(taxa_T[at])) for at in likely if allowed_T is None or allowed_T[at]
    ]
    if not found:
        return verdict, []
    names = " or ".join(each.taxon.scientific_name for each in found)
    return msgspec.structs.replace(verdict, reason=f"{verdict.reason} It is often taken for {names}."), found


def picture_weights(plant_B: Doubles, cutoff: float) -> Doubles:
    """Gives each picture a weight in proportion to its plant score; the weights sum to 1.

    A picture below the cutoff has no weight while another picture reaches the cutoff, so a picture of something else
    among good ones does not change the answer.

    """
    kept_B = plant_B >= cutoff
    weight_B = np.where(kept_B, plant_B, 0.0) if kept_B.any() else plant_B
    total = weight_B.sum()
    return weight_B / total if total > 0 else np.full(len(plant_B), 1 / len(plant_B))


def _scores(taxa_BT: Doubles, features_BF: Floats, tables: Calibration) -> tuple[Doubles | None, Doubles | None]:
    """Returns how sure it is that each picture shows a plant, and a plant of the network; None without the table."""
    if tables.features is None or tables.cutoffs is None:
        return None, None
    confidence_B, distance_B = taxa_BT.max(axis=1), tables.features.distances(features_BF)
    head = tables.plant_head
    plant_B = None if head is None else head.scores(features_BF, confidence_B, distance_B)
    return plant_B, tables.familiar_scores(features_BF, confidence_B, distance_B)


def _taxon_probabilities(logits: Floats, model: AnswerModel, allowed_T: Flags | None = None) -> Doubles:
    """Returns calibrated probabilities over the allowed taxa; they sum to 1. Other taxa have probability 0."""
    if allowed_T is not None:
        logits = np.where(allowed_T[model.taxonomy.taxon_of_output], logits, -np.inf)
    return taxon_probabilities(output_probabilities(logits, model.temperature), model.taxonomy)


def _rejection(plant: float | None, familiar: float | None, best: RankedTaxon, model: AnswerModel) -> Verdict | None:
    """Returns the verdict on pictures that show no plant, or a plant that the network does not know."""
    cutoffs = model.calibration.cutoffs
    if cutoffs is None:
        return None
    if plant is not None and plant < cutoffs.plant:
        return not_a_plant(best, plant, cutoffs.plant)
    if familiar is not None and familiar < cutoffs.familiar:
        return unknown_plant(best, familiar, cutoffs.familiar)
    return None


def _shared_ranks(allowed_T: Flags | None, taxonomy: Taxonomy) -> frozenset[Rank]:
    """Returns the ranks at which all taxa that the client allowed have the same name; none if it allowed all."""
    if allowed_T is None:
        return frozenset()
    return frozenset(rank for rank, name_T in name_of_taxon(taxonomy).items() if len(np.unique(name_T[allowed_T])) == 1)


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
    table = model.calibration.conformal
    if table is None or question.coverage is None:
        return None
    other = model.calibration.conformal_mistaken
    of_mistaken = None if other is None else (other, model.is_mistaken)
    chosen = candidate_set(table, alone_BT[used_B], question.coverage, question.coverage_kind, of_mistaken)
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


def _weighted(score_B: Doubles | None, weight_B: Doubles) -> float | None:
    """Returns the weighted mean; rounding cannot carry it past the scores, one of which may equal a cutoff."""
    if score_B is None:
        return None
    used_B = score_B[weight_B > 0]
    return float(np.clip(weight_B @ score_B, used_B.min(), used_B.max()))
