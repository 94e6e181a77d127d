"""What stands in the evidence and says nothing: log lines in no known form, configs that no rule was asked about."""

from __future__ import annotations

import re
from collections.abc import Iterator

from wiring.errors import WiringError
from wiring.logs.evidence import Evidence, Setting

_SCRAPE = re.compile(r"# (?:HELP|TYPE) |(?:vllm|sglang|llamacpp):\w")  # how a line of Prometheus text begins
_ABOUT = re.compile(r"accept|spec", re.IGNORECASE)  # of lines that are not understood these are shown first
_SHOWN = 80  # characters of a line


def left_out(evidence: Evidence) -> tuple[str, ...]:
    """A sentence for each part of the evidence that was not understood or not checked; empty where there is none.

    Raises WiringError as the readers of log lines do.
    """
    return (*_log(evidence), *_configs(evidence.setting))


def _log(evidence: Evidence) -> Iterator[str]:
    if not evidence.log:
        return
    from wiring.logs import GIVEN, scan, understood

    lines = [line for line in evidence.log if line.strip()]
    if not lines:
        return
    context = scan(lines, **{name: getattr(evidence.setting, name) for name in GIVEN})
    lost = [line for line, known in zip(lines, understood(lines, context), strict=True) if not known]
    if not lost:
        return
    shown = next(filter(_ABOUT.search, lost), lost[0]).strip()[:_SHOWN]
    text = f"{len(lines) - len(lost)} of {len(lines)} log lines were understood; not, for example: {shown!r}"
    if any(map(_SCRAPE.match, lost)):
        text += ". Prometheus text is read from a file: `wiring read-log FILE --json` makes evidence of it"
    yield text


def _configs(setting: Setting) -> Iterator[str]:
    """Why the two config.json tell no layout, where one is given for it."""
    if setting.draft_config is None:
        return
    missing = [f"setting.{name}" for name in ("target_config", "engine") if getattr(setting, name) is None]
    if missing:
        yield f"setting.draft_config is not checked: the layout is told from it only with {' and '.join(missing)}"
        return
    from wiring.engines.resolve import served_layout

    try:
        served_layout(setting.engine, setting.version, setting.target_config, setting.draft_config)
    except WiringError as error:
        yield f"setting.draft_config is not checked: {str(error).rstrip('.')}"
