"""Rows of a CSV table with a header, as spreadsheets write them: what cannot be meant is refused with the remedy.

A byte-order mark and blanks after commas are read over. Other separators and decimal commas are refused, since a
guess could shift figures from one column into another.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping

from kareus.errors import InputError

_EXPORT = "export it as CSV UTF-8 with commas between columns and points in numbers"
_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")


def read_rows(path: str | os.PathLike[str], expected: str) -> list[dict[str, str]]:
    """Read all rows, at least one, each with every column of the header ("" where a row ends early).

    Args:
        path: of the file. expected: what it should hold, for messages.

    Raises:
        InputError: unreadable, no rows, another separator than commas, or a row longer than the header.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file, skipinitialspace=True) if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {path}: {error}; expected {expected}") from error
    if len(lines) < 2:
        raise InputError(f"{path}: no rows; expected {expected}: a header and at least one row")
    header = [name.strip() for name in lines[0]]
    for separator, name in _SEPARATORS.items():
        if any(separator in cell for cell in header):
            raise InputError(f"{path}: found {name} between columns, expected commas; {_EXPORT}")
    if header[0].startswith("sep="):
        raise InputError(
            f"{path}: expected the names of columns first, found {','.join(lines[0])!r}; delete this line"
        )
    for number, line in enumerate(lines[1:], 1):
        if len(line) > len(header):
            raise InputError(
                f"{path}, row {number}: expected {len(header)} columns as in the header, found {len(line)}; "
                f"where numbers have decimal commas, {_EXPORT}"
            )
    blank = [""] * len(header)
    return [dict(zip(header, [*line, *blank[len(line) :]], strict=True)) for line in lines[1:]]


def read_number(row: Mapping[str, str], column: str) -> float:
    """Return the number in a column.

    Raises:
        KeyError: no such column. ValueError: no number; says so where a decimal comma makes it none.
    """
    text = row[column]
    if text is not None and _DECIMAL_COMMA.fullmatch(text.strip()):
        raise ValueError(f"{text!r} has a decimal comma; {_EXPORT}")
    return float(text)
