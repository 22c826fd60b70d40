import io

from rich.console import Console

from tests.training.insight.tuning.stand_in import Machine, setting
from training.insight.tuning.report import trial_table


def trials():
    machine = Machine(card_gb=8.0, outcomes={128: "does_not_fit", 256: "crashed"})
    sizes = [machine(setting(size)) for size in (8, 16, 32, 64, 128, 256)]
    return [*sizes, machine(setting(64, compiled=True)), machine(setting(64, channels_last=False))]


def test_the_table_has_a_row_for_each_trial_and_marks_the_proposal():
    console = Console(width=140, file=io.StringIO())
    console.print(trial_table(trials(), setting(64)))
    rows = [line for line in console.file.getvalue().splitlines() if "fp32" in line]
    assert len(rows) == 8
    assert [row for row in rows if "*64" in row] == [rows[3]]
    assert "761.9" in rows[3]  # pictures/s
    assert "7.4 GB (92%)" in rows[3]
    assert "above 90% of the memory" in rows[3]
    assert "does not fit" in rows[4]
    assert "crashed: planted" in rows[5]
    assert "compiled" in rows[6]
    assert "NCHW" in rows[7]
