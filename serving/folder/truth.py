"""How often the rows of a table are right, if a column of the list or the folders have the true names.

A true name is understood as `TaxonNames.find` does. It counts at each rank at which all taxa that it means agree:
"Rosa canina" as species, genus and family; "Rosa", "Rosa spp.", or a common name of two roses, as genus and family.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from models.bundle import Bundle, file_sha256
from models.errors import DataError, some_of
from models.metrics import Confusion, NamesOfRank, Share, confusions, share
from models.ranking import RANKS, Rank, VerdictRank
from models.taxonomy import Groups, Taxon, TaxonNames, Taxonomy
from serving.folder.photographs import Photograph, Store
from serving.folder.plants import Plant
from serving.folder.rows import Row

TRUTH_FILE: Final = "truth.json"
FOLDER_TRUTH: Final = "folder"
"""The column that stands for the names of the folders, unless the list has it."""
_MOST_CONFUSIONS: Final = 20
_MOST_TOLD: Final = 5  # on the terminal
# "Helianthus" may mean a species that the model does not know, even if it knows only one of the genus.
_MORE_PRECISE: Final[Mapping[str, tuple[Rank, ...]]] = {"genus": ("species",), "family": ("species", "genus")}

Names = Mapping[Rank, str]
"""Rank -> name, without the ranks that are unknown."""


class RankFigures(msgspec.Struct, frozen=True):
    """How often the most likely taxon is right at one rank, and how often the verdicts of this rank are."""

    right: Share
    """Rows that are right; those that failed, or whose true name the model does not know, are not."""
    verdicts: NamesOfRank
    """The verdicts of which the true name tells whether they are right: it has their rank or a more precise one, or the
    model does not know it, and they are wrong."""


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
    below: Mapping[str, str]
    """True names that are more precise than the model, such as subspecies, and the name that counts for each."""
    by_rank: Mapping[Rank, RankFigures]
    """The ranks of which there are true names."""
    num_verdicts: Mapping[VerdictRank, int]
    """Rows with each verdict."""
    confusions: Sequence[Confusion]
    """The most frequent mistakes of the most likely taxon, of the rows whose true species the model knows."""
    trained_on: Mapping[str, int] | None = None
    """Split -> number of photographs that are in the manifest that the model was trained with, byte for byte; None if
    that manifest is not where the recipe of the bundle says."""


class _Judged(NamedTuple):
    """A row beside its true name."""

    true: Names
    """Empty if the model does not know it."""
    row: Row
    named: Names
    """The most likely taxon; empty if the row failed."""


class TrueNames:
    """Understands true names, with the taxonomy of what the model can name."""

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy, self._names = taxonomy, TaxonNames(taxonomy)
        self.below: dict[str, str] = {}

    def find(self, text: str) -> Names:
        """Returns the name at each rank at which the text has one meaning; empty if the model does not know it."""
        known = self._names.find(text)
        if known is None:
            return {}
        if known.match.kind == "below":
            self.below[text] = known.match.name
        shared = set.intersection(*(set(names_by_rank(self._taxonomy.taxa[at]).items()) for at in known.taxa))
        unsure = _MORE_PRECISE.get(known.kind, ())
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
    data = bundle.record.recipe.get("data") or {}
    manifest = Path(str(data.get("data", ""))) / "manifest.parquet"
    if not manifest.is_file() or file_sha256(manifest) != bundle.record.manifest_sha256:
        return None
    hashes: set[str] = set()
    for photograph in photographs:
        with suppress(OSError):
            if photograph.num_bytes >= 0:
                hashes.add(hashlib.sha256(store.read(photograph.path)).hexdigest())
    table = pq.read_table(manifest, columns=["sha256", "split"])
    found: list[Any] = table.filter(pc.is_in(table["sha256"], pa.array(hashes, pa.string())))["split"].to_pylist()
    return dict(Counter(found))


def judge(rows: Iterable[Row], column: str, bundle: Bundle) -> TruthReport:
    """Compares rows with their true names in a column of the list, or in the names of the folders."""
    names = TrueNames(bundle.taxonomy)
    find = cache(names.find)
    taxa = {taxon.scientific_name: names_by_rank(taxon) for taxon in bundle.taxonomy.taxa}
    judged: list[_Judged] = []
    unknown: Counter[str] = Counter()
    num_without = 0
    for row in rows:
        text = true_text(row["path"], row.get(f"list_{column}"), column)
        if not text:
            num_without += 1
            continue
        true = find(text)
        judged.append(_Judged(true, row, {} if row["status"] == "failed" else taxa[row["name_1"]]))
        if not true:
            unknown[text] += 1
    answered = [each for each in judged if each.named]
    return TruthReport(
        bundle_name=bundle.record.name,
        bundle_version=bundle.record.version,
        column=column,
        num_rows=len(judged),
        num_without_truth=num_without,
        num_failed=len(judged) - len(answered),
        unknown=dict(unknown.most_common()),
        below=names.below,
        by_rank={rank: _figures(judged, rank) for rank in RANKS if any(rank in each.true for each in judged)},
        num_verdicts=Counter(each.row["verdict_rank"] for each in answered),
        confusions=_confusions([each for each in answered if "species" in each.true]),
    )


def in_words(report: TruthReport) -> str:
    """Returns the figures in a few lines."""
    lines = [f"{rank}: {_rank_in_words(figures)}" for rank, figures in report.by_rank.items()]
    if not lines:
        lines = ["the model knows none of the true names"]
    num_unknown = sum(report.unknown.values())
    if num_unknown or report.num_failed:
        lines.append(f"{num_unknown:,} true names are unknown to the model, {report.num_failed:,} rows failed")
    if report.below:
        told = [f"{text} as {known}" for text, known in report.below.items()]
        lines.append(f"more precise than the model: {some_of(told, _MOST_TOLD)}")
    lines += [f"  {each.count:,} x {each.right} named {each.named}" for each in report.confusions[:_MOST_TOLD]]
    num_trained_on = sum(number for split, number in (report.trained_on or {}).items() if split != "test")
    if num_trained_on:
        lines.append(f"{num_trained_on:,} of the photographs helped to make the model, which names new ones less well")
    return "\n".join(lines)


def _rank_in_words(figures: RankFigures) -> str:
    words = f"{figures.right} rows right"
    right = figures.verdicts.right
    return words if right is None else f"{words}; {right.value:.1%} of {figures.verdicts.num_named:,} verdicts"


def _figures(judged: Sequence[_Judged], rank: Rank) -> RankFigures:
    """Returns the figures of a rank of which there are true names."""
    counted = [each for each in judged if rank in each.true or not each.true]
    num_right = sum(each.named.get(rank, "") == each.true.get(rank) for each in counted)
    verdicts = [
        each.row["verdict_name"] == each.true.get(rank)
        for each in counted
        if each.named and each.row["verdict_rank"] == rank
    ]
    return RankFigures(share(num_right, len(counted)), NamesOfRank.of(sum(verdicts), len(verdicts)))


def _confusions(judged: Sequence[_Judged]) -> Sequence[Confusion]:
    groups = Groups.of([each.true["species"] for each in judged] + [each.row["name_1"] for each in judged])
    true_N, best_N = np.split(groups.of_taxon, 2)
    return confusions(best_N, true_N, groups.names, _MOST_CONFUSIONS)
