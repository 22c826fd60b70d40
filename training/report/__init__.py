"""What a preparation found, for people: one HTML page, and the same facts as JSON."""

from training.report.facts import LicenceSummary, NameFinding, NameFindings, Report
from training.report.page import HTML_FILE, JSON_FILE, report_files
from training.report.sheets import contact_sheets
from training.report.summary import summarize

__all__ = [
    "HTML_FILE",
    "JSON_FILE",
    "LicenceSummary",
    "NameFinding",
    "NameFindings",
    "Report",
    "contact_sheets",
    "report_files",
    "summarize",
]
