"""Rotation of rows by their positions."""
