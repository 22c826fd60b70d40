"""Logits and features on disk, read a few rows at a time: logits of 75,000 pictures and 5,337 outputs take 1.6 GB.

Letters in names: N pictures.
"""

import tempfile
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from models.session import NetworkOutput

_VALUES_AT_ONCE: Final = 2**18  # 2 MB as float64, which a processor's cache holds; larger chunks are slower


class Rows(Protocol):
    """Rows of float32, in memory or on disk; indexing reads them."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of rows and of columns."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, chosen: slice | npt.NDArray[np.intp], /) -> npt.NDArray[np.float32]: ...


class StoredRows:
    """Rows in a file without a name, which the system removes as soon as this process ends, however it ends.

    Args:
        folder: Where the file lies; default: the system's folder for temporary files, which may be in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115  closed with this object
        weakref.finalize(self, self._file.close)
        self.shape: tuple[int, ...] = (0, 0)

    def __len__(self) -> int:
        return self.shape[0]

    def append(self, rows: npt.NDArray[np.float32]) -> None:
        """Adds rows at the end, all of one width.

        Raises:
            OSError: They could not be written, for example as the disk is full.
        """
        try:
            left = memoryview(rows.astype(np.float32, copy=False).tobytes())
            while left:  # a full disk takes a part first
                left = left[self._file.write(left) :]
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder or tempfile.gettempdir())) from error
        self.shape = (len(self) + len(rows), rows.shape[1])

    def __getitem__(self, chosen: slice | npt.NDArray[np.intp], /) -> npt.NDArray[np.float32]:
        """Copies rows into memory. The file is mapped for this moment only, so that pages read earlier do not stay."""
        return np.array(np.memmap(self._file, np.float32, mode="r", shape=self.shape)[chosen])


class ChosenRows:
    """Some of the rows, in this order; they are read only when they are indexed."""

    def __init__(self, rows: Rows, positions: npt.NDArray[np.intp]) -> None:
        self._rows, self._positions = rows, positions
        self.shape: tuple[int, ...] = (len(positions), *rows.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, chosen: slice | npt.NDArray[np.intp], /) -> npt.NDArray[np.float32]:
        """Reads rows."""
        return self._rows[self._positions[chosen]]


class Outputs(NamedTuple):
    """What a network file says of some pictures; a `NetworkOutput` is one that lies in memory."""

    logits: Rows
    """A row for each picture, not calibrated."""
    features: Rows
    """Pooled features of the same pictures."""

    def choose(self, positions: npt.NDArray[np.intp]) -> "Outputs":
        """Returns some of the pictures, without reading them."""
        return Outputs(ChosenRows(self.logits, positions), ChosenRows(self.features, positions))


def store_outputs(batches: Iterable[NetworkOutput], folder: Path | None = None) -> Outputs:
    """Writes the outputs of a network to disk, batch by batch.

    Args:
        batches: The outputs, at least one.
        folder: See `StoredRows`.

    Raises:
        OSError: They could not be written.
    """
    logits, features = StoredRows(folder), StoredRows(folder)
    for batch in batches:
        logits.append(batch.logits)
        features.append(batch.features)
    return Outputs(logits, features)


def chunks(num_rows: int, width: int) -> Iterator[slice]:
    """Yields all rows in turn, so many at once that arrays of this width stay small."""
    step = max(_VALUES_AT_ONCE // max(width, 1), 1)
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
