import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from torch.nn import functional as F

from models.taxonomy import Output, Taxon, Taxonomy
from tests.training.small import make_taxonomy, write_data
from training.dataset.manifest import Manifest
from training.engine.losses import SAMPLES_OF_UNSEEN, TrainingClasses, TrainingLoss, training_classes
from training.loading.sampler import EpochBatches, labels_for_sampling
from training.recipe import DataRecipe, LossRecipe, Recipe

CPU = torch.device("cpu")
# Taxa of 1, 2 and 3 outputs; the outputs of a taxon are not adjacent.
MIXED = TrainingClasses((2, 0, 1, 2, 1, 2), 3, (5.0, 100.0, 20.0, 7.0, 0.0, 3.0))
ONE_EACH = TrainingClasses((1, 0, 2), 3, (90.0, 9.0, 0.0))


def make_batch(num_outputs, size=5, seed=0, scale=3.0):
    """Logits and mixed targets, as mixup gives them."""
    random = np.random.default_rng(seed)
    first, second = random.integers(num_outputs, size=(2, size))
    share = random.random((size, 1))
    targets_BO = share * np.eye(num_outputs)[first] + (1 - share) * np.eye(num_outputs)[second]
    return scale * random.standard_normal((size, num_outputs)), targets_BO


def loss_by_definition(logits_BO, targets_BO, recipe, classes):
    """The definition of the loss, computed class by class."""
    if recipe.target == "taxon":
        groups = [[o for o, t in enumerate(classes.taxon_of_output) if t == taxon] for taxon in range(classes.num_taxa)]
    else:
        groups = [[output] for output in range(logits_BO.shape[1])]
    scores = np.stack([logsumexp(logits_BO[:, group], axis=1) for group in groups], axis=1)
    targets = np.stack([targets_BO[:, group].sum(1) for group in groups], axis=1)
    samples = np.array([sum(classes.samples_of_output[output] for output in group) for group in groups])
    samples = np.where(samples == 0, SAMPLES_OF_UNSEEN, samples)
    log_p = log_softmax(scores + recipe.logit_adjustment * np.log(samples / samples.sum()), axis=1)
    smooth = (1 - recipe.label_smoothing) * targets + recipe.label_smoothing / len(groups)
    return -(smooth * log_p).sum(1).mean()


def tensors(*arrays, dtype=torch.float64):
    return tuple(torch.from_numpy(array).to(dtype) for array in arrays)


