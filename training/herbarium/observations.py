"""Where, when and by whom the plants of a species are photographed.

Each species has a home and a season, so that places and dates carry information about the species.
"""

from datetime import date, timedelta
from typing import Final, NamedTuple

import numpy as np

_HOME_STREAM: Final = 23
_FIRST_YEAR: Final = 2011
_NUM_YEARS: Final = 10
_SEASON_DAYS: Final = 22.0  # standard deviation
_SHARE_WITHOUT_PLACE: Final = 0.15
_SHARE_WITHOUT_DATE: Final = 0.03
_FIRST_NAMES: Final = (
    "Ana",
    "Bjørn",
    "Chloé",
    "Dieter",
    "Eilís",
    "Fatma",
    "Goran",
    "Hana",
    "Inês",
    "Jiří",
    "Kofi",
    "李",
)
_LAST_NAMES: Final = ("Novák", "Müller", "O'Brien", "da Silva", "Kowalski", "Ng", "Özdemir", "Smith-Jones", "Ångström")
_PHOTOGRAPHERS: Final = tuple(f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES)


class _Home(NamedTuple):
    """Place and season of a species."""

    latitude: float  # degrees
    longitude: float
    spread: float  # standard deviation of both, degrees
    day: float  # of the year, middle of the season


class Sighting(NamedTuple):
    """One observation; place and date may be unknown."""

    latitude: float | None  # degrees
    longitude: float | None
    taken_at: str | None  # in iNaturalist's format


def _home(species: int, seed: int = 0) -> _Home:
    """Returns the home of a species, which is independent of its genus."""
    rng = np.random.default_rng([seed, _HOME_STREAM, species])
    return _Home(rng.uniform(-42, 62), rng.uniform(-180, 180), rng.uniform(1, 6), rng.uniform(60, 290))


def sightings(species: int, count: int, rng: np.random.Generator, seed: int = 0) -> list[Sighting]:
    """Returns observations around the home and season of a species, some without place or date."""
    home = _home(species, seed)
    latitudes = np.clip(home.latitude + rng.normal(0, home.spread, count), -90, 90).round(5).tolist()
    longitudes = ((home.longitude + rng.normal(0, home.spread, count) + 180) % 360 - 180).round(5).tolist()
    placed = (rng.uniform(0, 1, count) >= _SHARE_WITHOUT_PLACE).tolist()
    return [
        Sighting(latitude if known else None, longitude if known else None, taken_at)
        for latitude, longitude, known, taken_at in zip(
            latitudes, longitudes, placed, _dates(home, count, rng), strict=True
        )
    ]


def photographers(count: int, rng: np.random.Generator) -> list[str]:
    """Returns a random photographer for each of `count` pictures."""
    return [_PHOTOGRAPHERS[place] for place in rng.integers(len(_PHOTOGRAPHERS), size=count).tolist()]


def _dates(home: _Home, count: int, rng: np.random.Generator) -> list[str | None]:
    days = np.clip(home.day + rng.normal(0, _SEASON_DAYS, count), 0, 364).astype(int).tolist()
    years = (_FIRST_YEAR + rng.integers(_NUM_YEARS, size=count)).tolist()
    minutes = rng.integers(7 * 60, 20 * 60, size=count).tolist()
    dated = (rng.uniform(0, 1, count) >= _SHARE_WITHOUT_DATE).tolist()
    return [
        f"{date(year, 1, 1) + timedelta(days=day)} {minute // 60:02}:{minute % 60:02}:00+00:00" if known else None
        for year, day, minute, known in zip(years, days, minutes, dated, strict=True)
    ]
