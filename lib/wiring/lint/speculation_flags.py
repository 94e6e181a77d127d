"""The speculative algorithm against the draft's architecture, and what the server made of its arguments."""

from __future__ import annotations

from pathlib import Path

from wiring.checkpoints.draft_producers import FLAT
from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError
from wiring.lint.findings import LintFinding
from wiring.lint.lint_inputs import View

# The EAGLE-3 drafts that SGLang 0.5.23 loads by name (`srt/models`), and the name that has a finding of its own.
_LOADED = {"LlamaForCausalLMEagle3", "LlamaForCausalLM", "Eagle3DeepseekV2ForCausalLM"}
_SPECULATION = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def algorithm(view: View) -> list[LintFinding]:
    """An EAGLE-3 draft needs --speculative-algorithm EAGLE3; under EAGLE it is fed the last state alone."""
    server = view.server
    assert server is not None, "needs the server's arguments"
    if "speculative_algorithm" not in server.arguments:
        return []
    asked, where = server.get("speculative_algorithm"), f"{server.where}: speculative_algorithm"
    if not asked:
        return [
            LintFinding(
                7, "warning", where, "the server runs without a draft", "Start it with --speculative-algorithm EAGLE3"
            )
        ]
    is_eagle3 = _is_eagle3(view)
    if is_eagle3 is None or (str(asked).upper() == "EAGLE3") == is_eagle3:
        return []
    found = "an EAGLE-3 draft" if is_eagle3 else "no EAGLE-3 draft"
    return [
        LintFinding(
            7,
            "error",
            where,
            f"the algorithm is {asked}, the draft is {found} "
            f"({', '.join(view.draft.config.get('architectures') or ['no architecture'])})",
            "Start it with --speculative-algorithm EAGLE3"
            if is_eagle3
            else "Serve a draft that was trained as EAGLE-3",
        )
    ]


def architecture(view: View) -> list[LintFinding]:
    """An architecture under which the engine loads another model than an EAGLE-3 draft.

    SGLang 0.5.23 takes the class by name (`LlamaForCausalLMEagle3`); SafeAILab's files name LlamaForCausalLM.
    """
    names = list(view.draft.config.get("architectures") or [])
    if view.draft.tensors is not None and "fc.weight" not in view.draft.named:
        return [
            LintFinding(
                7,
                "error",
                view.draft.where,
                "there is no fc.weight among its tensors: this is no EAGLE-3 draft",
                "Point --draft to the draft's folder, --target to the target's",
            )
        ]
    if view.sglang and names and view.draft.producer in FLAT and not set(names) & _LOADED and _is_eagle3(view):
        return [
            LintFinding(
                7,
                "error",
                f"{view.draft.where}: architectures",
                f"SGLang has no draft model {', '.join(names)}",
                'Write "architectures": ["LlamaForCausalLMEagle3"] into a copy of the draft\'s config',
            )
        ]
    if _is_eagle3(view) is False:
        return [
            LintFinding(
                7,
                "error",
                f"{view.draft.where}: architectures",
                f"{', '.join(names)} is no EAGLE-3 draft",
                "Serve a draft that was trained as EAGLE-3, or another --speculative-algorithm",
            )
        ]
    if not view.sglang or view.draft.producer not in FLAT or "LlamaForCausalLM" not in names:
        return []
    return [
        LintFinding(
            7,
            "error",
            f"{view.draft.where}: architectures",
            "LlamaForCausalLM makes SGLang load a plain Llama model in place of the draft",
            'Write "architectures": ["LlamaForCausalLMEagle3"] into a copy of the draft\'s config',
        )
    ]


def arguments(view: View) -> list[LintFinding]:
    """Asked against resolved: what a running server changed, or what it will change."""
    server = view.server
    assert server is not None, "needs the server's arguments"
    found = [
        LintFinding(
            21,
            "warning",
            f"{server.where}: {row.name}",
            f"asked for {row.asked}, the server runs with {row.resolved}" + (f": {row.reason}" if row.reason else ""),
            "Ask for what you mean, and read the resolved value",
        )
        for row in server.changed
    ]
    numbers = [server.get(name) for name in _SPECULATION]
    if server.running or not view.sglang or any(number is None for number in numbers):
        return found
    try:
        asked = Speculation(*map(int, numbers))
    except (ValueError, TypeError):
        raise WiringError(
            "the speculation arguments are not whole numbers", where=server.where, found=", ".join(map(str, numbers))
        ) from None
    resolved = resolve_speculation(asked)
    if resolved != asked:
        found.append(
            LintFinding(
                21,
                "warning",
                f"{server.where}: speculative_num_draft_tokens",
                f"asked for {asked.draft_tokens}, the server will run with {resolved.draft_tokens}: with top-k 1 it "
                "verifies one chain, steps + 1 tokens",
                "Set the number of steps: draft tokens follow from it",
            )
        )
    return found


def served_files(view: View) -> list[LintFinding]:
    """A running server that serves another draft or target than those that are checked (where its paths are here)."""
    server = view.server
    assert server is not None, "needs the server's arguments"
    pairs = [("speculative_draft_model_path", view.draft.folder)]
    pairs += [("model_path", view.target.config.folder)] if view.target else []
    found = []
    for name, folder in pairs:
        path = Path(str(server.get(name) or ""))
        if server.running and server.get(name) and path.is_dir() and path.resolve() != folder.resolve():
            found.append(
                LintFinding(
                    21,
                    "note",
                    f"{server.where}: {name}",
                    f"the server serves {path}, checked is {folder}",
                    "Check what is served",
                )
            )
    return found


def _is_eagle3(view: View) -> bool | None:
    """Whether the draft is an EAGLE-3 one; None where architecture and tensors leave it open."""
    names = set(view.draft.config.get("architectures") or [])
    kind = view.draft.config.get("speculators_model_type")
    if kind == "eagle3" or any("Eagle3" in name for name in names):
        return True
    if kind or any(other in name for name in names for other in ("Eagle", "MTP", "NextN")):
        return False
    fc, hidden = view.draft.named.get("fc.weight"), view.draft.layer.get("hidden_size")
    q = view.draft.named.get("layers.0.self_attn.q_proj.weight")
    if fc is None or q is None or not hidden:
        return None
    return q.shape[1] == 2 * hidden  # its attention reads embedding and state side by side
