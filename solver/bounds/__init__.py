"""Bounds and plans without OR-Tools: the second method that confirms what CP-SAT claims."""
