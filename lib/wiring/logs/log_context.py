"""Read from a log what the server is: engine, release, speculation arguments, and the meaning of its accept rate.

This is the first pass over the lines; the meaning of the figures, read in the second pass, depends on it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any

from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.engines.sglang_metrics import RATE_RULES, RateRule, rate_rule
from wiring.logs.evidence import Setting, Value
from wiring.logs.log_text import ANSI, field_of, number, rate_of

ADJUSTED = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"  # SGLang, all releases from 0.4.6
_MOST_TOKENS = 33  # verified per round; more fit any pair of two-digit figures
_HEAD = 160  # characters of a line that hold its time
_TAIL = 256  # last lines that are searched for a time
_SPAN_HOURS = 0.5  # a shorter log does not show effects of time
_READ = (  # arguments that a diagnosis reads
    "speculative_algorithm speculative_num_steps speculative_eagle_topk speculative_num_draft_tokens "
    "speculative_draft_model_quantization quantization tp_size"
).split()
_ARGUMENT = re.compile(r"['\"]?\b(" + "|".join(_READ) + r")['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|[^,(){}\s]+)")
_FLAG = re.compile(r"--(" + "|".join(name.replace("_", "-") for name in _READ) + r"|tp)[ =]+([^\s\\]+)")
_SHORT = {"tp": "tp_size"}
_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_TIME = re.compile(r"\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)|\b(?:INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d)")
_VLLM_VERSION = re.compile(r"LLM engine \(v?([^)\s]+)\) with config|vLLM API server version v?(\S+)")
_VLLM_CONFIG = re.compile(r"speculative_config=(None|\w*SpeculativeConfig\((?:[^()]|\([^()]*\))*\))")
_NUM_SPEC = re.compile(r"num_spec(?:ulative)?_tokens['\"]?\s*[=:]\s*(\d+)")
_OF_SERVER = (
    "server_args=",
    "sglang.launch_server",
    "sglang serve",
    "LLM engine (",
    "API server version",
    "speculative_config=",
)
_TELLING = (*_OF_SERVER, "accept rate")
_ENGINES = (  # words that only this engine writes
    ("sglang", ("Decode batch", "server_args=", "sglang.launch_server", "sglang serve", "sglang:")),
    ("vllm", ("SpecDecoding metrics", "LLM engine (v", "vllm serve", "vllm:spec_decode", "Detected EAGLE model")),
    ("llama.cpp", ("slot print_timing", "draft acceptance = ", "draft acceptance rate = ", "llama_")),
    ("tensorrt-llm", ("[AL] ", "[AR] ", "TensorRT LLM Version", "TensorRT-LLM")),
)


@dataclass(frozen=True)
class Given:
    """What a caller knows of the server (`**given` of every reader); None: read it from the lines.

    `version` is a release of `engine`; `draft_tokens` counts the root, as SGLang does.
    """

    engine: str | None = None
    version: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None


GIVEN = tuple(one.name for one in fields(Given))


@dataclass(frozen=True)
class Context:
    """What is known about a server; None or empty: unknown.

    `draft_tokens` counts the root. `resolved`: arguments as the server printed them; `asked`: flags of a launch
    command. `plain`: the log says that there is no draft. `rates`: the meanings that all printed pairs of accept
    length and rate have in common, as (bonus in the numerator, tokens per round in the denominator).
    """

    source: str = "log"
    engine: str | None = None
    version: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    resolved: Mapping[str, Any] = field(default_factory=dict)
    asked: Mapping[str, Any] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)
    plain: bool | None = None
    rates: frozenset[tuple[bool, int]] | None = None
    start: datetime | None = None
    hours: float = 0.0

    @property
    def per_round(self) -> int | None:
        """The most drafts that a round can accept: the depth of the draft, or the draft tokens without the root."""
        if self.steps is not None:
            return self.steps
        if self.draft_tokens is not None:
            return self.draft_tokens - 1
        bonus, tokens = self.rate_meaning or (False, None)
        return None if tokens is None else tokens - bonus

    @cached_property
    def rate_meaning(self) -> tuple[bool, int | None] | None:
        """(bonus in the numerator, tokens per round in the denominator) of SGLang's rate; None where undecided.

        It follows from the release, else from the printed pairs where they leave one meaning.
        """
        rule = rate_rule(self.version) if self.engine in (None, "sglang") else None
        fitting = self._fitting
        meanings = {bonus for bonus, _ in fitting} if rule is None else {rule.bonus}
        if len(meanings) != 1:
            return None
        bonus = meanings.pop()
        tokens = None if rule is None else rule.per_round(self.steps, self.draft_tokens, self.topk)
        alone = {per for other, per in fitting if other is bonus}
        return bonus, alone.pop() if tokens is None and len(alone) == 1 else tokens

    @cached_property
    def expected_rates(self) -> frozenset[tuple[bool, int | None]]:
        """Meanings of the rate by SGLang's rules with these steps and draft tokens; None tokens: unknown."""
        return frozenset((rule.bonus, rule.per_round(self.steps, self.draft_tokens, self.topk)) for rule in RATE_RULES)

    @cached_property
    def _fitting(self) -> set[tuple[bool, int]]:
        """The common meanings without those that contradict known steps or draft tokens."""
        expected = self.expected_rates
        return {(bonus, per) for bonus, per in self.rates or () if {(bonus, per), (bonus, None)} & expected}

    @property
    def fits_both(self) -> bool:
        """Whether both meanings fit all printed pairs."""
        return len({bonus for bonus, _ in self._fitting}) == 2

    @property
    def shape_unknown(self) -> bool:
        """Whether only steps are known, which make a chain or a tree."""
        return self.steps is not None and self.topk is None and self.draft_tokens is None

    @property
    def chain_assumed(self) -> bool:
        """Whether `per_round` assumes a chain; in a tree it is only a bound."""
        return self.steps is None and self.topk is None and self.per_round is not None

    @property
    def proposed(self) -> int | None:
        """Drafts per round along one path (K): `per_round`, unless that is the draft tokens of a tree."""
        return None if self.steps is None and (self.topk or 1) > 1 else self.per_round

    def condition(self, line: str = "", **more: Value | None) -> dict[str, Value]:
        """Return what one figure was measured under; what holds for the whole log is in `setting`."""
        found = dict(more)
        if self.start is not None and self.hours >= _SPAN_HOURS and (at := time_of(line)) is not None:
            found["hours"] = round((at - self.start).total_seconds() / 3600, 3)
        return {name: value for name, value in found.items() if value is not None}

    @property
    def setting(self) -> Setting:
        """What holds for the whole log."""
        known = {name: getattr(self, name) for name in GIVEN}
        return Setting(**known, tp=_positive(self.resolved.get("tp_size", self.asked.get("tp_size"))))


