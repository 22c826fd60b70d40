"""Writes a run's events for TensorBoard, as curves and text. View them with `tensorboard --logdir runs`.

Every event is written at its optimizer step, so that a resumed run can hide the steps that it repeats.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_FLUSH_S: Final = 5  # events of this time are lost if the process is killed
_GROUPS: Final = {
    "losses": "training",
    "epoch": "epoch",
    "validation": "validation",
    "monitor": "monitor",
    "note": "run",
    "diverged": "run",
}
_SHORT: Final = {"losses": "loss", "gradient_norms": "gradient_norm", "lr": "learning_rate"}
_POSITION: Final = ("step", "epoch", "pictures")
_BANDS: Final = {
    "validation": {
        name: ["Margin", [f"validation/{name}", f"validation/{name}/low", f"validation/{name}/high"]]
        for name in ("top1", "top5")
    }
}


class TensorBoard:
    """Writes events to TensorBoard's files in a run's folder, from the event "start" on.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._step = folder, 0
        self._writer: SummaryWriter | None = None
        self._pending: list[tuple[str, Mapping[str, Any]]] = []  # events before "start", which has the first step

    def on_event(self, event: str, fields: Mapping[str, Any]) -> None:
        """Writes an event at its step, or at the step of the previous event if it has none.

        Raises:
            OSError: The files cannot be written.
        """
        self._step = fields.get("step", self._step)
        if self._writer is None:
            if event != "start":
                self._pending.append((event, fields))
                return
            self._writer = self._open(fields.get("recipe", {}))
        for pending in [*self._pending, (event, fields)]:
            self._show(self._writer, *pending)
        self._pending.clear()

    def close(self) -> None:
        """Writes everything to disk.

        Raises:
            OSError: The files cannot be written.
        """
        if self._writer is not None:
            self._writer.close()

    def _show(self, writer: "SummaryWriter", event: str, fields: Mapping[str, Any]) -> None:
        for tag, value in event_values(event, fields).items():
            if isinstance(value, str):
                writer.add_text(tag, value, self._step)
            else:
                writer.add_scalar(tag, value, self._step)

    def _open(self, recipe: Mapping[str, Any]) -> "SummaryWriter":
        """Opens a new file. It hides events of older files after this step, or all of them if the run starts over.

        Imports TensorBoard only here, since that takes a third of a second.
        """
        from torch.utils.tensorboard import SummaryWriter

        purge = self._step + 1 if self._step else 0
        writer = SummaryWriter(str(self._folder), purge_step=purge, flush_secs=_FLUSH_S)
        writer.add_custom_scalars(_BANDS)
        writer.add_text("recipe", _table(recipe), self._step)
        return writer


def event_values(event: str, fields: Mapping[str, Any]) -> dict[str, float | str]:
    """The scalars and texts of an event, by tag.

    A list becomes its mean. A share with a 95 % interval becomes three scalars: its value and both ends.
    """
    if event not in _GROUPS:
        return {}
    found: dict[str, float | str] = {}
    for name, value in fields.items():
        group = "" if name == "validation" else f"{_GROUPS[event]}/"
        if name not in _POSITION:
            found |= _leaves(f"{group}{_SHORT.get(name, name)}", rates(value) if name == "lr" else value)
    return found


def rates(lr: Mapping[str, float] | Sequence[float]) -> dict[str, float]:
    """Names the learning rates.

    Args:
        lr: Of the optimizer's parameter groups: backbone and head, each with weight decay and then without.
    """
    if isinstance(lr, Mapping):
        return dict(lr)
    if len(lr) == 4:
        return {"backbone": lr[0], "head": lr[2]}
    return {f"group_{number}": rate for number, rate in enumerate(lr, start=1)}


def _leaves(tag: str, value: Any) -> Iterator[tuple[str, float | str]]:
    match value:
        case bool() | None:
            return
        case int() | float() | str():
            yield tag, value
        case {"value": float() | int() as share, "interval_95": (low, high)}:
            yield from ((tag, share), (f"{tag}/low", low), (f"{tag}/high", high))
        case Mapping():
            for name, part in value.items():
                yield from _leaves(f"{tag}/{name}", part)
        case Sequence():
            numbers = [number for number in value if isinstance(number, int | float)]
            if numbers:
                yield tag, sum(numbers) / len(numbers)


def _table(recipe: Mapping[str, Any]) -> str:
    """The resolved recipe as a Markdown table."""
    rows = ["| section | setting | value |", "|---|---|---|"]
    for section, knobs in recipe.items():
        for knob, value in knobs.items() if isinstance(knobs, Mapping) else [("", knobs)]:
            rows.append(f"| {section} | {knob} | {value} |")
    return "\n".join(rows)
