"""Read SGLang's log and the tables of its benchmarks.

Decode lines, load lines, adjusted draft tokens, `send_one.py`, `bench_sglang_eagle.py` and `bench_serving.py`.

Formats read from the wheels of 0.4.6 to 0.5.23. `Decode batch.` (to 0.5.3.post3), `Decode batch [N],` (0.5.4) and
`Decode batch,` (from 0.5.4.post1) are averages of one log interval (`--decode-log-interval`, 40 forwards): their accept
length is (accepted drafts + rounds) / rounds in every release, and the line does not print the number of rounds.
The meaning of `accept rate` changed (`wiring.engines.sglang_metrics`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from wiring.engines.sglang_metrics import RATE_RULES, prints_quantization, rate_rule
from wiring.logs.acceptance_figures import Figures, digits_of
from wiring.logs.evidence import ArgumentRecord, Record
from wiring.logs.line_parser import LineParser
from wiring.logs.log_context import ADJUSTED, Context, fitting_rates, rule_that_fits
from wiring.logs.log_text import field_of, number, rate_of

_BATCH = re.compile(r"#running-req: (\d+)")
_GRAPH = re.compile(r"(?:cuda|cpu|npu|musa) graph: (True|False)")
_LENGTH = r"(?<!block )accept len"
_LOADED = re.compile(r"Load weight end\..*?type=(\w+)")
_QUANT = re.compile(r"\bquant=([\w.-]+)")
_RANK = re.compile(r"\b((?:DP\d+ )?(?:PP\d+ )?TP\d+)\b")
_DRAFT_TYPE = re.compile(r"eagle|mtp|nextn|draft|dflash|dspark|medusa", re.IGNORECASE)
_ROW = re.compile(r"^\W*(\d+(?:\.\d+)?)\W+(\d+)\W+(\d+(?:\.\d+)?)\W+(\d+(?:\.\d+)?)\W*$")
_QUESTIONS = re.compile(r"#questions: (\d+), Throughput: (\d+(?:\.\d+)?) token/s, Acceptance length: (\d+(?:\.\d+)?)")
_INTERVAL = "SGLang log: accept length with the bonus token, mean of a log interval; rounds are not printed"
_BY_FIGURES = {
    True: "the rate has the bonus token in it (0.5.3.post3 to 0.5.10.post1), inferred from the figures",
    False: "the rate counts drafts only (0.5.11 on), inferred from the figures",
}
TOTAL = "SGLang avg_spec_accept_length: (accepted drafts + rounds) / rounds since start or flush, at the last log tick"
_PER_ANSWER = (
    "SGLang completion tokens / verify rounds, which counts the prefill token of each answer too and so reads higher"
)
_DRAFT_TOKENS = "speculative_num_draft_tokens"


class SGLangLog(LineParser):
    """Reads an SGLang log."""

    words = (
        "Decode batch",
        "Load weight end",
        ADJUSTED,
        "avg_spec_accept_length",
        "Acc Length",
        "acc_length=",
        "|",
        "Acceptance length:",
        "Accept length:",
        "NaN in the logits",
        "Output token throughput",
    )

    def __init__(self, context: Context):
        super().__init__(context)
        self._loaded: dict[str, int] = {}
        self._row_due = 0
        self._throughput: float | None = None
        self._seen: set[str] = set()

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield the records that line number `at` completes."""
        if "Decode batch" in line:
            yield from self._decode(at, line)
        elif "Load weight end" in line:
            yield from self._load(at, line)
        elif ADJUSTED in line:
            yield from self._adjusted(at)
        elif (printed := field_of(line, "avg_spec_accept_length")) is not None:
            yield self._acceptance(at, self._printed(printed), TOTAL, line)
        elif (questions := _QUESTIONS.search(line)) is not None:
            yield from self._bench(at, questions[3], float(questions[2]))
        elif "NaN in the logits" in line and self._first("nan"):
            yield self._fact(at, "nonfinite_logits", True, "P")
        elif "Acc Length" in line:
            self._row_due = at + 3
        elif at <= self._row_due and (row := _ROW.match(line)) is not None:
            self._row_due = 0
            yield from self._one_answer(at, int(row[2]), row[3], float(row[4]))
        elif (printed := field_of(line, "acc_length")) is not None:
            yield self._acceptance(at, self._printed(printed), _PER_ANSWER)
        elif (speed := field_of(line, r"Output token throughput \(tok/s\)")) is not None:
            self._throughput = float(speed)
        elif (printed := field_of(line, r"\bAccept length")) is not None:
            found = self._acceptance(at, self._printed(printed), TOTAL)
            yield found
            if self._throughput is not None:
                yield self._speed(at, "draft", self._throughput, found.accept_length)
                self._throughput = None

    def finish(self) -> Iterator[Record]:
        """Yield arguments that were resolved otherwise than requested, and the algorithm."""
        context = self._context
        resolved = dict(context.resolved)
        if context.draft_tokens is not None and context.topk == 1:  # by rule, where the server did not print it
            resolved.setdefault(_DRAFT_TOKENS, context.draft_tokens)
        for name, value in {**context.asked, **context.given}.items():
            if resolved.get(name) is not None and str(resolved[name]) != str(value):
                yield ArgumentRecord(source=context.source, name=name, asked=value, resolved=resolved[name])
        algorithm = resolved.get("speculative_algorithm", context.asked.get("speculative_algorithm"))
        if algorithm is not None:
            yield self._fact(None, "spec_algorithm", str(algorithm))

    def _first(self, what: str) -> bool:
        new = what not in self._seen
        self._seen.add(what)
        return new

    def _printed(self, text: str) -> Figures:
        return Figures(float(text), digits_of(text), per_round=self._context.per_round)

    def _decode(self, at: int, line: str) -> Iterator[Record]:
        context = self._context
        printed, speed = field_of(line, _LENGTH), number(field_of(line, r"gen throughput \(token/s\)"))
        batch, graph = _BATCH.search(line), _GRAPH.search(line)
        condition = {"batch": int(batch[1]) if batch else None, "cuda_graphs": graph[1] == "True" if graph else None}
        rate, length = rate_of(line, "accept rate"), number(printed)
        arm = "plain"
        if length is not None or rate is not None:
            arm, digits = "draft", 2 if printed is None else digits_of(printed)
            rule, from_rate, problem = self._interpret_rate(length, rate)
            if context.chain_assumed:
                rule += f"; K {context.per_round} assumes a chain (set --steps, --topk): a tree has less"
            figures = Figures(from_rate if length is None else length, digits, rate=rate, per_round=context.per_round)
            found = self._acceptance(at, figures, rule, line, **condition)
            impossible = "; ".join(filter(None, (found.impossible, problem)))
            found = found.model_copy(update={"proposed": context.proposed, "impossible": impossible})
            yield found
            length = found.accept_length
        if speed is not None and 0 < speed < math.inf:
            yield self._speed(at, arm, speed, length, line, **condition)

    def _interpret_rate(self, length: float | None, rate: float | None) -> tuple[str, float | None, str]:
        """The counting rule, the accept length that the rate alone gives, and a contradiction."""
        context = self._context
        if rate is None:
            return _INTERVAL, None, ""
        if context.rate_meaning is None:
            problem = "" if length is None or rate > 1 else self._fits_no_rule(length, rate)
            why = "no meaning fits all its figures"
            if problem:
                why = "it contradicts the accept length of the line"
            elif length is None or context.fits_both:
                why = "its figures fit both meanings (bonus token in it up to 0.5.10.post1, drafts only from 0.5.11)"
            elif context.shape_unknown:
                why = "it fits no chain of these steps, and topk and draft tokens are unknown"
            return f"{_INTERVAL}; the rate is not used: {why}", None, problem
        bonus, per = context.rate_meaning
        rule = rate_rule(context.version) or next(rule for rule in reversed(RATE_RULES) if rule.bonus is bonus)
        text = f"{_INTERVAL}; {rule.text if context.version else _BY_FIGURES[bonus]}"
        if length is None:
            return text, None if per is None else rule.length(rate, per), ""
        fits = fitting_rates(length, rate)
        if per is None or (bonus, per) in fits or rate > 1:
            return text, None, ""
        problem = (
            f"accept length {length:g} and rate {rate:g} with {per} tokens per round contradict this release's rule"
        )
        other, same = rule_that_fits(length, rate, per + (0 if bonus else 1)), [p for b, p in fits if b is bonus]
        if other is not None:
            return text, None, f"{problem}; explained by {other.text}, so the release is another"
        if len(same) == 1 and context.shape_unknown:
            return f"{text} ({same[0]} of them, by this line)", None, ""
        why = f"explained if the server ran {same[0]} instead" if len(same) == 1 else "no counting rule explains it"
        return text, None, f"{problem}; {why}"

    def _fits_no_rule(self, length: float, rate: float) -> str:
        """The contradiction where no release's rule gives this rate with the known steps and draft tokens."""
        expected, fits = self._context.expected_rates, fitting_rates(length, rate)
        known = [(bonus, per) for bonus, per in expected if per is not None]
        if fits & expected or len(known) < len(expected) or self._context.shape_unknown:
            return ""
        meanings = [
            f"{length:g} / {per} = {length / per:.3f} with the bonus token in it (up to 0.5.10.post1)"
            if bonus
            else f"({length:g} - 1) / {per} = {(length - 1) / per:.3f} for drafts only (from 0.5.11)"
            for bonus, per in sorted(known, reverse=True)
        ]
        tokens = [str(n) for n in sorted({per + (0 if bonus else 1) for bonus, per in fits})]
        why = f"explained if the server ran {' or '.join(tokens)} draft tokens instead"
        problem = f"accept length {length:g} and rate {rate:g}: no meaning of the rate fits, {', '.join(meanings)}"
        return f"{problem}; {why if tokens else 'no counting rule explains it'}"

    def _load(self, at: int, line: str) -> Iterator[Record]:
        loaded = _LOADED.search(line)
        if loaded is None:
            return
        rank = found[1] if (found := _RANK.search(line)) else ""
        self._loaded[rank] = self._loaded.get(rank, 0) + 1
        target = not _DRAFT_TYPE.search(loaded[1]) and self._loaded[rank] < 2  # the draft is loaded after the target
        if target or not self._first("draft"):
            return
        yield self._fact(at, "draft_architecture", loaded[1])
        quant, version = _QUANT.search(line), self._context.version
        if quant is not None:
            yield self._fact(at, "load_quantisation", quant[1])
        elif "dtype=" not in line and (version is None or prints_quantization(version)):
            yield self._fact(at, "load_quantisation", "none")

    def _adjusted(self, at: int) -> Iterator[Record]:
        context = self._context
        known = _DRAFT_TOKENS in {**context.asked, **context.given}  # reported with both values at the end
        if not known and context.draft_tokens is not None and self._first("adjusted"):
            asked = "another number, which the log does not print"
            source = self._source(at)
            yield ArgumentRecord(source=source, name=_DRAFT_TOKENS, asked=asked, resolved=context.draft_tokens)

    def _bench(self, at: int, printed: str, throughput: float) -> Iterator[Record]:
        """`bench_sglang_eagle.py`, which prints 1.00 for a server without a draft as well."""
        if float(printed) > 1 or self._context.plain is False:
            yield self._acceptance(at, self._printed(printed), _PER_ANSWER)
            yield self._speed(at, "draft", throughput, float(printed))
        elif self._context.plain:
            yield self._speed(at, "plain", throughput)

    def _one_answer(self, at: int, tokens: int, printed: str, speed: float) -> Iterator[Record]:
        """One answer of `send_one.py`: rounds follow from tokens / accept length where one whole number fits."""
        digits = digits_of(printed)
        if float(printed) <= 1 and f"{tokens / max(tokens - 1, 1):.{digits}f}" != printed:
            yield self._speed(at, "plain", speed, batch=1)
            return  # prints 1.000 for a server that does not speculate
        about = tokens / float(printed)
        near = range(max(int(about * 0.999) - 1, 1), int(about * 1.001) + 3)
        fitting = [n for n in near if f"{tokens / n:.{digits}f}" == printed]
        figures, rule = self._printed(printed), _PER_ANSWER
        if len(fitting) == 1:
            rounds = fitting[0]
            figures = Figures(None, digits, rounds, tokens - 1 - rounds, per_round=self._context.per_round)
            rule += "; taken off here: accepted = tokens - 1 - rounds"
        found = self._acceptance(at, figures, rule, batch=1)
        yield found
        yield self._speed(at, "draft", speed, found.accept_length, batch=1)
