"""A tiny taxonomy, network file and bundle."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.bundle import seal_bundle
from models.bundle_record import FORMAT_VERSION, Architecture, BundleRecord, Check, DataSource, Metric, NetworkFile
from models.calibration import conformal_table_of
from models.preprocess import InputSpec
from models.session import FEATURES_NAME, INPUT_NAME, LABEL_HASH_FIELD, LOGITS_NAME, OUTPUT_KEYS_FIELD
from models.taxonomy import Output, Taxon, Taxonomy, label_hash

SIDE_PX = 8
NETWORK = "model.fp32.onnx"


def species(name, family="", **more):
    genus = name.split()[0]
    return Taxon(name.lower().replace(" ", "-"), "species", name, genus, family, **more)


def genus_only(name, family=""):
    return Taxon(name.lower(), "genus", name, name, family)


def common_only(name):
    return Taxon(name.lower(), "species", name, "")


def taxonomy_of(*taxa, outputs=None):
    """One output for each taxon, or the outputs given as (source, scientific name)."""
    id_of = {taxon.scientific_name: taxon.taxon_id for taxon in taxa}
    pairs = outputs or [("drawn", taxon.scientific_name) for taxon in taxa]
    return Taxonomy(
        "2026-11", tuple(taxa), tuple(Output(f"{source}:{id_of[name]}", source, id_of[name]) for source, name in pairs)
    )


ROSE = species("Rosa canina", "Rosaceae", common_names=("dog rose",), synonyms=("Rosa corymbifera",))
DAISY = species("Bellis perennis", "Asteraceae", common_names=("daisy", "Gänseblümchen"), gbif_id=3117424)
CROCUS = genus_only("Crocus", "Iridaceae")
# Four outputs over three taxa: the daisy is in two data sets.
TAXONOMY = taxonomy_of(
    ROSE, DAISY, CROCUS,
    outputs=[("a", "Rosa canina"), ("a", "Bellis perennis"), ("b", "Bellis perennis"), ("a", "Crocus")],
)  # fmt: skip
# Oaks are Fagaceae as the beech is.
WOOD = taxonomy_of(
    species("Quercus robur", "Fagaceae"),
    species("Quercus petraea", "Fagaceae"),
    species("Fagus sylvatica", "Fagaceae"),
    species("Acer campestre", "Sapindaceae"),
)
WEIGHTS = np.array([[2, 0, 0, -1], [0, 1, 1, 0], [-1, 0, 0, 2]], dtype=np.float32)


def metadata_of(keys):
    return {OUTPUT_KEYS_FIELD: json.dumps(list(keys)), LABEL_HASH_FIELD: label_hash(keys)}


def write_network(
    path,
    *,
    keys=TAXONOMY.output_keys,
    metadata=None,
    input_name=INPUT_NAME,
    input_shape=("batch", 3, SIDE_PX, SIDE_PX),
    input_type=TensorProto.FLOAT,
    side_axes=(2, 3),
    logits_name=LOGITS_NAME,
    features_name=FEATURES_NAME,
    more_inputs=(),
    flat_logits=False,
):
    """A network whose features are the mean red, green and blue, and whose logits are `features @ WEIGHTS`."""
    nodes = [
        helper.make_node("Cast", [input_name], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "sides"], [features_name], keepdims=0),
        helper.make_node("MatMul", [features_name, "weights"], ["product"]),
        helper.make_node("ReduceSum" if flat_logits else "Identity", ["product"], [logits_name], **(
            {"keepdims": 0} if flat_logits else {}
        )),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info(input_name, input_type, list(input_shape)),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in more_inputs),
        ],
        [
            helper.make_tensor_value_info(
                logits_name, TensorProto.FLOAT, [] if flat_logits else [input_shape[0], WEIGHTS.shape[1]]
            ),
            helper.make_tensor_value_info(features_name, TensorProto.FLOAT, [input_shape[0], 3]),
        ],
        [numpy_helper.from_array(WEIGHTS, "weights"), numpy_helper.from_array(np.array(side_axes), "sides")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    helper.set_model_props(model, metadata_of(keys) if metadata is None else metadata)
    onnx.save(model, path)
    return path


def bundle_record(**changes):
    check = Check("parity", value=1e-6, limit=1e-3, passed=True, num_pictures=10)
    record = {
        "format_version": FORMAT_VERSION,
        "name": "tiny",
        "version": "0.0.1",
        "architecture": Architecture("tiny", num_outputs=4, num_features=3, num_parameters=12),
        "input": InputSpec(height=SIDE_PX, width=SIDE_PX, train_px=SIDE_PX),
        "label_hash": TAXONOMY.label_hash,
        "networks": {"fp32": NetworkFile(NETWORK, temperature=0.9, checks=(check,))},
        "metrics": (Metric("top1_taxon", 0.5, "drawn", 10, interval_95=(0.24, 0.76)),),
        "recipe": {"seed": 1},
        "sources": (DataSource("drawn", 10, {"CC0": 10}),),
        "git_commit": "unknown",
        "created": "2026-11-20T00:00:00Z",
    }
    return BundleRecord(**(record | changes))


def seal_tiny(folder, network, *, record=None, taxonomy=TAXONOMY, more_files=None):
    return seal_bundle(folder, record or bundle_record(), taxonomy, {NETWORK: network, **(more_files or {})})


def conformal_table(taxa_NT, labels_N, prior_T):
    """The table of calibration plants with these probabilities of all taxa."""
    return conformal_table_of(taxa_NT[np.arange(len(labels_N)), labels_N], labels_N, prior_T)
