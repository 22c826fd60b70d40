"""Fits what turns the outputs of a network file into answers; `fit_model` reads from top to bottom.

Letters in names: N calibration plants, one picture each; M other pictures; T taxa.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from models.arrays import Flags
from models.bundle_record import Metric
from models.calibration import Calibration, Cutoffs, FamiliarityTable, FittedOn, conformal_table_of
from models.figures import metric, rejection_figures
from models.metrics import Whole, share
from models.outputs import ComputedRows, Outputs, Predictions
from models.preprocess import InputSpec
from models.ranking import RANKS, Floats, Rank
from models.scoring import AnswerModel, GuessShare, JointRule, decide
from training.dataset.manifest import Manifest
from training.dataset.sources.record import Split
from training.fit.heads import (
    MOST_PLANTS,
    FittedHead,
    HeadInputs,
    distances_to_others,
    familiar_cutoff,
    fit_features,
    fit_head,
    left_out_cutoff,
)
from training.fit.names import (
    JOINT_RISK,
    MIN_NAMED,
    FittedThresholds,
    fit_temperature,
    fit_thresholds,
    look_alikes,
    mistaken_taxa,
)
from training.fit.pictures import PictureFiles, Pictures, one_picture_each, pictures_of
from training.fit.place import PlaceData, fit_place, place_data
from training.fit.unknown_plants import UnknownFiles, UnknownPlants, drawn_among

JOINT_SIZES: Final = (2, 3, 4)
"""Numbers of pictures that rules are fitted for; the last one also holds for more."""

LEAST_IN_DOUBT: Final = 50
"""Plants without a name that a range of scores needs."""
MOST_RANGES: Final = 5


class PictureSets(msgspec.Struct, frozen=True):
    """The pictures for each step of a release."""

    training: Pictures
    """From which the bundle learns where plants lie among the features."""
    validation: Pictures
    """For parity with PyTorch (a sample), and for the agreement of fp16 with fp32."""
    calibration: Pictures
    """For the temperature: the calibration split, or validation if the data has none."""
    plants: Whole
    """One picture of each calibration plant, as positions among those, for thresholds and tables."""
    heads: Pictures | None
    """One picture of each validation plant, for heads and taxa that are often mistaken; None without a calibration
    split: then the heads are fitted on the calibration plants."""
    test: Pictures
    """For the metrics."""
    place: PlaceData | None = None
    """Where the training pictures and these plants were photographed; None if too few have a place."""
    negatives: PictureFiles | None = None
    """Pictures without a plant, for the plant head."""
    unknown: UnknownFiles | None = None
    """Plants that the bundle does not know."""
    other_data: bool = False
    """Whether the pictures are of other data than the network was trained with; then each name says so."""

    @property
    def proves(self) -> bool:
        """Whether the calibration plants can prove a promise.

        The network was not trained on them, as it may have been if they are of other data, and they did not choose its
        checkpoint, as the validation split did.
        """
        return self.heads is not None and not self.other_data


def picture_sets(
    manifest: Manifest,
    spec: InputSpec,
    workers: int,
    *,
    negatives: PictureFiles | None = None,
    unknown: UnknownFiles | None = None,
    other_data: bool = False,
) -> PictureSets:
    """Chooses the pictures from prepared data."""

    def split(name: Split) -> Pictures:
        return pictures_of(manifest, name, spec, workers, other_data=other_data)

    training = split("train")
    validation = split("validation")
    calibration = validation
    heads = None
    if manifest.has("calibration"):
        calibration = split("calibration")
        one_each = validation.rows[one_picture_each(validation.plants)]
        heads = replace(validation, rows=one_each).sample(MOST_PLANTS)
    plants = one_picture_each(calibration.plants)
    return PictureSets(
        training=training,
        validation=validation,
        calibration=calibration,
        plants=plants,
        heads=heads,
        test=split("test"),
        place=place_data(manifest, training.rows, calibration.rows[plants]),
        negatives=negatives,
        unknown=unknown,
        other_data=other_data,
    )


class Fitted(msgspec.Struct, frozen=True):
    """What was fitted to a network file."""

    model: AnswerModel
    thresholds: FittedThresholds
    """Those of the model, with the number of calibration plants that they name."""
    metrics: tuple[Metric, ...] = ()
    """What becomes of plants of taxa that are left out, and of pictures without a plant.

    The former are the calibration plants, each judged as if its taxon were unknown: without its outputs and without
    its mean among the features. The network itself was trained with the taxon, so with plants that are new to it the
    figures are worse, and the cutoff of familiarity was set on the same plants. Each of the latter was left out of the
    fit that judges it.
    """
    place_top1: tuple[float, float] | None = None
    """Share of the calibration plants with a place that are named right, without and with it."""


def fit_model(run: Callable[..., Outputs], sets: PictureSets, given: Mapping[Rank, float]) -> Fitted:
    """Fits all that the answers of a network file need; `run` gives its outputs for a set of pictures.

    The temperature, the thresholds and the candidate sets are fitted on the calibration plants: the thresholds on those
    that the heads keep, since no other plant is named, and on as many strangers as make every fourth plant one. `given`
    has thresholds that are not fitted.
    """
    # The temperature, and where plants of each taxon lie among the features.
    taxonomy = sets.calibration.manifest.taxonomy
    outputs = run(sets.calibration)
    training = run(sets.training, with_logits=False)
    trained_N = taxonomy.taxon_of_output[training.labels]
    features = fit_features(training.features, trained_N, taxonomy.genera)
    model = AnswerModel(taxonomy, fit_temperature(outputs, taxonomy), calibration=Calibration(features=features))

    # What is a plant, and one that the network knows.
    calibration = outputs.choose(sets.plants)
    heads = fit_heads(run, sets, model, calibration, np.unique(trained_N))
    known = heads.known
    kept_N = heads.keeps(known)

    # The score from which a name is given: among known plants that are kept, and strangers that are taken for such.
    named = heads.named(known)
    strangers = None
    if heads.unknown is not None and heads.others is not None:
        strangers = heads.unknown, heads.keeps(heads.others)
    mistaken_T = np.zeros(len(taxonomy.taxa), dtype=bool)
    if (sets.heads or sets.negatives or sets.unknown) and "species" not in given:
        mistaken_T = mistaken_taxa(heads.validated, known, len(taxonomy.taxa))
    fit_names = partial(fit_thresholds, fixed=given, proves=sets.proves)
    thresholds = fit_names(named.rank_scores, mistaken_N=mistaken_T[named.named_N])

    # What a place changes, and the candidate sets. Taxa that are often mistaken have their own.
    counts_T = np.bincount(trained_N, minlength=len(taxonomy.taxa)).clip(1)  # no taxon is impossible
    prior_T = np.asarray(counts_T / counts_T.sum())
    place, place_top1 = fit_place(
        sets.place, calibration, known, kept_N, model, prior_T=prior_T, fit_names=fit_names, strangers=strangers
    )
    own_N = mistaken_T[known.taxon_labels_N]
    conformal, conformal_mistaken = (
        conformal_table_of(known.right_N[some], known.taxon_labels_N[some], prior_T) if some.any() else None
        for some in (~own_N, own_N)
    )

    # The answer model, and what it does to strangers and to pictures without a plant.
    fitted_on = FittedOn(
        sets.calibration.name,
        datetime.now(UTC).date().isoformat(),
        num_plants=len(known.rows),
        num_pictures=len(sets.calibration),
        num_negatives=0 if heads.plant is None else len(heads.plant.other_M),
        num_strangers=0 if heads.unknown is None else len(heads.unknown.names.source_M),
    )
    tables = replace(heads.tables, conformal=conformal, conformal_mistaken=conformal_mistaken, fitted_on=fitted_on)
    model = replace(
        model,
        thresholds=thresholds.thresholds,
        promises=thresholds.promises,
        calibration=tables,
        place=place,
        look_alikes=look_alikes(known, taxonomy),
        mistaken=thresholds.of_mistaken(taxonomy.taxa, mistaken_T),
    )
    model = replace(model, guesses=fit_guesses(heads, known, model))
    model = replace(model, joint=tuple(fit_joint(outputs, heads, model, fit_names)))
    return Fitted(model, thresholds, tuple(_metrics(run, sets, heads, model)), place_top1)


class Heads(msgspec.Struct, frozen=True):
    """What tells known plants from other plants and from other things, and what it says."""

    tables: Calibration
    """Features, heads or familiarity, and cutoffs."""
    plant: FittedHead | None
    """The plant head; None without pictures that show no plant."""
    known: Predictions
    """Scores of the calibration plants."""
    validated: Predictions
    """Scores of the plants that the heads were fitted on."""
    unknown: UnknownPlants | None
    """Strangers for the fit, if any are given."""
    others: Predictions | None
    """Scores of these strangers; without them those of the calibration plants, each as if its taxon were unknown. None
    with one taxon only."""

    def keeps(self, found: Predictions) -> Flags:
        """Whether each picture is taken for a plant that the network knows."""
        cutoffs = self.tables.cutoffs
        assert cutoffs is not None
        kept_N = np.asarray(_familiarity(found) >= cutoffs.familiar)
        return kept_N if found.plant_N is None else kept_N & (found.plant_N >= cutoffs.plant)

    def with_unknown(self, known: Predictions) -> Predictions:
        """Returns the plants and strangers, so that every fourth one is a stranger if there are enough."""
        if self.unknown is None or self.others is None:
            return known
        return Predictions.join((known, self.others.subset(drawn_among(self.unknown.names, len(known.rows)))))

    def named(self, known: Predictions) -> Predictions:
        """Returns the plants that thresholds are fitted on: those that are kept, with strangers among them."""
        found = self.with_unknown(known)
        return found.subset(self.keeps(found))


def fit_heads(
    run: Callable[..., Outputs], sets: PictureSets, model: AnswerModel, calibration: Outputs, trained_T: Whole
) -> Heads:
    """Fits both heads on validation plants, and the cutoff of familiarity on calibration plants.

    The model has the temperature and the features, which were fitted on pictures of the taxa `trained_T`.
    """
    known = calibration.score(model)
    seen = HeadInputs.of(known, calibration)
    validation = calibration if sets.heads is None else run(sets.heads)
    validated = validation.score(model)
    plants = HeadInputs.of(validated, validation)
    tables = model.calibration
    plant = None
    if sets.negatives is not None:
        things = run(sets.negatives)
        plant = fit_head(plants, HeadInputs.of(things.score(model), things), sets.negatives.groups(things.rows))
        tables = replace(tables, plant_head=plant.head)
    unknown = None
    if sets.unknown is None:
        tables, others, judged_M = _fit_familiarity(tables, model, calibration, seen, trained_T)
    else:
        unknown = UnknownPlants.of(run, sets.unknown, judging=False)
        tables, others, judged_M = _fit_known_head(tables, model, unknown, plants)
    known = seen.judge(known, tables)
    cutoffs = Cutoffs(0.0 if plant is None else plant.cutoff, familiar_cutoff(_familiarity(known), judged_M))
    return Heads(replace(tables, cutoffs=cutoffs), plant, known, validated, unknown, others)


def fit_joint(
    outputs: Outputs, heads: Heads, model: AnswerModel, fit_names: Callable[..., FittedThresholds]
) -> Iterator[JointRule]:
    """Fits a rule for each number of pictures, on groups of calibration pictures that share none.

    They are of one plant, of which one group counts, if the data have enough, else of one taxon, and those of strangers
    are of one genus; without enough of the former, or any of the latter, there are no further rules. Where too few
    groups get a name of a rank, its threshold is that of fewer pictures, and nothing is proved; where too few get none,
    so is what is known of guesses. Pictures add up to no more than independent ones would, whose logits are summed:
    groups without an error would have any confidence.
    """
    alone = outputs.score(model)
    alone = HeadInputs.of(alone, outputs).judge(alone, heads.tables)
    thresholds = model.thresholds
    guesses = model.guesses
    cutoffs = heads.tables.cutoffs
    assert cutoffs is not None
    for number in JOINT_SIZES:
        groups_GB = groups_of(outputs.plants, number)
        groups_GB = groups_GB[one_picture_each(outputs.plants[groups_GB[:, 0]])]
        of_one_plant = len(groups_GB) >= MIN_NAMED
        if not of_one_plant:
            groups_GB = groups_of(alone.taxon_labels_N, number)
        if len(groups_GB) < MIN_NAMED:
            return
        together = means(outputs, groups_GB)
        temperature = max(fit_temperature(together, model.taxonomy), model.temperature / number)
        rule = AnswerModel(model.taxonomy, temperature)
        known = with_mean_scores(together.score(rule), alone, groups_GB)
        unknown = others = None
        if heads.unknown is not None and heads.others is not None:
            groups_GB = groups_of(heads.unknown.names.group_M, number)
            if not groups_GB.size:
                return
            unknown = UnknownPlants(
                means(heads.unknown.outputs, groups_GB), heads.unknown.names.subset(groups_GB[:, 0])
            )
            others = with_mean_scores(unknown.predictions(rule), heads.others, groups_GB)
            far_M = _familiarity(others)[~unknown.names.near_M]
            if len(far_M):
                cutoffs = replace(cutoffs, familiar=min(cutoffs.familiar, left_out_cutoff(far_M)))
        judged = Heads(replace(heads.tables, cutoffs=cutoffs), heads.plant, known, heads.validated, unknown, others)
        fitted = fit_names(judged.named(known).rank_scores, max_risk=JOINT_RISK)
        enough = {
            rank: getattr(fitted.thresholds, rank) for rank in RANKS if getattr(fitted, rank).num_named >= MIN_NAMED
        }
        thresholds = replace(thresholds, **enough)
        found = JointRule(number, temperature, thresholds, cutoffs.familiar, fitted.promises, of_one_plant)
        guesses = fit_guesses(judged, known, replace(model, joint=(found,)).for_pictures(number)) or guesses
        yield replace(found, guesses=guesses)


def fit_guesses(heads: Heads, known: Predictions, model: AnswerModel) -> tuple[GuessShare, ...]:
    """Measures how often the likeliest taxa of plants without a name are right, and the likeliest family of others.

    The latter are unlike the plants that the network knows.
    """
    found = heads.with_unknown(known)
    decisions = decide(found, model)
    is_known_N = np.arange(len(found.rows)) < len(known.rows)
    family_N = found.score_NR[:, RANKS.index("family")]
    in_doubt_N = (decisions.rank_N == "uncertain") & ~decisions.unknown_N
    return (
        *_guess_shares(
            "species", found.confidence_N, in_doubt_N, found.hits & is_known_N, found.top_k_hits(3) & is_known_N
        ),
        *_guess_shares(
            "family", family_N, decisions.unknown_N & (family_N > 0), found.rank_right_NR[:, RANKS.index("family")]
        ),
    )


def _guess_shares(
    rank: Literal["species", "family"], score_N: Floats, among_N: Flags, first_N: Flags, three_N: Flags | None = None
) -> Iterator[GuessShare]:
    """Yields the shares in ranges of score of equal counts; nothing with too few plants."""
    ascending = np.flatnonzero(among_N)[np.argsort(score_N[among_N], kind="stable")]
    num_ranges = min(len(ascending) // LEAST_IN_DOUBT, MOST_RANGES)
    for at, part in enumerate(np.array_split(ascending, num_ranges) if num_ranges else ()):
        yield GuessShare(
            score=float(score_N[part[0]]) if at else 0.0,
            first=float(first_N[part].mean()),
            three=None if three_N is None else float(three_N[part].mean()),
            num_plants=len(part),
            rank=rank,
        )


def groups_of(keys_N: Whole, number: int) -> Whole:
    """Draws groups of so many pictures that share a key, none in two; returns positions, shape (num_groups, number)."""
    random_N = np.random.default_rng(0).permutation(len(keys_N))
    sorted_N = random_N[np.argsort(keys_N[random_N], kind="stable")]
    _, first, counts = np.unique(keys_N[sorted_N], return_index=True, return_counts=True)
    at_N = np.arange(len(sorted_N)) - np.repeat(first, counts)
    return sorted_N[at_N < np.repeat(counts - counts % number, counts)].reshape(-1, number)


def means(outputs: Outputs, groups_GB: Whole) -> Outputs:
    """Returns the mean logits of each group; they are read as they are needed."""
    num_outputs = outputs.logits.shape[1]

    def read(chosen: slice | Whole) -> Floats:
        some = groups_GB[chosen]
        return np.asarray(outputs.logits[some.ravel()].reshape(*some.shape, num_outputs).mean(axis=1))

    firsts = groups_GB[:, 0]
    return Outputs(
        ComputedRows((len(groups_GB), num_outputs), read), labels=outputs.labels[firsts], rows=outputs.rows[firsts]
    )


def with_mean_scores(found: Predictions, alone: Predictions, groups_GB: Whole) -> Predictions:
    """Returns the scores of groups with how sure their pictures are, in the mean, to show a plant and a known one."""
    plant_N, familiar_N = (
        None if each is None else each[groups_GB].mean(axis=1) for each in (alone.plant_N, alone.familiar_N)
    )
    return replace(found, plant_N=plant_N, familiar_N=familiar_N)


def _metrics(run: Callable[..., Outputs], sets: PictureSets, heads: Heads, model: AnswerModel) -> Iterator[Metric]:
    """Follows plants as if their taxa were unknown, and pictures without a plant, to their verdicts."""
    if heads.unknown is None and heads.others is not None:
        about = f"{sets.calibration.name}, each plant as if its taxon were unknown"
        figures = rejection_figures("familiarity", heads.known, heads.others, model)
        yield metric("left_out_auroc", figures.auroc, about, len(heads.others.rows))
        yield metric("left_out_named_species", figures.named_species, about)
    if heads.plant is not None and sets.negatives is not None:
        # The plant scores are those of the fits that left them out.
        about = f"{sets.negatives.name}, each left out of the fit that judges it"
        decisions = decide(replace(run(sets.negatives).score(model), plant_N=heads.plant.other_M), model)
        number = len(heads.plant.other_M)
        yield metric("things_auroc", heads.plant.auroc, about, number)
        yield metric("things_accepted", share(number - decisions.count("not_a_plant"), number), about)
        yield metric("things_named", share(int(decisions.named_N.sum()), number), about)


def _familiarity(found: Predictions) -> Floats:
    assert found.familiar_N is not None
    return found.familiar_N


def _fit_known_head(
    tables: Calibration, model: AnswerModel, unknown: UnknownPlants, validation: HeadInputs
) -> tuple[Calibration, Predictions, Floats]:
    """Fits familiarity on validation plants and strangers of unknown genera.

    Returns the tables with it, the strangers, and the familiarity of those that set the cutoff. All of unknown genera
    are judged by heads that were fitted without their source.
    """
    found = unknown.predictions(model)
    seen = HeadInputs.of(found, unknown.outputs)
    far_M = ~unknown.names.near_M
    far = unknown.names.subset(far_M)
    fitted = fit_head(validation, seen.subset(far_M), far.folds(), far.source_M)
    tables = replace(tables, known_head=fitted.head)
    others = seen.judge(found, tables)
    _familiarity(others)[far_M] = fitted.other_M
    return tables, others, fitted.other_M


def _fit_familiarity(
    tables: Calibration, model: AnswerModel, plants: Outputs, seen: HeadInputs, trained_T: Whole
) -> tuple[Calibration, Predictions | None, Floats]:
    """Fits familiarity on calibration plants alone, where no strangers are at hand.

    The cutoff rests on each plant without its taxon, that is without its outputs and without its mean. Returns the
    tables, these plants, and their familiarity; there are none if there is one taxon only.
    """
    taxonomy = model.taxonomy
    tables = replace(tables, familiarity=FamiliarityTable(np.sort(seen.confidence), np.sort(seen.distance)))
    if len(trained_T) < 2 or len(taxonomy.taxa) < 2 or tables.features is None:
        return tables, None, np.zeros(0)
    taxon_N = taxonomy.taxon_of_output[plants.labels]

    def read(chosen: slice | Whole) -> Floats:
        own_NO = taxonomy.taxon_of_output == taxon_N[chosen, None]
        return np.where(own_NO, np.float32(-np.inf), plants.logits[chosen])

    found = Outputs(ComputedRows(plants.logits.shape, read), labels=plants.labels).score(model)
    distance_N = distances_to_others(tables.features, trained_T, seen.features, taxon_N)
    others = HeadInputs(seen.features, found.confidence_N, distance_N).judge(found, tables)
    return tables, others, _familiarity(others)
