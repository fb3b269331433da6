"""Recognises files that users mistake for Kineto traces, so that a refusal can say what they are."""

from __future__ import annotations

import re

_COMPRESSED = (
    (rb"\x28\xb5\x2f\xfd", "zstd"), (rb"\xfd7zXZ", "xz"), (rb"BZh", "bzip2"), (rb"7z\xbc\xaf", "7z"),
    (rb"\x04\x22\x4d\x18", "lz4"), (rb"\x78[\x01\x5e\x9c\xda]", "zlib"), (rb"\xff\x06\x00\x00sNaP", "snappy"),
)  # fmt: skip
# A packet (field 1, its length), and in it a field that a first packet begins with; no text looks like that.
_PERFETTO = (
    rb"^\n(?=.{0,32}[\x00-\x08\x0e-\x1f\x80-\xff])[\x01-\xff]{1,4}"
    rb"[\x08\x1a\x2a\x32\x40\x50\x52\x5a\x62\xb0\xba\xda]"
)
# (pattern in the first bytes, what it is, what to do)
_SIGNS: tuple[tuple[re.Pattern[bytes], str, str], ...] = (
    (re.compile(rb"^PK\x03\x04"), "a zip archive", "unpack it and pass the .json in it"),
    (re.compile(rb"^SQLite format 3"), "an SQLite file (Nsight Systems?)", "record with torch.profiler"),
    (re.compile(rb"^.{100,257}ustar", re.DOTALL), "a tar archive", "unpack it and pass the .json in it"),
    (re.compile(rb"^\x1f\x8b"), "compressed twice", "unpack it once with gunzip"),
    *(
        (re.compile(rb"^" + magic), f"compressed with {name}, which is not read here", "unpack it, or use gzip")
        for magic, name in _COMPRESSED
    ),
    (
        re.compile(rb"^(?:\xff\xfe|\xfe\xff)|^[{\[]\x00|^\x00+[{\[]"),
        "text in UTF-16 or UTF-32",
        "convert it with `iconv -f UTF-16 -t UTF-8` (or UTF-32)",
    ),
    # GlobalMetadata (schema, pid, time as attributes; or the version as a text) behind its length.
    (
        re.compile(rb"^.{1,2}(?:\x12.\n.(?:schema|pid)|\n.\d+\.\d+\.\d+)", re.DOTALL),
        "a Chakra graph as protobuf (.et), which holds no GPU kernels with times and streams",
        "pass the Kineto trace (.json) it was made from",
    ),
    (
        re.compile(_PERFETTO, re.DOTALL),
        "a protobuf file (a Perfetto trace, .pftrace?)",
        "export again with export_chrome_trace to a name that ends in .json or .json.gz",
    ),
    (re.compile(rb"^PAR1"), "a Parquet file", "pass the Kineto trace (.json)"),
    (re.compile(rb"^\x80[\x02-\x05]"), "a pickle", "pass the Kineto trace (.json)"),
    (re.compile(rb"^version https://git-lfs"), "a pointer of Git LFS", "fetch the file itself: `git lfs pull`"),
    (re.compile(rb"^\s*<(?:!doctype|html|\?xml)", re.IGNORECASE), "a web page or XML", "download the file itself"),
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
        "a Chakra workload graph, which holds durations but no start times and no streams",
        "pass the Kineto trace it was made from",
    ),
    (
        re.compile(rb'"rocprofiler-sdk-tool"'),
        "results of rocprofv3",
        "record with torch.profiler instead",
    ),
    (re.compile(rb'"schema"\s*:\s*"kareus\.'), "another document of Kareus", "pass a trace"),
    (re.compile(rb'"traceEvents"\s*:\s*\['), "a Kineto trace", "pass it as the trace itself"),
    (
        re.compile(rb'"traceEvents"\s*:'),
        'a document whose "traceEvents" are no list',
        "export the trace again with torch.profiler's export_chrome_trace",
    ),
    (
        re.compile(rb"^\s*{[^\n]*}\s*\n\s*{[^\n]*}\s*(?:\n|$)"),
        "JSON lines, one document a line",
        "pass the one document that export_chrome_trace writes",
    ),
    (
        re.compile(rb"^\s*{\s*'"),
        "a Python dictionary in text",
        "write it with json.dump, or export it with export_chrome_trace",
    ),
    (re.compile(rb"^\s*$"), "empty", "record the trace again"),
    (re.compile(rb"^\x00+$"), "nothing but zero bytes (lost in a crash?)", "record the trace again"),
)  # fmt: skip
_ELSE = ("not a Kineto trace", "export one with torch.profiler's export_chrome_trace")
_OTHER_DEVICES = {"hpu": "Gaudi (HPU)", "mtia": "MTIA", "privateuse1": "a private backend", "npu": "an NPU"}


def what_it_is(head: bytes) -> str:
    """Return "it is ...; do ..." for a file that is no Kineto trace, judged by its first bytes."""
    found, remedy = sign_of(head) or _ELSE
    return f"it is {found}; {remedy}"


def sign_of(head: bytes) -> tuple[str, str] | None:
    """Return (what a file is, what to do) where its first bytes tell, None where they do not."""
    head = head[: 1 << 16]
    return next(((what, remedy) for pattern, what, remedy in _SIGNS if pattern.search(head)), None)


def why_no_gpu_work(categories: dict[str, int], pairs: int, backend: str) -> str:
    """Return what a file holds instead of GPU kernels, and what to do.

    Args:
        categories: events by Kineto's category. pairs: begin and end events (ph B, E) among them.
        backend: of torch.distributed, "" unknown.
    """
    if pairs:
        return (
            f"{pairs} events are begins and ends (ph B, E), which torch.profiler does not write; give each GPU "
            'kernel one complete event (ph X, cat "kernel")'
        )
    devices = [
        name
        for sign, name in _OTHER_DEVICES.items()
        if backend.startswith(sign) or any(category.startswith(sign + "_") for category in categories)
    ]
    if devices:
        return f"recorded on {devices[0]}; Kareus reads traces of NVIDIA, AMD and Intel GPUs"
    most = sorted((count, name) for name, count in categories.items() if name)[::-1][:4]
    held = f" (there are {', '.join(f'{count} {name}' for count, name in most)})" if most else ""
    return f"profile with ProfilerActivity.CUDA while training steps run on a GPU{held}"
