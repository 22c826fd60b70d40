import pytest
import torch

from models.network import PlantNetwork
from training.evaluation.predict import predict, torch_runner


@pytest.mark.parametrize("training", [True, False])
def test_predicting_changes_neither_mode_nor_statistics_and_drops_nothing(training):
    torch.manual_seed(0)
    network = PlantNetwork("test_efficientnet", 3, dropout=0.9, drop_path=0.5).train(training)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    run, pixels = torch_runner(network, torch.device("cpu")), torch.randn(4, 3, 32, 32)
    assert (run(pixels) == run(pixels)).all()
    assert network.training is training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_logits_keep_the_order_of_the_loader():
    batches = [[torch.full((2, 1), float(at)), torch.tensor([at, at + 10])] for at in range(3)]
    logits, labels = predict(batches, lambda pixels: pixels.numpy())
    assert logits[:, 0].tolist() == [0, 0, 1, 1, 2, 2]
    assert labels.tolist() == [0, 10, 1, 11, 2, 12]
