import numpy as np
import pytest
from PIL import Image

from models.errors import InputError
from training.herbarium import draw_plant, species_name
from training.herbarium import picture as picture_module
from training.herbarium.photo_styles import HOUSE_STYLE, INATURALIST_STYLE, PLAIN_STYLE, PLANTNET_STYLE, PhotoStyle
from training.herbarium.traits import species_traits

SMALL_PX = 64


def test_same_numbers_draw_identical_bytes():
    first = draw_plant(7, 3, seed=5, size_px=SMALL_PX)
    draw_plant(8, 0, seed=5, size_px=SMALL_PX)  # what is drawn in between must not matter
    assert first.tobytes() == draw_plant(7, 3, seed=5, size_px=SMALL_PX).tobytes()


def test_pictures_species_and_seeds_all_change_the_picture():
    pictures = [
        draw_plant(7, 3, size_px=SMALL_PX),
        draw_plant(7, 4, size_px=SMALL_PX),
        draw_plant(6, 3, size_px=SMALL_PX),
        draw_plant(7, 3, seed=1, size_px=SMALL_PX),
    ]
    assert len({picture.tobytes() for picture in pictures}) == len(pictures)


@pytest.mark.parametrize(
    ("species", "picture", "seed", "color"),
    [
        (0, 0, 0, (113.5, 106.0, 125.6)),
        (7, 3, 5, (134.0, 137.5, 109.9)),
        (123, 1, 0, (116.3, 145.1, 175.5)),
        (4001, 9, 2, (119.5, 101.2, 79.0)),
    ],
)
def test_pictures_are_still_those_of_the_first_version(species, picture, seed, color):
    # Means of red, green and blue: bytes would differ between processors, a changed random stream changes these too.
    drawn = np.asarray(draw_plant(species, picture, seed=seed, size_px=SMALL_PX))
    assert drawn.reshape(-1, 3).mean(axis=0) == pytest.approx(color, abs=0.3)


def test_styles_change_the_picture_and_not_the_plant():
    styles = [PLAIN_STYLE, INATURALIST_STYLE, PLANTNET_STYLE, HOUSE_STYLE]
    assert len({draw_plant(7, 3, size_px=SMALL_PX, style=style).tobytes() for style in styles}) == 4
    same_but_lit = PhotoStyle(brightness=(0.3, 0.3), warmth_spread=0.0)
    bright, dark = (
        np.asarray(draw_plant(7, 3, size_px=SMALL_PX, style=style)) for style in (PhotoStyle(), same_but_lit)
    )
    assert dark.mean() < 0.5 * bright.mean()
    assert np.corrcoef(bright.ravel(), dark.ravel())[0, 1] > 0.9


def test_house_plants_have_warmer_light_than_plants_outdoors():
    def warmth(style):
        pictures = [np.asarray(draw_plant(species, 0, size_px=16, style=style), dtype=float) for species in range(12)]
        red, _, blue = np.mean(pictures, axis=(0, 1, 2))
        return red / blue

    assert warmth(HOUSE_STYLE) > 1.2 * warmth(INATURALIST_STYLE)


@pytest.mark.parametrize("size_px", [16, 100, 256])
def test_picture_is_rgb_of_the_given_size(size_px):
    picture = draw_plant(0, 0, size_px=size_px)
    assert (picture.mode, picture.size) == ("RGB", (size_px, size_px))


def test_size_changes_the_resolution_but_not_the_scene():
    for picture in range(6):
        small = draw_plant(9, picture, size_px=64).resize((32, 32), Image.Resampling.BOX)
        large = draw_plant(9, picture, size_px=256).resize((32, 32), Image.Resampling.BOX)
        difference = np.abs(np.asarray(small, dtype=float) - np.asarray(large, dtype=float)).mean()
        assert difference < 12, f"picture {picture} differs by {difference:.1f} of 255"


@pytest.mark.slow
def test_plant_is_in_the_picture_and_does_not_fill_it(monkeypatch):
    # On a pure blue backdrop, pixels with red or green belong to the plant; "bokeh" has neither shadow nor grass.
    monkeypatch.setattr(
        picture_module, "paint_backdrop", lambda kind, size, rng: Image.new("RGB", (size, size), "#00f")
    )
    style = PhotoStyle(backdrops=("bokeh",))
    covers = [
        (np.asarray(draw_plant(species, picture, size_px=SMALL_PX, style=style))[..., :2].max(axis=-1) > 40).mean()
        for species in range(0, 160, 4)
        for picture in range(3)
    ]
    assert min(covers) > 0.02
    assert max(covers) < 0.95
    assert 0.15 < np.mean(covers) < 0.6


@pytest.mark.slow
def test_many_species_and_pictures_draw_without_error():
    for species in range(0, 4000, 61):
        draw_plant(species, species % 11, seed=2, size_px=32)


