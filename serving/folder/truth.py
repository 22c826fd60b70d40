"""How often the rows of a table are right, if a column of the list or the folders have the true names.

A true name is a taxon id, or a name as `models/taxonomy.py` understands it, also in the forms of class folders. It
counts at each rank at which all taxa that it means agree: "Rosa canina" as species, genus and family; "Rosa", "Rosa
spp.", or a common name of two roses, as genus and family.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.bundle import Bundle, file_sha256
from models.errors import DataError
from models.metrics import (
    Confusion,
    NamesOfRank,
    ReliabilityBin,
    Share,
    calibration_error,
    confusions,
    macro_top1,
    reliability_bins,
    share,
)
from models.ranking import RANKS, Rank, VerdictRank
from models.taxonomy import Groups, Taxon, TaxonNames, Taxonomy
from serving.folder.photographs import Photograph, Store, with_content_hash
from serving.folder.plants import Plant
from serving.folder.rows import Row

TRUTH_FILE: Final = "truth.json"
FOLDER_TRUTH: Final = "folder"
"""The column that stands for the names of the folders, unless the list has it."""
_MOST_CONFUSIONS: Final = 20
# "Helianthus" may mean a species that the model does not know, even if it knows only one of the genus.
_MORE_PRECISE: Final[Mapping[str, tuple[Rank, ...]]] = {"genus": ("species",), "family": ("species", "genus")}
# Names of class folders: "1. Quercus suber", "001_quercus_suber", "Oak (Quercus)", "Quercus spp.", "Quercus_sp_2".
_NUMBER: Final = re.compile(r"^\d+(?:\s*[._)]\s*|[\s-]+(?=[A-Z×]))(?=\D)")
_WITH_BRACKETS: Final = re.compile(r".+?\s*\(([^()]+)\)")
_NO_SPECIES: Final = re.compile(r"(.+?)\s+spp?\.?(?:\s*\d+)?", re.IGNORECASE)

Names = Mapping[Rank, str]
"""Rank -> name, without the ranks that are unknown."""


class RankFigures(msgspec.Struct, frozen=True):
    """How often the most likely taxon is right at one rank."""

    right: Share
    """Rows that are right; those that failed, or whose true name the model does not know, are not."""
    right_of_known: Share | None
    """The same without the rows that failed or whose true name the model does not know; None if none is left."""
    macro_of_known: Share | None
    """Of the same rows, the mean of each true name's share, so that rare plants count as much as common ones."""


class NameFigures(msgspec.Struct, frozen=True):
    """How often one species is recognized."""

    name: str
    num_rows: int
    """Rows with an answer."""
    right: float
    """Share of those whose most likely taxon is right."""


class SpeciesFigures(msgspec.Struct, frozen=True):
    """More about the answered rows whose true species the model knows."""

    ece: Share
    """Expected calibration error of the score of the most likely taxon, over 15 bins."""
    reliability: Sequence[ReliabilityBin]
    confusions: Sequence[Confusion]
    """The most frequent mistakes of the most likely taxon."""
    names: Sequence[NameFigures]
    """The species, the one that is recognized least often first."""


class TruthReport(msgspec.Struct, frozen=True):
    """The file truth.json."""

    bundle_name: str
    bundle_version: str
    column: str
    """Column of the list with the true names, or "folder"."""
    num_rows: int
    """Rows with a true name."""
    num_without_truth: int
    """Rows without one, which count nowhere."""
    num_failed: int
    """Rows with a true name, but without an answer."""
    unknown: Mapping[str, int]
    """True names that the model does not know, and the rows of each; the most frequent first."""
    num_unknown_named: int
    """How many of those rows have a species as their verdict."""
    by_rank: Mapping[Rank, RankFigures]
    """The ranks of which there are true names."""
    num_verdicts: Mapping[VerdictRank, int]
    """Rows with each verdict."""
    verdicts: Mapping[Rank, NamesOfRank]
    """The verdicts of which the true name tells whether they are right: it has their rank or a more precise one, or the
    model does not know it, and they are wrong."""
    species: SpeciesFigures | None
    """None if no answered row has a true species that the model knows."""
    trained_on: Mapping[str, int] | None = None
    """Split -> number of photographs that are in the manifest that the model was trained with, byte for byte; None if
    that manifest is not where the recipe of the bundle says."""

    @property
    def num_unknown(self) -> int:
        """Rows whose true name the model does not know."""
        return sum(self.unknown.values())

    @property
    def num_trained_on(self) -> int:
        """Photographs that helped to make the model: those of all splits but the test split."""
        return sum(number for split, number in (self.trained_on or {}).items() if split != "test")


