"""Files that are written completely or not at all."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elmesh.errors import ElmeshError
from elmesh.files import atomic_write, sync_folder
from elmesh.netconfig.files import create_file


@pytest.fixture
def umask():
    old = os.umask(0o022)
    yield
    os.umask(old)


def failing(code: int):
    """Return a replacement for a system call that fails with this error code."""

    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_created_with_the_given_content_and_nothing_else(tmp_path):
    atomic_write(tmp_path / "a", b"first")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"something longer")
    atomic_write(path, b"new")
    assert path.read_bytes() == b"new"


def test_binary_content_is_written_unchanged(tmp_path):
    data = bytes(range(256)) + b"\r\n\x1a\n"
    atomic_write(tmp_path / "a", data)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize(("options", "expected"), [({}, 0o644), ({"mode": 0o600}, 0o600)])
def test_a_file_has_its_permissions_from_the_start_even_if_an_old_one_had_others(tmp_path, umask, options, expected):
    path = tmp_path / "a"
    path.touch(mode=0o604)
    seen = []
    replace = Path.replace

    def watched(self, target):
        seen.append(stat.S_IMODE(self.stat().st_mode))
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", watched)
        atomic_write(path, b"new", **options)
    assert seen == [expected]
    assert stat.S_IMODE(path.stat().st_mode) == expected


def test_a_leftover_of_a_killed_process_is_neither_used_nor_kept(tmp_path):
    leftover = tmp_path / f".a.{os.getpid()}.partial"
    leftover.write_bytes(b"a part that is longer than the new content")
    leftover.chmod(0o666)
    atomic_write(tmp_path / "a", b"new", mode=0o600)
    assert (tmp_path / "a").read_bytes() == b"new"
    assert names(tmp_path) == ["a"]
    if os.name != "nt":
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_a_symbolic_link_in_place_of_the_temporary_file_is_not_followed(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"mine")
    (tmp_path / f".a.{os.getpid()}.partial").symlink_to(other)
    atomic_write(tmp_path / "a", b"new")
    assert other.read_bytes() == b"mine"
    assert not (tmp_path / "a").is_symlink()


def test_a_full_disk_keeps_the_old_file_and_leaves_no_partial_one(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left on device") as caught:
        atomic_write(path, b"new")
    assert caught.value.errno == errno.ENOSPC
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_an_interrupt_keeps_the_old_file_and_leaves_no_partial_one(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def interrupt(descriptor):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        atomic_write(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path):
    path = tmp_path / "missing" / "a"
    with pytest.raises(FileNotFoundError) as caught:
        atomic_write(path, b"new")
    assert caught.value.filename == str(path)


def test_the_data_reach_the_disk_before_the_name_and_the_name_after_them(tmp_path, monkeypatch):
    calls = []
    sync, replace = os.fsync, Path.replace

    def watched_sync(descriptor):
        calls.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def watched_replace(self, target):
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    atomic_write(tmp_path / "a", b"data")
    assert calls == ["file", "rename", "folder"]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF])
def test_a_file_system_that_cannot_sync_folders_is_no_failure(tmp_path, monkeypatch, code):
    monkeypatch.setattr(os, "fsync", failing(code))
    sync_folder(tmp_path)


def test_a_folder_that_could_not_be_written_to_the_disk_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


WRITER = """
import sys
from pathlib import Path
from elmesh.files import atomic_write
text = sys.argv[2].encode()
for _ in range(50):
    atomic_write(Path(sys.argv[1]), text * 10_000)
"""


def test_two_processes_that_write_the_same_file_leave_the_content_of_one_of_them(tmp_path):
    path = tmp_path / "a"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), letter]) for letter in "xy"]
    assert [writer.wait(timeout=300) for writer in writers] == [0, 0]
    assert path.read_bytes() in (b"x" * 10_000, b"y" * 10_000)
    assert names(tmp_path) == ["a"]


def test_a_new_file_never_replaces_one_on_disks_without_links_too(tmp_path, monkeypatch):
    for code in (None, errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
        folder = tmp_path / str(code)
        folder.mkdir()
        with monkeypatch.context() as patch:
            if code is not None:
                patch.setattr(os, "link", failing(code))
            create_file(folder / "a", b"first", mode=0o600)
            with pytest.raises(ElmeshError, match="exists already"):
                create_file(folder / "a", b"second")
            # As a file that comes in between.
            patch.setattr(os.path, "lexists", lambda _: False)
            with pytest.raises(ElmeshError, match="exists already"):
                create_file(folder / "a", b"second")
        assert (folder / "a").read_bytes() == b"first"
        assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600
        assert names(folder) == ["a"]


def test_a_new_file_that_cannot_be_written_completely_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", failing(errno.EPERM))
    monkeypatch.setattr("elmesh.netconfig.files.os.fsync", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="space"):
        create_file(tmp_path / "a", b"first")
    assert names(tmp_path) == []
