"""Small graphs, built node by node."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def write_graph(path, nodes, constants, shape=("batch", 2, 4, 4), opset=20):
    """A network from `pixels` to `logits`; constants are name -> array."""
    graph = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", None, None, None])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    helper.set_model_props(model, {"label_hash": "abc", "output_keys": "[]"})
    onnx.save(model, path)
    return path


def kinds(path):
    """Operators of a file, in order."""
    return [node.op_type for node in onnx.load(path).graph.node]


def metadata(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}
