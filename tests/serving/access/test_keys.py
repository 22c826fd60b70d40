"""API keys: creating, storing, reading and finding them."""

import hashlib
import os

import pytest

from models.errors import InputError
from serving.access.keys import ApiKey, ApiKeys, main, make_key, read_keys
from tests.make import from_table

# Fixed rather than random, so that parametrized tests have the same names in every process.
SECRET = "botanify_" + "0123456789" * 4 + "abc"
KEY = ApiKey("phone", hashlib.sha256(SECRET.encode()).hexdigest())


def test_new_key_is_random():
    secrets = {make_key("phone")[0], make_key("phone")[0]}
    assert [len(secret) for secret in secrets] == [len(SECRET)] * 2  # 256 bits in base64 and the prefix
    for secret in secrets:
        assert ApiKeys([KEY]).find(secret) is None


def test_stored_line_does_not_contain_the_secret():
    admin_secret, admin = make_key("gardener", is_admin=True)
    assert SECRET not in KEY.line
    keys = read_keys(f"{KEY.line}\n{admin.line}")
    assert keys.find(SECRET) == KEY
    assert keys.find(admin_secret) == admin
    assert keys.has_admin
    assert not read_keys(KEY.line).has_admin


@pytest.mark.parametrize(
    "sent",
    ["", SECRET[:-1], SECRET + "a", SECRET.upper(), f" {SECRET}", KEY.sha256, "é" * 43, "\0" * 43, "a" * 10_000],
)
def test_only_the_exact_secret_finds_the_key(sent):
    assert ApiKeys([KEY]).find(sent) is None


def test_short_password_is_refused_even_if_its_hash_is_stored():
    password = "rosebud"
    keys = read_keys(f"phone {hashlib.sha256(password.encode()).hexdigest()}")
    assert keys.find(password) is None


# ---- reading


@pytest.fixture
def file(tmp_path):
    return tmp_path / "keys"


def test_text_and_file_are_combined_and_commas_separate_entries(file):
    secrets, keys = zip(*(make_key(name) for name in "abc"), strict=True)
    file.write_text(keys[2].line)
    read = read_keys(f"{keys[0].line}, {keys[1].line}", file)
    assert [read.find(secret).name for secret in secrets] == ["a", "b", "c"]


@from_table
def test_malformed_line_is_reported_by_number_and_never_shown(file, line):
    line = line.format(secret=SECRET, hash=KEY.sha256, cut=KEY.sha256[:-1])
    file.write_text(f"# first\n{line}\n", encoding="utf-8")
    for source, place in ((("# first\n" + line,), "line 2 of --api-keys"), (("", file), f"line 2 of {file}")):
        with pytest.raises(InputError) as caught:
            read_keys(*source)
        message = str(caught.value)
        assert message.startswith(place)
        assert "python -m serving.access.keys" in message
        for word in line.split():
            assert word not in message.replace("admin", "")


@pytest.mark.parametrize(
    ("second", "what"), [(ApiKey("phone", "0" * 64).line, "name"), (f"other {KEY.sha256.upper()}", "key")]
)
def test_duplicate_name_or_hash_is_refused(file, second, what):
    file.write_text(f"{make_key('tablet')[1].line}\n{second}")
    with pytest.raises(InputError, match=f"line 2 of .*keys has the same {what} as line 1 of --api-keys"):
        read_keys(KEY.line, file)


@from_table
def test_file_without_a_key_makes_no_key_valid(file, content):
    file.write_text(content)
    assert read_keys(file=file).find(SECRET) is None
    assert read_keys(KEY.line, file).find(SECRET) == KEY


def test_byte_order_mark_is_no_part_of_the_first_line(file):
    file.write_text(KEY.line, encoding="utf-8-sig")
    assert read_keys(file=file).find(SECRET) == KEY


def test_file_that_is_no_text_is_refused(file):
    file.write_bytes(b"\xff\xfe" + bytes(10))
    with pytest.raises(InputError, match=r"keys cannot be read .* expected text in UTF-8"):
        read_keys(file=file)


def test_a_pipe_is_refused_since_a_reload_finds_it_empty(file):
    os.mkfifo(file)
    with pytest.raises(InputError, match=r"keys cannot be read \(got this is no regular file"):
        read_keys(file=file)


@from_table
def test_only_a_line_feed_ends_a_line(file, sign):
    content = f"# taken out{sign}{KEY.line} admin\r\n"
    file.write_bytes(content.encode())
    for keys in (read_keys(file=file), read_keys(content + make_key("tablet")[1].line)):
        assert keys.find(SECRET) is None


# ---- the program


def test_program_prints_a_key_and_the_line_to_store(capsys):
    main(["garden-app", "--admin"])
    printed = capsys.readouterr().out.split()
    secret = next(word for word in printed if word.startswith("botanify_"))
    assert f"#key={secret}" in printed
    at = printed.index("garden-app")
    key = read_keys(" ".join(printed[at : at + 3])).find(secret)
    assert (key.name, key.is_admin) == ("garden-app", True)
