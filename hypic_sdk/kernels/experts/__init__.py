"""Routing and the grouped product of a mixture of experts."""
