"""How pictures come into the page and what it sends, in a real browser."""

import base64
import io
import re

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageFilter

from tests.serving.tiny import BLUE, RED, encode, jpeg
from tests.serving.web.examples import GENUS, SPECIES, STATES
from tests.serving.web.tab import PHOTOGRAPHS, file

DOG_ROSE = file("rose.jpg", jpeg(RED))
TRANSFER = """async (address) => {
  const transfer = new DataTransfer();
  const blob = await (await fetch(address)).blob();
  transfer.items.add(new File([blob], "rose.jpg", { type: "image/jpeg" }));
  return transfer;
}"""


def offer_a_rose(page):
    """Gives the page a picture of a rose, which is each of the two pictures of every taxon too."""
    image = {"url": "/rose.jpg", "author": "Ann", "license": "CC-BY-4.0", "source": "drawn"}
    page.route("**/species/*", lambda route: route.fulfill(json={"images": [image, image]}))
    page.route("**/rose.jpg", lambda route: route.fulfill(body=DOG_ROSE["buffer"], content_type="image/jpeg"))


def noise(size):
    """A picture that hardly compresses."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8))


def sent_pictures(body):
    """The pictures of a form that the page sent: (head of the part, bytes)."""
    boundary = body.split(b"\r\n", 1)[0]
    parts = [part.split(b"\r\n\r\n", 1) for part in body.split(boundary)[1:-1]]
    return [(head.decode(), content.removesuffix(b"\r\n")) for head, content in parts if b'name="image"' in head]


# ---- choose, drop, paste


def test_dropped_picture_is_answered(open_real_tab):
    tab = open_real_tab()
    page = tab.page
    offer_a_rose(page)
    transfer = page.evaluate_handle(TRANSFER, "/rose.jpg")  # what a browser hands over for a picture
    page.dispatch_event("body", "dragover", {"dataTransfer": transfer})
    assert page.evaluate("document.body.classList.contains('is-dropping')")
    page.dispatch_event("#dropzone", "drop", {"dataTransfer": transfer})
    assert "Rosa" in tab.answer_text()
    assert not page.evaluate("document.body.classList.contains('is-dropping')")


def test_five_pictures_are_answered_and_a_sixth_is_left_out(open_real_tab):
    tab = open_real_tab("phone")
    page = tab.page
    tab.choose(*PHOTOGRAPHS, DOG_ROSE)
    assert page.inner_text("#notice") == "1 picture left out: at most 5 are sent together."
    tab.answer_text()
    assert page.text_content(".sureness .fineprint").startswith("5 pictures")
    assert page.is_hidden("#dropzone")
    tab.assert_accessible()
    page.click("[aria-label='Remove picture 5, 5.jpg']")
    page.wait_for_selector("text=4 pictures ·", state="attached")
    assert page.is_visible("#dropzone")


# ---- other formats


def test_text_named_jpg_is_refused_in_words_for_people(open_real_tab):
    tab = open_real_tab("narrow")
    tab.choose(DOG_ROSE, file("notes.jpg", b"vm\n"))
    told = tab.problem_text()
    assert "picture 2 (notes.jpg)" in told
    assert "got text; expected JPEG, PNG, WebP, HEIC or AVIF" in told
    assert not re.search(r"\bb['\"]|\\x|\\n", told)
    assert tab.page.get_attribute(".tile--refused", "data-name") == "notes.jpg"
    tab.assert_accessible()
    tab.page.click("text=Remove picture 2")
    tab.answer_text()
    assert len(tab.page.query_selector_all(".tile")) == 1


# ---- large pictures


def photograph_of_a_phone():
    """A large JPEG, red on the left and blue on the right of its upright form, with EXIF and a place."""
    upright = Image.new("RGB", (1500, 2000), RED)
    upright.paste(BLUE, (750, 0, 1500, 2000))
    upright.paste(noise((1500, 1400)), (0, 600))
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    exif.get_ifd(ExifTags.IFD.GPSInfo)[ExifTags.GPS.GPSLatitude] = (52.0, 31.0, 12.0)
    stored = upright.transpose(Image.Transpose.ROTATE_90)  # a viewer turns it back
    return encode(stored, "JPEG", quality=95, exif=exif)


def test_large_picture_is_sent_smaller_upright_and_without_exif(open_tab):
    tab, original = open_tab(), photograph_of_a_phone()
    assert len(original) > 2_000_000
    blurred = encode(noise((400, 300)).filter(ImageFilter.GaussianBlur(3)), "JPEG")
    tab.choose(file("phone.jpg", original), PHOTOGRAPHS[0], file("blurred.jpg", blurred))
    tab.answer_text()
    assert tab.page.inner_text("#notice") == "Picture 3 looks blurred. A sharp one, in daylight, helps more."
    [(head, content), (_, small), _] = sent_pictures(tab.asked[0])
    assert 'filename="phone.jpg"' in head
    assert len(content) < len(original) / 2
    with Image.open(io.BytesIO(content)) as sent:
        assert (sent.format, sent.size) == ("JPEG", (768, 1024))
        assert len(sent.getexif()) == 0
        assert sent.getpixel((100, 100)) == pytest.approx(RED, abs=8)
        assert sent.getpixel((700, 100)) == pytest.approx(BLUE, abs=8)
    assert small == PHOTOGRAPHS[0]["buffer"]  # as it was chosen


def test_photograph_that_the_browser_cannot_show_has_a_tile_and_then_a_picture(open_tab):
    tab = open_tab("phone")
    page = tab.page
    tab.failures = [lambda route: None]  # waits
    with page.expect_request("**/identify"):
        tab.choose(file("garden.heic", b"no JPEG", "image/heic"))
    page.wait_for_selector(".tile__image--none")
    assert page.locator(".tile").bounding_box()["height"] > 40
    assert page.inner_text(".tile b") == "HEIC"
    preview = f"data:image/jpeg;base64,{base64.b64encode(DOG_ROSE['buffer']).decode()}"
    tab.answer = SPECIES | {"images": [SPECIES["images"][0] | {"preview": preview}]}
    page.click("#choice-label")
    page.fill("#choice-name", "Rosa")
    page.keyboard.press("Enter")  # asks again
    page.wait_for_selector(f".tile img[src='{preview}'][alt='picture 1, garden.heic']")
    assert b'name="preview"' in tab.asked[0]


def test_what_a_species_is_often_taken_for_has_a_picture_each_and_a_guess_has_its_own_when_asked_for(open_tab):
    tab = open_tab("narrow")
    page = tab.page
    offer_a_rose(page)
    alikes = STATES["look_alikes"]
    best, daisy, cowslip, *others = alikes["predictions"]
    best, daisy, cowslip = (each | {"num_images": 2} for each in (best, daisy, cowslip))
    tab.show(alikes | {"predictions": [best, daisy, cowslip, *others], "look_alikes": [daisy, cowslip]})
    assert page.inner_text(".alikes h3") == "Often taken for"
    page.wait_for_selector(".alikes li:nth-child(2) figure")
    assert page.eval_on_selector_all(".alikes img", "images => images.map((image) => image.alt)") == [
        "Bellis perennis",
        "Primula veris",
    ]  # the first picture of each taxon
    assert page.locator(".verdict img").first.get_attribute("alt") == "Helianthus annuus"
    names, corners = page.locator(".alikes li .candidate__name"), page.locator(".alikes li").all()
    assert names.all_inner_texts() == ["Common daisy", "Cowslip"]
    assert len({corner.bounding_box()["x"] for corner in corners[:2]}) == 2  # side by side
    assert len({corner.bounding_box()["y"] for corner in corners[:2]}) == 1
    assert page.locator(".read-on a").all_inner_texts() == ["Wikipedia", "GBIF", "POWO", "Wikipedia", "Wikipedia"]
    tab.assert_accessible()
    best, *others = GENUS["predictions"]
    tab.answer = GENUS | {"predictions": [best | {"num_images": 2}, *others]}
    tab.choose(PHOTOGRAPHS[1])
    page.wait_for_selector(".guesses")
    page.get_by_text("Compare with pictures").click()  # the others have no pictures
    page.get_by_text("Ann, CC-BY-4.0").first.wait_for()
    assert page.eval_on_selector(".reference img", "image => image.decode().then(() => image.naturalWidth)") > 0
    tab.assert_accessible()