def scan(lines: Iterable[str], *, source: str = "log", **given: Any) -> Context:
    """Read what the lines say about the server.

    Arguments that the server printed replace what is given, and that replaces what a launch command requests.
    """
    known = Given(**given)
    numbers = dict(zip(_NUMBERS, (known.steps, known.topk, known.draft_tokens), strict=True))
    numbers = {name: value for name, value in numbers.items() if value is not None}
    resolved: dict[str, Any] = {}
    asked: dict[str, Any] = {}
    engine, version, plain, command = known.engine, known.version, None, False
    spec_tokens: int | None = None
    rates: frozenset[tuple[bool, int]] | None = None
    start: datetime | None = None
    tail: deque[str] = deque(maxlen=_TAIL)
    for raw in lines:
        tail.append(raw[:_HEAD])
        start = start or time_of(raw[:_HEAD])
        if engine is None:
            engine = next((name for name, words in _ENGINES if any(word in raw for word in words)), None)
        if not command and not any(word in raw for word in _TELLING):
            continue  # nearly every line of a large log
        line = ANSI.sub("", raw)
        if "server_args=" in line:
            resolved |= {name: _value(text) for name, text in _ARGUMENT.findall(line)}
            plain = resolved.get("speculative_algorithm", "") is None
        if command or "sglang.launch_server" in line or "sglang serve" in line:
            asked |= {_SHORT.get(str(n), str(n).replace("-", "_")): _value(text) for n, text in _FLAG.findall(line)}
            command = line.rstrip().endswith("\\")
        if known.version is None and (named := _VLLM_VERSION.search(line)) is not None:
            version = named[1] or named[2]
        if (config := _VLLM_CONFIG.search(line)) is not None:
            plain = config[1] == "None"
            spec_tokens = int(k[1]) if (k := _NUM_SPEC.search(config[1])) else spec_tokens
        if "accept rate" in line:
            pair = number(field_of(line, r"(?<!block )accept len")), rate_of(line, "accept rate")
            if None not in pair:
                here = fitting_rates(*pair)
                rates = here if rates is None else rates & here
    base = {**asked, **numbers, **resolved}
    if spec_tokens is not None:
        base.setdefault("speculative_num_steps", spec_tokens)
    if plain is None and (base.get("speculative_num_steps") or base.get("speculative_algorithm")):
        plain = False
    end = next((when for line in reversed(tail) if (when := time_of(line)) is not None), start)
    return Context(
        source=source,
        engine=engine,
        version=version,
        **_speculation(engine, *(_positive(base.get(name)) for name in _NUMBERS)),
        resolved=resolved,
        asked=asked,
        given=numbers,
        plain=plain,
        rates=rates,
        start=start,
        hours=max((end - start).total_seconds() / 3600, 0.0) if start and end else 0.0,
    )


