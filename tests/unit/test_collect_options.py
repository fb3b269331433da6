"""The window's options out of the environment."""

import pytest

from kareus.errors import UsageError

pytest.importorskip("torch")
from kareus.collect.options import CollectOptions, options_from


def test_defaults_and_values() -> None:
    assert options_from({}) == CollectOptions()
    assert options_from({"KAREUS_COLLECT_WAIT": "0", "KAREUS_COLLECT_MAX_MB": "0.5"}) == CollectOptions(
        wait=0, max_mb=0.5
    )
    assert options_from({"KAREUS_COLLECT_ACTIVE": ""}).active == 3
    assert CollectOptions(wait=1, warmup=2, active=4).steps_needed == 7


@pytest.mark.parametrize(
    ("name", "text"),
    [("WAIT", "many"), ("WAIT", "1.5"), ("WAIT", "-1"), ("ACTIVE", "0"), ("WARMUP", "0"), ("MAX_MB", "nan")],
)
def test_bad_values_name_what_was_found(name: str, text: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        options_from({f"KAREUS_COLLECT_{name}": text})
