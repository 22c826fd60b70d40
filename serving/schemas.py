"""The HTTP API in types: the JSON records of its answers, and the parameters of a request.

Fields may be added, but never renamed or removed.
"""

import datetime
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
from typing_extensions import Doc

from models.bundle_record import MeasuredCoverage
from models.calibration import CoverageKind
from models.differences import Difference
from models.exif import Latitude, Longitude
from models.harmful import Harm, HarmKind
from models.names import Rank
from models.place import Where
from models.ranking import RankedGroup, Verdict
from models.scoring import GuessShare
from models.taxonomy import LANGUAGE
from serving.errors import BadParameter


class ModelName(msgspec.Struct, frozen=True):
    """The model that answered."""

    name: str
    """Name of the bundle."""
    version: str
    """Version of the bundle, such as 2.1.0."""
    label_hash: str
    """SHA-256 of the ordered output keys: models with the same hash have the same outputs."""


class TaxonView(msgspec.Struct, frozen=True, kw_only=True):
    """A taxon that the model can name."""

    taxon_id: str
    """Stable identifier of the taxon."""
    rank: Rank
    """A genus where the model does not tell its species apart."""
    scientific_name: str
    """Accepted name, without the author."""
    common_names: tuple[str, ...]
    """In the language that the request asks for, where the model knows some in it."""
    genus: str
    """Empty for a class that is known by its common name alone."""
    family: str
    """Empty if unknown."""
    gbif_id: int | None
    """Key in the GBIF backbone taxonomy, if known."""
    powo_id: str | None = None
    """Id in Plants of the World Online and in the International Plant Names Index, if known."""
    harms: list[Harm] = []
    """How it harms who touches or eats it, as far as that is known: an empty list does not say that it is harmless."""


class Prediction(TaxonView, frozen=True):
    """A taxon and its probability."""

    position: int
    """Place in the ranking; 1 is the most probable."""
    score: float
    """Probability in [0, 1]."""
    vision_score: float | None = None
    """Probability without the place; null if the answer does not rest on a place."""
    prior: float | None = None
    """How many times as likely the taxon is at this place and month as in the world, as far as the answer believes it;
    null if it does not rest on a place."""
    num_images: int = 0
    """Number of reference pictures of the taxon, which `/species/{taxon_id}` lists."""


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
    looks_different: bool = False
    """Whether it seems to show another plant than all pictures together: ask whether to leave it out."""
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


class HarmView(msgspec.Struct, frozen=True):
    """A grave harm that cannot be ruled out: skin that blisters after a touch, or death after eating."""

    genus: str
    """That of the most likely taxon."""
    harm: HarmKind
    """How it harms: `touch`, who touches it, or `eaten`, who eats it."""
    effect: str
    """What its plants do, after "which" in an English sentence."""
    score: float
    """Probability of all taxa that harm so, by all pictures together or by one alone, whichever is higher."""
    prediction: Prediction
    """Its most likely taxon."""
    is_likely: bool
    """Whether to say so above every name; otherwise it only cannot be ruled out."""


class Identification(msgspec.Struct, frozen=True):
    """The answer about one plant."""

    request_id: str
    """The same as in the header `X-Request-ID` and in the logs."""
    model: ModelName
    """Which model answered."""
    verdict: Verdict
    """The most precise name that the scores support."""
    predictions: list[Prediction]
    """The most likely taxa, at most `k`."""
    genera: list[RankedGroup]
    """The most likely genera, each with the scores of its taxa added, at most `k`."""
    families: list[RankedGroup]
    """The most likely families, likewise."""
    plant_score: float | None
    """Probability that the pictures show a plant; null if the model has no table for it."""
    candidates: CandidatesView | None
    """The candidate set; null without the parameter `coverage`, or if the model has no table for it."""
    discarded_mass: float | None
    """Probability of the taxa outside of the parameter `taxa`, which count a fifth in the verdict; null without it."""
    images: list[ImageView]
    """What each picture says alone, in the order of the request."""
    warnings: list[str]
    """A sentence for each part of the request that was ignored."""
    uses_place: bool = False
    """Whether the answer rests on a place, that of the request or, with `use_exif`, of a picture."""
    place: PlaceUse | None = None
    """What became of `latitude` and `longitude`, `date` and `use_exif`; null only if the request has none of these."""
    look_alikes: list[Prediction] = []
    """Taxa that the species of the verdict is often taken for on calibration plants, the most likely first; at most
    three, none of them ruled out by the parameter `taxa`; empty for another rank, and if the model knows none."""
    guess: GuessShare | None = None
    """How often the likeliest predictions of such answers are right; null with a name, with the parameter `taxa`, and
    for a model that does not tell."""
    harmful: list[HarmView] = []
    """Grave harms whose score is above 0.02 or which have a taxon among `candidates` or `look_alikes`; empty if the
    pictures show no plant."""
    differences: list[Difference] = []
    """How predictions, look-alikes and the taxa of `harmful` are told from each other, where that is known, and the
    first prediction from plants that harm gravely, of which the model may not know; empty if there is no plant."""


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
    """`alive` or `ready`."""


