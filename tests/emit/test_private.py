"""Folders on whose way somebody else could put something are refused, whatever the flaw and wherever it lies."""

import os
import stat

import pytest

from tests.interrupt_support import at_every_step, folder
from volta.emit import private
from volta.emit.private import NotPrivateError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
OTHER = 12345


@pytest.fixture
def way(tmp_path):
    """Three folders, one in the other."""
    (tmp_path / "a" / "b" / "c").mkdir(parents=True, mode=0o700)
    for path in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"):
        path.chmod(0o700)
    return tmp_path / "a" / "b" / "c"


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o277, 0o777])
def test_folders_are_made_for_this_user_alone(tmp_path, umask) -> None:
    before = os.umask(umask)
    try:
        place = private.folder(str(tmp_path / "new" / "and" / "deep"), make=True)
    finally:
        os.umask(before)
    assert place == os.path.realpath(tmp_path / "new" / "and" / "deep")
    assert [mode(tmp_path / path) for path in ("new", "new/and", "new/and/deep")] == [0o700] * 3


def test_a_folder_that_another_process_makes_first(tmp_path, monkeypatch) -> None:
    def mkdir(path, mode):
        monkeypatch.undo()
        os.mkdir(path, 0o750)
        raise FileExistsError

    monkeypatch.setattr(os, "mkdir", mkdir)
    assert private.folder(str(tmp_path / "new"), make=True) == os.path.realpath(tmp_path / "new")
    assert mode(tmp_path / "new") == 0o750, "it is not ours to change"


