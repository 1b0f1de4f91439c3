"""Rotate keys and write keys and values to slots."""
