"""Contact sheets: a few dozen pictures of each source with their names, for a check by eye."""

import hashlib
import io
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont, ImageOps

from models.errors import InputError, PictureError
from models.preprocess import read_picture
from models.taxonomy import Taxonomy
from training.dataset.sources.record import LabeledPicture

_NUM_PICTURES: Final = 32
_COLUMNS: Final = 8
_CELL_PX: Final = 160
_GAP_PX: Final = 6
_FONT_PX: Final = 12
_CAPTION_PX: Final = 20
_QUALITY: Final = 82
_PAPER, _EMPTY, _INK = "#fffefa", "#d9d8c6", "#1e2a21"


def contact_sheets(
    pictures: Sequence[LabeledPicture], roots: Mapping[str, Path], taxonomy: Taxonomy, seed: int
) -> dict[str, bytes]:
    """Draws one sheet for each source.

    Args:
        pictures: The pictures of all sources.
        roots: Source -> folder that its paths are relative to.
        taxonomy: Gives the names of the classes.
        seed: Seed of the random choice of pictures.

    Returns:
        Source -> JPEG; a source without pictures has no sheet.
    """
    taxa = (taxonomy.taxa[position].scientific_name for position in taxonomy.taxon_of_output)
    names = dict(zip(taxonomy.output_keys, taxa, strict=True))
    by_source: dict[str, list[LabeledPicture]] = {source: [] for source in roots}
    for picture in pictures:
        by_source[picture.source].append(picture)
    chosen = {source: choose_for_sheet(own, seed, _NUM_PICTURES) for source, own in by_source.items() if own}
    return {
        source: contact_sheet_jpeg([(names[each.label], roots[source] / each.record.path) for each in shown])
        for source, shown in chosen.items()
    }


def choose_for_sheet(pictures: Sequence[LabeledPicture], seed: int, number: int) -> list[LabeledPicture]:
    """Chooses pictures of as many classes as possible; the choice does not depend on their order.

    Returns:
        At most `number` pictures, sorted by class.
    """
    labels = sorted({picture.label for picture in pictures}, key=lambda label: _random_key(seed, label))[:number]
    of_label: dict[str, list[LabeledPicture]] = {label: [] for label in labels}
    for picture in pictures:
        if picture.label in of_label:
            of_label[picture.label].append(picture)
    for own in of_label.values():
        own.sort(key=lambda picture: _random_key(seed, picture.picture_id))
    rounds = zip_longest(*(own[:number] for own in of_label.values()))
    chosen = [picture for picture in chain.from_iterable(rounds) if picture is not None][:number]
    return sorted(chosen, key=lambda picture: (picture.label, picture.picture_id))


def contact_sheet_jpeg(files: Sequence[tuple[str, Path]], columns: int = _COLUMNS, cell_px: int = _CELL_PX) -> bytes:
    """Draws pictures in a grid, each with its caption below.

    Args:
        files: Caption and picture file of each cell. The cell of an unreadable file stays empty.
        columns: Maximum number of pictures in a row.
        cell_px: Width and height that each picture is cropped to.

    Returns:
        A JPEG file.

    Raises:
        InputError: `files` is empty.
    """
    if not files:
        raise InputError("a contact sheet needs at least one picture", remedy="pass at least one")
    columns = min(columns, len(files))
    rows = -(-len(files) // columns)
    across, down = cell_px + _GAP_PX, cell_px + _CAPTION_PX + _GAP_PX
    sheet = Image.new("RGB", (columns * across + _GAP_PX, rows * down + _GAP_PX), _PAPER)
    pen, font = ImageDraw.Draw(sheet), _font()
    for position, (caption, path) in enumerate(files):
        corner = (position % columns * across + _GAP_PX, position // columns * down + _GAP_PX)
        sheet.paste(_cell(path, cell_px), corner)
        place = (corner[0], corner[1] + cell_px + 2)
        pen.text(place, _shortened(caption, pen, font, cell_px), fill=_INK, font=font)
    file = io.BytesIO()
    sheet.save(file, "JPEG", quality=_QUALITY, optimize=True)
    return file.getvalue()


def _cell(path: Path, side_px: int) -> Image.Image:
    """Returns the center of a picture, or an empty cell if the file can no longer be read."""
    try:
        picture = read_picture(path.read_bytes(), min_side_px=side_px)
    except (OSError, PictureError):
        return Image.new("RGB", (side_px, side_px), _EMPTY)
    return ImageOps.fit(picture.image, (side_px, side_px))


def _font() -> ImageFont.FreeTypeFont:
    """Returns DejaVu Sans from matplotlib: Pillow's font has no × for hybrids."""
    import matplotlib as mpl

    return ImageFont.truetype(Path(mpl.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", _FONT_PX)


def _shortened(text: str, pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, width_px: int) -> str:
    """Cuts a text to a width, with an ellipsis."""
    text = " ".join(text.split())
    if pen.textlength(text, font) <= width_px:
        return text
    while text and pen.textlength(f"{text}…", font) > width_px:
        text = text[:-1].rstrip()
    return f"{text}…"


def _random_key(seed: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed}/sheet/{name}".encode(errors="backslashreplace")).digest()
