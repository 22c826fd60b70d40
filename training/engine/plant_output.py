"""The auxiliary output that tells plants from other pictures. It shapes the features, and is not exported.

Where no picture without a plant is given, there is no such output and training is as without this file. Shape suffixes:
B pictures, the plants first; O outputs; S scores, which are the outputs and then the plant output.
"""

from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.network import PlantNetwork
from training.loading.augment import seeded
from training.recipe import Recipe

_STD: Final = 0.01  # as the classifier's
_STREAM: Final = 1  # its random numbers are not the network's, which is made from the seed alone


class WithPlantOutput(nn.Module):
    """A network and one more linear layer on its pooled features, after the same dropout.

    Args:
        network: The network; it stays as it is.
        seed: Seed of the layer's weights.
    """

    def __init__(self, network: PlantNetwork, seed: int) -> None:
        super().__init__()
        self.network = network
        with seeded(seed, _STREAM):
            self.plant_output = nn.Linear(network.num_features, 1)
            nn.init.normal_(self.plant_output.weight, std=_STD)
            nn.init.zeros_(self.plant_output.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns scores_BS for normalized pictures of shape (B, 3, height, width)."""
        return self.scores(self.network.features(pixels))

    def scores(self, features_BF: Tensor) -> Tensor:
        """Returns scores_BS for pooled features."""
        return torch.cat([self.network.head(features_BF), self.plant_output(features_BF)], dim=1)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the classifier and of the plant output."""
        yield from self.network.head_parameters()
        yield from self.plant_output.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters outside of both."""
        yield from self.network.backbone_parameters()


def with_plant_output(network: PlantNetwork, recipe: Recipe) -> WithPlantOutput | None:
    """The network with a plant output on its device, if the recipe names pictures without plants; else None."""
    if not recipe.negatives.negatives:
        return None
    return WithPlantOutput(network, recipe.run.seed).to(next(network.parameters()).device)


def plant_output_state(trained: WithPlantOutput, validated: nn.Module) -> dict[str, Any]:
    """The weights of the plant output, and those of the model that is validated, which may be a moving average."""
    return {
        "weights": trained.plant_output.state_dict(),
        "averaged": validated.get_submodule("plant_output").state_dict(),
    }


def load_plant_output(trained: WithPlantOutput, validated: nn.Module, state: dict[str, Any]) -> None:
    """Loads what `plant_output_state` returned."""
    validated.get_submodule("plant_output").load_state_dict(state["averaged"])
    trained.plant_output.load_state_dict(state["weights"])  # last, as both may be one model


def plant_loss(logits_B: Tensor, num_plants: int) -> Tensor:
    """Binary cross entropy, nats: the mean of its mean over the plants and its mean over the rest.

    Both halves have equal weights, so that logit 0 is the border whatever their sizes.

    Args:
        logits_B: Large for plants, which come first.
        num_plants: How many they are; at least one.
    """
    plants_B, others_B = logits_B[:num_plants].float(), logits_B[num_plants:].float()
    of_plants = F.softplus(-plants_B).mean()
    return of_plants if len(others_B) == 0 else (of_plants + F.softplus(others_B).mean()) / 2


def plant_figures(logits_B: Tensor, num_plants: int) -> Tensor:
    """The loss, the share of the plants told right, and the share of the rest told right; shape (3,)."""
    told_B = torch.cat([logits_B[:num_plants] > 0, logits_B[num_plants:] <= 0]).float()
    others = told_B[num_plants:]
    shares = told_B[:num_plants].mean(), others.mean() if len(others) else told_B.new_ones(())
    return torch.stack([plant_loss(logits_B, num_plants), *shares]).detach()
