"""License texts of data sets -> short identifiers, and whether they allow commercial use."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from models.bundle_record import CommercialUse
from models.names import fold
from training.dataset.sources.record import LabeledPicture

UNKNOWN: Final = "unknown"
_ALL_RIGHTS_RESERVED: Final = "all-rights-reserved"
# The elements of Creative Commons licenses in URLs and short forms, and in English, German and French. All patterns
# read a text without accents and case.
_ELEMENTS: Final = (
    (re.compile(r"creativecommons\.org/licen[sc]es/|creative[\W_]*commons"), "cc"),
    (re.compile(r"cc[\W_]*(?:licen[sc]e)?[\W_]*(?:attribution|namensnennung|paternite)"), "cc by"),
    (re.compile(r"(?:non|nicht|keine|pas d.(?:utilisation|usage))[\W_]*(?:comm?erc|kommerz)\w*"), "nc"),
    (re.compile(r"share[\W_]*alike|weitergabe unter gleichen bedingungen|partage dans les memes conditions"), "sa"),
    (re.compile(r"no[\W_]*deriv\w*(?:[\W_]*works)?|keine[\W_]*bearbeitung\w*|pas de modification"), "nd"),
)
_ELEMENT: Final = re.compile(r"(?<![a-z])(?:nc|sa|nd)(?![a-z])")
_ATTRIBUTION: Final = re.compile(r"^(?:attribution|namensnennung|paternite)")
_CC_BY: Final = re.compile(
    r"(?<![a-z])cc[\W_]*by(?P<further>(?:[\W_]*(?:nc|sa|nd)(?![a-z]))*)(?![a-z])"
    r"(?:[\W_]|licen[sc]e|version|v|public|international|unported|generic)*(?:(?P<version>\d(?:\.\d)?)(?![\d.]\d))?"
    r"(?:[\W_]|international|unported|generic)*"
)
_PUBLIC_DOMAIN: Final = {
    "CC0-1.0": re.compile(
        r"(?<![a-z])cc[\W_]?(?:0|zero)(?!\d)|publicdomain/zero|public domain dedication|no rights reserved"
    ),
    "CC-PDM-1.0": re.compile(r"(?<![a-z])pdm(?![a-z])|publicdomain/mark|public domain mark|^public[\W_]?domain$"),
}
_ALL_RIGHTS: Final = re.compile(r"all[\W_]+rights[\W_]+reserved|alle rechte vorbehalten|tous (?:les )?droits reserves")
_COPYRIGHT: Final = re.compile(r"c$|(?:©|\(c\)|(?:in )?copyright|urheberrechtlich)(?!.*some rights)")
# What may take back a part of what the license beside it allows.
_CONDITION: Final = re.compile(
    r"\b(?:only|except|unless|but|not|nur|ausser|aber|sauf|seulement|uniquement)\b|restrict|permission|genehmig|autoris"
)
_COMMERCE: Final = re.compile(r"comm?er[cz]|kommer[cz]")
_FORBIDS: Final = re.compile(
    r"(?<![a-z])nc(?![a-z])|\b(?:academic|research|educational|personal)(?: use)?,? only|"
    rf"(?=.*\b(?:no|not|without|keine?|nicht|pas|sans|interdit\w*|verboten|untersagt)\b).*(?:{_COMMERCE.pattern})"
)
_OF_CREATIVE_COMMONS: Final = re.compile(r"CC0-1\.0|CC-PDM-1\.0|CC-BY(?:-NC)?(?:-SA)?(?:-ND)?(?:-\d\.\d)?")


class LicenseSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Licenses and authors of one source's pictures."""

    commercial_use: CommercialUse
    """Whether all licenses allow it: "not_allowed" if one forbids it, else "unknown" if one is unknown."""
    sentence: str
    """The same in words, with the numbers of pictures."""
    licenses: dict[str, int] = {}
    """License (see `license_id`) -> number of pictures, most first."""
    num_authors: int = 0
    """Number of distinct authors."""


