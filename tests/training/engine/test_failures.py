import pytest
import torch
from torch import nn

from training.engine.loop import diagnose


class Overflows(nn.Module):
    """Gives infinity for every positive input."""

    def forward(self, x):
        return (x.abs() + 1) * 1e38 * 1e38


@pytest.fixture
def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


PIXELS = torch.ones(2, 4)


def test_weights_that_are_not_finite_are_named_first(network):
    with torch.no_grad():
        network[2].weight[0, 0] = torch.nan
    assert "first 2.weight" in diagnose(network, PIXELS)


def test_the_first_layer_that_overflows_is_named(network):
    network[1] = Overflows()
    assert diagnose(network, PIXELS).endswith("is 1")


def test_a_finite_forward_pass_points_to_what_follows_it(network):
    assert "half precision, the loss or the gradients overflow" in diagnose(network, PIXELS)


def test_diagnosing_leaves_the_network_unchanged(network):
    network.train()
    network[1] = nn.BatchNorm1d(4)
    before = network[1].running_mean.clone()
    diagnose(network, PIXELS)
    assert network.training
    assert torch.equal(network[1].running_mean, before)
    assert not network[0]._forward_hooks
