"""The HTTP API in types: the JSON records of its answers, and the parameters of a request.

Fields may be added, but never renamed or removed.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Final, Literal, cast, get_args

import msgspec

from models.bundle_record import MeasuredCoverage
from models.calibration import CoverageKind
from models.place import Where
from models.ranking import Promise, VerdictRank
from models.taxonomy import LANGUAGE, Rank
from serving.errors import BadParameter


class ModelName(msgspec.Struct, frozen=True):
    """The model that answered."""

    name: str
    version: str
    label_hash: str
    """SHA-256 of the ordered output keys: models with the same hash have the same outputs."""


class VerdictView(msgspec.Struct, frozen=True):
    """The most precise name that the scores support."""

    rank: VerdictRank
    name: str | None
    """Scientific name; null when uncertain or not a plant."""
    score: float
    """Probability in [0, 1]."""
    reason: str
    """The reason, as a sentence."""
    promise: Promise | None
    """What calibration plants prove about names of this rank; null if nothing is proved, no name is given, or the
    request chose the taxa."""
    unknown_plant: bool
    """Whether the rank is uncertain because the pictures show a plant unlike those that the model knows."""


class Prediction(msgspec.Struct, frozen=True):
    """A taxon and its probability."""

    position: int
    """Place in the ranking; 1 is the most probable."""
    rank: Rank
    taxon_id: str
    """Stable identifier of the taxon."""
    scientific_name: str
    common_names: tuple[str, ...]
    """In the language that the request asks for, where the model knows some in it."""
    genus: str
    """Empty for a class that is known by its common name alone."""
    family: str
    """Empty if unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, if known."""
    score: float
    """Probability in [0, 1]."""
    powo_id: str | None = None
    """Id in Plants of the World Online and in the International Plant Names Index, if known."""
    vision_score: float | None = None
    """Probability without the place; null if the answer does not rest on a place."""
    prior: float | None = None
    """How many times as likely the taxon is at this place and month as in the world, as far as the answer believes it;
    null if it does not rest on a place."""
    num_images: int = 0
    """Number of reference pictures of the taxon, which `/species/{taxon_id}` lists."""


class GroupScore(msgspec.Struct, frozen=True):
    """A genus or family and the summed probability of its taxa."""

    name: str
    score: float
    """Probability in [0, 1]."""


class CandidatesView(msgspec.Struct, frozen=True):
    """The smallest set of taxa that includes the right one as often as the request asked for."""

    coverage: float
    """How often the set includes the right taxon, as the request asked."""
    kind: CoverageKind
    """Whether the coverage holds for the mean plant (marginal) or for the mean taxon (macro)."""
    guarantee: CoverageKind | None
    """The kind of coverage that is guaranteed; null if the request chose the taxa, a picture has the weight 0, the
    verdict is that it shows no plant or an unknown one, or the model may have been trained on the calibration plants.
    """
    num_taxa: int
    """Number of taxa in the set."""
    score: float
    """Probability of the whole set."""
    taxa: list[Prediction]
    """The taxa of the set, the best candidate first; at most 100."""
    num_uncalibrated_taxa: int
    """Number of taxa of the model without calibration plants, about which the coverage says little."""
    measured: MeasuredCoverage | None
    """How often such sets held the right taxon on test pictures; null if that was not measured for this coverage, or
    nothing is guaranteed."""


class ImageView(msgspec.Struct, frozen=True):
    """A picture of the request."""

    index: int
    """Position in the request, from 0."""
    width: int
    """Width after the EXIF rotation, px."""
    height: int
    """Height after the EXIF rotation, px."""
    plant_score: float | None
    """Probability that it shows a plant; null if the model has no table for it."""
    weight: float
    """Share of this picture in the answer; the shares of all pictures sum to 1."""
    predictions: list[Prediction]
    """The three most likely taxa on this picture alone."""
    preview: str | None = None
    """What the network saw of it, as a data URL with a WebP of at most 256 px; null without the parameter `preview`."""


PlaceCode = Literal["used", "cultivated", "no_prior", "no_records", "no_place_in_exif", "date_without_place"]
PLACE_REASONS: Final[Mapping[PlaceCode, str]] = {
    "used": "The scores count the place, and the date if there is one.",
    "cultivated": "Place and date were ignored: the request says that the plant is cultivated.",
    "no_prior": "Place and date were ignored: this model has no prior of place.",
    "no_records": "Place and date were ignored: this model has no records there that tell plants apart.",
    "no_place_in_exif": "The parameter 'use_exif' was ignored: no picture has a place in its EXIF data.",
    "date_without_place": "The parameter 'date' was ignored: a day counts with a place only.",
}
"""What became of the place and the date of a request, in words."""


class PlaceUse(msgspec.Struct, frozen=True):
    """What became of the place and the date that a request gave."""

    used: bool
    """Whether the answer rests on them; if not, it is the answer without them."""
    code: PlaceCode
    """Why, for programs."""
    reason: str
    """Why, as a sentence."""

    @classmethod
    def of(cls, code: PlaceCode) -> "PlaceUse":
        """Returns the record of a code."""
        return cls(code == "used", code, PLACE_REASONS[code])


class Identification(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    request_id: str
    model: ModelName
    verdict: VerdictView
    predictions: list[Prediction]
    genera: list[GroupScore]
    families: list[GroupScore]
    plant_score: float | None
    """Probability that the pictures show a plant; null if the model has no table for it."""
    candidates: CandidatesView | None
    """The candidate set; null without the parameter `coverage`, or if the model has no table for it."""
    discarded_mass: float | None
    """Probability of the taxa outside of the parameter `taxa`; null without it."""
    images: list[ImageView]
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""
    uses_place: bool = False
    """Whether the answer rests on a place, that of the request or, with `use_exif`, of a picture."""
    place: PlaceUse | None = None
    """What became of `latitude` and `longitude`, `date` and `use_exif`; null only if the request has none of these."""
    look_alikes: list[Prediction] = []
    """Taxa that the species of the verdict is often taken for on calibration plants, the most likely first; at most
    three, none of them ruled out by the parameter `taxa`; empty for another rank, and if the model knows none."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as a problem document (RFC 9457)."""

    type: str
    """URI of the kind of problem: `urn:botanify:problem:` and the code."""
    title: str
    """The kind of problem in a few words."""
    status: int
    """The HTTP status."""
    detail: str
    """This problem in one sentence: what is wrong, the value, the limit and the remedy."""
    code: str
    """Stable name of the kind of problem, for programs."""
    request_id: str
    """The same as in the header `X-Request-ID` and in the logs."""
    index: int | None = None
    """Position of the picture at fault, from 0; absent if the problem is not about one picture."""


