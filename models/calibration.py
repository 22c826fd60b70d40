"""The part `calibration` of a bundle: what turns logits and features into answers, fitted on calibration pictures.

It is one `.npz` file of plain arrays, named `precision/table/field`, so that it is read without unpickling anything.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec
import numpy as np

from models.candidates import ConformalTable
from models.errors import BundleError, DataError
from models.rejection import FamiliarityTable, FeatureTable, PlantHead
from models.verdict import Probability

CALIBRATION_PART: Final = "calibration"
CALIBRATION_FILE: Final = "calibration.npz"


_Table = TypeVar("_Table", bound=msgspec.Struct)


class Cutoffs(msgspec.Struct, frozen=True):
    """Scores below which the verdict names no plant."""

    plant: Probability = 0.0
    """Least score of `PlantHead` for a plant, which 95 % of the calibration plants or more reach; 0 accepts all."""
    familiar: Probability = 0.0
    """Least score of `FamiliarityTable` for a plant that the network knows, which 85 to 95 % of the calibration plants
    reach (`familiar_cutoff`); 0 accepts every picture."""


class FittedOn(msgspec.Struct, frozen=True):
    """The pictures that the tables of a network were fitted on."""

    data: str
    """Data and split, in words."""
    date: str
    """Day of the fit, UTC, ISO 8601."""
    num_plants: int
    """Number of calibration plants; pictures of one plant count once."""
    num_pictures: int
    """Number of calibration pictures."""
    num_negatives: int = 0
    """Number of pictures without a plant that the plant head was fitted on."""


class Calibration(msgspec.Struct, frozen=True):
    """The tables of one network file; those that were not fitted are None.

    `features` is needed by `familiarity` and `plant_head`.
    """

    conformal: ConformalTable | None = None
    features: FeatureTable | None = None
    familiarity: FamiliarityTable | None = None
    plant_head: PlantHead | None = None
    cutoffs: Cutoffs | None = None
    fitted_on: FittedOn | None = None


def write_calibration(path: Path, calibrations: Mapping[str, Calibration]) -> None:
    """Writes the tables of all network files of a bundle."""
    arrays: dict[str, Any] = {
        f"{precision}/{table}/{field}": np.asarray(getattr(values, field))
        for precision, calibration in calibrations.items()
        for table in Calibration.__struct_fields__
        if (values := getattr(calibration, table)) is not None
        for field in values.__struct_fields__
    }
    np.savez(path, allow_pickle=False, **arrays)


def read_calibration(path: Path) -> dict[str, Calibration]:
    """Reads the tables of all network files of a bundle.

    Raises:
        BundleError: The file cannot be read, or a table lacks a field, contradicts itself or has a value that it cannot
            have. Unknown tables and fields are ignored.
    """
    with _opened(path) as file:
        arrays = {name: file[name] for name in file.files}
    found: dict[Any, dict[str, dict[str, Any]]] = {}
    for name, array in arrays.items():
        precision, table, field = name.split("/", 2) if name.count("/") == 2 else (name, "", "")
        found.setdefault(precision, {}).setdefault(table, {})[field] = array if array.ndim else array.item()
    try:
        return {precision: _calibration(tables) for precision, tables in found.items()}
    except (msgspec.ValidationError, DataError) as error:
        raise BundleError.unreadable(path, error) from error


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            yield file
    except (OSError, EOFError, ValueError, TypeError, zipfile.BadZipFile) as error:  # TypeError: a single array
        raise BundleError.unreadable(path, error) from error


def _calibration(tables: dict[str, dict[str, Any]]) -> Calibration:
    kinds = {table: get_args(hint)[0] for table, hint in get_type_hints(Calibration).items()}
    return Calibration(**{table: _table(kinds[table], tables[table]) for table in kinds.keys() & tables.keys()})


def _table(kind: type[_Table], fields: dict[str, Any]) -> _Table:
    """Makes a table of finite numbers; the letters after an array's name are its shape, and say which lengths agree.

    Raises:
        DataError: A number is not finite, an array is empty, or its shape is another.
        msgspec.ValidationError: A field is missing, or has another type or a value that it cannot have.
    """
    known = {name: fields[name] for name in kind.__struct_fields__ if name in fields}
    table, sizes = msgspec.convert(known, kind, dec_hook=_array), dict[str, int]()
    for name, value in known.items():
        letters = name.rpartition("_")[2] if isinstance(value, np.ndarray) else ""
        if not isinstance(value, str) and not np.isfinite(value).all():
            raise DataError(f"a number of {name} is not finite")
        if len(letters) != np.ndim(value) or not all(
            sizes.setdefault(letter, size) == size > 0 for letter, size in zip(letters, np.shape(value), strict=True)
        ):
            raise DataError(f"the shape of {name} does not fit its table", value=np.shape(value), limit=str(sizes))
    return table


def _array(kind: Any, value: object) -> object:
    """Returns an array, if its numbers are of the kind that the field has."""
    (number,) = get_args(get_args(kind)[1])
    if isinstance(value, np.ndarray) and not np.can_cast(value.dtype, number, "same_kind"):
        raise ValueError(f"Expected `{number.__name__}`, got `{value.dtype}`")
    return value
