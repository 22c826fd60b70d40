"""What a run prints where there is no terminal."""

from tests.training.small import command
from training.train import train


def test_an_epoch_has_a_line_of_its_own_with_its_peak_of_gpu_memory_and_no_bar(data, tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("training.engine.loop.peak_memory_gb", lambda _: 12.34)
    train(command(data, tmp_path / "run", "--batch-size", 16, "--epochs", 2))
    written = capfd.readouterr().err
    epochs = [line for line in written.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == 2
    assert all(" px, at most 12.3 GB of GPU memory, validation top-1 " in line for line in epochs)
    assert "\x1b" not in written
    assert "━" not in written
