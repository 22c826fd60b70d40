"""Squeeze-and-excite on a CPU without a change of memory layout in every block.

ONNX Runtime runs convolutions with their channels in blocks (its layout NCHWc), but knows no blocked form of "scale
each channel by a gate". So every squeeze-and-excite block of an EfficientNet leaves the layout and enters it again,
which takes a tenth of the whole run. The same scaling is a depthwise convolution of 1 x 1 whose weights are the gate,
and that it has. Where the next convolution is of 1 x 1 too and has fewer weights than the picture has numbers, its
weights are scaled instead and the picture is not touched at all. Tensors in blocks may be padded with further channels,
for which the next convolution's weights are zeros.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

_BLOCKED: Final = "com.microsoft.nchwc"
_KEEP_SIZE: Final = frozenset(
    {"Conv", "QuickGelu", "Gelu", "Relu", "Sigmoid", "HardSigmoid", "ReorderInput", "ReorderOutput"}
)
_SPATIAL: Final = ({2, 3}, {-2, -1})


class KeptBlocked(NamedTuple):
    """A rewritten network file."""

    file: bytes
    """Takes one picture a run; as it was if no scaling was rewritten."""
    num_scalings: int
    """How many scalings of channels were rewritten."""
    num_into_weights: int
    """How many of them scale the weights that come next, and no picture."""


def keep_blocked(optimized: bytes, block_size: int) -> KeptBlocked:
    """Keeps scalings of channels, and the means before them, in the blocked layout.

    Args:
        optimized: A network file as ONNX Runtime optimized it.
        block_size: Channels in a block, see `read_block_size`.
    """
    model = onnx.load_model_from_string(optimized)
    rewriting = _Rewriting(model.graph, block_size)
    for node in model.graph.node:
        rewriting.visit(node)
    if not rewriting.num_scalings:
        return KeptBlocked(optimized, 0, 0)
    nodes = rewriting.needed()
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(rewriting.shapes.values())
    return KeptBlocked(model.SerializeToString(), rewriting.num_scalings, rewriting.num_into_weights)


def one_convolution() -> bytes:
    """A network of one convolution of one channel, for `read_block_size`."""
    picture = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, 1, 1]) for name in ("x", "y")]
    weights = numpy_helper.from_array(np.ones((1, 1, 1, 1), np.float32), "weights")
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "weights"], ["y"])], "one", picture[:1], picture[1:], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def read_block_size(optimized: bytes) -> int:
    """Channels in a block; ONNX Runtime does not tell, but fills the one channel of `one_convolution` up to them.

    Args:
        optimized: That network as ONNX Runtime optimized it for this processor.

    Returns:
        1 where that network was left as it is; then no weights are scaled.
    """
    return max((int(each.dims[0]) for each in onnx.load_model_from_string(optimized).graph.initializer), default=1)


class _Scaling(NamedTuple):
    """A scaling of channels: picture and gate, by their names in blocks, and the picture's pixels, 0 if unknown."""

    picture: str
    num_pixels: int
    gate: str


