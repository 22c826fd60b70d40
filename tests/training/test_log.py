import json

from training.log import RunLog


def test_an_event_is_on_disk_as_soon_as_it_is_written(tmp_path):
    log = RunLog(tmp_path / "new" / "run")
    log.write("losses", step=3, losses=[0.5, 0.25])
    (line,) = (tmp_path / "new" / "run" / "log.jsonl").read_text().splitlines()
    event = json.loads(line)
    assert event.pop("time") > 1.7e9
    assert event == {"event": "losses", "step": 3, "losses": [0.5, 0.25]}
    log.close()


def test_a_later_run_goes_on_in_the_same_log(tmp_path):
    for name in ("start", "resume"):
        log = RunLog(tmp_path)
        log.write(name)
        log.close()
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["start", "resume"]


def test_a_loss_that_is_no_number_still_makes_a_line_of_json(tmp_path):
    log = RunLog(tmp_path)
    log.write("losses", losses=[float("nan"), float("inf")])
    log.close()
    assert json.loads((tmp_path / "log.jsonl").read_text())["losses"] == [None, None]
