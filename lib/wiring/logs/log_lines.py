"""Read records from log lines of any engine, line by line, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wiring.logs.evidence import Record
from wiring.logs.line_parser import LineParser
from wiring.logs.log_context import Context, describes_server, scan
from wiring.logs.log_text import ANSI
from wiring.logs.other_engines import LlamaCppLog, TensorRTLog, TrainerLog
from wiring.logs.sglang_log import SGLangLog
from wiring.logs.vllm_log import VLLMLog

PARSERS: tuple[type[LineParser], ...] = (SGLangLog, VLLMLog, LlamaCppLog, TensorRTLog, TrainerLog)
_WORDS = [re.compile("|".join(map(re.escape, parser.words))) for parser in PARSERS]
_ALL = {word for parser in PARSERS for word in parser.words}
_SHORTEST = tuple(sorted(word for word in _ALL if not any(other != word and other in word for other in _ALL)))
LOOKED_FOR = (
    "SGLang: 'Decode batch ... accept len', 'Load weight end', send_one and bench_sglang_eagle tables",
    "vLLM: 'SpecDecoding metrics', 'Speculative metrics', the blocks of spec_decode.py and `vllm bench serve`",
    "llama.cpp: 'draft acceptance = '",
    "TensorRT-LLM: '[AL]', '[AR]' of trtllm-bench",
    "ModelOpt: 'Average Acceptance Length'; xinfer: 'MTP Stats'; Automodel: 'train_tau_sim'",
    "Prometheus text of SGLang, vLLM or llama.cpp; the JSON of /server_info; meta_info of /generate",
)


def read_lines(lines: Sequence[str], *, source: str = "log", **given: Any) -> tuple[Record, ...]:
    """Return acceptance, speed, facts and changed arguments in the lines of a log, by one counting rule.

    `given`: fields of `Given`. Every figure is one record, and lines of log intervals are not pooled; counters that
    only grow (xinfer, vLLM V0) give their last state. Raises WiringError on an invalid version.
    """
    return tuple(emit(lines, scan(lines, source=source, **given)))


def emit(lines: Iterable[str], context: Context) -> Iterator[Record]:
    """Yield the records of the lines in order, then those that the end of the log completes."""
    parsers = [parser(context) for parser in PARSERS]
    for at, raw in enumerate(lines, start=1):
        if not any(word in raw for word in _SHORTEST):
            continue  # nearly every line of a large log
        line = ANSI.sub("", raw.rstrip("\r\n"))
        for parser, words in zip(parsers, _WORDS, strict=True):
            if words.search(line) is not None:
                yield from parser.feed(at, line)
    for parser in parsers:
        yield from parser.finish()


def understood(lines: Iterable[str], context: Context) -> Iterator[bool]:
    """Yield for each line whether it holds a figure, a part of one, or what the server is."""
    parsers = [parser(context) for parser in PARSERS]
    for at, raw in enumerate(lines, start=1):
        line = ANSI.sub("", raw.rstrip("\r\n"))
        asked = [parser for parser, words in zip(parsers, _WORDS, strict=True) if words.search(line) is not None]
        before = repr([vars(parser) for parser in asked])
        found = [record for parser in asked for record in parser.feed(at, line)]
        kept = repr([vars(parser) for parser in asked]) != before  # for a record to come
        yield bool(found) or kept or describes_server(line)