@pytest.mark.parametrize("target", ["output", "taxon"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("tau", [0.0, 1.0, 1.5])
@pytest.mark.parametrize("classes", [MIXED, ONE_EACH])
def test_the_loss_is_what_its_definition_says(target, smoothing, tau, classes):
    recipe = LossRecipe(target=target, label_smoothing=smoothing, logit_adjustment=tau)
    batch = make_batch(len(classes.taxon_of_output))
    found = TrainingLoss(recipe, classes, CPU)(*tensors(*batch))
    assert found.item() == pytest.approx(loss_by_definition(*batch, recipe, classes), rel=1e-6)


@pytest.mark.parametrize("target", ["output", "taxon"])
def test_labels_cost_as_much_as_the_same_targets_in_shares(target):
    loss = TrainingLoss(LossRecipe(target=target, logit_adjustment=1.0), MIXED, CPU)
    (logits,) = tensors(make_batch(6)[0])
    labels = torch.tensor([3, 0, 1, 4, 5])
    assert loss(logits, labels).item() == pytest.approx(loss(logits, F.one_hot(labels, 6).double()).item(), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_over_outputs_it_is_exactly_torch_s_cross_entropy(dtype):
    logits, targets = tensors(*make_batch(6), dtype=torch.float32)
    found = TrainingLoss(LossRecipe(label_smoothing=0.1), MIXED, CPU)(logits.to(dtype), targets)
    assert found.dtype == torch.float32
    assert torch.equal(found, F.cross_entropy(logits.to(dtype).float(), targets, label_smoothing=0.1))


@pytest.mark.parametrize("target", ["output", "taxon"])
def test_large_logits_do_not_overflow(target):
    recipe = LossRecipe(target=target, label_smoothing=0.1, logit_adjustment=1.0)
    logits, targets = make_batch(6, scale=1e4)
    values = torch.from_numpy(logits).float().requires_grad_()
    found = TrainingLoss(recipe, MIXED, CPU)(values, torch.from_numpy(targets))
    assert found.item() == pytest.approx(loss_by_definition(logits, targets, recipe, MIXED), rel=1e-5)
    found.backward()
    assert values.grad.isfinite().all()


def test_a_taxon_without_outputs_is_refused():
    with pytest.raises(ValueError, match="taxon 1 has no output"):
        TrainingLoss(LossRecipe(target="taxon"), TrainingClasses((0, 2, 2, 0), 3, (1.0,) * 4), CPU)


@pytest.fixture(scope="module")
def long_tailed(tmp_path_factory):
    """Four outputs, of which the first two are one taxon and the last has no training picture."""
    drawn = make_taxonomy(4)
    taxa = (Taxon(taxon_id="unused", rank="species", scientific_name="Aaa bbb", genus="Aaa"), *drawn.taxa[1:])
    outputs = (Output(key=drawn.outputs[0].key, source="drawn", taxon_id=taxa[1].taxon_id), *drawn.outputs[1:])
    taxonomy = Taxonomy(taxonomy_version="test", taxa=taxa, outputs=outputs)
    pictures = [
        (f"{output}/{number}.jpg", taxonomy.output_keys[output], "train")
        for output, size in enumerate((36, 13, 4))
        for number in range(size)
    ]
    pictures += [("3/0.jpg", taxonomy.output_keys[3], "validation"), ("0/v.jpg", taxonomy.output_keys[0], "validation")]
    folder = tmp_path_factory.mktemp("long_tailed")
    return Manifest(write_data(folder / "data", folder, pictures, taxonomy))


def recipe_of(sampling="every_picture", target="output"):
    return Recipe(data=DataRecipe(sampling=sampling), loss=LossRecipe(target=target))


def test_classes_count_training_pictures_and_only_taxa_with_outputs(long_tailed):
    assert training_classes(long_tailed, recipe_of()) == TrainingClasses((0, 0, 1, 2), 3, (36.0, 13.0, 4.0, 0.0))


@pytest.mark.parametrize("target", ["output", "taxon"])
@pytest.mark.parametrize("sampling", ["every_picture", "square_root", "class_balanced"])
def test_expected_samples_match_those_of_the_sampler(long_tailed, sampling, target):
    rows = long_tailed.rows_of("train")
    labels = labels_for_sampling(long_tailed, rows, target)
    batches = EpochBatches(rows, len(rows), 0, sampling=sampling, labels=labels)
    counts, num_epochs = np.zeros(4), 200
    for epoch in range(num_epochs):
        batches.epoch = epoch
        counts += np.bincount([long_tailed.label(draw.row) for batch in batches for draw in batch], minlength=4)
    expected = training_classes(long_tailed, recipe_of(sampling, target)).samples_of_output
    assert counts / num_epochs == pytest.approx(expected, abs=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("target", ["output", "taxon"])
def test_a_gpu_gives_the_same_loss_without_waiting(target):
    recipe = LossRecipe(target=target, label_smoothing=0.1, logit_adjustment=1.0)
    batch = tensors(*make_batch(6), dtype=torch.float32)
    loss = TrainingLoss(recipe, MIXED, torch.device("cuda"))
    logits, targets = (value.cuda() for value in batch)
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = loss(logits.requires_grad_(), targets)
        found.backward()
    finally:
        torch.cuda.set_sync_debug_mode(before)
    assert found.item() == pytest.approx(TrainingLoss(recipe, MIXED, CPU)(*batch).item(), rel=1e-5)
