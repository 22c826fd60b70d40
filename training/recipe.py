"""Every knob of a training run, documented once; recipes in `training/recipes/*.toml` are data.

Precedence: flag > recipe > default. A misspelt key is an error that names it, and ranges are checked for files and
flags alike, since both pass through `msgspec.convert`.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from training.toml_file import RECIPES, Section, check_section, read_toml, section_to_plain

Positive = Annotated[float, Meta(gt=0.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=1)]
WholeNumber = Annotated[int, Meta(ge=0)]
Pixels = Annotated[int, Meta(ge=32, le=2048)]
Order = Literal["shuffled", "blocks"]
Sampling = Literal["every_picture", "square_root", "class_balanced"]
Norms = Literal["auto", "leave", "sync", "frozen", "ghost"]
Target = Literal["output", "taxon"]
Decay = Literal["cosine", "step", "none"]
Precision = Literal["fp16", "bf16", "off"]
# Checkpoints of earlier versions still name these. None of them changed what was learned.
_REMOVED_KNOBS: Final = (("data", "cache_gb"),)


class DataRecipe(Section, frozen=True, kw_only=True):
    """Which pictures."""

    data: Path = Path("data")
    """Folder written by training/prepare.py: manifest.parquet and taxa.json."""
    drawn_species: WholeNumber = 0
    """Where the data folder is missing, draw so many species of the herbarium and prepare them there; 0 draws none."""
    shards: str = ""
    """Folder or URL (s3://, gs://) that the shards of packed data lie in; default: the data folder."""
    expect_outputs: WholeNumber = 0
    """Refuse to start unless the data has this many outputs; 0 takes what is there."""
    workers: WholeNumber = 4
    """Loader processes; 0 loads in the training process."""
    prefetch_factor: Count = 4
    """Batches that each loader process prepares ahead."""
    persistent_workers: bool = True
    """Keep loader processes from one epoch to the next."""
    order: Order = "shuffled"
    """Order of an epoch. "shuffled" mixes all pictures; "blocks" moves blocks of 64 neighbors and mixes within 64 such
    blocks, so that neighbors are read soon after one another; for disks that read ahead and stores behind a cache."""
    sampling: Sampling = "every_picture"
    """How often the pictures of a class come: "every_picture" once an epoch; "square_root" draws a class in proportion
    to the root of its size, "class_balanced" all classes alike. Every epoch has as many draws as there are pictures."""


class NetworkRecipe(Section, frozen=True, kw_only=True):
    """Which network and how it starts."""

    architecture: str = "efficientnet_b4"
    """Name of a timm model."""
    weights: str = "imagenet"
    """Start from "imagenet" (timm, from the hub), "none" (random), or a file: checkpoint, state dict or safetensors."""
    dropout: Share = 0.4
    """Probability of dropping a feature in front of the classifier (0.4: Tan and Le 2019, B4)."""
    drop_path: Share = 0.2
    """Largest probability of skipping a residual block (0.2: Tan and Le 2019)."""
    norms: Norms = "auto"
    """What BatchNorm takes its statistics over: "leave" the pictures of a step and rank, "sync" those of all ranks (on
    CUDA), "ghost" groups of ghost_size; "frozen" keeps what it came with; "auto" chooses by batch size and says why."""
    ghost_size: Annotated[int, Meta(ge=2)] = 32
    """Pictures in a group of ghost batches (Hoffer et al. 2017)."""


class ScheduleRecipe(Section, frozen=True, kw_only=True):
    """How long, how large, how fast."""

    epochs: Count = 15
    """Passes over the training pictures."""
    batch_size: Count = 16
    """Pictures a step, on each rank."""
    accumulate: Count = 1
    """Steps whose gradients are averaged before the optimizer moves."""
    backbone_lr: Positive = 3e-5
    """Peak learning rate of everything but the classifier."""
    head_lr: Positive = 9e-5
    """Peak learning rate of the classifier."""
    decay: Decay = "cosine"
    """How the rates fall: "cosine" to zero, "step" by step_factor every step_epochs, "none" not at all."""
    step_epochs: Count = 5
    """Epochs between two falls of the rates, with decay = "step"."""
    step_factor: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.1
    """What a fall multiplies the rates with, with decay = "step"."""
    warmup_epochs: NotNegative = 0.0
    """Epochs of linear warm-up before the rates fall; may be a fraction."""
    head_only_epochs: WholeNumber = 0
    """First epochs in which only the classifier learns; the rest of the network runs without gradients."""
    weight_decay: NotNegative = 0.01
    """AdamW's decoupled weight decay; norms and biases are spared (0.01: PyTorch's default)."""
    clip_norm: NotNegative = 0.0
    """Largest gradient norm; 0 does not clip."""
    ema_decay: Share = 0.0
    """Decay of the moving average of the weights that is validated and exported; 0 keeps none."""


class PictureRecipe(Section, frozen=True, kw_only=True):
    """Picture sizes."""

    picture_px: Pixels = 380
    """Side of the training pictures, px."""
    progressive: tuple[tuple[WholeNumber, Pixels], ...] = ()
    """Pairs (epoch, px): from that epoch on, train at that size; the last pair should come to picture_px."""
    serve_px: Pixels = 380
    """Side of the pictures in validation and in service, px."""
    crop_fraction: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.95
    """Share of the largest centered square that validation and service keep."""


class AugmentRecipe(Section, frozen=True, kw_only=True):
    """What happens to a training picture, all drawn from (seed, epoch, picture)."""

    crop_scale_min: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.35
    """Least share of the picture's area in a random crop."""
    crop_ratio_max: Annotated[float, Meta(ge=1.0, le=3.0)] = 4 / 3
    """Most the crop is stretched in either direction."""
    flip: Share = 0.5
    """Probability of a mirror image."""
    randaugment_ops: WholeNumber = 2
    """RandAugment operations a picture; 0 switches it off (Cubuk et al. 2019)."""
    randaugment_magnitude: Annotated[int, Meta(ge=0, le=30)] = 7
    """RandAugment strength, 0 to 30."""
    erase: Share = 0.0
    """Probability of erasing a rectangle (Zhong et al. 2017)."""
    mixup: NotNegative = 0.0
    """Alpha of mixup; 0 switches it off (Zhang et al. 2017)."""
    cutmix: NotNegative = 0.0
    """Alpha of CutMix; 0 switches it off. With both, each batch draws one (Yun et al. 2019)."""
    mix_share: Share = 1.0
    """Share of the batches that are mixed at all, where mixup or cutmix is on."""


class LossRecipe(Section, frozen=True, kw_only=True):
    """What is learned."""

    target: Target = "output"
    """What a picture is an example of: its "output", or its "taxon", whose outputs' probabilities are summed. Sampling
    and logit adjustment count by the same."""
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.1
    """Share of the target spread evenly over all targets (Szegedy et al. 2015)."""
    logit_adjustment: NotNegative = 0.0
    """Weight of the classes' log frequencies that are added to the logits in training only, so that rare classes are
    not held back; 0 adds none, 1 is Menon et al. 2021."""


class HardwareRecipe(Section, frozen=True, kw_only=True):
    """How the arithmetic is done."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is any."""
    amp: Precision = "fp16"
    """Mixed precision under torch.amp; fp16 scales the loss and needs CUDA."""
    tf32: bool = True
    """Let single precision on CUDA be TF32, whose mantissa has 10 bits instead of 23."""
    channels_last: bool = True
    """Store activations as NHWC."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its kernels for each picture size."""
    compile: bool = False
    """torch.compile the network, once for each picture size."""
    memory_gb: NotNegative = 0.0
    """GPU memory that may be used, GB, to share a card or to imitate a smaller one; 0 takes what is there."""


class RunRecipe(Section, frozen=True, kw_only=True):
    """What is kept and written."""

    run: Path = Path("runs/run")
    """Folder for checkpoints, log and the resolved recipe."""
    seed: WholeNumber = 0
    """Everything random is a pure function of this."""
    checkpoint_every_steps: Count = 500
    """Optimizer steps between two checkpoints inside an epoch; one more follows each epoch."""
    keep: Count = 3
    """Newest checkpoints that are kept, beside the best."""
    log_every_steps: Count = 20
    """Steps between two readings of the losses; reading makes the host wait for the device."""
    validate_every_epochs: Count = 1
    """Epochs between two validations; the last epoch is always validated."""
    max_bad_steps: Count = 25
    """Steps in a row that may be skipped because a gradient is no number; one more ends the run."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run's folder."""


class Recipe(Section, frozen=True, kw_only=True):
    """Everything that decides a training run."""

    name: str
    """Name of the recipe, and of the model it makes."""
    description: str = ""
    """What the recipe is for, in a sentence or two."""
    data: DataRecipe = DataRecipe()
    network: NetworkRecipe = NetworkRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    pictures: PictureRecipe = PictureRecipe()
    augment: AugmentRecipe = AugmentRecipe()
    loss: LossRecipe = LossRecipe()
    hardware: HardwareRecipe = HardwareRecipe()
    run: RunRecipe = RunRecipe()


def recipe_files() -> list[Path]:
    """The recipes of this project; collections of data sets stand beside them as `data_*.toml`."""
    return sorted(path for path in RECIPES.glob("*.toml") if not path.name.startswith("data_"))


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a recipe file.

    Args:
        path: A TOML file; a bare name such as "debug" also finds `training/recipes/debug.toml`.

    Raises:
        RecipeError: The file is missing, is no TOML, has a key that no recipe has, or a value out of range.
    """
    return check_recipe(*read_toml(path, known=recipe_files()))


def check_recipe(content: dict[str, Any], origin: str) -> Recipe:
    """Turns plain values, as read from TOML or JSON, into a checked recipe; `origin` is named in the error.

    Raises:
        RecipeError: An unknown key, a wrong type or a value out of range; the message gives its path.
    """
    return check_section(content, Recipe, origin)


def check_stored_recipe(content: dict[str, Any], origin: str) -> Recipe:
    """Reads the recipe that a checkpoint holds; knobs that existed when it was written and no longer do are dropped.

    Raises:
        RecipeError: As `check_recipe` does.
    """
    current = dict(content)
    for section, knob in _REMOVED_KNOBS:
        current[section] = {name: value for name, value in current.get(section, {}).items() if name != knob}
    return check_recipe(current, origin)


def recipe_to_plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values that TOML, JSON and `torch.save` can hold."""
    return section_to_plain(recipe)
