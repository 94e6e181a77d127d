"""The target's tokenizer: one word, one token; words are separated by blanks."""

from __future__ import annotations

from pathlib import Path

from tiny.corpus import IDS, SPECIAL
from wiring.checkpoints.atomic import write_json


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, which AutoTokenizer loads. A text gets no extra token."""
    bos, eos, pad, unknown = SPECIAL
    special = [
        {
            "id": IDS[word],
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in SPECIAL
    ]
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": special,
            "normalizer": None,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "post_processor": None,
            "decoder": None,  # decoding joins the words by blanks
            "model": {"type": "WordLevel", "vocab": IDS, "unk_token": unknown},
        },
    )
    names = {"bos_token": bos, "eos_token": eos, "pad_token": pad, "unk_token": unknown}
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **names,
            "clean_up_tokenization_spaces": False,
            "model_max_length": 2048,
        },
    )