@lru_cache(maxsize=4096)
def fitting_rates(length: float, rate: float) -> frozenset[tuple[bool, int]]:
    """Return the meanings of SGLang's rate that fit a printed pair, both with two digits.

    As (bonus in the numerator, tokens per round in the denominator): 2.17 and 0.54 are only (True, 4).
    """
    slack = 0.005 + 1e-9
    return frozenset(
        (bonus, per)
        for bonus in (True, False)
        for per in range(1, _MOST_TOKENS + 1)
        if length <= per + (not bonus) + slack  # no more is accepted than was verified
        and abs(rate - (length - (not bonus)) / per) <= slack + slack / per
    )


def rule_that_fits(length: float, rate: float, draft_tokens: int) -> RateRule | None:
    """Return the newest rule of SGLang that gives this rate with this many draft tokens (root included), or None."""
    fits = fitting_rates(length, rate)
    return next((rule for rule in reversed(RATE_RULES) if (rule.bonus, draft_tokens - (not rule.bonus)) in fits), None)


def describes_server(line: str) -> bool:
    """Return whether `scan` reads what the server is from this line."""
    return any(word in line for word in _OF_SERVER) or _FLAG.search(line) is not None


def time_of(line: str) -> datetime | None:
    """Return the time that a log line begins with; vLLM's lines have no year, so theirs are all in one."""
    found = _TIME.search(ANSI.sub("", line))
    try:
        return None if found is None else datetime.fromisoformat(found[1] or f"2000-{found[2]}")
    except ValueError:
        return None


def _speculation(engine: str | None, steps: int | None, topk: int | None, tokens: int | None) -> dict[str, int | None]:
    """The three numbers as SGLang resolves them; with top-k 1 the draft tokens follow from the steps."""
    if engine in (None, "sglang") and topk == 1:
        steps = tokens - 1 if steps is None and tokens is not None else steps
        if not steps or steps < 1:
            return {"steps": None, "topk": topk, "draft_tokens": tokens}
        resolved = resolve_speculation(Speculation(steps, 1, tokens or steps + 1))
        steps, tokens = resolved.steps, resolved.draft_tokens
    return {"steps": steps, "topk": topk, "draft_tokens": tokens}


def _positive(value: Any) -> int | None:
    """A whole number from 1; None for any other value."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 1 else None


def _value(text: str) -> Any:
    """A value as a log prints it: quoted text, a number, a truth value, None."""
    text = text.strip().strip("'\"")
    if text in ("True", "False", "None"):
        return {"True": True, "False": False, "None": None}[text]
    try:
        return int(text)
    except ValueError:
        return text
