"""License texts of data sets -> short identifiers, and whether they allow commercial use."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from models.bundle_record import CommercialUse
from training.dataset.sources.record import LabeledPicture

UNKNOWN: Final = "unknown"
_ALL_RIGHTS_RESERVED: Final = "all-rights-reserved"
_PUBLIC_DOMAIN: Final = "CC-PDM-1.0"
# The elements of Creative Commons licenses in names, URLs and short forms, in lower case.
_ELEMENTS: Final = (
    (re.compile(r"creativecommons\.org/licen[sc]es/|creative[\s-]*commons"), "cc "),
    (re.compile(r"attribution"), "cc by"),
    (re.compile(r"non[\s_-]?commercial"), "nc"),
    (re.compile(r"share[\s_-]?alike"), "sa"),
    (re.compile(r"no[\s_-]?deriv(?:ative)?s?(?:[\s_-]?works)?"), "nd"),
)
_CC_BY: Final = re.compile(
    r"(?<![a-z])cc[\W_]*by(?P<further>(?:[\W_]*(?:nc|sa|nd)(?![a-z]))*)(?![a-z])"
    r"(?:[\W_]|licen[sc]e|version|v|public|international|unported|generic)*(?:(?P<version>\d(?:\.\d)?)(?![\d.]\d))?"
)
_CC_ZERO: Final = re.compile(r"(?<![a-z])cc[\s_-]?(?:0|zero)(?!\d)|publicdomain/zero|public domain dedication")
_CC_MARK: Final = re.compile(r"(?<![a-z])pdm(?![a-z])|publicdomain/mark|public domain mark|^public[\s-]?domain$")
_RESERVED: Final = re.compile(r"all[\s_-]rights[\s_-]reserved|^(?:©|\(c\)|c|copyright(?:ed)?)$|^©(?!.*some rights)")
_FORBIDS: Final = re.compile(
    r"non[\s_-]?commercial|(?<![a-z])nc(?![a-z])|\b(?:no|not for|without) commercial|"
    r"\b(?:academic|research|educational|personal)(?: use)?,? only",
    re.IGNORECASE,
)
_MAY_BE_SHOWN: Final = re.compile(r"CC0-|CC-PDM-|CC-BY(?!.*ND)")
_ALLOWS: Final = re.compile(r"CC0-|CC-PDM-|CC-BY(?!.*NC)")


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

    Recognizes Creative Commons licenses by name, URL and short form. Without a version the identifier has none
    ("CC-BY-NC"); the country of a ported license is dropped. An empty text is "unknown"; a text that is not recognized
    is returned as it is. The function is idempotent.
    """
    written = text.strip()
    lower = written.lower()
    for pattern, short in _ELEMENTS:
        lower = pattern.sub(short, lower)
    if not written or lower == UNKNOWN:
        return UNKNOWN
    named = {_creative_commons(found) for found in _CC_BY.finditer(lower)}
    if named:
        # Several licenses, or a license with a condition: keep the whole text.
        (short, *others) = sorted(named)
        further = (_FORBIDS.search(lower) and "-NC" not in short) or "all rights reserved" in lower
        return written if others or further else short
    if _CC_ZERO.search(lower):
        return "CC0-1.0"
    if _CC_MARK.search(lower):
        return _PUBLIC_DOMAIN
    return _ALL_RIGHTS_RESERVED if _RESERVED.search(lower) else written


def commercial_use(text: str) -> CommercialUse:
    """Returns whether a license, as written or as `license_id` gives it, allows commercial use.

    A text that mentions non-commercial use forbids it.
    """
    known = license_id(text)
    if known == _ALL_RIGHTS_RESERVED or _FORBIDS.search(known) or _RESERVED.search(known.lower()):
        return "not_allowed"
    return "allowed" if _ALLOWS.match(known) else "unknown"


def may_be_shown(text: str) -> bool:
    """Returns whether a license lets anybody show a smaller copy of a picture, with author and license beside it."""
    return _MAY_BE_SHOWN.match(license_id(text)) is not None


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
