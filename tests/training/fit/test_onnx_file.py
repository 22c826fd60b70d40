import json

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto

from models.errors import BotanifyError
from models.network import PlantNetwork
from models.session import OnnxSession
from tests.models.pictures import SPEC
from tests.training.small import make_taxonomy
from training.fit import onnx_file
from training.fit.onnx_file import OPSET, fold_batch_norm, round_to_half, write_onnx

TAXONOMY = make_taxonomy(7)


def lived_in(architecture):
    """A network whose norms have running statistics and whose scales are not 1."""
    torch.manual_seed(4)
    network = PlantNetwork(architecture, 7)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
        for _ in range(3):
            network(torch.randn(8, 3, 32, 32))
    return network.eval()


def answers(network, pixels):
    with torch.no_grad():
        return network.logits_and_features(pixels)


@pytest.mark.parametrize("architecture", ["test_efficientnet", "efficientnet_b4"])
def test_folding_the_norms_keeps_the_answers(architecture):
    network, pixels = lived_in(architecture), torch.randn(3, 3, 32, 32)
    before = answers(network, pixels)
    fold_batch_norm(network, SPEC)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in network.modules())
    for old, new in zip(before, answers(network, pixels), strict=True):
        assert (old - new).abs().max() < 1e-4
        assert old.std() > 1e-3


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A network and the file it was written to."""
    network = lived_in("test_efficientnet")
    fold_batch_norm(network, SPEC)
    round_to_half(network)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    write_onnx(network, SPEC, TAXONOMY, path)
    return network, path


def test_the_file_has_the_opset_inputs_and_outputs_of_a_bundle(written):
    model = onnx.load(written[1])
    assert {entry.domain: entry.version for entry in model.opset_import}[""] == OPSET == 20
    assert [node.name for node in model.graph.input] == ["pixels"]
    assert [node.name for node in model.graph.output] == ["logits", "features"]
    kinds = {node.op_type for node in model.graph.node}
    assert "Conv" in kinds
    assert "BatchNormalization" not in kinds
    assert written[1].parent.joinpath("model.onnx.data").exists() is False


@pytest.mark.parametrize("batch", [1, 3, 5])
def test_the_file_answers_as_pytorch_does_for_any_batch(written, batch):
    network, path = written
    pixels = torch.randn(batch, 3, 32, 32)
    found = OnnxSession(path).run(pixels.numpy())
    for expected, got in zip(answers(network, pixels), found, strict=True):
        assert got.shape == expected.shape
        assert np.abs(got - expected.numpy()).max() < 1e-4


def test_large_weights_are_kept_in_half_and_computed_in_single(written):
    _, path = written
    model = onnx.load(path)
    large = [tensor for tensor in model.graph.initializer if np.prod(tensor.dims) >= 64]
    assert large
    assert {tensor.data_type for tensor in large} - {TensorProto.INT64} == {TensorProto.FLOAT16}
    assert {node.type for node in onnxruntime.InferenceSession(path).get_outputs()} == {"tensor(float)"}


def test_only_weights_that_are_stored_in_half_are_rounded():
    network = lived_in("test_efficientnet")
    before = {name: value.clone() for name, value in network.named_parameters()}
    round_to_half(network)
    for name, value in network.named_parameters():
        assert value.dtype == torch.float32
        small = value.numel() < 64
        assert torch.equal(value, before[name] if small else before[name].half().float()), name


def test_the_metadata_has_the_names_of_the_outputs(written):
    metadata = onnxruntime.InferenceSession(written[1]).get_modelmeta().custom_metadata_map
    assert tuple(json.loads(metadata["output_keys"])) == TAXONOMY.output_keys
    assert json.loads(metadata["scientific_names"]) == [taxon.scientific_name for taxon in TAXONOMY.taxa]
    assert metadata["label_hash"] == TAXONOMY.label_hash
    assert OnnxSession(written[1]).output_keys == TAXONOMY.output_keys


@pytest.mark.slow
def test_an_exporter_that_writes_another_opset_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file, "OPSET", 18)

    def raise_opset(*arguments, opset_version, **options):
        return original(*arguments, opset_version=20, **options)

    original = torch.onnx.export
    monkeypatch.setattr(torch.onnx, "export", raise_opset)
    with pytest.raises(BotanifyError, match="opset 20 instead of 18"):
        write_onnx(lived_in("test_efficientnet"), SPEC, TAXONOMY, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
