"""What the compiler makes of a training step: one graph for each size of the pictures, and no break in it."""

import pytest
import torch

from benchmarks.train_speed_arms import open_engine
from training.loading.negatives import NOT_A_PLANT
from training.recipe import check_recipe, read_recipe, recipe_files
from training.toml_file import section_to_plain

NAMES = [path.stem for path in recipe_files() if path.stem != "debug"]


def graphs_of(recipe_path, sides, monkeypatch):
    """The number of operations of each graph that a step compiles, for one step with pictures of each side."""
    graphs = []

    def compiled(module, **options):
        def keep(graph, _inputs):
            graphs.append(len(graph.graph.nodes))
            return graph.forward

        return compile_with(module, backend=keep, fullgraph=True, dynamic=options["dynamic"])

    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", compiled)
    plain = section_to_plain(read_recipe(recipe_path))
    plain["hardware"] |= {"device": "cpu", "amp": "bf16", "compile": "default"}
    plain["negatives"] |= {"negatives": [str(recipe_path)]}  # only that there are some matters
    plain["schedule"] |= {"accumulate": 1}
    recipe = check_recipe(plain, "rehearsal")
    engine = open_engine(recipe, 20, torch.device("cpu"))
    labels = torch.tensor([0, 1, 2, NOT_A_PLANT])
    for step, side in enumerate((*sides, sides[-1])):
        engine.train_mode()  # as at the start of an epoch
        engine.micro_step(torch.zeros((4, 3, side, side), dtype=torch.uint8), labels, step=step)
    return graphs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_one_graph_for_each_size(name, monkeypatch):
    torch.compiler.reset()
    path = next(path for path in recipe_files() if path.stem == name)
    graphs = graphs_of(path, (64, 96), monkeypatch)
    assert len(graphs) == 2
    assert min(graphs) > 100
    torch.compiler.reset()
