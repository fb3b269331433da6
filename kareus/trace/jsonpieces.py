"""Cuts the text of a trace's events into pieces, also where it is damaged, and mends what is commonly broken."""

from __future__ import annotations

import re
from collections.abc import Iterator

# Objects nested in arguments have separators of the same look; an event starts with one of these keys.
_BOUNDARY = re.compile(rb'}\s*,\s*(?={\s*"(?:ph|name|cat|args|pid|tid|ts|dur|id|bp|s)")')
_MORE_EVENTS = re.compile(rb"\s*,?\s*{")
_BRACKET = re.compile(rb"[{}\[\]]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)
NOT_NUMBERS = re.compile(rb":\s*-?(?:inf(?:inity)?|nan)\b", re.IGNORECASE)
_STRAY_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])')
_TRAILING_COMMA = re.compile(rb",(\s*[}\]])")
_CONTROL = re.compile(rb"[\x00-\x1f]")


def last_boundary(text: bytes) -> int:
    """Return the position just behind the last event that is surely whole, 0 if there is none."""
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


def split(text: bytes, *, rest: bool) -> tuple[list[tuple[int, bytes]], int | None]:
    """Split a list's text into (offset, object) pieces; also return where the list's bracket closes.

    An object whose brackets do not pair ends where the next event begins, so that it costs itself only.

    Args:
        rest: also return an object that the text ends in.
    """
    pieces: list[tuple[int, bytes]] = []
    opened: list[bytes] = []
    start, end, position, patience = 0, 0, 0, 20  # end: of the newest piece
    while True:
        match = (_TOKEN if opened else _BRACKET).search(text, position)
        if match is None:
            following = _BOUNDARY.search(text, start) if opened else None
            if following is None:
                return pieces + ([(start, text[start:])] if opened and rest else []), None
            patience -= 1
            if patience == 0:  # each search to the end of the text costs; the pieces are as good
                return pieces + list(at_boundaries(text, start)), None
            pieces.append((start, text[start : following.start() + 1]))
            opened, position = [], following.end()
            end = position
            continue
        token, position = match.group(), match.end()
        if token == b"{" or token == b"[":
            if not opened:
                start = match.start()
                if text[end:start].strip(b", \r\n\t"):
                    pieces.append((end, text[end:start]))
            opened.append(token)
        elif not opened and token == b"]" and not _MORE_EVENTS.match(text, position):
            return pieces, match.start()
        elif opened and (token == b"}" or token == b"]"):
            pairs = opened.pop() == (b"{" if token == b"}" else b"[")
            if pairs and not opened:
                pieces.append((start, text[start:position]))
                end = position
            # Behind a comma in an object comes a key: an event there means that its own bracket is missing.
            elif not pairs or (opened[-1] == b"{" and _BOUNDARY.match(text, match.start())):
                following = _BOUNDARY.search(text, start)
                position = following.end() if following else len(text)
                pieces.append((start, text[start : following.start() + 1 if following else None]))
                opened, end = [], position


def at_boundaries(text: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, piece), cut wherever an event seems to begin."""
    for match in _BOUNDARY.finditer(text, start):
        yield start, text[start : match.start() + 1]
        start = match.end()
    yield start, text[start:]


def mend(text: bytes) -> bytes:
    """Return text with common defects made valid JSON.

    They are bare inf and nan, control characters, stray backslashes and bytes that are not UTF-8.
    """
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
    text = NOT_NUMBERS.sub(b":null", text)
    text = _STRAY_BACKSLASH.sub(rb"\\\\", text)
    return _CONTROL.sub(b" ", text)


def without_trailing_commas(text: bytes) -> bytes:
    """Return text without commas before a closing bracket; inside strings too, so only for what is read no other way."""
    return _TRAILING_COMMA.sub(rb"\1", text)
