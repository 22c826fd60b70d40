"""The files for browsers: the page at `/` and everything it loads, from this machine only."""

from pathlib import Path
from typing import Any, Final

from litestar import MediaType, Request, Response, Router, get
from litestar.exceptions import InternalServerException, NotFoundException
from litestar.response import File
from litestar.static_files import create_static_files_router

from serving.problems import problem_response

WEB: Final = Path(__file__).resolve().parent / "web"


@get("/", include_in_schema=False, sync_to_thread=False)
def page() -> File:
    """Gives the page for people."""
    return File(WEB / "index.html", media_type=MediaType.HTML, content_disposition_type="inline")


def files() -> Router:
    """Everything below `serving/web/`, under `/web/`."""
    return create_static_files_router(
        "/web", directories=[WEB], exception_handlers={ValueError: _not_found, InternalServerException: _not_found}
    )


def _not_found(request: Request[Any, Any, Any], _: Exception) -> Response[Any]:
    """Names that no file system can hold, such as one with a zero byte or of 5,000 letters, are not found either."""
    return problem_response(request, NotFoundException())
