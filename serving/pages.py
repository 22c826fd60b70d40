"""The routes of the web page at `/` and of the static files that it loads.

The files are read and compressed once, when the application is built. To compress the viewer of the OpenAPI document
takes tens of milliseconds, in which nothing else would be answered.
"""

import gzip
import mimetypes
from dataclasses import dataclass, replace
from email.utils import formatdate
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

from litestar import Request, Response, Router, get
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIFormat,
    OpenAPIHeader,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
    SecurityRequirement,
    SecurityScheme,
)
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ControllerRouterHandler

from models.calibration import CoverageKind
from models.taxonomy import LANGUAGE
from serving.middleware import REVALIDATE, accepts_gzip, entity_tag, revalidated
from serving.problems import MEDIA_TYPE, codes_by_status
from serving.schemas import DEFAULT_K, MAX_COVERAGE, MAX_IMAGES, MAX_K, MAX_NAME_LENGTH, MAX_TAXA, MIN_COVERAGE, Problem

WEB: Final = Path(__file__).resolve().parent / "web"
_PAGE: Final = Path("index.html")
PRECOMPRESSED: Final = "precompressed"
"""Name of the option of a route whose responses are not to be compressed again."""
MIN_COMPRESSED_BYTES: Final = 1_000
"""A shorter text is sent as it is: it fits into one packet anyway."""


class _WebFile(NamedTuple):
    media_type: str
    headers: dict[str, str]
    content: bytes
    compressed: bytes | None


def page_routes() -> list[ControllerRouterHandler]:
    """Returns the routes of the page."""
    _web_files()  # reads and compresses them before the first request
    return [_file, _documentation]


@get(["/", "/web/{name:path}"], include_in_schema=False, sync_to_thread=False, opt={PRECOMPRESSED: True})
def _file(request: Request[Any, Any, Any], name: FromPath[Path] = _PAGE) -> Response[bytes]:
    file = _web_files().get(name.as_posix().lstrip("/"))
    if file is None:
        raise NotFoundException
    if file.compressed is not None and accepts_gzip(request.headers.get("accept-encoding", "")):
        headers = {**file.headers, "Content-Encoding": "gzip"}
        return Response(file.compressed, media_type=file.media_type, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=file.headers)


@get(["/docs", "/openapi.json"], include_in_schema=False, sync_to_thread=False)
def _documentation(request: Request[Any, Any, Any]) -> Redirect:
    """Leads from where other services have their documentation to ours."""
    return Redirect("/schema" if request.url.path.startswith("/docs") else "/schema/openapi.json")


@cache
def _web_files() -> dict[str, _WebFile]:
    """Returns name below /web/ -> file."""
    files: dict[str, _WebFile] = {}
    for path in filter(Path.is_file, sorted(WEB.rglob("*"))):
        content = path.read_bytes()
        media_type = mimetypes.guess_type(path)[0] or "application/octet-stream"
        compressed = gzip.compress(content, mtime=0) if len(content) >= MIN_COMPRESSED_BYTES else None
        headers = {
            "ETag": entity_tag(content),
            "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True),
            "Cache-Control": REVALIDATE,
        }
        files[path.relative_to(WEB).as_posix()] = _WebFile(media_type, headers, content, compressed)
    return files


# ---- The OpenAPI document and its viewer, which loads nothing from other hosts

API_VERSION: Final = "1.0"
ADMIN_KEY: Final[list[SecurityRequirement]] = [{"bearer": []}, {"api_key": []}]
"""Security of a route that needs an admin key, in either header."""
OPTIONAL_KEY: Final[list[SecurityRequirement]] = [{}, *ADMIN_KEY]
"""Security of a route that needs a key only if the service has API keys."""
_KEY_DESCRIPTION: Final = "An API key. Required if the service has API keys; `/admin` routes always require one."
_SCHEMES: Final[dict[str, SecurityScheme | Reference]] = {
    "bearer": SecurityScheme(type="http", scheme="bearer", description=_KEY_DESCRIPTION),
    "api_key": SecurityScheme(
        type="apiKey", name="X-API-Key", security_scheme_in="header", description=_KEY_DESCRIPTION
    ),
}
_RAW_TYPES: Final = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/avif", "application/octet-stream")

# Parameters of an identify request, in the query or as form fields; `serving.schemas` parses them.
_PARAMETERS: Final[dict[str, Schema]] = {
    "k": Schema(
        type=OpenAPIType.INTEGER,
        minimum=1,
        maximum=MAX_K,
        default=DEFAULT_K,
        description="Maximum number of taxa, genera and families to list",
    ),
    "coverage": Schema(
        type=OpenAPIType.NUMBER,
        minimum=MIN_COVERAGE,
        maximum=MAX_COVERAGE,
        description="How often the candidate set shall include the right taxon; without it there is no candidate set",
    ),
    "coverage_kind": Schema(
        type=OpenAPIType.STRING,
        enum=list(get_args(CoverageKind)),
        default="marginal",
        description="Whether the coverage holds for the mean plant (marginal) or for the mean taxon (macro)",
    ),
    "taxa": Schema(
        type=OpenAPIType.ARRAY,
        items=Schema(type=OpenAPIType.STRING, max_length=MAX_NAME_LENGTH),
        max_items=MAX_TAXA,
        description="The taxa that can be the answer, repeated: names of genera, families and species, synonyms, "
        "common names, or `list:NAME` for a list that the operator keeps",
    ),
    "preview": Schema(
        type=OpenAPIType.BOOLEAN,
        default=False,
        description="Send back what the network saw of each picture, as a small WebP; few browsers show HEIC",
    ),
    "latitude": Schema(
        type=OpenAPIType.NUMBER,
        minimum=-90,
        maximum=90,
        description="Where the plant grows, degrees north (WGS 84); with `longitude`",
    ),
    "longitude": Schema(
        type=OpenAPIType.NUMBER, minimum=-180, maximum=180, description="Degrees east; with `latitude`"
    ),
    "date": Schema(
        type=OpenAPIType.STRING,
        format=OpenAPIFormat.DATE,
        description="Day of the photograph; counts with a place only",
    ),
    "use_exif": Schema(
        type=OpenAPIType.BOOLEAN,
        default=False,
        description="Take place and day from the EXIF data of the pictures if the request does not say them",
    ),
    "cultivated": Schema(
        type=OpenAPIType.BOOLEAN, default=False, description="The plant was planted: its place does not count"
    ),
    "lang": Schema(
        type=OpenAPIType.STRING,
        pattern=f"^{LANGUAGE}$",
        description="Language of the common names, such as de; by default as the header Accept-Language prefers",
    ),
}


