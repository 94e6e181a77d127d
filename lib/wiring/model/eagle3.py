"""The EAGLE-3 draft in plain PyTorch: Llama-style layers, the first over [embedding, target state].

Row t of a sequence holds the target's state g_t and the next token x_{t+1}. Step 0 predicts x_{t+2}. Step k continues
from the draft's own output of step k-1 at the same row, with the text's token x_{t+1+k} at RoPE position t+k, and
predicts x_{t+2+k}. Row t attends to the step-0 keys of rows 0..t and its own keys of steps 1..k. A serving engine
computes the same when it drafts from row t and its first k proposals equal the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from wiring.checkpoints.draft_config import EMBEDDING, HEAD, Eagle3Config, sharing
from wiring.errors import WiringError
from wiring.model.draft_layers import DraftLayer, RMSNorm
from wiring.model.rope import cosines
from wiring.model.rope import depends_on_length as rope_depends_on_length

if TYPE_CHECKING:
    from wiring.checkpoints.draft_files import DraftCheckpoint

__all__ = ["Eagle3Config", "Eagle3Draft"]


class Eagle3Draft(nn.Module):
    """A draft head over `config.num_slots` target states. Parameter names are the canonical tensor names.

    `embedding` [V, H] is that of the target or of the draft, and is not trained. `target_ids` [Vd] maps draft ids to
    target ids.
    """

    embedding: Tensor
    target_ids: Tensor

    def __init__(self, config: Eagle3Config, embedding: Tensor, target_ids: Tensor | None = None):
        super().__init__()
        if tuple(embedding.shape) != (config.vocab_size, config.hidden_size):
            raise WiringError(
                "the target's embedding does not fit the draft",
                code="embedding-shape",
                where="embed_tokens.weight",
                expected=f"[{config.vocab_size}, {config.hidden_size}], from the draft's config",
                found=list(embedding.shape),
                remedy="Pair the draft with the target that it was trained for",
            )
        if target_ids is None:
            target_ids = torch.arange(config.draft_vocab_size)
        self.config = config
        self.fc = nn.Linear(config.fc_width, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList(DraftLayer(config, i) for i in range(config.num_layers))
        if config.head_norm or config.norm_output:
            self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.fc_width, config.rms_norm_eps)
        if config.fc_norm:
            norms = (RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_slots))
            self.fc_norm = nn.ModuleList(norms)
        self.register_buffer("embedding", embedding.detach(), persistent=False)
        self.register_buffer("target_ids", target_ids.long(), persistent=False)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: DraftCheckpoint,
        embedding: Tensor | None = None,
        head: Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Eagle3Draft:
        """Build a draft for evaluation (no gradients) from a checkpoint.

        `embedding` [V, H] and `head` [V, H] are the target's, used where the draft shares them by its producer's rule
        (see `wiring.checkpoints.draft_config`); otherwise, and where they are None, those of the file are used. Raises
        WiringError when one of them is missing or does not fit the draft's config, or the checkpoint lacks a tensor.
        """
        shape, tensors = checkpoint.shape, dict(checkpoint.tensors)
        shared = sharing(shape, checkpoint.config, checkpoint.producer, tensors)
        own = tensors.get(EMBEDDING)
        if shared.embedding == "target" and embedding is not None:
            own = embedding
        if own is None:
            shares = shared.embedding == "target"
            raise WiringError(
                "the draft has no embedding of its own",
                code="embedding-missing",
                where=checkpoint.folder,
                expected=EMBEDDING + (", or the target's embedding" if shares else ""),
                remedy="Pass the target (--target)" if shares else "A draft of another width than its target needs one",
            )
        other_head = {"target": head, "embedding": own, "draft": None}[shared.head]
        if other_head is not None:
            tensors[HEAD] = other_head
        with torch.device("meta"):  # the weights are replaced at once
            draft = cls(shape, own.to("meta"), None)
        wanted = draft.state_dict()
        for name, parameter in wanted.items():
            found = tensors.get(name)
            if found is not None and found.shape != parameter.shape:
                raise WiringError(
                    f"tensor {name} does not fit",
                    code="draft-tensor-shape",
                    where=checkpoint.folder,
                    expected=list(parameter.shape),
                    found=list(found.shape),
                )
            if found is None:
                shares = name == HEAD and shared.head == "target"
                raise WiringError(
                    f"tensor {name} is missing from the draft",
                    code="draft-tensor-missing",
                    where=checkpoint.folder,
                    expected=list(parameter.shape),
                    found="nothing",
                    remedy="Pass the target, which shares its head with the draft (--target)" if shares else "",
                )
        draft.load_state_dict({name: tensors[name].to(device, dtype) for name in wanted}, assign=True)
        draft.embedding = own.detach().to(device, dtype)
        d2t = tensors.get("d2t")
        ids = torch.arange(shape.draft_vocab_size)
        draft.target_ids = (ids if d2t is None else ids + d2t).to(device)
        return draft.eval().requires_grad_(False)

    @classmethod
    def fresh(cls, config: Eagle3Config, embedding: Tensor, seed: int, target_ids: Tensor | None = None) -> Eagle3Draft:
        """Initialize a draft to train, reproducible from `seed`; `target_ids` [Vd] ascending is the draft's vocabulary.

        Matrices start at variance 1 / fan-in, those that write to the residual stream or to the logits smaller. `fc`
        starts equal for all slots: where the scales of the states differ, divide each slot by its standard deviation
        before training and fold the factors into the columns of `fc.weight` afterwards.
        """
        draft = cls(config, embedding.float().clone(), target_ids)
        generator = torch.Generator().manual_seed(seed)
        small = ("o_proj.weight", "down_proj.weight", "lm_head.weight")
        with torch.no_grad():
            for name, parameter in draft.named_parameters():
                if parameter.dim() == 2:
                    scale = parameter.shape[1] ** -0.5 * (0.3 if name.endswith(small) else 1.0)
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
                elif name.endswith("bias"):
                    parameter.zero_()
        return draft

    def checkpoint_tensors(self, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
        """Return all tensors of SpecForge's flat format, on the CPU: weights in `dtype`, d2t int64, t2d bool.

        The first layer is named `midlayer`.
        """
        ids = self.target_ids.cpu()
        tensors = {
            name.replace("layers.0.", "midlayer.", 1): p.detach().to("cpu", dtype).contiguous()
            for name, p in self.state_dict().items()
        }
        tensors["d2t"] = ids - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(self.config.vocab_size, dtype=torch.bool).scatter(0, ids, True)
        return tensors

    def to_target_ids(self, draft_ids: Tensor) -> Tensor:
        """Return the target ids of draft ids, any shape."""
        return self.target_ids[draft_ids]

    def unrolled(self, tokens: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
        """Yield the teacher-forced logits [B, N-1, Vd] of each step; row t of step k predicts x_{t+2+k}.

        tokens [B, N] int64, states [B, N, n, H]; shorter sequences are padded on the right with any valid token and
        finite states (attention is causal). Rows t > N-2-k of step k have no token x_{t+1+k} in the text and get
        the last one: the caller masks their logits, as it masks padding. Raises WiringError when the states do
        not fit `fc`.
        """
        return (self.logits(rows) for rows in self.hidden_steps(tokens, states, steps))

    def hidden_steps(
        self,
        tokens: Tensor,
        states: Tensor,
        steps: int,
        lengths: Sequence[int] | None = None,
        keep: Callable[[int], Tensor | None] = lambda step: None,
    ) -> Iterator[Tensor]:
        """Yield the input of lm_head [B, N-1, H] of each step, normed as the config asks; arguments as `unrolled`.

        A caller that counts only some rows passes those to `logits`, because the head is the largest product.
        `lengths` (B of them) are the lengths of padded texts in tokens; they matter only with `depends_on_length`.
        `keep(step)` [B, N-1] bool, called when that step begins, selects the rows that this or a later step needs; the
        others are undefined, in later steps too. None selects all rows.
        """
        yield from self.steps_of(self.project(states[:, : tokens.shape[1] - 1]), tokens, steps, lengths, keep)

    def steps_of(
        self,
        hidden: Tensor,
        tokens: Tensor,
        steps: int,
        lengths: Sequence[int] | None = None,
        keep: Callable[[int], Tensor | None] = lambda step: None,
    ) -> Iterator[Tensor]:
        """Yield as `hidden_steps` from the output `hidden` [B, N-1, H] of `project`.

        B may be a multiple of the number of token sequences (the same texts under other states); the projection of the
        embeddings is then computed once. `keep` and the outputs have B sequences.
        """
        config, rows = self.config, tokens.shape[1] - 1
        first = self.layers[0]
        assert isinstance(first, DraftLayer)
        embedded = first.self_attn.embedding_projection(
            first.input_layernorm(self.embedding[tokens])
        )  # each [B, N, width]
        again = len(hidden) // len(tokens)
        cache: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in self.layers]
        index = torch.arange(rows, device=tokens.device)
        for step in range(steps):
            fed = (index + 1 + step).clamp(max=rows)  # [T]
            added = tuple(_repeated(share[:, fed], again) for share in embedded)
            so_far = [length + step for length in [*(lengths or [rows + 1])] * (again if lengths else 1)]
            angles = cosines(config.rope, config.head_dim, index + (config.first_position + step), so_far)
            cos, sin = (part[:, 0].to(hidden.dtype) for part in angles)  # [B or 1, T, D/2]
            wanted = keep(step)
            for i, (layer, (keys, values)) in enumerate(zip(self.layers, cache, strict=True)):
                # In step 0 a layer's keys come from all rows of the layer before it: only the last may leave some out.
                drops = step > 0 or i == len(self.layers) - 1
                hidden = layer(hidden, added, cos, sin, keys, values, wanted if drops else None)
                added = None
            normed = self.norm(hidden) if config.head_norm or config.norm_output else hidden
            yield normed if config.head_norm else hidden
            hidden = normed if config.norm_output else hidden

    @property
    def depends_on_length(self) -> bool:
        """Whether a row depends on the length of its text (dynamic RoPE), and so on padding."""
        return rope_depends_on_length(self.config.rope)

    def logits(self, rows: Tensor) -> Tensor:
        """Return logits [..., Vd] of rows [..., H] of `hidden_steps`."""
        return self.lm_head(rows)

    def project(self, states: Tensor) -> Tensor:
        """Apply the norms and `fc` to the concatenated slots: [B, T, n, H] -> [B, T, draft H]."""
        config = self.config
        if tuple(states.shape[-2:]) != (config.num_slots, config.target_hidden_size):
            raise WiringError(
                "the states do not fit the draft's fc",
                code="fc-input-shape",
                where="fc.weight",
                expected=f"{config.num_slots} states of width {config.target_hidden_size}",
                found=f"{states.shape[-2]} states of width {states.shape[-1]}",
            )
        states = states.to(self.fc.weight.dtype)
        # SGLang distinguishes target states from fed-back ones by width alone, and skips fc when the widths are equal.
        if config.skips_narrow_fc and config.fc_width == config.hidden_size:
            return states.flatten(-2)
        if config.norm_before_fc:
            states = self.input_norm(states.flatten(-2)).view_as(states)
        if config.fc_norm:
            states = torch.stack([norm(states[..., i, :]) for i, norm in enumerate(self.fc_norm)], -2)
        return self.fc(states.flatten(-2))


def _repeated(share: Tensor, times: int) -> Tensor:
    """Repeat [B, T, width] to [times * B, T, width]."""
    return share if times == 1 else share.repeat(times, 1, 1)
