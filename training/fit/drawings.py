"""Drawings of an evaluation: sheets of mistakes and of suspect labels.

Each wrongly identified picture stands beside a training picture of the taxon that was named. The sheets contain
pictures of the data set, so the licenses of the pictures apply to them.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from models.errors import DataError, PictureError
from models.metrics import confusion_pairs
from models.outputs import Predictions
from models.preprocess import in_srgb, read_picture
from training.dataset.manifest import Manifest
from training.loading.storage import PictureStore

SHEETS: Final = ("confusions.jpg", "surest-mistakes.jpg")
"""The files that `draw_mistakes` can return."""
_COLUMNS: Final = 4
_CELL_PX: Final = 288  # leaves room for a long name and a score below the picture
_MAX_PAIRS: Final = 12
_MAX_SUREST: Final = 24
_MAX_SUSPECTS: Final = 50
_NONE: Final = -1  # an empty cell
_GAP_PX: Final = 6
_FONT_PX: Final = 12
_CAPTION_PX: Final = 20
_QUALITY: Final = 82  # of the sheets
_PAPER = "#fffefa"
_EMPTY = "#d9d8c6"
_INK = "#1e2a21"

Cell = tuple[str, int]
"""A caption and the row of its picture, or `_NONE`."""


def draw_mistakes(found: Predictions, manifest: Manifest) -> dict[str, bytes]:
    """Draws the most frequent confusions and the most confident mistakes of a split.

    Returns a JPEG file for each name of `SHEETS`; nothing if there are no mistakes.
    """
    if found.hits.all():
        return {}
    sheet = _Sheet(found, manifest)
    return {"confusions.jpg": sheet.jpeg(sheet.confusions()), "surest-mistakes.jpg": sheet.jpeg(sheet.surest())}


def draw_suspects(suspects: Predictions, manifest: Manifest) -> bytes:
    """Draws the first 50 suspects, at least one, each beside a training picture of the suggested taxon; a JPEG file."""
    sheet = _Sheet(suspects, manifest)
    return sheet.jpeg(sheet.pairs(range(min(len(suspects.rows), _MAX_SUSPECTS))))


class _Sheet:
    """Chooses pictures and draws them with their captions."""

    def __init__(self, found: Predictions, manifest: Manifest) -> None:
        self._manifest = manifest
        self._rows = found.rows
        self._right_N = found.taxon_labels_N
        self._named_N = found.named_N
        self._score_N = found.confidence_N
        self._surest_first = np.argsort(-self._score_N, kind="stable").tolist()
        self._names = [taxon.scientific_name for taxon in manifest.taxonomy.taxa]
        self._trained = manifest.rows_of("train") if manifest.has("train") else np.zeros(0, np.int64)
        self._trained = np.setdiff1d(self._trained, found.rows[~found.hits])  # a suspect is no example
        self._trained_taxa = manifest.taxonomy.taxon_of_output[manifest.labels[self._trained]]

    def confusions(self) -> list[Cell]:
        """One row per pair: the most confident mistakes, then training pictures of the predicted taxon."""
        cells: list[Cell] = []
        for right, named, count in confusion_pairs(self._named_N, self._right_N, _MAX_PAIRS):
            ours = (self._right_N == right) & (self._named_N == named)
            mistakes = [at for at in self._surest_first if ours[at]][: _COLUMNS - 1]
            cells += [self._mistake(at) for at in mistakes]
            caption = f"{count} × taken for {self._names[named]}"
            cells += [(caption, row) for row in self._examples(named)][: _COLUMNS - len(mistakes)]
            cells += [("", _NONE)] * (-len(cells) % _COLUMNS)
        return cells

    def surest(self) -> list[Cell]:
        """The pairs of the most confident mistakes."""
        return self.pairs([at for at in self._surest_first if self._named_N[at] != self._right_N[at]][:_MAX_SUREST])

    def pairs(self, mistakes: Iterable[int]) -> list[Cell]:
        """Pairs of pictures: a mistake, and a training picture of the predicted taxon."""
        cells: list[Cell] = []
        for at in mistakes:
            named = int(self._named_N[at])
            cells += [self._mistake(at), (f"taken for {self._names[named]}", self._examples(named)[0])]
        return cells

    def jpeg(self, cells: Sequence[Cell]) -> bytes:
        """The pictures in a grid; the cell of a picture that cannot be read stays empty."""
        store = PictureStore(self._manifest)
        columns = min(_COLUMNS, len(cells))
        rows = -(-len(cells) // columns)
        across = _CELL_PX + _GAP_PX
        down = _CELL_PX + _CAPTION_PX + _GAP_PX
        sheet = Image.new("RGB", (columns * across + _GAP_PX, rows * down + _GAP_PX), _PAPER)
        pen = ImageDraw.Draw(sheet)
        # DejaVu Sans of matplotlib: Pillow's font has no × for hybrids.
        font = ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", _FONT_PX)
        for position, (caption, row) in enumerate(cells):
            left = position % columns * across + _GAP_PX
            top = position // columns * down + _GAP_PX
            picture = Image.new("RGB", (_CELL_PX, _CELL_PX), _EMPTY)
            if row != _NONE:
                with suppress(DataError, PictureError):
                    read = read_picture(store.read(row), min_side_px=_CELL_PX)
                    picture = in_srgb(ImageOps.fit(read.image, (_CELL_PX, _CELL_PX)))
            sheet.paste(picture, (left, top))
            text = " ".join(caption.split())
            while text not in {"", "…"} and pen.textlength(text, font) > _CELL_PX:
                text = text.removesuffix("…")[:-1].rstrip() + "…"
            pen.text((left, top + _CELL_PX + 2), text, fill=_INK, font=font)
        file = io.BytesIO()
        sheet.save(file, "JPEG", quality=_QUALITY, optimize=True)
        return file.getvalue()

    def _mistake(self, at: int) -> Cell:
        return f"{self._score_N[at]:.0%} sure: labeled {self._names[self._right_N[at]]}", int(self._rows[at])

    def _examples(self, taxon: int) -> list[int]:
        """The first training pictures of a taxon, enough for a row, or an empty cell."""
        return self._trained[self._trained_taxa == taxon][: _COLUMNS - 1].tolist() or [_NONE]
