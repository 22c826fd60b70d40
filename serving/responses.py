"""Builds the response to an identify request from the answer."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from models.bundle import Bundle
from models.ranking import RankedGroup, RankedTaxon
from serving.identify import Answer
from serving.schemas import CandidatesView, GroupScore, Identification, ImageView, ModelName, Prediction, VerdictView

_Ranked = TypeVar("_Ranked", RankedTaxon, RankedGroup)


def identification(request_id: str, answer: Answer, warnings: list[str]) -> Identification:
    """Builds the response to an identify request."""
    plant = answer.plant
    return Identification(
        request_id=request_id,
        model=_model_name(answer.bundle),
        verdict=VerdictView(**msgspec.structs.asdict(plant.verdict)),
        predictions=_predictions(plant.taxa, answer),
        genera=_group_scores(plant.genera, answer),
        families=_group_scores(plant.families, answer),
        plant_score=plant.plant_score,
        candidates=_candidates(answer),
        discarded_mass=plant.discarded_mass,
        images=_images(answer),
        warnings=warnings,
    )


def _candidates(answer: Answer) -> CandidatesView | None:
    found, question = answer.plant.candidates, answer.question
    if found is None or question.coverage is None:
        return None
    network = answer.bundle.network(answer.precision)
    return CandidatesView(
        coverage=question.coverage,
        kind=question.coverage_kind,
        guarantee=found.guarantee,
        num_taxa=found.num_taxa,
        score=found.score,
        taxa=_predictions(found.taxa, answer),
        num_uncalibrated_taxa=found.num_uncalibrated_taxa,
        measured=None if found.guarantee is None else network.measured(question.coverage_kind, question.coverage),
    )


def _images(answer: Answer) -> list[ImageView]:
    return [
        ImageView(
            index=index,
            width=size.width,
            height=size.height,
            plant_score=picture.plant_score,
            weight=picture.weight,
            predictions=_predictions(picture.taxa, answer),
        )
        for index, (size, picture) in enumerate(zip(answer.sizes, answer.plant.pictures, strict=True))
    ]


def _predictions(ranked: Sequence[RankedTaxon], answer: Answer) -> list[Prediction]:
    return [_prediction(position, each) for position, each in enumerate(_possible(ranked, answer), start=1)]


def _group_scores(groups: Sequence[RankedGroup], answer: Answer) -> list[GroupScore]:
    return [GroupScore(group.name, group.score) for group in _possible(groups, answer)]


def _possible(ranked: Sequence[_Ranked], answer: Answer) -> Sequence[_Ranked]:
    """Leaves out what the request ruled out, which has the probability 0."""
    return ranked if answer.question.allowed_T is None else [each for each in ranked if each.score > 0]


def _prediction(position: int, ranked: RankedTaxon) -> Prediction:
    taxon = ranked.taxon
    return Prediction(
        position=position,
        rank=taxon.rank,
        taxon_id=taxon.taxon_id,
        scientific_name=taxon.scientific_name,
        common_names=taxon.common_names,
        genus=taxon.genus,
        family=taxon.family,
        gbif_id=taxon.gbif_id,
        score=ranked.score,
    )


def _model_name(bundle: Bundle) -> ModelName:
    return ModelName(bundle.record.name, bundle.record.version, bundle.record.label_hash)
