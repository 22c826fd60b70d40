"""What is wrong with the pictures, and what may be done with them.

examine      every picture decoded once: broken and tiny ones, sizes, hashes; hours, resumable
journal      what `examine` found out, kept on the disk
copies       byte-for-byte copies over all sources
near_copies  groups of pictures that look the same: re-encoded, scaled, slightly cropped
ledger       licenses and authors, and what they say of commercial use
"""

from training.dataset.audit.copies import drop_copies
from training.dataset.audit.examine import examine
from training.dataset.audit.licenses import (
    Ledger,
    LicenseSummary,
    commercial_use,
    joint_commercial_use,
    ledger,
    license_id,
)
from training.dataset.audit.near_copies import FEATURELESS, NearGroups, near_groups

__all__ = [
    "FEATURELESS",
    "Ledger",
    "LicenseSummary",
    "NearGroups",
    "commercial_use",
    "drop_copies",
    "examine",
    "joint_commercial_use",
    "ledger",
    "license_id",
    "near_groups",
]
