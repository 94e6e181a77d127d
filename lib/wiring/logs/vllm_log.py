"""vLLM: interval lines, the blocks of its offline script and of `vllm bench serve`, V0's line, weight sharing.

Read from vLLM's `vllm/v1/spec_decode/metrics.py` (the order of fields changed between 0.8 and 0.10, so each is looked
up by name), `examples/offline_inference/spec_decode.py`, `vllm/benchmarks/serve.py`, `vllm/engine/metrics.py` (V0) and
`vllm/v1/spec_decode/llm_base_proposer.py` (0.11 to 0.29). Its rule is the one used here: mean acceptance length =
1 + accepted / drafts, shares by position over all drafts. The line does not print how many drafts (rounds) there were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from wiring.logs.acceptance_figures import Figures, digits_of, normalise, recover_rounds
from wiring.logs.evidence import FactRecord, Record, SpeedRecord
from wiring.logs.log_context import Context
from wiring.logs.log_text import count, field_of, number, place, rate_of

_LINE = "vLLM log: 1 + accepted / drafts of the interval, bonus token included; rounds told from the figures"
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
_PATIENCE = 8  # lines of something else before a block is taken as over


class VLLMLog:
    """Reads one log line by line."""

    words = ("ccept", "raft", "Avg generation throughput", "embed", "num_output_tokens", "  Position ")

    def __init__(self, context: Context):
        self._context = context
        self._open = ""  # an interval line that was wrapped
        self._open_at = 0
        self._running: dict[str, int] = {}
        self._block: dict[str, str] = {}
        self._shares: list[str] = []
        self._per_cent = False
        self._block_at = self._last_at = 0
        self._v0: tuple[int, str] | None = None
        self._own_embedding: set[bool] = set()
        self._embedding_at = 0

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """What this line says; `at` is its number."""
        if self._block and at - self._last_at > _PATIENCE:
            yield from self._close()
        if self._open:
            if "SpecDecoding metrics" in line or at - self._open_at > 4:
                yield from self._interval(self._open_at, self._open)
                self._open = ""
            else:
                line, at = f"{self._open} {line.strip()}", self._open_at
        if "SpecDecoding metrics" in line:
            if _SHARES.search(line) is None or line.rstrip().endswith(","):
                self._open, self._open_at = line.rstrip(), at
                return
            self._open = ""
            yield from self._interval(at, line)
        elif "Speculative metrics:" in line:
            self._v0 = (at, line)  # counters since the start: the last one counts
        elif (engine := _ENGINE.search(line)) is not None:
            yield from self._engine(at, line, engine)
        elif "Detected" in line and ("embed_tokens" in line or "embedding weights" in line):
            self._own_embedding.add("distinct" in line)
            self._embedding_at = at
        else:
            yield from self._in_block(at, line)

    def finish(self) -> Iterator[Record]:
        """What is still open, and what only the last line or all ranks together say."""
        if self._open:
            yield from self._interval(self._open_at, self._open)
        if self._block or self._shares:
            yield from self._close()
        if self._v0 is not None:
            yield from self._old_engine(*self._v0)
        if self._own_embedding:
            source = place(self._context.source, self._embedding_at)
            yield FactRecord(
                source=source, letter="L", name="embedding_equals_target", value=True not in self._own_embedding
            )
            if len(self._own_embedding) > 1:  # each rank decides for itself
                yield FactRecord(source=source, letter="L", name="embedding_ranks_agree", value=False)

    def _interval(self, at: int, line: str) -> Iterator[Record]:
        printed = field_of(line, "Mean acceptance length")
        accepted, drafted = field_of(line, r"\bAccepted"), field_of(line, r"\bDrafted")
        length = number(printed)
        if count(drafted) == 0 or (length is not None and length != length):
            return  # nothing was drafted in this interval
        listed = found[1].split(",") if (found := _SHARES.search(line)) else []
        figures = Figures(
            length=length,
            digits=2 if printed is None else digits_of(printed),
            accepted=count(accepted),
            drafted=count(drafted),
            by_position=tuple(float(text) for text in listed),
            position_digits=max((digits_of(text.strip()) for text in listed), default=3),
            rate=rate_of(line, r"[Dd]raft acceptance rate"),
            per_round=self._context.per_round or len(listed) or None,
        )
        if length is None and figures.rate is None and not listed:
            return
        figures = _with_rounds(figures)
        running = next(iter(self._running.values())) if len(self._running) == 1 else 0
        condition = self._context.condition(line, batch=running or None)
        yield normalise(place(self._context.source, at), figures, rule=_LINE, condition=condition)

    def _engine(self, at: int, line: str, found: re.Match[str]) -> Iterator[Record]:
        speed, running = float(found[2]), int(found[3])
        self._running[found[1]] = running
        if speed > 0 and running > 0 and self._context.plain is not None:
            arm = "plain" if self._context.plain else "draft"
            yield SpeedRecord(
                source=place(self._context.source, at),
                arm=arm,
                tok_per_s=speed,
                condition=self._context.condition(line, batch=running),
            )

    def _in_block(self, at: int, line: str) -> Iterator[Record]:
        if (share := _AT.match(line)) is not None:
            if int(share[1]) != len(self._shares):
                yield from self._close()
            if int(share[1]) == len(self._shares):
                self._shares.append(share[2])
                self._per_cent |= "Position" in line
                self._block_at = self._block_at or at
                self._last_at = at
        elif (named := _FIELD.match(line)) is not None:
            name = _FIELDS[named[1]]
            if name in self._block or self._shares:
                yield from self._close()
            self._block[name] = named[2]
            self._block_at = self._block_at or at
            self._last_at = at

    def _close(self) -> Iterator[Record]:
        block, shares, per_cent, at = self._block, self._shares, self._per_cent, self._block_at
        self._block, self._shares, self._per_cent, self._block_at = {}, [], False, 0
        length, rounds = block.get("length"), count(block.get("rounds"))
        if length is None and not shares and (not rounds or "accepted" not in block):
            return
        if rounds == 0:
            return
        scale = 100 if per_cent else 1
        figures = Figures(
            length=number(length),
            digits=2 if length is None else digits_of(length),
            rounds=rounds,
            accepted=count(block.get("accepted")),
            drafted=count(block.get("drafted")),
            by_position=tuple(float(text) / scale for text in shares),
            position_digits=max((digits_of(text) for text in shares), default=3) + (2 if per_cent else 0),
        )
        drafted = figures.drafted
        whole = drafted // rounds if drafted and rounds and drafted % rounds == 0 else None
        per_round = whole or self._context.per_round
        figures = _with_rounds(Figures(**{**vars(figures), "per_round": per_round}))
        yield normalise(place(self._context.source, at), figures, rule=_BLOCK, condition=self._context.condition())

    def _old_engine(self, at: int, line: str) -> Iterator[Record]:
        spec, drafted = (
            count(field_of(line, "Number of speculative tokens")),
            count(field_of(line, "Number of draft tokens(?: tokens)?")),
        )
        emitted = count(field_of(line, "Number of emitted tokens(?: tokens)?"))
        if (spec or 0) < 1 or (drafted or 0) < 1 or emitted is None:
            return
        rounds = drafted // spec
        figures = Figures(rounds=rounds, accepted=emitted - rounds, drafted=drafted, per_round=spec)
        yield normalise(place(self._context.source, at), figures, rule=_V0, condition=self._context.condition(line))


def _with_rounds(figures: Figures) -> Figures:
    """The figures with the number of rounds, where it can be told."""
    rounds = recover_rounds(figures)
    return figures if rounds is None else Figures(**{**vars(figures), "rounds": rounds})
