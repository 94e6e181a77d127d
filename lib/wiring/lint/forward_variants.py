"""Norms, residuals and further variants of the forward pass that trainers and engines read differently."""

from __future__ import annotations

from wiring.checkpoints.draft_check import check_config
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View


def speculators_layout(view: View) -> list[LintFinding]:
    """A speculators file on SGLang, which reads flat configs alone (`srt/models/llama_eagle3.py`, 0.5.23)."""
    if not view.sglang or view.draft.producer != "speculators":
        return []
    return [
        LintFinding(
            10,
            "error",
            view.draft.where,
            "the config is in the layout of speculators (transformer_layer_config), which SGLang does not read",
            "Serve it with vLLM, or convert config and names to a flat file",
        )
    ]


def norm_before_residual(view: View) -> list[LintFinding]:
    """A first residual that is the normed state: speculators trains it, vLLM serves it, SGLang does not."""
    if not view.draft.config.get("norm_before_residual"):
        return []
    where = f"{view.draft.where}: norm_before_residual"
    if view.sglang:
        return [
            LintFinding(
                10,
                "error",
                where,
                "norm_before_residual is true, and SGLang adds the state un-normed whatever it says: "
                "the first proposal is wrong already",
                "Serve it with vLLM, or retrain with false",
            )
        ]
    if view.draft.producer == "speculators":
        return []
    return [
        LintFinding(
            10,
            "warning",
            where,
            "norm_before_residual is true in a flat config, where no trainer does it",
            "A draft of speculators has to be served in its own layout",
        )
    ]


def variants(view: View) -> list[LintFinding]:
    """What the config leaves open, or what two readers of it take differently."""
    draft = view.draft
    assert draft.shape is not None, "needs the shape"
    kinds = {"norm_output": 10, "norm_before_residual": 10, "rope": 13}
    found = []
    for finding in check_config(draft.shape, draft.config, draft.producer, "", draft.where):
        said_here = finding.kind == "norm_before_residual" and bool(draft.config.get("norm_before_residual"))
        if finding.kind in kinds and finding.severity != "note" and not said_here:
            found.append(
                LintFinding(kinds[finding.kind], finding.severity, finding.where, finding.evidence, finding.remedy)
            )
    if view.sglang and not draft.shape.head_norm and draft.producer != "specforge":
        found.append(
            LintFinding(
                10,
                "error",
                draft.where,
                "the draft was trained without a norm before lm_head, SGLang always has one",
                "Serve it with an engine that reads use_last_layernorm",
            )
        )
    return found
