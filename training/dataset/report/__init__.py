"""What a preparation found, for people: one HTML page, and the same facts as JSON."""

from training.dataset.report.page import HTML_FILE, JSON_FILE, report_files
from training.dataset.report.schema import LicenseSummary, NameFinding, NameFindings, Report
from training.dataset.report.sheets import contact_sheets
from training.dataset.report.summary import summarize

__all__ = [
    "HTML_FILE",
    "JSON_FILE",
    "LicenseSummary",
    "NameFinding",
    "NameFindings",
    "Report",
    "contact_sheets",
    "report_files",
    "summarize",
]
