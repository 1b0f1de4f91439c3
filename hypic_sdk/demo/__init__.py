"""The reader: a small trained hybrid model that answers questions from documents, with its makings.

Importing this package loads no torch.
"""

from __future__ import annotations

from pathlib import Path


def reader_path() -> Path:
    """Return the folder with the reader's weights, tokenizer and configuration."""
    return Path(__file__).resolve().parent / "reader"
