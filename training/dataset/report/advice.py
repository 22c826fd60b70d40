"""What a user can do about the classes of a preparation, as sentences for the terminal."""

import math
from collections.abc import Sequence
from typing import Final

from training.dataset.report.schema import ClassSize, Report

_MOST_SHOWN: Final = 10


def advice(report: Report) -> list[str]:
    """Returns sentences on names that are not scientific, pictures with two names, and classes without validation."""
    return [sentence for sentence in (_on_names(report), _on_two_names(report), _on_validation(report)) if sentence]


def _on_names(report: Report) -> str:
    misspelt = [f"{finding.name}: {finding.explanation}" for finding in report.names.misspelt]
    hint = f"Genera that may be misspelt: {_listed(misspelt)}. " if misspelt else ""
    names = [finding.name for finding in report.names.common]
    if not names:
        return hint.rstrip()
    return hint + (
        f"Class names that cannot be read as plants, and so have no genus: {_listed(names)}. "
        "Name the folders Common (Scientific), or give a table the column genus."
    )


def _on_two_names(report: Report) -> str:
    if not report.two_names:
        return ""
    groups = [" = ".join(group) for group in report.two_names]
    return f"Same picture, or nearly, with two names: {_listed(groups, most=3)}. Of a real copy one name is wrong."


def _on_validation(report: Report) -> str:
    share = float(report.rules["validation_share"])
    publishing = {source.name for source in report.sources if "validation" in source.published}
    if share == 0 or len(publishing) == len(report.sources):
        return ""
    small = [size for size in report.classes if _is_missing(size) and size.key.partition(":")[0] not in publishing]
    if not small:
        return ""
    sizes = [f"{size.scientific_name} {_num_training(size)}" for size in reversed(small)]
    return (
        f"Classes too small for a validation picture, with their training pictures: {_listed(sizes)}. {_remedy(small)}"
    )


def _remedy(small: Sequence[ClassSize]) -> str:
    fewest = min((number for size in small if (number := _num_training(size)) > 1), default=0)
    if not fewest:
        return "A class needs two pictures or more for that."
    # The number of validation pictures is rounded (`training.dataset.splits`), so just over half a picture gives one.
    share = math.floor(100 * 0.5 / fewest + 1) / 100
    return f"A larger share gives them one: --validation-share {share} (in a collection: validation_share)."


def _listed(names: Sequence[str], most: int = _MOST_SHOWN) -> str:
    """Returns the number of the names and the first ones: "12 (a, b, and 10 more)"."""
    shown = ", ".join(names[:most])
    more = f", and {len(names) - most:,} more" if len(names) > most else ""
    return f"{len(names):,} ({shown}{more})"


def _is_missing(size: ClassSize) -> bool:
    return _num_training(size) > 0 and "validation" not in size.by_split


def _num_training(size: ClassSize) -> int:
    """Returns the number of pictures that the validation split is cut from."""
    return size.by_split.get("train", 0) + size.by_split.get("calibration", 0)
