"""The picture is well-formed XML, stands alone, and draws both steps to one scale."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from report_samples import timeline

from kareus.report.data import Source
from kareus.report.svg import step_picture

SVG = "{http://www.w3.org/2000/svg}"


def picture() -> str:
    return step_picture(timeline(Source.MEASURED), timeline(Source.PREDICTED, 0.9), title="A <step>")


def paths(style: str) -> list[str]:
    root = ElementTree.fromstring(picture())
    return [p.attrib["d"] for p in root.iter(f"{SVG}path") if p.attrib["class"] == style]


def test_is_xml_and_loads_nothing() -> None:
    root = ElementTree.fromstring(picture())
    assert root.tag == f"{SVG}svg"
    links = re.findall(r"https?://[^\"']+|url\(|href", picture())
    assert links == ["http://www.w3.org/2000/svg"]  # the namespace, which nothing loads


def test_says_where_both_durations_come_from() -> None:
    words = "".join(ElementTree.fromstring(picture()).itertext()).replace("\u00a0", " ")
    assert "A <step>: 10.00 ms before, measured, and 9.00 ms after, predicted" in words
    assert "9.00 ms (\u221210.0 % against stock as recorded), predicted" in words


def test_both_steps_share_one_scale() -> None:
    ends = [re.fullmatch(r"M0 \d+h(\d+)v\d+h-\d+z", d) for d in paths("k-track")]
    widths = [int(m.group(1)) for m in ends if m]
    assert widths == [24_000] * 3 + [21_600] * 3


def test_short_gaps_are_not_widened_into_a_false_picture() -> None:
    """Idle is the last 0.5 ms of 10: 5 % of the width, in one piece."""
    first = paths("k-idle")[0]
    assert re.findall(r"M(\d+) \d+h(\d+)", first) == [("22800", "1200")]
