"""A good execution trace mutated many ways: facts of its own run, nothing, or a refusal; never another op's.

`KAREUS_MUTATIONS=10000 pytest tests/property/test_execution_mutations.py` runs the long form; each mutation
is made from its number alone, so a failing one can be repeated. The Kineto file beside it stays good, so what
each collective really was is known.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_trace_mutations import VALUES, break_text, cut_text

from kareus.errors import InputError
from kareus.trace import TraceSet, graphs
from kareus.trace.execution import read_execution_trace
from kareus.trace.types import CollectiveKind, CollectiveOp, ExecutionLink

COUNT = int(os.environ.get("KAREUS_MUTATIONS", "300"))
BATCHES = 10
REAL = Path(os.environ.get("KAREUS_SHARED", Path(__file__).parents[3] / "shared")) / "data/traces"
STEPS, FIRST_SEQUENCE, FIRST_ID = 3, 40, 1000
JOINED_BY = ("record function id", "external id", "order of names")
# (what torch calls it, its kernel, elements), in a step's order
COLLECTIVES = (
    ("_allgather_base", "ncclDevKernel_AllGather_RING_LL", 3 << 18),
    ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1 << 20),
    ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1 << 16),
)
OPERATORS = ("aten::linear", "aten::gelu", "record_param_comms", "MmBackward0", "record_param_comms",
             "aten::sum", "AddBackward0", "record_param_comms", "aten::_foreach_add_")  # fmt: skip
Node = dict[str, Any]
Content = dict[str, Any]


def kineto(joined_by: str) -> Content:
    """One rank of two; kernels carry no arguments, operators the id by which `joined_by` finds them."""
    events: list[dict[str, Any]] = []

    def add(category: str, name: str, pid: int, lane: int, at: float, took: float, **args: Any) -> None:
        events.append({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": lane, "ts": at, "dur": took,
                       "args": args})  # fmt: skip

    number, correlation = FIRST_ID, 0
    for step in range(STEPS):
        kinds = iter(COLLECTIVES)
        for place, operator in enumerate(OPERATORS):
            at = 1000.0 * (step + 1) + 100 * place
            thread = 100 if place < 3 or place == len(OPERATORS) - 1 else 200
            ids = {
                "record function id": {"Record function id": number},
                "external id": {"External id": number},
            }
            add("cpu_op", operator, 9, thread, at, 50, **ids.get(joined_by, {}))
            correlation += 1
            collective = operator == "record_param_comms"
            name = next(kinds)[1] if collective else f"gemm_{place}"
            add("cuda_runtime", "cudaLaunchKernel", 9, thread, at + 5, 2, correlation=correlation)
            add("kernel", name, 0, 17 if collective else 7, at + 20, 70, correlation=correlation, device=0,
                stream=17 if collective else 7)  # fmt: skip
            number += 1
    info = {"backend": "nccl", "rank": 0, "world_size": 2}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def execution(structured: bool) -> Content:
    """The execution trace of the same run, in the schema of torch 2.2 (flat) or of 2.5 and later."""
    nodes: list[Node] = []
    number, sequence = FIRST_ID, FIRST_SEQUENCE
    for _ in range(STEPS):
        kinds = iter(COLLECTIVES)
        for place, operator in enumerate(OPERATORS):
            thread = 1 if place < 3 or place == len(OPERATORS) - 1 else 2
            values: list[Any] = []
            types = ["GenericList[Tensor(c10::BFloat16)]"]
            tensor: list[Any] = []
            if operator == "record_param_comms":
                name, _, elements = next(kinds)
                tensor = [[3, 4, 0, elements, 2, "cuda:0"]]
                group: Any = ["7", "mesh_dp"] if structured else 94000
                values = [tensor, [sequence, False] if structured else sequence, group, 0, name, [], []]
                sequence += 1
            node: Node = {"id": number, "name": operator}
            ids = {"rf_id": number, "tid": thread}
            if structured:
                node["inputs"] = {"values": values, "shapes": [], "types": types}
                node["outputs"] = {"values": [tensor], "shapes": [], "types": types}
                facts = {**ids, "pg_size": 2, "global_rank_start": 0, "global_rank_stride": 1}
                node["attrs"] = [
                    {"name": key, "type": "uint64", "value": value} for key, value in facts.items()
                ]
            else:
                node |= {
                    **ids,
                    "inputs": values,
                    "outputs": [tensor],
                    "input_types": types,
                    "output_types": types,
                }
            nodes.append(node)
            number += 1
    schema = "1.1.1-chakra.0.0.4" if structured else "1.0.1"
    return {"schema": schema, "pid": 9, "time": "", "start_ts": 1, "nodes": nodes}


def drop(rng: random.Random, content: Content) -> None:
    """Take out a stretch of operators, or single ones."""
    nodes = content["nodes"]
    if rng.random() < 0.5:
        first = rng.randrange(len(nodes))
        del nodes[first : first + rng.choice((1, 2, 3, len(OPERATORS), 100))]
    else:
        del nodes[:: rng.choice((2, 3, 7))]


def cut_ends(rng: random.Random, content: Content) -> None:
    """Begin later, end earlier: a recording of another window."""
    nodes = sorted(content["nodes"], key=lambda node: int(node["id"]))
    first, last = sorted(rng.randrange(len(nodes) + 1) for _ in range(2))
    content["nodes"] = nodes[first:last]


def repeat(rng: random.Random, content: Content) -> None:
    """Write a stretch twice, with the same ids or with later ones."""
    nodes = content["nodes"]
    first = rng.randrange(len(nodes))
    again = json.loads(json.dumps(nodes[first : first + rng.choice((1, 3, len(OPERATORS)))]))
    later = rng.choice((0, 0, 1, 100))
    for node in again:
        shift_id(node, later)
    nodes[rng.randrange(len(nodes)) : 0] = again


def shuffle(rng: random.Random, content: Content) -> None:
    """Another order in the file, which means nothing."""
    rng.shuffle(content["nodes"])


def shift(rng: random.Random, content: Content) -> None:
    """Other ids from some operator on, as of another run."""
    nodes, by = content["nodes"], rng.choice((-3, -1, 1, 2, 3, 10**6))  # by a whole step nothing could tell
    for node in nodes[rng.choice((0, rng.randrange(len(nodes)))) :]:
        shift_id(node, by)


def swap(rng: random.Random, content: Content) -> None:
    """Two collectives give each other's facts."""
    found = [node for node in content["nodes"] if node["name"] == "record_param_comms"]
    if len(found) > 1:
        one, other = rng.sample(found, 2)
        for key in ("inputs", "outputs"):
            one[key], other[key] = other.get(key), one.get(key)


