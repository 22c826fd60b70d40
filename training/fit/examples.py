"""Chooses the reference pictures of a bundle, from training pictures or a list, whose license allows to show them.

Letters in names: N pictures, F features, K chosen pictures of a taxon
"""

import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from models.calibration import unit_length
from models.errors import DataError, PictureError
from models.examples import Example
from models.metrics import Whole
from models.outputs import Rows
from models.preprocess import in_srgb, read_picture
from models.ranking import Floats
from models.taxonomy import Taxonomy
from models.text_table import TextTable
from training.dataset.audit.licenses import license_id, may_be_shown
from training.dataset.name_table import taxon_finder
from training.fit.pictures import Pictures
from training.loading.storage import PictureStore

EXAMPLE_PX: Final = 256
"""Longest side of a reference picture."""
_LIST_COLUMNS: Final = ("path", "scientific_name", "author", "license", "source")
_QUALITY: Final = 75  # 10 to 20 kB
_TYPICAL_SHARE: Final = 0.5  # of a taxon's pictures, those nearest to the middle of their features


def example_pictures(pictures: Pictures, features_NF: Rows, most: int) -> Iterator[tuple[Example, bytes]]:
    """Yields up to `most` pictures of each taxon, small, with author and license, the most typical one first.

    Raises:
        DataError: A picture cannot be read.
        PictureError: It does not decode.
    """
    manifest = pictures.manifest
    store = PictureStore(pictures.manifest)
    table = manifest.table.select(["source", "author", "licence"]).take(pictures.rows)
    sources, authors, licenses = (table[name].to_pylist() for name in ("source", "author", "licence"))
    shown_N = np.array([may_be_shown(license_) for license_ in licenses], dtype=bool)
    for index, taxon in enumerate(manifest.taxonomy.taxa):
        of_taxon = np.flatnonzero(shown_N & (pictures.taxa == index))
        for number, place in enumerate(of_taxon[typical(features_NF[of_taxon], most)]):
            example = Example(
                taxon_id=taxon.taxon_id,
                file=f"{index:05}-{number}.webp",
                author=authors[place],
                license=licenses[place],
                source=sources[place],
            )
            yield example, _small(store.read(int(pictures.rows[place])))


def listed_pictures(path: Path, taxonomy: Taxonomy) -> Iterator[tuple[Example, bytes]]:
    """Yields the pictures of a CSV list, small, in its order, without those of other taxa.

    The columns are path (absolute, or relative to the list's folder), scientific_name, author, license and source.

    Raises:
        DataError: The list cannot be read or lacks a column, names no taxon of the taxonomy, or has a picture that
            does not decode or whose license does not allow to show it.
        OSError: A picture is missing.
    """
    position_of = taxon_finder(taxonomy)
    number = Counter[int]()
    for line, cells in TextTable(path, _LIST_COLUMNS).rows():
        index = position_of(cells["scientific_name"])
        if index is None:
            continue
        if not may_be_shown(cells["license"]):
            raise DataError(
                f"line {line} of {path} has a picture that may not be shown",
                value=f"license {cells['license']!r}",
                limit="CC0 or a Creative Commons license without ND",
                remedy="take it out of the list",
            )
        file = f"{index:05}-{number[index]}.webp"
        number[index] += 1
        example = Example(
            taxonomy.taxa[index].taxon_id, file, cells["author"], license_id(cells["license"]), cells["source"]
        )
        try:
            small = _small((path.parent / cells["path"]).read_bytes())
        except PictureError as error:
            raise DataError(
                f"line {line} of {path} has a picture that cannot be read",
                value=error,
                remedy="restore it, or take it out of the list",
            ) from error
        yield example, small
    if not number:
        raise DataError(f"{path} names no taxon of the data", remedy="write the scientific names as in the data")


def typical(features_NF: Floats, most: int) -> Whole:
    """Chooses pictures near the middle of their features and apart from each other; returns positions, shape (K,).

    The first is the nearest to the middle. Each further one is the farthest from those chosen, of the half that lies
    nearest to the middle.
    """
    if len(features_NF) == 0 or most == 0:
        return np.empty(0, dtype=np.intp)
    unit_NF = unit_length(features_NF)
    from_middle_N = np.linalg.norm(unit_NF - unit_NF.mean(axis=0), axis=1)
    order_N = np.argsort(from_middle_N, kind="stable")
    candidates = order_N[: max(most, int(np.ceil(_TYPICAL_SHARE * len(order_N))))]
    chosen = [candidates[0]]
    apart = np.full(len(candidates), np.inf)
    while len(chosen) < min(most, len(candidates)):
        apart = np.minimum(apart, np.linalg.norm(unit_NF[candidates] - unit_NF[chosen[-1]], axis=1))
        apart[np.isin(candidates, chosen)] = -1.0
        chosen.append(candidates[int(apart.argmax())])
    return np.array(chosen, dtype=np.intp)


def _small(data: bytes) -> bytes:
    image = read_picture(data, min_side_px=EXAMPLE_PX).image
    image.thumbnail((EXAMPLE_PX, EXAMPLE_PX))
    stream = io.BytesIO()
    in_srgb(image).save(stream, "WEBP", quality=_QUALITY)
    return stream.getvalue()
