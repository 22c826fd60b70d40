"""Sheets of mistakes: each wrongly identified picture beside a training picture of the predicted taxon.

The sheets contain pictures of the data set, so the licenses of the pictures apply to them.
"""

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont, ImageOps

from models.errors import DataError, PictureError
from models.metrics import confusion_pairs
from models.preprocess import read_picture
from training.dataset.manifest import Manifest
from training.evaluation.predictions import Predictions
from training.loading.storage import PictureStore

SHEETS: Final = ("confusions.jpg", "surest-mistakes.jpg", "confusion-matrix.png")
"""The files that `draw_mistakes` can return."""
_COLUMNS: Final = 4
_CELL_PX: Final = 288  # leaves room for a long name and a score below the picture
_MAX_PAIRS: Final = 12
_MAX_SUREST: Final = 24
_MAX_CLASSES: Final = 20  # of the matrix; more names are not readable
_NONE: Final = -1  # an empty cell
_GAP_PX: Final = 6
_FONT_PX: Final = 12
_CAPTION_PX: Final = 20
_QUALITY: Final = 82  # of the sheets
_PAPER, _EMPTY, _INK = "#fffefa", "#d9d8c6", "#1e2a21"
_STYLE: Final[Any] = {"font.family": ["DejaVu Sans"], "font.size": 9, "text.parse_math": False}

Cell = tuple[str, int]
"""A caption and the row of its picture, or `_NONE`."""


def draw_mistakes(found: Predictions, manifest: Manifest) -> dict[str, bytes]:
    """Draws the most frequent confusions, the most confident mistakes, and the matrix of the most confused taxa.

    Args:
        found: Predictions on the pictures of a split.
        manifest: The same data.

    Returns:
        Name from `SHEETS` -> JPEG or PNG file; empty if there are no mistakes.
    """
    named_N = found.named_N
    if (named_N == found.taxon_labels_N).all():
        return {}
    sheet = _Sheet(found, manifest)
    return {
        "confusions.jpg": sheet.jpeg(sheet.confusions()),
        "surest-mistakes.jpg": sheet.jpeg(sheet.surest()),
        "confusion-matrix.png": _matrix_png(named_N, found.taxon_labels_N, sheet.names),
    }


