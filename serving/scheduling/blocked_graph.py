"""Keeps squeeze-and-excite in ONNX Runtime's blocked memory layout on a CPU.

ONNX Runtime runs convolutions with their channels in blocks (layout NCHWc). It has no blocked operator that multiplies
each channel by a scale, so each squeeze-and-excite block of an EfficientNet converts its feature map to the plain
layout and back, which takes a tenth of the run. There are two blocked replacements:

* A depthwise 1x1 convolution whose weights are the scales.
* If the next operator is a 1x1 convolution with fewer output channels than the feature map has pixels, its weights are
  multiplied by the scales instead, and the feature map is not touched.

A blocked tensor may be padded with extra channels, for which the next convolution has zero weights.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

_BLOCKED: Final = "com.microsoft.nchwc"
_SIZE_PRESERVING: Final = frozenset(
    {"Conv", "QuickGelu", "Gelu", "Relu", "Sigmoid", "HardSigmoid", "ReorderInput", "ReorderOutput"}
)
_SPATIAL: Final = ({2, 3}, {-2, -1})


class BlockedNetwork(NamedTuple):
    """A rewritten network file."""

    file: bytes
    """Takes one picture per run; the input file itself if nothing was rewritten."""
    num_scalings: int
    """Number of channel scalings that were rewritten."""
    num_into_weights: int
    """Number of them that scale the next convolution's weights instead of the feature map."""


def keep_blocked(optimized: bytes, block_size: int) -> BlockedNetwork:
    """Rewrites channel scalings, and the global average pools before them, to the blocked layout.

    Args:
        optimized: A network file that ONNX Runtime optimized for this processor.
        block_size: Channels per block, see `read_block_size`.
    """
    model = onnx.load_model_from_string(optimized)
    rewriting = _Rewriting(model.graph, block_size)
    for node in model.graph.node:
        rewriting.visit(node)
    if not rewriting.num_scalings:
        return BlockedNetwork(optimized, 0, 0)
    nodes = rewriting.used_nodes()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(rewriting.shapes.values())
    return BlockedNetwork(model.SerializeToString(), rewriting.num_scalings, rewriting.num_into_weights)


def one_convolution() -> bytes:
    """Returns a network with a single convolution of one channel, for `read_block_size`."""
    tensors = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, 1, 1]) for name in ("x", "y")]
    weights = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weights"], ["y"])], "one", tensors[:1], tensors[1:], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def read_block_size(optimized: bytes) -> int:
    """Returns the number of channels per block.

    ONNX Runtime does not publish it, but pads the single channel of `one_convolution` to a whole block.

    Args:
        optimized: The network `one_convolution`, as ONNX Runtime optimized it for this processor.

    Returns:
        1 if the network was not padded; weights are then not scaled.
    """
    return max((int(each.dims[0]) for each in onnx.load_model_from_string(optimized).graph.initializer), default=1)


class _Scaling(NamedTuple):
    """A multiplication of each channel of a feature map by its scale. The names are those of the blocked tensors."""

    features: str
    num_pixels: int
    """Height times width of the feature map; 0 if unknown."""
    scales: str


