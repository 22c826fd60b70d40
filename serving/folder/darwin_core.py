"""Writes the named plants as a Darwin Core archive of occurrences, which GBIF and collection databases read.

Source of the terms and of meta.xml: Darwin Core Text Guide (https://dwc.tdwg.org/text/). A photograph is a
MachineObservation by the definition of `basisOfRecord`.
"""

import csv
import io
import re
import tempfile
import zipfile
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Final
from xml.sax.saxutils import quoteattr

from serving.folder.output import Output
from serving.folder.rows import Row

DARWIN_CORE_FILE: Final = "darwin_core.zip"
_TABLE: Final = "occurrence.csv"
# Control characters and line breaks are legal CSV that readers refuse or change. With the backslash itself, so that
# two paths stay two identifiers.
_ESCAPED: Final = re.compile(r"[\x00-\x1f\\\x7f-\x9f\u2028\u2029]")
_TERMS: Final = "http://rs.tdwg.org/dwc/terms/"
_COLUMNS: Final = (
    "occurrenceID", "basisOfRecord", "occurrenceStatus", "catalogNumber", "eventDate", "verbatimEventDate",
    "decimalLatitude", "decimalLongitude", "geodeticDatum", "coordinateUncertaintyInMeters", "scientificName",
    "taxonRank", "kingdom", "family", "genus", "identifiedBy", "dateIdentified", "identificationRemarks",
    "identificationVerificationStatus",
)  # fmt: skip


def write_darwin_core(output: Output, rows: Iterable[Row], run_id: str) -> int:
    """Writes the archive without the rows that have no name; returns the number of its occurrences.

    `run_id` is in the identifier of each occurrence, which no other run has. A day that is still to come is no date of
    an event, but stays as what the clock of the camera said.
    """
    today = datetime.now(UTC).date()
    number = 0
    with tempfile.TemporaryFile() as stream:
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("meta.xml", _meta())
            with (
                archive.open(_TABLE, "w", force_zip64=True) as table,
                io.TextIOWrapper(table, "utf-8", newline="") as text,
            ):
                writer = csv.writer(text, lineterminator="\n")
                writer.writerow(_COLUMNS)
                for row in rows:
                    if row["verdict_name"]:
                        writer.writerow(_occurrence(row, run_id, today))
                        number += 1
        stream.seek(0)
        output.replace(DARWIN_CORE_FILE, stream)
    return number


def _occurrence(row: Row, run_id: str, today: date) -> list[object]:
    taken_at = row["taken_at"]
    # Elsewhere it may be tomorrow already.
    is_future = taken_at is not None and datetime.fromisoformat(taken_at).date() > today + timedelta(days=1)
    values = {
        "occurrenceID": f"{run_id}:{row['group']}",
        "basisOfRecord": "MachineObservation",
        "occurrenceStatus": "present",
        "catalogNumber": row["path"],
        "eventDate": None if is_future else taken_at,
        "verbatimEventDate": taken_at if is_future else None,
        "decimalLatitude": row["latitude"],
        "decimalLongitude": row["longitude"],
        "geodeticDatum": row.get("geodetic_datum"),  # a row of an older run has no such column
        "coordinateUncertaintyInMeters": row.get("coordinate_uncertainty_m"),
        "scientificName": row["verdict_name"],
        "taxonRank": row["verdict_rank"],
        "kingdom": "Plantae",
        "family": row["family"],
        "genus": row["genus"],
        "identifiedBy": f"{row['bundle_name']} {row['bundle_version']} (botanify)",
        "dateIdentified": today.isoformat(),
        "identificationRemarks": f"named by a computer with score {row['verdict_score']:.3f}: {row['reason']}",
        "identificationVerificationStatus": "machine",
    }
    cells = (values[name] for name in _COLUMNS)
    return [
        _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", cell) if isinstance(cell, str) else cell for cell in cells
    ]


def _meta() -> str:
    fields = "\n".join(
        f"    <field index={quoteattr(str(index))} term={quoteattr(_TERMS + name)}/>"
        for index, name in enumerate(_COLUMNS)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<archive xmlns="http://rs.tdwg.org/dwc/text/">
  <core encoding="UTF-8" fieldsTerminatedBy="," linesTerminatedBy="\\n" fieldsEnclosedBy="&quot;" ignoreHeaderLines="1"
        rowType="{_TERMS}Occurrence">
    <files><location>{_TABLE}</location></files>
    <id index="0"/>
{fields}
  </core>
</archive>
"""
