"""Let the tiny target write the texts of tests/diagnosis/injection/material/texts.json: ids only, no states.

    python tests/diagnosis/injection/make_texts.py

"greedy": the shipped prompts, cut to one length, at temperature 0. "warm T": the same, sampled at temperature T.
"random": prompts of random ids. "looping": prompts of one word over and over, which the target goes on with.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from wiring.checkpoints.atomic import replacing
from wiring.model.target_reference import ReferenceTarget

TINY = Path(__file__).parents[4] / "data" / "tiny"
MATERIAL = Path(__file__).parent / "material"
PROMPT = 40  # tokens of every prompt, so that all run as one batch
SEED = 5
TEMPERATURES = (1.0, 1.5)
LOOPING = (24, 34, 44, 74, 104, 129, 139, 154)  # words that the target repeats, or answers with a short loop


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    target = ReferenceTarget.load(TINY / "target")
    prompts = torch.tensor([p["input_ids"][:PROMPT] for p in json.loads((TINY / "prompts.json").read_text())])
    vocabulary = int(target.head.weight.shape[0])
    random_ids = torch.randint(4, vocabulary, (8, PROMPT), generator=generator)
    jobs = {
        "greedy": (prompts, 104, 0.0),
        **{f"warm {t}": (prompts[:16], 60, t) for t in TEMPERATURES},
        "random": (random_ids, 40, 0.0),
        "looping": (torch.tensor(LOOPING)[:, None].repeat(1, PROMPT), 60, 0.0),
    }
    texts = {name: decode(target, ids, count, t, generator).tolist() for name, (ids, count, t) in jobs.items()}
    MATERIAL.mkdir(exist_ok=True)
    rows = ",\n".join(
        f' "{name}": [\n' + ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in text) + "\n ]"
        for name, text in texts.items()
    )
    with replacing(MATERIAL / "texts.json") as temporary:
        temporary.write_text("{\n" + rows + "\n}\n")


@torch.no_grad()
def decode(target: ReferenceTarget, prompts: torch.Tensor, count: int, temperature: float, generator) -> torch.Tensor:
    """Prompts [B, P] and `count` more tokens each, [B, P + count]."""
    texts, fed, cache = prompts, prompts, None
    for _ in range(count):
        output = target.model(input_ids=fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1]
        if temperature:
            fed = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
        else:
            fed = logits.argmax(-1, keepdim=True)
        texts = torch.cat([texts, fed], 1)
    return texts


if __name__ == "__main__":
    main()
