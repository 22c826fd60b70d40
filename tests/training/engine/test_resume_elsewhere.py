"""A run stopped inside an epoch resumes with another number of loader processes and ranks."""

from collections.abc import Iterator
from itertools import chain

import msgspec
import pytest
import torch

from models.network import PlantNetwork
from tests.training.small import command, draw, make_taxonomy, make_trainer, write_data
from training.dataset.manifest import Manifest
from training.engine.checkpoint import Position, read_checkpoint
from training.loading.data import training_loader

NUM_PICTURES = 24  # each of its own class, so that the label identifies the picture
COLORS = ("crimson", "gold", "royalblue")


class Recorded:
    """A loader that records the pictures it gives."""

    def __init__(self, loader):
        self.loader, self.pictures = loader, []

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for pixels, labels in self.loader:
            self.pictures += labels.tolist()
            yield pixels, labels


@pytest.fixture(scope="module")
def one_picture_a_class(tmp_path_factory):
    folder, taxonomy = tmp_path_factory.mktemp("elsewhere"), make_taxonomy(NUM_PICTURES)
    rows = [("seen.png", taxonomy.output_keys[0], "validation")]
    draw("white", "ellipse", 99).save(folder / "seen.png")
    for number, key in enumerate(taxonomy.output_keys):
        draw(COLORS[number % 3], "ellipse", number).save(folder / f"{number}.png")
        rows.append((f"{number}.png", key, "train"))
    return write_data(folder / "data", folder, rows, taxonomy)


def half_an_epoch(data, run):
    """Trains 3 of 6 batches on one rank; returns the saved position and the pictures that were trained on."""
    trainer = make_trainer(data, run, PlantNetwork("test_efficientnet", NUM_PICTURES), "--workers", 2)
    trainer.loader = recorded = Recorded(trainer.loader)
    trainer.run(max_steps=3)
    trainer.close()
    return msgspec.convert(read_checkpoint(run / "last.pt").position, Position), recorded.pictures


def load(data, position, *flags, rank=0, num_ranks=1):
    """Loads the rest of an epoch on one rank; returns label -> pixels, and the batch sizes."""
    recipe = command(data, data / "unused", *flags).recipe
    loader, batches = training_loader(Manifest(data), recipe, pin=False, rank=rank, num_ranks=num_ranks)
    batches.epoch, batches.first_picture, batches.side_px = position.epoch, position.pictures, 32
    loaded = list(loader)
    pictures = [(int(label), pixels) for batch in loaded for pixels, label in zip(*batch, strict=True)]
    assert len(dict(pictures)) == len(pictures)
    return dict(pictures), [len(labels) for _, labels in loaded]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning")  # on two cores
def test_two_ranks_resume_with_exactly_the_pictures_that_one_rank_left(one_picture_a_class, tmp_path):
    position, trained = half_an_epoch(one_picture_a_class, tmp_path / "run")
    assert (position.epoch, position.pictures, len(trained)) == (0, 12, 12)

    flags = ("--workers", 3, "--batch-size", 3)
    ranks = [load(one_picture_a_class, position, *flags, rank=rank, num_ranks=2) for rank in range(2)]
    assert [sizes for _, sizes in ranks] == [[3, 3]] * 2
    seen = [*trained, *chain.from_iterable(pictures for pictures, _ in ranks)]
    assert sorted(seen) == list(range(NUM_PICTURES))

    uninterrupted, _ = load(one_picture_a_class, Position(), "--workers", 0)
    for pictures, _ in ranks:
        assert all(torch.equal(pixels, uninterrupted[label]) for label, pixels in pictures.items())
