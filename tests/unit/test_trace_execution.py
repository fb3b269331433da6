from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trace_samples import ddp_steps, document, mark, write

from kareus.cli.main import main
from kareus.errors import InputError
from kareus.trace import TraceSet

STARTS = (1035.0, 2035.0, 3035.0)  # of the operators that launch the sample's all-reduces
Node = dict[str, Any]


def old_kineto() -> list[dict[str, Any]]:
    """Three DDP steps whose all-reduces carry no arguments, with the operators that launched them."""
    events = ddp_steps()
    for event in events:
        if "Collective name" in event["args"]:
            event["args"] = {k: v for k, v in event["args"].items() if k[0].islower()}
    return [*events, *(mark("record_param_comms", at, 8, 200, cat="cpu_op") for at in STARTS)]


def node(number: int, sequence: int, *, name: str = "record_param_comms") -> Node:
    tensor = [[3, 4, 0, 1 << 20, 2, "cuda:0"]]
    values = [tensor, [sequence, False], ["7", "mesh_dp"], 0, "allreduce", [], [], 0, 1, 2]
    return {
        "id": number,
        "name": name,
        "inputs": {"values": values, "shapes": [], "types": ["GenericList[Tensor(c10::BFloat16)]"]},
        "outputs": {"values": [tensor], "shapes": [], "types": ["GenericList[Tensor(c10::BFloat16)]"]},
        "attrs": [
            {"name": "rf_id", "type": "uint64", "value": number},
            {"name": "tid", "type": "uint64", "value": 2},
            {"name": "pg_size", "type": "uint64", "value": 2},
            {"name": "global_rank_start", "type": "uint64", "value": 0},
            {"name": "global_rank_stride", "type": "uint64", "value": 1},
        ],
    }


def execution(nodes: list[Node], pid: int = 9) -> Node:
    return {"schema": "1.1.1-chakra.0.0.4", "pid": pid, "time": "", "start_ts": 1, "nodes": nodes}


def job(folder: Path, nodes: list[Node], key: str = "Record function id", pid: int = 9) -> TraceSet:
    events = old_kineto()
    found = [event for event in events if event["name"] == "record_param_comms"]
    for number, event in enumerate(found, 11):
        event["args"] = {key: number}
    write(folder / "rank0.json", document(events))
    write(folder / "et_0.json", execution(nodes, pid))
    return TraceSet.open(folder)


@pytest.mark.parametrize(
    ("key", "how"),
    [
        ("Record function id", "record function id"),
        ("External id", "external id"),
        ("nothing", "order of names"),
    ],
)
def test_collectives_get_what_kineto_lacks(tmp_path, key: str, how: str) -> None:
    backward = "autograd::engine::evaluate_function: MmBackward0"
    # each step's backward operator begins before its all-reduce
    nodes = [n for i in range(3) for n in (node(100 + i, 0, name=backward), node(11 + i, 40 + i))]
    if key == "nothing":
        for number, one in enumerate(nodes, 50):
            one["attrs"][0]["value"] = number
    trace = job(tmp_path, nodes, key).load(0)
    assert trace.execution is not None
    assert (trace.execution.joined_by, trace.execution.collectives_named) == (how, 3)
    assert [c.sequence for c in trace.collectives] == [40, 41, 42]
    first = trace.collectives[0]
    assert (first.group, first.group_size, first.group_name) == ((0, 1), 2, "7")
    assert (first.group_description, first.num_bytes, first.dtype) == ("mesh_dp", 2 << 20, "bf16")


def test_sequence_numbers_are_left_open_where_several_steps_fit(tmp_path) -> None:
    backward = "autograd::engine::evaluate_function: MmBackward0"
    trace = job(tmp_path, [node(50, 0, name=backward), node(51, 40)], "nothing").load(0)
    assert trace.execution is not None
    assert [(c.group_size, c.sequence) for c in trace.collectives] == [(2, -1), (0, -1), (0, -1)]


def test_another_process_is_a_warning_beside_and_an_error_where_asked_for(tmp_path) -> None:
    traces = job(tmp_path, [node(11, 40)], pid=77)
    assert traces.load(0).execution is None
    assert [w.code for w in traces.warnings if "process 77" in w.text] == ["execution-trace"]
    asked = TraceSet.open(tmp_path / "rank0.json", execution=[tmp_path / "et_0.json"])
    with pytest.raises(
        InputError, match=r"et_0.json: execution trace of process 77.*process 9; pass the one"
    ):
        asked.load(0)


def test_names_that_do_not_agree_are_refused(tmp_path) -> None:
    job(tmp_path, [node(11 + i, 40, name="aten::mul") for i in range(3)])
    asked = TraceSet.open(tmp_path / "rank0.json", execution=[tmp_path / "et_0.json"])
    with pytest.raises(InputError, match="none of which is found"):
        asked.load(0)


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "1.1.1-chakra.0.0.4", "pid": 9, "nodes": [{"name'])
def test_what_is_no_execution_trace_is_refused(tmp_path, text: str) -> None:
    job(tmp_path, [])
    (tmp_path / "et_0.json").write_text(text)
    asked = TraceSet.open(tmp_path / "rank0.json", execution=[tmp_path / "et_0.json"])
    with pytest.raises(InputError, match=r"et_0.json: expected an execution trace"):
        asked.load(0)


def test_each_rank_needs_one(tmp_path) -> None:
    job(tmp_path, [])
    with pytest.raises(InputError, match="2 execution traces for 1 ranks"):
        TraceSet.open(tmp_path, execution=[tmp_path / "et_0.json", tmp_path / "et_1.json"])


def test_inspect_shows_what_it_brought(tmp_path, capsys) -> None:
    job(tmp_path, [node(11 + i, 40 + i) for i in range(3)])
    command = ["inspect", str(tmp_path), "--rank", "0", "--execution-trace", str(tmp_path / "et_0.json")]
    assert main([*command, "--json"]) == 0
    rank = json.loads(capsys.readouterr().out)["ranks"][0]
    assert rank["execution_trace"]["collectives_named"] == 3
    row = rank["collectives"][0]
    assert (row["group"], row["group_size"], row["sequence"]) == ("7", 2, 42)
    assert main(command) == 0
    assert "7 (2)" in capsys.readouterr().out


def test_impossible_numbers_do_no_harm(tmp_path) -> None:
    """A number beyond 64 bits: an operator without a usable id is left out, a size is cut to what fits."""
    odd, huge = node(10**30, 40), node(12, 2**70)
    huge["inputs"]["values"][0] = [[3, 4, 0, 10**30, 2, "cuda:0"]]
    trace = job(tmp_path, [odd, huge]).load(0)
    assert trace.execution is not None
    assert (trace.execution.operators, trace.execution.collectives_named) == (1, 1)
    second = trace.collectives[1]
    assert second.num_bytes >= 0
    assert second.group_size == 2
    assert [c.group_size for c in trace.collectives] == [0, 2, 0]
