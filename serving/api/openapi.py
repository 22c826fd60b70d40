"""The OpenAPI document and its viewer, which loads nothing from other hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import getdoc
from pathlib import Path
from typing import Any, Final

import msgspec
from docstring_parser import parse_from_object
from litestar import Request, Response, Router, get
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.openapi import OpenAPIConfig, ResponseSpec
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import (
    Components,
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
    Server,
)
from litestar.plugins import OpenAPISchemaPlugin
from litestar.response import Redirect
from litestar.typing import FieldDefinition

from serving.api.middleware import PUBLIC, revalidated
from serving.api.problems import MEDIA_TYPE, codes_by_status
from serving.schemas import MAX_IMAGES, Parameters, Problem, declared

VIEWER: Final = Path(__file__).resolve().parents[1] / "web" / "schema.html"
API_VERSION: Final = "1.0"
_EXAMPLES: Final = msgspec.json.decode(
    Path(__file__).with_name("examples.json").read_bytes(), type=dict[str, msgspec.Raw]
)
"""Status -> an answer of POST /identify, as JSON, since Litestar drops what is null in a dictionary."""
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


def problem_responses(
    *statuses: int, record: type[msgspec.Struct] = Problem, media_type: str = MEDIA_TYPE
) -> dict[int, ResponseSpec]:
    """Returns the problem documents of these statuses, or what stands for them, for a route's `responses`."""
    codes = codes_by_status()
    return {
        status: ResponseSpec(
            record,
            generate_examples=False,
            media_type=media_type,
            description="Problem with the code " + " or ".join(f"`{code}`" for code in codes[status]),
        )
        for status in statuses
    }


def _header(kind: str, description: str) -> OpenAPIHeader:
    schema: Any = {"type": kind}
    return OpenAPIHeader(schema=schema, description=description)


_RETRY_AFTER: Final = {"Retry-After": _header("integer", "Seconds to wait before trying again")}
_QUOTA: Final = {
    "RateLimit": _header("string", "How many requests the client may still send, if there is a limit"),
    "RateLimit-Policy": _header("string", "The limit, if there is one"),
}
_HEADERS: Final[dict[str, dict[str, OpenAPIHeader | Reference]]] = {
    "200": {**_QUOTA},
    "401": {"WWW-Authenticate": _header("string", "Always `Bearer`")},
    "429": {**_RETRY_AFTER, **_QUOTA},
    "503": {**_RETRY_AFTER},
}
_PICTURE: Final = {"type": "string", "format": "binary"}
IMAGES: Final = {
    "type": "array",
    "items": _PICTURE,
    "minItems": 1,
    "maxItems": MAX_IMAGES,
    "description": "Photographs of one plant: JPEG, PNG, WebP, HEIC or AVIF",
}
"""The pictures in a form."""


def form_body(
    fields: Mapping[str, Any], description: str | None = None, *, required: str | None = None, raw: Sequence[str] = ()
) -> RequestBody:
    """Returns a body that is a form, in which one field may be required, or a picture of a `raw` media type."""
    form: Any = {"type": "object", "properties": fields, "required": required and [required]}
    picture: Any = _PICTURE
    content = {"multipart/form-data": OpenAPIMediaType(schema=form)}
    content |= {kind: OpenAPIMediaType(schema=picture) for kind in raw}
    return RequestBody(content, description, required=required is not None)


def operation(parameters: type[msgspec.Struct], body: RequestBody | None = None, *others: Parameter) -> type[Operation]:
    """Returns what declares a route that reads query and body itself, so that Litestar cannot infer them.

    Args:
        parameters: Declares the query.
        body: Of the request, if it has one.
        others: More parameters, such as headers.
    """

    @dataclass
    class Declared(Operation):
        def __post_init__(self) -> None:
            self.request_body = body
            self.parameters = [*(self.parameters or [])]
            for name, schema in declared(parameters).items():
                described: Any = dict(schema)
                self.parameters.append(
                    Parameter(name, "query", description=described.pop("description"), schema=described)
                )
            self.parameters += others
            for status, response in (self.responses or {}).items():
                if not isinstance(response, OpenAPIResponse):
                    continue
                if status in _HEADERS:
                    response.headers = {**(response.headers or {}), **_HEADERS[status]}
                if parameters is Parameters and status in _EXAMPLES:
                    for content in (response.content or {}).values():
                        content.example = _EXAMPLES[status]

    return Declared


