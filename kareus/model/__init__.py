"""Profiles, the cost model fitted from them, the power limit, and the step simulator (torch-free)."""
