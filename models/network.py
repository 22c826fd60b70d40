"""The network: EfficientNet-B4 (Tan and Le 2019) from timm. The only file of `models/` that imports torch.

Letters in names: B pictures, F features, O outputs.
"""

from collections.abc import Iterator
from typing import cast

import timm
from torch import Tensor, nn

_HEAD_STD = 0.01


class PlantNetwork(nn.Module):
    """An image classifier that also returns the pooled features before its classifier.

    Args:
        architecture: Name of a timm model with a linear classifier, such as "efficientnet_b4".
        num_outputs: Width of the classifier.
        dropout: Probability of dropping a feature before the classifier.
        drop_path: Largest probability of skipping a residual block (stochastic depth).
    """

    def __init__(self, architecture: str, num_outputs: int, *, dropout: float = 0.0, drop_path: float = 0.0) -> None:
        super().__init__()
        self.architecture = architecture
        self.num_outputs = num_outputs
        self.timm_model = timm.create_model(
            architecture, num_classes=num_outputs, drop_rate=dropout, drop_path_rate=drop_path
        )
        # timm initializes the classifier within 1/sqrt(num_outputs), whatever its number of inputs. With 17 outputs the
        # first loss is then 5, where guessing gives 2.8, and the backbone learns from noise. 0.01 is what timm's rule
        # gives for thousands of outputs.
        nn.init.normal_(self.head.get_parameter("weight"), std=_HEAD_STD)

    @property
    def num_features(self) -> int:
        """Width of the pooled features."""
        return cast(int, self.timm_model.num_features)

    @property
    def head(self) -> nn.Module:
        """The classifier: the only part that is replaced for a new list of outputs."""
        return cast(nn.Module, self.timm_model.get_classifier())  # type: ignore[operator]

    def forward(self, pixels: Tensor) -> Tensor:
        """Returns logits_BO for normalized pictures of shape (B, 3, height, width)."""
        return cast(Tensor, self.timm_model(pixels))

    def logits_and_features(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits_BO, features_BF); in training mode, dropout is applied to both."""
        features_BF = self.features(pixels)
        return self.head(features_BF), features_BF

    def features(self, pixels: Tensor) -> Tensor:
        """Returns the pooled features_BF for normalized pictures of shape (B, 3, height, width)."""
        maps = self.timm_model.forward_features(pixels)  # type: ignore[operator]
        return cast(Tensor, self.timm_model.forward_head(maps, pre_logits=True))  # type: ignore[operator]

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the classifier."""
        yield from self.head.parameters()

    def backbone_parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters outside of the classifier."""
        head = {id(parameter) for parameter in self.head.parameters()}
        yield from (parameter for parameter in self.parameters() if id(parameter) not in head)

    def num_parameters(self) -> int:
        """Returns the number of parameter elements of the network."""
        return sum(parameter.numel() for parameter in self.parameters())


class ExportableNetwork(nn.Module):
    """Wraps a network for export: a call returns both outputs of a bundle's network file."""

    def __init__(self, network: PlantNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (logits_BO, features_BF) for normalized pictures of shape (B, 3, height, width)."""
        return self.network.logits_and_features(pixels)
