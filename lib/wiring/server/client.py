"""HTTP client of an SGLang server: health, resolved arguments, metrics, generation."""

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

    `output_ids` are the generated token ids. `latency_s` is measured at the client, from sending the request to
    receiving the whole answer. `meta` is SGLang's `meta_info`, unchanged (speculation counts, finish reason, times).
    """

    output_ids: tuple[int, ...]
    latency_s: float
    meta: dict[str, Any]


class ServerClient:
    """Sends requests to the server at `url`; every failure is a WiringError with the server's address.

    Args:
        timeout: time limit of a request in seconds.
        api_key: sent as a bearer token if not empty.
        read_only: refuse to empty the prefix cache, which other clients may use.
        why_dead: called when the server does not answer; the error that it returns, if any, is raised instead of
            "server-unreachable".

    Raises:
        WiringError: `url` is not an HTTP address ("not-a-server-address").
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
                code="not-a-server-address",
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
            trust_env=parts.hostname not in _LOCAL,  # no proxy for this machine
        )

    def close(self) -> None:
        """Close the connections. The client cannot be used afterwards."""
        self._http.close()

    def healthy(self, timeout: float = 5.0) -> bool:
        """Return whether /health reports that the server is ready; False when nothing answers."""
        try:
            return self._http.get("/health", timeout=timeout).status_code == 200
        except httpx.HTTPError:
            return False

    def server_info(self) -> dict[str, Any]:
        """Return the server's resolved arguments and version (/server_info, on old releases /get_server_info).

        Raises WiringError when nothing answers, the API key is refused ("api-key-refused") or the server is not
        SGLang ("not-sglang").
        """
        response = self._request("GET", "/server_info")
        if response.status_code == 404:
            response = self._request("GET", "/get_server_info")
        found = f"HTTP {response.status_code}"
        if response.status_code in (401, 403):
            raise WiringError(
                "the server refuses the API key",
                code="api-key-refused",
                where=self.url,
                found=found,
                remedy="Give the server's API key",
            )
        info = _json(response)
        if response.status_code == 200 and isinstance(info, dict) and "model_path" in info:
            return info
        raise WiringError(
            "something answers here, but it is not an SGLang server",
            code="not-sglang",
            where=self.url,
            expected="SGLang's /server_info",
            found=found,
            remedy="Check engine.url or --server: host, port and a path prefix if a proxy adds one",
        )

    def generate(
        self, input_ids: Sequence[int], max_new_tokens: int, *, temperature: float = 0.0, rid: str | None = None
    ) -> Generation:
        """Generate exactly `max_new_tokens` tokens after `input_ids`, past any end-of-sequence token.

        `rid` is the id of the request in the server. Raises WiringError when the server refuses the request or dies.
        """
        sampling = {"max_new_tokens": max_new_tokens, "ignore_eos": True, "temperature": temperature}
        body = {"input_ids": [int(i) for i in input_ids], "sampling_params": sampling}
        begin = time.perf_counter()
        answer = self._checked("/generate", json=body if rid is None else body | {"rid": rid})
        latency_s = time.perf_counter() - begin
        if not isinstance(answer, dict) or "output_ids" not in answer:
            raise WiringError(
                "the answer to /generate has no output_ids",
                code="answer-without-tokens",
                where=self.url,
                found=str(answer)[:200],
            )
        return Generation(tuple(answer["output_ids"]), latency_s, answer.get("meta_info", {}))

    def flush_cache(self) -> None:
        """Empty the prefix cache; the server waits up to 10 s for running requests to end.

        Raises WiringError where the client is `read_only` ("server-read-only").
        """
        if self.read_only:
            raise WiringError(
                "the server is attached read-only, so its prefix cache is not emptied",
                code="server-read-only",
                where=self.url,
                remedy="Set engine.read_only: false in the profile if nobody else uses the server",
            )
        self._checked("/flush_cache", params={"timeout": 10})

    def metrics(self) -> str:
        """Return the Prometheus text of /metrics. Raises WiringError where there is none ("no-metrics")."""
        response = self._request("GET", "/metrics", follow_redirects=True)
        if response.status_code != 200:
            raise WiringError(
                "the server has no metrics",
                code="no-metrics",
                where=self.url,
                found=f"HTTP {response.status_code}",
                remedy="Start it with --enable-metrics",
            )
        return response.text

    def _checked(self, path: str, **options: Any) -> Any:
        response = self._request("POST", path, **options)
        answer = _json(response)
        if response.status_code == 200:
            return answer
        error = answer.get("error", answer) if isinstance(answer, dict) else answer
        message = error.get("message", error) if isinstance(error, dict) else error
        raise WiringError(
            f"the server refused {path}",
            code="request-refused",
            where=self.url,
            expected="HTTP 200",
            found=f"HTTP {response.status_code}: {str(message).strip()[:300]}",
        )

    def _request(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **options)
        except httpx.ReadTimeout:
            problem = WiringError(
                f"no answer to {path} in time",
                code="server-timeout",
                where=self.url,
                expected=f"within {self._http.timeout.read:.0f} s",
                remedy="The server is busy or hangs: look at its log and at the load of its machine",
            )
        except httpx.HTTPError as error:
            problem = WiringError(
                f"nothing answers {path}",
                code="server-unreachable",
                where=self.url,
                found=str(error) or type(error).__name__,
                remedy="Check that the server runs and that the address is right",
            )
        raise self._why_dead() or problem


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except json.JSONDecodeError:
        return response.text
