"""Logits and features -> the verdicts on many pictures, as arrays: pure functions over NumPy arrays.

`score` turns outputs into arrays over N pictures, and `decide` finds their verdicts. The service asks about one plant
(`models/answer.py`, which says why, in words), and evaluation about thousands of pictures.

Letters in names: B pictures of one plant, N pictures or plants, F features, O outputs, T taxa, R ranks as in `RANKS`.
"""

from functools import cached_property
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from models.arrays import Columns, Doubles, Flags, Positions
from models.calibration import Calibration, CoverageKind, Cutoffs, candidate_set
from models.place import PlaceModel, PlaceRule
from models.ranking import (
    RANKS,
    BestNames,
    Floats,
    MistakenTaxa,
    Probability,
    Promise,
    Promises,
    Rank,
    Thresholds,
    Verdict,
    VerdictRank,
    best_names,
    name_of_taxon,
    output_probabilities,
    taxon_probabilities,
)
from models.taxonomy import Taxon, Taxonomy

OUTSIDE_WEIGHT: Final = 0.2
"""What a taxon that the client did not allow counts in the verdict: a choice may lack the plant. At 0 it would be named
for another one. At 1 a choice would help no plant."""
MOST_DISCARDED: Final = 1 / (1 + OUTSIDE_WEIGHT)
"""Probability of the taxa that are not allowed above which even so they are likelier than all that are allowed."""
LIKELIER_OUTSIDE: Final = 0.5
"""Probability of the taxa that are not allowed from which a person is told that the plant may be one of them."""


class GuessShare(msgspec.Struct, frozen=True):
    """How often the likeliest taxa, or families, were right where no name was given, on calibration plants.

    If the bundle was exported with strangers, for which no taxon is right, one plant in four was one. Plants unlike
    those that the network knows have shares of their own, of families.
    """

    score: Probability
    """Least score of the most likely taxon or family; the share holds up to that of the next one."""
    first: Probability
    """Share of the plants whose most likely taxon or family was right."""
    three: Probability | None
    """Share of those with the right one among the three most likely taxa; null for families."""
    num_plants: int
    """Number of the calibration plants that got such an answer."""
    rank: Literal["species", "family"] = "species"
    """`species` for taxa, `family` for families."""


