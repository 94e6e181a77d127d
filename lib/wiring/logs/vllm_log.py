"""vLLM: interval lines, the blocks of its offline script and of `vllm bench serve`, V0's line, weight sharing.

Read from vLLM's `vllm/v1/spec_decode/metrics.py` (the order of fields changed between 0.8 and 0.10, so each is looked
up by name), `examples/offline_inference/spec_decode.py`, `vllm/benchmarks/serve.py`, `vllm/engine/metrics.py` (V0) and
`vllm/v1/spec_decode/llm_base_proposer.py` (0.11 to 0.29). Its counting rule is the one used here: mean acceptance
length = 1 + accepted / drafts, shares by position over all drafts. The line does not print the number of drafts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from wiring.logs.acceptance_figures import Figures, digits_of, with_rounds
from wiring.logs.evidence import Record
from wiring.logs.line_parser import LineParser
from wiring.logs.log_context import Context
from wiring.logs.log_text import count, field_of, number, rate_of

_LINE = "vLLM log: 1 + accepted / drafts of the interval, bonus token included; rounds inferred from the figures"
_BLOCK = "vLLM counters: 1 + accepted / drafts, bonus token included"
_V0 = (
    "vLLM V0: emitted tokens / rounds, rounds = draft tokens / speculative tokens; its draft acceptance rate counts "
    "drafts behind a rejected one too and is not used"
)
_SHARE = r"(?:-?\d+(?:\.\d+)?|nan)"
_SHARES = re.compile(rf"Per-position acceptance rate:\s*\[?\s*({_SHARE}(?:\s*,\s*{_SHARE})*)")
_ENGINE = re.compile(r"Engine (\d+).*?Avg generation throughput: (\d+(?:\.\d+)?) tokens/s, Running: (\d+) reqs")
_FIELDS = {
    "total_num_output_tokens": "tokens",
    "num_drafts": "rounds",
    "Number of drafts": "rounds",
    "Drafts": "rounds",
    "num_draft_tokens": "drafted",
    "Draft tokens generated": "drafted",
    "Draft tokens": "drafted",
    "num_accepted_tokens": "accepted",
    "Accepted tokens": "accepted",
    "mean acceptance length": "length",
    "Mean acceptance length": "length",
    "Acceptance length": "length",
}
_FIELD = re.compile(r"^[\s>|]*(" + "|".join(_FIELDS) + r")\s*:\s*(-?\d+(?:\.\d+)?|nan)\s*(?:$|[|,])")
_AT = re.compile(r"^[\s>|]*(?:acceptance at token|Position)\s+(\d+)\s*:\s*(-?\d+(?:\.\d+)?|nan)")
_PATIENCE = 8  # lines of other content after which a block is complete
_WRAPPED = 4  # lines over which an interval line may be wrapped


class VLLMLog(LineParser):
    """Reads a vLLM log."""

    words = ("ccept", "raft", "Avg generation throughput", "embed", "num_output_tokens", "  Position ")

    def __init__(self, context: Context):
        super().__init__(context)
        self._open: tuple[int, str] | None = None  # an interval line that was wrapped
        self._running: dict[str, int] = {}
        self._block: dict[str, str] = {}
        self._shares: list[str] = []
        self._percent = False
        self._block_at = self._last_at = 0
        self._v0: tuple[int, str] | None = None
        self._own_embedding: set[bool] = set()
        self._embedding_at = 0

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield the records that line number `at` completes."""
        if self._block and at - self._last_at > _PATIENCE:
            yield from self._close()
        if self._open is not None:
            if "SpecDecoding metrics" in line or at - self._open[0] > _WRAPPED:
                yield from self._interval(*self._open)
                self._open = None
            else:
                at, line = self._open[0], f"{self._open[1]} {line.strip()}"
        if "SpecDecoding metrics" in line:
            self._open = (at, line.rstrip()) if _SHARES.search(line) is None or line.rstrip().endswith(",") else None
            if self._open is None:
                yield from self._interval(at, line)
        elif "Speculative metrics:" in line:
            self._v0 = (at, line)  # counters since the start: the last line counts
        elif (engine := _ENGINE.search(line)) is not None:
            speed, running = float(engine[2]), int(engine[3])
            self._running[engine[1]] = running
            if speed > 0 and running > 0 and self._context.plain is not None:
                yield self._speed(at, "plain" if self._context.plain else "draft", speed, line=line, batch=running)
        elif "Detected" in line and ("embed_tokens" in line or "embedding weights" in line):
            self._own_embedding.add("distinct" in line)
            self._embedding_at = at
        else:
            yield from self._in_block(at, line)

    def finish(self) -> Iterator[Record]:
        """Yield what is still open, the last V0 line, and what all ranks together say of the embedding."""
        if self._open is not None:
            yield from self._interval(*self._open)
        if self._block or self._shares:
            yield from self._close()
        if self._v0 is not None:
            yield from self._v0_line(*self._v0)
        if self._own_embedding:
            yield self._fact(self._embedding_at, "embedding_equals_target", True not in self._own_embedding)
            if len(self._own_embedding) > 1:  # each rank decides for itself
                yield self._fact(self._embedding_at, "embedding_ranks_agree", False)

    def _interval(self, at: int, line: str) -> Iterator[Record]:
        printed, drafted = field_of(line, "Mean acceptance length"), count(field_of(line, r"\bDrafted"))
        length, rate = number(printed), rate_of(line, r"[Dd]raft acceptance rate")
        listed = found[1].split(",") if (found := _SHARES.search(line)) else []
        nothing_drafted = drafted == 0 or length != length
        if nothing_drafted or (length is None and rate is None and not listed):
            return
        figures = Figures(
            length=length,
            digits=2 if printed is None else digits_of(printed),
            accepted=count(field_of(line, r"\bAccepted")),
            drafted=drafted,
            by_position=tuple(map(float, listed)),
            position_digits=max((digits_of(text.strip()) for text in listed), default=3),
            rate=rate,
            per_round=self._context.per_round or len(listed) or None,
        )
        running = next(iter(self._running.values())) if len(self._running) == 1 else 0
        yield self._acceptance(at, with_rounds(figures), _LINE, line, batch=running or None)

    def _in_block(self, at: int, line: str) -> Iterator[Record]:
        share, named = _AT.match(line), _FIELD.match(line)
        if share is not None:
            if int(share[1]) != len(self._shares):
                yield from self._close()
            if int(share[1]) != len(self._shares):
                return
            self._shares.append(share[2])
            self._percent |= "Position" in line
        elif named is not None:
            name = _FIELDS[named[1]]
            if name in self._block or self._shares:
                yield from self._close()
            self._block[name] = named[2]
        else:
            return
        self._block_at = self._block_at or at
        self._last_at = at

    def _close(self) -> Iterator[Record]:
        block, shares, percent, at = self._block, self._shares, self._percent, self._block_at
        self._block, self._shares, self._percent, self._block_at = {}, [], False, 0
        printed, rounds = block.get("length"), count(block.get("rounds"))
        drafted, accepted = count(block.get("drafted")), count(block.get("accepted"))
        if rounds == 0 or (printed is None and not shares and (rounds is None or "accepted" not in block)):
            return
        whole = drafted // rounds if drafted and rounds and drafted % rounds == 0 else None
        figures = Figures(
            length=number(printed),
            digits=2 if printed is None else digits_of(printed),
            rounds=rounds,
            accepted=accepted,
            drafted=drafted,
            by_position=tuple(float(text) / (100 if percent else 1) for text in shares),
            position_digits=max((digits_of(text) for text in shares), default=3) + (2 if percent else 0),
            per_round=whole or self._context.per_round,
        )
        yield self._acceptance(at, with_rounds(figures), _BLOCK)

    def _v0_line(self, at: int, line: str) -> Iterator[Record]:
        names = ("speculative tokens", "draft tokens(?: tokens)?", "emitted tokens(?: tokens)?")
        per_round, drafted, emitted = (count(field_of(line, f"Number of {name}")) for name in names)
        if per_round is None or drafted is None or emitted is None or min(per_round, drafted) < 1:
            return
        rounds = drafted // per_round
        figures = Figures(rounds=rounds, accepted=emitted - rounds, drafted=drafted, per_round=per_round)
        yield self._acceptance(at, figures, _V0, line)
