"""My plants: what the page keeps in the browser, finds, shows again, and gives to another device."""

import json

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from tests.make import from_table
from tests.serving.tiny import GREEN, RED, encode, jpeg
from tests.serving.web.examples import GENUS, SPECIES, STATES, like
from tests.serving.web.tab import ADDRESS, PHOTOGRAPHS, file

PLANTS = f"{ADDRESS}/web/plants.html"
MUNICH = {"1": "N", "2": ["48/1", "7/1", "30/1"], "3": "E", "4": ["11/1", "34/1", "0/1"]}
SYDNEY = {"1": "S", "2": ["33/1", "52/1", "0/1"], "3": "E", "4": ["151/1", "12/1", "0/1"]}


def plant(whole, date="2026-05-03T10:00:00.000Z", **changes):
    kept = {"id": "request-1", "date": date, "answer": whole, "pictures": [], "correction": None, "note": ""}
    return {**kept, "where": None, **changes}


def export_of(*plants):
    return json.dumps({"format": "botanify-plants", "version": 1, "plants": plants})


def tags(written):
    """GPS tags of EXIF data, by default those of Munich; a table writes a number as "5332358/100000"."""
    place = MUNICH | written
    rationals = {tag: tuple(IFDRational(*map(int, each.split("/"))) for each in place[tag]) for tag in "24"}
    return {int(tag): each for tag, each in (place | rationals).items()}


def photograph_at(name, place, color=RED, size=(400, 300)):
    exif = Image.Exif()
    exif[0x8825] = tags(place)
    return file(name, jpeg(color, size, exif=exif))


def shown_names(page):
    return page.locator(".many__row:not([hidden]) .many__plant").all_inner_texts()


def correct(page):
    """Lets the page hear of a correction."""
    told = "{ answer: { request_id: 'request-1' }, correction: { name: 'Bellis perennis' } }"
    page.evaluate(f"document.dispatchEvent(new CustomEvent('corrected', {{ detail: {told} }}))")


# ---- as data


SENT = """
const { isSentAsItIs } = await load("shrink.js");
const files = ["jpeg", "avif"].map((format) => new File([args[0]], "1", { type: `image/${format}` }));
return Promise.all(files.map(isSentAsItIs));
"""


@pytest.mark.parametrize("endian", ["<", ">"])
@from_table
def test_the_place_of_a_photograph_is_read_from_its_exif_data(page, place, degrees, endian):
    exif = Image.Exif()
    exif.endian = endian
    exif[0x8825] = tags(place)
    found = page("exif.js", "placeOf", jpeg(exif=exif))
    assert (found and tuple(found.values())) == (degrees and pytest.approx(degrees, abs=1e-6))
    assert [page.evaluate(SENT, each) for each in (jpeg(exif=exif), jpeg())] == [[False, False], [True, False]]


# ---- what is kept, with a database of its own

DATABASE = """
const plants = new Map();
let asked = () => {};
const later = (value) => {
  const request = { result: value };
  queueMicrotask(() => request.onsuccess?.({ target: request }));
  return request;
};
const store = {
  get: (id) => { asked(id); return later(plants.get(id)); },
  getAll: () => later([...plants.values()]),
  count: (id) => later(id === undefined ? plants.size : Number(plants.has(id))),
  put: (plant) => later(plants.set(plant.id, plant)), delete: (id) => later(plants.delete(id)),
};
const transaction = () => {
  const opened = { objectStore: () => store };
  setTimeout(() => opened.oncomplete());
  return opened;
};
globalThis.indexedDB = { open: () => later({ transaction, close() {} }) };
const { addPlants, keepPlant } = await load("kept.js");
"""


def test_an_import_changes_nothing_that_is_there(fresh_page):
    there = plant(SPECIES, note="Mine", correction="Bellis perennis")
    imported = [plant(SPECIES), plant(SPECIES, id="request-2")]
    steps = "await keepPlant(args[0]); await addPlants(args[1]); return [...plants.values()];"
    assert fresh_page.evaluate(DATABASE + steps, there, imported) == [there, imported[1]]


