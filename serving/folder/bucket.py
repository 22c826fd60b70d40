"""Object stores, through fsspec."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

from models.errors import DataError


def is_bucket(address: str) -> bool:
    """Returns whether an address has a scheme, such as s3://, and is no folder."""
    return "://" in address


def open_bucket(url: str) -> tuple[Any, str]:
    """Returns the file system of an address such as s3://bucket/photographs, and the path in it.

    Raises:
        DataError: The package for this kind of address is not installed.
    """
    try:
        # Other machines write too, so that a listing is old at once; and one of millions fills the memory.
        files, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise DataError(
            "this kind of address cannot be opened", value=url, limit=str(error), remedy="install the package"
        ) from error
    return files, root


@contextmanager
def errors_of_stores() -> Iterator[None]:
    """Turns what the packages of stores raise, such as botocore's NoCredentialsError, into OSError."""
    try:
        yield
    except (OSError, DataError):
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