# ---- The parameters of a request: in the query, or in form fields with the same names

MAX_IMAGES: Final = 5
"""Maximum number of pictures in a request."""
MAX_K: Final = 50
"""Maximum number of taxa, genera and families that a client can ask for."""
MAX_NAME_LENGTH: Final = 200
"""Maximum number of characters of a name that a client sends."""

TopK = Annotated[int, msgspec.Meta(ge=1, le=MAX_K), Doc("Maximum number of taxa, genera and families to list")]
Coverage = Annotated[
    Annotated[float, msgspec.Meta(ge=0.5, le=0.999)] | None,
    Doc("How often the candidate set shall include the right taxon; without it there is no candidate set"),
]
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_LENGTH)]
ChosenTaxa = Annotated[
    tuple[Name, ...],
    msgspec.Meta(max_length=50),  # a longer choice is a list that the operator keeps
    Doc(
        "The taxa that can be the answer, one or more: names of genera, families and species, synonyms, common names, "
        "or `list:NAME` for a list that the operator keeps"
    ),
]
Language = Annotated[
    Annotated[str, msgspec.Meta(pattern=f"^{LANGUAGE}$")] | None,
    Doc("Language of the common names, such as de; by default as the header Accept-Language prefers"),
]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request asks for, beside its pictures.

    The OpenAPI document, the limits of form fields, the client and the folder tool have it from here.
    """

    k: TopK = 5
    coverage: Coverage = None
    coverage_kind: Annotated[
        CoverageKind, Doc("Whether the coverage holds for the mean plant (marginal) or for the mean taxon (macro)")
    ] = "marginal"
    taxa: ChosenTaxa = ()
    preview: Annotated[
        bool, Doc("Send back what the network saw of each picture, as a small WebP; few browsers show HEIC")
    ] = False
    latitude: Annotated[Latitude | None, Doc("Where the plant grows, degrees north (WGS 84); with `longitude`")] = None
    longitude: Annotated[Longitude | None, Doc("Degrees east; with `latitude`")] = None
    date: Annotated[datetime.date | None, Doc("Day of the photograph; counts with a place only")] = None
    use_exif: Annotated[
        bool, Doc("Take place and day from the EXIF data of the pictures if the request does not say them")
    ] = False
    cultivated: Annotated[bool, Doc("The plant was planted: its place does not count")] = False
    lang: Language = None

    @property
    def where(self) -> Where | None:
        """Where and when the plant was photographed; None without a place."""
        if self.latitude is None or self.longitude is None:
            return None
        return Where(self.latitude, self.longitude, self.date)


_Record = TypeVar("_Record", bound=msgspec.Struct)
_NUMBER: Final = re.compile(r"-?[0-9]{0,9}\.?[0-9]{1,20}")
_SWITCH: Final = {"on": "true", "off": "false"}  # a checkbox of a form sends "on"
_FIELD_BYTES: Final = {"boolean": 16, "date": 32}
_REFUSALS: Final = {
    "integer": (
        "is out of range",
        "a whole number from {minimum} to {maximum}",
        "send a number in this range, or leave the parameter out",
    ),
    "coverage": (
        "is out of range",
        "a number from {minimum} to {maximum}",
        "send a number in this range such as 0.9, or leave the parameter out",
    ),
    "number": (
        "is out of range",
        "degrees from {minimum:g} to {maximum:g}, with the other coordinate",
        "send latitude and longitude, or neither",
    ),
    "coverage_kind": (
        "is not known",
        " or ".join(get_args(CoverageKind)),
        "send one of these, or leave the parameter out",
    ),
    "boolean": ("is out of range", "true or false"),
    "date": ("is not a day", "a day such as 2026-05-31"),
    "string": ("is not a language code", "a code such as de or pt-BR"),
}
"""Name or kind of a parameter -> what is wrong with a value, the limit, and the remedy."""


@cache
def declared(record: type[msgspec.Struct]) -> dict[str, dict[str, Any]]:
    """Returns the JSON schema of each parameter of a record; what has no value is left out of a request, never null."""
    found: dict[str, dict[str, Any]] = {}
    for field in msgspec.structs.fields(record):
        schema = msgspec.json.schema(field.type)
        schema |= schema.pop("anyOf", [{}])[0]
        schema.setdefault("type", "string")  # of a choice
        text = field.type.__metadata__[-1].documentation
        found[field.encode_name] = {**schema, "default": field.default, "description": text}
    return found


def field_bytes(record: type[msgspec.Struct]) -> dict[str, int]:
    """Returns name of each parameter -> longest form field, bytes; UTF-8 takes up to four for a character."""
    return {
        name: _FIELD_BYTES.get(_kind(schema), 4 * schema.get("items", schema).get("maxLength", 16))
        for name, schema in declared(record).items()
    }


def filled_in(given: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Returns the parameters that have a value: a form also sends the fields that its reader left empty."""
    return {name: found for name, texts in given.items() if (found := [text for text in texts if text.strip()])}


