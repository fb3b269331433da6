"""Traces: reading what ranks recorded, rebuilding the step, measuring it. No torch, no solver."""

from kareus.trace.graph import build_graph, graphs
from kareus.trace.kineto import read_trace
from kareus.trace.manifest import Manifest
from kareus.trace.ranks import TraceSet

__all__ = ["Manifest", "TraceSet", "build_graph", "graphs", "read_trace"]
