"""Measurements that can follow a verdict, with their cost and the symptoms that they decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from wiring.diagnosis.symptom_table import SYMPTOMS


@dataclass(frozen=True)
class NextCheck:
    """One measurement.

    `cost`: 1 files, logs and counters only; 2 a request or a flag of a running server, or the draft alone; 3 a restart
    or a capture; 4 a second engine or machine. `command`: the `wiring` command, with its placeholders in capitals.
    """

    name: str
    cost: int
    text: str
    command: str | None = None

    @cached_property
    def decides(self) -> frozenset[str]:
        """Names of the symptoms that the check decides."""
        return frozenset(name for name, row in SYMPTOMS.items() if self.name in row.checks)

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: `{self.command}`"


def _ab(factor: str, *, two_servers: bool = False) -> str:
    against = " --against URL" if two_servers else ""
    return f"wiring ab --server URL{against} --prompts FILE --factor {factor}"


_ACCURACY = "wiring accuracy --draft DIR --states DIR --target DIR --layout IDS"
_LINT = "wiring lint --draft DIR --target DIR --engine NAME==VERSION --server URL"
_ROWS = (  # the first of equally informative checks is proposed
    NextCheck("lint", 1, "Lint the draft, the target and the server's resolved arguments", _LINT),
    NextCheck("counters", 1, "Read acceptance by position from the server's log or counters", "wiring read-log FILE"),
    NextCheck("load line", 1, "Read the draft's load line in the server's log: quant=, which embedding, which ranks"),
    NextCheck(
        "benchmark",
        1,
        "Examine the benchmark: number of prompts, chat template, warm-up, distinct bigrams of its text",
        "wiring throughput PROFILE",
    ),
    NextCheck("text", 1, "Read the text, compare greedy outputs with and without the draft, and look for NaN"),
    NextCheck("drafted ids", 2, "Count the drafted ids: is one id dominant, are all below the draft's vocabulary size"),
    NextCheck("map", 1, "Compare d2t with the map that the lm_head was trained with"),
    NextCheck("loss mask", 1, "Sum the loss mask of a few samples, and read accuracy at the first answer position"),
    NextCheck("rendered prompts", 1, "Compare rendered training and serving prompts token by token, and the target"),
    NextCheck("alone", 2, "Measure the draft alone on saved training states, by depth, with controls", _ACCURACY),
    NextCheck("served text", 3, "Measure the draft alone on text that the server decoded"),
    NextCheck(
        "capture",
        3,
        "Capture the states fed to the draft and compare them slot by slot with a reference, in every phase",
        "wiring layout PROFILE --capture",
    ),
    NextCheck("ranks", 3, "Dump one prompt's states on every rank and compare the ranks"),
    NextCheck("cache", 2, "Send the same prompts to an empty cache and to a warm one", _ab("flush")),
    NextCheck(
        "prefix cache off",
        3,
        "Serve the same prompts with the prefix cache off",
        _ab("prefix-cache", two_servers=True),
    ),
    NextCheck("hours", 2, "Record the accept length by the hours since the start"),
    NextCheck(
        "first round",
        2,
        "Compare the first round after the prefill with a replay of the draft alone on the same text",
        _ab("first-round"),
    ),
    NextCheck("lengths", 2, "Split acceptance by the prompt's length"),
    NextCheck(
        "chunks",
        3,
        "Compare prefill in one chunk with several, and separate the first round after the prefill",
        _ab("chunked", two_servers=True),
    ),
    NextCheck("one server", 3, "Serve the same prompts without the hand-off between servers"),
    NextCheck("eager", 3, "Serve the same prompts without CUDA graphs", _ab("eager", two_servers=True)),
    NextCheck("batch 1", 2, "Send the same prompts one at a time and together", _ab("batch")),
    NextCheck("one rank", 3, "Serve the same prompts on one rank"),
    NextCheck("fusion off", 3, "Serve the same prompts without the fused all-reduce"),
    NextCheck("backend", 3, "Serve the same prompts on another attention backend", _ab("backend", two_servers=True)),
    NextCheck(
        "temperature 0",
        2,
        "Send the same prompts at temperature 0, and read which acceptance rule is in force",
        _ab("temperature"),
    ),
    NextCheck("draft KV dtype", 3, "Serve with the draft's KV cache in the model's dtype"),
    NextCheck("draft unquantised", 3, "Serve the draft unquantized"),
    NextCheck("target unquantised", 3, "Serve the target unquantized"),
    NextCheck(
        "chain and tree",
        3,
        "Compare a chain (top-k 1) with a tree of the same depth, and with fewer steps",
        _ab("tree", two_servers=True),
    ),
    NextCheck("text prompts", 2, "Send prompts with images and prompts of text only"),
    NextCheck("prompt sets", 2, "Send another prompt set, and one of another domain"),
    NextCheck("template", 2, "Send the prompts in the chat template"),
    NextCheck(
        "reference forward", 4, "Compare the engine's draft part by part with a reference forward of the same draft"
    ),
    NextCheck("other engine", 4, "Serve the same pair in another engine, on the same prompts"),
    NextCheck("other head", 3, "Serve another draft for this target on the same server"),
    NextCheck("other version", 4, "Serve the same pair on another version of the engine"),
    NextCheck(
        "round cost",
        3,
        "Measure plain steps and rounds at two or more numbers of draft steps",
        "wiring rebenchmark PROFILE",
    ),
    NextCheck("no drafts", 3, "Measure rounds without drafts (0 steps) or with acceptance forced"),
    NextCheck("batches", 2, "Measure the speed-up at several batch sizes"),
)
CHECKS: Mapping[str, NextCheck] = MappingProxyType({check.name: check for check in _ROWS})