ANSWERED = """
const { setUpKeeping, setUpSwitch } = await load("keep.js");
const { tell } = await load("elements.js");
const box = document.getElementById("keeping");
let shown;
const answered = async (answer, ...names) => {
  const element = shown = document.createElement("div");
  const originals = names.map((name) => new File(["pixels"], name));
  tell("answered", { answer, files: [], originals, where: null, element });
  tell("corrected", { answer: { request_id: "last" }, correction: null }); // its turn comes once all else is done
  await new Promise((resolve) => { asked = (id) => id === "last" && resolve(); });
  return plants.size;
};
const choose = (checked) => {
  box.checked = checked;
  box.dispatchEvent(new Event("change"));
};
setUpSwitch(box);
setUpKeeping();
"""


def test_an_answer_is_kept_unless_it_shows_no_plant_or_the_reader_wants_none_kept(fresh_page):
    steps = """
      const [plant, nothing, another] = args;
      const sizes = [await answered(plant), await answered(nothing)];
      choose(false);
      sizes.push(await answered(another));
      choose(true);
      return [...sizes, await answered(another)];
    """
    nothing = STATES["not_a_plant"] | {"request_id": "request-2"}
    another = like("species", request_id="request-3")
    assert fresh_page.evaluate(DATABASE + ANSWERED + steps, SPECIES, nothing, another) == [1, 1, 1, 2]


def test_more_pictures_of_a_plant_replace_its_answer_and_keep_what_a_person_said(fresh_page):
    steps = """
      const [first, second, other] = args;
      await answered(first, "1.jpg");
      plants.get(first.request_id).note = "Mine";
      tell("corrected", { answer: first, correction: { name: "Bellis perennis" } });
      await answered(second, "1.jpg", "2.jpg");
      await answered(other, "3.jpg");
      return [...plants.values()].map(({ id, note, correction }) => [id, note, correction]);
    """
    others = [like("species", request_id=f"request-{number}") for number in (2, 3)]
    kept = fresh_page.evaluate(DATABASE + ANSWERED + steps, SPECIES, *others)
    assert kept == [["request-2", "Mine", "Bellis perennis"], ["request-3", "", None]]


def test_the_same_plant_on_another_day_is_joined_with_its_photographs_and_what_a_person_said(fresh_page):
    steps = """
      const [first, second] = args;
      await answered(first, "1.jpg");
      const own = { name: "By the gate", note: "Mine", date: "2026-05-03", pictures: ["1"] };
      Object.assign(plants.get(first.request_id), own);
      tell("corrected", { answer: first, correction: { name: "Helianthus annuus" } });
      await answered(second, "2.jpg");
      plants.get(second.request_id).note = "Taller";
      const button = shown.all.find(({ className }) => className.endsWith("kept__same"));
      await button.onclick();
      return [button.textContent, ...plants.values()];
    """
    again = like("species", request_id="request-2")
    text, joined = fresh_page.evaluate(DATABASE + ANSWERED + steps, SPECIES, again)
    assert text == "Same plant as By the gate, May 3, 2026"
    said = [joined[key] for key in ("id", "name", "note", "correction", "earlier")]
    assert said == ["request-2", "By the gate", "Taller · Mine", "Helianthus annuus", ["1"]]


# ---- in a browser


@pytest.mark.parametrize("view", ["wide", "phone"])
def test_an_answer_is_kept_found_and_opened_again(open_tab, view):
    tab = open_tab(view)
    page = tab.page
    tab.answer = SPECIES
    tab.choose(photograph_at("1.jpg", MUNICH))
    tab.see("Kept in My plants, on this device only")
    tab.assert_accessible()
    tab.answer = like(
        "genus", request_id="request-2", verdict={"name": "Bellis"}, predictions=GENUS["predictions"][1:2]
    )
    page.reload()
    tab.choose(photograph_at("2.jpg", SYDNEY, GREEN, (3000, 1500)))
    page.get_by_text("Kept in My plants").click()
    tab.see("2 plants")
    assert page.locator(".map__dot").count() == 2
    assert page.inner_text(".map__scale") == "5,000 km"
    page.get_by_label("1 plant: Common daisy").click()
    assert len(shown_names(page)) == 1
    page.get_by_label("1 plant: Common daisy").click()
    page.get_by_label("Find by name").fill("common sunflower")
    tab.see("1 plant", exact=True)
    page.get_by_label("Find by name").fill("")
    tab.unfold()
    page.wait_for_selector(".verdict")
    sizes = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
    assert page.eval_on_selector(".plants__pictures img", sizes) == [1024, 512]
    tab.fill("My note", "Under the birch", "Tab")
    page.locator(".many__words", has_text="Under the birch").wait_for()
    tab.fill("My name for it", "By the gate", "Tab")
    page.locator(".many__plant", has_text="By the gate").wait_for()
    tab.assert_accessible()
    page.reload()
    tab.see("Under the birch")
    tab.unfold()
    tab.press("Forget this plant")
    tab.see("1 plant", exact=True)
    assert shown_names(page) == ["Common sunflower"]


