from pathlib import Path

from training.insight.studies.ladder import LADDER, arms, decided_flags, ladder, rate_arms
from training.recipe import read_recipe, recipe_to_plain
from training.train import parse


def knobs(arm):
    """Knob -> value of an arm, as train.py understands its flags."""
    plain = recipe_to_plain(parse(["directml_baseline", *arm.flags]).recipe)
    return {knob: value for section in plain.values() if isinstance(section, dict) for knob, value in section.items()}


def test_every_arm_is_its_parent_and_the_change_that_it_names():
    tried = {arm.name: knobs(arm) for arm in arms(LADDER, 3e-5, 1e-4)}
    changed = {
        step.name: {knob for knob, value in tried[step.name].items() if value != tried[step.parent][knob]}
        for step in LADDER
        if step.parent
    }
    assert changed == {
        "best_rate": {"backbone_lr", "head_lr"},
        "frozen_norms": {"norms"},
        "accumulated": {"accumulate"},
        "groups_of_4": {"batch_size", "accumulate", "norms", "ghost_size"},
        "batch_16": {"norms"},
        "amp": {"amp"},
        "two_rates_3x": {"head_lr"},
        "two_rates_10x": {"head_lr"},
        "cosine": {"decay"},
        "hardware": {"channels_last", "cudnn_benchmark", "tf32"},
    }


def test_the_ladder_leads_from_the_baseline_to_the_reference_recipe():
    first, last = (knobs(arm) for arm in (arms(LADDER, 3e-5, 1e-4)[0], arms(LADDER, 3e-5, 3e-5)[-1]))
    recipes = {name: recipe_to_plain(read_recipe(name)) for name in map(Path, ("directml_baseline", "b4_5337"))}
    for name, found in zip(recipes, (first, last), strict=True):
        for section, knob in (
            *(("schedule", knob) for knob in ("batch_size", "accumulate", "backbone_lr", "head_lr", "decay")),
            *(("hardware", knob) for knob in ("amp", "tf32", "channels_last", "cudnn_benchmark", "compile")),
        ):
            assert found[knob] == recipes[name][section][knob], (name, knob)


def test_on_a_cpu_the_steps_about_a_gpu_are_left_out_and_the_others_close_up():
    parents = {step.name: step.parent for step in ladder("cpu")}
    assert parents.keys() == {step.name for step in LADDER} - {"amp", "hardware"}
    assert (parents["two_rates_3x"], parents["two_rates_10x"], parents["cosine"]) == (
        "batch_16",
        "batch_16",
        "two_rates_3x",
    )


def test_the_rate_search_changes_only_the_rate_of_the_baseline():
    assert [knobs(arm)["head_lr"] for arm in rate_arms(LADDER, (1e-5, 1e-3))] == [1e-5, 1e-3]


def test_every_flag_of_an_arm_is_decided_by_the_study():
    decided = set(decided_flags())
    for arm in arms(LADDER, 3e-5, 1e-4):
        flags = {flag.replace("--no-", "--", 1) for flag in arm.flags if flag.startswith("--")}
        assert flags <= decided, arm.name
    assert {"--amp", "--tf32", "--norms", "--compile", "--head-lr"} <= decided
    assert not decided & {"--picture-px", "--workers", "--architecture"}
