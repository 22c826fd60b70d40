"""The report of a preparation: an HTML page, and the same facts as JSON."""

from training.dataset.report.findings import Report, build_report
from training.dataset.report.page import HTML_FILE, JSON_FILE, advice, report_files

__all__ = ["HTML_FILE", "JSON_FILE", "Report", "advice", "build_report", "report_files"]