class _Rewriting:
    """Builds the rewritten list of nodes in one pass over the graph, which it does not change."""

    def __init__(self, graph: onnx.GraphProto, block_size: int) -> None:
        self.num_scalings = self.num_into_weights = 0
        self.shapes: dict[str, onnx.TensorProto] = {}
        self._block_size = block_size
        self._outputs = {output.name for output in graph.output}
        self._constants = {each.name: each for each in graph.initializer}
        self._producers: dict[str, onnx.NodeProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._num_pixels = {each.name: _num_pixels(each) for each in graph.value_info}
        self._pooled: set[str] = set()  # tensors of height and width 1
        self._scaled: dict[str, _Scaling] = {}  # output tensor -> scaling
        # Plain tensor -> blocked tensor with the same values, and its number of channels without padding.
        self._blocked: dict[str, str] = {}
        self._num_channels: dict[str, int] = {}
        # Output of a conversion to the blocked layout -> blocked tensor that is used instead.
        self._replacements: dict[str, str] = {}

    def visit(self, original: onnx.NodeProto) -> None:
        """Rewrites or keeps a node. Call it for each node in execution order."""
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for index, name in enumerate(node.input):
            node.input[index] = self._replacements.get(name, name)
        is_mean = self._is_mean(node)
        if is_mean or (node.op_type in _SIZE_PRESERVING and node.input[0] in self._pooled):
            self._pooled.add(node.output[0])
        if node.op_type == "ReorderInput" and node.input[0] in self._blocked:
            self._replacements[node.output[0]] = self._blocked[node.input[0]]
        elif is_mean and node.domain != _BLOCKED and node.input[0] in self._blocked:
            self._rewrite_mean(node)
        elif node.op_type == "Mul" and all(name in self._blocked for name in node.input):
            self._rewrite_scaling(node)
        elif node.op_type == "Conv" and self._should_scale_weights(node):
            self._scale_weights(node)
        else:
            self._keep(node)

    def _keep(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)
        self._producers |= dict.fromkeys(node.output, node)
        if node.op_type == "ReorderOutput" and not _attribute(node, "channels_last"):
            self._blocked[node.output[0]] = node.input[0]
            self._num_channels[node.output[0]] = _attribute(node, "channels")

    def _rewrite_mean(self, node: onnx.NodeProto) -> None:
        self._add("GlobalAveragePool", [self._blocked[node.input[0]]], f"{node.output[0]}_blocked")
        self._pooled.add(f"{node.output[0]}_blocked")
        self._add_plain_output(node.output[0], self._num_channels[node.input[0]])

    def _rewrite_scaling(self, node: onnx.NodeProto) -> None:
        """Replaces the scaling by a depthwise convolution, which `used_nodes` drops if its output is not used."""
        features, scales = sorted(node.input, key=lambda name: name in self._pooled)
        convolution = self._producers.get(self._blocked[scales])
        weights = self._constants.get(convolution.input[1]) if convolution and convolution.op_type == "Conv" else None
        same_channels = self._num_channels[features] == self._num_channels[scales]
        if features in self._pooled or scales not in self._pooled or weights is None or not same_channels:
            self._keep(node)
            return
        output = node.output[0]
        self._reshape(self._blocked[scales], f"{output}_weights", -1, 1, 1, 1)
        self._add(
            "Conv",
            [self._blocked[features], f"{output}_weights"],
            f"{output}_blocked",
            group=weights.dims[0],
            kernel_shape=[1, 1],
            strides=[1, 1],
            dilations=[1, 1],
            pads=[0, 0, 0, 0],
        )
        self._add_plain_output(output, self._num_channels[features])
        self._scaled[self._blocked[output]] = _Scaling(
            self._blocked[features], self._num_pixels.get(features, 0), self._blocked[scales]
        )
        self.num_scalings += 1

    def _should_scale_weights(self, node: onnx.NodeProto) -> bool:
        """Whether the node is a 1x1 convolution of a scaled feature map and scaling its weights is cheaper."""
        weights, scaling = self._constants.get(node.input[1]), self._scaled.get(node.input[0])
        if weights is None or scaling is None or self._block_size == 1:
            return False
        is_pointwise = _attribute(node, "group", 1) == 1 and list(weights.dims[2:]) == [1, 1]
        return is_pointwise and int(weights.dims[0]) < scaling.num_pixels

    def _scale_weights(self, node: onnx.NodeProto) -> None:
        """Multiplies the weights of each input channel by its scale.

        Memory layout of the weights: output blocks, input blocks, inputs per block, outputs per block.
        """
        scaling, weights = self._scaled[node.input[0]], node.input[1]
        num_inputs = self._constants[weights].dims[1]
        parts = ("scales", "repeated", "row", "rows", "scaled", "weights")
        scales, repeated, row, rows, scaled, scaled_weights = (f"{node.output[0]}_{part}" for part in parts)
        self._reshape(scaling.scales, scales, -1, 1)
        self._nodes.append(helper.make_node("Expand", [scales, self._shape(1, self._block_size)], [repeated]))
        self._reshape(repeated, row, 1, -1)
        self._reshape(weights, rows, -1, num_inputs * self._block_size)
        self._nodes.append(helper.make_node("Mul", [rows, row], [scaled]))
        self._reshape(scaled, scaled_weights, -1, num_inputs, 1, 1)
        node.input[0], node.input[1] = scaling.features, scaled_weights
        self.num_into_weights += 1
        self._keep(node)

    def _reshape(self, name: str, output: str, *shape: int) -> None:
        self._nodes.append(helper.make_node("Reshape", [name, self._shape(*shape)], [output]))

    def _shape(self, *shape: int) -> str:
        """Adds the shape as a constant and returns the name of that constant."""
        name = "_".join(map(str, ("botanify_shape", *shape)))
        self.shapes[name] = numpy_helper.from_array(np.array(shape, np.int64), name)
        return name

    def _add_plain_output(self, name: str, num_channels: int) -> None:
        """Converts the blocked tensor of this name to plain layout, for operators that need it."""
        self._add("ReorderOutput", [f"{name}_blocked"], name, channels=num_channels)
        self._blocked[name], self._num_channels[name] = f"{name}_blocked", num_channels

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        node = helper.make_node(operator, inputs, [output], domain=_BLOCKED, **attributes)
        self._nodes.append(node)
        self._producers[output] = node

    def _is_mean(self, node: onnx.NodeProto) -> bool:
        """Whether the node is a mean over height and width that keeps both axes."""
        if node.op_type != "ReduceMean":
            return node.op_type == "GlobalAveragePool"
        axes = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        if axes is None or _attribute(node, "keepdims", 1) != 1:
            return False
        return set(numpy_helper.to_array(axes).tolist()) in _SPATIAL

    def used_nodes(self) -> list[onnx.NodeProto]:
        """Returns the nodes whose outputs are used."""
        used, kept = set(self._outputs), []
        for node in reversed(self._nodes):
            if used & set(node.output):
                used |= set(node.input)
                kept.append(node)
        return kept[::-1]


def _num_pixels(value: onnx.ValueInfoProto) -> int:
    """Returns height times width of a feature map, or 0 if the file does not give them."""
    sides = [dim.dim_value for dim in value.type.tensor_type.shape.dim[2:]]
    return int(np.prod(sides)) if sides else 0


def _attribute(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
