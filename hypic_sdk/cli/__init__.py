"""The command line: `hypic`.  A command's room is imported when it runs."""

from __future__ import annotations

from hypic_sdk.cli.app import main

__all__ = ["main"]
