"""The verdict on one plant in words: which scores reach which thresholds, what place decided, and its look-alikes."""

from typing import cast

from msgspec.structs import replace

from models.arrays import Doubles, Flags
from models.calibration import Cutoffs
from models.harmful import EFFECTS, LARGEST_LEFT_OUT
from models.place import PlaceModel, Where
from models.ranking import (
    RANKS,
    RankedTaxon,
    Verdict,
    VerdictRank,
    comparison,
    harm_left_out,
)
from models.scoring import LIKELIER_OUTSIDE, MOST_DISCARDED, AnswerModel, Decisions, Scores
from models.taxonomy import Taxonomy


def explain(scores: Scores, decisions: Decisions, taxa_T: Doubles, model: AnswerModel) -> Verdict:
    """Returns the verdict on the only plant of the arrays, with its reason and its promise."""
    taxonomy = model.taxonomy
    cutoffs = model.calibration.cutoffs or Cutoffs()
    verdict_rank = cast(VerdictRank, str(decisions.rank_N[0]))
    best = RankedTaxon(taxonomy.taxa[scores.named_N[0]], float(scores.confidence_N[0]))
    if verdict_rank == "not_a_plant" and scores.plant_N is not None:
        reason = f"plant score {comparison(float(scores.plant_N[0]), cutoffs.plant)}."
        return Verdict(verdict_rank, None, best.score, reason, None, unknown_plant=False)
    if decisions.unknown_N[0] and scores.familiar_N is not None:
        familiar = comparison(float(scores.familiar_N[0]), cutoffs.familiar)
        reason = f"unlike the plants that this model knows: familiarity {familiar}."
        return Verdict(verdict_rank, None, best.score, reason, None, unknown_plant=True)
    _, genus, family = scores.position_NR[0]
    names = best.taxon.scientific_name, taxonomy.genera.names[genus], taxonomy.families.names[family]
    reasons: list[str] = []
    for column, (rank, name) in enumerate(zip(RANKS, names, strict=True)):
        reached = float(scores.score_NR[0, column])
        threshold = float(model.threshold(rank, scores.named_N)[0])
        if rank == "species" and best.taxon.rank != "species":
            reasons.append(f"the most likely taxon, {name}, is a {best.taxon.rank} and not a species")
        elif reached <= 0:  # no allowed taxon may have a group with a name
            reasons.append(f"no {rank} is known")
        elif threshold == 1:
            is_mistaken = getattr(model.thresholds, rank) < 1
            why = f"{name} is too often mistaken for this model to name it"
            reasons.append(why if is_mistaken else f"this model names no {rank}")
        elif reached >= threshold and not scores.may_name_NR[0, column]:
            reasons += [each for each in _warnings(scores, column, taxa_T, taxonomy) if each not in reasons]
            reasons.append(f"{rank} {name} leaves it out")
        else:
            named = rank if rank == "species" else f"{rank} {name}"
            reasons.append(f"{named} {comparison(reached, threshold)}")
        if rank == verdict_rank:
            promise = model.promise(rank, best.taxon)
            return Verdict(rank, name, reached, f"{'; '.join(reasons)}.", promise, unknown_plant=False)
    return Verdict(verdict_rank, None, best.score, f"{'; '.join(reasons)}.", None, unknown_plant=False)


def _warnings(scores: Scores, column: int, taxa_T: Doubles, taxonomy: Taxonomy) -> list[str]:
    """Names the likeliest taxon of each grave harm that the best name of a rank leaves out."""
    return [
        f"may be {taxonomy.taxa[(taxa_T * taxonomy.grave_harms[kind][0]).argmax()].scientific_name} or the like, "
        f"which {EFFECTS[kind]}: {comparison(float(score_N[0]), LARGEST_LEFT_OUT)}"
        for kind, score_N, left_out_NR in harm_left_out(taxa_T[None], scores.position_NR, taxonomy)
        if left_out_NR[0, column]
    ]


def with_choice(verdict: Verdict, discarded: float) -> Verdict:
    """Returns the verdict on a choice of taxa, of which nothing is promised, with what the choice left out.

    `discarded` is the probability of the taxa that are not allowed.
    """
    reason = verdict.reason
    if discarded >= LIKELIER_OUTSIDE and verdict.rank != "not_a_plant" and not verdict.unknown_plant:
        share = "more than 0.99" if 0.995 <= discarded < 1 else f"{discarded:.2f}"
        outside = f"{share} of the probability is on plants that the request does not allow."
        reason = outside if discarded > MOST_DISCARDED else f"{reason} {outside}"
    return replace(verdict, reason=reason, promise=None)


def what_place_decided(vision_T: Doubles, taxa_T: Doubles, place: PlaceModel, where: Where, taxonomy: Taxonomy) -> str:
    """Says why another taxon ranks first than without place; nothing if it is the same."""
    before = int(vision_T.argmax())
    after = int(taxa_T.argmax())
    if before == after:
        return ""
    (rare, total), (frequent, _) = (place.prior.records(where, taxon) for taxon in (before, after))
    one, other = (taxonomy.taxa[taxon].scientific_name for taxon in (before, after))
    if not total:
        return f"Place or season decided: {one} would rank first by the pictures alone."
    return (
        f"Place or season decided: of {total:,} plant records within about 200 km, {frequent:,} are {other} and "
        f"{rare:,} are {one}, which would rank first by the pictures alone."
    )


def with_look_alikes(
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
    return replace(verdict, reason=f"{verdict.reason} It is often taken for {names}."), found
