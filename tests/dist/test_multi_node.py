"""Hosts as network namespaces with shaped links: one plan on several hosts, and what happens when one fails.

The kernel may lack netem, so jitter is played by the job: each rank is late by up to 20 ms before each step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netns_hosts
import pytest

from kareus.trace.ranks import TraceSet

pytestmark = [pytest.mark.dist, pytest.mark.netns, pytest.mark.slow]
pytest.importorskip("torch")

HERE = Path(__file__).resolve().parent
RATE_MBIT = 1000.0
WRAPPERS = ("fsdp2", "ddp")


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    reason = netns_hosts.why_not()
    if reason:
        pytest.skip(reason)


class Run:
    """What a job on several hosts left behind."""

    def __init__(self, folder: Path, finished: list[netns_hosts.Finished], seconds: float) -> None:
        self.folder, self.finished, self.seconds = folder, finished, seconds

    def results(self, rank: int, restart: int = 0) -> list[dict[str, Any]]:
        path = self.folder / f"rank{rank}.{restart}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def part(self, index: int, ranks: int) -> list[dict[str, Any]]:
        """One part's results of all ranks; fails with what a rank printed where it is missing."""
        found = []
        for rank in range(ranks):
            results = self.results(rank)
            assert len(results) > index, self.finished[rank].output[-3000:]
            assert "error" not in results[index], results[index]["error"]
            found.append(results[index])
        return found


def run_job(
    folder: Path,
    num_hosts: int,
    parts: list[tuple[str, dict[str, Any]]],
    *,
    timeout_s: float,
    meanwhile: Callable[[netns_hosts.Cluster, Path], None] | None = None,
    group_timeout_s: float = 60.0,
    leave_notes: tuple[int, ...] = (),
    max_restarts: int = 0,
) -> Run:
    """Run parts of `node_job` on fresh hosts; `meanwhile` acts once rank 1 has left its note.

    With `leave_notes` only these ranks' notes are waited for, not the launchers:
    how long torchrun looks for a lost host is its own affair.
    """
    start = time.monotonic()
    environment = {
        "NODE_JOB_TIMEOUT_S": str(group_timeout_s),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])]),
        "PYTHONWARNINGS": "ignore",
        # The launchers' store lives through restarts: a restarted worker finds its peers' addresses of before
        # there (connection refused). So torch makes a store for each attempt.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with netns_hosts.hosts(num_hosts, rate_mbit=RATE_MBIT) as cluster:
        cluster.start(
            [str(HERE / "node_job.py"), str(folder), json.dumps(parts)],
            env=environment,
            host_env={host: {"NCCL_HOSTID": f"host{host}"} for host in range(num_hosts)},  # they share a name
            max_restarts=max_restarts,
        )
        if meanwhile is not None:
            note = folder / "stopped"
            while not note.exists() and time.monotonic() < start + timeout_s:
                assert all(p.poll() is None for p in cluster.processes), "the job ended before its fault"
                time.sleep(0.05)
            meanwhile(cluster, note)
        if leave_notes:
            files = [folder / f"rank{rank}.0.jsonl" for rank in leave_notes]
            while not all(f.exists() for f in files) and time.monotonic() < start + timeout_s:
                time.sleep(0.05)
            timeout_s = 0.0
        finished = cluster.wait(max(1.0, timeout_s - (time.monotonic() - start)))
    return Run(folder, finished, time.monotonic() - start)


def check_replay(results: list[dict[str, Any]], steps: int) -> None:
    """Losses and weights are stock's, the schedule was in force, all ranks issued the same."""
    for result in results:
        assert result["equal"], result
        assert result["reason"] == ""
        assert result["missed"] == 0
        assert result["arms"].count("scheduled") >= steps - 10
        assert result["issued"] == results[0]["issued"]
        scheduled = {h for a, h in zip(result["arms"], result["issued"], strict=True) if a == "scheduled"}
        assert len(scheduled) == 1
        assert not scheduled & set(result["issued"][:1])  # the first step ran as stock


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("two")
    parts: list[tuple[str, dict[str, Any]]] = [
        *(("replay", {"wrapper": w, "steps": 100}) for w in WRAPPERS),
        *(("wrong_schedule", {"wrapper": w}) for w in WRAPPERS),
        ("collect", {"wrapper": "fsdp2", "folders": [str(folder / "here"), str(folder / "there")]}),
    ]
    return run_job(folder, 2, parts, timeout_s=120)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("four")
    parts: list[tuple[str, dict[str, Any]]] = [
        *(("replay", {"wrapper": w, "steps": 100}) for w in WRAPPERS),
        ("wrong_schedule", {"wrapper": "fsdp2"}),
        ("other_world", {"wrapper": "fsdp2"}),
    ]
    return run_job(folder, 4, parts, timeout_s=180)


@pytest.mark.parametrize("part", [0, 1], ids=WRAPPERS)
def test_two_hosts_train_as_stock_and_follow_the_schedule(two: Run, part: int) -> None:
    check_replay(two.part(part, 2), 100)


@pytest.mark.parametrize("part", [0, 1], ids=WRAPPERS)
def test_four_hosts_train_as_stock_and_follow_the_schedule(four: Run, part: int) -> None:
    check_replay(four.part(part, 4), 100)


