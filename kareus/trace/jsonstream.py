"""Streams the events of a Chrome-JSON trace without ever holding the whole file.

The text is cut into chunks at event boundaries and each chunk is decoded by msgspec into typed events
whose arguments stay raw bytes. A chunk that does not decode is mended (bare `inf`/`nan`, control
characters, stray backslashes) and, if that fails, split into single events; those
that do not decode are dropped, so that one damaged event costs itself and nothing else. A file that ends
early gives everything up to its last whole event.
"""

from __future__ import annotations

import gc
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from kareus.errors import InputError
from kareus.trace.foreign import what_it_is
from kareus.trace.jsonpieces import (
    NOT_NUMBERS,
    at_boundaries,
    last_boundary,
    mend,
    split,
    without_trailing_commas,
)

CHUNK_BYTES = 4 << 20
END_BYTES = 1 << 20
HEADER_LIMIT_BYTES = 64 << 20  # pg_config of a large job can be megabytes; a header beyond this is no trace

_JOB = b'"distributedInfo"'
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class Event(msgspec.Struct, gc=False):
    """One trace event; `args` is decoded only where somebody asks."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: int | float | str = 0
    dur: int | float | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose times are kept as text: absolute microseconds with a fraction overflow a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | float | str | None = None
    tid: int | float | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass
class Damage:
    """What was lost while reading: event counts by cause, and where the file stopped early ("": nowhere).

    `header` is what stands beside the events and could not be read ("": all could).
    """

    dropped: int = 0
    mended: int = 0
    ended_early: str = ""
    first_bad: str = ""
    header: str = ""


@dataclass
class EventStream:
    """Header, events and tail of one file; iterate `batches()` once, then read `header`."""

    path: Path
    exact: bool = False
    header: dict[str, Any] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)
    _behind: bytes | None = field(default=None, repr=False)
    _taken: int = field(default=0, repr=False)  # bytes of text read
    _bare: bool = field(default=False, repr=False)  # a list of events without anything beside it

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of events.

        Raises:
            InputError: the file cannot be opened, or is not a trace.
        """
        decoder = msgspec.json.Decoder(list[ExactEvent] if self.exact else list[Event])
        with _opened(self.path) as file, _no_gc():
            read = _reader(file, self.damage)
            rest = self._read_header(read)
            while more := read(CHUNK_BYTES):
                self._taken += len(more)
                cut = 0 if self._behind is not None else last_boundary(rest)
                if cut:
                    yield self._decode(decoder, rest[:cut], self._taken - len(more) - len(rest))
                    rest = rest[cut:].lstrip(b", \r\n\t") + more
                else:
                    rest += more
            if self._behind is None and (cut := last_boundary(rest)):
                yield self._decode(decoder, rest[:cut], self._taken - len(rest))
                rest = rest[cut:].lstrip(b", \r\n\t")
            if self._behind is None:
                yield self._decode_end(decoder, rest, self._taken - len(rest))
            else:
                self._read_tail(self._behind + rest)

    def read_header(self) -> dict[str, Any]:
        """Return what stands before the events; see `batches` for errors."""
        with _opened(self.path) as file:
            self._read_header(_reader(file, self.damage))
        return self.header

    def read_end(self) -> dict[str, Any]:
        """Return what the last mebibyte says of the job, as far as one can tell without reading the events."""
        with _opened(self.path) as file:
            if not isinstance(file, gzip.GzipFile):
                file.seek(max(0, self.path.stat().st_size - END_BYTES))
            read, text = _reader(file, Damage()), b""
            while more := read(END_BYTES):
                text = (text + more)[-END_BYTES:]
        at = text.rfind(_JOB)
        if at < 0:
            return {}
        try:
            found, _ = json.JSONDecoder().raw_decode(
                text[at + len(_JOB) :].decode(errors="replace").lstrip(": \r\n\t")
            )
        except (ValueError, RecursionError):
            return {}
        return {"distributedInfo": found}

    def _read_header(self, read: Callable[[int], bytes]) -> bytes:
        """Read up to the first event; keep what stands before it."""
        text = read(1 << 16)
        self._taken = len(text)
        if text.startswith(b"\xef\xbb\xbf"):
            text = text[3:]
            self.damage.mended += 1
        if text.lstrip()[:1] == b"[":
            self._bare = True
            return text.lstrip()[1:].lstrip()
        if text.lstrip()[:1] != b"{":
            raise InputError(
                f"{self.path}: expected a Kineto trace, found {text[:20]!r} at its start"
                f"{self.damage.ended_early and ' (' + self.damage.ended_early + ')'}: {what_it_is(text)}"
            )
        while not (match := _EVENTS.search(text)):
            more = read(1 << 20)
            if not more or len(text) > HEADER_LIMIT_BYTES:
                raise InputError(
                    f'{self.path}: expected a Kineto trace, found no "traceEvents" list in {len(text)} bytes'
                    f"{self.damage.ended_early and ' (' + self.damage.ended_early + ')'}: {what_it_is(text)}"
                )
            text += more
            self._taken += len(more)
        self._merge_header(text[: match.start()] + b'"_":0}')
        return text[match.end() :].lstrip()

    def _merge_header(self, text: bytes) -> None:
        """Take over what a piece beside the events says, `text` made whole by the caller."""
        found: Any = None
        for mended in (mend(text), without_trailing_commas(mend(text))):
            try:
                found = msgspec.json.decode(mended)
                break
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
        if isinstance(found, dict):
            self.header.update(found)
        else:
            self.damage.header = self.damage.header or f"{text[:40]!r} ... {text[-40:]!r}"

    def _read_tail(self, text: bytes) -> None:
        """What stands behind the events; nothing behind a bare list."""
        if not self._bare:
            self._merge_header(b'{"_":0' + text)
        elif text.strip():
            self.damage.header = f"{text[:40]!r}"

    def _decode(self, decoder: Any, text: bytes, offset: int) -> list[Any]:
        try:
            return decoder.decode(b"[" + text + b"]")  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        try:
            events = decoder.decode(b"[" + mend(text) + b"]")
            self.damage.mended += max(1, len(NOT_NUMBERS.findall(text)))
            return events  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pieces, end = split(text, rest=True)
        if end is not None:  # the array closed here; what looked like an event boundary was in the tail
            self._behind = text[end + 1 :] + b","
        return self._decode_singly(decoder, pieces, offset)

    def _decode_singly(self, decoder: Any, pieces: list[tuple[int, bytes]], offset: int) -> list[Any]:
        events: list[Any] = []
        for start, piece in pieces:
            try:
                events += decoder.decode(b"[" + piece + b"]")
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError):
                pass
            try:
                events += decoder.decode(b"[" + mend(piece) + b"]")
                self.damage.mended += 1
            except (msgspec.MsgspecError, UnicodeDecodeError):
                inner = list(at_boundaries(piece, 0))
                if len(inner) > 1:  # a quote too many hides where events end
                    events += self._decode_singly(decoder, inner, offset + start)
                else:
                    self.damage.dropped += 1
                    self.damage.first_bad = self.damage.first_bad or f"byte {offset + start}: {piece[:60]!r}"
        return events

    def _decode_end(self, decoder: Any, text: bytes, offset: int) -> list[Any]:
        """The last events, the array's end, and the keys behind it."""
        pieces, end = split(text, rest=False)
        if end is None:
            self.damage.ended_early = self.damage.ended_early or (
                f"ends after {offset + len(text)} bytes inside the events, before the closing bracket"
            )
        else:
            self._read_tail(text[end + 1 :])
        return self._decode_singly(decoder, pieces, offset)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file: IO[bytes] = path.open("rb", buffering=0)
        magic = file.read(2)
        file.seek(0)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    with file:
        if magic == b"\x1f\x8b":
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        else:
            yield file


def _reader(file: IO[bytes], damage: Damage) -> Callable[[int], bytes]:
    """Return a read function that turns a broken compressed stream into an early end."""
    total = 0

    def read(size: int) -> bytes:
        nonlocal total
        pieces, wanted = [], size
        read_some = getattr(file, "read1", file.read)  # read1 returns what is there before a break
        while wanted > 0 and not damage.ended_early:
            try:
                piece = read_some(min(wanted, 1 << 17)) or b""
            except (EOFError, zlib.error, gzip.BadGzipFile, OSError) as error:
                broken = f"the compressed stream breaks off after {total} bytes of text ({error})"
                foreign = total and isinstance(error, gzip.BadGzipFile) and "Not a gzipped" in str(error)
                damage.ended_early = (
                    f"bytes that are not gzip follow the stream of {total} bytes of text"
                    if foreign
                    else broken
                )
                break
            if not piece:
                break
            pieces.append(piece)
            total += len(piece)
            wanted -= len(piece)
        return b"".join(pieces)

    return read


@contextmanager
def _no_gc() -> Iterator[None]:
    """Decoding makes no cycles; the collector would only walk millions of live events."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
