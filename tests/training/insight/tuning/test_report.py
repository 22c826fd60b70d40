import io

from PIL import Image
from rich.console import Console

from tests.training.insight.tuning.stand_in import Machine, setting
from training.insight.tuning.report import trial_plot, trial_table


def trials():
    machine = Machine(card_gb=8.0, outcomes={128: "does_not_fit", 256: "crashed"})
    sizes = [machine(setting(size)) for size in (8, 16, 32, 64, 128, 256)]
    return [*sizes, machine(setting(64, compiled=True)), machine(setting(64, channels_last=False))]


def test_the_table_gives_every_trial_a_row_and_marks_the_proposal():
    console = Console(width=140, file=io.StringIO())
    console.print(trial_table(trials(), setting(64)))
    rows = [line for line in console.file.getvalue().splitlines() if "fp32" in line]
    assert len(rows) == 8
    assert [row for row in rows if "*64" in row] == [rows[3]]
    assert "761.9" in rows[3]  # pictures a second
    assert "7.4 GB (92%)" in rows[3]
    assert "above 90% of the memory" in rows[3]
    assert "does not fit" in rows[4]
    assert "crashed: planted" in rows[5]
    assert "compiled" in rows[6]
    assert "NCHW" in rows[7]


def test_the_plot_is_a_picture():
    with Image.open(io.BytesIO(trial_plot(trials(), setting(32), "CPU"))) as picture:
        assert picture.format == "PNG"
        assert picture.width > 600


def test_trials_that_all_failed_but_one_can_be_drawn():
    machine = Machine(outcomes={8: "crashed"})
    assert trial_plot([machine(8), machine(4)], setting(4), "CPU")