def problem_responses(*statuses: int) -> dict[int, ResponseSpec]:
    """Returns the problem documents of these statuses, for a route's `responses`."""
    codes = codes_by_status()
    return {
        status: ResponseSpec(
            Problem,
            generate_examples=False,
            media_type=MEDIA_TYPE,
            description="Problem with the code " + " or ".join(f"`{code}`" for code in codes[status]),
        )
        for status in statuses
    }


def _header(kind: OpenAPIType, description: str) -> OpenAPIHeader:
    return OpenAPIHeader(schema=Schema(type=kind), description=description)


_RETRY_AFTER: Final = {"Retry-After": _header(OpenAPIType.INTEGER, "Seconds to wait before trying again")}
_QUOTA: Final = {
    "RateLimit": _header(OpenAPIType.STRING, "How many requests the client may still send, if there is a limit"),
    "RateLimit-Policy": _header(OpenAPIType.STRING, "The limit, if there is one"),
}
_HEADERS: Final[dict[str, dict[str, OpenAPIHeader | Reference]]] = {
    "200": {
        **_QUOTA,
        "Preference-Applied": _header(OpenAPIType.STRING, "The `wait` that was applied, if the request had one"),
    },
    "401": {"WWW-Authenticate": _header(OpenAPIType.STRING, "Always `Bearer`")},
    "429": {**_RETRY_AFTER, **_QUOTA},
    "503": {**_RETRY_AFTER},
}


@dataclass
class IdentifyOperation(Operation):
    """Declares what Litestar cannot infer: parameters, body, security and headers.

    The handler streams its body, and reads each parameter from the query or the form.
    """

    def __post_init__(self) -> None:
        """Adds the parameters, the body, the security and the headers to what Litestar inferred."""
        content = form_of({"image": IMAGES, **_PARAMETERS}, required=["image"])
        content |= {kind: OpenAPIMediaType(schema=_PICTURE) for kind in _RAW_TYPES}
        self.request_body = RequestBody(content=content, required=True, description="The photographs of one plant")
        self.parameters = [*(self.parameters or []), *query_parameters(_PARAMETERS), _PREFER]
        self.security = OPTIONAL_KEY
        for status, response in (self.responses or {}).items():
            if status in _HEADERS and isinstance(response, OpenAPIResponse):
                response.headers = {**(response.headers or {}), **_HEADERS[status]}


_PICTURE: Final = Schema(type=OpenAPIType.STRING, format=OpenAPIFormat.BINARY)
IMAGES: Final = Schema(
    type=OpenAPIType.ARRAY,
    items=_PICTURE,
    min_items=1,
    max_items=MAX_IMAGES,
    description="Photographs of one plant: JPEG, PNG, WebP, HEIC or AVIF",
)
"""The pictures in a form."""


def form_of(fields: dict[str, Schema], required: list[str] | None = None) -> dict[str, OpenAPIMediaType]:
    """Returns the content of a request body that is a form."""
    form = Schema(type=OpenAPIType.OBJECT, properties={**fields}, required=required)
    return {"multipart/form-data": OpenAPIMediaType(schema=form)}


def query_parameters(schemas: dict[str, Schema]) -> list[Parameter]:
    """Returns query parameters, which have the descriptions of their schemas."""
    return [
        Parameter(name=name, param_in="query", schema=replace(schema, description=None), description=schema.description)
        for name, schema in schemas.items()
    ]


_PREFER: Final = Parameter(
    name="Prefer",
    param_in="header",
    schema=Schema(type=OpenAPIType.STRING),
    required=False,
    example="wait=5",
    description="`wait=SECONDS` (RFC 7240): the longest time from the complete upload to the answer. It can only "
    "shorten the service's own deadline. Other preferences are ignored.",
)


class OfflineViewer(OpenAPIRenderPlugin):
    """Serves the viewer page of `serving/web`; Litestar's viewer pages load scripts from other hosts."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Returns the page."""
        return (WEB / "schema.html").read_bytes()


def openapi_config() -> OpenAPIConfig:
    """Returns the configuration of the document at `/schema/openapi.json` and its viewer at `/schema`."""
    return OpenAPIConfig(
        title="botanify",
        version=API_VERSION,
        description="Identifies plants on photographs. Errors are problem documents (RFC 9457) with a stable `code`.",
        use_handler_docstrings=True,
        components=Components(security_schemes=_SCHEMES),
        render_plugins=[OfflineViewer(), JsonRenderPlugin(media_type=MediaType.JSON)],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_finish),
    )


async def _finish(response: Response[Any]) -> Response[Any]:
    """Turns Litestar's own 404 page below `/schema` into a problem document; other responses may be kept."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return await revalidated(response)
