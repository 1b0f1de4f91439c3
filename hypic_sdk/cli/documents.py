"""Files that the command line takes as documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypic_sdk.errors import RequestError


@dataclass(frozen=True, slots=True)
class FileDocument:
    """A file's text, and the path by which it is named: relative to the folder that was given."""

    name: str
    text: str


def read_document(path: Path) -> str:
    """The text of a file.  Raises RequestError for one that is no UTF-8 text, or has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"can not read document {path}: {error}") from error
    if not text.strip():
        raise RequestError(f"document {path} is empty: write something into it or leave it out")
    return text


def read_documents(
    paths: Sequence[Path], pattern: str
) -> tuple[list[FileDocument], dict[str, str]]:
    """The documents among files and folders, in order, and what was passed over with the reason.

    Files that are named have to be documents; in a folder, what is none is passed over.

    Args:
        pattern: which files of a folder are taken, as `**/*.md`.
    Raises:
        RequestError: a path that is not there, or a named file that is no document.
    """
    documents: list[FileDocument] = []
    passed: dict[str, str] = {}
    for path in paths:
        if path.is_dir():
            for file in _files(path, pattern):
                name = file.relative_to(path).as_posix()
                try:
                    documents.append(FileDocument(name, read_document(file)))
                except RequestError as error:
                    passed[name] = error.message
        else:
            documents.append(FileDocument(_name(path), read_document(path)))
    return documents, passed


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    """Files below a folder in order; hidden ones are not taken."""
    for path in sorted(folder.glob(pattern)):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden:
            yield path


def _name(path: Path) -> str:
    """Relative to here if it lies below, else the last part of the path."""
    here = Path.cwd()
    full = path.resolve()
    return full.relative_to(here).as_posix() if full.is_relative_to(here) else path.name
