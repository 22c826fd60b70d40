"""Reference pictures: listed with a taxon, served with caching, counted in answers."""

from models.examples import Example
from tests.serving.tiny import RED, assert_problem, draw, encode

ROSES = [encode(draw(color), "WEBP") for color in (RED, (200, 40, 40))]
EXAMPLES = [
    (Example("rosa-canina", f"00000-{number}.webp", author, "CC-BY-4.0", "drawn"), ROSES[number])
    for number, author in enumerate(("Ann", ""))
]


def test_each_picture_is_served_until_its_file_is_written_over(start, sealed):
    live = sealed(examples=[(example, picture + bytes(100_000)) for example, picture in EXAMPLES])
    client = start(bundle=live)
    for number, picture in enumerate(ROSES):
        assert client.get(f"/species/rosa-canina/images/{number}").content == picture + bytes(100_000)
    (live / "examples.zip").write_bytes(b"nothing")
    assert_problem(client.get("/species/rosa-canina/images/0"), 404, "unknown_taxon")
