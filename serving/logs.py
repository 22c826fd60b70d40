"""The log: one JSON object per line, or colored text on a terminal. It never contains pictures, file names or EXIF.

A program that ends has no log: it says in words what a person should know.
"""

import logging
import sys

import structlog


def configure_logging() -> None:
    """Sends the logs of this process and of its libraries to standard error."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=[*_renderers(sys.stderr.isatty())])
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    logging.captureWarnings(capture=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # the service logs its own start and stop


def say_warnings() -> None:
    """Sends warnings and errors to standard error, a line in words each."""
    structlog.configure(
        processors=[_in_words],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _in_words(_logger: object, _level: str, event: structlog.typing.EventDict) -> str:
    name = str(event.pop("event")).replace("_", " ")
    return f"{name}: {', '.join(map(str, event.values()))}"


def _renderers(terminal: bool) -> list[structlog.typing.Processor]:
    remove_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    if terminal:  # plain tracebacks: rich ones show local variables, which may hold a picture
        return [remove_meta, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
    return [remove_meta, structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