class JointRule(msgspec.Struct, frozen=True):
    """What was fitted on several pictures of one plant together, whose logits and familiarity are averaged.

    Each further picture is further evidence: the temperature falls with their number, and the mean familiarity of known
    and of unknown plants overlap less.
    """

    num_pictures: Annotated[int, msgspec.Meta(ge=2)]
    """The rule holds from this number on, up to that of the next rule."""
    temperature: Annotated[float, msgspec.Meta(ge=0.01, le=100.0)]
    thresholds: Thresholds
    familiar: Probability
    """Least mean familiarity of a plant that the network knows."""
    promises: Promises = Promises()
    of_one_plant: bool = False
    """Whether the pictures of each group showed one plant. Otherwise they showed plants of one taxon, which resemble
    each other less, so that the scores of pictures of one plant come out too high."""
    guesses: tuple[GuessShare, ...] = ()


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
    guesses: tuple[GuessShare, ...] = ()
    """How often answers without a name have the right taxon all the same, by ascending score."""
    joint: tuple[JointRule, ...] = ()
    """What holds for several pictures, ascending; without any, they are answered like one picture."""

    @cached_property
    def is_mistaken(self) -> Flags:
        """Whether each taxon is one of these."""
        ids = () if self.mistaken is None else self.mistaken.taxon_ids
        return np.isin([taxon.taxon_id for taxon in self.taxonomy.taxa], ids)

    def threshold(self, rank: Rank, taxon_N: Positions) -> Doubles:
        """Returns the least score of a name of this rank, for answers whose most likely taxon is at these positions."""
        threshold_N = np.full(len(taxon_N), getattr(self.thresholds, rank), dtype=np.float64)
        if rank == "species" and self.mistaken is not None:
            threshold_N[self.is_mistaken[taxon_N]] = self.mistaken.threshold
        return threshold_N

    def promise(self, rank: Rank, taxon: Taxon) -> Promise | None:
        """Returns what is proved about names of this rank, for an answer whose most likely taxon is this one."""
        if rank == "species" and self.mistaken is not None and taxon.taxon_id in self.mistaken.taxon_ids:
            return self.mistaken.promise
        promise: Promise | None = getattr(self.promises, rank)
        return promise

    def candidates(self, taxa_BT: Doubles, coverage: float, kind: CoverageKind) -> Positions:
        """Returns the candidate set of a plant, from the probabilities on each of its pictures; empty without a table.

        Where taxa are often mistaken, the coverage holds for these and for the others.
        """
        table = self.calibration.conformal
        other = self.calibration.conformal_mistaken
        if table is None:
            return np.zeros(0, np.intp)
        return candidate_set(table, taxa_BT, coverage, kind, None if other is None else (other, self.is_mistaken))

    def guess(self, verdict: Verdict, scores: "Scores") -> GuessShare | None:
        """Returns how often such an answer about one plant is right where it is in doubt; None for another verdict.

        The likeliest taxa are meant, or of a plant unlike those that the network knows the likeliest family.
        """
        if verdict.rank != "uncertain":
            return None
        rank = "family" if verdict.unknown_plant else "species"
        score = scores.score_NR[0, RANKS.index(rank)]
        return next((each for each in reversed(self.guesses) if each.rank == rank and each.score <= score), None)

    def for_pictures(self, number: int) -> "AnswerModel":
        """Returns the model for so many pictures of one plant together."""
        rule = next((each for each in reversed(self.joint) if each.num_pictures <= number), None)
        if rule is None:
            return self
        cutoffs = replace(self.calibration.cutoffs or Cutoffs(), familiar=rule.familiar)
        calibration = replace(self.calibration, cutoffs=cutoffs)
        return replace(self._with_rule(rule), calibration=calibration, guesses=rule.guesses)

    def with_place(self, place: PlaceModel) -> "AnswerModel":
        """Returns the model with what was fitted with places, for logits to which `add_place` has added one.

        Several pictures keep their thresholds, and nothing is proved about their names.
        """
        change = place.rule.temperature / self.temperature
        return replace(
            self._with_rule(place.rule),
            guesses=(),
            calibration=replace(self.calibration, conformal=place.conformal, conformal_mistaken=None),
            joint=tuple(
                replace(each, temperature=each.temperature * change, promises=Promises(), guesses=())
                for each in self.joint
            ),
        )

    def _with_rule(self, rule: PlaceRule | JointRule) -> "AnswerModel":
        """Returns the model with a rule that was fitted on plants of all taxa.

        Those that are often mistaken keep their limit where it is stricter, and nothing is proved about their names.
        """
        mistaken = self.mistaken
        if mistaken is not None:
            mistaken = MistakenTaxa(mistaken.taxon_ids, max(mistaken.threshold, rule.thresholds.species))
        return replace(
            self,
            temperature=rule.temperature,
            thresholds=rule.thresholds,
            promises=rule.promises,
            mistaken=mistaken,
        )


class Scores(Columns, frozen=True):
    """What the verdicts on N pictures or plants rest on; the first three columns are those of `BestNames`."""

    position_NR: Positions
    score_NR: Doubles
    may_name_NR: Flags
    plant_N: Doubles | None
    """Probability that it shows a plant; None without a plant head."""
    familiar_N: Doubles | None
    """How sure it is that it shows a plant that the network knows; None without a table."""
    distance_N: Doubles | None
    """Relative Mahalanobis++ distance; None without a table, and for several pictures together."""

    @property
    def named_N(self) -> Positions:
        """Position of the most likely taxon."""
        return self.position_NR[:, 0]

    @property
    def confidence_N(self) -> Doubles:
        """Its probability."""
        return self.score_NR[:, 0]


class Decisions(Columns, frozen=True):
    """The verdicts on N pictures or plants, without words."""

    rank_N: npt.NDArray[np.str_]
    """A `VerdictRank`."""
    unknown_N: Flags
    """Whether nothing is named because it is a plant unlike those that the network knows."""

    @property
    def named_N(self) -> Flags:
        """Whether the verdict has a name, of any rank."""
        return np.isin(self.rank_N, RANKS)

    def count(self, rank: VerdictRank) -> int:
        """Returns the number of verdicts of this rank."""
        return int((self.rank_N == rank).sum())


def probabilities(logits: Floats, model: AnswerModel, allowed_T: Flags | None = None) -> Doubles:
    """Returns calibrated probabilities over the allowed taxa; shapes (..., num_outputs) -> (..., num_taxa).

    They sum to 1. Other taxa have probability 0.
    """
    if allowed_T is not None:
        logits = np.where(allowed_T[model.taxonomy.taxon_of_output], logits, -np.inf)
    return taxon_probabilities(output_probabilities(logits, model.temperature), model.taxonomy)


