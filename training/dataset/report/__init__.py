"""The report of a preparation: an HTML page, and the same facts as JSON."""

from training.dataset.report.advice import advice
from training.dataset.report.build import build_report
from training.dataset.report.page import HTML_FILE, JSON_FILE, report_files
from training.dataset.report.schema import Report
from training.dataset.report.sheets import contact_sheets

__all__ = ["HTML_FILE", "JSON_FILE", "Report", "advice", "build_report", "contact_sheets", "report_files"]
