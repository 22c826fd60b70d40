"""Every member of another package that the service uses although its documentation does not promise it.

An upgrade that removes one fails here and says which file needs it. Such packages are bounded to a minor version.
"""

import asyncio
import inspect
import io
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import httptools
import onnxruntime
import pillow_heif
import pytest
from packaging.requirements import Requirement
from PIL import AvifImagePlugin, Image, PngImagePlugin
from uvicorn import Config, Server
from uvicorn.lifespan.off import LifespanOff
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tests.make import ROOT
from tests.models.pictures import encode, scene


async def application(scope, receive, send):
    pass


def server():
    """A server that has started, without a socket."""
    made = Server(Config(application, lifespan="off"))
    made.config.load()
    made.lifespan = made.config.lifespan_class(made.config)
    asyncio.run(made.startup([]))
    return made


def connection():
    return HttpToolsProtocol(Config(application), ServerState(), {}, _loop=object())


def cycle():
    names = inspect.signature(RequestResponseCycle).parameters
    return RequestResponseCycle(**dict.fromkeys(names))


def drawn(file_format):
    """A picture that Pillow has opened and not yet decoded."""
    return Image.open(io.BytesIO(encode(scene(), file_format)))


# The object that has the members, the file that uses them, and the members.
MEMBERS = [
    (
        connection,
        "serving/api/protocol.py",
        "_unset_keepalive_if_required connection_lost connection_made cycle data_received eof_received "
        "expect_100_continue headers loop on_body on_header on_headers_complete on_message_begin on_message_complete "
        "on_response_complete on_url parser pause_writing pipeline resume_writing scope server_state "
        "timeout_keep_alive timeout_keep_alive_handler timeout_keep_alive_task transport",
    ),
    (
        cycle,
        "serving/api/protocol.py",
        "disconnected keep_alive message_event response_complete response_started scope",
    ),
    (ServerState, "serving/api/protocol.py", "default_headers"),
    (
        lambda: httptools.HttpRequestParser(object()),
        "serving/api/protocol.py",
        "feed_data get_http_version get_method set_dangerous_leniencies should_upgrade",
    ),
    (lambda: httptools, "serving/api/protocol.py", "HttpParserError HttpParserUpgrade HttpRequestParser"),
    (
        server,
        "serving/api/server.py",
        "config force_exit handle_exit lifespan server_state servers should_exit shutdown startup",
    ),
    (ServerState, "serving/api/server.py", "connections tasks"),
    (connection, "serving/api/server.py", "cycle shutdown transport"),
    (lambda: Config(application), "serving/api/server.py", "load http_protocol_class"),
    (lambda: LifespanOff(Config(application)), "serving/api/server.py", "state"),
    (lambda: drawn("JPEG"), "models/decode_cost.py", "layer"),
    (lambda: drawn("AVIF"), "models/preprocess.py", "_decoder"),
    (lambda: drawn("WEBP"), "models/preprocess.py", "_decoder"),
    (lambda: Image, "models/preprocess.py", "MAX_IMAGE_PIXELS"),
    (lambda: PngImagePlugin, "models/preprocess.py", "MAX_TEXT_CHUNK"),
    (lambda: drawn("PNG").png, "models/preprocess.py", "call crc crc_skip fp text_memory"),
    (lambda: AvifImagePlugin, "serving/engine/decoding/child.py", "DEFAULT_MAX_THREADS"),
    (lambda: pillow_heif.options, "serving/engine/decoding/child.py", "DECODE_THREADS"),
]


@pytest.mark.parametrize(("make", "file", "names"), MEMBERS)
def test_member_exists(make, file, names):
    owner = make()
    if isinstance(owner, Config):
        owner.load()  # makes http_protocol_class
    missing = [name for name in names.split() if not hasattr(owner, name)]
    assert not missing, f"{file} uses {missing} of {owner!r}: find what replaces them before you upgrade"


def test_layers_of_a_jpeg_have_their_sampling_at_the_second_and_third_place():
    data = encode(scene(), "JPEG", subsampling="4:2:0")
    with Image.open(io.BytesIO(data)) as opened:  # models/decode_cost.py reads them
        assert [layer[1:3] for layer in opened.layer] == [(2, 2), (1, 1), (1, 1)]


@pytest.mark.parametrize("file_format", ["AVIF", "WEBP"])
def test_decoder_of_a_loaded_picture_can_be_freed(file_format):
    opened = drawn(file_format)
    opened.load()
    assert vars(opened).pop("_decoder") is not None  # models/preprocess.py does so before it turns the picture
    assert opened.transpose(Image.Transpose.ROTATE_90).size == scene().size[::-1]


def test_upgrade_error_says_where_the_rest_of_the_bytes_starts():
    head = b"GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n"
    with pytest.raises(httptools.HttpParserUpgrade) as error:
        httptools.HttpRequestParser(object()).feed_data(head + b"rest")
    assert error.value.args[0] == len(head)


def test_paused_writing_can_be_resumed_without_a_transport():
    FlowControl(None).resume_writing()  # serving/api/protocol.py does so after the connection is lost


def test_libraries_of_onnx_runtime_are_in_its_folder_capi():
    folder = Path(onnxruntime.__file__).parent / "capi"  # serving/engine/networks.py looks for the one of CUDA there
    assert [*folder.glob("*onnxruntime*")]


@pytest.mark.parametrize("package", ["uvicorn", "httptools"])
def test_package_is_bounded_to_the_installed_minor_version(package):
    service = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["service"]
    [bound] = [each.specifier for line in service if (each := Requirement(line)).name == package]
    major, minor, *_ = map(int, version(package).split("."))
    assert bound.contains(version(package))
    assert not bound.contains(f"{major}.{minor + 1}.0")
    assert not bound.contains(f"{major}.{minor - 1}.99")


def test_every_file_named_here_exists():
    for _, file, _ in MEMBERS:
        assert import_module(file.removesuffix(".py").replace("/", "."))