def add_place(logits: Floats, log_ratios: Floats, rule: PlaceRule, model: AnswerModel) -> Doubles:
    """Adds what places say to logits, shape (..., num_outputs); their log ratios have the shape (..., num_taxa)."""
    return logits + model.temperature * rule.log_factors(log_ratios)[..., model.taxonomy.taxon_of_output]


def score(logits_NO: Floats, features_NF: Floats, model: AnswerModel) -> tuple[Doubles, Scores]:
    """Returns the probabilities of all taxa on each of N pictures alone, and what their verdicts rest on."""
    taxa_NT = probabilities(logits_NO, model)
    names = best_names(taxa_NT, model.taxonomy)
    return taxa_NT, Scores(*names, *model.calibration.scores(features_NF, names.score_NR[:, 0]))


def of_choice(names: BestNames, taxa_T: Doubles, allowed_T: Flags, taxonomy: Taxonomy) -> BestNames:
    """Returns the best names of a client's choice with the scores that decide the verdict on one plant.

    The taxa that are not allowed count `OUTSIDE_WEIGHT`. A name that all allowed taxa share was the client's, so it has
    the score without the choice, and no other is lower than that. Above `MOST_DISCARDED` no name may be given.

    Args:
        names: The best names by the allowed taxa alone.
        taxa_T: Probabilities of all taxa, those that are not allowed too.
        allowed_T: Whether each taxon can be the answer.
        taxonomy: The taxa of the model.
    """
    weighted_T = np.where(allowed_T, taxa_T, OUTSIDE_WEIGHT * taxa_T)
    weighted_T /= weighted_T.sum()
    score_R = []
    for name_T, name in zip(name_of_taxon(taxonomy).values(), names.position_NR[0], strict=True):
        has_name_T = name_T == name
        is_shared = has_name_T[allowed_T].all()
        score_R.append(max(each_T[has_name_T].sum() for each_T in (taxa_T, taxa_T if is_shared else weighted_T)))
    is_inside = taxa_T[~allowed_T].sum() <= MOST_DISCARDED
    return BestNames(
        names.position_NR,
        np.where(names.score_NR > 0, np.minimum(score_R, 1.0), names.score_NR),
        names.may_name_NR & is_inside,
    )


def decide(scores: Scores, model: AnswerModel) -> Decisions:
    """Names the most precise rank whose score reaches its threshold, for each picture or plant.

    This is hierarchical selective classification (Goren et al. 2024, arXiv 2405.11533): a species that is too uncertain
    is answered with its genus, then with its family, then not at all. A taxon of rank genus is never named as a
    species, whatever its score. A name that leaves out a grave harm is not given while that harm is likely
    (`models/harmful.py`); a less precise one that includes it may be. A threshold of 1 names nothing.
    """
    cutoffs = model.calibration.cutoffs or Cutoffs()
    rank_N = np.full(len(scores.named_N), "uncertain", dtype="<U12")
    open_N = np.ones(len(rank_N), dtype=bool)
    unknown_N = np.zeros(len(rank_N), dtype=bool)
    if scores.plant_N is not None:
        open_N = scores.plant_N >= cutoffs.plant
        rank_N[~open_N] = "not_a_plant"
    if scores.familiar_N is not None:
        unknown_N = open_N & (scores.familiar_N < cutoffs.familiar)
        open_N = open_N & ~unknown_N
    for column, rank in enumerate(RANKS):
        threshold_N = model.threshold(rank, scores.named_N)
        reaches_N = (scores.score_NR[:, column] >= threshold_N) & (threshold_N < 1)
        named_N = open_N & reaches_N & scores.may_name_NR[:, column]
        rank_N[named_N] = rank
        open_N = open_N & ~named_N
    return Decisions(rank_N, unknown_N)


def picture_weights(plant_B: Doubles, cutoff: float) -> Doubles:
    """Gives each picture a weight in proportion to its plant score; the weights sum to 1.

    A picture below the cutoff has no weight while another picture reaches the cutoff, so a picture of something else
    among good ones does not change the answer.
    """
    kept_B = plant_B >= cutoff
    weight_B = np.where(kept_B, plant_B, 0.0) if kept_B.any() else plant_B
    total = weight_B.sum()
    return weight_B / total if total > 0 else np.full(len(plant_B), 1 / len(plant_B))
