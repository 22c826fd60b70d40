"""The part `place` of a bundle: how much more often each taxon is recorded at a place and month than in the world.

Learned from the coordinates and dates of training pictures. At a place, a taxon's share of the plant records around is
compared with its share of all records, so that where and when people record most does not matter. Shares of a cell of
about 200 km back off to those of the cells of 800 and 3,200 km around it, and these to the world; those of a month to
all plants of the climate band. A taxon without records has the ratio 1 everywhere: nothing is known.

Letters in names: T taxa, N records, B bands (north, tropics, south), M months.
"""

from collections.abc import Iterable
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from models.arrays import Doubles, Integers, read_arrays
from models.calibration import ConformalTable
from models.errors import BundleError
from models.exif import Capture, Latitude, Longitude
from models.ranking import Promises, Thresholds

PLACE_PART: Final = "place"
PLACE_FILE: Final = "place.npz"
SIDES_KM: Final = (200.0, 800.0, 3200.0)
"""Sides of the cells, the finest first."""
_RADIUS_KM: Final = 6371.0
_TROPIC: Final = 23.44  # degrees
_SEASON: Final = 12.0  # records of a taxon in a band that weigh as much as the season of all plants there
_FEW: Final = 10.0  # records of a taxon from which half of the ratio is believed
_ROUNDING: Final = 1e-9  # more than sums and logarithms of ratios of 1 are off
_KERNEL: Final = (0.25, 0.5, 0.25)  # neighboring months count half


class Where(msgspec.Struct, frozen=True):
    """Where and when a plant was photographed."""

    latitude: Latitude
    """Degrees north, WGS 84."""
    longitude: Longitude
    """Degrees east."""
    day: date | None = None


def first_place(captures: Iterable[Capture], day: date | None = None) -> Where | None:
    """Returns the place of the first photograph that has one, and its day if `day` is not given; None without any."""
    for capture in captures:
        if capture.coordinates is not None:
            return Where(*capture.coordinates, day or (capture.taken_at and capture.taken_at.date()))
    return None


class PlaceRule(msgspec.Struct, frozen=True):
    """How place changes the scores of one network: softmax(vision + weight * log ratio), with the ratio in a range."""

    weight: Annotated[float, msgspec.Meta(gt=0.0, le=2.0)]
    floor: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)]
    """Least ratio; 1 / floor is the largest. So place lowers no taxon by more than `floor ** weight` against one that
    is as frequent there as in the world."""
    temperature: Annotated[float, msgspec.Meta(ge=0.01, le=100.0)]
    """Divides the logits after place has been added to them; fitted with places."""
    thresholds: Thresholds
    """Fitted on calibration plants with their places."""
    promises: Promises = Promises()

    def log_factors(self, log_ratios: npt.NDArray[np.floating]) -> Doubles:
        """Returns what is added to the logarithms of probabilities; same shape."""
        limit = -np.log(self.floor)
        return np.asarray(self.weight * np.clip(log_ratios, -limit, limit), dtype=np.float64)


class PlaceModel(msgspec.Struct, frozen=True):
    """What answers with a place need."""

    prior: "PlacePrior"
    rule: PlaceRule
    conformal: ConformalTable | None
    """For candidate sets, fitted on calibration plants with their places."""

    def log_ratios(self, where: Where) -> Doubles | None:
        """Returns the log ratios of all taxa, shape (T,); None if the records do not tell taxa apart there."""
        log_ratio_T = self.prior.log_ratios(where)
        return log_ratio_T if np.ptp(log_ratio_T) > _ROUNDING else None