def rename(rng: random.Random, content: Content) -> None:
    """Other operators: a few, all of a kind, or all."""
    names, odd = {node["name"] for node in content["nodes"]}, rng.random()
    chosen = rng.choice(sorted(names))
    for node in content["nodes"]:
        if odd < 0.3 or (odd < 0.7 and node["name"] == chosen) or rng.random() < 0.1:
            node["name"] = rng.choice(("aten::mul", "record_param_comms", "aten::linear", ""))


def rethread(rng: random.Random, content: Content) -> None:
    """All operators on one thread, or some on another."""
    share = rng.choice((1.0, 0.1))
    for node in content["nodes"]:
        if rng.random() < share:
            set_fact(node, "tid", 1)


def other_process(rng: random.Random, content: Content) -> None:
    """Recorded by another process, or by nobody knows which."""
    content["pid"] = rng.choice((10, -1, 2**40))


def nonsense(rng: random.Random, content: Content) -> None:
    """Any value anywhere: in the header, a node, its attributes, its inputs."""
    for _ in range(rng.choice((1, 3, 30))):
        place: Any = content if rng.random() < 0.1 else rng.choice(content["nodes"])
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(place[key], dict | list) and place[key] and key != "nodes" and rng.random() < 0.8:
                place = place[key]
                continue
            if key == "nodes":
                break
            if rng.random() < 0.2 and isinstance(place, dict):
                del place[key]
            else:
                place[key] = json.loads(json.dumps(rng.choice((*VALUES, nested(rng.choice((10, 400, 800)))))))
            break