@pytest.mark.parametrize("part", [2, 3], ids=WRAPPERS)
def test_wrong_schedule_on_one_host_is_an_error_on_both(two: Run, part: int) -> None:
    for result in two.part(part, 2):
        assert "rank 1: " in result["message"]
        assert "num_ctas" in result["message"]
        assert result["seconds"] < 20


def test_wrong_schedule_on_one_of_four_hosts_is_named_everywhere(four: Run) -> None:
    messages = {result["message"] for result in four.part(2, 4)}
    assert len(messages) == 1
    assert "rank 3: " in messages.pop()


def test_schedule_of_another_world_size_trains_as_stock_and_says_so(four: Run) -> None:
    for result in four.part(3, 4):
        assert result["equal"]
        assert set(result["arms"]) == {"stock"}
        assert "schedule is for 8 ranks, the job has 4" in result["reason"]


def test_hosts_without_a_shared_folder_bring_their_traces_to_rank_0(two: Run) -> None:
    assert all(result["equal"] for result in two.part(4, 2))
    traces = TraceSet.open(two.folder / "here")
    assert traces.complete
    assert traces.manifest is not None
    assert [host.ranks for host in traces.manifest.hosts] == [(0,), (1,)]
    assert len({host.name for host in traces.manifest.hosts}) == 2
    assert traces.manifest is not None
    assert [rank for host in traces.manifest.hosts for rank in host.ranks] == [0, 1]


def test_clocks_5_s_apart_are_aligned_on_collective_ends(two: Run, tmp_path: Path) -> None:
    """Namespaces share one clock, so rank 1's file is moved by 5 s as its host's clock would have been."""
    import gzip

    aligned = TraceSet.open(two.folder / "here").alignment
    for rank, path in TraceSet.open(two.folder / "here").files.items():
        raw = path.read_bytes()
        document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        if rank == 1:
            document["baseTimeNanoseconds"] = document.get("baseTimeNanoseconds", 0) + 5_000_000_000
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(document))
    apart = TraceSet.open(tmp_path).alignment
    moved_ns = apart.offset_ns[1] - aligned.offset_ns[1]
    assert abs(moved_ns + 5_000_000_000) < 1_000
    assert len(apart.collectives) == len(aligned.collectives) > 0
    for before, after in zip(aligned.collectives, apart.collectives, strict=True):
        assert abs(before.transfer_ns - after.transfer_ns) < 1_000


def test_process_stopped_for_20_s_is_waited_for_and_the_collective_named(tmp_path: Path) -> None:
    def stop(cluster: netns_hosts.Cluster, note: Path) -> None:
        pid = int(note.read_text())
        os.kill(pid, signal.SIGSTOP)
        note.unlink()
        time.sleep(20)
        os.kill(pid, signal.SIGCONT)

    part = ("replay", {"wrapper": "fsdp2", "steps": 40, "stop_at": 25, "folder": str(tmp_path)})
    run = run_job(tmp_path, 2, [part], timeout_s=90, meanwhile=stop)
    results = run.part(0, 2)
    check_replay(results, 40)
    assert results[0]["seconds"] > 20
    assert any(message.startswith("has waited") for message in results[0]["messages"]), results[0]


def test_process_killed_ends_in_torch_s_error_at_once(tmp_path: Path) -> None:
    part = ("lost", {"wrapper": "fsdp2", "how": "killed", "folder": str(tmp_path)})
    run = run_job(tmp_path, 2, [part], timeout_s=90, group_timeout_s=20, leave_notes=(0,))
    (survivor,) = run.results(0)
    assert survivor["error_text"], survivor
    assert survivor["seconds"] < 20  # a closed connection is noticed before the group's timeout
    assert survivor["steps"] == 10
    assert survivor["arms"].count("scheduled") >= 6
    assert not survivor["active"]
    assert run.results(1) == []


def test_restart_after_a_killed_worker_attaches_again_and_trains_on_as_stock(tmp_path: Path) -> None:
    part = ("restarted", {"wrapper": "ddp", "folder": str(tmp_path)})
    run = run_job(tmp_path, 2, [part], timeout_s=120, group_timeout_s=20, max_restarts=3)
    output = "\n".join(f.output[-3000:] for f in run.finished)
    assert [f.returncode for f in run.finished] == [0, 0], output
    for rank in range(2):
        (result,) = (r for restart in range(1, 4) for r in run.results(rank, restart) if "error" not in r)
        assert result["first"] == 8
        assert result["equal"]
        assert result["reason"] == ""
        assert result["arms"].count("scheduled") >= 16


def test_host_cut_off_mid_step_ends_in_torch_s_error_in_its_own_time(tmp_path: Path) -> None:
    def cut(cluster: netns_hosts.Cluster, note: Path) -> None:
        cluster.cut(1)
        note.unlink()

    part = ("lost", {"wrapper": "ddp", "how": "cut", "folder": str(tmp_path)})
    run = run_job(tmp_path, 2, [part], timeout_s=90, group_timeout_s=10, meanwhile=cut, leave_notes=(0, 1))
    for rank in range(2):
        (result,) = run.results(rank)
        assert result["error_text"], result
        assert result["seconds"] < 10 + 10  # the group's timeout, and what a busy machine adds
        assert not result["active"]