class Health(msgspec.Struct, frozen=True):
    """The result of a health probe."""

    status: str


# ---- The parameters of an identify request: query parameters, and form fields with the same names

MAX_IMAGES: Final = 5
"""Maximum number of pictures in a request."""
DEFAULT_K: Final = 5
"""Number of taxa, genera and families that an answer lists by default."""
MAX_K: Final = 50
"""Maximum number of taxa, genera and families that a client can ask for."""
MIN_COVERAGE: Final = 0.5
MAX_COVERAGE: Final = 0.999
"""Limits of the coverage that a client can ask for."""
MAX_TAXA: Final = 50
"""Maximum number of values of `taxa`; a longer choice is a list that the operator keeps."""
MAX_NAME_LENGTH: Final = 200
"""Maximum number of characters of a name that a client sends."""
MAX_FIELD_BYTES: Final[Mapping[str, int]] = {
    "k": 64,
    "coverage": 64,
    "coverage_kind": 64,
    "taxa": 4 * MAX_NAME_LENGTH,  # UTF-8 takes up to four bytes for a character
    "lang": 64,
    "preview": 16,
    "latitude": 64,
    "longitude": 64,
    "date": 32,
    "use_exif": 16,
    "cultivated": 16,
}
"""Name of each parameter -> longest form field, bytes."""

