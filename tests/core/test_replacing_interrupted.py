"""An interrupt leaves no file open that takes the place of another."""

import os

import pytest

from tests.interrupt_support import at_every_step, folder
from volta.core import replacing


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_interrupt_anywhere_leaves_no_file_open(tmp_path):
    path = str(tmp_path / "file")

    def prepare() -> None:
        (tmp_path / f"{replacing.PREFIX}left{replacing.SUFFIX}").write_bytes(b"")

    def act(_: object) -> None:
        replacing.sweep(str(tmp_path))
        with replacing.replacing(path) as file:
            file.write(b"abc")

    def lowest() -> int:
        """The lowest number of a file that is free."""
        found = os.open(tmp_path, os.O_RDONLY)
        os.close(found)
        return found

    def check(_: object) -> None:
        assert lowest() == before

    before = lowest()
    assert at_every_step(prepare, act, check, folder("core", "replacing.py")) > 100
