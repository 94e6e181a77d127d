"""A/B on running servers: send the same prompts under two conditions and test whether acceptance differs.

Factors that a request can choose are tried on one server (cache, batch, temperature, first round); factors that are
fixed when a server starts need a second server (`FACTORS` names the flag). The order of the conditions alternates
between prompts, and the prefix cache is emptied before each request, so only the factor differs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median
from typing import Any, Protocol

from pydantic import TypeAdapter

from wiring.bench.acceptance_difference import AcceptanceDifference, Request, SplitRow, compare, from_meta, split_row
from wiring.errors import WiringError


class Client(Protocol):
    """The methods of `wiring.server.client.ServerClient` that an A/B uses."""

    url: str

    def generate(self, input_ids: Sequence[int], max_new_tokens: int, *, temperature: float = 0.0) -> Any: ...

    def flush_cache(self) -> None: ...

    def server_info(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Factor:
    """A factor that acceptance may depend on; `condition` is its name in evidence.

    `a`, `b` describe the groups where one server gives both. `flag`: how to start the second server otherwise; the
    groups are then named by what the servers resolved.
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
        Factor("batch", "batch", "one request at a time", "concurrent requests"),
        Factor("temperature", "temperature", "temperature 0", "sampled"),
        Factor("first-round", "first_round", "later rounds", "the first round after the prefill"),
        Factor("eager", "cuda_graphs", flag="--disable-cuda-graph"),
        Factor("prefix-cache", "prefix_cache", flag="--disable-radix-cache"),
        Factor("chunked", "chunked", flag="--chunked-prefill-size -1"),
        Factor("backend", "attention_backend", flag="--attention-backend NAME"),
        Factor("tree", "topk", flag="--speculative-eagle-topk N"),
    )
}
_RESOLVED = {  # condition -> the server argument that sets it, and how to read its value
    "cuda_graphs": ("disable_cuda_graph", lambda value: not value),
    "prefix_cache": ("disable_radix_cache", lambda value: not value),
    "chunked": ("chunked_prefill_size", lambda value: value is not None and value > 0),
    "attention_backend": ("attention_backend", str),
    "topk": ("speculative_eagle_topk", int),
}


@dataclass(frozen=True)
class Group:
    """One side of an A/B: its label, its acceptance, and output tokens per second of a request (median)."""

    label: str
    acceptance: SplitRow
    tok_per_s: float


