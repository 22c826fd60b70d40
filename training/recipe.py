"""The settings of a training run: type, range, default, help text and roles. Recipes are `training/recipes/*.toml`.

A flag overrides the recipe, and the recipe overrides the default. An unknown key is an error that names it. Ranges are
checked for files and flags alike, since both pass through `msgspec.convert`.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

from msgspec import Meta
from msgspec.structs import fields, replace

from models.bundle import load_bundle
from models.errors import RecipeError, without_password
from models.program import path_fields
from training.toml_file import RECIPES, Section, check_section, read_toml, section_to_plain

Positive = Annotated[float, Meta(gt=0.0)]
NotNegative = Annotated[float, Meta(ge=0.0)]
Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=1)]
WholeNumber = Annotated[int, Meta(ge=0)]
SMALLEST_PX: Final = 32
LARGEST_PX: Final = 2048
SidePx = Annotated[int, Meta(ge=SMALLEST_PX, le=LARGEST_PX)]
Order = Literal["shuffled", "blocks"]
Sampling = Literal["every_picture", "square_root", "class_balanced"]
Norms = Literal["auto", "leave", "frozen"]
Target = Literal["output", "taxon"]
Decay = Literal["cosine", "step", "none"]
AmpPrecision = Literal["fp16", "bf16", "off"]
Compile = Literal["off", "default", "reduce-overhead"]

NEGATIVES_SHARE: Final = 0.125
"""Pictures without a plant, and as many of unknown plants, that are added to each batch, as a share of batch_size; at
least one."""
NORMALIZATION: Final = ("interpolation", "mean", "std")
"""What a checkpoint keeps of its pictures beside the settings; see `training.network_input`."""
FIXED_AT_RESUME: Final = "a run must be resumed with the same value, since it decides what each step does"
"""Stands in the annotation of such a setting."""


class DataRecipe(Section, frozen=True, kw_only=True):
    """Which data, and how it is loaded."""

    data: Path = Path("data")
    """Folder that training/prepare.py wrote: manifest.parquet and taxa.json."""
    drawn_species: WholeNumber = 0
    """If the data folder is missing, draw this many artificial species and prepare them there; 0: draw none."""
    shards: str = ""
    """Folder or URL (s3://, gs://) of the shards of packed data; default: the data folder."""
    workers: WholeNumber = 4
    """Loader processes; 0 loads in the training process."""
    order: Annotated[Order, FIXED_AT_RESUME] = "shuffled"
    """Order of an epoch. "shuffled" shuffles all pictures. "blocks" shuffles blocks of 64 neighbors, then the pictures
    within every 64 blocks, so that neighbors are read at about the same time: for slow disks and object stores."""
    sampling: Annotated[Sampling, FIXED_AT_RESUME] = "every_picture"
    """How often a class is sampled. "every_picture": each picture once an epoch; "square_root": in proportion to the
    square root of the class size; "class_balanced": all classes equally. An epoch has as many samples as pictures."""


class NetworkRecipe(Section, frozen=True, kw_only=True):
    """The network and its initial weights."""

    architecture: str = "efficientnet_b4"
    """Name of a timm model."""
    weights: str = "imagenet"
    """Initial weights: "imagenet" (timm's hub), "none" (random), a bundle with weights (export.py --with-weights), or a
    checkpoint, state dict or safetensors file. Pictures are normalized as for the bundle, or for the tag of the
    architecture, as in vit_base_patch16_clip_224.openai."""
    dropout: Share = 0.4
    """Dropout before the classifier (0.4: Tan and Le 2019, B4). Stochastic depth skips the last residual block with
    half this probability, and earlier ones less often."""
    norms: Norms = "auto"
    """Which pictures BatchNorm's statistics come from: "leave": the batch of each process; "frozen": none, the initial
    ones are kept; "auto": chosen by batch size, with a note in the log."""
    frozen_stages: Annotated[Literal[0, "all"], FIXED_AT_RESUME] = 0
    """all: the backbone keeps its initial weights, and only the classifier learns (a linear probe). Each picture runs
    through the network once, as in the service and without augmentation."""


class ScheduleRecipe(Section, frozen=True, kw_only=True):
    """Epochs, batch size and learning rates."""

    epochs: Count = 15
    """Passes over the training pictures."""
    batch_size: Count = 16
    """Pictures in a batch, on each GPU."""
    accumulate: Count = 1
    """Batches whose gradients are averaged for one optimizer step."""
    backbone_lr: Positive = 3e-5
    """Peak learning rate of all layers except the classifier."""
    head_lr: Positive = 9e-5
    """Peak learning rate of the classifier."""
    scale_lr: Annotated[bool, FIXED_AT_RESUME] = False
    """Multiply both rates by the square root of the number of ranks, which multiply the pictures of a step."""
    decay: Decay = "cosine"
    """Decay of the learning rates: "cosine" to zero, "step" to a tenth after each third of the epochs, or "none"."""
    warmup_epochs: NotNegative = 0.0
    """Epochs of linear warm-up before the decay; may be a fraction."""
    weight_decay: NotNegative = 0.01
    """AdamW's decoupled weight decay; norms and biases have none (0.01: PyTorch's default)."""
    clip_norm: NotNegative = 0.0
    """Largest gradient norm; larger gradients are clipped to it. 0: no clipping."""
    ema_decay: Share = 0.0
    """Decay of the moving average of the weights (EMA), which is then validated and exported; 0: no average."""


class PictureRecipe(Section, frozen=True, kw_only=True):
    """Picture sizes."""

    picture_px: SidePx = 380
    """Side of the training pictures, px. With progressive that of the last step. The flag scales all steps, and
    serve_px."""
    progressive: tuple[tuple[WholeNumber, SidePx], ...] = ()
    """Progressive resizing, pairs (epoch, px): train at that size from that epoch on. The last one is picture_px."""
    serve_px: SidePx = 380
    """Side of the pictures in validation and in the service, px; scaled with picture_px unless it is a flag too."""
    crop_fraction: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.95
    """Side of the center crop in validation and in the service, as a share of the picture's short side."""


class AugmentRecipe(Section, frozen=True, kw_only=True):
    """Random changes of the training pictures; they depend on seed, epoch and picture alone."""

    crop_scale_min: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.35
    """Smallest area of a random crop, as a share of the picture's area."""
    randaugment_magnitude: Annotated[int, Meta(ge=0, le=30)] = 7
    """Strength of RandAugment's two operations, 1 to 30; 0 switches them off (Cubuk et al. 2019)."""
    erase: Share = 0.0
    """Probability of erasing a rectangle (Zhong et al. 2017)."""
    mixup: NotNegative = 0.0
    """Alpha of mixup; 0 switches it off (Zhang et al. 2017)."""
    cutmix: NotNegative = 0.0
    """Alpha of CutMix; 0 switches it off. With both on, each batch takes one at random (Yun et al. 2019)."""
    mix_share: Share = 1.0
    """Share of the batches that mixup or CutMix is applied to."""


class LossRecipe(Section, frozen=True, kw_only=True):
    """The loss."""

    target: Annotated[Target, FIXED_AT_RESUME] = "output"
    """The class of a picture: its "output", or its "taxon", whose probability is the sum over the taxon's outputs.
    Sampling and logit adjustment count the same classes."""
    label_smoothing: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.1
    """Share of the target probability that is spread evenly over all classes (Szegedy et al. 2015)."""
    logit_adjustment: NotNegative = 0.0
    """Factor of the classes' log frequencies, which are added to the logits in training only, in favor of rare
    classes; 0: off, 1: as in Menon et al. 2021."""


class NegativesRecipe(Section, frozen=True, kw_only=True):
    """Pictures that show no plant, or an unknown one."""

    negatives: tuple[Path, ...] = ()
    """Folders of pictures that show no plant, or CSV lists with the column path; of a list with the column split, the
    rows whose split is fit or train. A folder with a file labels.csv is read as that list. Empty: none. With them, an
    auxiliary output learns to tell plants; it is not exported."""
    unknown: tuple[Path, ...] = ()
    """The same of plants that the network shall not know: it learns to find all outputs equally likely for them."""


class HardwareRecipe(Section, frozen=True, kw_only=True):
    """Device, precision and kernels."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Where to train; auto takes CUDA if there is a GPU."""
    amp: AmpPrecision = "fp16"
    """Mixed precision (torch.amp). fp16 scales the loss; it is for CUDA. A CPU without AVX512-BF16 and AMX has none."""
    tf32: bool = True
    """Allow TF32 for single precision on CUDA; its mantissa has 10 bits instead of 23."""
    channels_last: bool = True
    """Store activations as NHWC (channels last)."""
    cudnn_benchmark: bool = True
    """Let cuDNN time its kernels for each picture size and take the fastest."""
    compile: Compile = "off"
    """Mode of torch.compile, which compiles the network for each picture size; reduce-overhead uses CUDA graphs, and
    cannot accumulate."""


class RunRecipe(Section, frozen=True, kw_only=True):
    """The run's folder, seed, checkpoints and log."""

    run: Path = Path("runs/run")
    """Folder for checkpoints, log and the resolved recipe."""
    seed: Annotated[WholeNumber, FIXED_AT_RESUME] = 0
    """Seed of all random choices."""
    checkpoint_every_steps: WholeNumber = 0
    """Optimizer steps between two checkpoints within an epoch, besides those every 10 minutes; 0: none."""
    log_every_steps: Count = 20
    """Steps between two log entries of the losses; reading them makes the host wait for the GPU."""
    validate_every_epochs: Count = 1
    """Epochs between two validations; the last epoch is always validated."""


class Recipe(Section, frozen=True, kw_only=True):
    """Everything that decides a training run."""

    data: DataRecipe = DataRecipe()
    network: NetworkRecipe = NetworkRecipe()
    schedule: ScheduleRecipe = ScheduleRecipe()
    pictures: PictureRecipe = PictureRecipe()
    augment: AugmentRecipe = AugmentRecipe()
    loss: LossRecipe = LossRecipe()
    negatives: NegativesRecipe = NegativesRecipe()
    hardware: HardwareRecipe = HardwareRecipe()
    run: RunRecipe = RunRecipe()


def keys_fixed_at_resume() -> list[tuple[str, str]]:
    """Section and name of every setting that a resumed run must keep, in the order of the recipe."""
    return [
        (section.name, key)
        for section in fields(Recipe)
        for key, annotation in get_type_hints(section.type, include_extras=True).items()
        if FIXED_AT_RESUME in getattr(annotation, "__metadata__", ())
    ]


def recipe_files() -> list[Path]:
    """Paths of the project's recipes; `data_*.toml` and `flora_*.toml` beside them are none."""
    return sorted(path for path in RECIPES.glob("*.toml") if not path.name.startswith(("data_", "flora_")))


def read_recipe(path: Path) -> Recipe:
    """Reads and checks a recipe file; a bare name such as "debug" also finds `training/recipes/debug.toml`.

    A bundle gives the recipe that it was trained by.

    Raises:
        RecipeError: The file is missing or not valid TOML, or it has an unknown key or a value out of range.
        BundleError: The folder is no bundle.
    """
    if path.is_dir():
        return check_stored_recipe(load_bundle(path).record.recipe, origin=str(path))
    return check_recipe(*read_toml(path, known=recipe_files()))


def check_recipe(content: dict[str, Any], origin: str) -> Recipe:
    """Turns plain values, as read from TOML or JSON, into a checked recipe; the error names `origin`.

    Raises:
        RecipeError: An unknown key, a wrong type or a value out of range; the message gives its path.
    """
    paths = dict(path_fields(Recipe))
    for section, part in content.items():
        if isinstance(part, dict):  # a path that is an empty text is not set
            content = content | {section: {key: part[key] for key in part if part[key] != "" or key not in paths}}
    recipe = check_section(content, Recipe, origin)
    steps = recipe.pictures.progressive
    last_px = recipe.pictures.picture_px
    if steps and steps[-1][1] != last_px:
        raise RecipeError(
            f"the recipe {origin} has two sizes for the last training pictures",
            value=f"picture_px = {last_px} and a last step of progressive of {steps[-1][1]} px",
            limit="one size",
            remedy="give one of the two flags alone, which sets the other, or correct the recipe",
        )
    if recipe.hardware.compile == "reduce-overhead" and recipe.schedule.accumulate > 1:
        raise RecipeError(  # the gradients of the first batch lie in memory that the next replay overwrites
            f"the recipe {origin} accumulates with CUDA graphs, which PyTorch cannot",
            value=f"compile = reduce-overhead and accumulate = {recipe.schedule.accumulate}",
            limit="one of the two",
            remedy='take compile = "default" or accumulate = 1',
        )
    if recipe.network.frozen_stages and recipe.network.weights == "none":
        raise RecipeError(
            f"the recipe {origin} freezes random weights, which would never learn anything",
            value="frozen_stages = all with weights = none",
            remedy="use --weights imagenet or a file, or --frozen-stages 0",
        )
    epochs = [epoch for epoch, _ in steps]
    if epochs != sorted(set(epochs)):
        raise RecipeError(
            f"the steps of progressive in the recipe {origin} are not in the order of their epochs",
            value=epochs,
            limit="growing epochs",
            remedy="correct progressive",
        )
    return recipe


def recipe_to_store(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain values for the files of a run; the address of shards has no password there."""
    return section_to_plain(replace(recipe, data=replace(recipe.data, shards=without_password(recipe.data.shards))))


def check_stored_recipe(content: dict[str, Any], origin: str) -> Recipe:
    """Reads the recipe of a checkpoint or bundle, which has the normalization of the pictures beside the settings.

    Raises:
        RecipeError: Another version wrote it, with other settings.
    """
    pictures = {name: value for name, value in content.get("pictures", {}).items() if name not in NORMALIZATION}
    network = dict(content.get("network", {}))
    if network.get("frozen_stages") != "all":  # earlier versions could freeze some stages
        network["frozen_stages"] = 0
    try:
        return check_recipe(content | {"pictures": pictures, "network": network}, origin)
    except RecipeError as error:
        raise RecipeError(
            f"{origin} was written by another version of this program",
            value=error.value,
            remedy="use that version, or start a new run from its weights with --weights",
        ) from error


def rate_factor(schedule: ScheduleRecipe, num_ranks: int) -> float:
    """What the learning rates are multiplied by: with `scale_lr` by the rule of Malladi et al. 2022."""
    return math.sqrt(num_ranks) if schedule.scale_lr else 1.0


def side_at_epoch(pictures: PictureRecipe, epoch: int) -> int:
    """Side of the training pictures in an epoch, px: that of the last step that has begun, else `picture_px`."""
    begun = [side_px for first_epoch, side_px in pictures.progressive if first_epoch <= epoch]
    return begun[-1] if begun else pictures.picture_px


def sides_of_epochs(recipe: Recipe) -> list[int]:
    """Side of the training pictures in each epoch of a run, px."""
    return [side_at_epoch(recipe.pictures, epoch) for epoch in range(recipe.schedule.epochs)]


def sizes_by_flags(pictures: PictureRecipe, picture_px_of_file: int, given: Sequence[str]) -> PictureRecipe:
    """Lets the one flag that is given decide on all sizes, `picture_px`, `progressive` and `serve_px`.

    `picture_px` scales all steps, and the last step of `progressive` becomes `picture_px`. If both are given they stay
    as they are, and must agree. `serve_px` is scaled with `picture_px`, since the best size in the service is a little
    above that of the training (Touvron et al. 2019).

    `pictures` have the flags, and `picture_px_of_file` is that of the recipe without them. `given` names the keys that
    are flags, which stay as they are.
    """
    if pictures.progressive and not {"picture_px", "progressive"} <= set(given):
        if "progressive" in given:
            pictures = replace(pictures, picture_px=pictures.progressive[-1][1])
        else:
            scale = pictures.picture_px / picture_px_of_file
            steps = tuple((epoch, max(round(side_px * scale), SMALLEST_PX)) for epoch, side_px in pictures.progressive)
            pictures = replace(pictures, progressive=steps)
    if "serve_px" not in given:
        serve_px = round(pictures.serve_px * pictures.picture_px / picture_px_of_file)
        pictures = replace(pictures, serve_px=min(max(serve_px, SMALLEST_PX), LARGEST_PX))
    return pictures
