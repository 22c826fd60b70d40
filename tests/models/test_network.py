"""A network of timm with its own classifier, and the pooled features before it."""

import math

import pytest
import torch

from models.errors import RecipeError
from models.network import PlantNetwork

B4, TINY = "efficientnet_b4", "test_efficientnet"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Tiny pictures do not gain from threads, which wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    return PlantNetwork(TINY, 17, dropout=0.4, drop_path=0.2).eval()


@pytest.fixture(scope="module")
def pixels():
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(2))


def test_reference_network_has_the_published_number_of_parameters():
    with torch.device("meta"):
        network = PlantNetwork(B4, 5337)
    assert (network.num_features, network.num_parameters()) == (1792, 27_117_857)
    assert sum(parameter.numel() for parameter in network.head_parameters()) == 9_569_241
    assert sum(parameter.numel() for parameter in network.backbone_parameters()) == 17_548_616


@pytest.mark.parametrize(
    ("architecture", "found"), [("deit_tiny_distilled_patch16_224", "Linear and Linear"), ("resnetv2_50", "Conv2d")]
)
def test_a_classifier_that_is_not_one_linear_layer_is_refused(architecture, found):
    with torch.device("meta"), pytest.raises(RecipeError, match=f"{architecture}, which has {found}.*--architecture"):
        PlantNetwork(architecture, 5)


def test_logits_and_features_agree_with_a_plain_call(network, pixels):
    with torch.inference_mode():
        logits, features = network.logits_and_features(pixels)
        torch.testing.assert_close(logits, network(pixels))
        torch.testing.assert_close(logits, network.head(features))
    assert logits.shape == (2, 17)
    assert features.shape == (2, network.num_features)
    assert not torch.allclose(features[0], features[1])


def test_every_parameter_is_in_the_head_or_the_backbone(network):
    head = {id(parameter) for parameter in network.head_parameters()}
    backbone = {id(parameter) for parameter in network.backbone_parameters()}
    everything = {id(parameter) for parameter in network.parameters()}
    assert not head & backbone
    assert head | backbone == everything
    assert {id(network.head.weight), id(network.head.bias)} == head


def test_the_first_loss_is_that_of_guessing():
    torch.manual_seed(3)
    network = PlantNetwork(B4, 17).train()
    with torch.no_grad():
        logits = network(torch.randn(8, 3, 64, 64))
    surprise = torch.nn.functional.cross_entropy(logits, torch.arange(8))
    assert surprise.item() == pytest.approx(math.log(17), abs=0.4)


def test_an_architecture_without_stochastic_depth_does_without_it():
    PlantNetwork("ghostnet_100", 5, drop_path=0.2)


def test_dropout_acts_before_the_classifier_and_only_in_training(pixels):
    network = PlantNetwork(TINY, 5, dropout=0.9).eval()
    with torch.no_grad():
        torch.testing.assert_close(network(pixels), network(pixels))
        network.timm_model.eval()
        network.timm_model.training = True  # dropout alone, so that BatchNorm stays as it is
        logits, features = network.logits_and_features(pixels)
    assert (features == 0).float().mean() > 0.8
    torch.testing.assert_close(logits, network.head(features))
