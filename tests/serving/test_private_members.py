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
from pkgutil import resolve_name

import httptools
import onnxruntime
import pytest
from packaging.requirements import Requirement
from PIL import Image
from uvicorn import Config, Server
from uvicorn.lifespan.off import LifespanOff
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from tests.make import ROOT, from_table
from tests.models.pictures import encode, scene


async def application(scope, receive, send):
    pass


def loaded_config(**options):
    config = Config(application, **options)
    config.load()  # makes http_protocol_class
    return config


def server():
    """A server that has started, without a socket."""
    made = Server(loaded_config(lifespan="off"))
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


# Of what is made in a test; other owners are imported by their names.
MADE = {
    "connection": connection,
    "cycle": cycle,
    "server": server,
    "parser": lambda: httptools.HttpRequestParser(object()),
    "config": loaded_config,
    "lifespan": lambda: LifespanOff(Config(application)),
    "a JPEG": lambda: drawn("JPEG"),
    "an AVIF": lambda: drawn("AVIF"),
    "a WEBP": lambda: drawn("WEBP"),
    "chunks of a PNG": lambda: drawn("PNG").png,
}


@from_table
def test_member_exists(owner, file, names):
    import_module(file.removesuffix(".py").replace("/", "."))  # it is there
    has = MADE[owner]() if owner in MADE else resolve_name(owner)
    has = has() if isinstance(has, type) else has
    missing = [name for name in names.split() if not hasattr(has, name)]
    assert not missing, f"{file} uses {missing} of {owner}: find what replaces them before you upgrade"


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
