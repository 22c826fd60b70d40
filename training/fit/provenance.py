"""Whether data has the outputs of a network, and is that of its training.

Other data, such as another split of the same pictures, may hold test pictures that the network was trained on.
"""

import warnings
from typing import Final

from models.errors import DataError
from training.dataset.manifest import Manifest

OTHER_DATA: Final = "other data than the network was trained with"
"""Said beside every figure that was measured on other data."""


def is_other_data(manifest: Manifest, trained_with: str, owner: str, *, allowed: bool) -> bool:
    """Returns whether the data is not that of the training; a network that does not say its data gets a warning.

    `trained_with` is the SHA-256 of the manifest that the network was trained with, empty if unknown. Its owner is
    "bundle" or "checkpoint", for messages. `allowed` says whether --other-data was given.

    Raises:
        DataError: It is other data, and that was not allowed.
    """
    if not trained_with:
        warnings.warn(
            f"the {owner} does not say with which data it was trained, so figures may come from its training pictures",
            stacklevel=2,
        )
        return allowed
    if manifest.has_sha256(trained_with):
        return False
    if not allowed:
        raise DataError(
            f"the {owner} was trained with other data, whose training pictures may be in any split of this one",
            value=f"manifest {(manifest.packed_from or manifest.sha256)[:12]} in {manifest.folder}",
            limit=f"manifest {trained_with[:12]}",
            remedy="give the data that it was trained with, or say --other-data; then every figure says so",
        )
    return True


def require_same_outputs(manifest: Manifest, output_keys: tuple[str, ...], owner: str) -> None:
    """Refuses data whose outputs are not those of a network.

    Raises:
        DataError: The outputs differ.
    """
    if output_keys != manifest.taxonomy.output_keys:
        raise DataError(
            f"the {owner} and the data have different outputs",
            value=f"{len(manifest.taxonomy.outputs)} outputs in {manifest.folder}",
            limit=f"the {len(output_keys)} outputs of the {owner}, in the same order",
            remedy="give the data that the network was trained on",
        )
