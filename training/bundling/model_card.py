"""The model card of a bundle (Mitchell et al. 2019, "Model Cards for Model Reporting")."""

from typing import Final

from models.bundle_record import BundleRecord, CommercialUse, MeasuredCoverage, Metric
from models.taxonomy import Taxonomy
from training.evaluation.provenance import OTHER_DATA

MODEL_CARD_FILE: Final = "MODEL_CARD.md"
_MOST_NAMES: Final = 50
_METRICS: Final = {
    "top1_output": "the most likely output is right",
    "top1_taxon": "the most likely plant is right",
    "top5_taxon": "the right plant is among the five most likely",
    "macro_top1_taxon": "mean over the plants of their top1_taxon",
    "ece": "expected calibration error",
    "left_out_auroc": "chance that a known plant is more familiar than a plant whose taxon is left out",
    "left_out_named_species": "plants whose taxa are left out that get the name of a species",
    "things_auroc": "chance that a plant has a higher plant score than a picture of something else",
    "things_accepted": "pictures of something else whose plant score reaches the cutoff",
    "things_named": "pictures of something else that get the name of a plant, at any rank",
    "nll": "mean negative log-likelihood, nats",
}
_COMMERCIAL_USE: Final[dict[CommercialUse, str]] = {
    "allowed": "All of these licenses allow commercial use.",
    "not_allowed": "May not be used commercially: at least one of these licenses forbids it.",
    "unknown": "It is not known whether all of these licenses allow commercial use.",
}


def model_card(record: BundleRecord, taxonomy: Taxonomy, *further_sections: str) -> str:
    """Writes the card from the bundle's record and taxonomy; the further sections follow the metrics."""
    sections = [
        f"# {record.name} {record.version}\n\n{record.description}",
        _network(record),
        "## Metrics\n\n"
        + "\n".join([*map(_metric, record.metrics), *map(_coverage, record.networks["fp32"].coverages)]),
        _provenance(record),
        *further_sections,
        _data(record),
        _names(taxonomy),
    ]
    return "\n\n".join(sections) + "\n"


def _network(record: BundleRecord) -> str:
    network, spec = record.architecture, record.input
    return (
        f"## The network\n\n{network.name}, {network.num_parameters:,} parameters, {network.num_outputs:,} outputs. "
        f"Served with pictures of {spec.width} x {spec.height} px; last epoch of training: {spec.train_px} px. "
        f"Start of the training: {record.initial_weights}. "
        f"Trained on: {record.trained_on}."
    )


def _provenance(record: BundleRecord) -> str:
    if record.other_data:
        metrics = f"The metrics come from {OTHER_DATA}: pictures that it was trained on may be among them."
    elif record.manifest_sha256:
        metrics = "The metrics come from the same manifest."
    else:
        metrics = "It is not known whether the metrics come from the same manifest."
    return (
        f"## Provenance\n\nTrained with the manifest {record.manifest_sha256 or 'unknown'} (SHA-256) at commit "
        f"{record.trained_commit}, exported at commit {record.git_commit}. {metrics}"
    )


def _metric(metric: Metric) -> str:
    meaning = f" ({_METRICS[metric.name]})" if metric.name in _METRICS else ""
    interval = ", 95 % interval {:.3f} to {:.3f}".format(*metric.interval_95) if metric.interval_95 else ""
    return f"* {metric.name}{meaning}: {metric.value:.3f}{interval} ({metric.data}, {metric.num_pictures} pictures)"


def _coverage(measured: MeasuredCoverage) -> str:
    interval = ", 95 % interval {:.3f} to {:.3f}".format(*measured.interval_95) if measured.interval_95 else ""
    return (
        f"* candidate sets, {measured.kind} coverage, {measured.coverage:.2f} asked: {measured.covered:.3f}{interval} "
        f"({measured.data}, {measured.num_pictures} pictures)"
    )


def _data(record: BundleRecord) -> str:
    lines = []
    for source in record.sources:
        licenses = ", ".join(f"{count} {license_}" for license_, count in sorted(source.licenses.items()))
        note = f" {source.note}" if source.note else ""
        use = _COMMERCIAL_USE[source.commercial_use]
        authors = f" by {source.num_authors} named authors" if source.num_authors else ""
        lines.append(f"* {source.name}: {source.num_pictures} pictures{authors}; licenses: {licenses}. {use}{note}")
    return "## Training data\n\n" + "\n".join(lines)


def _names(taxonomy: Taxonomy) -> str:
    names = sorted(taxon.scientific_name for taxon in taxonomy.taxa)
    more = f", and {len(names) - _MOST_NAMES} more (`taxa.json`)" if len(names) > _MOST_NAMES else ""
    return (
        f"## Plants it can name\n\n{', '.join(names[:_MOST_NAMES])}{more}. Any other plant gets a wrong name or none."
    )
