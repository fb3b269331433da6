"""Work items of a CPU job come from what was measured, once each."""

import copy

import pytest

pytest.importorskip("torch")
from kareus.collect.cpu_timeline import BACKWARD_LANE, COMPUTE_STREAM, add_work_items

MAIN, WORKER = 100, 200


def op(name: str, ts: float, dur: float, tid: int = MAIN, cat: str = "cpu_op", **args: object) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def document() -> dict:
    shapes = {"Input Dims": [[8], [4], [], []], "Input type": ["float", "float", "", "Scalar"]}
    return {
        "traceEvents": [
            op("ProfilerStep#2", 0, 100, cat="user_annotation"),
            op("c10d::_allgather_base_", 2, 5, **shapes),
            op("aten::empty", 3, 1),
            op("gloo:all_gather", 4, 6, tid=WORKER, cat="user_annotation"),
            op("aten::linear", 12, 10),
            op("aten::t", 12.5, 0.5),
            op("aten::addmm", 13.5, 8),
            op("aten::add", 23, 2),
            op("autograd::engine::evaluate_function: AddmmBackward0", 30, 20),
            op("AddmmBackward0", 31, 18),
            op("aten::mm", 32, 16),
            op("c10d::allreduce_", 52, 2, **{"Input Dims": [[[6], [2]]], "Input type": ["TensorList"]}),
            op("gloo:all_reduce", 53, 9, tid=WORKER, cat="user_annotation"),
            op("autograd::engine::evaluate_function: AccumulateGrad", 55, 1),
            op("Optimizer.step#AdamW.step", 70, 20, cat="user_annotation"),
            op("aten::_fused_adamw_", 71, 10),
        ]
    }


def items(doc: dict) -> list[dict]:
    return sorted((e for e in doc["traceEvents"] if e["cat"] == "kernel"), key=lambda e: e["ts"])


def test_operators_that_did_the_work_become_items_with_their_measured_times() -> None:
    doc = document()
    assert add_work_items(doc, device_name="cpu (test)", world_size=2) == 6
    compute = [(e["name"], e["ts"], e["dur"]) for e in items(doc) if e["tid"] == COMPUTE_STREAM]
    assert compute == [
        ("aten::addmm [gemm]", 13.5, 8),
        ("aten::add [elementwise]", 23, 2),
        ("aten::mm [gemm]", 32, 16),
        ("aten::_fused_adamw_ [elementwise]", 71, 10),
    ]
    assert doc["deviceProperties"] == [{"id": 0, "name": "cpu (test)"}]


def test_collectives_carry_the_transfer_time_and_the_message() -> None:
    doc = document()
    add_work_items(doc, device_name="cpu", world_size=2)
    gather, reduce = (e for e in items(doc) if e["name"].startswith("gloo:"))
    assert (gather["ts"], gather["dur"], reduce["ts"], reduce["dur"]) == (4, 6, 53, 9)
    assert gather["args"]["Collective name"] == "_allgather_base"
    assert (gather["args"]["Out msg nelems"], gather["args"]["In msg nelems"]) == (8, 4)
    assert gather["args"]["dtype"] == "float"
    assert reduce["args"]["In msg nelems"] == 8
    assert gather["args"]["Process Group Ranks"] == "[0, 1]"


def test_launches_lie_where_the_call_was_and_backward_has_its_own_thread() -> None:
    doc = document()
    add_work_items(doc, device_name="cpu", world_size=2)
    launches = {e["args"]["correlation"]: e for e in doc["traceEvents"] if e["cat"] == "cuda_runtime"}
    by_name = {e["name"]: launches[e["args"]["correlation"]] for e in items(doc)}
    assert by_name["gloo:all_gather"]["ts"] == 2
    assert by_name["aten::addmm [gemm]"]["tid"] == MAIN
    assert by_name["aten::mm [gemm]"]["tid"] == MAIN + BACKWARD_LANE
    assert by_name["gloo:all_reduce"]["tid"] == MAIN + BACKWARD_LANE
    assert by_name["aten::_fused_adamw_ [elementwise]"]["tid"] == MAIN


def test_a_trace_with_gpu_work_or_without_operators_is_left_alone() -> None:
    doc = document()
    doc["traceEvents"].append(op("gemm", 1, 1, cat="kernel"))
    before = copy.deepcopy(doc)
    assert add_work_items(doc, device_name="cpu", world_size=2) == 0
    assert doc == before
    assert add_work_items({"traceEvents": []}, device_name="cpu", world_size=2) == 0
