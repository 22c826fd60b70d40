import io
import random

import numpy as np
import pytest
from PIL import Image

from models.errors import InputError
from tests.training.dataset.report.sample_report import CROCUS, IRIS, NAMES, PICTURES, ROSE, picture, taxonomy
from training.dataset.report import contact_sheets
from training.dataset.report.sheets import choose_for_sheet, contact_sheet_jpeg


def plain(path, color, size=(90, 60), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, color).save(path, **options)
    return path


def opened(jpeg):
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB")).astype(int)


def test_pictures_fill_the_rows_in_their_order(tmp_path):
    colors = ["red", "lime", "blue"]
    files = [(color, plain(tmp_path / f"{color}.png", color)) for color in colors]
    sheet = opened(contact_sheet_jpeg(files, columns=2, cell_px=64))
    height, width = sheet.shape[:2]
    middles = [sheet[32, width // 4], sheet[32, 3 * width // 4], sheet[height // 2 + 32, width // 4]]
    assert [int(middle.argmax()) for middle in middles] == [0, 1, 2]
    assert sheet[height // 2 + 32, 3 * width // 4].min() > 240  # nothing in the fourth place


def test_a_deleted_file_leaves_its_cell_empty(tmp_path):
    there = plain(tmp_path / "there.png", "red")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"<!doctype html>")
    sheet = opened(contact_sheet_jpeg([("a", tmp_path / "gone.jpg"), ("b", broken), ("c", there)], 3, 64))
    gone, torn, red = (sheet[32, round(sheet.shape[1] * place)] for place in (1 / 6, 3 / 6, 5 / 6))
    assert np.ptp(gone) < 40
    assert np.abs(gone - torn).max() < 8
    assert red[0] - red[1] > 200


def test_a_rotated_phone_photo_is_upright_on_the_sheet(tmp_path):
    photo = Image.new("RGB", (64, 64), "red")
    photo.paste("blue", (0, 32, 64, 64))  # below; orientation 3 turns it upside down
    exif = Image.Exif()
    exif[0x0112] = 3
    photo.save(tmp_path / "phone.jpg", exif=exif)
    sheet = opened(contact_sheet_jpeg([("", tmp_path / "phone.jpg")], 1, 64))
    assert sheet[20, 38].argmax() == 2
    assert sheet[60, 38].argmax() == 0


def test_a_long_name_stays_below_its_own_picture(tmp_path):
    file = plain(tmp_path / "a.png", "white")
    alone = opened(contact_sheet_jpeg([("Rosa × alba " * 20, file), ("", file)], 2, 64))
    caption = alone[70:, :]
    half = caption.shape[1] // 2
    assert caption[:, :half].min() < 120
    assert caption[:, half + 3 :].min() > 200


def test_a_hybrid_sign_is_drawn_as_itself(tmp_path):
    file = plain(tmp_path / "a.png", "white")
    shown = {text: contact_sheet_jpeg([(text, file)], 1, 64) for text in ("×", "\u0378")}  # no letter has that number
    assert shown["×"] != shown["\u0378"]


def test_no_pictures_make_no_sheet():
    with pytest.raises(InputError, match="at least one picture"):
        contact_sheet_jpeg([])


def test_a_sheet_shows_as_many_classes_as_it_has_room_for():
    many = [picture(f"{key}/{number}.jpg", f"wild:{key}") for key in range(50) for number in range(20)]
    assert len({each.label for each in choose_for_sheet(many, 0, 24)}) == 24
    few = choose_for_sheet(many[:60], 0, 24)
    assert len({each.picture_id for each in few}) == 24
    assert [sum(each.label == f"wild:{key}" for each in few) for key in range(3)] == [8, 8, 8]
    assert len(choose_for_sheet(many[:5], 0, 24)) == 5


def test_the_choice_depends_on_the_seed_and_not_on_the_order():
    many = [picture(f"{key}/{number}.jpg", f"wild:{key}") for key in range(50) for number in range(20)]
    shuffled = random.Random(0).sample(many, len(many))
    assert choose_for_sheet(many, 0, 24) == choose_for_sheet(shuffled, 0, 24)
    assert choose_for_sheet(many, 0, 24) != choose_for_sheet(many, 1, 24)


def test_every_source_with_pictures_has_its_sheet(tmp_path):
    roots = {name: tmp_path / name for name in ("wild", "house", "empty")}
    for each in PICTURES:
        plain(roots[each.source] / each.record.path, {ROSE: "red", IRIS: "lime", CROCUS: "blue"}[each.label])
    sheets = contact_sheets(PICTURES, roots, taxonomy(), seed=0)
    assert set(sheets) == {"wild", "house"}
    assert opened(sheets["house"])[80, 80].argmax() == 2
    assert contact_sheets(PICTURES, roots, taxonomy(NAMES), seed=0) == sheets
