import copy
import io
import math
import warnings

import pytest
import torch

from models.network import PlantNetwork
from training.engine.step import build_optimizer, build_scheduler, fast_forward, load_optimizer
from training.recipe import ScheduleRecipe


def rates(schedule, steps_per_epoch):
    """The backbone's and the head's rate at every step."""
    optimizer = build_optimizer(PlantNetwork("test_efficientnet", 3), schedule)
    scheduler = build_scheduler(optimizer, schedule, steps_per_epoch)
    found = []
    for _ in range(schedule.epochs * steps_per_epoch + 1):
        found.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[-1]["lr"]))
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("architecture", ["test_efficientnet", "efficientnet_b4"])
def test_backbone_and_head_have_their_rates_and_norms_and_biases_have_no_decay(architecture):
    network = PlantNetwork(architecture, 5)
    groups = build_optimizer(network, ScheduleRecipe()).param_groups
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [
        (3e-5, 0.01),
        (3e-5, 0.0),
        (9e-5, 0.01),
        (9e-5, 0.0),
    ]
    decayed = {id(parameter) for group in groups if group["weight_decay"] for parameter in group["params"]}
    for name, parameter in network.named_parameters():
        plain = name.endswith(".bias") or ".bn" in name
        assert (id(parameter) in decayed) != plain, name
    optimized = [id(parameter) for group in groups for parameter in group["params"]]
    assert len(optimized) == len(set(optimized))
    assert set(optimized) == {id(parameter) for parameter in network.parameters()}
    head = {id(parameter) for group in groups[2:] for parameter in group["params"]}
    assert head == {id(parameter) for parameter in network.head.parameters()}


def test_rates_fall_from_their_peak_to_zero_along_a_cosine():
    found = rates(ScheduleRecipe(epochs=4), steps_per_epoch=5)
    for step, (backbone, head) in enumerate(found):
        share = (1 + math.cos(math.pi * step / 20)) / 2
        assert backbone == pytest.approx(3e-5 * share, abs=1e-12)
        assert head == pytest.approx(9e-5 * share, abs=1e-12)


def test_rates_may_fall_in_steps_or_not_at_all():
    stepped = rates(ScheduleRecipe(epochs=6, decay="step"), steps_per_epoch=2)
    assert [head / 9e-5 for _, head in stepped[:12]] == pytest.approx([1.0] * 4 + [0.1] * 4 + [0.01] * 4)
    assert {head for _, head in rates(ScheduleRecipe(epochs=2, decay="none"), steps_per_epoch=3)} == {9e-5}
    warmed = rates(ScheduleRecipe(epochs=3, decay="step", warmup_epochs=1), steps_per_epoch=2)
    assert [head / 9e-5 for _, head in warmed[2:6]] == pytest.approx([1.0, 1.0, 0.1, 0.1])


def test_a_warm_up_rises_to_the_peak_and_the_cosine_follows():
    found = [head for _, head in rates(ScheduleRecipe(epochs=4, warmup_epochs=1.5), steps_per_epoch=4)]
    assert found[0] == pytest.approx(9e-7)
    assert found[:7] == sorted(found[:7])
    assert found[6] == max(found) == pytest.approx(9e-5)
    assert found[6:] == sorted(found[6:], reverse=True)
    assert len(set(found)) == len(found)
    assert found[-1] == pytest.approx(0, abs=1e-12)


def step_by_step(schedule, from_step=0, carry=None, load=True):
    """Takes steps with gradients that depend on the step; returns the weights and what a checkpoint would hold."""
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", 3)
    optimizer = build_optimizer(network, schedule)
    scheduler = build_scheduler(optimizer, schedule, steps_per_epoch=4)
    if carry:
        network.load_state_dict(carry[0])
        load_optimizer(optimizer, carry[1], with_rates=load)
        if load:
            scheduler.load_state_dict(carry[2])
        else:
            fast_forward(scheduler, from_step)
    for step in range(from_step, 8):
        if step == 5 and not carry:
            stream = io.BytesIO()
            torch.save([part.state_dict() for part in (network, optimizer, scheduler)], stream)
            saved = torch.load(io.BytesIO(stream.getvalue()), weights_only=True)
        torch.manual_seed(step)
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        scheduler.step()
    return network.state_dict(), carry or saved, optimizer.param_groups


@pytest.mark.parametrize("load", [True, False], ids=["saved schedule", "schedule made anew"])
@pytest.mark.parametrize("warmup_epochs", [0.0, 0.5])
def test_steps_from_a_saved_state_equal_uninterrupted_ones(warmup_epochs, load):
    schedule = ScheduleRecipe(epochs=2, warmup_epochs=warmup_epochs, head_lr=0.1, backbone_lr=0.1)
    whole, carry, _ = step_by_step(schedule)
    resumed, _, _ = step_by_step(schedule, from_step=5, carry=carry, load=load)
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_loaded_moments_have_the_memory_format_of_their_parameters():
    def steps(layout, carry=None, num_steps=2):
        torch.manual_seed(0)
        network = PlantNetwork("test_efficientnet", 3).to(memory_format=layout)
        optimizer = build_optimizer(network, ScheduleRecipe(backbone_lr=1e-3, head_lr=1e-3))
        if carry:
            network.load_state_dict(carry[0])
            load_optimizer(optimizer, copy.deepcopy(carry[1]), with_rates=True)
        for step in range(num_steps):
            torch.manual_seed(step)
            for parameter in network.parameters():
                parameter.grad = torch.empty_like(parameter).copy_(torch.randn(parameter.shape))
            optimizer.step()
        return copy.deepcopy((network.state_dict(), optimizer.state_dict()))

    begun = steps(torch.contiguous_format)
    ends = [steps(layout, begun)[0] for layout in (torch.contiguous_format, torch.channels_last)]
    assert all(torch.allclose(value, ends[1][name], atol=1e-7) for name, value in ends[0].items())


def test_a_new_schedule_has_its_own_rates():
    _, carry, _ = step_by_step(ScheduleRecipe(epochs=2))
    slower = ScheduleRecipe(epochs=3, backbone_lr=1e-6, head_lr=2e-6, weight_decay=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, _, groups = step_by_step(slower, from_step=5, carry=carry, load=False)
    share = (1 + math.cos(math.pi * 8 / 12)) / 2
    assert [group["lr"] for group in groups] == pytest.approx([share * rate for rate in (1e-6, 1e-6, 2e-6, 2e-6)])
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0, 0.5, 0.0]