PREFER: Final = Parameter(
    name="Prefer",
    param_in="header",
    schema=Schema(type=OpenAPIType.STRING),
    example="wait=5",
    description="`wait=SECONDS` (RFC 7240): the longest time from the complete upload to the answer. It can only "
    "shorten the service's own deadline. Other preferences are ignored.",
)
_RAW_TYPES: Final = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/avif", "application/octet-stream")
IDENTIFY_BODY: Final = form_body(
    {"image": IMAGES, **declared(Parameters)}, "The photographs of one plant", required="image", raw=_RAW_TYPES
)


class FieldHelp(OpenAPISchemaPlugin):
    """Describes each field of a record by the text below it, or by that of the record; Litestar reads neither."""

    def is_plugin_supported_field(self, field_definition: FieldDefinition) -> bool:
        """Tells records."""
        return not field_definition.is_union and field_definition.is_subclass_of(msgspec.Struct)

    def to_openapi_schema(self, field_definition: FieldDefinition, schema_creator: Any) -> Schema:
        """Returns Litestar's own schema of a record, with the texts."""
        knows = schema_creator.plugin_supports_field
        litestar = next(each for each in schema_creator.plugins if each is not self and knows(each, field_definition))
        schema: Schema = litestar.to_openapi_schema(field_definition, schema_creator)
        record = field_definition.type_
        bases = record.__mro__[-4::-1]  # a base before what stands on it
        texts = {field.arg_name: field.description for base in bases for field in parse_from_object(base).params}
        for name, described in (schema.properties or {}).items():
            described.description = texts.get(name) or getdoc(record)
        return schema


class OfflineViewer(OpenAPIRenderPlugin):
    """Serves the viewer page of `serving/web`; Litestar's viewer pages load scripts from other hosts."""

    def __init__(self) -> None:
        super().__init__(path="/")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:  # noqa: ARG002
        """Returns the page."""
        return VIEWER.read_text(encoding="utf-8").replace("{{root}}", _root(request)).encode()


def openapi_config() -> OpenAPIConfig:
    """Returns the configuration of the document at `/schema/openapi.json` and its viewer at `/schema`."""
    return OpenAPIConfig(
        title="botanify",
        version=API_VERSION,
        description="Identifies plants on photographs. Errors are problem documents (RFC 9457) with a stable `code`.",
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, *_: handler.handler_name,
        components=Components(security_schemes=_SCHEMES),
        servers=[Server(url="..")],  # relative to the address of the document
        render_plugins=[OfflineViewer(), JsonRenderPlugin(media_type=MediaType.JSON)],
        openapi_router=Router("/schema", route_handlers=[], include_in_schema=False, after_request=_finish, opt=PUBLIC),
    )


async def _finish(response: Response[Any]) -> Response[Any]:
    """Turns Litestar's own 404 page below `/schema` into a problem document; other responses may be kept."""
    if response.status_code == NotFoundException.status_code:
        raise NotFoundException
    return await revalidated(response)


@get(["/docs", "/openapi.json"], include_in_schema=False, sync_to_thread=False, opt=PUBLIC)
def documentation(request: Request[Any, Any, Any]) -> Redirect:
    """Leads from where other services have their documentation to ours."""
    page = "schema" if request.url.path.startswith("/docs") else "schema/openapi.json"
    return Redirect(_root(request) + page)


def _root(request: Request[Any, Any, Any]) -> str:
    """Returns the way to the root from an address directly below it, since a proxy may put the root behind a path."""
    return "../" if request.scope["raw_path"].endswith(b"/") else "./"