class _Judged(NamedTuple):
    """A row beside its true name."""

    true: Names
    """Empty if the model does not know it."""
    named: Names | None
    """The most likely taxon; None if the row failed."""
    best: str | None
    """Name of the most likely taxon."""
    score: float
    verdict_rank: VerdictRank | None
    verdict_name: str | None

    def is_right(self, rank: Rank) -> bool:
        return self.named is not None and rank in self.true and self.named.get(rank) == self.true[rank]


class TrueNames:
    """Understands true names.

    Args:
        taxonomy: What the model can name.
    """

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy, self._names = taxonomy, TaxonNames(taxonomy)
        self._found: dict[str, Names] = {}

    def find(self, text: str) -> Names:
        """Returns the name at each rank at which the text has one meaning; empty if the model does not know it."""
        if text not in self._found:
            self._found[text] = self._look_up(text)
        return self._found[text]

    def _look_up(self, text: str) -> Names:
        by_id = self._taxonomy.by_id.get(text)
        if by_id is not None:
            return names_by_rank(by_id)
        plain = _NUMBER.sub("", text).replace("_", " ").strip()
        # The common name before the brackets does not count: the oak of "Oak (Quercus suber)" may be another one here.
        in_brackets = _WITH_BRACKETS.fullmatch(plain)
        return self._read(text) or self._read(in_brackets[1] if in_brackets else plain)

    def _read(self, text: str) -> Names:
        genus = _NO_SPECIES.fullmatch(text)
        known = self._names.find(text)
        if known is None and genus is not None:
            return {rank: name for rank, name in self._read(genus[1]).items() if rank != "species"}
        if known is None:
            return {}
        shared = set.intersection(*(set(names_by_rank(self._taxonomy.taxa[at]).items()) for at in known.taxa))
        unsure = _MORE_PRECISE.get(known.match.kind, ())
        return {rank: name for rank, name in shared if rank not in unsure}


def names_by_rank(taxon: Taxon) -> Names:
    """Returns the names of a taxon; one of rank genus has no species."""
    species = taxon.scientific_name if taxon.rank == "species" else ""
    names: dict[Rank, str] = {"species": species, "genus": taxon.genus, "family": taxon.family}
    return {rank: name for rank, name in names.items() if name}


def require_truths(plants: Iterable[Plant], column: str) -> None:
    """Checks that there are true names, and one for each plant, before anything is identified.

    Raises:
        DataError: No photograph has a true name, or two of one plant have different ones.
    """
    any_found = False
    for plant in plants:
        found = {true_text(each.path, each.columns.get(column), column) for each in plant.photographs}
        any_found |= found != {""}
        if len(found) > 1:
            raise DataError(
                "the photographs of a plant have different true names",
                value=f"{plant.name}: {', '.join(sorted(found))}",
                limit=f"one true name, by --truth {column}",
                remedy="correct the list or --group-by",
            )
    if not any_found and column == FOLDER_TRUTH:
        raise DataError("no photograph is in a folder that could be its true name", remedy="sort them into folders")
    if not any_found:
        raise DataError(f"no photograph has a value in the column {column}", remedy="correct --truth or the list")


def true_text(path: str, cell: str | None, column: str) -> str:
    """Returns the true name of a photograph: the cell of its list, or with `folder` and no cell its folder's name."""
    if cell is None and column == FOLDER_TRUTH:
        cell = path.rpartition("/")[0].rpartition("/")[2]
    return (cell or "").strip()


def trained_on(bundle: Bundle, photographs: Iterable[Photograph], store: Store) -> Mapping[str, int] | None:
    """Returns `TruthReport.trained_on`; reads the photographs only if the manifest is there."""
    manifest = training_manifest(bundle)
    if not manifest.is_file() or file_sha256(manifest) != bundle.record.manifest_sha256:
        return None
    versions = (with_content_hash(photograph, store).version for photograph in photographs)
    hashes = pa.array({version.removeprefix("sha256:") for version in versions}, pa.string())
    table = pq.read_table(manifest, columns=["sha256", "split"])
    found: list[Any] = table.filter(pc.is_in(table["sha256"], hashes))["split"].to_pylist()
    return dict(Counter(found))


def training_manifest(bundle: Bundle) -> Path:
    """Returns where the manifest of a bundle was in the folder of its training, as far as its recipe says."""
    data = bundle.record.recipe.get("data") or {}
    return Path(str(data.get("data", ""))) / "manifest.parquet"


