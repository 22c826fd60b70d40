"""Bundles that tell the drawn flowers of `tests/training/small.py` apart by their mean color, well or badly."""

import numpy as np

from models.bundle import seal_bundle
from models.bundle_record import Architecture, NetworkFile
from models.preprocess import InputSpec, picture_to_input
from tests.models.pictures import SPEC
from tests.models.tiny import bundle_record
from tests.serving.tiny import write_network
from tests.training import small
from training.dataset.manifest import Manifest


def prepare_flowers(folder, per_class=20):
    """Prepared data of drawn flowers, of which half are for the test; the pictures are below the folder."""
    return small.prepare_flowers(folder, per_class, test_share=0.5)


def good_weights(manifest):
    """Least squares from mean colors to outputs, fitted on every picture."""
    colors = [
        picture_to_input(manifest.path(row).read_bytes(), SPEC)[0].mean(axis=(1, 2)) for row in range(len(manifest))
    ]
    wanted = np.eye(len(manifest.taxonomy.outputs))[manifest.labels]
    return np.linalg.lstsq(np.array(colors), wanted, rcond=None)[0].astype(np.float32) * 10


def seal_color_bundle(folder, data, *, version, weights=None, taxonomy=None, trained_on=None, side_px=32, **entry):
    """A bundle that records the manifest of `trained_on` (default: of the data; "" for none)."""
    manifest = Manifest(data)
    taxonomy = taxonomy or manifest.taxonomy
    weights = good_weights(manifest) if weights is None else weights
    network = folder.with_suffix(".onnx")
    write_network(network, taxonomy.output_keys, weights.astype(np.float32), sides=(side_px, side_px))
    record = bundle_record(
        name="colors",
        version=version,
        architecture=Architecture("tiny", num_outputs=len(taxonomy.outputs), num_features=3, num_parameters=9),
        input=InputSpec(height=side_px, width=side_px, train_px=side_px),
        label_hash=taxonomy.label_hash,
        networks={"fp32": NetworkFile("model.fp32.onnx", **{"temperature": 1.0, **entry})},
        metrics=(),
        manifest_sha256=manifest.sha256 if trained_on is None else trained_on,
    )
    return seal_bundle(folder, record, taxonomy, {"model.fp32.onnx": network})
