"""The routes of the web page at `/` and of the static files that it loads."""

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
    """Returns the web page."""
    return File(WEB / "index.html", media_type=MediaType.HTML, content_disposition_type="inline")


def static_files() -> Router:
    """Returns the router that serves the files of `serving/web/` at `/web/`."""
    return create_static_files_router(
        "/web", directories=[WEB], exception_handlers={ValueError: _not_found, InternalServerException: _not_found}
    )


def _not_found(request: Request[Any, Any, Any], _: Exception) -> Response[Any]:
    """Answers 404 for names that the file system rejects, such as one with a NUL byte or of 5,000 letters."""
    return problem_response(request, NotFoundException())
