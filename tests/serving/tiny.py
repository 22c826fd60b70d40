"""A tiny bundle, drawn pictures, form bodies, and a check of problem documents."""

import asyncio
import functools
import io
import threading

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from models import session as names
from models.bundle import GOLDEN_FILE, GOLDEN_PART, WITH_PLACE, seal_bundle
from models.bundle_record import Architecture, DataSource, Metric, NetworkFile
from models.calibration import (
    CALIBRATION_FILE,
    CALIBRATION_PART,
    Calibration,
    Cutoffs,
    FamiliarityTable,
    FeatureTable,
    FittedOn,
    LogisticHead,
    write_calibration,
)
from models.examples import EXAMPLES_FILE, EXAMPLES_PART, write_examples
from models.place import PLACE_FILE, PLACE_PART, write_place
from models.preprocess import InputSpec, picture_to_input
from models.taxonomy import Output, Taxon, Taxonomy
from tests.models.tiny import bundle_record, conformal_table
from tests.waiting import PATIENCE_S

SIDE_PX = 32
RED, GREEN, BLUE = (230, 20, 20), (20, 230, 20), (20, 20, 230)
WHITE = (250, 250, 250)  # no plant, says the plant head of `tables`

TAXA = (
    Taxon(
        "rosa-canina", "species", "Rosa canina", "Rosa", "Rosaceae", common_names=("dog rose",),
        gbif_id=3003446, powo_id="732025-1", names={"de": ("Hundsrose", "Heckenrose"), "pt-br": ("rosa-canina",)},
    ),
    Taxon("rosa-rugosa", "species", "Rosa rugosa", "Rosa", "Rosaceae", synonyms=("Rosa ferox",)),
    Taxon("bellis-perennis", "species", "Bellis perennis", "Bellis", "Asteraceae", common_names=("daisy",)),
    Taxon("crocus", "genus", "Crocus", "Crocus", "Iridaceae"),
    Taxon("crocus-vernus", "species", "Crocus vernus", "Crocus", "Iridaceae", common_names=("spring crocus",)),
)  # fmt: skip
# Six outputs for five taxa: the daisy is in two data sets.
OUTPUTS = tuple(
    Output(f"{source}:{taxon_id}", source, taxon_id)
    for source, taxon_id in (
        ("a", "rosa-canina"),
        ("a", "rosa-rugosa"),
        ("a", "bellis-perennis"),
        ("b", "bellis-perennis"),
        ("a", "crocus"),
        ("a", "crocus-vernus"),
    )
)
TAXONOMY = Taxonomy("2026-11", TAXA, OUTPUTS)
# Rows: normalized red, green, blue. Red pictures are roses, green ones daisies, blue ones crocuses.
WEIGHTS = np.array(
    [[1.5, 1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.2, 1.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.5, 0.5]], dtype=np.float32
)


def place_weights(height=SIDE_PX, width=SIDE_PX):
    """Weight of each pixel in the mean color; shape (height, width), with a sum of 1.

    They grow to the right and, less, to the bottom. So a picture that is flipped, rotated, shifted or wrongly cropped
    has another mean, while a picture of one color keeps it.
    """
    across, down = np.arange(width) / width, np.arange(height) / height
    weights = np.exp(2 * across + down[:, np.newaxis])
    return (weights / weights.sum()).astype(np.float32)


def _places(sides):
    """Sides of any size, as some tests declare them, take one weight for all pixels."""
    if all(isinstance(side, int) for side in sides):
        return place_weights(*sides)
    return np.ones((1, 1), np.float32)


