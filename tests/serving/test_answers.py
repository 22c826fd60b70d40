"""Answers to valid requests."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from models.preprocess import InputSpec
from tests.serving.tiny import (
    BLUE,
    GREEN,
    RED,
    SIDE_PX,
    TAXA,
    TAXONOMY,
    WEIGHTS,
    assert_problem,
    draw,
    encode,
    identify,
    jpeg,
    place_weights,
    scores,
)

SPEC = InputSpec(height=SIDE_PX, width=SIDE_PX, train_px=SIDE_PX)


def scores_of(*inputs):
    """The scores of network inputs."""
    logits = np.mean([(pixels * place_weights()).sum(axis=(1, 2)) @ WEIGHTS for pixels in inputs], axis=0)
    shares = np.exp(logits) / np.exp(logits).sum()
    found = dict.fromkeys((taxon.taxon_id for taxon in TAXA), 0.0)
    for output, share in zip(TAXONOMY.outputs, shares, strict=True):
        found[output.taxon_id] += float(share)
    return found


def test_a_preview_shows_what_the_network_saw_with_each_corner_in_its_place(client):
    colors = np.array([[RED, GREEN], [BLUE, (230, 230, 20)]], np.uint8)
    photograph = encode(Image.fromarray(colors.repeat(64, axis=0).repeat(64, axis=1)), "PNG")
    kind, _, content = identify(client, photograph, preview="true")["images"][0]["preview"].partition(",")
    assert kind == "data:image/webp;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as preview:
        assert (preview.format, preview.size) == ("WEBP", (SIDE_PX, SIDE_PX))
        corners = np.asarray(preview)[:: SIDE_PX - 1, :: SIDE_PX - 1]
    assert np.abs(corners.astype(int) - colors).max() < 40
    assert_problem(client.post("/identify?preview=maybe", content=jpeg()), 422, "bad_parameter")


def patches(size=(72, 48)):
    """A picture without any symmetry: green, with a blue patch in its lower left and a red one in its lower right."""
    width, height = size
    picture = draw(GREEN, size)
    picture.paste(BLUE, (width // 5, height // 2, width // 2, height))
    picture.paste(RED, (width * 3 // 5, height // 2, width * 4 // 5, height))
    return picture


def test_answer_is_that_of_the_upright_center_of_the_picture(client):
    # Pillow's own crop, since this one falls on whole pixels; mean and deviation are ImageNet's.
    center = np.asarray(patches((72, 64)).crop((4, 0, 68, 64)).resize((SIDE_PX, SIDE_PX), Image.Resampling.BICUBIC))
    pixels = (center / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    expected = scores_of(pixels.transpose(2, 0, 1))
    # Rounding at the edges of the crop, where Pillow's filter sees pixels outside of it, changes little.
    assert scores(identify(client, encode(patches((72, 64)), "PNG"))) == pytest.approx(expected, abs=0.01)


def test_turned_phone_photo_is_answered_like_the_upright_one_and_unlike_the_turned_one(client):
    upright, exif = patches(), Image.Exif()
    turned = upright.transpose(Image.Transpose.ROTATE_90)
    exif[0x0112] = 6  # what a camera stores for that (CIPA DC-008, tag 274)
    answer = identify(client, encode(turned, "PNG", exif=exif))
    assert (answer["images"][0]["width"], answer["images"][0]["height"]) == upright.size
    assert scores(answer) == pytest.approx(scores(identify(client, encode(upright, "PNG"))), abs=1e-6)
    assert scores(answer) != pytest.approx(scores(identify(client, encode(turned, "PNG"))), abs=0.05)
