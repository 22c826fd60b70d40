"""What programs say, other than the service."""

import structlog

from serving.metrics import say_warnings


def test_warnings_are_lines_in_words(capsys):
    say_warnings()
    log = structlog.get_logger("program")
    log.info("taxa_list", num_taxa=3)
    log.warning("bundle_warning", warning="The bundle has format 1.")
    log.error("run_failed", num_pictures=2, error="no memory")
    assert capsys.readouterr().err == "bundle warning: The bundle has format 1.\nrun failed: 2, no memory\n"
