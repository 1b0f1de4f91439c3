"""Adapters to frameworks; each is imported by its own name and needs the extra of that name."""
