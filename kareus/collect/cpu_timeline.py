"""Work items for a job without a GPU: the operators and collectives its CPU ran.

The profiler of a CPU job records operators and gloo's transfers, but no work items on streams, which is
what everything downstream reads. Here every operator that did the work of its callers becomes an item on
one compute lane, and every gloo transfer an item on a lane of its worker thread, with the times that were
measured. The file says so in its header (`"kareus": {"work_items": "cpu"}`).

Backward runs on the caller's thread on CPU; its events are moved to a lane of their own, because that is
how readers tell the passes apart.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from typing import Any

COMPUTE_STREAM = 7
COMM_STREAM = 20
BACKWARD_LANE = 1_000_000_000  # added to a thread id
NO_WORK = re.compile(
    r"^(aten::(as_strided|t|transpose|permute|view|_unsafe_view|reshape|expand|select|slice|narrow|split\w*|chunk|"
    r"unbind|squeeze|unsqueeze|detach\w*|empty\w*|new_empty\w*|resolve_\w+|set_|alias|result_type|resize_|"
    r"lift_fresh|is_\w+|item|_local_scalar_dense|zeros|ones|to|_to_copy|numpy_T)|detach)$"
)
GEMM = re.compile(r"^aten::(addmm|addmv|addbmm|baddbmm|mm|mv|bmm)_?$")
ATTENTION = re.compile(r"attention")
PLAIN = re.compile(r"^(aten|fsdp|prims)::")
ENVELOPE = re.compile(r"^(autograd::|torch::autograd|c10d::|Optimizer|\w+Backward\d*$)")
COLLECTIVES = {
    "c10d::_allgather_base_": ("_allgather_base", "gloo:all_gather"),
    "c10d::_reduce_scatter_base_": ("_reduce_scatter_base", ("gloo:reduce_scatter", "gloo:all_reduce")),
    "c10d::allreduce_": ("allreduce", "gloo:all_reduce"),
}
# Operators whose inner calls are details of theirs, whatever share of the time those take.
ATOMIC = re.compile(r"attention|_fused|native_|_backward(_data)?$|softmax|nll_loss|_norm\b|convolution")
MINOR = re.compile(r"^(aten::(copy_|fill_|zero_|clone|contiguous)|fsdp::)")

Event = dict[str, Any]
Item = tuple[Event, str, int, Event]  # the measured event, its name as a work item, stream, arguments


def has_gpu_work(events: list[Event]) -> bool:
    """Return whether any event is a GPU work item."""
    return any(event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") for event in events)


def add_work_items(document: dict[str, Any], *, device_name: str, world_size: int) -> int:
    """Add work items to a CPU job's Kineto document in place.

    Args:
        document: as the profiler wrote it. device_name: for the header. world_size: for group sizes.

    Returns:
        How many items were added; 0 where the document has GPU work of its own.
    """
    events: list[Event] = document["traceEvents"]
    if has_gpu_work(events):
        return 0
    main = _main_thread(events)
    if main is None:
        return 0
    _split_backward(events, main)
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op" and _lane(e) == main]
    items: list[Item] = [(e, _item_name(e["name"]), COMPUTE_STREAM, {}) for e in _working(spans)]
    items += _transfers(events, main, world_size)
    items.sort(key=lambda item: item[0]["ts"])
    for number, (event, name, stream, args) in enumerate(items, start=1):
        launch = args.pop("launch", event)
        events.append(
            _event(
                "cuda_runtime",
                "cpu operator",
                launch["ts"],
                0.0,
                launch["pid"],
                launch["tid"],
                {"correlation": number},
            )
        )
        shown = {"device": 0, "stream": stream, "correlation": number, **args}
        events.append(_event("kernel", name, event["ts"], event["dur"], 0, stream, shown))
    document["deviceProperties"] = [{"id": 0, "name": device_name}]
    document["kareus"] = {"work_items": "cpu"}
    return len(items)


def _event(cat: str, name: str, ts: float, dur: float, pid: Any, tid: Any, args: Event) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def _lane(event: Event) -> Any:
    tid = event.get("tid")
    return tid - BACKWARD_LANE if isinstance(tid, int) and tid >= BACKWARD_LANE else tid


def _main_thread(events: list[Event]) -> Any:
    """The thread that runs training: the one with the profiler's step marks, else with most operators."""
    for event in events:
        if event.get("cat") == "user_annotation" and str(event.get("name", "")).startswith("ProfilerStep#"):
            return event["tid"]
    counts: dict[Any, int] = {}
    for event in events:
        if event.get("cat") == "cpu_op":
            counts[event["tid"]] = counts.get(event["tid"], 0) + 1
    return max(counts, key=lambda tid: counts[tid]) if counts else None


