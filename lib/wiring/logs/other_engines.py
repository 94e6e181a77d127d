"""llama.cpp, TensorRT-LLM, ModelOpt, xinfer, and Automodel's training line.

Read from llama.cpp `tools/server/server-context.cpp` and `common/speculative.cpp` (pull request 24536 added the mean
length and the positions), TensorRT-LLM `tensorrt_llm/bench/dataclasses/reporting.py` (1.0 and 1.2), ModelOpt
`examples/specdec_bench/.../acceptance_rate.py`, xinfer `mtp_stats_summary`, Automodel pull request 2959.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from wiring.logs.acceptance_figures import Figures, digits_of, half_unit, normalise, recover_rounds
from wiring.logs.evidence import AccuracyRecord, Record, SpeedRecord
from wiring.logs.log_context import Context
from wiring.logs.log_text import count, field_of, place

_LLAMA = "llama.cpp: 1 + accepted / verify rounds, bonus token included"
_TRT = (
    "TensorRT-LLM: mean over requests of output tokens / (decode iterations + 1), which counts the prefill as a round "
    "and so reads lower than 1 + accepted / rounds"
)
_MODELOPT = "ModelOpt: tokens per step, bonus token included"
_XINFER = "xinfer: counters since the start; accepted drafts over rounds = proposed / drafts per round"
_AUTOMODEL = "Automodel train_acc: mean over all depths of training, on the training text"
_ACCEPTED = re.compile(r"draft acceptance(?: rate)? = (\d+(?:\.\d+)?) \(\s*(\d+) accepted /\s*(\d+) generated\)")
_SHARE = r"\d+(?:\.\d+)?"
_LISTED = "acceptance rate per position|acc per pos|#acc rate/pos"
_TUPLE = re.compile(rf"(?:{_LISTED})\s*=\s*\(({_SHARE}(?:\s*,\s*{_SHARE})*)\)")
_PERCENTILE = re.compile(r"(MINIMUM|MAXIMUM|AVERAGE|P\d+)\s*:?\s*(-?\d+(?:\.\d+)?)")
_MODELOPT_LINE = re.compile(r"Average Acceptance Length\s*(\{[^}]*\})")
_AUTOMODEL_LINE = re.compile(r"train_acc=(\d+(?:\.\d+)?) train_tau_sim=(\d+(?:\.\d+)?)")


class LlamaCppLog:
    """llama-server's timings: the request's line, then counters since the start, which tell its rounds."""

    words = ("draft acceptance", "mean acceptance length", "acc per pos", "statistics", "eval time")

    def __init__(self, context: Context):
        self._context = context
        self._request: tuple[int, dict[str, str]] | None = None
        self._before: dict[str, tuple[int, int, int]] = {}
        self._speed: float | None = None

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """What this line says; a request is told when its counters, or the next request, have come."""
        if "eval time" in line and "prompt eval" not in line:
            yield from self.finish()
            found = re.search(r"(\d+(?:\.\d+)?) tokens per second", line)
            self._speed = float(found[1]) if found else None
        elif (request := _ACCEPTED.search(line)) is not None:
            yield from self.finish()
            shares = found[1] if (found := _TUPLE.search(line)) else ""
            length = field_of(line, r"mean (?:acceptance length|len)") or ""
            self._request = (
                at,
                {"rate": request[1], "accepted": request[2], "drafted": request[3], "length": length, "shares": shares},
            )
        elif self._request is not None and (shares := _TUPLE.search(line)) is not None and "statistics" not in line:
            self._request[1]["shares"] = shares[1]
        elif "statistics" in line and "#gen drafts" in line:
            yield from self._statistics(line)

    def _statistics(self, line: str) -> Iterator[Record]:
        name = found[1] if (found := re.search(r"statistics\s+(\S+):", line)) else ""
        now = tuple(count(field_of(line, key)) or 0 for key in ("#gen drafts", "#gen tokens", "#acc tokens"))
        before = self._before.get(name, (0, 0, 0))
        self._before[name] = now
        if self._request is None:
            return
        rounds, drafted, accepted = (after - earlier for after, earlier in zip(now, before, strict=True))
        request = self._request[1]
        if (drafted, accepted) == (int(request["drafted"]), int(request["accepted"])):
            request["rounds"] = str(rounds)  # this request's own share of the counters
        yield from self.finish()

    def finish(self) -> Iterator[Record]:
        """The request that is still open."""
        if self._request is None:
            return
        (at, request), self._request, context = self._request, None, self._context
        shares = [text.strip() for text in request["shares"].split(",") if text.strip()]
        length, rounds = request["length"], count(request.get("rounds"))
        per_round = context.per_round or len(shares) or None
        figures = Figures(
            length=float(length) if length else None,
            digits=digits_of(length) if length else None,
            rounds=rounds,
            accepted=int(request["accepted"]),
            drafted=int(request["drafted"]),
            by_position=tuple(map(float, shares)),
            rate=float(request["rate"]),
            per_round=per_round,
        )
        rule, told = _LLAMA, recover_rounds(figures)
        if told is None and not length:
            rule += "; rounds are not printed, so no accept length follows from the rate"
            if per_round:
                rule = f"{_LLAMA}; rounds are not printed: the length is right if every draft was full"
                figures = Figures(length=1 + figures.rate * per_round, digits=5, rate=figures.rate, per_round=per_round)
        elif told is not None:
            figures = Figures(**{**vars(figures), "rounds": told})
        condition = context.condition()
        found = normalise(place(context.source, at), figures, rule=rule, condition=condition)
        yield found
        if self._speed is not None:
            yield SpeedRecord(
                source=found.source,
                arm="draft",
                tok_per_s=self._speed,
                accept_length=found.accept_length,
                condition=condition,
            )
            self._speed = None


class TensorRTLog:
    """trtllm-bench: blocks of [AL] lines ([AR] before 1.0), with [DT] drafted and [ADT] accepted tokens per request."""

    words = ("[AL]", "[AR]", "DT]")

    def __init__(self, context: Context):
        self._context = context
        self._average: dict[str, str] = {}
        self._at = 0

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """What this line says; the block is told at its end, or where a new one begins."""
        label = re.search(r"\[(AL|AR|DT|ADT)\]", line)
        values = dict(_PERCENTILE.findall(line)) if label else {}
        if label is None or "AVERAGE" not in values:
            return
        if label[1] in self._average:
            yield from self.finish()
        self._average[label[1]] = values["AVERAGE"]
        self._at = at

    def finish(self) -> Iterator[Record]:
        """The block that is still open."""
        average, self._average, context = self._average, {}, self._context
        printed = average.get("AL") or average.get("AR")
        if printed is None:
            return
        per_round, rule = context.per_round, _TRT
        figures = Figures(float(printed), digits_of(printed), per_round=per_round)
        if per_round and "DT" in average and "ADT" in average:
            rounds = float(average["DT"]) / per_round - 1
            if rounds > 0:
                length = 1 + float(average["ADT"]) / rounds
                rule = "TensorRT-LLM: 1 + accepted / rounds per request, rounds = drafted / drafts per round - prefill"
                figures = Figures(length, 2, per_round=per_round)
        condition = context.condition()
        yield normalise(place(context.source, self._at), figures, rule=rule, condition=condition)


class TrainerLog:
    """ModelOpt's acceptance lines, xinfer's MTP line, Automodel's training line."""

    words = ("Average Acceptance Length", "Acceptance Length Histogram", "MTP Stats:", "train_tau_sim", "{")

    def __init__(self, context: Context):
        self._context = context
        self._histogram_due = 0
        self._xinfer: tuple[int, int, int, str] | None = None
        self._automodel: tuple[int, str, str] | None = None

    def feed(self, at: int, line: str) -> Iterator[Record]:
        """What this line says."""
        source = place(self._context.source, at)
        if "Average Acceptance Length" in line and (found := _MODELOPT_LINE.search(line)) is not None:
            yield from self._modelopt(source, found[1])
        elif "Acceptance Length Histogram" in line:
            self._histogram_due = at + 1
        elif at == self._histogram_due and (lengths := _literal(line.strip())):
            yield from self._histogram(source, lengths)
        elif "MTP Stats:" in line and (proposed := count(field_of(line, r"\bproposed"))) is not None:
            accepted, printed = count(field_of(line, r"\baccepted")), field_of(line, "avg_tokens/step")
            if accepted is not None and printed is not None:
                if self._xinfer is not None and proposed < self._xinfer[1]:
                    yield from self._proposed(*self._xinfer)  # the counters were reset
                self._xinfer = (at, proposed, accepted, printed)
        elif "train_tau_sim" in line and (training := _AUTOMODEL_LINE.search(line)) is not None:
            self._automodel = (at, training[1], training[2])

    def finish(self) -> Iterator[Record]:
        """What only the last line says: counters since the start, and the last step of a training."""
        if self._xinfer is not None:
            yield from self._proposed(*self._xinfer)
        if self._automodel is not None:
            at, accuracy, length = self._automodel
            rule = f"{_AUTOMODEL}; simulated accept length train_tau_sim = {length}"
            yield AccuracyRecord(
                source=place(self._context.source, at),
                side="T",
                accuracy=float(accuracy),
                rule=rule,
                text="training",
                claimed=True,
            )

    def _modelopt(self, source: str, text: str) -> Iterator[Record]:
        said = _literal(text)
        ratio, steps, tokens = (said.get(name) for name in ("ratio", "count", "accept"))
        if not isinstance(ratio, int | float):
            return
        figures = Figures(float(ratio), digits_of(str(ratio)), per_round=self._context.per_round)
        if isinstance(steps, int) and isinstance(tokens, int) and steps > 0:
            figures = Figures(**{**vars(figures), "rounds": steps, "accepted": tokens - steps})
        yield normalise(source, figures, rule=f"{_MODELOPT}: accept / count", condition=self._context.condition())

    def _histogram(self, source: str, lengths: dict) -> Iterator[Record]:
        counted = all(isinstance(n, int) and n >= 0 for pair in lengths.items() for n in pair)
        if not counted or not any(n for length, n in lengths.items() if length > 0):
            return
        rounds = sum(n for length, n in lengths.items() if length > 0)
        most = max(lengths) - 1
        reached = tuple(sum(n for length, n in lengths.items() if length > k) / rounds for k in range(1, most + 1))
        accepted = sum((length - 1) * n for length, n in lengths.items() if length > 0)
        figures = Figures(
            rounds=rounds,
            accepted=accepted,
            by_position=reached,
            position_digits=None,
            per_round=self._context.per_round or most or None,
        )
        yield normalise(source, figures, rule=f"{_MODELOPT}, from its histogram", condition=self._context.condition())

    def _proposed(self, at: int, proposed: int, accepted: int, printed: str) -> Iterator[Record]:
        """Drafts per round are not printed, but one whole number makes the printed average come out."""
        given, context = self._context.per_round, self._context
        slack, average = half_unit(digits_of(printed)), float(printed)
        whole = [k for k in range(1, 33) if proposed and proposed % k == 0]
        fitting = [k for k in whole if any(abs(average - extra - accepted * k / proposed) <= slack for extra in (1, 2))]
        per_round = given or (fitting[0] if len(fitting) == 1 else None)
        rounds = proposed // per_round if per_round else None
        figures = Figures(average, digits_of(printed), rounds, accepted, proposed, per_round=per_round)
        if rounds is None:
            figures = Figures(rate=accepted / proposed if proposed else None)
        condition = context.condition()
        yield normalise(place(context.source, at), figures, rule=_XINFER, condition=condition)


def _literal(text: str) -> dict:
    """A dict as Python prints it; empty where it is none."""
    try:
        value = ast.literal_eval(text) if text.startswith("{") and len(text) < 10_000 else {}
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
