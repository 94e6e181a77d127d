"""llama.cpp, TensorRT-LLM, ModelOpt, xinfer, and Automodel's training line.

Read from llama.cpp `tools/server/server-context.cpp` and `common/speculative.cpp` (pull request 24536 added the mean
length and the positions), TensorRT-LLM `tensorrt_llm/bench/dataclasses/reporting.py` (1.0 and 1.2), ModelOpt
`examples/specdec_bench/.../acceptance_rate.py`, xinfer `mtp_stats_summary`, Automodel pull request 2959.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from wiring.logs.acceptance_figures import Figures, digits_of, half_unit, recover_rounds
from wiring.logs.evidence import AccuracyRecord, Record
from wiring.logs.line_parser import LineParser
from wiring.logs.log_context import Context
from wiring.logs.log_text import count, field_of

_LLAMA = "llama.cpp: 1 + accepted / verify rounds, bonus token included"
_TRT = (
    "TensorRT-LLM: mean over requests of output tokens / (decode iterations + 1), which counts the prefill as a round "
    "and so reads lower than 1 + accepted / rounds"
)
_TRT_COUNTED = "TensorRT-LLM: 1 + accepted / rounds per request, rounds = drafted / drafts per round - prefill"
_MODELOPT = "ModelOpt: tokens per step, bonus token included"
_XINFER = "xinfer: counters since the start; accepted drafts over rounds = proposed / drafts per round"
_AUTOMODEL = "Automodel train_acc: mean over all depths of training, on the training text"
_ACCEPTED = re.compile(r"draft acceptance(?: rate)? = (\d+(?:\.\d+)?) \(\s*(\d+) accepted /\s*(\d+) generated\)")
_SHARE = r"\d+(?:\.\d+)?"
_LISTED = "acceptance rate per position|acc per pos|#acc rate/pos"
_TUPLE = re.compile(rf"(?:{_LISTED})\s*=\s*\(({_SHARE}(?:\s*,\s*{_SHARE})*)\)")
_SPEED = re.compile(r"(\d+(?:\.\d+)?) tokens per second")
_PERCENTILE = re.compile(r"(MINIMUM|MAXIMUM|AVERAGE|P\d+)\s*:?\s*(-?\d+(?:\.\d+)?)")
_MODELOPT_LINE = re.compile(r"Average Acceptance Length\s*(\{[^}]*\})")
_AUTOMODEL_LINE = re.compile(r"train_acc=(\d+(?:\.\d+)?) train_tau_sim=(\d+(?:\.\d+)?)")


class LlamaCppLog(LineParser):
    """Reads llama-server's timings: a request's line, then counters since the start, which give its rounds."""

    words = ("draft acceptance", "mean acceptance length", "acc per pos", "statistics", "eval time")

    def __init__(self, context: Context):
        super().__init__(context)
        self._request: tuple[int, Figures] | None = None
        self._before: dict[str, tuple[int, int, int]] = {}
        self._tok_per_s: float | None = None

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield a request's records once its counters, or the next request, have come."""
        shares = found[1] if (found := _TUPLE.search(line)) is not None else None
        if "eval time" in line and "prompt eval" not in line:
            yield from self.finish()
            self._tok_per_s = float(found[1]) if (found := _SPEED.search(line)) else None
        elif (request := _ACCEPTED.search(line)) is not None:
            yield from self.finish()
            length = field_of(line, r"mean (?:acceptance length|len)")
            figures = Figures(
                length=None if length is None else float(length),
                digits=None if length is None else digits_of(length),
                accepted=int(request[2]),
                drafted=int(request[3]),
                rate=float(request[1]),
            )
            self._request = at, replace(figures, by_position=_shares(shares or ""))
        elif self._request is not None and shares is not None and "statistics" not in line:
            self._request = self._request[0], replace(self._request[1], by_position=_shares(shares))
        elif "statistics" in line and "#gen drafts" in line:
            yield from self._statistics(line)

    def _statistics(self, line: str) -> Iterator[Record]:
        name = found[1] if (found := re.search(r"statistics\s+(\S+):", line)) else ""
        seen = [count(field_of(line, key)) or 0 for key in ("#gen drafts", "#gen tokens", "#acc tokens")]
        now = seen[0], seen[1], seen[2]
        before = self._before.get(name, (0, 0, 0))
        self._before[name] = now
        rounds, drafted, accepted = (after - earlier for after, earlier in zip(now, before, strict=True))
        if self._request is not None and (drafted, accepted) == (self._request[1].drafted, self._request[1].accepted):
            self._request = self._request[0], replace(self._request[1], rounds=rounds)  # the request's share of them
        yield from self.finish()

    def finish(self) -> Iterator[Record]:
        """Yield the request that is still open."""
        if self._request is None:
            return
        (at, figures), self._request, rule = self._request, None, _LLAMA
        figures = replace(figures, per_round=self._context.per_round or len(figures.by_position) or None)
        rounds, per_round = recover_rounds(figures), figures.per_round
        if rounds is not None:
            figures = replace(figures, rounds=rounds)
        elif figures.length is None and per_round and figures.rate is not None:
            rule += "; rounds are not printed: the length is right if every draft was full"
            figures = Figures(length=1 + figures.rate * per_round, digits=5, rate=figures.rate, per_round=per_round)
        elif figures.length is None:
            rule += "; rounds are not printed, so no accept length follows from the rate"
        found = self._acceptance(at, figures, rule)
        yield found
        if self._tok_per_s is not None:
            yield self._speed(at, "draft", self._tok_per_s, found.accept_length)
            self._tok_per_s = None


