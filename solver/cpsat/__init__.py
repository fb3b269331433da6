"""Models for OR-Tools. Nothing outside this package imports it, and nothing imports this package eagerly."""
