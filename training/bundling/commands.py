"""The section of the model card on commands: what made its figures, and what measures them again."""

import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

import msgspec

from training.toml_file import Section


def commands_section(exported: Section, data: Path, out: Path, *, other_data: bool) -> str:
    """Writes the section.

    Args:
        exported: The flags of the export.
        data: Folder of the prepared data.
        out: Folder of the bundle.
        other_data: Whether the data is other data than that of the training.
    """
    measured = ["--data", without_folders(str(data)), "--bundle", without_folders(str(out))]
    again = shlex.join(["python", "training/evaluate.py", *measured, *(["--other-data"] if other_data else [])])
    return (
        "## Commands\n\nThe export made all figures of this card:\n\n"
        f"```sh\n{command_line('training/export.py', exported)}\n```\n\n"
        "Accuracy and calibration error of the fp32 network are measured again, together with its answers, by:\n\n"
        f"```sh\n{again}\n```\n\nOf folders above the given ones no names are kept."
    )


def command_line(program: str, flags: Section) -> str:
    """Returns the command that runs a program with these flags; flags at their defaults and folders are left out."""
    return shlex.join(["python", program, *_words(flags)])


def without_folders(text: str) -> str:
    """Cuts an absolute path to its last part, so that no folders of a machine are published; keeps other texts."""
    # The path may be from another operating system.
    paths = (PurePosixPath(text), PureWindowsPath(text))
    return next((path.name for path in paths if path.is_absolute()), text)


def _words(flags: Section, prefix: str = "") -> Iterator[str]:
    for field in msgspec.structs.fields(flags):
        value, name = getattr(flags, field.name), f"{prefix}{field.name.replace('_', '-')}"
        if isinstance(value, Section):
            yield from _words(value, f"{name}.")
        elif value == field.default:
            continue
        elif isinstance(value, bool):
            yield f"--{'' if value else 'no-'}{name}"
        else:
            yield f"--{name}"
            values = value if isinstance(value, tuple) else (value,)
            yield from (without_folders(str(each)) for each in values)
