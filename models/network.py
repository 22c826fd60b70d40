"""The network: a timm model, by default EfficientNet-B4 (Tan and Le 2019). The only file of `models/` with torch.

Letters in names: B pictures, F features, O outputs.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

import timm
import torch
from timm.models import is_model_in_modules
from torch import Tensor, nn
from torch.nn import functional

from models.errors import RecipeError

TIMM_MODEL: Final = "timm_model"
"""Attribute of PlantNetwork that holds the timm network; its state dict has these names below it."""
# Modules of timm whose networks cut a picture into patches. If asked to, they resample the positions of their patches
# for the size of each picture; otherwise they take one size only.
_WITH_PATCHES: Final = ("vision_transformer", "deit", "eva")


def side_multiple(architecture: str) -> int:
    """Returns what the sides of a picture must be multiples of, px: the side of a patch, or 1 without patches."""
    if not _has_patches(architecture):
        return 1
    with torch.device("meta"):
        return int(timm.create_model(architecture).get_submodule("patch_embed").patch_size[0])  # type: ignore[index]


class PlantNetwork(nn.Module):
    """An image classifier that also returns the pooled features before its classifier.

    Args:
        architecture: Name of a timm model with a linear classifier, such as "efficientnet_b4".
        num_outputs: Width of the classifier.
        dropout: Probability of dropping a feature before the classifier.
        drop_path: Largest probability of skipping a residual block (stochastic depth).

    Raises:
        RecipeError: The classifier is not one linear layer.
    """

    def __init__(self, architecture: str, num_outputs: int, *, dropout: float = 0.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        self.num_outputs = num_outputs
        self._dropout = dropout
        options: dict[str, Any] = {"num_classes": num_outputs, "drop_rate": dropout}
        if _has_patches(architecture):
            options["dynamic_img_size"] = True
        try:
            self.timm_model = timm.create_model(architecture, drop_path_rate=drop_path, **options)
        except TypeError:  # it knows no stochastic depth
            self.timm_model = timm.create_model(architecture, **options)
        head: object = self.head
        if not isinstance(head, nn.Linear):
            kinds = [type(each).__name__ for each in (head if isinstance(head, tuple) else (head,))]
            raise RecipeError(
                "the network has no classifier that can be trained and exported here",
                value=f"{architecture}, which has {' and '.join(kinds)}",
                limit="one linear layer",
                remedy="choose another --architecture",
            )
        # timm initializes the classifier within 1/sqrt(num_outputs), whatever its number of inputs. With 17 outputs the
        # first loss is then 5, where guessing gives 2.8, and the backbone learns from noise. 0.01 is what timm's rule
        # gives for thousands of outputs.
        nn.init.normal_(self.head.get_parameter("weight"), std=0.01)

    @property
    def num_features(self) -> int:
        """Width of the pooled features."""
        return cast(nn.Linear, self.head).in_features  # timm's num_features are those before a wider head

    @property
    def head(self) -> nn.Module:
        """The classifier: the only part that is replaced for a new list of outputs."""
        return cast(nn.Module, self.timm_model.get_classifier())  # type: ignore[operator]

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns logits_BO for normalized pictures of shape (B, 3, height, width), or for features_BF."""
        if pixels.ndim == 2:
            return cast(Tensor, self.head(self.features(pixels)))
        return cast(Tensor, self.timm_model(pixels))

    def logits_and_features(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits_BO, features_BF); in training mode, dropout is applied to both."""
        features_BF = self.features(pixels)
        return self.head(features_BF), features_BF

    def features(self, pixels: Tensor) -> Tensor:
        """Returns the pooled features_BF for normalized pictures of shape (B, 3, height, width).

        Features that are given, as of a frozen network, come back with the dropout before the classifier.
        """
        if pixels.ndim == 2:
            return functional.dropout(pixels, self._dropout, self.training)
        maps = self.timm_model.forward_features(pixels)  # type: ignore[operator]
        return cast(Tensor, self.timm_model.forward_head(maps, pre_logits=True))  # type: ignore[operator]

    def fix_size(self, height: int, width: int) -> None:
        """Resamples the positions of the patches once for pictures of one size, px, and not in each call.

        For export. Networks without patches are not changed.
        """
        if _has_patches(self.architecture):
            self.timm_model.set_input_size(img_size=(height, width))  # type: ignore[operator]

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the classifier."""
        return self.head.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters outside of the classifier."""
        head = {id(parameter) for parameter in self.head.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in head)

    def num_parameters(self) -> int:
        """Returns the number of parameter elements of the network."""
        return sum(parameter.numel() for parameter in self.parameters())


def timm_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns a state dict of PlantNetwork under the names of the timm network in it."""
    return {name.removeprefix(f"{TIMM_MODEL}."): value for name, value in state.items()}


class ExportableNetwork(nn.Module):
    """Wraps a network for export: a call returns both outputs of a bundle's network file."""

    def __init__(self, network: PlantNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits_BO, features_BF) for normalized pictures of shape (B, 3, height, width)."""
        return self.network.logits_and_features(pixels)


def _has_patches(architecture: str) -> bool:
    return is_model_in_modules(architecture, _WITH_PATCHES)