def write_network(path, output_keys=TAXONOMY.output_keys, weights=WEIGHTS, sides=(SIDE_PX, SIDE_PX), pool=True):
    """Writes a network that sees a mean color, weighted by `place_weights`; without the pool it does not run."""
    pooling = [
        helper.make_node("Mul", [names.INPUT_NAME, "places"], ["weighted"]),
        helper.make_node("ReduceSum", ["weighted", "sides"], ["pooled"]),
    ]
    nodes = [
        *(pooling if pool else [helper.make_node("Identity", [names.INPUT_NAME], ["pooled"])]),
        helper.make_node("Flatten", ["pooled"], [names.FEATURES_NAME]),
        helper.make_node("MatMul", [names.FEATURES_NAME, "weights"], [names.LOGITS_NAME]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(names.INPUT_NAME, TensorProto.FLOAT, ["batch", 3, *sides])],
        [
            helper.make_tensor_value_info(names.LOGITS_NAME, TensorProto.FLOAT, ["batch", weights.shape[1]]),
            helper.make_tensor_value_info(names.FEATURES_NAME, TensorProto.FLOAT, ["batch", "features"]),
        ],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(_places(sides), "places"),
            numpy_helper.from_array(np.array([2, 3]), "sides"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    keys = "[" + ", ".join(f'"{key}"' for key in output_keys) + "]"
    helper.set_model_props(
        model, {names.OUTPUT_KEYS_FIELD: keys, names.LABEL_HASH_FIELD: names.label_hash(output_keys)}
    )
    onnx.save(model, path)


def tables(**changes):
    """Calibration tables: red, green and blue pictures are plants, white ones are not."""
    directions = np.eye(3, dtype=np.float32) - np.float32(0.5)  # of the features of red, green and blue pictures
    generator = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 4], 10)  # no plant of the taxon crocus
    taxa = generator.dirichlet(np.full(len(TAXA), 0.5), len(labels))
    found = {
        "conformal": conformal_table(taxa, labels, np.array([0.3, 0.1, 0.3, 0.1, 0.2])),
        "features": FeatureTable(
            center_F=np.zeros(3, np.float32),
            basis_FD=np.eye(3, dtype=np.float32),
            whole_D=np.ones(3, np.float32),
            within_DD=np.eye(3, dtype=np.float32),
            mean_TD=directions,
        ),
        "familiarity": FamiliarityTable(np.linspace(0.2, 0.9, 20), np.linspace(-2, 2, 20)),
        "plant_head": LogisticHead(np.full(3, -8, np.float32), 0.0, 0.0, 4.0),
        "cutoffs": Cutoffs(plant=0.5, familiar=0.0),
        "fitted_on": FittedOn(
            "drawn, calibration split", "2026-11-22", num_plants=40, num_pictures=50, num_negatives=7
        ),
    }
    return Calibration(**(found | changes))


def seal_tiny_bundle(
    folder,
    scratch,
    version="0.0.1",
    weights=WEIGHTS,
    calibration=None,
    golden=None,
    examples=(),
    place=None,
    look_alikes=None,
    **network_fields,
):
    """Seals the bundle from files in `scratch`; `place` is a prior and the rule of its network."""
    network = scratch / "model.fp32.onnx"
    write_network(network, weights=weights)
    files, parts = {network.name: network}, {}

    def add(part, name):
        parts[part], files[name] = name, scratch / name
        return files[name]

    if calibration is not None:
        with_place = Calibration(conformal=calibration.conformal)
        tables_of = {"fp32": calibration, f"fp32{WITH_PLACE}": with_place}
        write_calibration(add(CALIBRATION_PART, CALIBRATION_FILE), tables_of)
    if examples:
        write_examples(add(EXAMPLES_PART, EXAMPLES_FILE), examples)
    if place is not None:
        prior, network_fields["place"] = place
        write_place(add(PLACE_PART, PLACE_FILE), prior)
    if golden is not None:
        add(GOLDEN_PART, GOLDEN_FILE).write_bytes(msgspec.json.encode(golden))
    record = bundle_record(
        version=version,
        architecture=Architecture("tiny", num_outputs=6, num_features=3, num_parameters=18),
        input=InputSpec(height=SIDE_PX, width=SIDE_PX, train_px=SIDE_PX),
        label_hash=TAXONOMY.label_hash,
        networks={"fp32": NetworkFile(network.name, temperature=1.0, **network_fields)},
        metrics=(Metric("top1_taxon", 0.5, "drawn", 10),),
        recipe={},
        trained_on="nothing",
        sources=(DataSource("drawn", 10, {"CC0": 10}, "for tests"),),
        description="Distinguishes colors.",
        parts=parts,
        look_alikes=look_alikes or {},
    )
    return seal_bundle(folder, record, TAXONOMY, files)


