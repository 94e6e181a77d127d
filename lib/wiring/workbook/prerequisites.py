"""Can this machine do what the profile asks of an engine? Asked once, before the first notebook runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from wiring.errors import WiringError
from wiring.server.launch import RunningServer
from wiring.server.preflight import check_gpus, preflight
from wiring.workbook.live import attach_server, server_spec
from wiring.workbook.profile import Profile


def check_ready(
    profile: Profile,
    where: Path,
    *,
    gpus: Callable[[Sequence[str], object], None] = check_gpus,
    attach: Callable[[str], RunningServer] = attach_server,
) -> None:
    """Refuse a profile whose engine cannot be had here; `where` is its file. Starts nothing and opens no model.

    The chain starts servers of its own (capture, the cured draft) even where the first two run already, so a profile
    for CUDA needs its GPUs here. `gpus` and `attach` are asked as `check_gpus` and `attach_server`.

    Raises:
        WiringError: there is no GPU, or too few; a server that is said to run does not answer, is not healthy, drafts
            where it must not or does not draft where it must.
    """
    engine = profile.engine
    if engine.device == "cuda":
        gpus(engine.extra_flags, f"{where}, field engine.device")
    for field, drafts in (("url", True), ("plain_url", False)):
        if address := getattr(engine, field):
            _check_attached(f"{where}, field engine.{field}", address, drafts, attach)


def check_pair(profile: Profile) -> None:
    """Refuse a target and a draft that no server could serve together, before minutes are spent on the first one.

    Raises WiringError as `wiring.server.preflight.preflight` does.
    """
    preflight(server_spec(profile, draft=profile.draft))


def _check_attached(where: str, address: str, drafts: bool, attach: Callable[[str], RunningServer]) -> None:
    try:
        with attach(address) as server:
            algorithm = server.client.server_info().get("speculative_algorithm")
    except WiringError as error:
        raise WiringError(
            error.problem,
            where=f"{where}: {address}",
            expected=error.expected,
            found=error.found,
            remedy=f"{error.remedy}. A server elsewhere needs its tunnel: ssh -N -L PORT:127.0.0.1:PORT HOST",
        ) from error
    if bool(algorithm) != drafts:
        raise WiringError(
            "this server runs without a draft" if drafts else "this server drafts, so it is no baseline",
            where=f"{where}: {address}",
            expected="EAGLE3" if drafts else "no speculative algorithm",
            found=algorithm or "none",
            remedy="engine.url is the server with the draft, engine.plain_url the one without",
        )
