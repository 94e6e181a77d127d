"""Measure servers with and without a draft, and model what a round costs and what is left to gain.

Names are loaded on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "arm_results": ["BIGRAM_FLOOR", "bigram_shares", "paired_ratios", "same_outputs", "summarize", "unique_share"],
        "benchmark": ["again"],
        "cost_model": ["chain_length", "predict"],
        "measurement": ["Measurement", "this_machine"],
    },
)