def confusion_matrix(
    named_N: npt.NDArray[np.intp], labels_N: npt.NDArray[np.intp], most: int
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Counts the predictions for the most confused taxa.

    Args:
        named_N: Index of the predicted taxon.
        labels_N: Index of the right taxon.
        most: Maximum number of taxa.

    Returns:
        The taxa with the most mistakes, as right or as predicted taxon, in the order of the taxonomy; and how often
        each (row) was predicted as each of them (columns) or as another taxon (last column).
    """
    mistaken = Counter(np.concatenate([array[named_N != labels_N] for array in (labels_N, named_N)]).tolist())
    shown = sorted(sorted(mistaken, key=lambda taxon: (-mistaken[taxon], taxon))[:most])
    column = {taxon: position for position, taxon in enumerate(shown)}
    counts = np.zeros((len(shown), len(shown) + 1), dtype=np.int64)
    for right, named in zip(labels_N.tolist(), named_N.tolist(), strict=True):
        if right in column:
            counts[column[right], column.get(named, len(shown))] += 1
    return shown, counts


class _Sheet:
    """Chooses pictures and draws them with their captions."""

    def __init__(self, found: Predictions, manifest: Manifest) -> None:
        self._manifest, self._rows = manifest, found.rows
        self._right_N, self._named_N = found.taxon_labels_N, found.named_N
        self._score_N = found.confidence_N
        self._surest_first = np.argsort(-self._score_N, kind="stable")
        self.names = [taxon.scientific_name for taxon in manifest.taxonomy.taxa]

    def confusions(self) -> list[Cell]:
        """One row per pair: the most confident mistakes, then training pictures of the predicted taxon."""
        pairs = confusion_pairs(self._named_N, self._right_N, _MAX_PAIRS)
        examples = self._examples([named for _, named, _ in pairs])
        cells: list[Cell] = []
        for right, named, count in pairs:
            ours = (self._right_N == right) & (self._named_N == named)
            mistakes = [at for at in self._surest_first.tolist() if ours[at]][: _COLUMNS - 1]
            cells += [self._mistake(at) for at in mistakes]
            known = examples[named] or [_NONE]
            caption = f"{count} × taken for {self.names[named]}"
            cells += [(caption, row) for row in known][: _COLUMNS - len(mistakes)]
            cells += [("", _NONE)] * (-len(cells) % _COLUMNS)
        return cells

    def surest(self) -> list[Cell]:
        """Pairs of pictures: a mistake, and a training picture of the predicted taxon."""
        wrong = [at for at in self._surest_first.tolist() if self._named_N[at] != self._right_N[at]][:_MAX_SUREST]
        examples = self._examples(int(self._named_N[at]) for at in wrong)
        cells: list[Cell] = []
        for at in wrong:
            named = int(self._named_N[at])
            example = next(iter(examples[named]), _NONE)
            cells += [self._mistake(at), (f"taken for {self.names[named]}", example)]
        return cells

    def jpeg(self, cells: Sequence[Cell]) -> bytes:
        """The pictures in a grid; the cell of a picture that cannot be read stays empty."""
        store = PictureStore(self._manifest)
        pictures = []
        for caption, row in cells:
            try:
                pictures.append((caption, store.read(row) if row != _NONE else b""))
            except DataError:
                pictures.append((caption, b""))
        return contact_sheet_jpeg(pictures, _COLUMNS, _CELL_PX)

    def _mistake(self, at: int) -> Cell:
        return f"{self._score_N[at]:.0%} sure: is {self.names[self._right_N[at]]}", int(self._rows[at])

    def _examples(self, taxa: Iterable[int]) -> Mapping[int, list[int]]:
        """The first training pictures of each taxon, enough for a row."""
        if not self._manifest.has("train"):
            return {taxon: [] for taxon in taxa}
        rows = self._manifest.rows_of("train")
        taxon_of_row = self._manifest.taxonomy.taxon_of_output[self._manifest.labels[rows]]
        return {taxon: rows[taxon_of_row == taxon][: _COLUMNS - 1].tolist() for taxon in set(taxa)}


def _matrix_png(named_N: npt.NDArray[np.intp], labels_N: npt.NDArray[np.intp], names: Sequence[str]) -> bytes:
    """The confusion matrix as a heat map: colors are shares of the row, numbers count pictures."""
    shown, counts = confusion_matrix(named_N, labels_N, _MAX_CLASSES)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    rows = [names[taxon] for taxon in shown]
    file = io.BytesIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a name in another script
        figure = Figure(figsize=(4.5 + 0.4 * len(rows), 3.5 + 0.35 * len(rows)), layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=7)
        axes.set_xticks(range(len(rows) + 1), [*rows, "anything else"], rotation=60, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel("named")
        axes.set_ylabel("right")
        figure.colorbar(image, label="share of the row's pictures")
        figure.savefig(file, format="png", dpi=130)
    return file.getvalue()


def contact_sheet_jpeg(pictures: Sequence[tuple[str, bytes]], columns: int, cell_px: int) -> bytes:
    """Draws pictures in a grid, each with its caption below.

    Args:
        pictures: Caption and bytes of each picture, one or more. The cell of bytes that do not decode stays empty.
        columns: Maximum number of pictures in a row.
        cell_px: Width and height that each picture is cropped to.

    Returns:
        A JPEG file.
    """
    columns = min(columns, len(pictures))
    rows = -(-len(pictures) // columns)
    across, down = cell_px + _GAP_PX, cell_px + _CAPTION_PX + _GAP_PX
    sheet = Image.new("RGB", (columns * across + _GAP_PX, rows * down + _GAP_PX), _PAPER)
    pen = ImageDraw.Draw(sheet)
    # DejaVu Sans of matplotlib: Pillow's font has no × for hybrids.
    font = ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", _FONT_PX)
    for position, (caption, data) in enumerate(pictures):
        left, top = position % columns * across + _GAP_PX, position // columns * down + _GAP_PX
        try:
            cell = ImageOps.fit(read_picture(data, min_side_px=cell_px).image, (cell_px, cell_px))
        except PictureError:
            cell = Image.new("RGB", (cell_px, cell_px), _EMPTY)
        sheet.paste(cell, (left, top))
        text = " ".join(caption.split())
        while text not in {"", "…"} and pen.textlength(text, font) > cell_px:
            text = text.removesuffix("…")[:-1].rstrip() + "…"
        pen.text((left, top + cell_px + 2), text, fill=_INK, font=font)
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()
