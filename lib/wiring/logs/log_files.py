"""Read a file: a log of any size, a scrape, a /server_info, or answers with meta_info.

Logs are read line by line, twice (what the server is, then its figures), plain or gzipped, and pooled while they are
read, so memory does not grow with the file.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wiring.errors import WiringError
from wiring.logs.evidence import PARTS, AcceptanceRecord, Evidence, Record, SpeedRecord
from wiring.logs.log_context import Context, scan
from wiring.logs.log_lines import emit
from wiring.logs.pooling import AcceptancePool, SpeedPool
from wiring.logs.prometheus import read_metrics
from wiring.logs.sglang_state import read_meta_info, read_server_info, server_context

_LARGEST_WHOLE = 256 * 1024 * 1024  # bytes of JSON or metrics text, which are read at once
_LONGEST_LINE = 256 * 1024  # bytes; longer lines are cut, so a file without line ends is read in pieces
_KEPT_FINDINGS = 50
Progress = Callable[[int], object]  # called with the bytes read so far


@dataclass
class LogSummary:
    """What a file holds, pooled by what it was measured under.

    `evidence` holds one pooled record per rule, batch (up to the next power of two), CUDA graphs and hour; impossible
    figures have records of their own. `impossible`: the first of `impossible_count` figures that their counting rule
    does not explain.
    """

    kind: str
    context: Context
    evidence: Evidence
    figures: int = 0
    impossible: tuple[AcceptanceRecord, ...] = ()
    impossible_count: int = 0

    @property
    def empty(self) -> bool:
        """Whether nothing known was in the file."""
        e = self.evidence
        return not (e.acceptance or e.speed or e.facts or e.arguments or e.accuracy)


def read_file(path: Path, earlier: Path | None = None, *, progress: Progress | None = None, **given: Any) -> LogSummary:
    """Read a file of any supported format. `earlier`: the scrape before this one; its counters are subtracted.

    `given`: fields of `Given`. Raises WiringError where the file cannot be read.
    """
    kind = _kind(path)
    if earlier is not None and kind != "metrics":
        raise WiringError(
            "only a scrape of /metrics can be compared with an earlier one",
            code="earlier-needs-scrape",
            where=path,
            expected="Prometheus text",
            found=kind,
            remedy="Leave out --earlier",
        )
    context = scan(lines_of(path) if kind == "log" else (), source=path.name, **given)
    if kind == "log":
        return _sum_up(kind, context, emit(lines_of(path, progress), context))
    if kind == "metrics":
        now, before = _whole(path), None if earlier is None else _whole(earlier)
        summary = _sum_up(kind, context, read_metrics(now, before, source=path.name, **given))
        if before is not None and summary.empty and read_metrics(now, source=path.name, **given):
            raise WiringError(
                "no round was counted between the two scrapes",
                code="no-round-between-scrapes",
                where=path,
                expected="counters that grew",
                found=f"the counters of {earlier}",
                remedy="Scrape again after some requests",
            )
        return summary
    value = json.loads(_whole(path))
    if kind == "server_info":
        version = given.get("version")
        context = server_context(value, version, path.name)
        return _sum_up(kind, context, read_server_info(value, version, source=path.name))
    answers = value if isinstance(value, list) else [value]
    return _sum_up(kind, context, read_meta_info(answers, source=path.name, **given))


def lines_of(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """Yield the lines of a log, plain or gzipped; bytes that are not UTF-8 are replaced."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.open(raw) if packed else raw
            for count, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b"")):
                if progress is not None and count % 4096 == 0:
                    progress(raw.tell())
                yield line.decode("utf-8", errors="replace")
    except (OSError, EOFError, zlib.error) as error:
        raise WiringError(
            "this file cannot be read",
            code="log-unreadable",
            where=path,
            found=str(error),
            remedy="Name a readable file, or copy a broken archive again",
        ) from None


def _kind(path: Path) -> str:
    """The format by the start of the file: log, metrics, server_info or meta_info."""
    first = next((line for line in lines_of(path) if line.strip()), "").lstrip("\ufeff \t")
    if not first:
        raise WiringError("this file is empty", code="log-empty", where=path, expected="a log, a scrape or an answer")
    with path.open("rb") as raw:
        head = raw.read(64)
    # two bytes per letter, as PowerShell's `>` writes: by its mark, or because every other byte is 0
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(head) > 1 and any(head[::2]) != any(head[1::2])):
        raise WiringError(
            "this file is not UTF-8 text",
            code="log-not-utf8",
            where=path,
            found="UTF-16",
            remedy="Save it as UTF-8: `iconv -f UTF-16 -t UTF-8`",
        )
    if first.startswith(("# HELP", "# TYPE")):
        return "metrics"
    if not first.startswith(("{", "[")) or first.startswith("[2") or path.stat().st_size > _LARGEST_WHOLE:
        return "log"
    try:
        value = json.loads(_whole(path))
    except json.JSONDecodeError:
        return "log"  # one JSON object per line, for example
    if isinstance(value, dict) and ("internal_states" in value or "speculative_algorithm" in value):
        return "server_info"
    entries = value if isinstance(value, list) else [value]
    return "meta_info" if entries and all(isinstance(entry, dict) for entry in entries) else "log"


def _whole(path: Path) -> str:
    return "".join(lines_of(path))


def _sum_up(kind: str, context: Context, records: Iterable[Record]) -> LogSummary:
    pools: dict[tuple, AcceptancePool] = {}
    speeds: dict[tuple, SpeedPool] = {}
    rest: dict[str, list[Record]] = {"facts": [], "arguments": [], "accuracy": []}
    kept: list[AcceptanceRecord] = []
    impossible = figures = 0
    for record in records:
        if isinstance(record, AcceptanceRecord):
            figures += 1
            if record.impossible:
                impossible += 1
                kept += [record] if len(kept) < _KEPT_FINDINGS else []
            condition = _coarse(record.condition)
            key = (record.rule, bool(record.impossible), *sorted(condition.items()))
            pools.setdefault(key, AcceptancePool(condition)).add(record)
        elif isinstance(record, SpeedRecord):
            condition = _coarse(record.condition)
            speeds.setdefault((record.arm, *sorted(condition.items())), SpeedPool(condition)).add(record)
        else:
            rest[PARTS[type(record)]].append(record)
    others: dict[str, Any] = {name: tuple(found) for name, found in rest.items()}
    evidence = Evidence(
        name=context.source,
        setting=context.setting,
        acceptance=tuple(one.result() for one in pools.values()),
        speed=tuple(one.result() for one in speeds.values()),
        **others,
    )
    return LogSummary(kind, context, evidence, figures, tuple(kept), impossible)


def _coarse(condition: Any) -> dict[str, Any]:
    """The condition of a pool: batch and prompt lengths up to the next power of two, whole hours."""
    coarse = dict(condition)
    for name in ("batch", "prompt_tokens"):
        if isinstance(coarse.get(name), int) and coarse[name] > 0:
            coarse[name] = 1 << (coarse[name] - 1).bit_length()
    if isinstance(coarse.get("hours"), int | float):
        coarse["hours"] = int(coarse["hours"])
    return coarse
