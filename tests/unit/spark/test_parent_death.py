"""Tests of processes that end with their parents."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import psutil
import pytest
from acceptance_tools import await_true, gone

from transporter.spark.parent_death import bind_to_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of parents")
CHILD = """
import subprocess, sys, time
from transporter.spark.parent_death import bind_to_parent
child = subprocess.Popen(bind_to_parent(["sleep", "60"]))
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_ends_with_its_parent(hangs: bool) -> None:
    """A child ends with its killed parent, even if the child is suspended."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        await_true(lambda: child.name() == "sleep", 10, "the command", pause=0.01)
        if hangs:
            child.suspend()
        parent.kill()
    assert gone([child]) == []


def test_a_process_whose_parent_has_ended_before_it_asked_does_not_begin() -> None:
    """A process whose parent has ended already does not run its command."""
    command = bind_to_parent(["echo", "begun"])
    command[4] = "1"
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (1, b"")


def test_the_command_is_run_as_it_is() -> None:
    """Arguments, output and exit code belong to the command."""
    command = bind_to_parent([sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "a  b"])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "a  b\n")


def test_a_process_ends_with_the_thread_that_started_it() -> None:
    """A process ends with the thread that started it, which is its parent for Linux."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.append(subprocess.Popen(bind_to_parent(["sleep", "60"]), stdout=subprocess.PIPE))
        process = psutil.Process(started[0].pid)
        await_true(lambda: process.name() == "sleep", 10, "the command", pause=0.01)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert started[0].wait(10) == -signal.SIGKILL
    assert started[0].stdout is not None
    started[0].stdout.close()
