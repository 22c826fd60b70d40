"""A row of the result: the answer about one plant, or why there is none, and what its EXIF data say."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from models.answer import PlantAnswer, PossibleHarm
from models.errors import BotanifyError, one_line, without_password
from models.exif import Capture
from models.harmful import harms_of
from models.ranking import Verdict, comparison
from models.taxonomy import Taxon
from serving.folder.photographs import Photograph
from serving.folder.plants import Plant

Row = dict[str, Any]
"""Column -> value."""
_ARROW: Final = {str: pa.string(), int: pa.int64(), float: pa.float64(), list: pa.list_(pa.string())}
# Without the names and scores, which depend on how many were asked for.
_COLUMNS: Final[Mapping[str, type]] = {
    "path": str, "group": str, "num_photographs": int, "num_failed": int, "status": str, "error_code": str,
    "error": str, "verdict_rank": str, "verdict_name": str, "taxon_id": str, "verdict_score": float, "genus": str,
    "family": str, "reason": str, "guess_rank": str, "guess_first": float, "guess_three": float, "harm": str,
    "plant_score": float, "discarded_mass": float, "candidates": list, "num_candidates": int,
    "candidates_guarantee": str, "width": int, "height": int, "taken_at": str, "latitude": float, "longitude": float,
    "geodetic_datum": str, "coordinate_uncertainty_m": int, "bundle_name": str, "bundle_version": str,
    "label_hash": str,
}  # fmt: skip


class Seen(msgspec.Struct, frozen=True):
    """What a photograph says about itself."""

    photograph: Photograph
    width: int
    """Width of the upright original, px."""
    height: int
    """Height of the upright original, px."""
    capture: Capture
    is_cut_off: bool


class Failure(msgspec.Struct, frozen=True):
    """Why a photograph has no answer."""

    code: str
    message: str

    @classmethod
    def of(cls, error: BotanifyError | OSError) -> "Failure":
        """Describes an error in one line."""
        code = error.code if isinstance(error, BotanifyError) else "unreadable_file"
        return cls(code, one_line(without_password(str(error))))


def columns(top_k: int, extra: Iterable[str] = ()) -> pa.Schema:
    """Returns all columns of a result, with `top_k` names and scores, and the `extra` ones of the list."""
    found = dict(_COLUMNS)
    for position in range(1, top_k + 1):
        found |= {f"name_{position}": str, f"score_{position}": float}
    found |= {f"list_{name}": str for name in extra}
    return pa.schema({name: _ARROW[kind] for name, kind in found.items()})


def answered(
    plant: Plant,
    answer: PlantAnswer,
    seen: Sequence[Seen],
    failures: Sequence[Failure],
    min_score: float | None,
) -> Row:
    """Returns the row of a plant that has an answer, although some of its photographs may have failed.

    A name with a lower score than `min_score` is withheld.
    """
    verdict, best = _withheld(answer.verdict, min_score), answer.taxa[0]
    capture = seen[0].capture
    cut_off = (f"{each.photograph.path} is cut off at its end." for each in seen if each.is_cut_off)
    row: Row = {
        "status": "ok",
        "verdict_rank": verdict.rank,
        "verdict_name": verdict.name,
        "taxon_id": best.taxon.taxon_id if verdict.rank == "species" else None,
        "verdict_score": verdict.score,
        **_groups(verdict, best.taxon),
        "reason": " ".join([verdict.reason, *cut_off]),
        "harm": " ".join(harm_sentences(verdict, best.taxon, answer.harmful)) or None,
        "plant_score": answer.plant_score,
        "discarded_mass": answer.discarded_mass,
        "width": seen[0].width,
        "height": seen[0].height,
        "taken_at": capture.taken_at and capture.taken_at.isoformat(),
    }
    if capture.coordinates is not None:
        row["latitude"], row["longitude"] = capture.coordinates
        row |= {"geodetic_datum": capture.datum, "coordinate_uncertainty_m": capture.uncertainty_m}
    if (guess := answer.guess) is not None:
        row |= {"guess_rank": guess.rank, "guess_first": guess.first, "guess_three": guess.three}
    if answer.candidates is not None:
        row["candidates"] = [ranked.taxon.scientific_name for ranked in answer.candidates.taxa]
        row["num_candidates"] = answer.candidates.num_taxa
        row["candidates_guarantee"] = answer.candidates.guarantee
    for position, ranked in enumerate(answer.taxa, start=1):
        row |= {f"name_{position}": ranked.taxon.scientific_name, f"score_{position}": ranked.score}
    return _of_plant(plant, seen[0].photograph, failures) | row


def harm_sentences(verdict: Verdict, best: Taxon, harmful: Sequence[PossibleHarm]) -> list[str]:
    """Returns how the named species harms, and which grave harms of other taxa cannot be ruled out."""
    own = harms_of(best.scientific_name, best.genus) if verdict.rank == "species" else []
    others = [
        f"May be {each.taxon.taxon.scientific_name}: {each.harm.line}" for each in harmful if each.harm not in own
    ]
    return [*(harm.line for harm in own), *others]


def failed(plant: Plant, failures: Sequence[Failure]) -> Row:
    """Returns the row of a plant none of whose photographs gave an answer."""
    return _of_plant(plant, plant.photographs[0], failures) | {"status": "failed"}


def _groups(verdict: Verdict, best: Taxon) -> Row:
    """Returns the genus and family that a verdict implies."""
    match verdict.rank:
        case "species":
            return {"genus": best.genus, "family": best.family}
        case "genus":
            return {"genus": verdict.name, "family": best.family if best.genus == verdict.name else None}
        case "family":
            return {"family": verdict.name}
    return {}


def _withheld(verdict: Verdict, min_score: float | None) -> Verdict:
    if min_score is None or verdict.name is None or verdict.score >= min_score:
        return verdict
    reason = f"{verdict.rank} {verdict.name} {comparison(verdict.score, min_score)}, the least score asked for."
    return msgspec.structs.replace(verdict, rank="uncertain", name=None, reason=reason, promise=None)


def _of_plant(plant: Plant, shown: Photograph, failures: Sequence[Failure]) -> Row:
    """Returns the columns that every row has; those of one photograph are those of the one that is shown."""
    first = failures[0] if failures else Failure("", "")
    return {
        "path": shown.path,
        "group": plant.name,
        "num_photographs": len(plant.photographs),
        "num_failed": len(failures),
        "error_code": first.code or None,
        "error": first.message or None,
        **{f"list_{name}": value for name, value in shown.columns.items()},
    }
