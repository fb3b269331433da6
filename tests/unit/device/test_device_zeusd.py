import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest

from kareus.device.control import Undo, undo
from kareus.device.permissions import controller_for, preflight
from kareus.device.visible import open_gpu


class Daemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A zeusd that steers the fake GPUs; GPUs are numbered in its own order."""

    daemon_threads = True
    fake = None
    groups = ("gpu-control", "gpu-read")
    status = 200
    requests: list = []
    token = ""


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def address_string(self):
        return "test"

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        gpus = [{"id": 5 - bus, "name": "x", "pci_address": f"0000:1{bus}:00.0"} for bus in range(2)]
        self.answer(200, {"gpus": gpus, "cpus": [], "enabled_api_groups": list(self.server.groups)})

    def do_POST(self):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.server.requests.append((url.path, query))
        if self.server.status != 200:
            self.answer(self.server.status, {"errors": {query["gpu_ids"]: "no"}})
            return
        gpu = 5 - int(query["gpu_ids"])
        fields = {
            "/gpu/set_gpu_locked_clocks": {"sm_lock_mhz": query.get("max_clock_mhz")},
            "/gpu/reset_gpu_locked_clocks": {"sm_lock_mhz": 0},
            "/gpu/set_mem_locked_clocks": {"memory_lock_mhz": query.get("max_clock_mhz")},
            "/gpu/reset_mem_locked_clocks": {"memory_lock_mhz": 0},
            "/gpu/set_power_limit": {"power_limit_mw": query.get("power_limit_mw")},
        }[url.path]
        self.server.fake.set(gpu, **{name: int(value) for name, value in fields.items()})
        self.answer(200, {})


@pytest.fixture
def daemon(fake, tmp_path, monkeypatch):
    path = tmp_path / "zeusd.sock"
    with Daemon(str(path), Handler) as server:
        server.fake, server.requests = fake, []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("ZEUSD_SOCK_PATH", str(path))
        fake.set(0, permission=0)  # NVML itself would refuse
        fake.set(1, permission=0)
        yield server
        server.shutdown()
        thread.join()


def test_the_daemon_sets_and_resets_the_right_gpu(daemon, fake, nvml):
    gpu = open_gpu(nvml, 1)
    permission = preflight(gpu, status="CapEff:\t0000000000000000")
    assert (permission.allowed, permission.via) == (True, "zeusd")
    controller = permission.controller
    outcomes = [
        controller.lock_sm_clock(1200),
        controller.lock_memory_clock(2201),
        controller.set_power_limit(500_000),
    ]
    assert outcomes == [None] * 3
    names = ("sm_lock_mhz", "memory_lock_mhz", "power_limit_mw")
    assert [fake.get(name, 1) for name in names] == [1200, 2201, 500_000]
    assert [fake.get(name, 0) for name in names] == [0, 0, 700_000]
    assert daemon.requests[0] == (
        "/gpu/set_gpu_locked_clocks",
        {"gpu_ids": "4", "min_clock_mhz": "1200", "max_clock_mhz": "1200", "block": "true"},
    )
    what = Undo(sm_lock=True, memory_lock=True, power_limit_before_mw=700_000)
    assert undo(controller_for(gpu), gpu, what) == []
    assert [fake.get(name, 1) for name in names] == [0, 0, 700_000]


@pytest.mark.parametrize(
    ("status", "name"), [(403, "NO_PERMISSION"), (400, "INVALID_ARGUMENT"), (500, "UNKNOWN")]
)
def test_refusals_become_codes(daemon, nvml, status, name):
    daemon.status = status
    failure = controller_for(open_gpu(nvml, 0)).lock_sm_clock(1200)
    assert failure.name == name
    assert f"status {status}" in str(failure)


def test_a_daemon_without_control_is_not_permission(daemon, nvml):
    daemon.groups = ("gpu-read",)
    permission = preflight(open_gpu(nvml, 0), status="CapEff:\t0000000000000000")
    assert not permission.allowed
    assert "gpu-control" in permission.reason


def test_no_daemon_at_the_socket_names_the_variable(fake, nvml, monkeypatch, tmp_path):
    monkeypatch.setenv("ZEUSD_SOCK_PATH", str(tmp_path / "nobody.sock"))
    permission = preflight(open_gpu(nvml, 0), status="CapEff:\t0000000000000000")
    assert not permission.allowed
    assert "ZEUSD_SOCK_PATH" in permission.remedy
    assert preflight(open_gpu(nvml, 0), status="CapEff:\t0000003fffffffff").via == "nvml"


def test_remedies_name_what_to_do(fake, nvml, monkeypatch):
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("kareus.device.permissions.in_container", lambda: False)
    gpu = open_gpu(nvml, 0)
    outside = preflight(gpu, status="CapEff:\t0000000000000000")
    monkeypatch.setattr("kareus.device.permissions.in_container", lambda: True)
    inside = preflight(gpu, status="CapEff:\t0000000000000000")
    assert "run as root or with CAP_SYS_ADMIN" in outside.remedy
    assert "--cap-add SYS_ADMIN" in inside.remedy
    assert "zeusd" in inside.remedy
