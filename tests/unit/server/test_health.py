"""What a server's log says about its end, on logs as SGLang 0.5.23 writes them."""

from pathlib import Path

import pytest

from wiring.server.health import StartProgress, describe_status, log_tail, quiet_lines, raised_in

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


def test_statuses_in_words():
    assert describe_status(3) == "exit status 3"
    assert describe_status(128 + 15) == "ended by signal 15"
    assert "memory" in describe_status(137) and "memory" not in describe_status(137, explained=True)


def test_lines_appear_on_a_new_stage_or_after_a_while():
    lines = []
    show = quiet_lines(lines.append, every_s=10)
    for elapsed, stage in [
        (0, "importing"),
        (1, "importing"),
        (2, "loading weights"),
        (9, "loading weights"),
        (12.5, "loading weights"),
        (13, "loading weights"),
    ]:
        show(StartProgress(elapsed, stage, Path("/log")))
    assert [line.split(", ")[1].split(" s")[0] for line in lines] == ["0", "2", "12"]
