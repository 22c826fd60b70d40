import pytest
from jinja2 import UndefinedError

from training.pages.rendering import render


@pytest.fixture
def template(tmp_path):
    def write(text):
        path = tmp_path / "page.html"
        path.write_text('{% from "macros.html" import plural %}' + text)
        return path

    return write


def test_texts_of_data_sets_are_escaped(template):
    assert render(template("<p>{{ name }}</p>"), {}, name="<b>&") == "<p>&lt;b&gt;&amp;</p>"


def test_numbers_have_separators_and_their_noun(template):
    page = template('{{ plural(1, "picture", "pictures") }}, {{ plural(1234, "picture", "pictures") }}')
    assert render(page, {}) == "1 picture, 1,234 pictures"


def test_filters_of_the_page_are_known(template):
    assert render(template("{{ 3 | double }}"), {"double": lambda value: str(2 * value)}) == "6"


def test_name_without_a_value_is_an_error(template):
    with pytest.raises(UndefinedError):
        render(template("{{ unknown }}"), {})


def test_style_loads_nothing_from_elsewhere(template):
    style = render(template('{% include "style.css" %}'), {})
    assert "prefers-color-scheme: dark" in style
    assert "url(" not in style
    assert "@import" not in style
