"""Makes the network of each precision, calibrates and measures it, and runs its release checks.

A network is calibrated on its own outputs, and measured on pictures that were not used to calibrate it. Each check
compares a measured figure with a limit. A network that fails one is not released; fp32 ends the export. The golden
picture of a bundle checks the networks again where they are loaded.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from PIL import Image

from models.bundle import Golden
from models.bundle_record import Check, FailedNetwork, MeasuredCoverage, NetworkFile, Precision
from models.errors import BundleError
from models.figures import (
    Figures,
    SplitMetrics,
    coverage_figures,
    measure,
    metric,
    several_metrics,
    several_pictures,
)
from models.openvino_session import OpenVinoSession
from models.outputs import Outputs, Predictions, Rows, chunks
from models.preprocess import InputSpec, picture_to_input
from models.ranking import Floats, Rank, output_probabilities
from models.session import NetworkSession, OnnxSession
from training.engine.checkpoint import Checkpoint
from training.fit.model import Fitted, PictureSets, fit_model
from training.fit.onnx_file import write_fp16, write_fp32, write_rounded
from training.fit.pairs import paired_loss
from training.fit.pictures import Pictures, Pixels, run_once
from training.fit.place import place_metrics
from training.fit.unknown_plants import UnknownPlants, unknown_metrics

PARITY_LIMIT: Final = 1e-3
"""Largest accepted difference in probability from PyTorch."""
PARITY_PICTURES: Final = 500
"""Validation pictures on which file and PyTorch are compared. A fault of the conversion changes every picture."""
LEAST_AGREEMENT: Final = 0.999
"""Share of the pictures for which fp16 must name the taxon of fp32."""
MOST_LOSS: Final = 0.005
"""Half a point of top-1, which bf16 must not lose."""
_ANY: Final = 1.0  # limit of a difference that is recorded only
_BF16_NOTE: Final = "Computes the fp32 file in bfloat16 with OpenVINO, on processors that have it."
_FP16_NOTE: Final = (
    "Computes in half precision. Evaluated on a CPU, with each operator's result rounded to half precision."
)
_WIDTH_PX: Final = 112
_HEIGHT_PX: Final = 84  # about 10 kB as PNG
_NUM_BLOBS: Final = 14
_NUM_CANDIDATES: Final = 16
_NOISE: Final = 0.008  # half a gray level, in normalized units


class Candidate(msgspec.Struct, frozen=True):
    """A network file with what was fitted to it and its figures."""

    path: Path
    run: Callable[..., Outputs]
    """Runs the file, once on each set of pictures."""
    fitted: Fitted
    predictions: Predictions
    """On the test set."""
    figures: Figures
    """On the test set."""
    network: NetworkFile
    """What the bundle says of it."""

    def predictions_on(self, pictures: Pictures) -> Predictions:
        """Returns the calibrated predictions for a set of pictures."""
        return self.run(pictures).score(self.fitted.model)


def make_fp32(checkpoint: Checkpoint, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]) -> Candidate:
    """Makes the fp32 network in a folder. The other precisions are made from it and compared with it.

    `thresholds` are those of some ranks, to be used in place of fitted ones.

    Raises:
        BundleError: The probabilities differ from PyTorch's by more than the limit.
    """
    path = folder / "model.fp32.onnx"
    run = run_once(path, folder)
    compared = sets.validation.sample(PARITY_PICTURES)
    exact, same_weights = write_fp32(checkpoint, compared, path)
    name = f"parity: largest difference in probability from PyTorch with the same weights: {compared.name}"
    parity = difference_check(name, run(compared).logits, same_weights, PARITY_LIMIT)
    if not parity.passed:
        raise BundleError(
            f"the network file and PyTorch give different probabilities ({parity.name})",
            value=f"{parity.value:.2e} on {parity.num_pictures} pictures",
            limit=f"at most {parity.limit:.0e}",
            remedy="report this with your versions of torch and onnxruntime",
        )
    # The effect of storing the weights in half precision.
    name = f"rounding: largest difference in probability from unrounded weights: {compared.name}"
    rounding = difference_check(name, same_weights, exact, _ANY)
    made = evaluate_network(path, run, sets, thresholds)
    return replace(made, network=replace(made.network, checks=(parity, rounding)))


def make_fp16(
    fp32: Candidate, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]
) -> Candidate | FailedNetwork:
    """Makes the network for GPUs; see `make_fp32`.

    Its temperature and figures come from a network that computes on a CPU what a GPU computes: see `write_rounded`.
    """
    path = folder / "model.fp16.onnx"
    write_fp16(fp32.path, path)
    rounded = folder / "fp16_rounded.onnx"
    run = run_once(rounded, folder)
    write_rounded(fp32.path, rounded)
    pictures = filter(None, (sets.test, sets.validation, sets.calibration, sets.negatives, sets.unknown))
    overflow = overflow_check([run(sets.training, with_logits=False), *map(run, pictures)])
    if not overflow.passed:  # neither metrics nor tables can be computed from NaN
        return FailedNetwork((overflow,), note=_FP16_NOTE)
    made = evaluate_network(path, run, sets, thresholds)
    half, single = ((each.predictions, each.predictions_on(sets.validation)) for each in (made, fp32))
    return _checked(made, fp32, sets, _FP16_NOTE, overflow, agreement_check(half, single))


def make_bf16(
    fp32: Candidate, sets: PictureSets, folder: Path, thresholds: Mapping[Rank, float]
) -> Candidate | FailedNetwork:
    """Calibrates and measures the fp32 file as OpenVINO computes it in bfloat16; see `make_fp32`.

    The validation split decides whether it is released, so that the test split only reports.
    """
    data = sets.validation.name
    made = evaluate_network(fp32.path, run_once(fp32.path, folder, bf16=True), sets, thresholds)
    single, half = (each.predictions_on(sets.validation) for each in (fp32, made))
    loss = paired_loss(single.top_k_hits(1), half.top_k_hits(1))
    name = f"accuracy: upper end of the 95 % interval of the loss in top-1 against fp32: {data}"
    accuracy = _at_most(name, loss.interval_95[1], MOST_LOSS, loss.num_pictures)
    one, other = (each.run(sets.validation).logits for each in (made, fp32))
    # Accuracy is what counts, so any difference passes.
    name = f"parity: largest difference in probability from fp32: {data}"
    return _checked(made, fp32, sets, _BF16_NOTE, accuracy, difference_check(name, one, other, _ANY))


def _checked(
    made: Candidate, fp32: Candidate, sets: PictureSets, note: str, *checks: Check
) -> Candidate | FailedNetwork:
    """Returns a network with its loss against fp32 and its checks; only its figures if it failed one."""
    loss = paired_loss(fp32.predictions.top_k_hits(1), made.predictions.top_k_hits(1))
    metrics = (*made.network.metrics, metric("top1_taxon_lost_against_fp32", loss, sets.test.name))
    if not all(check.passed for check in checks):
        return FailedNetwork(checks, metrics, note)
    return replace(made, network=replace(made.network, checks=checks, metrics=metrics, note=note))


def evaluate_network(
    path: Path, run: Callable[..., Outputs], sets: PictureSets, thresholds: Mapping[Rank, float]
) -> Candidate:
    """Calibrates a network file, fits its tables and thresholds, and measures how accurate it is.

    `thresholds` are those of some ranks, to be used in place of fitted ones.
    """
    test = sets.test
    fitted = fit_model(run, sets, thresholds)
    model = fitted.model
    outputs = run(test)
    predictions = outputs.score(model)
    figures = measure(predictions, model.taxonomy, test.sources)
    metrics = [
        metric(name, getattr(figures.all, name), test.name, len(test)) for name in SplitMetrics.__struct_fields__
    ]
    metrics += fitted.metrics
    metrics += several_metrics(several_pictures(outputs, predictions.taxon_labels_N, model), test.name)
    metrics += place_metrics(outputs, predictions, test, model)
    if sets.unknown is not None:
        judging = UnknownPlants.of(run, sets.unknown, judging=True)
        metrics += unknown_metrics(judging, predictions, model, sets.unknown.name)
    coverages = []
    for each in coverage_figures(outputs.logits, predictions.taxon_labels_N, model):
        covered = each.covered
        value = covered.value if each.kind == "marginal" else each.macro_covered
        interval = covered.interval_95 if each.kind == "marginal" else None
        coverages.append(MeasuredCoverage(each.kind, each.coverage, value, covered.num_pictures, test.name, interval))
    network = NetworkFile(
        file=path.name,
        temperature=model.temperature,
        thresholds=model.thresholds,
        promises=model.promises,
        coverages=tuple(coverages),
        place=None if model.place is None else model.place.rule,
        mistaken=model.mistaken,
        guesses=model.guesses,
        joint=model.joint,
        stored_as="float16",
        metrics=tuple(metrics),
    )
    return Candidate(path, run, fitted, predictions, figures, network)


def difference_check(name: str, one: Rows, other: Rows, limit: float) -> Check:
    """The largest difference in probability between the logits of two networks; NaN fails."""
    differences = [
        np.abs(output_probabilities(one[part], 1.0) - output_probabilities(other[part], 1.0)).max()
        for part in chunks(*one.shape)
    ]
    return _at_most(name, float(np.max(differences)), limit, len(one))


def overflow_check(outputs: Sequence[Outputs]) -> Check:
    """fp16: all logits and features are finite; a value above 65,504 is infinite in half precision."""
    num_pictures = num_lost = 0
    for each in outputs:
        num_pictures += len(each.logits)
        for part in chunks(len(each.logits), max(each.logits.shape[1], each.features.shape[1])):
            finite = np.isfinite(each.logits[part]).all(axis=1) & np.isfinite(each.features[part]).all(axis=1)
            num_lost += int((~finite).sum())
    name = "overflow: pictures with NaN or infinite outputs, every operator's result rounded to half precision"
    return _at_most(name, float(num_lost), 0.0, num_pictures)


def agreement_check(found: Sequence[Predictions], fp32: Sequence[Predictions]) -> Check:
    """fp16: the share of all pictures for which the most likely taxon is that of fp32."""
    same = np.concatenate([one.named_N == other.named_N for one, other in zip(found, fp32, strict=True)])
    name = (
        "agreement: pictures with the same likeliest taxon as fp32, every operator's result rounded to half precision"
    )
    value = float(same.mean())
    passed = value >= LEAST_AGREEMENT
    return Check(name, value, LEAST_AGREEMENT, passed=passed, num_pictures=len(same), at_least=True)


def _at_most(name: str, value: float, limit: float, num_pictures: int) -> Check:
    return Check(name, value, limit, passed=value <= limit, num_pictures=num_pictures)


def record_golden(networks: Mapping[Precision, tuple[Path, float]], spec: InputSpec) -> Golden:
    """Draws pictures and records the logits of every network file for the most stable of them.

    That is the picture for which noise of half a gray level changes the probabilities least. On another processor a
    network may round a few values differently, which must not look like an error. Beside each file stands its
    temperature.
    """
    pictures = [draw_golden(seed) for seed in range(_NUM_CANDIDATES)]
    pixels_BCHW = np.stack([picture_to_input(picture, spec)[0] for picture in pictures])
    noise = np.random.default_rng(0).uniform(-_NOISE, _NOISE, pixels_BCHW.shape).astype(np.float32)
    logits = {}
    changes = np.zeros(_NUM_CANDIDATES)
    for precision, (path, temperature) in networks.items():
        session = OpenVinoSession(path, bf16=True) if precision == "bf16" else OnnxSession(path)
        logits[precision] = _logits(session, pixels_BCHW)
        pair = (logits[precision], _logits(session, pixels_BCHW + noise))
        one, other = (output_probabilities(each, temperature) for each in pair)
        changes = np.maximum(changes, np.abs(one - other).max(axis=1))
    best = int(changes.argmin())
    return Golden(pictures[best], {precision: tuple(map(float, each[best])) for precision, each in logits.items()})


def draw_golden(seed: int) -> bytes:
    """Draws a PNG with gradients, stripes, and blobs of many sizes and colors, so that every layer responds to it."""
    random = np.random.default_rng(seed)
    y_HW, x_HW = np.mgrid[0:_HEIGHT_PX, 0:_WIDTH_PX] / np.array([_HEIGHT_PX, _WIDTH_PX]).reshape(2, 1, 1)
    picture_HW3 = np.stack([90 + 60 * y_HW, 140 - 50 * y_HW + 20 * x_HW, 70 + 30 * x_HW], axis=-1)
    for _ in range(_NUM_BLOBS):
        x = random.random()
        y = random.random()
        radius = random.uniform(0.04, 0.16)
        inside_HW = np.exp(-((((x_HW - x) ** 2 + (y_HW - y) ** 2) / radius**2) ** 2))
        picture_HW3 += inside_HW[..., None] * (random.uniform(0, 255, 3) - picture_HW3)
    picture_HW3 += 12 * np.sin(40 * x_HW + 25 * y_HW)[..., None]
    stream = io.BytesIO()
    Image.fromarray(picture_HW3.clip(0, 255).astype(np.uint8)).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _logits(session: NetworkSession, pixels_BCHW: Pixels) -> Floats:
    return np.concatenate([session.run(pixels[None]).logits for pixels in pixels_BCHW])