def draw(color=RED, size=(64, 48), mode="RGB"):
    """Draws a picture of one color."""
    return Image.new("RGB", size, color).convert(mode)


def encode(image, file_format="JPEG", **options):
    stream = io.BytesIO()
    image.save(stream, file_format, **options)
    return stream.getvalue()


def jpeg(color=RED, size=(64, 48), **options):
    return encode(draw(color, size), "JPEG", quality=95, **options)


def assert_problem(response, status, code):
    """Checks that the response is a valid problem document, and returns it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == code
    assert problem["status"] == status
    assert problem["type"] == f"urn:botanify:problem:{code}"
    assert problem["title"]
    assert problem["detail"].endswith(".")
    assert problem["request_id"] == response.headers["x-request-id"]
    assert set(problem) <= {"type", "title", "status", "detail", "code", "request_id", "index"}
    return problem


class InProcessDecoder:
    """Decodes in this process, for tests of everything except the decoder processes."""

    num_alive = 1

    async def start(self):
        pass

    async def close(self):
        pass

    # Imported where it is used: the training tests, which a machine without the service's packages runs, need the rest.
    def decode_time(self):
        from serving.engine.decoding.process import DecodeTime

        return DecodeTime(5.0)

    async def decode(self, data, spec, time=None):
        from serving.engine.decoding.pool import Decoded

        pixels, picture = await asyncio.to_thread(picture_to_input, data, spec)
        return Decoded(pixels, picture.width, picture.height, picture.format, picture.capture, picture.is_cut_off)


class FakeNetwork:
    """A network that can block or fail, and counts its runs; all logits are equal."""

    def __init__(self):
        self.free, self.entered = threading.Event(), threading.Event()
        self.free.set()
        self.fails, self.logit, self.feature, self.num_features, self.num_runs = False, 0.0, 0.0, 3, 0

    def hold(self):
        self.entered.clear()
        self.free.clear()

    def run(self, pixels):
        self.num_runs += 1
        self.entered.set()
        assert self.free.wait(PATIENCE_S)
        if self.fails:
            raise RuntimeError("secret words")
        logits = np.full((len(pixels), 6), self.logit, np.float32)
        return names.NetworkOutput(logits, np.full((len(pixels), self.num_features), self.feature, np.float32))


BOUNDARY = "botanify-test"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}


def spelled(pieces, parts):
    """The bytes of a table: texts and [text or pieces, times], in which <NAME> stands for one of the parts."""
    text = "".join(each if isinstance(each, str) else each[1] * _unit(each[0], parts) for each in pieces)
    for name, meant in parts.items():
        text = text.replace(f"<{name}>", meant)
    return text.encode("utf-8", "surrogateescape")


def _unit(piece, parts):
    return piece if isinstance(piece, str) else spelled(piece, parts).decode()


def part(name, content, *, filename=None, more=""):
    """One part of a form; written by hand, so that it can also be malformed."""
    quoted = f'; filename="{filename}"' if filename is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{quoted}\r\n{more}\r\n'
    return head.encode() + content + b"\r\n"


def form(*parts):
    """A complete form."""
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def images(*pictures):
    """The pictures as `files` of an httpx2 request."""
    return [("image", (f"{number}.jpg", data, "image/jpeg")) for number, data in enumerate(pictures)]


def post(client, *pictures, **options):
    """Asks about the pictures, or about a red one."""
    return client.post("/identify", files=images(*pictures or (jpeg(),)), **options)


def identify(client, *pictures, **parameters):
    """The answer about the pictures, or about a red one."""
    response = post(client, *pictures, params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def taxon_ids(predictions):
    return [entry["taxon_id"] for entry in predictions]


def scores(answer):
    return {entry["taxon_id"]: entry["score"] for entry in answer["predictions"]}


def in_event_loop(test):
    """Makes a test of a coroutine, which ends in time even on a busy machine."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE_S))

    return run
