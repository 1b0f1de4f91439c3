"""Fingerprints: every byte counts, names and places do not lie, digests are remembered safely."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hypic_sdk.errors import ModelFileError
from hypic_sdk.models import fingerprint as module
from hypic_sdk.models.fingerprint import DigestCache, FilesHash, FileState
from hypic_sdk.models.loader import load_model
from tests.models.oracle import save, text_model

LONG_AGO_NS = 10**18


def write(folder: Path, content: dict[str, bytes]) -> list[Path]:
    """Files that were last written long ago."""
    for name, data in content.items():
        (folder / name).write_bytes(data)
        os.utime(folder / name, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return [folder / name for name in content]


def fingerprint(paths: list[Path], cache: Path | None = None) -> str:
    with FilesHash(paths, DigestCache.open(cache)) as hashes:
        return hashes.fingerprint(paths)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were really read."""
    read: list[str] = []
    original = module._file_digest

    def counting(path: Path) -> str:
        read.append(path.name)
        return original(path)

    monkeypatch.setattr(module, "_file_digest", counting)
    return read


@settings(max_examples=60, deadline=None)
@given(
    content=st.dictionaries(
        st.sampled_from(["a", "b", "ab", "c"]), st.binary(max_size=9), min_size=1
    ),
    data=st.data(),
)
def test_any_change_of_a_byte_or_a_name_changes_it(
    content: dict[str, bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = data.draw(st.sampled_from(sorted(content)))
    if data.draw(st.booleans()):
        changed = {**content, name: content[name] + b"\0"}
    else:
        changed = {("d" if key == name else key): value for key, value in content.items()}
    first, second, third = (tmp_path_factory.mktemp("files") for _ in range(3))
    here, there = write(first, content), write(second, content)
    assert fingerprint(here) == fingerprint(there[::-1])
    assert fingerprint(here) != fingerprint(write(third, changed))


def test_swapped_contents_are_another_model(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    a = fingerprint(write(tmp_path / "x", {"1": b"p", "2": b"q"}))
    assert a != fingerprint(write(tmp_path / "y", {"1": b"q", "2": b"p"}))


def test_a_remembered_digest_saves_the_reading(tmp_path: Path, hashed: list[str]) -> None:
    paths = write(tmp_path, {"1": b"p", "2": b"q"})
    cache = tmp_path / "deep" / "digests.json"
    first = fingerprint(paths, cache)
    assert sorted(hashed) == ["1", "2"]
    assert fingerprint(paths, cache) == first
    assert sorted(hashed) == ["1", "2"]
    assert cache.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("what", ["content", "time", "inode"])
def test_a_changed_file_is_read_again(what: str, tmp_path: Path, hashed: list[str]) -> None:
    paths = write(tmp_path, {"1": b"pp", "2": b"qq"})
    cache = tmp_path / "digests.json"
    first = fingerprint(paths, cache)
    hashed.clear()
    if what == "content":
        write(tmp_path, {"1": b"ppp"})
    elif what == "time":
        paths[0].write_bytes(b"zz")
        os.utime(paths[0], ns=(LONG_AGO_NS, LONG_AGO_NS + 1))
    else:
        write(tmp_path, {"new": b"zz"})
        (tmp_path / "new").replace(paths[0])
    assert fingerprint(paths, cache) != first
    assert hashed == ["1"]


def test_a_file_just_written_is_not_remembered(tmp_path: Path, hashed: list[str]) -> None:
    path = tmp_path / "1"
    path.write_bytes(b"p")
    cache = tmp_path / "digests.json"
    fingerprint([path], cache)
    fingerprint([path], cache)
    assert hashed == ["1", "1"]
    assert not cache.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": 2, "files": []}',
        b'{"version": 1, "files": [["x"]]}',
        b'{"version": 1, "files": [["x", 1, 2, 3, "zz"]]}',
        b'{"version": 1, "files": [[["x"], 1, 2, 3, "' + b"0" * 64 + b'"]]}',
        b'{"version": 1, "files": 7}',
    ],
    ids=repr,
)
def test_a_broken_cache_counts_as_empty(content: bytes, tmp_path: Path, hashed: list[str]) -> None:
    paths = write(tmp_path, {"1": b"p"})
    cache = tmp_path / "digests.json"
    cache.write_bytes(content)
    assert fingerprint(paths, cache) == fingerprint(paths)
    assert hashed == ["1", "1"]
    assert json.loads(cache.read_text())["version"] == 1


def test_a_cache_that_cannot_be_written_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    paths = write(tmp_path, {"1": b"p"})
    assert fingerprint(paths, tmp_path / "1" / "digests.json") == fingerprint(paths)
    assert "digests are not remembered" in caplog.text


def test_models_do_not_push_each_other_out(tmp_path: Path, hashed: list[str]) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    x, y = (write(tmp_path / name, {"1": name.encode()}) for name in ("x", "y"))
    cache = tmp_path / "digests.json"
    for paths in (x, y, x, y):
        fingerprint(paths, cache)
    assert hashed == ["1", "1"]


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    (path,) = write(tmp_path, {"1": b"p"})
    with FilesHash([path], DigestCache()) as hashes:
        path.write_bytes(b"pq")
        with pytest.raises(ModelFileError, match="changed while"):
            hashes.fingerprint([path])


def test_only_regular_files_are_hashed(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a regular file"):
        FileState.of(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="not a regular file"):
        FileState.of(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="can not read"):
        FileState.of(tmp_path / "nothing")


def test_a_model_has_one_fingerprint_wherever_it_lies(tmp_path: Path) -> None:
    here = save(text_model(), tmp_path / "here", max_shard_size="30KB")
    there = shutil.copytree(here, tmp_path / "there")
    cache = tmp_path / "digests.json"
    prints = {
        load_model(f, device="cpu", digest_cache=c).fingerprint
        for f in (here, there)
        for c in (None, cache, cache)
    }
    assert len(prints) == 1
    config = there / "config.json"
    config.write_text(config.read_text() + "\n")
    assert load_model(there, device="cpu").fingerprint not in prints
