"""The network: EfficientNet-B4 (Tan and Le 2019) through timm. The only file of `models/` that knows torch.

Letters in names: B pictures, F features, O outputs.
"""

from collections.abc import Iterator
from typing import cast

import timm
from torch import Tensor, nn

_HEAD_STD = 0.01


class PlantNetwork(nn.Module):
    """An image classifier that also gives the pooled features in front of its classifier.

    Args:
        architecture: Name of a timm model with a linear classifier, such as "efficientnet_b4".
        num_outputs: Width of the classifier.
        dropout: Probability of dropping a feature in front of the classifier.
        drop_path: Largest probability of skipping a residual block (stochastic depth).
    """

    def __init__(self, architecture: str, num_outputs: int, *, dropout: float = 0.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        self.num_outputs = num_outputs
        self.timm_model = timm.create_model(
            architecture, num_classes=num_outputs, drop_rate=dropout, drop_path_rate=drop_path
        )
        # timm draws the classifier within 1/sqrt(num_outputs), whatever its inputs: at 17 outputs the first loss is 5
        # where chance is 2.8, and the backbone learns from noise. 0.01 is what timm's rule gives for thousands.
        nn.init.normal_(self.head.get_parameter("weight"), std=_HEAD_STD)

    @property
    def num_features(self) -> int:
        """Width of the pooled features."""
        return cast(int, self.timm_model.num_features)

    @property
    def head(self) -> nn.Module:
        """The classifier: the only part that a new list of outputs replaces."""
        return cast(nn.Module, self.timm_model.get_classifier())  # type: ignore[operator]

    def forward(self, pixels: Tensor) -> Tensor:
        """Gives logits_BO from normalized pictures of shape (B, 3, height, width)."""
        return cast(Tensor, self.timm_model(pixels))

    def logits_and_features(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Gives (logits_BO, features_BF); in training mode, dropout has acted on both."""
        features_BF = self.features(pixels)
        return self.head(features_BF), features_BF

    def features(self, pixels: Tensor) -> Tensor:
        """Gives the pooled features, features_BF, from normalized pictures of shape (B, 3, height, width)."""
        maps = self.timm_model.forward_features(pixels)  # type: ignore[operator]
        return cast(Tensor, self.timm_model.forward_head(maps, pre_logits=True))  # type: ignore[operator]

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the classifier."""
        yield from self.head.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Every parameter that is not the classifier's."""
        head = {id(parameter) for parameter in self.head.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in head)

    def num_parameters(self) -> int:
        """How many trainable numbers the network has."""
        return sum(parameter.numel() for parameter in self.parameters())


class ExportableNetwork(nn.Module):
    """Wraps a network so that a plain call gives both outputs that a bundle's network file has."""

    def __init__(self, network: PlantNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Gives (logits_BO, features_BF) from normalized pictures of shape (B, 3, height, width)."""
        return self.network.logits_and_features(pixels)