def judge(rows: Iterable[Row], column: str, bundle: Bundle) -> TruthReport:
    """Compares rows with their true names.

    Args:
        rows: The rows of the table.
        column: Column of the list with the true names, or "folder".
        bundle: The bundle that answered.
    """
    true_names = TrueNames(bundle.taxonomy)
    taxa = {taxon.scientific_name: names_by_rank(taxon) for taxon in bundle.taxonomy.taxa}
    judged: list[_Judged] = []
    unknown: Counter[str] = Counter()
    num_without = 0
    for row in rows:
        text = true_text(row["path"], row.get(f"list_{column}"), column)
        if not text:
            num_without += 1
            continue
        true = true_names.find(text)
        judged.append(_judged(row, true, taxa))
        if not true:
            unknown[text] += 1
    return _report(judged, unknown, num_without, column, bundle)


def in_words(report: TruthReport) -> str:
    """Returns the figure of the most precise rank in a line."""
    rank, figures = next(iter(report.by_rank.items()), (None, None))
    if rank is None or figures is None:
        return "the model knows none of the true names"
    more = f"; {report.num_unknown:,} have a true name that the model does not know" if report.num_unknown else ""
    if report.num_trained_on:
        more += (
            f"; {report.num_trained_on:,} of the photographs helped to make the model, which names new ones less well"
        )
    return f"{rank} right: {figures.right.value:.1%} of {figures.right.num_pictures:,} rows{more}"


def _judged(row: Row, true: Names, taxa: Mapping[str, Names]) -> _Judged:
    if row["status"] == "failed":
        return _Judged(true, None, None, 0.0, None, None)
    best = row["name_1"]
    return _Judged(true, taxa[best], best, row["score_1"], row["verdict_rank"], row["verdict_name"])


def _report(
    judged: Sequence[_Judged], unknown: Counter[str], num_without_truth: int, column: str, bundle: Bundle
) -> TruthReport:
    with_species = [each for each in judged if each.named is not None and "species" in each.true]
    by_rank = {rank: figures for rank in RANKS if (figures := _figures(judged, rank)) is not None}
    return TruthReport(
        bundle_name=bundle.record.name,
        bundle_version=bundle.record.version,
        column=column,
        num_rows=len(judged),
        num_without_truth=num_without_truth,
        num_failed=sum(each.named is None for each in judged),
        unknown=dict(unknown.most_common()),
        num_unknown_named=sum(not each.true and each.verdict_rank == "species" for each in judged),
        by_rank=by_rank,
        num_verdicts=Counter(each.verdict_rank for each in judged if each.verdict_rank is not None),
        verdicts={rank: _verdicts(judged, rank) for rank in by_rank},
        species=_species_figures(with_species) if with_species else None,
    )


def _figures(judged: Sequence[_Judged], rank: Rank) -> RankFigures | None:
    """Returns the figures of a rank, or None if there are no true names of it."""
    known = [each for each in judged if rank in each.true]
    if not known:
        return None
    num_unknown = sum(not each.true for each in judged)
    answered = [each for each in known if each.named is not None]
    right_N = np.array([each.is_right(rank) for each in answered], dtype=np.bool_)
    num_right = int(right_N.sum())
    right = share(num_right, len(known) + num_unknown)
    if not answered:
        return RankFigures(right, None, None)
    macro, interval = macro_top1(right_N, Groups.of([each.true[rank] for each in answered]).of_taxon)
    return RankFigures(right, share(num_right, len(answered)), Share(macro, len(answered), interval))


def _verdicts(judged: Sequence[_Judged], rank: Rank) -> NamesOfRank:
    named = [each for each in judged if each.verdict_rank == rank and (not each.true or rank in each.true)]
    return NamesOfRank.of(sum(each.verdict_name == each.true.get(rank) for each in named), len(named))


def _species_figures(judged: Sequence[_Judged]) -> SpeciesFigures:
    right_N = np.array([each.is_right("species") for each in judged], dtype=np.bool_)
    score_N = np.array([each.score for each in judged])
    groups = Groups.of([each.true["species"] for each in judged] + [str(each.best) for each in judged])
    true_N, best_N = np.split(groups.of_taxon, 2)
    return SpeciesFigures(
        ece=calibration_error(score_N, right_N, np.arange(len(judged))),
        reliability=reliability_bins(score_N, right_N),
        confusions=confusions(best_N, true_N, groups.names, _MOST_CONFUSIONS),
        names=_by_name(right_N, true_N, groups.names),
    )


def _by_name(right_N: npt.NDArray[np.bool_], true_N: npt.NDArray[np.intp], names: Sequence[str]) -> list[NameFigures]:
    num_rows, num_right = np.bincount(true_N), np.bincount(true_N, weights=right_N)
    found = [NameFigures(names[at], int(num_rows[at]), float(num_right[at] / num_rows[at])) for at in np.unique(true_N)]
    return sorted(found, key=lambda each: (each.right, each.name))
