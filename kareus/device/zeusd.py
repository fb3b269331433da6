"""Setting clocks through zeusd, the privileged daemon of the Zeus project, over its Unix socket.

The daemon speaks HTTP: POST /gpu/set_gpu_locked_clocks?gpu_ids=0&min_clock_mhz=..&max_clock_mhz=..&block=true
and so on, GET /discover for its GPUs (zeusd's HTTP API reference). It is found through ZEUSD_SOCK_PATH.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from kareus.device.nvml import (
    INVALID_ARGUMENT,
    NO_PERMISSION,
    OPERATING_SYSTEM,
    TIMEOUT,
    UNKNOWN,
    Failure,
    Nvml,
)

TIMEOUT_S = 2.0
_STATUS_CODES = {400: INVALID_ARGUMENT, 401: NO_PERMISSION, 403: NO_PERMISSION, 404: NO_PERMISSION}


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Zeusd:
    """A client of one daemon.

    Attributes:
        path: the socket.
    """

    def __init__(self, path: str, nvml: Nvml) -> None:
        self.path = path
        self._nvml = nvml

    def request(
        self, method: str, target: str, query: Mapping[str, str | int] | None = None
    ) -> Any | Failure:
        """Send one request; return the decoded answer, or a Failure (counted, logged once). Never raises."""
        function = f"zeusd {method} {target}"
        full = f"{target}?{urlencode(query)}" if query else target
        headers = {"Content-Length": "0"} if method == "POST" else {}
        token = os.environ.get("ZEUSD_TOKEN")
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, full, headers=headers)
            response = connection.getresponse()
            body = response.read(1 << 20)
        except TimeoutError:
            return self._nvml.note(function, TIMEOUT, f"no answer on {self.path} within {TIMEOUT_S} s")
        except (OSError, http.client.HTTPException) as error:
            return self._nvml.note(function, OPERATING_SYSTEM, f"{self.path}: {error}")
        finally:
            connection.close()
        if response.status != 200:
            detail = f"status {response.status}: {body[:200].decode('utf-8', 'replace')}"
            return self._nvml.note(function, _STATUS_CODES.get(response.status, UNKNOWN), detail)
        try:
            return json.loads(body) if body.strip() else None
        except ValueError as error:
            return self._nvml.note(function, UNKNOWN, f"answer is not JSON: {error}")

    def find_gpu(self, pci_bus_id: str) -> int | Failure:
        """Return the daemon's number for a GPU, or why it cannot control it."""
        found = self.request("GET", "/discover")
        if isinstance(found, Failure):
            return found
        try:
            groups, gpus = found["enabled_api_groups"], found["gpus"]
            numbers = [int(g["id"]) for g in gpus if _same_pci(str(g["pci_address"]), pci_bus_id)]
        except (KeyError, TypeError, ValueError) as error:
            return self._nvml.note("zeusd GET /discover", UNKNOWN, f"unexpected answer: {error!r}")
        if "gpu-control" not in groups:
            detail = "start zeusd with the API group gpu-control enabled"
            return self._nvml.note("zeusd GET /discover", NO_PERMISSION, detail)
        if not numbers:
            return self._nvml.note("zeusd GET /discover", 28, f"zeusd has no GPU at {pci_bus_id}")
        return numbers[0]


def _same_pci(one: str, other: str) -> bool:
    """Compare PCI addresses written with a domain of four or of eight digits."""
    domain_1, _, rest_1 = one.lower().partition(":")
    domain_2, _, rest_2 = other.lower().partition(":")
    try:
        return int(domain_1, 16) == int(domain_2, 16) and rest_1 == rest_2
    except ValueError:
        return False


class ZeusdController:
    """A Controller that asks the daemon."""

    name = "zeusd"

    def __init__(self, daemon: Zeusd, gpu_number: int) -> None:
        self._daemon = daemon
        self._number = gpu_number

    def lock_sm_clock(self, sm_clock_mhz: int) -> Failure | None:
        """Lock the SM clock, MHz."""
        return self._post("set_gpu_locked_clocks", min_clock_mhz=sm_clock_mhz, max_clock_mhz=sm_clock_mhz)

    def reset_sm_clock(self) -> Failure | None:
        """Remove any SM clock lock."""
        return self._post("reset_gpu_locked_clocks")

    def lock_memory_clock(self, memory_clock_mhz: int) -> Failure | None:
        """Lock the memory clock, MHz."""
        return self._post(
            "set_mem_locked_clocks", min_clock_mhz=memory_clock_mhz, max_clock_mhz=memory_clock_mhz
        )

    def reset_memory_clock(self) -> Failure | None:
        """Remove any memory clock lock."""
        return self._post("reset_mem_locked_clocks")

    def set_power_limit(self, power_limit_mw: int) -> Failure | None:
        """Set the board's power limit, mW."""
        return self._post("set_power_limit", power_limit_mw=power_limit_mw)

    def _post(self, action: str, **values: int) -> Failure | None:
        query: dict[str, str | int] = {"gpu_ids": self._number, **values, "block": "true"}
        outcome = self._daemon.request("POST", f"/gpu/{action}", query)
        return outcome if isinstance(outcome, Failure) else None
