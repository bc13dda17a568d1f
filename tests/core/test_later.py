"""Modules that are imported later: once, in the standard floating-point environment, and whole in forked children."""

import os
import subprocess
import sys

import pytest

SLOW = "import time\ntime.sleep(0.5)\nthere = True\n"
FORKS = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from volta.core.later import import_later
thread = threading.Thread(target=import_later, args=("slow_module",))
thread.start()
while "slow_module" not in sys.modules: time.sleep(0.001)
child = os.fork()
if not child:
    signal.alarm(20)  # a child that waits for the parent's thread would wait for ever
    assert import_later("slow_module").there
    os._exit(0)
code = os.waitstatus_to_exitcode(os.wait()[1])
thread.join()
print(code, import_later("slow_module").there)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_has_what_another_thread_was_importing(tmp_path) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0 True\n", "")
