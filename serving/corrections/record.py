"""A correction, as the service takes it and the store keeps it."""

import msgspec


class Correction(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says about an answer, and the answer."""

    correction_id: str
    """Random; who knows it may delete the correction."""
    created: str = ""
    """UTC, ISO 8601."""
    person: str
    """Name of the API key; empty if the service needs none."""
    model: str
    """Name and version of the model that answered."""
    label_hash: str
    verdict_rank: str
    predicted: str
    """Taxon id of the most likely taxon."""
    score: float
    """Its probability."""
    predictions: str
    """JSON: [[taxon id, probability], ...]."""
    taxon_id: str | None = None
    """What the plant is, if the model knows the taxon."""
    name: str = ""
    """Its scientific name, or what the person wrote."""
    certain: bool = False
    reviewer: str = ""
    """Who reviewed it; empty if nobody did."""
    accepted: bool | None = None
    """What the reviewer said."""
    pictures: tuple[str, ...] = ()
    """SHA-256 of each picture that the person gave."""