def read_values(record: type[msgspec.Struct], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Reads the parameters of a record that texts give; of several values the last counts, except for a list.

    An empty text counts as not sent.

    Args:
        record: Declares the parameters.
        given: Name of a parameter -> its values in the order of the request; other names do not matter.

    Raises:
        BadParameter: A value is out of range.
    """
    found: dict[str, Any] = {}
    sent = filled_in(given)
    for field in msgspec.structs.fields(record):
        name = field.encode_name
        schema = declared(record)[name]
        texts = sent.get(name)
        if not texts:
            continue
        if "items" not in schema:
            texts = texts[-1:]
        is_switch = _kind(schema) == "boolean"
        text = _SWITCH.get(texts[0].lower(), texts[0]) if is_switch else texts[0]
        value = texts if "items" in schema else _number(text) if "minimum" in schema else text
        try:
            found[field.name] = msgspec.convert(value, field.type, strict=not is_switch)
        except msgspec.ValidationError as error:
            raise _refusal(name, texts, schema) from error
    return found


def read_parameters(record: type[_Record], given: Mapping[str, Sequence[str]]) -> _Record:
    """Reads a record from texts, see `read_values`."""
    return record(**read_values(record, given))


def parse_parameters(given: Mapping[str, Sequence[str]], values: Mapping[str, Any] | None = None) -> Parameters:
    """Reads the parameters of a whole request: texts, and values that take precedence; see `read_values`.

    Raises:
        BadParameter: A value is out of range, or one coordinate is missing.
    """
    found = Parameters(**{**read_values(Parameters, given), **(values or {})})
    if (found.latitude is None) != (found.longitude is None):
        name = "latitude" if found.latitude is None else "longitude"
        raise _refusal(name, [""], declared(Parameters)[name])
    return found


def _kind(schema: Mapping[str, Any]) -> str:
    return str(schema.get("format") or schema["type"])


def _number(text: str) -> int | float | str:
    """Returns a plain number as such, and any other text as it is."""
    if not _NUMBER.fullmatch(text):
        return text
    return round(float(text), 9) if "." in text else int(text)  # 0.8999999999999999 is a computed 0.9


def _refusal(name: str, texts: Sequence[str], schema: Mapping[str, Any]) -> BadParameter:
    if len(texts) > schema.get("maxItems", 1):
        return BadParameter(
            f"the parameter `{name}` has too many values",
            value=len(texts),
            limit=f"at most {schema['maxItems']}",
            remedy="send genera or families, or ask the operator for a list",
        )
    longest = schema.get("items", schema).get("maxLength")
    if longest is not None:
        return BadParameter(
            f"the parameter `{name}` is too long",
            value=f"{next(len(text) for text in texts if len(text) > longest)} characters",
            limit=f"at most {longest}",
            remedy="send one name",
        )
    fault, limit, *remedy = _REFUSALS.get(name) or _REFUSALS[_kind(schema)]
    return BadParameter.of(name, texts[0], fault, limit.format(**schema), *remedy)


_MAX_HEADER_LENGTH: Final = 1_000  # that is read; real ones are about a tenth as long
_LANGUAGE_RANGE: Final = re.compile(rf"(?P<language>{LANGUAGE})(?:\s*;\s*q=(?P<weight>[01](?:\.[0-9]{{0,3}})?))?")


def wanted_languages(lang: str | None, accept_language: str) -> tuple[str, ...]:
    """Returns the languages of common names by preference: `lang`, or those of the header (RFC 9110, 12.5.4)."""
    if lang is not None:
        return (lang.replace("_", "-"),)
    weighted: list[tuple[float, str]] = []
    for each in accept_language[:_MAX_HEADER_LENGTH].split(","):
        match = _LANGUAGE_RANGE.fullmatch(each.strip())
        if match and (weight := float(match["weight"] or 1)) > 0:
            weighted.append((-weight, match["language"]))
    return tuple(language for _, language in sorted(weighted, key=lambda pair: pair[0]))


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
