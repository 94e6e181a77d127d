"""Check a server's arguments against the draft, and requested against resolved arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wiring.checkpoints.file_findings import Finding
from wiring.engines.sglang import Speculation, resolve_speculation
from wiring.errors import WiringError
from wiring.lint.config_checks import is_eagle3
from wiring.lint.lint_inputs import View

_SPECULATION = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def algorithm(view: View) -> Iterator[Finding]:
    """Report an EAGLE-3 draft without --speculative-algorithm EAGLE3, or another draft with it.

    Under EAGLE an EAGLE-3 draft is fed only the last state.
    """
    server, where = view.server, view.server.at("speculative_algorithm")
    if "speculative_algorithm" not in server.arguments:
        return
    requested, eagle3 = server.get("speculative_algorithm"), is_eagle3(view)
    remedy = "Start it with --speculative-algorithm EAGLE3"
    if not requested:
        yield Finding(7, "warning", where, "the server runs without a draft", remedy)
    elif eagle3 is not None and (str(requested).upper() == "EAGLE3") != eagle3:
        names = ", ".join(view.draft.config.get("architectures") or ["no architecture"])
        evidence = f"the algorithm is {requested}, the draft is {'an' if eagle3 else 'not an'} EAGLE-3 draft ({names})"
        yield Finding(7, "error", where, evidence, remedy if eagle3 else "Serve a draft that was trained as EAGLE-3")


def arguments(view: View) -> Iterator[Finding]:
    """Warn about arguments that a running server changed, or that a planned server will change."""
    server = view.server
    for row in server.changed:
        evidence = f"requested {row.asked}, the server runs with {row.resolved}" + (
            f": {row.reason}" if row.reason else ""
        )
        yield Finding(21, "warning", server.at(row.name), evidence, "Request the value that you want, and check it")
    numbers = [server.get(name) for name in _SPECULATION]
    if server.running or not view.sglang or None in numbers:
        return
    try:
        requested = Speculation(*map(int, numbers))
    except (ValueError, TypeError):
        raise WiringError(
            "the speculation arguments are not whole numbers",
            code="speculation-not-whole-numbers",
            where=server.where,
            found=", ".join(map(str, numbers)),
        ) from None
    resolved = resolve_speculation(requested)
    if resolved != requested:
        evidence = (
            f"requested {requested.draft_tokens}, the server will run with {resolved.draft_tokens}: with top-k 1 it "
        )
        evidence += "verifies one chain, steps + 1 tokens"
        remedy = "Set the number of steps, which determines the draft tokens"
        yield Finding(21, "warning", server.at("speculative_num_draft_tokens"), evidence, remedy)


def served_files(view: View) -> Iterator[Finding]:
    """Note a running server with another draft or target than the checked ones, if its paths exist here."""
    server = view.server
    folders = {"speculative_draft_model_path": view.draft.folder}
    if view.given_target is not None:
        folders["model_path"] = view.target.folder
    for name, folder in folders.items():
        path = Path(str(server.get(name) or ""))
        if server.running and server.get(name) and path.is_dir() and path.resolve() != folder.resolve():
            evidence = f"the server serves {path}, the checked folder is {folder}"
            yield Finding(21, "note", server.at(name), evidence, "Check the folder that is served")


def inherited_quantization(view: View) -> Iterator[Finding]:
    """Warn about the server's --quantization, which SGLang applies to the draft too by default.

    (`srt/arg_groups/serving_hook.py`, `speculative_draft_model_quantization`, 0.5.23.)
    """
    server = view.server
    requested, own = server.get("quantization"), server.get("speculative_draft_model_quantization")
    method = own or (None if server.running else requested)
    if method and method != "unquant" and not view.draft.config.get("quantization_config"):
        inherited = ", inherited from the target" if method == requested else ""
        evidence = f"the draft is loaded as {method}{inherited}; its config has no quantization"
        remedy = "Start with --speculative-draft-model-quantization unquant"
        yield Finding(11, "warning", server.at("speculative_draft_model_quantization"), evidence, remedy)


def kv_cache(view: View) -> Iterator[Finding]:
    """Warn about a draft KV cache in eight bits or less: drafts have no scales for it."""
    server = view.server
    own = server.get("speculative_draft_kv_cache_dtype")
    dtype = str(own or server.get("kv_cache_dtype") or "")
    if dtype.startswith(("fp8", "fp4", "int8")):
        where = server.at("speculative_draft_kv_cache_dtype" if own else "kv_cache_dtype")
        evidence = f"the draft's KV cache is {dtype}, and a draft has no scales for it"
        yield Finding(12, "warning", where, evidence, "Compare with --speculative-draft-kv-cache-dtype bf16")
