"""Debian's Prometheus reads the configuration and the alerts, scrapes the service, and an alert fires under load."""

import re
import shutil
import subprocess
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
import yaml

from serving.corrections.store import Store
from tests.deploy.service_files import PROMETHEUS, panel_queries, read_yaml
from tests.deploy.tools import needs
from tests.make import ran
from tests.serving.corrections.kept import correction
from tests.serving.load import OpenLoad
from tests.serving.program import service
from tests.waiting import wait_until

pytestmark = pytest.mark.deploy


@needs("promtool")
@pytest.mark.parametrize("name", ["prometheus.yml", "kubernetes.yml"])
def test_promtool_accepts_the_configuration_and_the_rules(name, tmp_path):
    shutil.copy(PROMETHEUS / "alerts.yml", tmp_path)
    config = read_yaml(PROMETHEUS / name)
    config["scrape_configs"][0].pop("kubernetes_sd_configs", None)  # Debian builds Prometheus without it
    (tmp_path / name).write_text(yaml.safe_dump(config))
    checked = ran("promtool", "check", "config", tmp_path / name)
    assert checked.returncode == 0, checked.stderr


@needs("promtool")
def test_alerts_fire_when_they_should_and_not_otherwise():
    tested = ran("promtool", "test", "rules", "alerts_test.yml", cwd=PROMETHEUS)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@contextmanager
def prometheus(target, scratch):
    """Runs Prometheus with our files, scraping `target` every second, with alerts that look back 15 s."""
    config = read_yaml(PROMETHEUS / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    (scratch / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (PROMETHEUS / "alerts.yml").read_text(encoding="utf-8")
    rules = re.sub(r"for: \d+m", "for: 2s", re.sub(r"\[\d+m\]", "[15s]", rules))
    (scratch / "alerts.yml").write_text(rules, encoding="utf-8")
    log = scratch / "prometheus.log"
    flags = ["--web.listen-address=127.0.0.1:0", f"--storage.tsdb.path={scratch / 'data'}"]
    with log.open("w") as stream:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={scratch / 'prometheus.yml'}", *flags], stderr=stream, stdout=stream
        )
        try:
            yield Watcher(process, log)
        finally:
            process.terminate()
            process.wait(60)


class Watcher:
    """A running Prometheus."""

    def __init__(self, process, log: Path):
        self._process, self._log = process, log
        self._url = f"http://{self.wait_for(self._address)}"
        self.wait_for(lambda: httpx2.get(f"{self._url}/-/ready").status_code == 200)

    def wait_for(self, condition):
        """Waits until the condition gives something, and returns it."""
        found = wait_until(condition, self._process)
        assert found, self._log.read_text()
        return found

    def _address(self):
        found = re.search(r'msg="Listening on" .*address=(\S+)', self._log.read_text())
        return found and found[1]

    def query(self, text):
        text = text.replace("$instance", ".*").replace("$__rate_interval", "15s")
        answer = httpx2.get(f"{self._url}/api/v1/query", params={"query": text})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]["result"]

    def firing(self):
        alerts = httpx2.get(f"{self._url}/api/v1/alerts").json()["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@needs("prometheus")
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_alerts_fire_under_load_and_when_the_service_is_gone_and_the_panels_show_data(sealed, tmp_path):
    flags = ("--metrics", "0", "--max-requests", "1", "--corrections", tmp_path / "corrections")
    with Store(tmp_path / "corrections") as store:
        store.put(correction(0, created=datetime.now(UTC).isoformat()), [])
    with service(sealed(), *flags) as running:
        metrics = running.event("serving_metrics")["url"].removeprefix("http://").removesuffix("/metrics")
        with prometheus(metrics, tmp_path) as watcher:
            watcher.wait_for(lambda: [one["value"][1] for one in watcher.query("sum(up)")] == ["1"])
            assert watcher.firing() == set()
            with OpenLoad(running.url, per_s=100).running():
                watcher.wait_for(lambda: watcher.firing() == {"BotanifyOverloaded"})
                for query in panel_queries():
                    watcher.wait_for(lambda query=query: watcher.query(query))
            watcher.wait_for(lambda: watcher.firing() == set())
            assert running.stop() == 0
            watcher.wait_for(lambda: watcher.firing() == {"BotanifyDown"})
