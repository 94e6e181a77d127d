"""The HTTP client of one SGLang server: health, resolved arguments, greedy generation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from wiring.errors import WiringError

_LOCAL = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True)
class Generation:
    """One finished request.

    `output_ids` are the generated token ids; `latency_s` is measured here, from sending the request to holding the
    whole answer; `meta` is SGLang's `meta_info` as it comes (counts of speculation, finish reason, its own times).
    """

    output_ids: tuple[int, ...]
    latency_s: float
    meta: dict[str, Any]
    text: str = ""


class ServerClient:
    """Talks to the server at `url`; every failure is a WiringError that names the server.

    `timeout` is in seconds, per request. `why_dead` is asked when the server does not answer; the WiringError that
    it returns (the server died, and where its log is) is raised in place of the plain "nothing answers". With
    `read_only` it asks and generates, and refuses to empty a cache that others use too.
    """

    def __init__(
        self,
        url: str,
        timeout: float = 600.0,
        *,
        api_key: str = "",
        read_only: bool = False,
        why_dead: Callable[[], WiringError | None] = lambda: None,
    ):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise WiringError(
                "not the address of a server",
                expected="http://HOST:PORT",
                found=repr(url),
                remedy="Write the address with http:// in front",
            )
        self.url = url.rstrip("/")
        self.read_only = read_only
        self._why_dead = why_dead
        self._http = httpx.Client(
            base_url=self.url,
            timeout=httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=parts.hostname not in _LOCAL,  # a proxy in the environment is not for this machine
        )

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._http.close()

    def healthy(self, timeout: float = 5.0) -> bool:
        """Whether the server says that it is ready for requests (SGLang's /health); False when nothing answers."""
        try:
            return self._http.get("/health", timeout=timeout).status_code == 200
        except httpx.HTTPError:
            return False

    def server_info(self) -> dict[str, Any]:
        """What the server resolved its arguments to, and its version (/server_info, on old releases /get_server_info).

        Raises WiringError when nothing answers or what answers is not SGLang.
        """
        for path in ("/server_info", "/get_server_info"):
            response = self._request("GET", path)
            if response.status_code == 404:
                continue
            info = _json(response)
            if response.status_code == 200 and isinstance(info, dict) and "model_path" in info:
                return info
            if response.status_code in (401, 403):
                raise WiringError(
                    "the server refuses us",
                    where=self.url,
                    found=f"HTTP {response.status_code}",
                    remedy="Give the server's API key",
                )
            break
        raise WiringError(
            "something answers here, but it is not an SGLang server",
            where=self.url,
            expected="SGLang's /server_info",
            found=f"HTTP {response.status_code}",
            remedy="Check engine.url or --server: host, port and a path prefix if a proxy adds one",
        )

    def generate(
        self,
        input_ids: Sequence[int],
        max_new_tokens: int,
        ignore_eos: bool = True,
        temperature: float = 0.0,
        rid: str | None = None,
        stop: Sequence[str] | None = None,
        return_hidden_states: bool = False,
    ) -> Generation:
        """Generate from token ids in one request. Raises WiringError when the server refuses or dies.

        `return_hidden_states` asks for the target's states in `meta["hidden_states"]` (see `wiring.server.aux_return`).
        """
        sampling: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "ignore_eos": ignore_eos,
            "temperature": temperature,
        }
        if stop is not None:
            sampling["stop"] = list(stop)
        body: dict[str, Any] = {"input_ids": [int(i) for i in input_ids], "sampling_params": sampling}
        if rid is not None:
            body["rid"] = rid
        if return_hidden_states:
            body["return_hidden_states"] = True
        begin = time.perf_counter()
        answer = self._checked("POST", "/generate", json=body)
        latency_s = time.perf_counter() - begin
        if not isinstance(answer, dict) or "output_ids" not in answer:
            raise WiringError("the answer to /generate holds no output_ids", where=self.url, found=str(answer)[:200])
        return Generation(tuple(answer["output_ids"]), latency_s, answer.get("meta_info", {}), answer.get("text", ""))

    def flush_cache(self, wait_s: float = 10.0) -> None:
        """Empty the prefix cache; the server waits up to `wait_s` seconds for running requests to end.

        Raises WiringError where the client is `read_only`.
        """
        if self.read_only:
            raise WiringError(
                "this server is attached to read-only: its prefix cache is left alone",
                where=self.url,
                remedy="Set engine.read_only: false in the profile if the server serves nobody else",
            )
        self._checked("POST", "/flush_cache", params={"timeout": wait_s})

    def abort(self, rid: str) -> None:
        """Ask the server to stop the request `rid`; an unknown one is no error."""
        self._checked("POST", "/abort_request", json={"rid": rid})

    def metrics(self) -> str:
        """The Prometheus text of /metrics. Raises WiringError where the server runs without --enable-metrics."""
        response = self._request("GET", "/metrics", follow_redirects=True)
        if response.status_code != 200:
            raise WiringError(
                "the server has no metrics",
                where=self.url,
                found=f"HTTP {response.status_code}",
                remedy="Start it with --enable-metrics",
            )
        return response.text

    def _checked(self, method: str, path: str, **options: Any) -> Any:
        response = self._request(method, path, **options)
        if response.status_code != 200:
            raise WiringError(
                f"the server refused {path}",
                where=self.url,
                expected="HTTP 200",
                found=f"HTTP {response.status_code}: {_message(response)}",
            )
        return _json(response)

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.ReadTimeout:
            plain = WiringError(
                f"no answer to {path} in time",
                where=self.url,
                expected=f"within {self._http.timeout.read:.0f} s",
                remedy="The server is busy or hangs: look at its log and at the load of its machine",
            )
        except httpx.HTTPError as error:
            plain = WiringError(
                f"nothing answers {path}",
                where=self.url,
                found=str(error) or type(error).__name__,
                remedy="Check that the server runs and that the address is right",
            )
        raise self._why_dead() or plain


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except json.JSONDecodeError:
        return response.text


def _message(response: httpx.Response) -> str:
    body = _json(response)
    error = body.get("error", body) if isinstance(body, dict) else body
    text = error.get("message", error) if isinstance(error, dict) else error
    return str(text).strip()[:300]
