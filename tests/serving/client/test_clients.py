"""Both clients and the program against a running service; what they are given is checked before they send anything."""

import asyncio
import io
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from models.errors import InputError, TooManyPixels
from models.preprocess import PIXEL_LIMITS, read_picture
from serving.client import AsyncClient, Client, Parameters, ServiceRefusal
from serving.client.clients import checked_url, key_header, shrunk
from tests.make import cases
from tests.models.pictures import DISPLAY_P3, color_profile
from tests.serving.program import service
from tests.serving.tiny import GREEN, RED, jpeg

KEY = "botanify_Zq9wX"


def outcome_of(check, text):
    """What a check returns, and what its error says."""
    try:
        return check(text), ""
    except InputError as error:
        return None, str(error)


@pytest.mark.parametrize("url", cases(__file__, "wrong_addresses"))
def test_a_wrong_address_is_refused(url):
    with pytest.raises(InputError, match="not the address of a service"):
        checked_url(url)


@pytest.mark.parametrize("url", ["ftp://ann:secret@host/", "http://ann:secret@host/?q"])
def test_a_refused_address_shows_no_password(url):
    with pytest.raises(InputError) as refused:
        checked_url(url)
    assert "secret" not in f"{refused.value} {refused.value.value}"


@given(st.text(max_size=30), st.sampled_from(["", "http://", "https://user:pass@", "http://["]))
def test_any_address_is_taken_or_refused(text, start):
    url, told = outcome_of(checked_url, start + text)
    assert "pass@" not in told
    assert url is None or (url.scheme in {"http", "https"} and url.host)


@pytest.mark.parametrize("url", ["http://h", "https://h:8443/plants/", "HTTP://h", "http://[::1]:8000", "http://u:p@h"])
def test_a_good_address_is_taken(url):
    assert checked_url(url).host in {"h", "::1"}


@given(st.text(min_size=1))
def test_a_key_is_a_header_or_refused_unseen(text):
    header, told = outcome_of(key_header, KEY + text)
    assert KEY not in told
    assert header in (None, {"Authorization": f"Bearer {KEY}{text}"})
    assert (header is None) != (text.isascii() and text.isprintable() and " " not in text)


@pytest.mark.parametrize(("name", "value"), cases(__file__, "numbers_out_of_range"))
def test_a_number_out_of_range_is_refused(name, value):
    with pytest.raises(InputError, match=rf"{name} is .* \(got {value}; expected "):
        Client(**{name: value})


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as service:
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        service.settimeout(60)
        proxy.setblocking(False)
        client = Client(f"http://localhost:{service.getsockname()[1]}")
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(client.identify, b"1")
            service.accept()[0].close()  # the service was asked
            client.close()
        assert call.exception() is not None
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.parametrize("proxy", ["socks9://host", "host name:x", "socks5://host"])
def test_a_proxy_that_cannot_be_used_is_an_input_error(proxy, monkeypatch):
    monkeypatch.setitem(sys.modules, "socksio", None)  # not among the dependencies
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(InputError, match="a proxy of the environment cannot be used"):
        Client()


@pytest.fixture(scope="module")
def url(bundle_folder):
    with service(bundle_folder, "--max-requests", "2", "--num-decoders", "1", "--num-runs", "1") as running:
        yield running.url


def best(answer):
    return answer.predictions[0].scientific_name


def test_answer_is_the_record_of_the_service(url, tmp_path):
    (tmp_path / "daisy.jpg").write_bytes(jpeg(GREEN))
    with Client(url) as client:
        answer = client.identify(tmp_path / "daisy.jpg", jpeg(GREEN), parameters=Parameters(k=2))
    assert best(answer) == "Bellis perennis"
    assert (len(answer.predictions), len(answer.images)) == (2, 2)


def test_refusal_is_an_error_with_its_document(url):
    with Client(url) as client, pytest.raises(ServiceRefusal, match="not a picture") as caught:
        client.identify(b"nothing")
    assert (caught.value.document.status, caught.value.document.code) == (415, "unsupported_format")


@pytest.mark.parametrize("number", [40, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_questions_at_once_are_all_answered(url, number):
    async def ask():
        async with AsyncClient(url, timeout_s=500) as client:
            return await asyncio.gather(*(client.identify(jpeg(RED)) for _ in range(number)))

    answers = asyncio.run(ask())
    assert len(answers) == number
    assert {*map(best, answers)} == {"Rosa canina"}


@pytest.mark.slow
def test_three_restarts_lose_no_request(bundle_folder, monkeypatch, free_tcp_port):
    monkeypatch.setattr("serving.client.clients._chance", lambda low, high: low + (high - low) / 50)  # many attempts
    with Client(f"http://127.0.0.1:{free_tcp_port}") as client, ThreadPoolExecutor(4) as threads:
        calls = []
        for life in range(1, 5):
            with service(bundle_folder, "--port", str(free_tcp_port)) as running:
                calls = calls or [threads.submit(client.identify, jpeg(RED)) for _ in range(300)]
                while sum(call.done() for call in calls) < 75 * life:
                    time.sleep(0.001)
                assert running.stop() == 0
    assert [call.exception() for call in calls] == [None] * 300
    assert {best(call.result()) for call in calls} == {"Rosa canina"}


def test_threads_share_a_client(url):
    with Client(url, timeout_s=500) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(client.identify, [jpeg(RED), jpeg(GREEN)] * 8))
    assert [*map(best, answers)] == ["Rosa canina", "Bellis perennis"] * 8


def test_large_pictures_are_shrunk_upright_and_without_exif():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by a quarter
    data = jpeg(size=(400, 200), exif=exif)
    with Image.open(io.BytesIO(shrunk(data, 100))) as small:
        assert (small.size, dict(small.getexif())) == ((50, 100), {})
    assert shrunk(data, 400) == data
    assert shrunk(data[:-2], 100) == data[:-2]


def test_pictures_that_the_service_refuses_for_their_pixels_are_shrunk(monkeypatch):
    monkeypatch.setitem(PIXEL_LIMITS, "JPEG", 10_000)
    data = jpeg(size=(400, 200))
    with pytest.raises(TooManyPixels):
        read_picture(data)
    with Image.open(io.BytesIO(shrunk(data, 300))) as small:
        assert small.size == (300, 150)


def test_shrunk_pictures_have_the_colors_of_srgb():
    data = jpeg((234, 51, 35), (400, 400), icc_profile=color_profile(*DISPLAY_P3))
    with Image.open(io.BytesIO(shrunk(data, 100))) as small:
        assert small.getpixel((50, 50)) == pytest.approx((255, 0, 0), abs=3)


def test_what_is_no_picture_is_sent_as_it_is():
    assert shrunk(b"nothing", 100) == b"nothing"
