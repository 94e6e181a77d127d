"""A file that someone already has: a log of any size, a scrape, a /server_info, or answers with meta_info.

Logs are read line by line, twice (what the server is, then its figures), plain or gzipped, and summed up as they are
read: what is kept does not grow with the file.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from wiring.errors import WiringError
from wiring.logs.evidence import PARTS, AcceptanceRecord, Evidence, Record, SpeedRecord
from wiring.logs.log_context import Context, scan
from wiring.logs.log_lines import emit
from wiring.logs.pooling import Pool
from wiring.logs.prometheus import read_metrics
from wiring.logs.sglang_state import read_meta_info, read_server_info, server_context

_LARGEST_WHOLE = 256 * 1024 * 1024  # bytes of JSON or metrics text, which are read whole
_LONGEST_LINE = 256 * 1024  # bytes; longer ones are cut, so that a file without line ends is read in pieces
_KEPT_FINDINGS = 50
_KEPT_SPEEDS = 1_000  # per group; the median is of the first so many
Progress = Callable[[int], None]  # called with the bytes read so far


@dataclass
class LogSummary:
    """What a file says, summed up by what it was measured under.

    `evidence` holds one pooled record per rule, batch (up to the next power of two), CUDA graphs and hour; what cannot
    be stands in records of its own. `impossible`: the first figures that no counting rule, or another one, explains;
    `impossible_count`: how many there were.
    """

    kind: str
    context: Context
    evidence: Evidence
    figures: int = 0
    impossible: tuple[AcceptanceRecord, ...] = ()
    impossible_count: int = 0

    @property
    def empty(self) -> bool:
        """Nothing known was in the file."""
        e = self.evidence
        return not (e.acceptance or e.speed or e.facts or e.arguments or e.accuracy)


def read_file(path: Path, earlier: Path | None = None, *, progress: Progress | None = None, **given: Any) -> LogSummary:
    """Read a file of whatever kind. `earlier`: the scrape before this one, whose counters are taken off.

    `given`: fields of `Given`. Raises WiringError where it cannot be read.
    """
    kind = _kind(path)
    if earlier is not None and kind != "metrics":
        raise WiringError(
            "only a scrape of /metrics can be compared with an earlier one",
            where=path,
            expected="Prometheus text",
            found=kind,
            remedy="Leave out --earlier",
        )
    if kind == "log":
        context = scan(lines_of(path), source=path.name, **given)
        return _sum_up(kind, context, emit(lines_of(path, progress), context))
    context = scan((), source=path.name, **given)
    if kind == "metrics":
        now, before = _whole(path), None if earlier is None else _whole(earlier)
        summary = _sum_up(kind, context, iter(read_metrics(now, before, source=path.name, **given)))
        if before is not None and summary.empty and read_metrics(now, source=path.name, **given):
            raise WiringError(
                "no round was counted between the two scrapes",
                where=path,
                expected="counters that grew",
                found=f"those of {earlier}",
                remedy="Scrape again after some requests",
            )
        return summary
    value = json.loads(_whole(path))
    if kind == "server_info":
        context = server_context(value, given.get("version"), path.name)
        return _sum_up(kind, context, iter(read_server_info(value, given.get("version"), source=path.name)))
    answers = value if isinstance(value, list) else [value]
    return _sum_up(kind, context, iter(read_meta_info(answers, source=path.name, **given)))


def lines_of(path: Path, progress: Progress | None = None) -> Iterator[str]:
    """The lines of a log, plain or gzipped; bytes that are no UTF-8 are replaced."""
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
            where=path,
            found=str(error),
            remedy="Name a readable file, or copy a broken archive again",
        ) from None


def _kind(path: Path) -> str:
    """log, metrics, server_info or meta_info, told from how the file begins."""
    first = next((line for line in lines_of(path) if line.strip()), "").lstrip("\ufeff \t")
    if not first:
        raise WiringError("this file is empty", where=path, expected="a log, a scrape or an answer")
    with path.open("rb") as raw:
        if _wide(raw.read(64)):
            raise WiringError(
                "this file is not text in UTF-8",
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


def _wide(head: bytes) -> bool:
    """Text of two bytes a letter, as PowerShell's `>` writes it: by its mark, or every other byte is nothing."""
    return head.startswith((b"\xff\xfe", b"\xfe\xff")) or (len(head) > 1 and any(head[::2]) != any(head[1::2]))


def _whole(path: Path) -> str:
    return "".join(lines_of(path))


@dataclass
class _Speeds:
    condition: dict[str, Any]
    values: list[float] = field(default_factory=list)
    length: float = 0.0
    first: SpeedRecord | None = None

    def add(self, record: SpeedRecord) -> None:
        self.first = self.first or record
        if len(self.values) < _KEPT_SPEEDS and record.tok_per_s is not None:
            self.values.append(record.tok_per_s)
            self.length += record.accept_length or 0.0

    def result(self) -> SpeedRecord:
        assert self.first is not None
        if len(self.values) == 1:
            return self.first.model_copy(update={"condition": self.condition})
        told = f"{self.first.source} and {len(self.values) - 1} more, median of log intervals"
        update = {
            "source": told,
            "tok_per_s": median(self.values),
            "condition": self.condition,
            "accept_length": self.length / len(self.values) or None,
        }
        return self.first.model_copy(update=update)


def _sum_up(kind: str, context: Context, records: Iterator[Record]) -> LogSummary:
    pools: dict[tuple, Pool] = {}
    speeds: dict[tuple, _Speeds] = {}
    rest: dict[str, list[Record]] = {"facts": [], "arguments": [], "accuracy": []}
    kept: list[AcceptanceRecord] = []
    impossible = figures = 0
    for record in records:
        if isinstance(record, AcceptanceRecord):
            figures += 1
            if record.impossible:
                impossible += 1
                if len(kept) < _KEPT_FINDINGS:
                    kept.append(record)
            condition = _coarse(record.condition)
            key = (record.rule, bool(record.impossible), *sorted(condition.items()))
            if key not in pools:
                pools[key] = Pool(condition)
            pools[key].add(record)
        elif isinstance(record, SpeedRecord):
            condition = _coarse(record.condition)
            speeds.setdefault((record.arm, *sorted(condition.items())), _Speeds(condition)).add(record)
        else:
            rest[PARTS[type(record)]].append(record)
    evidence = Evidence(
        name=context.source,
        setting=context.setting,
        acceptance=tuple(one.result() for one in pools.values()),
        speed=tuple(one.result() for one in speeds.values()),
        **{name: tuple(found) for name, found in rest.items()},
    )
    return LogSummary(kind, context, evidence, figures, tuple(kept), impossible)


def _coarse(condition: Any) -> dict[str, Any]:
    """The condition of a group: batch up to the next power of two, whole hours, prompt lengths up to one as well."""
    coarse = dict(condition)
    for name in ("batch", "prompt_tokens"):
        if isinstance(coarse.get(name), int) and coarse[name] > 0:
            coarse[name] = 1 << (coarse[name] - 1).bit_length()
    if isinstance(coarse.get("hours"), int | float):
        coarse["hours"] = int(coarse["hours"])
    return coarse
