"""Answers of `POST /identify` and a description of a model, as the page reads them: those of examples.json by name."""

import json
from pathlib import Path

_STORED = json.loads(Path(__file__).with_name("examples.json").read_text(encoding="utf-8"))


def filled(value):
    """A value of a table: "$NAME" is an example, {"like": NAME, ...} one with changes, and {"json": ...} a text."""
    if isinstance(value, str) and value.startswith("$"):
        return filled(_STORED[value[1:]])
    if isinstance(value, list):
        return [filled(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: filled(each) for key, each in value.items() if key != "like"}
    if "json" in found:
        return json.dumps(found["json"])
    return _changed(filled(f"${value['like']}"), found) if "like" in value else found


def like(name, **changes):
    """An example with changes, which go into its parts."""
    return filled({"like": name, **changes})


def _changed(whole, changes):
    if not isinstance(whole, dict) or not isinstance(changes, dict):
        return changes
    return whole | {key: _changed(whole.get(key), each) for key, each in changes.items()}


MODEL = filled("$model")
STATES = {name: filled(f"${name}") for name in _STORED if name != "model"}
SPECIES, GENUS, HARMFUL = (STATES[name] for name in ("species", "genus", "harmful"))
