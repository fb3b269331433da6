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

CHUNK_BYTES = 4 << 20
HEADER_LIMIT_BYTES = 64 << 20  # pg_config of a large job can be megabytes; a header beyond this is no trace

# Objects nested in arguments have separators of the same look; an event starts with one of these keys.
_BOUNDARY = re.compile(rb'}\s*,\s*(?={\s*"(?:ph|name|cat|args|pid|tid|ts|dur|id|bp|s)")')
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
_NOT_NUMBERS = re.compile(rb":\s*-?(?:inf(?:inity)?|nan)\b", re.IGNORECASE)
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])')
_CONTROL = re.compile(rb"[\x00-\x1f]")


class Event(msgspec.Struct, gc=False):
    """One trace event; `args` is decoded only where somebody asks."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float | str = 0
    dur: int | float | str = 0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class ExactEvent(msgspec.Struct, gc=False):
    """An event whose times are kept as text: absolute microseconds with a fraction overflow a float64."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    args: msgspec.Raw = msgspec.Raw(b"{}")


@dataclass
class Damage:
    """What was lost while reading: event counts by cause, and where the file stopped early ("": nowhere)."""

    dropped: int = 0
    mended: int = 0
    ended_early: str = ""
    first_bad: str = ""


@dataclass
class EventStream:
    """Header, events and tail of one file; iterate `batches()` once, then read `header`."""

    path: Path
    exact: bool = False
    header: dict[str, Any] = field(default_factory=dict)
    damage: Damage = field(default_factory=Damage)
    _behind: bytes | None = field(default=None, repr=False)

    def batches(self) -> Iterator[list[Any]]:
        """Yield lists of events.

        Raises:
            InputError: the file cannot be opened, or is not a trace.
        """
        decoder = msgspec.json.Decoder(list[ExactEvent] if self.exact else list[Event])
        with _opened(self.path) as file, _no_gc():
            read = _reader(file, self.damage)
            rest = self._read_header(read)
            offset = 0
            while more := read(CHUNK_BYTES):
                cut = 0 if self._behind is not None else _last_boundary(rest)
                if cut:
                    yield self._decode(decoder, rest[:cut], offset)
                    offset += cut
                    rest = rest[cut:].lstrip(b", \r\n\t") + more
                else:
                    rest += more
            if self._behind is None and (cut := _last_boundary(rest)):
                yield self._decode(decoder, rest[:cut], offset)
                offset += cut
                rest = rest[cut:].lstrip(b", \r\n\t")
            if self._behind is None:
                yield self._decode_end(decoder, rest, offset)
            else:
                self._merge_header(b'{"_":0' + self._behind + rest)

    def read_header(self) -> dict[str, Any]:
        """Return what stands before the events; see `batches` for errors."""
        with _opened(self.path) as file:
            self._read_header(_reader(file, self.damage))
        return self.header

    def _read_header(self, read: Callable[[int], bytes]) -> bytes:
        """Read up to the first event; keep what stands before it."""
        text = read(1 << 16)
        if text.startswith(b"\xef\xbb\xbf"):
            text = text[3:]
            self.damage.mended += 1
        if text.lstrip()[:1] == b"[":
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
                    f'{self.path}: expected a Kineto trace, found no "traceEvents" in {len(text)} bytes'
                    f"{self.damage.ended_early and ' (' + self.damage.ended_early + ')'}: {what_it_is(text)}"
                )
            text += more
        self._merge_header(text[: match.start()] + b'"_":0}')
        return text[match.end() :].lstrip()

    def _merge_header(self, text: bytes) -> None:
        try:
            found = msgspec.json.decode(_mend(text))
        except msgspec.MsgspecError:
            return
        if isinstance(found, dict):
            self.header.update(found)

    def _decode(self, decoder: Any, text: bytes, offset: int) -> list[Any]:
        try:
            return decoder.decode(b"[" + text + b"]")  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        try:
            events = decoder.decode(b"[" + _mend(text) + b"]")
            self.damage.mended += max(1, len(_NOT_NUMBERS.findall(text)))
            return events  # type: ignore[no-any-return]
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pieces, end = _split(text)
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
                events += decoder.decode(b"[" + _mend(piece) + b"]")
                self.damage.mended += 1
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self.damage.dropped += 1
                self.damage.first_bad = self.damage.first_bad or f"byte {offset + start}: {piece[:60]!r}"
        return events

    def _decode_end(self, decoder: Any, text: bytes, offset: int) -> list[Any]:
        """The last events, the array's end, and the keys behind it."""
        pieces, end = _split(text)
        if end is None:
            self.damage.ended_early = self.damage.ended_early or (
                f"ends after {offset + len(text)} bytes inside the events, before the closing bracket"
            )
        else:
            self._merge_header(b'{"_":0' + text[end + 1 :])
        return self._decode_singly(decoder, pieces, offset)


def _last_boundary(text: bytes) -> int:
    """Position just behind the last event that is surely whole, 0 if there is none."""
    position = len(text)
    for _ in range(4):
        position = text.rfind(b"}", 0, position)
        if position <= 0:
            return 0
        if _BOUNDARY.match(text, position):
            return position + 1
    # Few braces match near the end only when strings hold many: search a wider piece once.
    last = 0
    for match in _BOUNDARY.finditer(text, max(0, len(text) - (1 << 20))):
        last = match.start() + 1
    return last


def _split(text: bytes) -> tuple[list[tuple[int, bytes]], int | None]:
    """Split at depth 0 into (offset, object) pieces; also return where the array's bracket closes."""
    pieces: list[tuple[int, bytes]] = []
    depth, start = 0, 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == b"{" or token == b"[":
            if depth == 0:
                start = match.start()
            depth += 1
        elif token == b"}" or token == b"]":
            if depth == 0:
                return pieces, match.start()
            depth -= 1
            if depth == 0:
                pieces.append((start, text[start : match.end()]))
    return pieces, None


def _mend(text: bytes) -> bytes:
    """Make common defects valid JSON: bare inf and nan, control characters, stray backslashes."""
    text = _NOT_NUMBERS.sub(b":null", text)
    text = _STRAY_BACKSLASH.sub(rb"\\\\", text)
    return _CONTROL.sub(b" ", text)


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
                damage.ended_early = f"the compressed stream breaks off after {total} bytes of text ({error})"
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