@dataclass(frozen=True)
class AbResult:
    """Both groups of an A/B and their difference; `same_outputs`: whether each prompt gave the same ids under both.

    `same_outputs` is None where the texts must differ (sampled). `notes` name what weakens the comparison.
    """

    factor: Factor
    a: Group
    b: Group
    difference: AcceptanceDifference
    same_outputs: tuple[bool, ...] | None
    steps: int
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict:
        """Return the result as JSON data; nan becomes null, as does `real` where there are too few prompts."""
        return json.loads(TypeAdapter(AbResult).dump_json(self)) | {"real": self.difference.real}


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
    `keep_cache` leaves the prefix caches alone, for a server with other users: each prompt is then sent once before,
    so that it is cached in both groups.

    Raises:
        WiringError: an unknown factor, a missing or superfluous second server, two servers that do not differ in the
            factor, a server without a draft, or answers without a histogram.
    """
    chosen = _checked(factor, other, keep_cache)
    servers = (client, other or client)
    steps = max(_steps(server) for server in servers)
    one_server = {"batch": (1, batch), "temperature": (0.0, temperature)}
    values = _resolved_values(chosen, client, other) if other else one_server.get(chosen.name, (False, True))
    pairs = list(_answers(chosen, servers, prompts, values, new_tokens, keep_cache, progress))
    sides = [[from_meta(pair[side].meta, pair[side].prompt) for pair in pairs] for side in (0, 1)]
    notes = _cache_notes(pairs) if chosen.name == "flush" else []
    if chosen.name == "first-round":
        sides[0] = [_without(whole, first) for whole, first in zip(*sides, strict=True)]
        notes.append("first rounds differ from later ones on a healthy server too: compare with short prompts")
    difference = compare(sides[0], sides[1])
    labels = [f"{chosen.condition} {value}" for value in values] if other else (chosen.a, chosen.b)
    a, b = (
        Group(
            labels[side],
            split_row(sides[side], chosen.condition, values[side], steps),
            median(len(pair[side].output_ids) / pair[side].seconds for pair in pairs),
        )
        for side in (0, 1)
    )
    same = None
    if chosen.name not in ("temperature", "first-round"):
        same = tuple(a.output_ids == b.output_ids for a, b in pairs)
    return AbResult(chosen, a, b, difference, same, steps, tuple(notes))


def _answers(
    factor: Factor,
    servers: tuple[Client, Client],
    prompts: Sequence[Sequence[int]],
    values: tuple[Any, Any],
    new_tokens: int,
    keep_cache: bool,
    progress: Callable[[str], None],
) -> Iterator[tuple[_Answer, _Answer]]:
    """Yield the answers under a and under b of each prompt; the order alternates, except for the cache."""
    width = values[1] if factor.name == "batch" else 1
    for start in range(0, len(prompts), width):
        progress(f"prompt {start + 1} of {len(prompts)}")
        numbers = range(start, min(start + width, len(prompts)))
        # The last batch is filled with further prompts, whose answers are not counted.
        wave = {n: prompts[n % len(prompts)] for n in range(start, start + width)}

        def send(side: int, wave: Mapping[int, Sequence[int]] = wave) -> dict[int, _Answer]:
            return _send(
                servers[side],
                wave,
                2 if factor.name == "first-round" and side else new_tokens,  # the prefill's token, and one round
                values[side] if factor.name == "temperature" else 0.0,
                None if factor.name == "flush" and side else keep_cache,
            )

        got = {}
        for side in (1, 0) if (start // width) % 2 and factor.name != "flush" else (0, 1):
            if factor.name == "batch" and side == 0:
                got[side] = {n: send(side, {n: wave[n]})[n] for n in numbers}
            else:
                got[side] = send(side)
        yield from ((got[0][n], got[1][n]) for n in numbers)


def _send(
    client: Client, wave: Mapping[int, Sequence[int]], new_tokens: int, temperature: float, keep_cache: bool | None
) -> dict[int, _Answer]:
    """Send the prompts concurrently and return all answers by prompt number.

    keep_cache: False empties the prefix cache first, True first sends each prompt once, None does neither.
    """
    if keep_cache is False:
        client.flush_cache()
    for ids in wave.values() if keep_cache else ():
        client.generate(list(ids), 1)

    def one(item: tuple[int, Sequence[int]]) -> _Answer:
        begin = time.perf_counter()
        reply = client.generate(list(item[1]), new_tokens, temperature=temperature)
        return _Answer(item[0], time.perf_counter() - begin, tuple(reply.output_ids), reply.meta)

    with ThreadPoolExecutor(len(wave)) as threads:
        return {answer.prompt: answer for answer in threads.map(one, wave.items())}


def _checked(name: str, other: Client | None, keep_cache: bool) -> Factor:
    """Return the factor of this name; raise WiringError for an unknown one or the wrong number of servers."""
    if name not in FACTORS:
        raise WiringError(
            "unknown factor", code="factor-unknown", where="--factor", expected=", ".join(FACTORS), found=name
        )
    factor = FACTORS[name]
    if factor.flag and other is None:
        raise WiringError(
            f"{name} is fixed when a server starts, so it needs two servers",
            code="second-server-missing",
            where="--factor",
            expected="a second server (--against URL)",
            found="one server",
            remedy=f"Start the same server on another port with {factor.flag} and pass its address to --against",
        )
    if other is not None and not factor.flag:
        raise WiringError(
            f"{name} is tried on one server",
            code="second-server-unused",
            where="--against",
            expected="nothing",
            found=other.url,
        )
    if name == "flush" and keep_cache:
        raise WiringError(
            "the factor flush empties the cache",
            code="flush-keeps-cache",
            where="--keep-cache",
            expected="no such flag",
        )
    return factor


def _steps(client: Client) -> int:
    """Return the server's draft steps. Raises WiringError for a server without a draft."""
    steps = client.server_info().get("speculative_num_steps")
    if not steps:
        raise WiringError(
            "this server decodes without a draft",
            code="server-without-draft",
            where=client.url,
            expected="speculative_num_steps",
            found=steps,
        )
    return int(steps)


def _resolved_values(factor: Factor, client: Client, other: Client) -> tuple[Any, Any]:
    """Return the factor's value on each server. Raises WiringError where they are equal."""
    name, read = _RESOLVED[factor.condition]
    first, second = (read(c.server_info().get(name)) for c in (client, other))
    if first == second:
        raise WiringError(
            "both servers have the same value",
            code="servers-alike",
            where=f"{client.url} and {other.url}, {name}",
            expected="two values",
            found=first,
            remedy=f"Start one of them with {factor.flag}",
        )
    return first, second


def _without(whole: Request, first: Request) -> Request:
    """Return a request without its first round."""
    counts = zip_longest(whole.histogram, first.histogram, fillvalue=0)
    return Request(tuple(max(n - gone, 0) for n, gone in counts), whole.prompt)


def _cache_notes(pairs: Sequence[tuple[_Answer, _Answer]]) -> list[str]:
    """Describe requests that found cached tokens after a flush, or none when sent again."""
    if not all("cached_tokens" in answer.meta for pair in pairs for answer in pair):
        return ["the server does not report how many tokens it took from its cache"]
    fresh = sum(a.meta["cached_tokens"] > 0 for a, _ in pairs)
    cold = sum(b.meta["cached_tokens"] == 0 for _, b in pairs)
    notes = []
    if fresh:
        notes.append(f"{fresh} requests found cached tokens right after a flush: the server has other users")
    if cold:
        notes.append(f"{cold} repeated requests found nothing cached: check whether the prefix cache is off")
    return notes
