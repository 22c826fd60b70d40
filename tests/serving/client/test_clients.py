"""Both clients and the program against a running service."""

import asyncio
import io
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from serving.client import Asking, AsyncClient, Client, ServiceRefusal
from serving.client.__main__ import main
from serving.client.clients import shrunk
from tests.serving.program import service
from tests.serving.tiny import GREEN, RED, jpeg


@pytest.fixture(scope="module")
def url(bundle_folder):
    with service(bundle_folder, "--max-requests", "2", "--num-decoders", "1", "--num-runs", "1") as running:
        running.event("ready")
        host, port = running.address()
        yield f"http://{host}:{port}"


def test_answer_is_the_record_of_the_service(url, tmp_path):
    (tmp_path / "daisy.jpg").write_bytes(jpeg(GREEN))
    with Client(url) as client:
        answer = client.identify(tmp_path / "daisy.jpg", jpeg(GREEN), asking=Asking(k=2))
    assert answer.predictions[0].scientific_name == "Bellis perennis"
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
    assert {answer.predictions[0].scientific_name for answer in answers} == {"Rosa canina"}


def test_program_prints_words_or_json(url, tmp_path, capsys):
    photograph = tmp_path / "daisy.jpg"
    photograph.write_bytes(jpeg(GREEN))
    main([str(photograph), "--url", url, "--k", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Bellis perennis: species ")
    assert lines[1].split() == [lines[1].split()[0], "Bellis", "perennis", "daisy"]
    main([str(photograph), "--url", url, "--json"])
    assert json.loads(capsys.readouterr().out)["verdict"]["name"] == "Bellis perennis"


def test_threads_share_a_client(url):
    with Client(url, timeout_s=500) as client, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(client.identify, [jpeg(RED), jpeg(GREEN)] * 8))
    names = [answer.predictions[0].scientific_name for answer in answers]
    assert names == ["Rosa canina", "Bellis perennis"] * 8


def test_an_empty_photograph_is_refused_by_the_service(url, tmp_path, capsys):
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(SystemExit):
        main([str(tmp_path / "empty.jpg"), "--url", url])
    assert capsys.readouterr().err.startswith("botanify: ")


def test_large_pictures_are_shrunk_upright_and_without_exif():
    exif = Image.Exif()
    exif[0x0112] = 6  # to be rotated by a quarter
    data = jpeg(size=(400, 200), exif=exif)
    with Image.open(io.BytesIO(shrunk(data, 100))) as small:
        assert (small.size, dict(small.getexif())) == ((50, 100), {})
    assert shrunk(data, 400) == data
    assert shrunk(b"nothing", 100) == b"nothing"
