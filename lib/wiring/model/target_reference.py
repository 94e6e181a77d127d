"""The target in transformers with every boundary recorded: the reference for served states.

Boundary b is transformers' hidden_states[b] before the final norm. Its list holds the last entry normed, so boundary L
is never in it; hooks on the decoder layers give all of 0..L.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wiring.errors import WiringError
from wiring.model.torchvision_operators import declare_torchvision_operators

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class ReferencePass:
    """One forward pass over B sequences of N tokens.

    boundaries [L+1, B, N, H] residual stream, not normed, index = boundary; logits [B, N, V]; last_hidden [B, N, H]
    after the final norm.
    """

    boundaries: Tensor
    logits: Tensor
    last_hidden: Tensor


class ReferenceTarget:
    """A causal language model of transformers, for evaluation only."""

    def __init__(self, model: PreTrainedModel):
        """Wrap a loaded model. Raises WiringError when its decoder layers cannot be found."""
        self.model = model.eval().requires_grad_(False)
        self.decoder = _decoder(model)
        self.layers: nn.ModuleList = self.decoder.layers
        head = model.get_output_embeddings()
        if head is None:
            raise WiringError(
                "the target has no language model head", code="target-without-head", where=type(model).__name__
            )
        self.head: Any = head  # a linear layer

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu", dtype: torch.dtype = torch.float32) -> ReferenceTarget:
        """Load a Hugging Face folder from disk (never the network, never its own code).

        Raises WiringError when transformers cannot load it, or weights are missing or of another shape, which
        transformers would fill with random numbers.
        """
        declare_torchvision_operators()
        from transformers import AutoModelForCausalLM

        if not (Path(folder) / "config.json").is_file():
            raise WiringError("no config.json in the target folder", code="target-config-missing", where=folder)
        try:
            with _no_progress_bar():
                loaded: Any = AutoModelForCausalLM.from_pretrained(
                    folder, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
                )
                model, info = loaded
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise WiringError(
                f"transformers cannot load the target: {first}", code="target-unloadable", where=folder
            ) from error
        for kind in ("missing_keys", "mismatched_keys"):
            if bad := sorted(str(entry) for entry in info.get(kind) or ()):
                raise WiringError(
                    f"the target's weights have {kind.replace('_keys', '')} tensors",
                    code="target-tensors-unusable",
                    where=folder,
                    expected="every tensor of the architecture",
                    found=f"{len(bad)} such as {bad[0]}",
                    remedy="Check that the files and config.json come from the same model",
                )
        return cls(model.to(device))

    @property
    def num_layers(self) -> int:
        """L: boundaries run from 0 to L."""
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        """H: the width of a boundary."""
        return self.head.weight.shape[1]

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The target's dtype."""
        return self.head.weight.dtype

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> ReferencePass:
        """Run tokens [B, N] int64. Shorter sequences may be padded on the right, because attention is causal."""
        with self._tapped() as (states, normed):
            output = self.model(input_ids=tokens.to(self.device), use_cache=False)
        if len(states) != self.num_layers + 1:
            raise WiringError(
                "the target did not run each of its layers once",
                code="layers-not-run-once",
                where=type(self.model).__name__,
                expected=f"{self.num_layers + 1} boundaries",
                found=len(states),
            )
        return ReferencePass(torch.stack(states), output.logits, normed[0])

    @torch.no_grad()
    def greedy(self, prompt_ids: Sequence[int], max_new_tokens: int, eos_id: int | None = None) -> list[int]:
        """Continue one prompt greedily; return the new ids, the end-of-text id included."""
        fed, cache, new = torch.tensor([list(prompt_ids)], device=self.device), None, []
        while len(new) < max_new_tokens:
            output = self.model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, fed = output.past_key_values, output.logits[:, -1:].argmax(-1)
            new.append(int(fed))
            if new[-1] == eos_id:
                break
        return new

    @contextmanager
    def _tapped(self) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
        """Collect each layer's input, the last layer's output, and the head's input, in the order they occur."""
        states: list[Tensor] = []
        normed: list[Tensor] = []

        def before_layer(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            states.append(args[0] if args else kwargs["hidden_states"])

        def after_last(_module: nn.Module, _args: Any, output: Any) -> None:
            states.append(output[0] if isinstance(output, tuple) else output)

        def before_head(_module: nn.Module, args: tuple[Any, ...]) -> None:
            normed.append(args[0])

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.callback(layer.register_forward_pre_hook(before_layer, with_kwargs=True).remove)
            hooks.callback(self.layers[-1].register_forward_hook(after_last).remove)
            hooks.callback(self.head.register_forward_pre_hook(before_head).remove)
            yield states, normed


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Disable transformers' "Loading weights" bar unless stderr is a terminal."""
    from transformers.utils import logging

    silence = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if silence:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if silence:
            logging.enable_progress_bar()


def _decoder(model: nn.Module) -> Any:
    """Return the module that owns the list of decoder layers."""
    candidate: Any = model
    for _ in range(4):
        if isinstance(getattr(candidate, "layers", None), nn.ModuleList):
            return candidate
        candidate = getattr(candidate, "model", None) or getattr(candidate, "language_model", None)
    raise WiringError(
        "the target's decoder layers were not found",
        code="decoder-layers-missing",
        where=type(model).__name__,
        expected="model.layers, as in Llama, Qwen3 and DeepseekV3",
    )
