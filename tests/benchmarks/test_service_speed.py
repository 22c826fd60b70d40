import json

import pytest

from benchmarks.gpu.service_speed import ServiceSpeed, measure


@pytest.mark.slow
def test_a_run_on_a_cpu_measures_everything(sealed, tmp_path, capsys):
    flags = {"provider": "cpu", "precision": "fp32", "clients": 2, "seconds": 0.3, "lead_in_s": 0.1}
    result = measure(ServiceSpeed(bundle=sealed(), out=tmp_path / "service.json", **flags))
    assert [each.batch_size for each in result.alone] == [1]
    assert [(each.photograph, each.concurrency) for each in result.served] == [
        (picture, clients) for picture in ("network size", "1 MP") for clients in (2, 1)
    ]
    assert all(set(each.words) == {"200"} for each in result.served)
    assert len(result.start.later_ms) == 20
    written = json.loads((tmp_path / "service.json").read_text())
    assert written["versions"]["onnxruntime"]
    assert str(tmp_path) not in json.dumps(written["network"])
    assert "pictures a day" in capsys.readouterr().out