def test_members_of_a_genus_resemble_one_another_yet_differ():
    for genus in range(50):
        members = [species_traits(4 * genus + member) for member in range(4)]
        assert len({traits.leaf.arrangement for traits in members}) == 1
        assert len({(t.leaf.margin, t.flower.petal_tip, t.flower.marking) for t in members}) == 4


def test_no_single_trait_identifies_a_species():
    flora = [species_traits(species) for species in range(200)]
    for group in ("leaf", "flower", "habit"):
        for field in getattr(flora[0], group).__struct_fields__:
            value = getattr(getattr(flora[0], group), field)
            if isinstance(value, str | int) and not isinstance(value, bool):
                kinds = {getattr(getattr(traits, group), field) for traits in flora}
                assert 2 <= len(kinds) <= 30, f"{group}.{field} takes {len(kinds)} values"


def test_neighboring_species_share_colors():
    pigments = [species_traits(species).flower.pigment for species in range(200)]
    in_genera = [pigments[first : first + 4] for first in range(0, 200, 4)]
    assert sum(len(set(genus)) < 4 for genus in in_genera) > 30
    assert len(set(pigments)) == 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 3])
def test_names_are_unique_over_12000_species(seed):
    names = [species_name(species, seed) for species in range(12_000)]
    assert len({name.scientific_name for name in names}) == len(names)
    assert len({name.common_name for name in names}) == len(names)
    assert len({name.genus for name in names}) == len(names) // 4
    assert len({name.family for name in names}) == len(names) // 16


@pytest.mark.slow
def test_names_are_unique_to_the_last_one():
    names = [species_name(species) for species in range(_num_names())]
    assert len({name.scientific_name for name in names}) == len({name.common_name for name in names}) == len(names)


def _num_names() -> int:
    with pytest.raises(InputError) as raised:
        species_name(10**9)
    return int(str(raised.value.limit).split()[-1])


def test_genus_members_share_genus_and_family():
    for first in range(0, 400, 4):
        kin = [species_name(first + member) for member in range(4)]
        assert len({(name.genus, name.family) for name in kin}) == 1
        assert all(name.scientific_name.startswith(name.genus + " ") for name in kin)


def test_families_end_in_aceae_and_hold_four_genera():
    names = [species_name(species) for species in range(160)]
    genera_of = {name.family: {kin.genus for kin in names if kin.family == name.family} for name in names}
    assert all(family.endswith("aceae") for family in genera_of)
    assert {len(genera) for genera in genera_of.values()} == {4}


@pytest.mark.parametrize(
    ("species", "picture", "options"), [(-1, 0, {}), (0, -1, {}), (0, 0, {"seed": -1}), (0, 0, {"size_px": 8})]
)
def test_numbers_out_of_range_are_rejected(species, picture, options):
    with pytest.raises(InputError):
        draw_plant(species, picture, **options)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("style", [PLAIN_STYLE, PLANTNET_STYLE], ids=["plain", "plantnet"])
def test_color_alone_does_not_identify_200_species(style):
    """A linear probe on color histograms stays under 20 % top-1, so that species must be learned from their shape."""
    num_species, num_train, num_test = 200, 20, 5
    features = np.array(
        [
            [
                _color_histogram(draw_plant(species, picture, size_px=64, style=style))
                for picture in range(num_train + num_test)
            ]
            for species in range(num_species)
        ]
    )
    accuracy = _ridge_accuracy(features[:, :num_train], features[:, num_train:])
    print(f"color histogram probe: {accuracy:.1%} top-1 of {num_species} species")
    assert accuracy < 0.20


def _color_histogram(picture: Image.Image) -> np.ndarray:
    """Square roots of the shares of 6 x 6 x 6 cells of RGB."""
    cells = np.asarray(picture, dtype=int).reshape(-1, 3) * 6 // 256
    counts = np.bincount(cells @ [36, 6, 1], minlength=216)
    return np.sqrt(counts / counts.sum())


def _ridge_accuracy(train: np.ndarray, test: np.ndarray) -> float:
    """Best top-1 accuracy, over a few strengths of regularization, of one-against-all ridge regression."""
    num_species, per_species, num_features = train.shape
    mean, std = train.mean(axis=(0, 1)), train.std(axis=(0, 1)) + 1e-3
    inputs = ((train - mean) / std).reshape(-1, num_features)
    targets = np.repeat(np.eye(num_species), per_species, axis=0) - 1 / num_species
    queries = ((test - mean) / std).reshape(-1, num_features)
    truth = np.repeat(np.arange(num_species), test.shape[1])
    gram, cross = inputs.T @ inputs, inputs.T @ targets
    scores = [
        queries @ np.linalg.solve(gram + strength * np.eye(num_features), cross) for strength in (1, 30, 300, 3000)
    ]
    return max(float((score.argmax(axis=1) == truth).mean()) for score in scores)
