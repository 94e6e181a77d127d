"""A/B on a running server: the same prompts under two conditions, and whether acceptance differs for real.

What a request can choose is tried on one server (cache, batch, temperature, first round); what the server is started
with needs a second one (`FACTORS` says which flag). Prompts alternate their order, and the cache is emptied before each
wave, so that nothing but the factor differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, Protocol

from wiring.bench.acceptance_splits import Difference, Request, SplitRow, compare, from_meta, split, without_nan
from wiring.errors import WiringError


class Client(Protocol):
    """What the runner needs of a server; `wiring.server.client.ServerClient` has it."""

    url: str

    def generate(self, input_ids: Sequence[int], max_new_tokens: int, *, temperature: float = 0.0) -> Any: ...

    def flush_cache(self) -> None: ...

    def server_info(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Factor:
    """One thing that acceptance may depend on; `condition` is its name in evidence.

    `a`, `b` say what the groups are where one server shows both. `flag`: how the second server is started where it does
    not; the groups are then named by what the servers resolved.
    """

    name: str
    condition: str
    a: str = ""
    b: str = ""
    flag: str = ""


FACTORS: Mapping[str, Factor] = {
    f.name: f
    for f in (
        Factor("flush", "cached", "cache emptied before the request", "the same prompt again, its prefix cached"),
        Factor("batch", "batch", "one request at a time", "requests side by side"),
        Factor("temperature", "temperature", "temperature 0", "sampled"),
        Factor("first-round", "first_round", "later rounds", "the first round after the prefill"),
        Factor("eager", "cuda_graphs", flag="--disable-cuda-graph"),
        Factor("prefix-cache", "prefix_cache", flag="--disable-radix-cache"),
        Factor("chunked", "chunked", flag="--chunked-prefill-size -1"),
        Factor("backend", "attention_backend", flag="--attention-backend NAME"),
        Factor("tree", "topk", flag="--speculative-eagle-topk N"),
    )
}
_RESOLVED = {  # condition -> the server's argument that holds it, and how to read it
    "cuda_graphs": ("disable_cuda_graph", lambda value: not value),
    "prefix_cache": ("disable_radix_cache", lambda value: not value),
    "chunked": ("chunked_prefill_size", lambda value: value is not None and value > 0),
    "attention_backend": ("attention_backend", str),
    "topk": ("speculative_eagle_topk", int),
}


@dataclass(frozen=True)
class Group:
    """One side of an A/B: what it was, its acceptance, and output tokens per second of a request (median)."""

    label: str
    acceptance: SplitRow
    tok_per_s: float


@dataclass(frozen=True)
class AbResult:
    """Both groups of an A/B and their difference; `same_outputs`: prompts that gave the same token ids under both.

    `same_outputs` is None where the texts must differ (sampled). `notes` say what weakens the comparison.
    """

    factor: Factor
    a: Group
    b: Group
    difference: Difference
    same_outputs: tuple[bool, ...] | None
    steps: int
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict:
        """The result for JSON; `real` is null where there are too few prompts to tell, as is what has no number."""
        return without_nan({**asdict(self), "real": self.difference.real})


@dataclass(frozen=True)
class _Answer:
    prompt: int
    seconds: float
    output_ids: tuple[int, ...]
    meta: Mapping[str, Any]


def run_ab(
    client: Client,
    prompts: Sequence[Sequence[int]],
    factor: str,
    *,
    other: Client | None = None,
    new_tokens: int = 64,
    batch: int = 4,
    temperature: float = 1.0,
    keep_cache: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> AbResult:
    """Send every prompt under both conditions of `factor` and compare what the rounds accepted.

    `other` is the second server of a factor that needs one. `batch` and `temperature` are the b sides of those factors.
    `keep_cache` leaves the prefix caches alone, for a server that serves others too: each prompt is then sent once
    before, so that it is cached in both groups.

    Raises:
        WiringError: an unknown factor, a missing or superfluous second server, two servers that do not differ in the
            factor, a server without a draft, or answers without a histogram.
    """
    chosen = _checked(factor, other, keep_cache)
    steps, notes = _steps(client), []
    values: tuple[Any, Any] = (False, True)
    sides = _Sides(client, client, new_tokens, keep_cache)
    if other is not None:
        values = _resolved_values(chosen, client, other)
        steps, sides = max(steps, _steps(other)), _Sides(client, other, new_tokens, keep_cache)
    elif chosen.name == "batch":
        values = (1, batch)
    elif chosen.name == "temperature":
        values = (0.0, temperature)
    pairs = list(_answers(chosen, sides, prompts, values, progress))
    groups = [[_request(pair[side], chosen, values[side]) for pair in pairs] for side in (0, 1)]
    if chosen.name == "first-round":
        groups[0] = [_without(whole, first) for whole, first in zip(*groups, strict=True)]
        notes.append("first rounds differ from later ones on a healthy server too: compare with short prompts")
    if chosen.name == "flush":
        notes += _cache_notes(pairs)
    difference = compare(*groups)
    made = []
    labels = (chosen.a, chosen.b) if other is None else tuple(f"{chosen.condition} {value}" for value in values)
    for side, label in enumerate(labels):
        (row,) = split(groups[side], chosen.condition, steps=steps)
        rate = median(len(pair[side].output_ids) / pair[side].seconds for pair in pairs)
        made.append(Group(label, row, rate))
    same = None
    if chosen.name not in ("temperature", "first-round"):
        same = tuple(a.output_ids == b.output_ids for a, b in pairs)
    return AbResult(chosen, made[0], made[1], difference, same, steps, tuple(notes))


@dataclass(frozen=True)
class _Sides:
    a: Client
    b: Client
    new_tokens: int
    keep_cache: bool

    def wave(self, side: int, prompts: Mapping[int, Sequence[int]], **how: Any) -> dict[int, _Answer]:
        """Send prompts side by side to one of the servers, from an empty cache or a full one, and await all answers."""
        client = (self.a, self.b)[side]
        tokens = how.pop("new_tokens", self.new_tokens)
        if not how.pop("cached", False):
            self.prepare(client, prompts)

        def one(item: tuple[int, Sequence[int]]) -> _Answer:
            begin = time.perf_counter()
            reply = client.generate(list(item[1]), tokens, **how)
            return _Answer(item[0], time.perf_counter() - begin, tuple(reply.output_ids), reply.meta)

        with ThreadPoolExecutor(len(prompts)) as threads:
            return {answer.prompt: answer for answer in threads.map(one, prompts.items())}

    def prepare(self, client: Client, prompts: Mapping[int, Sequence[int]]) -> None:
        """The same cache for every wave: empty, or holding these prompts."""
        if not self.keep_cache:
            client.flush_cache()
            return
        for ids in prompts.values():
            client.generate(list(ids), 1)


def _answers(
    factor: Factor,
    sides: _Sides,
    prompts: Sequence[Sequence[int]],
    values: tuple[Any, Any],
    progress: Callable[[str], None],
) -> Iterator[tuple[_Answer, _Answer]]:
    """For each prompt its answers under a and under b. What runs first alternates, but for the cache, which cannot."""
    two_servers = sides.a is not sides.b
    width = values[1] if factor.name == "batch" else 1
    for start in range(0, len(prompts), width):
        progress(f"prompt {start + 1} of {len(prompts)}")
        numbers = range(start, min(start + width, len(prompts)))
        wave = {n: prompts[n] for n in numbers}
        # A last wave that is not full is filled up with other prompts, whose answers are not counted.
        full = {**wave, **{n: prompts[n % len(prompts)] for n in range(len(prompts), start + width)}}

        def under(side: int, wave: Any = wave, full: Any = full) -> dict[int, _Answer]:
            on = side if two_servers else 0
            if factor.name == "batch" and side == 1:
                return sides.wave(on, full)
            if factor.name == "batch":
                return {n: sides.wave(on, {n: ids})[n] for n, ids in wave.items()}
            if factor.name == "temperature":
                return sides.wave(on, wave, temperature=values[side])
            if factor.name == "flush" and side == 1:
                return sides.wave(on, wave, cached=True)
            if factor.name == "first-round" and side == 1:
                return sides.wave(on, wave, new_tokens=2)  # the prefill's token, and one round
            return sides.wave(on, wave)

        order = (1, 0) if (start // width) % 2 and factor.name != "flush" else (0, 1)
        got = {side: under(side) for side in order}
        yield from ((got[0][n], got[1][n]) for n in numbers)


def _checked(name: str, other: Client | None, keep_cache: bool) -> Factor:
    if name not in FACTORS:
        raise WiringError("no such factor", where="--factor", expected=", ".join(FACTORS), found=name)
    factor = FACTORS[name]
    if factor.flag and other is None:
        raise WiringError(
            f"{name} is chosen when a server starts: one server cannot show both sides",
            where="--factor",
            expected="a second server (--against URL)",
            found="one server",
            remedy=f"Start the same server once more, on another port, with {factor.flag}, and name it with --against",
        )
    if not factor.flag and other is not None:
        raise WiringError(f"{name} is tried on one server", where="--against", expected="nothing", found=other.url)
    if name == "flush" and keep_cache:
        raise WiringError("flush empties the cache: that is its question", where="--keep-cache", expected="without")
    return factor


def _steps(client: Client) -> int:
    info = client.server_info()
    steps = info.get("speculative_num_steps")
    if not steps:
        raise WiringError(
            "this server decodes without a draft, so there is no acceptance to compare",
            where=client.url,
            expected="speculative_num_steps",
            found=steps,
        )
    return int(steps)


def _resolved_values(factor: Factor, client: Client, other: Client) -> tuple[Any, Any]:
    name, read = _RESOLVED[factor.condition]
    first, second = (c.server_info() for c in (client, other))
    values = read(first.get(name)), read(second.get(name))
    if values[0] == values[1]:
        raise WiringError(
            "both servers are alike in this",
            where=f"{client.url} and {other.url}, {name}",
            expected="two values",
            found=values[0],
            remedy=f"Start one of them with {factor.flag}",
        )
    return values


def _request(answer: _Answer, factor: Factor, value: Any) -> Request:
    return from_meta(answer.meta, answer.prompt, **{factor.condition: value})


def _without(whole: Request, first: Request) -> Request:
    """The rounds of a request but its first."""
    counts = zip_longest(whole.histogram, first.histogram, fillvalue=0)
    later = tuple(max(n - gone, 0) for n, gone in counts)
    return Request(later, whole.prompt, {**whole.condition, "first_round": False})


def _cache_notes(pairs: Sequence[tuple[_Answer, _Answer]]) -> list[str]:
    if not all("cached_tokens" in answer.meta for pair in pairs for answer in pair):
        return ["the server does not say how much it took from its cache"]
    fresh = sum(a.meta["cached_tokens"] > 0 for a, _ in pairs)
    cold = sum(b.meta["cached_tokens"] == 0 for _, b in pairs)
    notes = []
    if fresh:
        notes.append(f"{fresh} requests found cached tokens in a cache that was just emptied: others use this server")
    if cold:
        notes.append(f"{cold} repeated requests found nothing cached: is the prefix cache off?")
    return notes
