"""Short names of the NumPy arrays that functions take and give; letters at the end of a variable say the shape."""

import numpy as np
import numpy.typing as npt

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Positions = npt.NDArray[np.intp]
"""Indices into a list, such as that of the taxa."""
