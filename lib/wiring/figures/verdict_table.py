"""A verdict as a table: each kind of fault with its bits, what speaks for it and what against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wiring.diagnosis.verdict import Said, Verdict


def verdict_table(verdict: Verdict, rows: int = 5) -> pd.DataFrame:
    """The first `rows` kinds of the ranking and each named one behind them; empty where nothing speaks for any kind."""
    columns = ["kind", "name", "bits", "named", "for", "against"]
    ranked = [
        (
            one.kind,
            one.name,
            round(one.score, 1),
            one.kind in verdict.named,
            _said(one.speaks_for),
            _said(one.speaks_against),
        )
        for one in verdict.shown(rows)
    ]
    return pd.DataFrame(ranked, columns=columns).set_index("kind")


def _said(said: Sequence[Said]) -> str:
    return "; ".join(f"{one.symptom.letter} {one.symptom.name.replace('_', ' ')} ({one.bits:+.1f})" for one in said)