_MAX_HEADER_LENGTH: Final = 1_000  # that is read; real ones are about a tenth as long
_LANGUAGE_RANGE: Final = re.compile(rf"(?P<language>{LANGUAGE})(?:\s*;\s*q=(?P<weight>[01](?:\.[0-9]{{0,3}})?))?")

Given = Mapping[str, Sequence[str]]
"""Name of a parameter -> its values in the order of the request, unparsed."""


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for, beside its pictures."""

    top_k: int = DEFAULT_K
    """Maximum number of taxa, genera and families to list."""
    coverage: float | None = None
    """How often the candidate set shall include the right taxon; None for no candidate set."""
    coverage_kind: CoverageKind = "marginal"
    """Whether that holds for the mean plant ("marginal") or for the mean taxon ("macro")."""
    taxa: tuple[str, ...] = ()
    """Names of the taxa that can be the answer, and `list:NAME`; none for all taxa."""
    lang: str | None = None
    """Language of the common names; None for those that the header Accept-Language prefers."""
    preview: bool = False
    """Whether to send small pictures back, since few browsers show HEIC."""
    where: Where | None = None
    """Where and when the plant was photographed."""
    day: date | None = None
    """When, also without a place."""
    use_exif: bool = False
    """Whether to take that from the EXIF data of the pictures if the request names no place; `day` still wins."""
    cultivated: bool = False
    """Whether the plant was planted, so that its place says nothing."""


def parse_parameters(given: Given, *, is_part: bool = False) -> Asked:
    """Parses the parameters of a request; of several values the last counts, except for `taxa`.

    `is_part` says that these are those of the query or of the form alone: the other coordinate may be in the other.

    Raises:
        BadParameter: A value is out of range.
    """
    day = _parse_day(_last(given, "date", ""))
    return Asked(
        top_k=parse_whole_number("k", _last(given, "k", str(DEFAULT_K)), MAX_K),
        coverage=_parse_coverage(given["coverage"][-1]) if given.get("coverage") else None,
        coverage_kind=_parse_coverage_kind(_last(given, "coverage_kind", "marginal")),
        taxa=_parse_taxa(given.get("taxa", ())),
        lang=parse_language(_last(given, "lang", "")),
        preview=parse_switch(given, "preview"),
        where=_parse_where(given, day, is_part=is_part),
        day=day,
        use_exif=parse_switch(given, "use_exif"),
        cultivated=parse_switch(given, "cultivated"),
    )


def parse_whole_number(name: str, text: str, maximum: int) -> int:
    """Parses a number from 1 to `maximum`.

    Raises:
        BadParameter: The text is not such a number.
    """
    if re.fullmatch(r"[0-9]{1,9}", text) and 1 <= int(text) <= maximum:
        return int(text)
    limit, remedy = f"a whole number from 1 to {maximum}", "send a number in this range, or leave the parameter out"
    raise BadParameter.of(name, text, "is out of range", limit=limit, remedy=remedy)


def _parse_coverage(text: str) -> float:
    if re.fullmatch(r"0?\.[0-9]{1,20}", text):
        coverage = round(float(text), 9)  # 0.8999999999999999 is a computed 0.9
        if MIN_COVERAGE <= coverage <= MAX_COVERAGE:
            return coverage
    raise BadParameter.of(
        "coverage",
        text,
        "is out of range",
        limit=f"a number from {MIN_COVERAGE} to {MAX_COVERAGE}",
        remedy="send a number in this range such as 0.9, or leave the parameter out",
    )


def _parse_coverage_kind(text: str) -> CoverageKind:
    kinds = get_args(CoverageKind)
    if text in kinds:
        return cast(CoverageKind, text)
    remedy = "send one of these, or leave the parameter out"
    raise BadParameter.of("coverage_kind", text, "is not known", limit=" or ".join(kinds), remedy=remedy)


def _parse_taxa(values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > MAX_TAXA:
        raise BadParameter(
            "the parameter `taxa` has too many values",
            value=len(values),
            limit=f"at most {MAX_TAXA}",
            remedy="send genera or families, or ask the operator for a list",
        )
    for value in values:
        check_name_length("taxa", value)
    return tuple(values)


def check_name_length(parameter: str, text: str) -> None:
    """Checks the length of a name that a client sends.

    Raises:
        BadParameter: It is too long.
    """
    if len(text) > MAX_NAME_LENGTH:
        raise BadParameter(
            f"the parameter `{parameter}` is too long",
            value=f"{len(text)} characters",
            limit=f"at most {MAX_NAME_LENGTH}",
            remedy="send one name",
        )


def _parse_where(given: Given, day: date | None, *, is_part: bool) -> Where | None:
    latitude, longitude = (_last(given, name, "") for name in ("latitude", "longitude"))
    if not latitude and not longitude:
        return None
    if is_part:
        latitude, longitude = latitude or "0", longitude or "0"
    return Where(_parse_degrees("latitude", latitude, 90), _parse_degrees("longitude", longitude, 180), day)


def _parse_degrees(name: str, text: str, most: int) -> float:
    if re.fullmatch(r"-?[0-9]{1,3}(\.[0-9]{1,20})?", text) and abs(float(text)) <= most:
        return float(text)
    limit, remedy = (
        f"degrees from -{most} to {most}, with the other coordinate",
        "send latitude and longitude, or neither",
    )
    raise BadParameter.of(name, text, "is out of range", limit=limit, remedy=remedy)


def _parse_day(text: str) -> date | None:
    if not text:
        return None
    with suppress(ValueError):
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text):
            return date.fromisoformat(text)
    raise BadParameter.of("date", text, "is not a day", limit="a day such as 2026-05-31")


def parse_switch(given: Given, name: str) -> bool:
    """Parses a parameter that is on or off, by default off.

    Raises:
        BadParameter: It is neither.
    """
    text = _last(given, name, "false")
    if text.lower() in {"true", "1"}:
        return True
    if text.lower() in {"false", "0"}:
        return False
    raise BadParameter.of(name, text, "is out of range", limit="true or false")


def parse_language(text: str) -> str | None:
    """Parses the parameter `lang`; None if it is empty.

    Raises:
        BadParameter: It is not a language code.
    """
    if text and not re.fullmatch(LANGUAGE, text):
        raise BadParameter.of("lang", text, "is not a language code", limit="a code such as de or pt-BR")
    return text.replace("_", "-") or None


def wanted_languages(lang: str | None, accept_language: str) -> tuple[str, ...]:
    """Returns the languages of common names by preference: `lang`, or those of the header (RFC 9110, 12.5.4)."""
    if lang is not None:
        return (lang,)
    weighted: list[tuple[float, str]] = []
    for each in accept_language[:_MAX_HEADER_LENGTH].split(","):
        match = _LANGUAGE_RANGE.fullmatch(each.strip())
        if match and (weight := float(match["weight"] or 1)) > 0:
            weighted.append((-weight, match["language"]))
    return tuple(language for _, language in sorted(weighted, key=lambda pair: pair[0]))


def _last(given: Given, name: str, default: str) -> str:
    values = given.get(name)
    return values[-1] if values else default


# ---- The deadline that a client asks for with the header Prefer (RFC 7240); only `wait` is supported

# One element of a comma-separated list. Commas in a quoted string do not separate; an unclosed quote runs to the end.
_ELEMENT: Final = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*"?)+')
_SECONDS: Final = re.compile(r'([0-9]+)|"([0-9]+)"')


def preferred_deadline(preferences: Sequence[str], max_s: float) -> float | None:
    """Returns the seconds that `Prefer: wait=SECONDS` asks for, or None if the client did not ask.

    Malformed and unknown preferences are ignored, as the RFC requires. The first `wait` counts, and `max_s` at most.
    `wait=0` is treated as malformed, because no answer could be given in time.
    """
    text = ",".join(preferences)
    if len(text) > _MAX_HEADER_LENGTH:
        return None
    for element in _ELEMENT.findall(text):
        name, _, value = element.partition(";")[0].partition("=")
        if name.strip().lower() == "wait":
            match = _SECONDS.fullmatch(value.strip())
            wait_s = float(match[1] or match[2]) if match else 0.0
            return min(wait_s, max_s) or None
    return None
