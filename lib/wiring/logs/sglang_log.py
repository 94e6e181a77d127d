"""SGLang's log and its benchmark tables: decode lines, load lines, the adjusted draft tokens, send_one, bench_eagle.

Formats read from the wheels of 0.4.6 to 0.5.23. `Decode batch.` (to 0.5.3.post3), `Decode batch [N],` (0.5.4) and
`Decode batch,` (from 0.5.4.post1) are averages of one log interval (`--decode-log-interval`, 40 forwards): their accept
length is (accepted drafts + rounds) / rounds in every release, and the line does not say how many rounds there were.
The meaning of `accept rate` changed (`wiring.engines.sglang_metrics`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from wiring.engines.sglang_metrics import RATE_RULES, prints_quantisation, rate_rule
from wiring.logs.acceptance_figures import Figures, digits_of, normalise
from wiring.logs.evidence import ArgumentRecord, FactRecord, Record, SpeedRecord
from wiring.logs.log_context import ADJUSTED, Context, fitting_rates, rule_that_fits
from wiring.logs.log_text import field_of, number, place, rate_of

WORDS = (
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
_TOLD = {
    True: "the rate has the bonus token in it (0.5.3.post3 to 0.5.10.post1), told from the figures themselves",
    False: "the rate counts drafts only (0.5.11 on), told from the figures themselves",
}
_TOTAL = "SGLang avg_spec_accept_length: (accepted drafts + rounds) / rounds since start or flush, at the last log tick"
_PER_ANSWER = (
    "SGLang completion tokens / verify rounds, which counts the prefill token of each answer too and so reads higher"
)


class SGLangLog:
    """Reads one log line by line."""

    words = WORDS

    def __init__(self, context: Context):
        self._context = context
        self._loaded: dict[str, int] = {}
        self._row_due = 0
        self._throughput: float | None = None
        self._told: set[str] = set()

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """What this line says; `at` is its number."""
        source = place(self._context.source, at)
        if "Decode batch" in line:
            yield from self._decode(source, line)
        elif "Load weight end" in line:
            yield from self._load(source, line)
        elif ADJUSTED in line:
            yield from self._adjusted(source)
        elif (found := field_of(line, "avg_spec_accept_length")) is not None:
            figures = Figures(float(found), digits_of(found), per_round=self._context.per_round)
            yield normalise(source, figures, rule=_TOTAL, condition=self._context.condition(line))
        elif (questions := _QUESTIONS.search(line)) is not None:
            yield from self._bench(source, questions[3], float(questions[2]))
        elif "NaN in the logits" in line and "nan" not in self._told:
            self._told.add("nan")
            yield FactRecord(source=source, letter="P", name="nonfinite_logits", value=True)
        else:
            yield from self._table(source, at, line)

    def finish(self) -> Iterator[Record]:
        """What only the whole log says: arguments that were asked for and came out otherwise."""
        context, source = self._context, self._context.source
        resolved = dict(context.resolved)
        if context.draft_tokens is not None and context.topk == 1:  # by rule, where the server did not print it
            resolved.setdefault("speculative_num_draft_tokens", context.draft_tokens)
        for name, value in {**context.asked, **context.given}.items():
            if name in resolved and resolved[name] is not None and str(resolved[name]) != str(value):
                yield ArgumentRecord(source=source, name=name, asked=value, resolved=resolved[name])
        algorithm = resolved.get("speculative_algorithm", context.asked.get("speculative_algorithm"))
        if algorithm is not None:
            yield FactRecord(source=source, letter="L", name="spec_algorithm", value=str(algorithm))

    def _decode(self, source: str, line: str) -> Iterator[Record]:
        context = self._context
        printed, speed = field_of(line, _LENGTH), number(field_of(line, r"gen throughput \(token/s\)"))
        batch, graph = _BATCH.search(line), _GRAPH.search(line)
        condition = context.condition(
            line, batch=int(batch[1]) if batch else None, cuda_graphs=graph[1] == "True" if graph else None
        )
        rate = rate_of(line, "accept rate")
        length = number(printed)
        if length is not None or rate is not None:
            digits = 2 if printed is None else digits_of(printed)
            rule, from_rate, fault = self._rate(length, rate)
            if context.chain_assumed:
                rule += f"; K {context.per_round} is for a chain, which nothing says (--steps, --topk): a tree has less"
            figures = Figures(from_rate if length is None else length, digits, rate=rate, per_round=context.per_round)
            found = normalise(source, figures, rule=rule, condition=condition)
            told = "; ".join(filter(None, (found.impossible, fault)))
            found = found.model_copy(update={"proposed": context.proposed, "impossible": told})
            yield found
            length = found.accept_length
        if speed is not None and 0 < speed < math.inf:
            arm = "plain" if printed is None and rate is None else "draft"
            yield SpeedRecord(source=source, arm=arm, tok_per_s=speed, accept_length=length, condition=condition)

    def _rate(self, length: float | None, rate: float | None) -> tuple[str, float | None, str]:
        """The rule in words, the accept length of the rate alone, and what contradicts."""
        context = self._context
        if rate is None:
            return _INTERVAL, None, ""
        meaning = context.rate_meaning
        if meaning is None:
            neither = "" if length is None or rate > 1 else self._neither(length, rate)
            why = "no meaning fits all its figures"
            if neither:
                why = "it contradicts the accept length beside it"
            elif length is None or context.fits_both:
                why = "its figures fit both meanings (bonus token in it up to 0.5.10.post1, drafts only from 0.5.11)"
            elif context.shape_unknown:
                why = "it fits no chain of these steps, and neither topk nor draft tokens are told"
            return f"{_INTERVAL}; the rate is not used: {why}", None, neither
        bonus, per = meaning
        rule = rate_rule(context.version) or next(rule for rule in reversed(RATE_RULES) if rule.bonus is bonus)
        by = rule.text if context.version else _TOLD[bonus]
        told = f"{_INTERVAL}; {by}"
        if length is None:
            return told, None if per is None else rule.length(rate, per), ""
        if per is None or (bonus, per) in fitting_rates(length, rate) or rate > 1:
            return told, None, ""
        fault = f"accept length {length:g} beside rate {rate:g} with {per} tokens per round: not by this release's rule"
        other = rule_that_fits(length, rate, per + (0 if bonus else 1))
        if other is not None:
            return told, None, f"{fault}; explained by {other.text}, so the release is another"
        alone = {(b, p) for b, p in fitting_rates(length, rate) if b is bonus}
        if len(alone) == 1 and context.shape_unknown:
            return f"{told} ({alone.pop()[1]} of them, by this line)", None, ""
        if len(alone) == 1:
            return told, None, f"{fault}; explained if the server ran {alone.pop()[1]} instead"
        return told, None, f"{fault}; no counting rule explains it"

    def _neither(self, length: float, rate: float) -> str:
        """What contradicts where, with the known steps and draft tokens, no rule of any release gives this rate."""
        expected, fits = self._context.expected_rates, fitting_rates(length, rate)
        if fits & expected or any(per is None for _, per in expected) or self._context.shape_unknown:
            return ""
        told = [
            f"{length:g} / {per} = {length / per:.3f} with the bonus token in it (up to 0.5.10.post1)"
            if bonus
            else f"({length:g} - 1) / {per} = {(length - 1) / per:.3f} for drafts only (from 0.5.11)"
            for bonus, per in sorted(expected, reverse=True)
        ]
        fault = f"accept length {length:g} beside rate {rate:g}: no meaning of the rate fits, {', '.join(told)}"
        tokens = sorted({per + (0 if bonus else 1) for bonus, per in fits})
        if not tokens:
            return f"{fault}; no counting rule explains it"
        return f"{fault}; explained if the server ran {' or '.join(map(str, tokens))} draft tokens instead"

    def _load(self, source: str, line: str) -> Iterator[Record]:
        loaded = _LOADED.search(line)
        if loaded is None:
            return
        rank = found[1] if (found := _RANK.search(line)) else ""
        self._loaded[rank] = self._loaded.get(rank, 0) + 1
        if not _DRAFT_TYPE.search(loaded[1]) and self._loaded[rank] < 2:
            return  # the target's; the draft is loaded after it
        if "draft" in self._told:
            return
        self._told.add("draft")
        yield FactRecord(source=source, letter="L", name="draft_architecture", value=loaded[1])
        quant, version = _QUANT.search(line), self._context.version
        if quant is not None:
            yield FactRecord(source=source, letter="L", name="load_quantisation", value=quant[1])
        elif "dtype=" not in line and (version is None or prints_quantisation(version)):
            yield FactRecord(source=source, letter="L", name="load_quantisation", value="none")

    def _adjusted(self, source: str) -> Iterator[Record]:
        context = self._context
        name = "speculative_num_draft_tokens"
        if name in context.asked or name in context.given:
            return  # told with both values at the end
        if context.draft_tokens is not None and "adjusted" not in self._told:
            self._told.add("adjusted")
            yield ArgumentRecord(
                source=source,
                name=name,
                asked="another number, which the log does not print",
                resolved=context.draft_tokens,
            )

    def _bench(self, source: str, printed: str, throughput: float) -> Iterator[Record]:
        """`bench_sglang_eagle.py`, which prints 1.00 for a server without a draft as well."""
        length, context = float(printed), self._context
        if length <= 1 and context.plain is not False:
            if context.plain:
                yield SpeedRecord(source=source, arm="plain", tok_per_s=throughput, condition=context.condition())
            return
        figures = Figures(length, digits_of(printed), per_round=context.per_round)
        yield normalise(source, figures, rule=_PER_ANSWER, condition=context.condition())
        yield SpeedRecord(
            source=source, arm="draft", tok_per_s=throughput, accept_length=length, condition=context.condition()
        )

    def _table(self, source: str, at: int, line: str) -> Iterator[Record]:
        """`send_one.py`'s table or lines, and "Accept length:" of `bench_serving.py`."""
        context = self._context
        if "Acc Length" in line:
            self._row_due = at + 3
        elif at <= self._row_due and (row := _ROW.match(line)) is not None:
            self._row_due = 0
            yield from self._one(source, int(row[2]), row[3], float(row[4]))
        elif not any(word in line for word in ("acc_length", "Accept length", "Output token")):
            return
        elif (printed := field_of(line, "acc_length")) is not None:
            figures = Figures(float(printed), digits_of(printed), per_round=context.per_round)
            yield normalise(source, figures, rule=_PER_ANSWER, condition=context.condition())
        elif (speed := field_of(line, r"Output token throughput \(tok/s\)")) is not None:
            self._throughput = float(speed)
        elif (printed := field_of(line, r"\bAccept length")) is not None:
            figures = Figures(float(printed), digits_of(printed), per_round=context.per_round)
            found = normalise(source, figures, rule=_TOTAL, condition=context.condition())
            yield found
            if self._throughput is not None:
                yield SpeedRecord(
                    source=source,
                    arm="draft",
                    tok_per_s=self._throughput,
                    accept_length=found.accept_length,
                    condition=context.condition(),
                )
                self._throughput = None

    def _one(self, source: str, tokens: int, printed: str, speed: float) -> Iterator[Record]:
        """One answer of `send_one.py`: rounds are told from tokens / accept length where one whole number fits."""
        context, digits = self._context, digits_of(printed)
        condition = context.condition(batch=1)
        if float(printed) <= 1 and f"{tokens / max(tokens - 1, 1):.{digits}f}" != printed:
            yield SpeedRecord(source=source, arm="plain", tok_per_s=speed, condition=condition)
            return  # prints 1.000 for a server that does not speculate
        about = tokens / float(printed)
        near = range(max(int(about * 0.999) - 1, 1), int(about * 1.001) + 3)
        fitting = [n for n in near if f"{tokens / n:.{digits}f}" == printed]
        rounds = fitting[0] if len(fitting) == 1 else None
        accepted = None if rounds is None else tokens - 1 - rounds
        figures = Figures(None if rounds else float(printed), digits, rounds, accepted, per_round=context.per_round)
        rule = _PER_ANSWER + ("" if rounds is None else "; taken off here: accepted = tokens - 1 - rounds")
        found = normalise(source, figures, rule=rule, condition=condition)
        yield found
        yield SpeedRecord(
            source=source, arm="draft", tok_per_s=speed, accept_length=found.accept_length, condition=condition
        )
