"""Short names of the NumPy arrays that functions take and give; letters at the end of a variable say the shape.

Also holds arrays of one length together, and reads the arrays of a bundle.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from models.errors import BundleError

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]
"""Indices into a list, such as that of the taxa."""


class Columns(msgspec.Struct, frozen=True):
    """Arrays with a row for each picture; a column that is not there is None."""

    def subset(self, chosen: Flags | Positions | slice) -> Self:
        """Returns the rows of some of the pictures."""
        columns = (getattr(self, name) for name in self.__struct_fields__)
        return type(self)(*(None if each is None else each[chosen] for each in columns))

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Returns the rows of all parts, of which there is at least one."""
        columns = zip(*(msgspec.structs.astuple(part) for part in parts), strict=True)
        return cls(*(None if each[0] is None else np.concatenate(each) for each in columns))


_MAX_BYTES: Final = 500_000_000  # of all arrays together; the tables of 5,337 taxa take a tenth


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Reads the arrays of an `.npz` file by their names, without unpickling anything; a BundleError if it cannot."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            num_bytes = sum(member.file_size for member in file.zip.infolist())
            if num_bytes > _MAX_BYTES:
                raise ValueError(f"{num_bytes:,} bytes of arrays, where {_MAX_BYTES:,} are allowed")
            arrays = {name: file[name] for name in file.files}
            if not all(isinstance(array, np.ndarray) for array in arrays.values()):
                raise TypeError("not every member is an array")
            return arrays
    except Exception as error:  # zipfile, zlib and NumPy raise a dozen types; a shape of 800 GB raises MemoryError
        raise BundleError.unreadable(path, error) from error
