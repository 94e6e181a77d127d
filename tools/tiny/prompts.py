"""Held-out prompts, and the target's greedy continuation of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from tiny import corpus
from tiny.target_model import StackedTarget
from wiring.checkpoints.atomic import write_json

SHORTEST, LONGEST = 40, 60  # tokens of a prompt


@dataclass(frozen=True)
class Prompt:
    """`words` are the prompt; `document` is what it was cut from."""

    words: tuple[str, ...]
    document: corpus.Document

    @property
    def ids(self) -> list[int]:
        """Token ids of the prompt."""
        return [corpus.IDS[word] for word in self.words]


def draw_prompts(seed: int, count: int, extra: int) -> list[Prompt]:
    """`count` prompts of 40 to 60 tokens from documents of the split that nothing else uses, both kinds in turn."""
    rng = random.Random(f"prompts {seed}")
    kinds = tuple(corpus.KINDS)
    prompts = []
    for index in range(count):
        length = rng.randint(SHORTEST, LONGEST)
        document = corpus.draw(rng, length + extra, "prompts", kinds[index % len(kinds)])
        prompts.append(Prompt(document.words[:length], document))
    return prompts


def varied_prompts(
    target: StackedTarget, seed: int, count: int, extra: int, is_varied: Callable[[list[int]], bool]
) -> tuple[list[Prompt], list[list[int]]]:
    """The first `count` drawn prompts whose greedy continuation is varied, and those continuations, `extra` ids each.

    A looping text says nothing about a draft. At most as many prompts again are drawn; where they do not suffice, the
    first of the others fill up, and the pair's bounds tell.
    """
    drawn = draw_prompts(seed, 2 * count, extra)
    prompts, spare = drawn[:count], drawn[count:]
    texts = greedy(target, prompts, extra)
    looping = [row for row, text in enumerate(texts) if not is_varied(text)]
    if looping:
        others = [pair for pair in zip(spare, greedy(target, spare, extra), strict=True) if is_varied(pair[1])]
        for row, (prompt, text) in zip(looping, others, strict=False):
            prompts[row], texts[row] = prompt, text
    return prompts, texts


def write_prompts(prompts: list[Prompt], path: Path) -> None:
    """Write a list of {"text", "input_ids"}."""
    write_json(path, [{"text": " ".join(prompt.words), "input_ids": prompt.ids} for prompt in prompts])


@torch.no_grad()
def greedy(target: StackedTarget, prompts: list[Prompt], count: int) -> list[list[int]]:
    """The target's greedy continuations, `count` ids each, found as the fixed point of guessing all of them at once.

    Replacing every generated token by the target's choice after the tokens before it, over and over, fixes at least
    one more token each time; where nothing changes, the text is greedy. The documents are the first guess, so that a
    handful of passes does the work of `count`.
    """
    rows = [len(prompt.words) for prompt in prompts]
    texts = torch.zeros(len(prompts), max(rows) + count, dtype=torch.int64)
    generated = torch.zeros_like(texts, dtype=torch.bool)
    for row, (prompt, length) in enumerate(zip(prompts, rows, strict=True)):
        texts[row, : length + count] = torch.tensor(prompt.document.ids[: length + count])
        generated[row, length : length + count] = True
    while True:
        choices = torch.cat([texts[:, :1], target(texts[:, :-1])[0].argmax(-1)], 1)
        renewed = torch.where(generated, choices, texts)
        if torch.equal(renewed, texts):
            return [texts[row, length : length + count].tolist() for row, length in enumerate(rows)]
        texts = renewed
