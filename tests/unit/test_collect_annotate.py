"""Submodule ranges: forward and backward, for the time of a window only."""

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from kareus.collect.annotate import Annotator, annotatable  # noqa: E402


class Block(nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.recompute:
            return x + checkpoint(self.mlp, self.norm(x), use_reentrant=False)
        return x + self.mlp(self.norm(x))


def net(recompute: bool = False) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Block(recompute), Block(recompute))


def ranges(model: nn.Module, tmp_path: Path, x: torch.Tensor) -> list[tuple[float, float, str]]:
    annotator = Annotator(model)
    annotator.install()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        model(x).sum().backward()
    annotator.remove()
    recorded.export_chrome_trace(str(tmp_path / "t.json"))
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert annotator.failures == 0
    return sorted(
        (e["ts"], e["ts"] + e["dur"], e["name"].removeprefix("kareus::"))
        for e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("kareus::")
    )


def test_every_submodule_is_seen_once_in_forward_and_backward(tmp_path: Path) -> None:
    model = net()
    found = [name for _, _, name in ranges(model, tmp_path, torch.randn(4, 8, requires_grad=True))]
    paths = [path for path, _ in annotatable(model)]
    assert len(paths) == 12
    assert sorted(found) == sorted(f"{phase} {path}" for phase in ("forward", "backward") for path in paths)


def test_ranges_nest_like_modules_and_backward_runs_in_reverse(tmp_path: Path) -> None:
    found = ranges(net(), tmp_path, torch.randn(4, 8, requires_grad=True))
    where = {name: (start, end) for start, end, name in found}
    for phase in ("forward", "backward"):
        outer, inner = where[f"{phase} 1"], where[f"{phase} 1.mlp"]
        assert outer[0] <= inner[0] <= inner[1] <= outer[1]
    assert where["forward 0.mlp"][1] <= where["forward 1.norm"][0]
    assert where["backward 1.mlp.2"][0] < where["backward 1.mlp.0"][0] < where["backward 1.norm"][0]
    assert where["backward 1.mlp"][1] <= where["backward 1.norm"][0]
    assert where["backward 1"][1] <= where["backward 0.mlp"][0]


def test_recomputed_forwards_count_as_backward(tmp_path: Path) -> None:
    found = [name for _, _, name in ranges(net(True), tmp_path, torch.randn(4, 8, requires_grad=True))]
    assert found.count("forward 0.mlp.0") == 1
    assert "backward 0.mlp.0" in found


def test_gradients_are_equal_to_the_bit_and_no_hook_stays() -> None:
    x = torch.randn(4, 8)
    plain, watched = net(), net()
    plain(x).sum().backward()
    annotator = Annotator(watched)
    annotator.install()
    watched(x).sum().backward()
    annotator.remove()
    for a, b in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in watched.modules())


def test_an_exception_in_forward_leaves_no_open_range(tmp_path: Path) -> None:
    model = net()
    annotator = Annotator(model)
    annotator.install()
    with pytest.raises(RuntimeError):
        model(torch.randn(4, 9))
    assert annotator._lane.forward == []
    annotator.remove()


def test_compiled_modules_are_left_out() -> None:
    model = net()
    model[1].compile()
    assert {path for path, _ in annotatable(model)} == {
        "0",
        "0.norm",
        "0.mlp",
        "0.mlp.0",
        "0.mlp.1",
        "0.mlp.2",
    }