def test_what_is_not_there(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        private.folder(str(tmp_path / "missing" / "too"))
    (tmp_path / "file").write_text("")
    for path in ("file", "file/below"):
        with pytest.raises(NotADirectoryError):
            private.folder(str(tmp_path / path), make=True)


@pytest.mark.parametrize("path", ["", ".", "here", "~/.cache/volta", "../up"])
def test_relative_paths(path) -> None:
    with pytest.raises(NotPrivateError, match="no absolute path"):
        private.folder(path, make=True)


@pytest.mark.parametrize("rights", [0o700, 0o755, 0o500, 0o711])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_folders_that_others_cannot_write(way, steps, rights) -> None:
    [way, *way.parents][steps].chmod(rights)
    assert private.folder(str(way)) == os.path.realpath(way)


@pytest.mark.parametrize("rights", [0o777, 0o770, 0o775, 0o702, 0o720])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_folders_that_others_can_write(way, steps, rights) -> None:
    flaw = [way, *way.parents][steps]
    flaw.chmod(rights)
    with pytest.raises(
        NotPrivateError, match=f"{flaw} can be written by other users .its mode is {rights:04o}"
    ) as error:
        private.folder(str(way))
    assert ("in the place of the next one" in str(error.value)) == (steps > 0)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_folders_like_tmp_are_fine_on_the_way_alone(way, steps) -> None:
    [way, *way.parents][steps].chmod(0o1777)
    if steps:
        assert private.folder(str(way)) == os.path.realpath(way)
    else:
        with pytest.raises(NotPrivateError, match="can be written"):
            private.folder(str(way))


@as_root
@pytest.mark.parametrize("rights", [0o755, 0o700, 0o1777])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_folders_of_others(way, steps, rights) -> None:
    flaw = [way, *way.parents][steps]
    flaw.chmod(rights)
    os.chown(flaw, OTHER, OTHER)
    with pytest.raises(NotPrivateError, match=f"{flaw} belongs to another user .{OTHER}"):
        private.folder(str(way))


def test_a_folder_of_root_is_not_this_users_own(way, monkeypatch) -> None:
    """It may lie on the way, but what is run as this user is this user's."""
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        private.folder(str(way))
    with pytest.raises(NotPrivateError, match="/ belongs to another user"):
        private.folder("/")


@as_root
def test_roots_folders_may_lie_on_the_way(way, monkeypatch) -> None:
    """And nobody else's: user 1 is like any other."""
    os.chown(way, OTHER, OTHER)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert private.folder(str(way)) == os.path.realpath(way)
    os.chown(way.parent, 1, 1)
    with pytest.raises(NotPrivateError, match="b belongs to another user .1."):
        private.folder(str(way))


def test_links(way, tmp_path) -> None:
    """The place has none: who changes one later changes nothing."""
    (tmp_path / "absolute").symlink_to(way)
    (tmp_path / "relative").symlink_to("./absolute/../c")
    (way / "up").symlink_to("..")
    for name in ("absolute", "relative", "relative/up/c", "a//./b/c/"):
        assert private.folder(f"{tmp_path}/{name}") == os.path.realpath(way)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("missing/folder")
    with pytest.raises(OSError, match="Too many levels"):
        private.folder(str(tmp_path / "loop"))
    with pytest.raises(FileNotFoundError):
        private.folder(str(tmp_path / "nowhere"))
    assert private.folder(str(tmp_path / "nowhere"), make=True) == os.path.realpath(tmp_path / "missing" / "folder")


def test_so_many_links_and_no_more(way) -> None:
    most = private._MOST_LINKS
    last = way
    for number in range(most + 1):
        link = way.parent / f"link{number}"
        link.symlink_to(last)
        last = link
    assert private.folder(str(way.parent / f"link{most - 1}")) == os.path.realpath(way)
    with pytest.raises(OSError, match="symbolic links"):
        private.folder(str(last))


@pytest.mark.parametrize("flaw", ["a", "a/b", "a/b/c"])
def test_flaws_behind_links(way, tmp_path, flaw) -> None:
    (tmp_path / "link").symlink_to(way)
    (tmp_path / flaw).chmod(0o777)
    with pytest.raises(NotPrivateError, match="can be written"):
        private.folder(str(tmp_path / "link"))


@as_root
def test_links_of_others(way, tmp_path) -> None:
    (tmp_path / "link").symlink_to(way)
    os.lchown(tmp_path / "link", OTHER, OTHER)
    with pytest.raises(NotPrivateError, match="link belongs to another user"):
        private.folder(str(tmp_path / "link"))


# -- files -------------------------------------------------------------------------------------------------------------


def test_files(tmp_path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    file.chmod(0o644)
    assert private.read(str(file), 5) == b"12345"
    with pytest.raises(ValueError, match="5 bytes, more than 4"):
        private.read(str(file), 4)
    with pytest.raises(NotPrivateError, match="can be read by other users"):
        private.read(str(file), 5, secret=True)
    file.chmod(0o600)
    assert private.read(str(file), 5, secret=True) == b"12345"
    with pytest.raises(FileNotFoundError):
        private.read(str(tmp_path / "missing"), 5)


@pytest.mark.parametrize("rights", [0o666, 0o660, 0o602])
def test_files_that_others_can_write(tmp_path, rights) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    file.chmod(rights)
    with pytest.raises(NotPrivateError, match=f"can be written by other users .its mode is {rights:04o}"):
        private.read(str(file), 5)


def test_files_of_others(tmp_path, monkeypatch) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.raises(NotPrivateError, match="belongs to another user"):
        private.read(str(file), 5)


def test_what_is_no_plain_file(tmp_path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name, words in (("link", "is a link"), ("fifo", "no plain file"), ("folder", "no plain file")):
        with pytest.raises(NotPrivateError, match=words):
            private.read(str(tmp_path / name), 5)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_anywhere_leaves_no_file_open(tmp_path) -> None:
    path, there = tmp_path / "file", os.open(tmp_path, os.O_RDONLY)
    os.close(there)
    path.write_text("abc")
    path.chmod(0o600)

    def check(_: object) -> None:
        lowest = os.open(tmp_path, os.O_RDONLY)  # the lowest number that is free
        os.close(lowest)
        assert lowest == there

    assert private.read(str(path), 3) == b"abc"
    assert at_every_step(lambda: None, lambda _: private.read(str(path), 3), check, folder("emit", "private.py")) > 20
