"""The model card: the part of a bundle that is written for people (Mitchell et al. 2019, "Model Cards")."""

from typing import Final

from models.bundle import BundleRecord, CommercialUse, Metric
from models.taxonomy import Taxonomy

MODEL_CARD_FILE: Final = "MODEL_CARD.md"
_MOST_NAMES: Final = 50
_COMMERCIAL_USE: Final[dict[CommercialUse, str]] = {
    "allowed": "Commercial use is allowed by all of them.",
    "not_allowed": "May not be used commercially: at least one of them forbids it.",
    "unknown": "Whether commercial use is allowed is not known of all of them.",
}


def model_card(record: BundleRecord, taxonomy: Taxonomy) -> str:
    """Writes the card from what the bundle's record says; nothing is stated that is not recorded there."""
    sections = [
        f"# {record.name} {record.version}\n\n{record.description}",
        _network(record),
        "## How right it is\n\n" + "\n".join(_metric(metric) for metric in record.metrics),
        _data(record),
        _names(taxonomy),
    ]
    return "\n\n".join(sections) + "\n"


def _network(record: BundleRecord) -> str:
    network, spec = record.architecture, record.input
    return (
        f"## The network\n\n{network.name}, {network.num_parameters:,} parameters, {network.num_outputs:,} outputs. "
        f"Served at {spec.width} x {spec.height} px, trained last at {spec.train_px} px. "
        f"Started from weights: {record.recipe.get('network', {}).get('weights', 'unknown')}. "
        f"Trained on: {record.trained_on}."
    )


def _metric(metric: Metric) -> str:
    interval = (
        f", 95 % interval {metric.interval_95[0]:.3f} to {metric.interval_95[1]:.3f}" if metric.interval_95 else ""
    )
    return f"* {metric.name}: {metric.value:.3f}{interval} ({metric.data}, {metric.num_pictures} pictures)"


def _data(record: BundleRecord) -> str:
    lines = []
    for source in record.sources:
        licences = ", ".join(f"{count} {licence}" for licence, count in sorted(source.licences.items()))
        note = f" {source.note}" if source.note else ""
        use = _COMMERCIAL_USE[source.commercial_use]
        authors = f" by {source.num_authors} named authors" if source.num_authors else ""
        lines.append(f"* {source.name}: {source.num_pictures} pictures{authors}; licences: {licences}. {use}{note}")
    return "## What it learned from\n\n" + "\n".join(lines)


def _names(taxonomy: Taxonomy) -> str:
    names = sorted(taxon.scientific_name for taxon in taxonomy.taxa)
    more = f", and {len(names) - _MOST_NAMES} more (`taxa.json`)" if len(names) > _MOST_NAMES else ""
    return f"## What it can name\n\n{', '.join(names[:_MOST_NAMES])}{more}. Any other plant gets a wrong name or none."
