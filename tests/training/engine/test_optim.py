import copy

import pytest
import torch

from models.network import PlantNetwork
from training.engine.step import build_optimizer, load_optimizer
from training.recipe import ScheduleRecipe


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
    assert sorted(id(each) for group in groups for each in group["params"]) == sorted(map(id, network.parameters()))
    head = {id(parameter) for group in groups[2:] for parameter in group["params"]}
    assert head == set(map(id, network.head.parameters()))


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