def license_id(text: str) -> str:
    """Returns the short identifier of a license, in the form of SPDX.

    Recognizes Creative Commons licenses by name (in English, German and French), URL and short form. Without a version
    the identifier has none ("CC-BY-NC"); the country of a ported license is dropped. An empty text is "unknown". A text
    that is not recognized, names two licenses, or has a condition beside one is returned as it is. The function is
    idempotent.
    """
    written = text.strip()
    plain = _plain(written)
    if plain in {"", UNKNOWN}:
        return UNKNOWN
    alone = _CC_BY.fullmatch(_ATTRIBUTION.sub("cc by", plain))  # "attribution required" is no license
    named = {_creative_commons(found) for found in ([alone] if alone else _CC_BY.finditer(plain))}
    named |= {short for short, pattern in _PUBLIC_DOMAIN.items() if pattern.search(plain)}
    named = {short for short in named if not any(other.rpartition("-")[0] == short for other in named)}
    is_reserved = _ALL_RIGHTS.search(plain)
    if not named:
        return _ALL_RIGHTS_RESERVED if is_reserved or _COPYRIGHT.match(plain) else written
    (short, *others) = sorted(named)
    is_further = not {*_ELEMENT.findall(plain)} <= {*short.lower().split("-")}
    has_condition = is_further or _CONDITION.search(plain) or (_COMMERCE.search(plain) and "-NC" not in short)
    return written if others or is_reserved or has_condition else short


def commercial_use(text: str) -> CommercialUse:
    """Returns whether a license, as written or as `license_id` gives it, allows commercial use.

    A text that mentions non-commercial use forbids it.
    """
    known = license_id(text)
    plain = _plain(known)
    if _FORBIDS.search(plain) or _ALL_RIGHTS.search(plain):
        return "not_allowed"
    return "allowed" if _OF_CREATIVE_COMMONS.fullmatch(known) else "unknown"


def may_be_shown(text: str) -> bool:
    """Returns whether a license lets anybody show a smaller copy of a picture, with author and license beside it."""
    known = license_id(text)
    return _OF_CREATIVE_COMMONS.fullmatch(known) is not None and "-ND" not in known


def _plain(text: str) -> str:
    """Returns a text without accents and case, with the elements of licenses in short form."""
    plain = fold(text)
    for pattern, short in _ELEMENTS:
        plain = pattern.sub(short, plain)
    return plain


def joint_commercial_use(licenses: Iterable[str]) -> CommercialUse:
    """Returns "not_allowed" if one forbids commercial use, else "unknown" if one is or there are none."""
    uses = {commercial_use(text) for text in licenses}
    if "not_allowed" in uses:
        return "not_allowed"
    return "allowed" if uses == {"allowed"} else "unknown"


def license_summaries(pictures: Iterable[LabeledPicture]) -> dict[str, LicenseSummary]:
    """Counts licenses and authors of each source."""
    written: dict[str, Counter[str]] = {}
    authors: dict[str, set[str]] = {}
    for picture in pictures:
        written.setdefault(picture.source, Counter())[picture.record.license] += 1
        authors.setdefault(picture.source, {""}).add(picture.record.author)
    summaries = {}
    for source in sorted(written):
        licenses: Counter[str] = Counter()
        for text, count in written[source].items():
            licenses[license_id(text)] += count
        use = joint_commercial_use(licenses)
        summaries[source] = LicenseSummary(
            commercial_use=use,
            sentence=_sentence(licenses, use),
            licenses=dict(sorted(licenses.items(), key=lambda entry: (-entry[1], entry[0]))),
            num_authors=len(authors[source]) - 1,
        )
    return summaries


def _sentence(licenses: Counter[str], use: CommercialUse) -> str:
    total = licenses.total()
    num = Counter[str]()
    for text, count in licenses.items():
        num[commercial_use(text)] += count
    if use == "allowed":
        return f"may be used commercially: the licenses of all {total:,} pictures allow it"
    doubt = f"{num['unknown']:,} of {total:,} pictures have no license that is known"
    if use == "unknown":
        return f"may perhaps not be used commercially: {doubt}"
    more = f", and {doubt}" if num["unknown"] else ""
    return f"may not be used commercially: {num['not_allowed']:,} of {total:,} pictures forbid it{more}"


def _creative_commons(found: re.Match[str]) -> str:
    parts = ["CC-BY", *(element for element in ("nc", "sa", "nd") if element in found["further"])]
    if digits := found["version"]:
        parts.append(digits if "." in digits else f"{digits}.0")
    return "-".join(parts).upper()
