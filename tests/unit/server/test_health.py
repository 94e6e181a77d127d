"""Reading why a server died from its log, on logs of SGLang 0.5.23."""

import itertools
from types import SimpleNamespace

import pytest

from wiring.errors import WiringError
from wiring.server import health
from wiring.server.health import describe_status, log_tail, raised_in, wait_until_healthy

WORKER_DIED = """\
[2026-11-29 18:40:01] Load weight begin. avail mem=18.87 GB
[2026-11-29 18:40:02] Scheduler hit an exception: Traceback (most recent call last):
  File "/site-packages/sglang/srt/managers/scheduler.py", line 6364, in run_scheduler_process
    scheduler = Scheduler(server_args, port_args)
RuntimeError: captured 2 of 3 aux hidden states

[2026-11-29 18:40:02] SIGQUIT received. signum=None, frame=None. It usually means one child failed.
RuntimeError: Initialization failed. Please see the error messages above.
"""
MAIN_DIED = """\
/site-packages/requests/__init__.py:86: RequestsDependencyWarning: odd versions
Traceback (most recent call last):
  File "/site-packages/huggingface_hub/utils/_validators.py", line 1, in check
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
OSError: Can't load the configuration of '/nowhere'.
"""


@pytest.mark.parametrize(
    "text, cause",
    [
        (WORKER_DIED, "RuntimeError: captured 2 of 3 aux hidden states"),
        (MAIN_DIED, "OSError: Can't load the configuration of '/nowhere'"),
        ("[2026-11-29 18:40:02] torch.OutOfMemoryError: of CUDA memory", "torch.OutOfMemoryError: of CUDA memory"),
        ("usage: x\nsglang serve: error: unrecognized: --oops\n", "sglang serve: error: unrecognized: --oops"),
        ("all went well\nError-free so far: 3 Exceptions in sight", ""),
        ("", ""),
    ],
)
def test_the_exception_that_brought_a_server_down(text, cause):
    assert raised_in(text) == cause


def test_the_tail_skips_blank_lines_and_survives_odd_bytes(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"one\n\n\xff two\n   \nthree\n")
    assert log_tail(log, lines=2) == "  \ufffd two\n  three"
    log.write_text("server_args=" + "x" * 9000)
    assert len(log_tail(log)) < 320
    assert "empty" in log_tail(tmp_path / "absent")


def test_an_exit_status_is_described():
    assert describe_status(3) == "exit status 3"
    assert describe_status(128 + 15) == "ended by signal 15"
    assert "memory" in describe_status(137) and "memory" not in describe_status(137, explained=True)


def test_progress_is_reported_on_a_new_stage_and_every_30_s(tmp_path, monkeypatch):
    log, lines, times = tmp_path / "log", [], itertools.chain([0, 1, 2, 9, 31.5, 33, 99])
    log.write_text("")
    now = iter(times)
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: next(now)))

    def healthy():
        log.write_text("Load weight begin")
        return False

    client = SimpleNamespace(healthy=healthy)
    process = SimpleNamespace(exit_status=None, wait=lambda limit_s: None)
    with pytest.raises(WiringError) as error:
        wait_until_healthy(client, process, log, 50, lines.append, 0)
    assert error.value.code == "server-not-ready"
    assert [line.split(": ")[1].split(" s so far")[0] for line in lines] == [
        "importing, 0",
        "loading weights, 1",
        "loading weights, 32",
        "loading weights, 99",
    ]
