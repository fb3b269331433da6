"""Recognises files that users mistake for Kineto traces, so that a refusal can say what they are."""

from __future__ import annotations

import re

# (pattern in the first bytes, what it is, what to do)
_SIGNS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"^PK\x03\x04"), "a zip archive", "unpack it and pass the .json in it"),
    (re.compile(rb"^SQLite format 3"), "an SQLite file (Nsight Systems?)", "record with torch.profiler"),
    (re.compile(rb"^.{100,257}ustar", re.DOTALL), "a tar archive", "unpack it and pass the .json in it"),
    (re.compile(rb"^\xfd7zXZ|^\x28\xb5\x2f\xfd|^BZh"), "compressed in a way not read here", "use gzip"),
    (
        re.compile(rb'"schema"\s*:\s*"[\d.]+-chakra'),
        "a Chakra execution trace, which holds no GPU times",
        "pass the Kineto trace recorded in the same run",
    ),
    (
        re.compile(rb'"schema"\s*:\s*"1\.\d+\.\d+".*"nodes"\s*:', re.DOTALL),
        "a PyTorch execution trace, which holds no GPU times",
        "pass the Kineto trace recorded in the same run",
    ),
    (
        re.compile(rb'"workload_graph"\s*:'),
        "a Chakra workload graph, which holds no GPU times",
        "pass the Kineto trace it was made from",
    ),
    (
        re.compile(rb'"rocprofiler-sdk-tool"'),
        "results of rocprofv3",
        "record with torch.profiler instead",
    ),
    (re.compile(rb'"schema"\s*:\s*"kareus\.'), "another document of Kareus", "pass a trace"),
    (re.compile(rb"^\s*$"), "empty", "record the trace again"),
)
_ELSE = ("not a Kineto trace", "export one with torch.profiler's export_chrome_trace")


def what_it_is(head: bytes) -> str:
    """Return "it is ...; do ..." for a file that is no Kineto trace, judged by its first bytes."""
    found, remedy = next(
        ((what, remedy) for pattern, what, remedy in _SIGNS if pattern.search(head[: 1 << 16])), _ELSE
    )
    return f"it is {found}; {remedy}"
