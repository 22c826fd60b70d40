"""Answers with a place and a day: from the request or from the picture, if that is asked for, and never otherwise."""

import numpy as np
import pytest
from PIL import ExifTags, Image

from models.place import PlaceRule
from models.ranking import Thresholds
from tests.serving.conftest import ready_service
from tests.serving.tiny import TAXA, identify, jpeg
from training.fit.place import Records, count_records

BERLIN, SYDNEY = (52.5, 13.4), (-33.9, 151.2)
SUMMER, WINTER = "2026-06-15", "2026-12-15"
# Rosa canina grows in Berlin, and the daisy in winter; Rosa rugosa in Sydney. Nothing is known of the others.
PRIOR = count_records(
    Records(
        *(
            np.array(column)
            for column in zip(*([(0, *BERLIN, 6)] * 60 + [(2, *BERLIN, 12)] * 9 + [(1, *SYDNEY, 1)] * 60), strict=True)
        )
    ),
    len(TAXA),
    10.0,
)
RULE = PlaceRule(1.0, 0.05, 1.0, Thresholds())


@pytest.fixture(scope="module")
def client(sealed):
    with ready_service(bundle=sealed(place=(PRIOR, RULE)), plantnet_api=True) as client:
        yield client


def at(place, **more):
    return {"latitude": str(place[0]), "longitude": str(place[1]), **more}


def photograph(place, day=None):
    """A picture with the place and the day in its EXIF data."""
    exif = Image.Exif()
    if day is not None:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"{day.replace('-', ':')} 12:00:00"
    gps = exif.get_ifd(ExifTags.IFD.GPSInfo)
    for value, tag, reference, signs in (
        (place[0], ExifTags.GPS.GPSLatitude, ExifTags.GPS.GPSLatitudeRef, "NS"),
        (place[1], ExifTags.GPS.GPSLongitude, ExifTags.GPS.GPSLongitudeRef, "EW"),
    ):
        gps[tag], gps[reference] = (abs(value), 0.0, 0.0), signs[value < 0]
    return jpeg(exif=exif)


def test_no_place_is_in_the_log_or_the_metrics(client, capsys):
    identify(client, photograph(SYDNEY), use_exif="true", **at((12.3456, 65.4321)))
    said = capsys.readouterr()
    for text in (said.out, said.err, client.get("/metrics").text):
        assert "12.34" not in text
        assert "65.43" not in text
        assert "151.2" not in text