def test_an_export_brings_everything_back_after_all_was_forgotten(open_tab, tmp_path):
    tab = open_tab()
    page = tab.page
    tab.answer = GENUS | {"images": SPECIES["images"] * 2}
    tab.choose(photograph_at("1.jpg", MUNICH), PHOTOGRAPHS[1])
    tab.see("Kept in My plants")
    correct(page)
    page.goto(PLANTS)
    tab.see("You said: Bellis perennis")

    def export(name):
        with page.expect_download() as download:
            tab.press("Export all")
        download.value.save_as(tmp_path / name)
        return json.loads((tmp_path / name).read_text())

    first = export("first.json")
    assert [each["id"] for each in first["plants"]] == ["request-1"]
    assert len(first["plants"][0]["pictures"]) == 2
    assert first["plants"][0]["where"] == pytest.approx({"latitude": 48.125, "longitude": 11.5667}, abs=1e-3)
    tab.press("Forget all")
    tab.assert_accessible()
    tab.press("Keep them")
    assert len(shown_names(page)) == 1
    tab.press("Forget all")
    page.get_by_role("dialog").get_by_role("button", name="Forget all").click()
    tab.see("No plants yet")
    page.set_input_files("#import", tmp_path / "first.json")
    tab.see("1 plant of 1 in the file is new")
    assert export("second.json") == first
    tab.unfold()
    tab.fill("My note", "Newer than the file", "Tab")
    page.set_input_files("#import", tmp_path / "first.json")
    tab.see("0 plants of 1 in the file are new")
    tab.see("Newer than the file")
    (tmp_path / "other.json").write_text("{}")
    page.set_input_files("#import", tmp_path / "other.json")
    tab.see("other.json is not an export of My plants.")
    assert len(shown_names(page)) == 1


def test_a_full_device_is_one_clear_sentence_and_loses_nothing(open_tab):
    tab = open_tab()
    page = tab.page
    devtools = page.context.new_cdp_session(page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": ADDRESS, "quotaSize": 200_000})
    tab.show(SPECIES)
    tab.see("Kept in My plants")
    tab.answer = like("species", request_id="request-2", images=SPECIES["images"] * 2)
    tab.choose(file("2.jpg", encode(Image.effect_noise((1024, 1024), 120), quality=95)))
    tab.see("There is no room left on this device, so nothing was changed")
    page.goto(PLANTS)
    tab.see("1 plant", exact=True)
    assert page.locator(".many__row").get_attribute("data-id") == "request-1"


def test_a_plant_that_cannot_be_shown_hides_no_other_one_and_can_be_forgotten(open_tab, tmp_path):
    strange = {**SPECIES, "predictions": [{}]}
    kept = export_of(plant(SPECIES), plant(strange, "2026-05-04T10:00:00.000Z", id="request-2"))
    (tmp_path / "plants.json").write_text(kept)
    tab = open_tab()
    page = tab.page
    page.goto(PLANTS)
    page.set_input_files("#import", tmp_path / "plants.json")
    tab.see("2 plants of 2 in the file are new")
    page.locator("[data-id='request-2'] summary").click()
    tab.see("The answer cannot be shown")
    tab.press("Forget this plant")
    tab.see("1 plant", exact=True)
    assert page.locator(".many__row").get_attribute("data-id") == "request-1"
