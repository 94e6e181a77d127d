"""Records from log lines, whichever engine wrote them: line by line, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from wiring.logs.evidence import Record
from wiring.logs.log_context import Context, scan, tells_of_server
from wiring.logs.log_text import ANSI
from wiring.logs.other_engines import LlamaCppLog, TensorRTLog, TrainerLog
from wiring.logs.sglang_log import SGLangLog
from wiring.logs.vllm_log import VLLMLog

PARSERS = (SGLangLog, VLLMLog, LlamaCppLog, TensorRTLog, TrainerLog)
_WORDS = [re.compile("|".join(map(re.escape, parser.words))) for parser in PARSERS]
_ALL = {word for parser in PARSERS for word in parser.words}
_FEWEST = tuple(sorted(word for word in _ALL if not any(other != word and other in word for other in _ALL)))
LOOKED_FOR = (
    "SGLang: 'Decode batch ... accept len', 'Load weight end', send_one and bench_sglang_eagle tables",
    "vLLM: 'SpecDecoding metrics', 'Speculative metrics', the blocks of spec_decode.py and `vllm bench serve`",
    "llama.cpp: 'draft acceptance = '",
    "TensorRT-LLM: '[AL]', '[AR]' of trtllm-bench",
    "ModelOpt: 'Average Acceptance Length'; xinfer: 'MTP Stats'; Automodel: 'train_tau_sim'",
    "Prometheus text of SGLang, vLLM or llama.cpp; the JSON of /server_info; meta_info of /generate",
)


def read_lines(lines: Sequence[str], *, source: str = "log", **given: Any) -> tuple[Record, ...]:
    """Acceptance, speed, facts and changed arguments in the lines of a log, by one counting rule.

    `given`: fields of `Given`. Every figure is one record: lines of log intervals are not yet pooled
    (`wiring.logs.pool`); counters that only grow (xinfer, vLLM V0) give their last state. Raises
    WiringError on a version that is none.
    """
    return tuple(emit(lines, scan(lines, source=source, **given)))


def emit(lines: Iterable[str], context: Context) -> Iterator[Record]:
    """The records of the lines, in their order, and at the end those that only the whole says."""
    parsers = [(parser(context), words) for parser, words in zip(PARSERS, _WORDS, strict=True)]
    for at, raw in enumerate(lines, start=1):
        if not any(word in raw for word in _FEWEST):
            continue  # nearly every line of a large log
        line = ANSI.sub("", raw.rstrip("\r\n"))
        for parser, words in parsers:
            if words.search(line) is not None:
                yield from parser.feed(at, line)
    for parser, _ in parsers:
        yield from parser.finish()


def understood(lines: Iterable[str], context: Context) -> Iterator[bool]:
    """Of each line, whether it says something: a figure, a part of one, or what the server is."""
    parsers = [(parser(context), words) for parser, words in zip(PARSERS, _WORDS, strict=True)]
    for at, raw in enumerate(lines, start=1):
        line = ANSI.sub("", raw.rstrip("\r\n"))
        took = [_takes(parser, at, line) for parser, words in parsers if words.search(line) is not None]
        yield any(took) or tells_of_server(line)


def _takes(parser: Any, at: int, line: str) -> bool:
    """Whether the line gives a record, or is kept for one to come."""
    before = _kept(parser)
    return bool(list(parser.feed(at, line))) or _kept(parser) != before


def _kept(parser: Any) -> str:
    return repr({name: value for name, value in vars(parser).items() if name != "_context"})
