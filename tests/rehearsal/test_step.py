"""Steps of every recipe on a GPU that is not there: nothing waits, every type and layout is as meant, memory fits."""

import pytest

from tests.rehearsal.gpu import rehearse, require_rehearsal

require_rehearsal()

pytestmark = pytest.mark.timeout(3600)  # half a minute of processor, on a busy machine too
# Kernels of a step, megabytes moved by each picture, and peak memory in MB, measured in this rehearsal with torch 2.15.
# They may fall; a change that raises one says why. The memory is that of the allocator, without the context of CUDA.
RECIPES = {
    "b4_5337": (1660, 2130, 5675),
    "b4_5337_fast": (1756, 2106, 21830),
    "b4_5337_scratch": (2600, 1467, 59747),
    "b4_8gb": (1660, 1515, 4110),
    "b4_long_tail": (1661, 2130, 5675),
    "own_folder": (2503, 1503, 7915),
    "plants": (1503, 212, 1248),
}
# The gradient of a mean over the map, as in squeeze-and-excite, has no layout of its own.
BROADCAST = {"NCHW: div", "NCHW: silu_backward", "NCHW: native_batch_norm_backward"}
# Mixing flips the batch, and a convolution with "same" padding pads the input.
INPUT_MAPS = {"roll", "mul", "mul_", "add_", "clone", "copy_", "constant_pad_nd"}
MIXED = {"NCHW: roll", "NCHW: mul_", "NCHW: add_", "NCHW: copy_", "NCHW: cat"}
SMALL = {"network": {"architecture": "efficientnet_b0"}, "pictures": {"picture_px": 64}, "num_outputs": 40}
# What is planted, and how the fault begins that it must be found as.
DEFECTS = {
    "item": "waits: _local_scalar_dense",
    "wide convolution": "not in float16: convolution",
    "NCHW": "layout NCHW",
    "blocking copy": "blocks",
    "unpinned": "blocks",
}
OPTIONS = {
    "accumulation, clipping, EMA": {"schedule": {"accumulate": 3, "clip_norm": 1.0, "ema_decay": 0.999}},
    "plant output, mixing": {"negatives": {"negatives": ["negatives"]}, "augment": {"mixup": 0.2, "cutmix": 1.0}},
    "frozen norms, taxa": {"network": {"norms": "frozen"}, "loss": {"target": "taxon", "logit_adjustment": 1.0}},
    "bf16, small batch": {"hardware": {"amp": "bf16"}, "schedule": {"batch_size": 8}},
}


QUICK_RECIPES = ("b4_5337", "plants")  # without mixing, and another network with it
QUICK_DEFECTS = ("item", "blocking copy")
PLANTED = {defect: ("b4_5337", SMALL | {"planted": defect}) for defect in [*DEFECTS, "cpu tensor"]}
SWITCHED = {
    name: ("b4_5337", SMALL | {section: SMALL.get(section, {}) | values for section, values in overrides.items()})
    for name, overrides in OPTIONS.items()
}


def reports_of(cases, tmp_path_factory):
    """Reports of cases from one process: to start one takes longer than a step."""
    found = rehearse(list(cases.values()), tmp_path_factory.mktemp("cuda"))
    return dict(zip(cases, found, strict=True))


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    small = {"small": ("b4_5337", SMALL)} | {defect: PLANTED[defect] for defect in QUICK_DEFECTS}
    return reports_of({recipe: (recipe, {}) for recipe in QUICK_RECIPES} | small, tmp_path_factory)


@pytest.fixture(scope="module")
def slow_reports(tmp_path_factory):
    recipes = {recipe: (recipe, {}) for recipe in RECIPES if recipe not in QUICK_RECIPES}
    return reports_of(recipes | PLANTED | SWITCHED, tmp_path_factory)


def faults(report):
    """Says what a step must not do."""
    found = [f"waits: {place}" for place in report["waits"]]
    found += [f"blocks: {place}" for _, is_later, place in report["to_device"] if not is_later]
    found += [f"not in {report['amp']}: {kind}" for kind in report["types"] if not kind.endswith(f": {report['amp']}")]
    found += [f"layout {layout}" for layout in report["layouts"] if layout not in BROADCAST | MIXED | {"NHWC"}]
    found += [f"fp32 map: {name}" for name in report["wide_maps"] if name not in INPUT_MAPS]
    found += [
        f"state or weight in {kind}" for kind in report["states"] + report["parameters"] if kind != "torch.float32"
    ]
    return found


def test_a_small_step_waits_for_nothing_and_keeps_types_and_layout(reports):
    report = reports["small"]
    assert faults(report) == []
    assert [kind for kind, _, _ in report["to_device"]] == ["int64", "uint8"]


@pytest.mark.parametrize("defect", QUICK_DEFECTS)
def test_a_step_that_waits_is_found(defect, reports):
    assert any(fault.startswith(DEFECTS[defect]) for fault in faults(reports[defect]))


@pytest.mark.slow
@pytest.mark.parametrize(("defect", "words"), DEFECTS.items())
def test_a_planted_defect_is_found(defect, words, slow_reports):
    found = faults(slow_reports[defect])
    assert [fault for fault in found if fault.startswith(words)], found


@pytest.mark.slow
def test_a_tensor_that_stayed_on_the_cpu_ends_the_step(slow_reports):
    assert "found at least two devices" in slow_reports["cpu tensor"]["error"]


def require_no_more_than_before(recipe, report):
    assert faults(report) == []
    kernels, moved_mb, peak_mb = RECIPES[recipe]
    assert report["kernels"] <= 1.01 * kernels
    assert report["moved_mb_a_picture"] <= 1.01 * moved_mb
    assert report["peak_mb"] <= 1.01 * peak_mb


@pytest.mark.parametrize("recipe", QUICK_RECIPES)
def test_a_recipe_at_full_width_waits_for_nothing_and_needs_no_more_than_before(recipe, reports):
    require_no_more_than_before(recipe, reports[recipe])


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [recipe for recipe in RECIPES if recipe not in QUICK_RECIPES])
def test_every_other_recipe_waits_for_nothing_and_needs_no_more_than_before(recipe, slow_reports):
    require_no_more_than_before(recipe, slow_reports[recipe])


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_what_a_recipe_can_switch_on_waits_for_nothing(option, slow_reports):
    assert faults(slow_reports[option]) == []
