"""Photographs of plants that a bundle does not know (strangers): what they teach its tables and say of its names.

A quarter of their genera judges the bundle and is in no fit. Of the others, plants of unknown genera teach familiarity
what a stranger is. All of them stand among the calibration plants when the thresholds are fitted, so that the promise
of a name holds where one plant in four is a stranger. Another species of a genus that the bundle knows is rightly named
by its genus, and by its family; a photograph named by such a genus alone is left out, since it may show a known taxon.

A head that has seen one source of strangers learns that source's style. So where there are several sources, the scores
that set the cutoff and the thresholds are those of heads that were fitted without the source.

Letters in names: M strangers.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from models.arrays import Columns, Flags
from models.bundle_record import Metric
from models.errors import DataError
from models.figures import metric, rejection_figures
from models.metrics import Whole, share
from models.names import genus_families, parse_name
from models.outputs import Outputs, Predictions
from models.preprocess import InputSpec
from models.scoring import AnswerModel, decide
from models.taxonomy import TaxonNames, Taxonomy
from training.fit.pictures import PictureFiles
from training.loading.negatives import UNKNOWN_PLANT, Negatives, list_negatives

JUDGING: Final = 0.25
"""Share of the genera whose photographs judge the bundle."""
UNKNOWN_SHARE: Final = 0.25
"""Share of strangers among the plants that the promise of a name holds for: one plant in four."""
NEAR: Final = 0.125
"""Share of those strangers that are another species of a known genus: one in eight, if there are others."""

LEAST_NEGATIVES: Final = 20
"""Pictures without a plant, or of unknown plants, that a head needs; with fewer, cross-validation says nothing."""
_LEAST_GENERA: Final = 5  # one for each fold of the fit
_GROUPS: Final = ("genus", "family")


class UnknownNames(Columns, frozen=True):
    """What is known about the plants of some photographs, each an array over them."""

    source_M: Whole
    """Number of the folder or list that each comes from."""
    group_M: Whole
    """Number of its genus, or of its folder if it has no name: these are never divided."""
    judges_M: Flags
    """Whether it judges the bundle."""
    label_M: Whole
    """An output of its genus or family, any if the bundle knows none of the two."""
    near_M: Flags
    """Whether the bundle knows its genus."""
    kin_M: Flags
    """Whether the bundle knows its family."""

    def folds(self) -> Whole:
        """Groups for cross-validation: the sources if there are several, else the genera."""
        return self.source_M if len(np.unique(self.source_M)) > 1 else self.group_M


def names_of(listed: Negatives, taxonomy: Taxonomy) -> tuple[tuple[Path, ...], UnknownNames]:
    """Looks up genus and family of each photograph; returns those that stay, and what is known of them.

    One that is named by a known genus or family alone is left out: such a plant may be a taxon that the bundle knows.

    Raises:
        DataError: A plant is known to the bundle.
    """
    taxa = [taxonomy.taxa[position] for position in taxonomy.taxon_of_output]
    known_names = TaxonNames(taxonomy)
    of_genus, of_family = ({getattr(taxon, rank): output for output, taxon in enumerate(taxa)} for rank in _GROUPS)
    groups = dict[str, int]()
    paths = []
    rows = []
    for path, name, source in zip(listed.paths, listed.scientific_names, listed.sources, strict=True):
        known = known_names.find(name) if name else None
        if known is not None and known.is_group:
            continue
        if known is not None:
            raise DataError(
                "a photograph of an unknown plant shows one that the bundle knows",
                value=f"{name}, {path}",
                remedy="take it out of the list of --unknown",
            )
        genus = parse_name(name, scientific=True).genus if name else ""
        group = genus or str(path.parent)
        judges = int(hashlib.sha256(group.encode()).hexdigest()[:8], 16) < JUDGING * 16**8
        near = of_genus.get(genus) if genus else None
        label = near if near is not None else of_family.get(genus_families().get(genus) or "none")
        number = groups.setdefault(group, len(groups))
        paths.append(path)
        rows.append((source, number, judges, label or 0, near is not None, label is not None))
    source_M, group_M, judges_M, label_M, near_M, kin_M = np.array(rows, dtype=np.intp).reshape(-1, 6).T
    return tuple(paths), UnknownNames(source_M, group_M, judges_M > 0, label_M, near_M > 0, kin_M > 0)


class UnknownFiles(PictureFiles, frozen=True, kw_only=True, eq=False):
    """Photographs of plants that the bundle does not know."""

    names: UnknownNames
    num_doubtful: int
    """Number of further photographs that are named by a known genus alone, and left out."""


def unknown_files(folders: tuple[Path, ...], spec: InputSpec, taxonomy: Taxonomy) -> UnknownFiles:
    """Lists the photographs of plants that the network does not know.

    Raises:
        DataError: They are of too few genera to be divided into those of the fit and those that judge it, or the
            network knows one of them.
    """
    listed = list_negatives(folders, label=UNKNOWN_PLANT)
    paths, names = names_of(listed, taxonomy)
    fitted, judging = (
        len(np.unique(names.group_M[~names.near_M & some])) for some in (~names.judges_M, names.judges_M)
    )
    if fitted < _LEAST_GENERA or not judging:
        raise DataError(
            "the unknown plants are of too few genera that the network does not know",
            value=f"{fitted} for the fit and {judging} that judge it",
            limit=f"at least {_LEAST_GENERA} and 1, a quarter being drawn to judge",
            remedy="add photographs of other genera, with the column scientific_name, or leave out --unknown",
        )
    return UnknownFiles(
        paths,
        spec,
        LEAST_NEGATIVES,
        "photographs of unknown plants",
        names=names,
        num_doubtful=len(listed.paths) - len(paths),
    )


class UnknownPlants(msgspec.Struct, frozen=True):
    """What a network file says of strangers, and what they are."""

    outputs: Outputs
    names: UnknownNames

    @classmethod
    def of(cls, run: Callable[..., Outputs], files: UnknownFiles, *, judging: bool) -> "UnknownPlants":
        """Runs a network file on all, and returns those that judge the bundle, or those of the fit."""
        outputs = run(files)
        names = files.names.subset(outputs.rows)
        return cls(outputs, names).choose(names.judges_M == judging)

    def choose(self, chosen: Flags) -> "UnknownPlants":
        """Returns some of them, without reading them."""
        return UnknownPlants(self.outputs.choose(np.flatnonzero(chosen)), self.names.subset(chosen))

    def predictions(self, model: AnswerModel) -> Predictions:
        """Returns their scores; a name is right at the ranks at which the bundle knows the plant."""
        found = replace(self.outputs, labels=self.names.label_M).score(model)
        known_MR = np.stack([np.zeros_like(self.names.near_M), self.names.near_M, self.names.kin_M], axis=1)
        return replace(found, rank_right_NR=found.rank_right_NR & known_MR)


def drawn_among(names: UnknownNames, num_plants: int) -> Flags:
    """Draws so many strangers that one in four plants is one, and one in eight of these is of a known genus."""
    number = round(num_plants * UNKNOWN_SHARE / (1 - UNKNOWN_SHARE))
    number_near = number if names.near_M.all() else min(round(number * NEAR), int(names.near_M.sum()))
    return _drawn(names, names.near_M, number_near) | _drawn(names, ~names.near_M, number - number_near)


def _drawn(names: UnknownNames, among_M: Flags, number: int) -> Flags:
    """Draws some, as evenly by source as can be, with a fixed seed."""
    random_M = np.random.default_rng(0).permutation(np.flatnonzero(among_M))
    turn_M = np.empty(len(among_M), dtype=np.intp)
    for source in np.unique(names.source_M):
        own = random_M[names.source_M[random_M] == source]
        turn_M[own] = np.arange(len(own))  # the first of each source, the second of each, and so on
    chosen_M = np.zeros(len(among_M), dtype=bool)
    chosen_M[random_M[np.argsort(turn_M[random_M], kind="stable")][:number]] = True
    return chosen_M


def unknown_metrics(judging: UnknownPlants, known: Predictions, model: AnswerModel, name: str) -> list[Metric]:
    """Follows strangers whose genera no fit has seen to their verdicts; `known` are the scores of test plants.

    Plants of unknown genera are told from these by familiarity, and the name of a species is always wrong. Other
    species of known genera have a figure of their own, if there are any: how many get a wrong name, at any rank.
    """
    scores = judging.predictions(model)
    figures = rejection_figures("familiarity", known, scores.subset(~judging.names.near_M), model)
    data = f"{name}, of genera that no fit has seen"
    metrics = [
        metric("strangers_auroc", figures.auroc, data, figures.named.num_pictures),
        metric("strangers_named_species", figures.named_species, data),
        metric("strangers_named", figures.named, data),
    ]
    near = scores.subset(judging.names.near_M)
    if len(near.rows):
        decisions = decide(near, model)
        wrong = share(int((decisions.named_N & ~near.right_names(decisions)).sum()), len(near.rows))
        metrics.append(metric("near_strangers_named_wrong", wrong, f"{data}, other species of known genera"))
    return metrics