def nested(depth: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def shift_id(node: Node, by: int) -> None:
    """Move a node's id and record function id."""
    attributes = {a.get("name"): a.get("value") for a in node.get("attrs", ()) if isinstance(a, dict)}
    number = node.get("rf_id", attributes.get("rf_id"))
    if isinstance(number, int):
        set_fact(node, "rf_id", number + by)


def set_fact(node: Node, name: str, value: int) -> None:
    """Set a flat field or an attribute, whichever the schema has."""
    if name in node:
        node[name] = value
    for attribute in node.get("attrs", ()):
        if isinstance(attribute, dict) and attribute.get("name") == name:
            attribute["value"] = value


Change = Callable[[random.Random, Content], None]
# Which operators there are and how they are numbered: facts that remain are those of this run.
ON_STRUCTURE: tuple[Change, ...] = (cut_ends, shuffle, shift, rename, other_process)
# The same where ids tell; in the order of names a hole near the end looks like an early end.
ON_IDS: tuple[Change, ...] = (*ON_STRUCTURE, drop, repeat, rethread)


def mutated(rng: random.Random, content: Content, joined_by: str) -> tuple[bytes, bool]:
    """Return the file and whether what it says of collectives is still true of some collective of the run."""
    kept_facts = rng.random() < 0.5
    if kept_facts:
        # Where one of the two swapped is dropped afterwards, nothing could tell: swap comes alone.
        changes = [swap]
        if rng.random() < 0.9:
            known = ON_STRUCTURE if joined_by == "order of names" else ON_IDS
            changes = rng.sample(known, rng.choice((1, 1, 2, 3)))
        for change in changes:
            if content["nodes"]:
                change(rng, content)
        return json.dumps(content).encode(), True
    if rng.random() < 0.3:
        rng.choice(ON_IDS)(rng, content)
    if content["nodes"] and rng.random() < 0.7:
        nonsense(rng, content)
    text = json.dumps(content).encode()
    if rng.random() < 0.4:
        text = rng.choice((cut_text, break_text))(rng, text)
    if rng.random() < 0.2:
        text = gzip.compress(text, 1)
        if rng.random() < 0.5:
            text = rng.choice((cut_text, break_text))(rng, text)
    return text, False


def check(collectives: tuple[CollectiveOp, ...], link: ExecutionLink, kept_facts: bool, what: str) -> None:
    """No collective has facts of another, or impossible ones."""
    assert len(collectives) == STEPS * len(COLLECTIVES), what
    for number, found in enumerate(collectives):
        assert found.sequence in (-1, FIRST_SEQUENCE + number) or not kept_facts, f"{what}: {found}"
        true_bytes = 2 * COLLECTIVES[number % len(COLLECTIVES)][2]
        assert found.num_bytes in (0, true_bytes) or not kept_facts, f"{what}: {found}"
        assert 0 <= found.num_bytes < 2**63, what
        assert 0 <= found.group_size <= 2, f"{what}: {found}"
        assert not found.group or (0 in found.group and len(found.group) == found.group_size), what
    for group in {(c.group_name, c.group_description) for c in collectives}:
        mine = [c for c in collectives if (c.group_name, c.group_description) == group and c.sequence >= 0]
        known = [c.sequence for c in mine if c.kind not in (CollectiveKind.OTHER, CollectiveKind.SEND_RECV)]
        assert known == sorted(known), what
    assert 0 <= link.operators_joined <= link.operators, what
    assert 0 <= link.collectives_named <= len(collectives), what


def outcome(folder: Path) -> tuple[tuple[CollectiveOp, ...], ExecutionLink] | str:
    """What the job's collectives are with this execution trace, or why it is refused."""
    try:
        trace = TraceSet.open(folder / "rank0.json", execution=[folder / "et_0.json"]).load(0)
    except InputError as refusal:
        return str(refusal)
    assert len(graphs(trace)) > 0
    assert trace.execution is not None
    return tuple(c for c in trace.collectives), trace.execution


@pytest.mark.parametrize("joined_by", JOINED_BY)
@pytest.mark.parametrize("structured", [True, False])
def test_the_good_one_names_every_collective(tmp_path: Path, joined_by: str, structured: bool) -> None:
    (tmp_path / "rank0.json").write_text(json.dumps(kineto(joined_by)))
    (tmp_path / "et_0.json").write_text(json.dumps(execution(structured)))
    found = outcome(tmp_path)
    assert not isinstance(found, str)
    collectives, link = found
    assert (link.joined_by, link.operators_joined) == (joined_by, STEPS * len(OPERATORS))
    assert [c.sequence for c in collectives] == list(range(FIRST_SEQUENCE, FIRST_SEQUENCE + 9))
    assert [c.num_bytes for c in collectives] == [2 * elements for _, _, elements in COLLECTIVES] * STEPS


@pytest.mark.parametrize("batch", range(BATCHES))
def test_mutations_give_true_facts_or_a_refusal(tmp_path: Path, batch: int) -> None:
    for number in range(batch, COUNT, BATCHES):
        rng = random.Random(number)
        joined_by = rng.choice(JOINED_BY)
        (tmp_path / "rank0.json").write_text(json.dumps(kineto(joined_by)))
        text, kept_facts = mutated(rng, execution(rng.random() < 0.5), joined_by)
        (tmp_path / "et_0.json").write_bytes(text)
        found = outcome(tmp_path)
        if isinstance(found, str):
            assert "et_0.json" in found, f"mutation {number}: {found}"
            assert "; pass " in found, f"mutation {number}: {found}"
        else:
            check(*found, kept_facts, f"mutation {number}")


@pytest.mark.parametrize("batch", range(3))
def test_published_execution_traces_mutated_as_text(tmp_path: Path, batch: int) -> None:
    """Real files of several schemas: damaged text is read or refused, whatever stands there."""
    sources = sorted([*REAL.glob("et/*_et_*.json.gz"), *REAL.glob("awkward/*_et.json.gz")])
    if not sources:
        pytest.skip(f"public execution traces not at {REAL}; set KAREUS_SHARED")
    texts = [gzip.decompress(path.read_bytes()) for path in sources]
    texts = [text if len(text) < 1 << 20 else text[: 1 << 18] for text in texts]
    path = tmp_path / "et_0.json"
    for number in range(batch, max(3, COUNT // 10), 3):
        rng = random.Random(number)
        path.write_bytes(rng.choice((cut_text, break_text))(rng, rng.choice(texts)))
        try:
            read = read_execution_trace(path)
        except InputError as refusal:
            refused = str(refusal)
        else:
            refused = "et_0.json"
            assert len(read.record_id) == len(read.thread) == len(read.names)
            assert all(args.in_elements >= 0 for args in read.comm.values())
        assert "et_0.json" in refused, f"mutation {number}: {refused}"