def _shares(text: str) -> tuple[float, ...]:
    return tuple(float(share) for share in text.split(",") if share.strip())


class TensorRTLog(LineParser):
    """Reads trtllm-bench: [AL] lines ([AR] before 1.0), with [DT] drafted and [ADT] accepted tokens per request."""

    words = ("[AL]", "[AR]", "DT]")

    def __init__(self, context: Context):
        super().__init__(context)
        self._average: dict[str, str] = {}
        self._at = 0

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield the block before where a new one begins."""
        label = re.search(r"\[(AL|AR|DT|ADT)\]", line)
        values = dict(_PERCENTILE.findall(line)) if label else {}
        if label is None or "AVERAGE" not in values:
            return
        if label[1] in self._average:
            yield from self.finish()
        self._average[label[1]] = values["AVERAGE"]
        self._at = at

    def finish(self) -> Iterator[Record]:
        """Yield the block that is still open."""
        average, self._average, per_round = self._average, {}, self._context.per_round
        printed = average.get("AL") or average.get("AR")
        if printed is None:
            return
        figures, rule = Figures(float(printed), digits_of(printed), per_round=per_round), _TRT
        if per_round and "DT" in average and "ADT" in average:
            rounds = float(average["DT"]) / per_round - 1
            if rounds > 0:
                figures, rule = replace(figures, length=1 + float(average["ADT"]) / rounds, digits=2), _TRT_COUNTED
        yield self._acceptance(self._at, figures, rule)


class TrainerLog(LineParser):
    """Reads ModelOpt's acceptance lines, xinfer's MTP line and Automodel's training line."""

    words = ("Average Acceptance Length", "Acceptance Length Histogram", "MTP Stats:", "train_tau_sim", "{")

    def __init__(self, context: Context):
        super().__init__(context)
        self._histogram_due = 0
        self._xinfer: tuple[int, int, int, str] | None = None
        self._automodel: tuple[int, float, str] | None = None

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """Yield the records that line number `at` completes."""
        if (found := _MODELOPT_LINE.search(line)) is not None:
            yield from self._modelopt(at, _literal(found[1]))
        elif "Acceptance Length Histogram" in line:
            self._histogram_due = at + 1
        elif at == self._histogram_due and (lengths := _literal(line.strip())):
            yield from self._histogram(at, lengths)
        elif "MTP Stats:" in line:
            proposed, accepted = count(field_of(line, r"\bproposed")), count(field_of(line, r"\baccepted"))
            printed = field_of(line, "avg_tokens/step")
            if proposed is not None and accepted is not None and printed is not None:
                if self._xinfer is not None and proposed < self._xinfer[1]:
                    yield from self._counters(*self._xinfer)  # the counters were reset
                self._xinfer = (at, proposed, accepted, printed)
        elif (training := _AUTOMODEL_LINE.search(line)) is not None and float(training[1]) <= 1:
            self._automodel = (at, float(training[1]), training[2])

    def finish(self) -> Iterator[Record]:
        """Yield the last counters since the start, and the last step of a training."""
        if self._xinfer is not None:
            yield from self._counters(*self._xinfer)
        if self._automodel is not None:
            at, accuracy, length = self._automodel
            rule = f"{_AUTOMODEL}; simulated accept length train_tau_sim = {length}"
            source = self._source(at)
            yield AccuracyRecord(source=source, side="T", accuracy=accuracy, rule=rule, text="training", claimed=True)

    def _modelopt(self, at: int, printed: dict) -> Iterator[Record]:
        ratio, steps, tokens = (printed.get(name) for name in ("ratio", "count", "accept"))
        if isinstance(ratio, int | float):
            figures = Figures(float(ratio), digits_of(str(ratio)), per_round=self._context.per_round)
            if isinstance(steps, int) and isinstance(tokens, int) and steps > 0:
                figures = replace(figures, rounds=steps, accepted=tokens - steps)
            yield self._acceptance(at, figures, f"{_MODELOPT}: accept / count")

    def _histogram(self, at: int, lengths: dict) -> Iterator[Record]:
        if not all(isinstance(n, int) and n >= 0 for pair in lengths.items() for n in pair):
            return
        rounds = sum(n for length, n in lengths.items() if length > 0)
        if not rounds:
            return
        most = max(lengths) - 1
        figures = Figures(
            rounds=rounds,
            accepted=sum((length - 1) * n for length, n in lengths.items() if length > 0),
            by_position=tuple(
                sum(n for length, n in lengths.items() if length > k) / rounds for k in range(1, most + 1)
            ),
            position_digits=None,
            per_round=self._context.per_round or most or None,
        )
        yield self._acceptance(at, figures, f"{_MODELOPT}, from its histogram")

    def _counters(self, at: int, proposed: int, accepted: int, printed: str) -> Iterator[Record]:
        """Drafts per round are not printed, but one whole number gives the printed average."""
        slack, average, per_round = half_unit(digits_of(printed)), float(printed), self._context.per_round
        whole = [k for k in range(1, 33) if proposed and proposed % k == 0]
        fitting = [k for k in whole if any(abs(average - extra - accepted * k / proposed) <= slack for extra in (1, 2))]
        if not per_round and len(fitting) == 1:
            per_round = fitting[0]
        figures = Figures(rate=accepted / proposed if proposed else None)
        if per_round:
            figures = Figures(
                average, digits_of(printed), proposed // per_round, accepted, proposed, per_round=per_round
            )
        yield self._acceptance(at, figures, _XINFER)


def _literal(text: str) -> dict:
    """A dict as Python prints it; empty where it is none."""
    try:
        value = ast.literal_eval(text) if text.startswith("{") and len(text) < 10_000 else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