def _split_backward(events: list[Event], main: Any) -> None:
    """Move what ran between the first and last autograd node of each backward pass to its own lane."""
    nodes = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("ph") == "X" and e.get("tid") == main and _is_backward(e)
    )
    ends = sorted(
        e["ts"]
        for e in events
        if e.get("ph") == "X"
        and e.get("tid") == main
        and str(e.get("name", "")).startswith(("Optimizer.step", "ProfilerStep#"))
    )
    passes: list[list[float]] = []
    for start, end in nodes:
        # One pass until a step of the optimizer or the profiler begins.
        if passes and bisect_left(ends, start) == bisect_left(ends, passes[-1][0]):
            passes[-1][1] = max(passes[-1][1], end)
        else:
            passes.append([start, end])
    for event in events:
        if event.get("ph") != "X" or event.get("tid") != main:
            continue
        start, end = event["ts"], event["ts"] + event["dur"]
        if any(first <= start and end <= last for first, last in passes):
            event["tid"] = main + BACKWARD_LANE


def _is_backward(event: Event) -> bool:
    name = str(event.get("name", ""))
    return name.startswith(
        ("autograd::engine", "FSDP::root_post_backward", "FSDP::pre_backward", "kareus::backward")
    )


def _working(spans: list[Event]) -> list[Event]:
    """Operators that did the work themselves, found by their names, so that equal steps give equal items."""
    spans.sort(key=lambda e: (e["ts"], -e["dur"]))
    children: dict[int, list[int]] = {}
    roots: list[int] = []
    stack: list[int] = []
    for index, span in enumerate(spans):
        while stack and spans[stack[-1]]["ts"] + spans[stack[-1]]["dur"] < span["ts"] + span["dur"]:
            stack.pop()
        (children.setdefault(stack[-1], []) if stack else roots).append(index)
        stack.append(index)
    chosen: list[Event] = []
    pending = list(reversed(roots))
    while pending:
        index = pending.pop()
        span, inner = spans[index], children.get(index, [])
        name = span["name"]
        if name in COLLECTIVES:
            continue
        if not PLAIN.match(name) or ENVELOPE.match(name) or NO_WORK.match(name):
            pending.extend(reversed(inner))
        elif GEMM.match(name) or ATOMIC.search(name) or not _calls_work(spans, inner):
            chosen.append(span)
        else:
            pending.extend(reversed(inner))
    return chosen


def _calls_work(spans: list[Event], inner: list[int]) -> bool:
    """Return whether an operator's callees do its work: any that is more than a view or a copy."""
    names = [spans[child]["name"] for child in inner]
    return any(not NO_WORK.match(name) and not MINOR.match(name) for name in names)


def _item_name(name: str) -> str:
    """The operator's name, with what kind of work it is where the name alone does not say."""
    if GEMM.match(name):
        return f"{name} [gemm]"
    if ATTENTION.search(name):
        return f"{name} [attention]"
    return f"{name} [elementwise]" if name.startswith("aten::") else name


def _transfers(events: list[Event], main: Any, world_size: int) -> list[Item]:
    """Pair every collective call with gloo's transfer of it, in issue order."""
    calls = sorted(
        (e for e in events if e.get("ph") == "X" and e.get("name") in COLLECTIVES and _lane(e) == main),
        key=lambda e: e["ts"],
    )
    gloo = sorted(
        (e for e in events if e.get("ph") == "X" and str(e.get("name", "")).startswith("gloo:")),
        key=lambda e: e["ts"],
    )
    lanes = {tid: index for index, tid in enumerate(sorted({e["tid"] for e in gloo}, key=str))}
    used: set[int] = set()
    found = []
    for call in calls:
        collective, accepted = COLLECTIVES[call["name"]]
        names = (accepted,) if isinstance(accepted, str) else accepted
        for index, transfer in enumerate(gloo):
            if index in used or transfer["name"] not in names or transfer["ts"] < call["ts"]:
                continue
            used.add(index)
            args = {
                "Collective name": collective,
                "Group size": world_size,
                "Process Group Ranks": str(list(range(world_size))),
                "Process Group Name": "0",
                "launch": call,
                **_message(call, collective),
            }
            found.append((transfer, str(transfer["name"]), COMM_STREAM + lanes[transfer["tid"]], args))
            break
    return found


def _message(call: Event, collective: str) -> Event:
    """Elements and dtype of a collective call, from the shapes the profiler recorded."""
    args = call.get("args", {})
    dims, types = args.get("Input Dims") or [], args.get("Input type") or []
    sizes = [_numel(dim) for dim in dims]
    kind = next((str(text) for text in types if text and text not in ("Scalar", "ScalarList")), "")
    if not sizes or not sizes[0]:
        return {}
    if collective == "allreduce":
        return {"In msg nelems": sizes[0], "Out msg nelems": sizes[0], "dtype": _dtype(kind) or "float"}
    return {
        "Out msg nelems": sizes[0],
        "In msg nelems": sizes[1] if len(sizes) > 1 else 0,
        "dtype": _dtype(kind),
    }


def _numel(dim: Any) -> int:
    """Elements of a shape; of a list of shapes, their sum."""
    if not isinstance(dim, list) or not dim:
        return 0
    if all(isinstance(size, int) for size in dim):
        total = 1
        for size in dim:
            total *= size
        return total
    return sum(_numel(inner) for inner in dim)


def _dtype(text: str) -> str:
    """A dtype the trace reader knows out of the profiler's input type."""
    names = {"float": "float", "double": "double", "c10::Half": "half", "c10::BFloat16": "bfloat16"}
    return names.get(text, "")
