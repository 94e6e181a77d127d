"""Measure several arms in one run, so that drift of the machine's speed cancels.

Interleaved: all servers are up, and each prompt goes to every arm in turn, forwards on even prompts and
backwards on odd ones; idle servers must sleep (`--sleep-on-idle`). Sequential: one server at a time, for
machines with room for only one. Either way the baseline runs once more at the end under the name
"<baseline> again": its difference from itself is the noise level of every other ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from wiring.bench.measurement import Trial
from wiring.errors import WiringError


class BenchmarkServer(Protocol):
    """A server with a client, whose `read_only` is set where the server has other users, and a wait for readiness."""

    @property
    def client(self) -> Any: ...

    @property
    def ready(self) -> Callable[[], None]: ...


@dataclass(frozen=True)
class Arm:
    """One thing to measure: a name, and a context manager that yields its server, ready or still starting."""

    name: str
    open: Callable[[], AbstractContextManager[BenchmarkServer]]


Progress = Callable[[str], None]


def measure(
    arms: Sequence[Arm],
    prompts: Sequence[Sequence[int]],
    *,
    new_tokens: int,
    repeats: int,
    warmup_tokens: int,
    interleaved: bool,
    closing_prompts: int = 0,
    progress: Progress = print,
    watch: Callable[[str, BenchmarkServer], None] | None = None,
) -> tuple[Trial, ...]:
    """Send `prompts` x `repeats` requests of `new_tokens` tokens to every arm, one request at a time.

    The first arm is the baseline; it runs again at the end on the first `closing_prompts` prompts. `watch(name,
    server)` is called once per server after its warm-up. The prefix cache of a server that is not `read_only` is
    emptied before each request, so every request includes its whole prefill.
    Raises WiringError when a server returns another number of tokens than asked for.
    """
    order = count()

    def one(arm: str, server: BenchmarkServer, prompt: int, repeat: int) -> Trial:
        ids = list(prompts[prompt])
        _flush(server)
        prefill = _timed(server, ids, 1)[0]
        _flush(server)
        seconds, reply = _timed(server, ids, new_tokens)
        if len(reply.output_ids) != new_tokens:
            raise WiringError(
                "the server ended a request early",
                code="answer-too-short",
                where=f"arm {arm}, prompt {prompt}",
                expected=f"{new_tokens} tokens",
                found=f"{len(reply.output_ids)} tokens",
                remedy="The prompt and new_tokens must fit the context length",
            )
        meta = reply.meta
        return Trial(
            arm=arm,
            prompt=prompt,
            repeat=repeat,
            order=next(order),
            seconds=seconds,
            prefill_s=prefill,
            output_ids=tuple(reply.output_ids),
            rounds=int(meta.get("spec_verify_ct") or 0),
            correct_drafts=int(meta.get("spec_num_correct_drafts") or 0),
            histogram=tuple(meta.get("spec_correct_drafts_histogram") or ()),
        )

    def warm_up(arm: str, server: BenchmarkServer) -> None:
        for ids in prompts[:2]:
            server.client.generate(list(ids), warmup_tokens)
        if watch:
            watch(arm, server)

    run = _interleaved if interleaved else _sequential
    return tuple(run(arms, len(prompts), repeats, min(closing_prompts, len(prompts)), one, warm_up, progress))


def _interleaved(arms, prompts: int, repeats: int, closing: int, one, warm_up, progress: Progress) -> Iterator[Trial]:
    with ExitStack() as stack:
        servers = [(arm.name, stack.enter_context(arm.open())) for arm in arms]
        for name, server in servers:  # servers that are still starting load concurrently
            server.ready()
            warm_up(name, server)
        for repeat in range(repeats):
            for prompt in range(prompts):
                progress(f"prompt {prompt + 1} of {prompts}, repeat {repeat + 1} of {repeats}")
                for name, server in servers if (prompt + repeat) % 2 == 0 else servers[::-1]:
                    yield one(name, server, prompt, repeat)
        name, server = servers[0]
        for prompt in range(closing):
            yield one(again(name), server, prompt, 0)


def _sequential(arms, prompts: int, repeats: int, closing: int, one, warm_up, progress: Progress) -> Iterator[Trial]:
    for arm in arms:
        with arm.open() as server:
            server.ready()
            warm_up(arm.name, server)
            for repeat in range(repeats):
                progress(f"arm {arm.name}, repeat {repeat + 1} of {repeats}")
                for prompt in range(prompts):
                    yield one(arm.name, server, prompt, repeat)
    if closing:
        with arms[0].open() as server:
            server.ready()
            warm_up(arms[0].name, server)
            for prompt in range(closing):
                yield one(again(arms[0].name), server, prompt, 0)


def again(baseline: str) -> str:
    """Return the arm name of the baseline's second run."""
    return f"{baseline} again"


def _timed(server: BenchmarkServer, ids: list[int], tokens: int) -> tuple[float, Any]:
    start = time.perf_counter()
    reply = server.client.generate(ids, tokens)
    return time.perf_counter() - start, reply


def _flush(server: BenchmarkServer) -> None:
    if not server.client.read_only:
        server.client.flush_cache()
