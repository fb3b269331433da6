"""Several "hosts" on one machine: network namespaces joined by a bridge, with shaped links.

    with hosts(2, rate_mbit=1000) as cluster:
        results = cluster.torchrun(["examples/ddp.py", "--steps", "20"], timeout_s=120)

Every host has its own network stack, address and link; processes share the machine's CPUs and files.
Needs root and the `ip` and `tc` commands; `why_not()` says what is missing. All traffic stays inside the
namespaces made here, and they are removed again whatever happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PORT = 29511
BURST_KB = 64  # small against a bucket, so that the link's rate holds within one collective


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One host's launcher after it ended: exit code (negative: signal, None: had to be killed) and output."""

    returncode: int | None
    output: str


@dataclass
class Cluster:
    """Running hosts; see `hosts`."""

    name: str
    num_hosts: int
    rate_mbit: float
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def address(self, host: int) -> str:
        return f"10.213.7.{host + 1}"

    def start(
        self, script: Sequence[str], *, per_host: int = 1, env: dict[str, str] | None = None,
        host_env: dict[int, dict[str, str]] | None = None, max_restarts: int = 0,
    ) -> None:  # fmt: skip
        """Start torchrun on every host (c10d rendezvous on host 0); ranks follow the order of addresses."""
        for host in range(self.num_hosts):
            command = [
                "ip", "netns", "exec", f"{self.name}h{host}", sys.executable, "-m", "torch.distributed.run",
                f"--nnodes={self.num_hosts}", f"--nproc-per-node={per_host}", f"--max-restarts={max_restarts}",
                "--rdzv-backend=c10d", f"--rdzv-endpoint={self.address(0)}:{PORT}", f"--rdzv-id={self.name}",
                f"--rdzv-conf=is_host={int(host == 0)}", f"--local-addr={self.address(host)}", *script,
            ]  # fmt: skip
            environment = {
                **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0",
                "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
                **(env or {}), **((host_env or {}).get(host, {})),
            }  # fmt: skip
            self.processes.append(
                subprocess.Popen(
                    command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )  # fmt: skip

    def wait(self, timeout_s: float) -> list[Finished]:
        """Wait for every launcher; those still running after the timeout are killed and reported as None."""
        deadline = time.monotonic() + timeout_s
        finished = []
        for process in self.processes:
            code: int | None = None
            try:
                output, _ = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
                code = process.returncode
            except subprocess.TimeoutExpired:
                self._kill(process)
                output, _ = process.communicate()
            finished.append(Finished(returncode=code, output=output))
        self.processes.clear()
        return finished

    def torchrun(self, script: Sequence[str], *, timeout_s: float, **options: object) -> list[Finished]:
        """Start and wait."""
        self.start(script, **options)  # type: ignore[arg-type]
        return self.wait(timeout_s)

    def cut(self, host: int) -> None:
        """Take a host's link down: packets vanish, nothing is refused."""
        _run("ip", "-n", f"{self.name}h{host}", "link", "set", "eth0", "down")

    def set_rate(self, rate_mbit: float) -> None:
        """Shape every host's outgoing link."""
        for host in range(self.num_hosts):
            _run(
                "tc", "-n", f"{self.name}h{host}", "qdisc", "replace", "dev", "eth0", "root", "tbf",
                "rate", f"{rate_mbit:g}mbit", "burst", f"{BURST_KB}kb", "latency", "100ms",
            )  # fmt: skip

    def workers(self, host: int) -> list[int]:
        """Process ids of the training processes (not the launcher) of a host."""
        launcher = self.processes[host].pid
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                if (
                    entry.name.isdigit()
                    and os.getpgid(int(entry.name)) == launcher
                    and int(entry.name) != launcher
                ) or (entry.name.isdigit() and _parent(int(entry.name)) == launcher):
                    found.append(int(entry.name))
        return sorted(set(found))

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        """Kill a launcher and all it started; torchrun's workers lead sessions of their own."""
        family = {process.pid}
        for _ in range(3):
            for entry in Path("/proc").iterdir():
                with contextlib.suppress(OSError, ValueError):
                    if entry.name.isdigit() and _parent(int(entry.name)) in family:
                        family.add(int(entry.name))
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def why_not() -> str:
    """Return why namespaces cannot be used here, "" when they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "the commands ip and tc (iproute2) are not installed"
    probe = f"kp{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    shaped = subprocess.run(
        ["tc", "-n", probe, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1gbit", "burst", "64kb",
         "latency", "50ms"], capture_output=True, text=True, check=False,
    )  # fmt: skip
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return f"the kernel cannot shape links: {shaped.stderr.strip()}" if shaped.returncode else ""


@contextlib.contextmanager
def hosts(num_hosts: int, *, rate_mbit: float) -> Iterator[Cluster]:
    """Make hosts with one shaped link each to a common bridge; removed on exit."""
    name = f"k{uuid.uuid4().hex[:5]}"
    cluster = Cluster(name=name, num_hosts=num_hosts, rate_mbit=rate_mbit)
    switch = f"{name}sw"  # a namespace for the bridge keeps the machine's own network untouched
    made = [switch, *(f"{name}h{host}" for host in range(num_hosts))]
    try:
        for namespace in made:
            _run("ip", "netns", "add", namespace)
            _run("ip", "-n", namespace, "link", "set", "lo", "up")
        _run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "br0", "up")
        for host in range(num_hosts):
            namespace = f"{name}h{host}"
            _run(
                "ip",
                "-n",
                switch,
                "link",
                "add",
                f"p{host}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            _run("ip", "-n", switch, "link", "set", f"p{host}", "master", "br0", "up")
            _run("ip", "-n", namespace, "addr", "add", f"{cluster.address(host)}/24", "dev", "eth0")
            _run("ip", "-n", namespace, "link", "set", "eth0", "up")
        cluster.set_rate(rate_mbit)
        yield cluster
    finally:
        for process in cluster.processes:
            Cluster._kill(process)
        for namespace in made:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
