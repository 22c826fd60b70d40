"""Flags, environment and defaults, and what they reach; the number of cores; the log in words; freed memory."""

import ctypes
import re
import sys
import typing
from pathlib import Path

import numpy as np
import psutil
import pytest
import structlog
from msgspec.structs import replace

from models.errors import InputError
from serving.app import create_app
from serving.engine.admission import AdmissionLimits
from serving.engine.bodies import BodyLimits
from serving.engine.decoding.pool import DecodeLimits
from serving.engine.machine import return_freed_memory
from serving.metrics import say_warnings
from serving.settings import Settings, find_bundle, load_settings, metrics_address
from tests.make import from_table
from tests.serving.tiny import FakeNetwork


def test_flag_takes_precedence_over_environment_and_default():
    environment = {"BOTANIFY_PORT": "9000", "BOTANIFY_MAX_REQUESTS": "3", "BOTANIFY_BUNDLE": "/some/where"}
    settings = load_settings(["--port", "9001"], environment)
    assert (settings.port, settings.max_requests, settings.deadline_s) == (9001, 3, 10.0)
    assert str(settings.bundle) == "/some/where"


def test_lists_are_separated_by_spaces_in_flags_and_by_commas_in_the_environment():
    from_flags = load_settings(["--trusted-proxies", "10.0.0.1", "10.1.0.0/16"], {})
    from_environment = load_settings([], {"BOTANIFY_TRUSTED_PROXIES": "10.0.0.1, 10.1.0.0/16"})
    assert from_flags.trusted_proxies == from_environment.trusted_proxies == ("10.0.0.1", "10.1.0.0/16")


@from_table
def test_bad_variable_is_named(environment, named):
    with pytest.raises(InputError, match=named):
        load_settings([], environment)


def test_an_empty_text_for_a_path_is_not_set():
    assert load_settings([], {"BOTANIFY_CORRECTIONS": "", "BOTANIFY_BUNDLE": ""}) == Settings()
    for flags in (["--corrections", ""], ["--corrections="]):
        assert load_settings([*flags, "--port", "9001"], {"BOTANIFY_CORRECTIONS": "/kept"}).corrections == Path("/kept")
    assert load_settings(["--api-keys", "", "--port", "1"], {"BOTANIFY_API_KEYS": "a key"}).api_keys == ""


def test_misspelt_variable_is_refused_with_the_nearest_name():
    with pytest.raises(InputError, match=r"BOTANIFY_API_KEY_FILE is not a setting .* such as BOTANIFY_API_KEYS_FILE"):
        load_settings([], {"BOTANIFY_API_KEY_FILE": "keys.txt"})
    assert load_settings([], {"BOTANIFY_URL": "http://127.0.0.1:8000", "PATH": "/bin"}) == Settings()


TYPES = {name: str(kind) for name, kind in typing.get_type_hints(Settings).items()}
NUMBERS = [name for name, kind in TYPES.items() if re.search(r"\b(int|float)\b", kind)]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_finite_range_and_its_error_names_the_flag(name):
    flag = f"--{name.replace('_', '-')}"
    for value in ("-1", "9" * 30 if "int" in TYPES[name] else "inf"):
        with pytest.raises(InputError, match=f"^{flag} is not valid "):
            load_settings([f"{flag}={value}"], {})


def test_metrics_have_a_port_and_an_address_of_their_own_if_they_are_named():
    assert metrics_address(Settings()) is None
    for given, expected in (("9100", ("1.2.3.4", 9100)), ("10.0.0.1:0", ("10.0.0.1", 0)), ("[::]:9100", ("::", 9100))):
        assert metrics_address(load_settings(["--metrics", given, "--host", "1.2.3.4"], {})) == expected


def test_the_only_released_bundle_is_found(tmp_path):
    with pytest.raises(InputError, match="--bundle"):
        find_bundle(None, tmp_path)
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "bundle.json").touch()
    assert find_bundle(None, tmp_path) == tmp_path / "one"
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "bundle.json").touch()
    with pytest.raises(InputError, match="one, two"):
        find_bundle(None, tmp_path)


def test_drain_leaves_time_for_the_rest_of_the_shutdown():
    assert load_settings(["--drain-s", "24"], {}).shutdown_s == 25
    assert load_settings(["--drain-s", "60", "--shutdown-s", "61"], {"BOTANIFY_SHUTDOWN_S": "5"}).drain_s == 60
    with pytest.raises(InputError, match="less than --shutdown-s, which is 25 s"):
        load_settings(["--drain-s", "25"], {})


def test_limits_of_the_settings_reach_their_components(settings):
    chosen = replace(
        settings,
        max_picture_bytes=1_001,
        max_request_bytes=1_002,
        max_requests=3,
        max_held_bytes=1_004,
        max_wait_s=5.5,
        num_decoders=6,
        client_share=0.7,
        deadline_s=7.5,
        upload_s=8.5,
        decode_s=10.5,
        decode_budget_bytes=1_012,
    )
    deps = components(chosen)
    assert deps.body_limits == BodyLimits(1_001, 1_002, 5, upload_s=8.5)
    assert deps.admission._limits == AdmissionLimits(3, 1_004, 5.5, num_decoders=6, client_share=0.7)
    assert deps.decoder._limits == DecodeLimits(picture_bytes=1_001, budget_bytes=1_012, seconds=10.5)
    assert (deps.decoder._num_children, deps.deadline_s) == (6, 7.5)


def components(settings):
    """What the routes use."""
    return create_app(settings, session=FakeNetwork()).litestar.dependencies["deps"].dependency()


def test_a_gpu_accepts_more_requests_unless_the_operator_says_how_many(settings):
    for provider, default in (("cpu", 64), ("cuda", 512)):
        for max_requests, expected in ((None, default), (3, 3)):
            chosen = replace(settings, provider=provider, max_requests=max_requests)
            assert components(chosen).admission._limits.num_requests == expected


def test_warnings_are_lines_in_words(capsys):
    say_warnings()
    log = structlog.get_logger("program")
    log.info("taxa_list", num_taxa=3)
    log.warning("bundle_warning", warning="The bundle has format 1.")
    log.error("run_failed", num_pictures=2, error="no memory")
    assert capsys.readouterr().err == "bundle warning: The bundle has format 1.\nrun failed: 2, no memory\n"


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="needs glibc's malloc_trim"
)
def test_memory_between_pieces_in_use_is_returned():
    pieces = [np.ones(8_000, np.uint8) for _ in range(20_000)]  # too small for pages of their own
    kept = pieces[::100]
    del pieces
    before = psutil.Process().memory_info().rss
    return_freed_memory()
    assert before - psutil.Process().memory_info().rss > 50_000_000
    assert all(piece[0] == 1 for piece in kept)
