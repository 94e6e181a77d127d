"""The one SGLang release whose internals the CPU kit stands in for."""

from __future__ import annotations

from importlib import metadata

from wiring.errors import WiringError

SGLANG_VERSION = "0.5.23"


def installed_sglang() -> str | None:
    """The version of SGLang in this environment, or None; SGLang itself is not imported."""
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        return None


def require_sglang(found: str | None) -> None:
    """Refuse any SGLang release but `SGLANG_VERSION`.

    The kit replaces functions inside SGLang by name and signature; on another release it would
    fail late, or serve wrong tokens.

    Raises:
        WiringError: `found` is None (SGLang is not installed) or another version.
    """
    if found == SGLANG_VERSION:
        return
    raise WiringError(
        "SGLang is not installed here" if found is None else "the CPU server cannot run with this SGLang release",
        where="sglang",
        expected=SGLANG_VERSION,
        found=found or "",
        remedy=f"Install sglang=={SGLANG_VERSION} into this environment, or serve on a GPU",
    )
