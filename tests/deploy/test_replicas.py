"""Two replicas behind nginx: the bundle changes, each replica restarts in turn, and no request fails."""

import os
import re
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress

import httpx2
import pytest

from tests.deploy.service_files import NGINX
from tests.deploy.tools import needs
from tests.make import ran
from tests.serving.load import OpenLoad, best, point, version_of
from tests.serving.program import service
from tests.serving.tiny import WEIGHTS, images, jpeg
from tests.waiting import wait_until

pytestmark = [pytest.mark.deploy, needs("nginx")]
HOSTS = ("127.0.0.11", "127.0.0.12")
# On a slow machine, one replica alone may be too slow for the load while the other one starts. So it refuses nothing.
PATIENT = ("--max-wait-s", "600", "--deadline-s", "600", "--max-requests", "10000", "--shutdown-s", "50")


def free_port(host):
    with socket.create_server((host, 0)) as listening:
        return listening.getsockname()[1]


def configuration(addresses, port, scratch):
    """Our file with these addresses, and with folders that any user may write to."""
    text = NGINX.read_text(encoding="utf-8")
    for address in addresses:
        text = re.sub(r"server 10\.[\d.:]+", f"server {address}", text, count=1)
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};").replace("read_timeout 15s;", "read_timeout 600s;")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"    {kind}_temp_path {scratch}/{kind};\n" for kind in kinds)
    return text.replace("http {\n", f"http {{\n    access_log off;\n{folders}", 1)


@contextmanager
def nginx(addresses, scratch):
    """Runs nginx in front of the addresses; gives its URL."""
    port = free_port("127.0.0.1")
    (scratch / "nginx.conf").write_text(configuration(addresses, port, scratch))
    user = "user root; " if os.geteuid() == 0 else ""
    more = f"{user}daemon off; pid {scratch}/nginx.pid; error_log {scratch}/nginx.log;"
    process = subprocess.Popen(["nginx", "-c", scratch / "nginx.conf", "-p", scratch, "-g", more])
    try:
        assert wait_until(lambda: listens(port), process), "nginx ended"
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def listens(port):
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


class Replicas:
    """One service on each of the hosts, with the same bundle."""

    def __init__(self, bundle, *flags):
        self._bundle, self._flags, self._stacks, self.running = bundle, flags, {}, {}
        self._ports = {host: free_port(host) for host in HOSTS}
        self.addresses = [f"{host}:{port}" for host, port in self._ports.items()]

    def start(self, host):
        flags = ("--host", host, "--port", str(self._ports[host]), "--drain-s", "1", *PATIENT, *self._flags)
        stack = self._stacks[host] = ExitStack()
        self.running[host] = stack.enter_context(service(self._bundle, *flags, "--trusted-proxies", "127.0.0.1"))

    def restart(self, host):
        code = self.running[host].stop()
        self._stacks[host].close()
        self.start(host)
        return code

    @contextmanager
    def all(self):
        try:
            for host in HOSTS:
                self.start(host)
            yield self
        finally:
            for stack in self._stacks.values():
                stack.close()


def test_nginx_accepts_the_configuration(tmp_path):
    (tmp_path / "nginx.conf").write_text(configuration(("127.0.0.1:1", "127.0.0.1:2"), 8080, tmp_path))
    more = f"pid {tmp_path}/nginx.pid; error_log {tmp_path}/nginx.log;"
    tested = ran("nginx", "-t", "-c", tmp_path / "nginx.conf", "-g", more)
    assert tested.returncode == 0, tested.stderr


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_request_fails_while_the_bundle_changes_and_each_replica_restarts(sealed, tmp_path):
    versions = {"1.0.0": sealed("1.0.0"), "2.0.0": sealed("2.0.0", -WEIGHTS), "3.0.0": sealed("3.0.0")}
    link = tmp_path / "live"
    link.symlink_to(versions["1.0.0"])
    with Replicas(link).all() as replicas, nginx(replicas.addresses, tmp_path) as url:
        assert httpx2.get(f"{url}/metrics").status_code == httpx2.post(f"{url}/admin/reload").status_code == 404
        with OpenLoad(url, per_s=5).running() as load:
            load.wait_for_answers(20)
            point(link, versions["2.0.0"])  # by a reload
            for host in HOSTS:
                replicas.running[host].reload("2.0.0")
            reloaded = time.monotonic()
            load.wait_for_answers(20)
            point(link, versions["3.0.0"])  # by a restart
            restarting = time.monotonic()
            for host in HOSTS:
                assert replicas.restart(host) == 0
                load.wait_for_answers(20)
            restarted = time.monotonic()
            load.wait_for_answers(20)
    assert load.lost == []
    failed = [(sent, response.text) for sent, response in load.answers if response.status_code != 200]
    assert failed == [], (restarted, (tmp_path / "nginx.log").read_text()[-2000:])
    names = {version: {best(one) for _, one in load.answers if version_of(one) == version} for version in versions}
    assert names["1.0.0"] == names["3.0.0"] == {"Rosa canina"}
    assert len(names["2.0.0"]) == 1
    assert names["2.0.0"] != names["1.0.0"]
    assert {version_of(one) for sent, one in load.answers if reloaded < sent < restarting} == {"2.0.0"}
    assert {version_of(one) for sent, one in load.answers if restarted < sent} == {"3.0.0"}


@pytest.mark.slow
def test_a_client_stays_with_a_replica_and_corrects_what_another_one_answered(sealed, tmp_path):
    replicas = Replicas(sealed(), "--corrections", tmp_path / "corrections")
    balanced = []  # the ids of each client's answers

    def ask(client, url):
        request_id = client.post(f"{url}/identify", files=images(jpeg())).raise_for_status().json()["request_id"]
        client.post(f"{balancer}/identify/{request_id}/correction?taxon=Rosa canina").raise_for_status()
        return request_id

    with replicas.all(), nginx(replicas.addresses, tmp_path) as balancer, ExitStack() as clients:
        for number in range(40, 52):
            address = f"127.0.0.{number}"
            client = clients.enter_context(httpx2.Client(transport=httpx2.HTTPTransport(local_address=address)))
            balanced.append([ask(client, balancer) for _ in range(3)])
            client.headers["X-Forwarded-For"] = address
            for replica in replicas.addresses:  # as after overload
                ask(client, f"http://{replica}")
    logs = ["".join(replica.lines) for replica in replicas.running.values()]
    homes = [{host for host, log in enumerate(logs) for each in ids if each in log} for ids in balanced]
    assert {len(home) for home in homes} == {1}
    assert set.union(*homes) == {0, 1}