class _Rewriting:
    """One pass over the nodes in the order in which they run; the graph itself is left alone."""

    def __init__(self, graph: onnx.GraphProto, block_size: int) -> None:
        self.num_scalings = self.num_into_weights = 0
        self.shapes: dict[str, onnx.TensorProto] = {}
        self._block_size = block_size
        self._outputs = {output.name for output in graph.output}
        self._constants = {each.name: each for each in graph.initializer}
        self._producers: dict[str, onnx.NodeProto] = {}
        self._nodes: list[onnx.NodeProto] = []
        self._num_pixels = {each.name: _num_pixels(each) for each in graph.value_info}
        self._pooled: set[str] = set()  # tensors of one pixel
        self._scaled: dict[str, _Scaling] = {}  # what comes of it -> the scaling
        # A plain tensor -> the same in blocks, and its channels without the padding.
        self._blocked: dict[str, str] = {}
        self._num_channels: dict[str, int] = {}
        # A tensor in blocks that was made from a plain one -> the one in blocks that is the same.
        self._instead: dict[str, str] = {}

    def visit(self, original: onnx.NodeProto) -> None:
        """Takes the next node."""
        node = onnx.NodeProto()
        node.CopyFrom(original)
        for index, name in enumerate(node.input):
            node.input[index] = self._instead.get(name, name)
        is_mean = self._is_mean(node)
        if is_mean or (node.op_type in _KEEP_SIZE and node.input[0] in self._pooled):
            self._pooled.add(node.output[0])
        if node.op_type == "ReorderInput" and node.input[0] in self._blocked:
            self._instead[node.output[0]] = self._blocked[node.input[0]]
        elif is_mean and node.domain != _BLOCKED and node.input[0] in self._blocked:
            self._mean(node)
        elif node.op_type == "Mul" and all(name in self._blocked for name in node.input):
            self._scaling(node)
        elif node.op_type == "Conv" and self._has_few_weights(node):
            self._scale_weights(node)
        else:
            self._keep(node)

    def _keep(self, node: onnx.NodeProto) -> None:
        self._nodes.append(node)
        self._producers |= dict.fromkeys(node.output, node)
        if node.op_type == "ReorderOutput" and not _attribute(node, "channels_last"):
            self._blocked[node.output[0]] = node.input[0]
            self._num_channels[node.output[0]] = _attribute(node, "channels")

    def _mean(self, node: onnx.NodeProto) -> None:
        self._add("GlobalAveragePool", [self._blocked[node.input[0]]], f"{node.output[0]}_blocked")
        self._pooled.add(f"{node.output[0]}_blocked")
        self._also_plain(node.output[0], self._num_channels[node.input[0]])

    def _scaling(self, node: onnx.NodeProto) -> None:
        """The gate becomes the weights of a depthwise convolution; `needed` drops it if nobody takes its output."""
        picture, gate = sorted(node.input, key=lambda name: name in self._pooled)
        convolution = self._producers.get(self._blocked[gate])
        weights = self._constants.get(convolution.input[1]) if convolution and convolution.op_type == "Conv" else None
        fits = self._num_channels[picture] == self._num_channels[gate]
        if picture in self._pooled or gate not in self._pooled or weights is None or not fits:
            self._keep(node)
            return
        output = node.output[0]
        self._reshape(self._blocked[gate], f"{output}_weights", -1, 1, 1, 1)
        self._add(
            "Conv",
            [self._blocked[picture], f"{output}_weights"],
            f"{output}_blocked",
            group=weights.dims[0],
            kernel_shape=[1, 1],
            strides=[1, 1],
            dilations=[1, 1],
            pads=[0, 0, 0, 0],
        )
        self._also_plain(output, self._num_channels[picture])
        self._scaled[self._blocked[output]] = _Scaling(
            self._blocked[picture], self._num_pixels.get(picture, 0), self._blocked[gate]
        )
        self.num_scalings += 1

    def _has_few_weights(self, node: onnx.NodeProto) -> bool:
        """Whether it is a convolution of 1 x 1 over a scaled picture that has more numbers than it has weights."""
        weights, scaling = self._constants.get(node.input[1]), self._scaled.get(node.input[0])
        if weights is None or scaling is None or self._block_size == 1:
            return False
        is_pointwise = _attribute(node, "group", 1) == 1 and list(weights.dims[2:]) == [1, 1]
        return is_pointwise and int(weights.dims[0]) < scaling.num_pixels

    def _scale_weights(self, node: onnx.NodeProto) -> None:
        """Multiplies the weights of each input with its gate.

        In memory they lie as blocks of outputs, of blocks of inputs, of inputs, of outputs.
        """
        scaling, weights = self._scaled[node.input[0]], node.input[1]
        num_inputs = self._constants[weights].dims[1]
        parts = ("gate", "repeated", "row", "rows", "scaled", "weights")
        gate, repeated, row, rows, scaled, scaled_weights = (f"{node.output[0]}_{part}" for part in parts)
        self._reshape(scaling.gate, gate, -1, 1)
        self._nodes.append(helper.make_node("Expand", [gate, self._shape(1, self._block_size)], [repeated]))
        self._reshape(repeated, row, 1, -1)
        self._reshape(weights, rows, -1, num_inputs * self._block_size)
        self._nodes.append(helper.make_node("Mul", [rows, row], [scaled]))
        self._reshape(scaled, scaled_weights, -1, num_inputs, 1, 1)
        node.input[0], node.input[1] = scaling.picture, scaled_weights
        self.num_into_weights += 1
        self._keep(node)

    def _reshape(self, name: str, output: str, *shape: int) -> None:
        self._nodes.append(helper.make_node("Reshape", [name, self._shape(*shape)], [output]))

    def _shape(self, *shape: int) -> str:
        """The name of a constant that holds the shape."""
        name = "_".join(map(str, ("botanify_shape", *shape)))
        self.shapes[name] = numpy_helper.from_array(np.array(shape, np.int64), name)
        return name

    def _also_plain(self, name: str, num_channels: int) -> None:
        """Gives the plain tensor too, for whoever needs it."""
        self._add("ReorderOutput", [f"{name}_blocked"], name, channels=num_channels)
        self._blocked[name], self._num_channels[name] = f"{name}_blocked", num_channels

    def _add(self, operator: str, inputs: list[str], output: str, **attributes: Any) -> None:
        node = helper.make_node(operator, inputs, [output], domain=_BLOCKED, **attributes)
        self._nodes.append(node)
        self._producers[output] = node

    def _is_mean(self, node: onnx.NodeProto) -> bool:
        """Whether it takes the mean over the whole picture and keeps the axes."""
        if node.op_type != "ReduceMean":
            return node.op_type == "GlobalAveragePool"
        axes = self._constants.get(node.input[1]) if len(node.input) > 1 else None
        if axes is None or _attribute(node, "keepdims", 1) != 1:
            return False
        return set(numpy_helper.to_array(axes).tolist()) in _SPATIAL

    def needed(self) -> list[onnx.NodeProto]:
        """The nodes without those whose output nobody takes any more."""
        wanted, kept = set(self._outputs), []
        for node in reversed(self._nodes):
            if wanted & set(node.output):
                wanted |= set(node.input)
                kept.append(node)
        return kept[::-1]


def _num_pixels(value: onnx.ValueInfoProto) -> int:
    """Pixels of a picture; 0 where the file does not tell."""
    sides = [dim.dim_value for dim in value.type.tensor_type.shape.dim[2:]]
    return int(np.prod(sides)) if sides else 0


def _attribute(node: onnx.NodeProto, name: str, default: int = 0) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == name), default)