class CellCounts(msgspec.Struct, frozen=True):
    """Records of each taxon in each cell of one size; only cells with records are listed."""

    cell_C: npt.NDArray[np.int32]
    """Numbers of the cells, ascending."""
    start_C: Integers
    """Where the entries of each cell begin."""
    taxon_E: npt.NDArray[np.int32]
    """Taxon of each entry."""
    count_E: npt.NDArray[np.int32]
    """Its records in the cell."""

    def of(self, cell: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Returns the taxa of a cell and their records."""
        at = int(np.searchsorted(self.cell_C, cell))
        if at == len(self.cell_C) or self.cell_C[at] != cell:
            return self.taxon_E[:0], self.count_E[:0]
        end = int(self.start_C[at + 1]) if at + 1 < len(self.start_C) else len(self.taxon_E)
        return self.taxon_E[self.start_C[at] : end], self.count_E[self.start_C[at] : end]


class PlacePrior(msgspec.Struct, frozen=True, dict=True):
    """The records."""

    levels: tuple[CellCounts, ...]
    """In the order of `SIDES_KM`."""
    month_TBM: npt.NDArray[np.int32]
    """Records of each taxon by band and month."""
    trust: float
    """Records of the cell around that weigh as much as its share; fitted."""

    @cached_property
    def counts(self) -> Integers:
        """Records of each taxon, shape (T,)."""
        finest = self.levels[0]
        return np.bincount(finest.taxon_E, finest.count_E, len(self.month_TBM)).astype(np.int64)

    def log_ratios(self, where: Where) -> Doubles:
        """Returns log(share of the records around / share of all records), shape (T,); 0 for a taxon without any."""
        known_T = self.counts > 0
        world_T = np.where(known_T, self.counts, 1) / max(self.counts.sum(), 1)
        share_T = world_T
        for level, side_km in reversed(list(zip(self.levels, SIDES_KM, strict=True))):
            taxa, counts = level.of(cell_at(where.latitude, where.longitude, side_km))
            share_T = share_T * self.trust
            share_T[taxa] += counts
            share_T /= counts.sum() + self.trust
        log_T = np.log(share_T / world_T)
        if where.day is not None:
            log_T += self._season[band_at(where.latitude), where.day.month - 1]
        return np.where(known_T, log_T * self.counts / (self.counts + _FEW), 0.0)

    def records(self, where: Where, taxon: int) -> tuple[int, int]:
        """Returns how many records of a taxon there are in the finest cell of a place, and how many of all taxa."""
        taxa, counts = self.levels[0].of(cell_at(where.latitude, where.longitude, SIDES_KM[0]))
        return int(counts[taxa == taxon].sum()), int(counts.sum())

    @cached_property
    def _season(self) -> Doubles:
        """Log of each taxon's share of a month in a band, over that of all plants there; shape (B, M, T).

        A month without any record in the band says nothing, so it has 0.
        """
        before, here, after = (np.roll(self.month_TBM, shift, axis=2) for shift in (1, 0, -1))
        smooth_TBM = _KERNEL[0] * before + _KERNEL[1] * here + _KERNEL[2] * after
        all_BM = smooth_TBM.sum(axis=0)
        all_BM /= np.maximum(all_BM.sum(axis=1, keepdims=True), 1.0)
        found_TBM = smooth_TBM + _SEASON * all_BM
        usual_TBM = (smooth_TBM.sum(axis=2, keepdims=True) + _SEASON) * all_BM
        ratio_TBM = np.divide(found_TBM, usual_TBM, out=np.ones_like(found_TBM), where=usual_TBM > 0)
        return np.ascontiguousarray(np.log(ratio_TBM).transpose(1, 2, 0))


def cell_at(latitude: float, longitude: float, side_km: float) -> int:
    """Returns the number of the cell of a place: belts of latitude, each cut into cells of nearly equal area."""
    return int(cells_at(np.array([latitude]), np.array([longitude]), side_km)[0])


def cells_at(latitude_N: npt.NDArray[np.floating], longitude_N: npt.NDArray[np.floating], side_km: float) -> Integers:
    """Returns the number of the cell of each place; -180 and 180 degrees of longitude are the same."""
    num_belts = max(round(np.pi * _RADIUS_KM / side_km), 1)
    middle = (np.arange(num_belts) + 0.5) / num_belts * np.pi - np.pi / 2
    num_columns = np.maximum(np.round(2 * np.pi * _RADIUS_KM * np.cos(middle) / side_km), 1).astype(np.int64)
    first = np.concatenate(([0], np.cumsum(num_columns)[:-1]))
    belt_N = np.clip(((np.asarray(latitude_N, np.float64) + 90) / 180 * num_belts).astype(np.int64), 0, num_belts - 1)
    turn_N = ((np.asarray(longitude_N, np.float64) + 180) % 360) / 360
    column_N = np.minimum((turn_N * num_columns[belt_N]).astype(np.int64), num_columns[belt_N] - 1)
    return first[belt_N] + column_N


def band_at(latitude: float) -> int:
    """Returns 0 north of the tropics, 1 within, 2 south: the seasons of a plant differ among these."""
    return 0 if latitude > _TROPIC else 2 if latitude < -_TROPIC else 1


def write_place(path: Path, prior: PlacePrior) -> None:
    """Writes the part."""
    arrays: dict[str, Any] = {
        f"{number}/{name}": getattr(level, name)
        for number, level in enumerate(prior.levels)
        for name in CellCounts.__struct_fields__
    }
    np.savez_compressed(path, allow_pickle=False, month_TBM=prior.month_TBM, trust=np.array(prior.trust), **arrays)


def read_place(path: Path, num_taxa: int) -> PlacePrior:
    """Reads the part.

    Raises:
        BundleError: It cannot be read, or does not belong to a taxonomy of so many taxa.
    """
    file = read_arrays(path)
    try:
        levels = tuple(
            CellCounts(**{name: file[f"{number}/{name}"] for name in CellCounts.__struct_fields__})
            for number in range(len(SIDES_KM))
        )
        prior = PlacePrior(levels, file["month_TBM"], float(file["trust"]))
    except (KeyError, ValueError, TypeError) as error:
        raise BundleError.unreadable(path, error) from error
    if not _is_sound(prior, num_taxa):
        raise BundleError.unreadable(path, f"its tables do not fit together or to {num_taxa} taxa")
    return prior


def _is_sound(prior: PlacePrior, num_taxa: int) -> bool:
    """Whether an index or a count of the tables can lead to an error or a wrong number."""
    months = prior.month_TBM
    if months.shape != (num_taxa, 3, 12) or months.dtype.kind != "i" or months.min(initial=0) < 0:
        return False
    if not (np.isfinite(prior.trust) and prior.trust > 0):
        return False
    for level in prior.levels:
        arrays = [getattr(level, name) for name in CellCounts.__struct_fields__]
        if any(array.ndim != 1 or array.dtype.kind != "i" for array in arrays):
            return False
        if len(level.cell_C) != len(level.start_C) or len(level.taxon_E) != len(level.count_E):
            return False
        edges = np.concatenate((level.start_C, [len(level.taxon_E)]))
        if edges[0] != 0 or (np.diff(edges) <= 0).any() or (np.diff(level.cell_C) <= 0).any():
            return False
        if level.taxon_E.min(initial=0) < 0 or level.taxon_E.max(initial=-1) >= num_taxa:
            return False
        if (level.count_E < 1).any():
            return False
    return True
