"""Drawings of an evaluation: the learning curves of a run, and sheets of mistakes and of suspect labels.

Each wrongly identified picture stands beside a training picture of the taxon that was named. The sheets contain
pictures of the data set, so the licenses of the pictures apply to them.
"""

import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from PIL import Image, ImageDraw, ImageFont, ImageOps
from scipy.signal import lfilter

from models.errors import DataError, PictureError
from models.metrics import confusion_pairs
from models.outputs import Predictions
from models.preprocess import in_srgb, read_picture
from models.ranking import Floats
from training.dataset.manifest import Manifest
from training.loading.storage import PictureStore
from training.monitor.log import Event, read_log, without_repeats

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
_MAX_POINTS: Final = 4000  # more points are not visible in a picture 1,500 px wide
_SMOOTHED_SHARE: Final = 0.03  # share of the losses that a smoothed one averages
# Okabe and Ito (2008): safe for color-blind readers.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_STYLE: Final[Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": ["DejaVu Sans"],  # part of matplotlib
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
}

_TITLES: Final = (
    "training loss (thin: as read; thick: smoothed)",
    "validation top-1 with its 95 % interval",
    "learning rate",
    "pictures/s",
)

Cell = tuple[str, int]
"""A caption and the row of its picture, or `_NONE`."""


def learning_curves(folder: Path) -> bytes:
    """Draws loss, validation top-1, learning rates and speed of a run over its optimizer steps, as a PNG file.

    Steps that were repeated after a restart are left out.

    Raises:
        DataError: The folder holds no log.
    """
    events = without_repeats(read_log(folder))
    readings = [event for event in events if event["event"] == "losses"]
    epochs = [event for event in events if event["event"] == "epoch"]
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(11, 7), layout="constrained")
        losses, top1, learning_rates, speed = figure.subplots(2, 2, sharex=True).flat
        all_steps, all_losses = loss_curve(readings)
        finite = np.isfinite(all_losses)
        steps = all_steps[finite]
        known = all_losses[finite]
        thin = slice(None, None, -(-len(known) // _MAX_POINTS) or 1)
        losses.plot(steps[thin], known[thin], color=_COLORS[0], alpha=0.3, linewidth=0.6)
        line = smoothed(known, _SMOOTHED_SHARE * len(known))
        losses.plot(steps[thin], line[thin], color=_COLORS[0], linewidth=1.8)
        if not finite.all():  # crosses at the bottom of the panel
            bad = all_steps[~finite]
            foot = losses.get_xaxis_transform()
            losses.plot(bad, np.full(len(bad), 0.02), "x", color=_COLORS[1], transform=foot, label="not finite")
        validated = [event for event in epochs if "validation" in event]
        steps = _floats(validated, "step")
        shares = [event["validation"]["top1"] for event in validated]
        bounds = np.array([share["interval_95"] for share in shares], dtype=np.float64).reshape(-1, 2)
        top1.fill_between(steps, *bounds.T, color=_COLORS[0], alpha=0.2, linewidth=0)
        top1.plot(steps, [share["value"] for share in shares], color=_COLORS[0], marker="o", markersize=3)
        top1.yaxis.set_major_formatter(PercentFormatter(1))
        named = [event["lr"] for event in readings]
        for color, name in zip(_COLORS, dict.fromkeys(name for lr in named for name in lr), strict=False):
            values = [lr.get(name, np.nan) for lr in named]
            learning_rates.plot(_floats(readings, "step"), values, color=color, label=name)
        speed.plot(_floats(epochs, "step"), _floats(epochs, "pictures_per_s"), color=_COLORS[0], marker="o")
        speed.set_ylim(bottom=0)
        for axes, title in zip(figure.axes, _TITLES, strict=True):
            axes.set_title(title, loc="left")
            if axes.get_legend_handles_labels()[0]:
                axes.legend()
        for axes in (learning_rates, speed):
            axes.set_xlabel("optimizer step")
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=140)
    return file.getvalue()


def smoothed(values: Floats, over: float) -> Floats:
    """An exponential moving average of finite values, over about so many, without bias toward its start."""
    keep = 1 - 1 / max(over, 1.0)
    weighed = lfilter([1 - keep], [1, -keep], values)
    return np.asarray(weighed / (1 - keep ** np.arange(1, len(values) + 1)))


def loss_curve(readings: Sequence[Event]) -> tuple[Floats, Floats]:
    """Spreads the losses of each reading over the steps since the previous reading.

    Returns the position of each micro-batch in optimizer steps, and its loss; NaN if it was not finite.
    """
    places = [np.empty(0)]
    before = 0
    for event in readings:
        number = len(event["losses"])
        places.append(before + (event["step"] - before) * np.arange(1, number + 1) / max(number, 1))
        before = event["step"]
    # The log has null for a value that is not finite.
    losses = [np.nan if loss is None else loss for event in readings for loss in event["losses"]]
    return np.concatenate(places), np.array(losses, dtype=np.float64)


def _floats(events: Sequence[Event], key: str) -> Floats:
    return np.array([event[key] for event in events], dtype=np.float64)


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
