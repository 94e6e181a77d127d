"""A log of many lines in an evidence file: the work grows with the lines, not with their pairs."""

from time import process_time

from wiring.diagnosis.verdict import diagnose
from wiring.logs.evidence import Evidence

LINE = (
    "[2026-06-17 {:02}:{:02}:{:02}] Decode batch, #running-req: {}, #token: 9, token usage: 0.00, accept len: {:.2f}, "
    "accept rate: {:.2f}, cuda graph: True, gen throughput (token/s): {:.2f}, #queue-req: 0"
)


def spent(lines: int) -> float:
    """Seconds of the processor for a verdict on a day's log of so many lines, each of another moment and speed."""
    log = []
    for n in range(lines):
        second, length = n * 86_399 // lines, 2.0 + n % 3 / 2
        log.append(
            LINE.format(
                second // 3600,
                second // 60 % 60,
                second % 60,
                1 + n % 64,
                length,
                (length - 1) / 3,
                90 + n % 1000 / 100,
            )
        )
    evidence = Evidence(setting={"version": "0.5.23", "steps": 3, "topk": 1}, log=log)
    begin = process_time()
    diagnose(evidence)
    return process_time() - begin


def test_eight_times_the_lines_take_about_eight_times_as_long():
    spent(100)  # imports
    assert spent(6_000) < 24 * spent(750)  # each line held against each other would be 64 times
