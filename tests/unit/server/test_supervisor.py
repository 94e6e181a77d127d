"""However the owner ends, no process of the supervised tree is left."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from wiring.errors import WiringError
from wiring.server.supervisor import start_supervised

PROGRAMS = Path(__file__).parent / "programs"
TREE, OWNER = str(PROGRAMS / "tree.py"), str(PROGRAMS / "owner.py")
LIMIT_S = 10.0  # the documented limit


def left_of(pids):
    """Wait up to the documented limit; return the ids of the processes that still run (zombies do not)."""
    deadline = time.monotonic() + LIMIT_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shared_memory(pids):
    return Path(f"/dev/shm/sglang_stand_in_{pids[0]}")


def tree_pids(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, "the tree did not start"
        time.sleep(0.02)
    pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 3 and all(alive(pid) for pid in pids)
    return pids


@pytest.fixture
def start_tree(tmp_path):
    """Start the tree under a supervisor of this process; returns (process, its three ids)."""
    started = []

    def start(*arguments, **options):
        report, log = tmp_path / f"pids{len(started)}", tmp_path / "server.log"
        started.append(start_supervised([sys.executable, TREE, str(report), *arguments], os.environ, log, **options))
        return started[-1], tree_pids(report)

    yield start
    for process in started:
        process.end()


@pytest.fixture
def owner(tmp_path):
    """Start an owner in another process; returns (owner, ids of its tree, id of its forked copy or -1)."""
    started = []

    def start(*options):
        report = tmp_path / "pids"
        command = [sys.executable, OWNER, str(tmp_path / "log"), *options, "--", sys.executable, TREE, str(report)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        main, copy = map(int, process.stdout.readline().split())
        pids = tree_pids(report)
        assert pids[0] == main
        return process, pids, copy

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("grace_s", [0.0, 1.0])
def test_end_ends_the_whole_tree(start_tree, grace_s):
    process, pids = start_tree(grace_s=grace_s)
    assert process.alive and process.exit_status is None and process.pid == pids[0]
    assert shared_memory(pids).exists()
    process.end()
    assert not [pid for pid in pids if alive(pid)]  # already when end() returns
    assert not shared_memory(pids).exists()
    assert not process.alive and process.exit_status == 128 + (signal.SIGTERM if grace_s else signal.SIGKILL)
    process.end()


def test_killing_the_owner_ends_the_tree(owner):
    process, pids, _ = owner()
    process.kill()
    assert left_of(pids) == []


def test_a_forked_copy_of_the_owner_does_not_keep_the_tree_alive(owner):
    process, pids, copy = owner("--fork")
    try:
        process.kill()
        process.wait()
        assert alive(copy)
        assert left_of(pids) == []
    finally:
        os.kill(copy, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_supervisor_ends_the_tree(start_tree, number):
    process, pids = start_tree()
    os.kill(psutil.Process(process.pid).ppid(), number)
    assert left_of(pids) == []
    assert process.wait(LIMIT_S) is not None


def test_killing_the_supervisor_ends_the_session_of_the_command(start_tree):
    process, pids = start_tree()
    os.kill(psutil.Process(process.pid).ppid(), signal.SIGKILL)
    in_session, left_session = pids[:2], pids[2]
    assert left_of(in_session) == []
    os.kill(left_session, signal.SIGKILL)  # outside the session, so nothing finds it
    shared_memory(pids).unlink()


def test_a_command_that_exits_by_itself_leaves_nothing(start_tree, tmp_path):
    process, pids = start_tree("exit-after", "8", "3")  # the supervisor looks for shared memory every 3 s
    assert process.wait(30) == 3
    assert left_of(pids) == []
    assert not shared_memory(pids).exists()
    assert "the stand-in gave up" in (tmp_path / "server.log").read_text()


def test_the_scratch_folder_is_removed(start_tree):
    process, pids = start_tree(scratch=True)
    temporary = Path(psutil.Process(pids[0]).environ()["TMPDIR"])
    assert (temporary / "left-behind").exists()
    process.end()
    assert not temporary.exists()


def test_a_nested_supervisor_ends_its_own_tree_within_the_grace_period(tmp_path):
    """As for a notebook that runs under one supervisor and starts a server under another."""
    report = tmp_path / "pids"
    nested = [sys.executable, "-m", "wiring.server.supervisor", "--owner", "{owner}", "--report", "2", "--scratch"]
    run = "import os, subprocess, sys; subprocess.run([word.format(owner=os.getpid()) for word in sys.argv[1:]])"
    command = [sys.executable, "-c", run, *nested, "--", sys.executable, TREE, str(report)]
    process = start_supervised(command, os.environ, tmp_path / "log", grace_s=5.0)
    pids = tree_pids(report)
    temporary = Path(psutil.Process(pids[0]).environ()["TMPDIR"])
    process.end()
    assert not [pid for pid in pids if alive(pid)]
    assert not temporary.exists() and not shared_memory(pids).exists()


def test_a_process_started_in_a_thread_outlives_the_thread(start_tree):
    result = []
    thread = threading.Thread(target=lambda: result.append(start_tree()))
    thread.start()
    thread.join()
    process, pids = result[0]
    time.sleep(0.5)  # five polls of the supervisor
    assert process.exit_status is None and all(alive(pid) for pid in pids)


def test_trees_of_one_owner_end_one_by_one(start_tree):
    (first, first_pids), (second, second_pids) = start_tree(), start_tree()
    first.end()
    assert not [pid for pid in first_pids if alive(pid)]
    assert all(alive(pid) for pid in second_pids)
    second.end()
    assert not [pid for pid in second_pids if alive(pid)]


def test_what_cannot_be_started_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    for command, log, code in (
        ("/no-such-program", tmp_path / "log", "command-not-executable"),
        ("true", tmp_path / "file" / "log", "log-not-writable"),
    ):
        with pytest.raises(WiringError) as error:
            start_supervised([command], os.environ, log)
        assert (error.value.code, error.value.where) == (code, str(log))
