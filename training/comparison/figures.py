"""The figures of a comparison, from the answers of both bundles: pure functions.

Letters in names: N pictures.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from models.metrics import NamesOfRank, calibration_error, macro_mean, share
from models.ranking import Verdict, VerdictRank
from models.taxonomy import Taxon
from training.comparison.answers import Answer
from training.comparison.loss import Hits, PairedShare, Whole, macro_share, micro_share
from training.comparison.schema import (
    Accuracy,
    Calibration,
    CandidateSets,
    ChangedVerdict,
    Crossings,
    FewShot,
    GenusAccuracy,
    Rejection,
    Verdicts,
)
from training.evaluation.answer_metrics import COVERAGES


def accuracy(old: Sequence[Answer], new: Sequence[Answer], plants_N: Whole, taxa_N: Whole) -> Accuracy:
    """Compares top-1 and top-5 over the pictures (micro) and over the taxa (macro)."""
    old1_N, new1_N = (_hits(answers, lambda answer: answer.top1) for answers in (old, new))
    old5_N, new5_N = (_hits(answers, lambda answer: answer.top5) for answers in (old, new))
    return Accuracy(
        micro_top1=micro_share(old1_N, new1_N, plants_N),
        micro_top5=micro_share(old5_N, new5_N, plants_N),
        macro_top1=macro_share(old1_N, new1_N, plants_N, taxa_N),
        macro_top5=macro_share(old5_N, new5_N, plants_N, taxa_N),
    )


def few_shot(
    old: Sequence[Answer],
    new: Sequence[Answer],
    plants_N: Whole,
    taxon_ids: Sequence[str],
    num_training: Mapping[str, int],
    *,
    limit: int,
    counted_in: str,
) -> FewShot:
    """Compares top-1 on the taxa with few training pictures.

    Args:
        old: Answers of the old bundle.
        new: Answers of the new bundle.
        plants_N: Number of the plant that each picture shows.
        taxon_ids: Taxon of each picture.
        num_training: Taxon id -> number of training pictures.
        limit: Taxa with fewer training pictures count.
        counted_in: The data that was counted, in words.
    """
    few = {taxon_id for taxon_id in taxon_ids if num_training.get(taxon_id, 0) < limit}
    chosen_N = np.array([taxon_id in few for taxon_id in taxon_ids])
    micro: PairedShare | None = None
    macro: PairedShare | None = None
    if few:
        old_N, new_N = (_hits(answers, lambda answer: answer.top1)[chosen_N] for answers in (old, new))
        micro = micro_share(old_N, new_N, plants_N[chosen_N])
        macro = macro_share(old_N, new_N, plants_N[chosen_N], np.array(taxon_ids)[chosen_N])
    return FewShot(limit=limit, counted_in=counted_in, num_taxa=len(few), micro_top1=micro, macro_top1=macro)


def genera(old: Sequence[Answer], new: Sequence[Answer], taxa: Sequence[Taxon]) -> tuple[GenusAccuracy, ...]:
    """Returns top-1 of every genus, the one with the lowest accuracy of the new bundle first.

    Taxa that are known by a common name alone have no genus and are left out.

    Args:
        old: Answers of the old bundle.
        new: Answers of the new bundle.
        taxa: Taxon of each picture.
    """
    genus_N = np.array([taxon.genus for taxon in taxa])
    old_N, new_N = (_hits(answers, lambda answer: answer.top1) for answers in (old, new))
    rows = []
    for genus in np.unique(genus_N[genus_N != ""]):
        own_N = genus_N == genus
        rows.append(
            GenusAccuracy(
                genus=str(genus),
                num_taxa=len({taxon.taxon_id for taxon in taxa if taxon.genus == genus}),
                num_pictures=int(own_N.sum()),
                old_top1=float(old_N[own_N].mean()),
                new_top1=float(new_N[own_N].mean()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (row.new_top1, row.new_top1 - row.old_top1, row.genus)))


def calibration(answers: Sequence[Answer], plants_N: npt.NDArray[np.int64]) -> Calibration:
    """Compares the probabilities of a bundle with the share of right answers."""
    confidence_N = np.array([answer.confidence for answer in answers])
    right_N = np.array([answer.right_score for answer in answers])
    return Calibration(
        ece=calibration_error(confidence_N, _hits(answers, lambda answer: answer.top1), plants_N),
        nll=float(-np.log(np.maximum(right_N, 1e-12)).mean()),
    )


def candidate_sets(answers: Sequence[Answer], taxa_N: Whole) -> tuple[CandidateSets, ...]:
    """Returns coverage and size of the candidate sets; nothing for a bundle without a table."""
    if not answers[0].set_sizes:
        return ()
    hits_NC = np.array([answer.set_hits for answer in answers])
    sizes_NC = np.array([answer.set_sizes for answer in answers])
    return tuple(
        CandidateSets(
            coverage=coverage,
            covered=share(int(hits_NC[:, column].sum()), len(answers)),
            macro_covered=macro_mean(hits_NC[:, column], taxa_N),
            mean_size=float(sizes_NC[:, column].mean()),
        )
        for column, coverage in enumerate(COVERAGES)
    )


def verdicts(answers: Sequence[Answer]) -> Verdicts:
    """Counts the verdicts of a bundle by rank."""
    ranks = Counter(answer.verdict.rank for answer in answers)
    return Verdicts(
        species=_names(answers, "species"),
        genus=_names(answers, "genus"),
        family=_names(answers, "family"),
        num_uncertain=ranks["uncertain"],
        num_not_a_plant=ranks["not_a_plant"],
    )


def crossings(
    old: Sequence[Answer], new: Sequence[Answer], taxa: Sequence[Taxon], pictures: Sequence[str]
) -> Crossings:
    """Lists the pictures that one bundle names and the other does not.

    Args:
        old: Answers of the old bundle.
        new: Answers of the new bundle.
        taxa: Taxon of each picture.
        pictures: Name of each picture.
    """
    counts: dict[str, Counter[str]] = {}
    for before, after in zip(old, new, strict=True):
        counts.setdefault(before.verdict.rank, Counter())[after.verdict.rank] += 1
    changed = [at for at, (before, after) in enumerate(zip(old, new, strict=True)) if before.named != after.named]
    return Crossings(
        old_to_new={rank: dict(row) for rank, row in sorted(counts.items())},
        only_old=_of_any_rank(old[at] for at in changed if old[at].named),
        only_new=_of_any_rank(new[at] for at in changed if new[at].named),
        pictures=tuple(
            ChangedVerdict(
                picture=pictures[at],
                right=taxa[at].scientific_name,
                old=_words(old[at].verdict),
                new=_words(new[at].verdict),
            )
            for at in changed
        ),
    )


def rejection(things: Sequence[Verdict], answers: Sequence[Answer], *, has_table: bool) -> Rejection:
    """Counts the things that a bundle names as plants, and the plants that it keeps.

    Args:
        things: Verdicts on pictures without a plant, at least one.
        answers: Answers to the pictures of plants.
        has_table: Whether the bundle has a table for it.
    """
    return Rejection(
        things_named=share(sum(verdict.name is not None for verdict in things), len(things)),
        plants_kept=share(sum(answer.verdict.rank != "not_a_plant" for answer in answers), len(answers)),
        has_table=has_table,
    )


def _hits(answers: Sequence[Answer], is_hit: Callable[[Answer], bool]) -> Hits:
    return np.array([is_hit(answer) for answer in answers], dtype=np.bool_)


def _names(answers: Sequence[Answer], rank: VerdictRank) -> NamesOfRank:
    return _of_any_rank(answer for answer in answers if answer.verdict.rank == rank)


def _of_any_rank(named: Iterable[Answer]) -> NamesOfRank:
    right = [answer.verdict_right for answer in named]
    return NamesOfRank.of(sum(right), len(right))


def _words(verdict: Verdict) -> str:
    return f"{verdict.rank} {verdict.name}" if verdict.name else verdict.rank.replace("_", " ")
