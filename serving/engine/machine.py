"""The freed memory of this process."""

import ctypes
import sys


def return_freed_memory() -> None:
    """Returns the memory that was freed but that the C library keeps; does nothing where glibc is not used.

    Opening a network allocates and frees several times its size in many pieces, of which glibc keeps most for itself:
    some hundred MB after each reload. Of a large picture it kept up to 150 MB.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has no such function
        if trim is not None:
            trim(0)
