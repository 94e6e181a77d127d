"""A small HTTP server that answers like SGLang where the server panel reads; tests set its answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

INFO = {
    "model_path": "/t",
    "version": "0.5.23",
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 6,
    "attention_backend": "torch_native",
    "dtype": "float32",
    "max_running_requests": 4,
    "internal_states": [{"last_gen_throughput": 7.5}],
    "launch_command": "python -m sglang.launch_server --speculative-num-steps 5 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 8 --dtype float32",
}
META = {
    "spec_verify_ct": 10,
    "spec_num_correct_drafts": 30,
    "spec_num_proposed_drafts": 50,
    "completion_tokens": 40,
    "spec_correct_drafts_histogram": [0, 0, 5, 0, 5, 0],
}


def metrics(rate: str) -> str:
    """Return the server's metrics with this rate in tok/s."""
    gauges = (("spec_accept_length", "2.86"), ("gen_throughput", rate))
    return "".join(f"# TYPE sglang:{name} gauge\nsglang:{name} {value}\n" for name, value in gauges)


class SmallServer:
    """Answers each path with `answers[path]`; `requests` are (method, path, body), `keys` the Authorization headers."""

    def __init__(self):
        self.answers = {
            "/health": "",
            "/server_info": INFO,
            "/metrics": metrics("14.9"),
            "/generate": {"output_ids": [4] * 40, "text": "", "meta_info": META},
        }
        self.requests, self.keys = [], set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0].rstrip("/")
                server.requests.append((self.command, path, json.loads(body) if body else None))
                server.keys.add(self.headers.get("Authorization"))
                answer = server.answers.get(path)
                payload = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_POST = do_GET

            def log_message(self, *ignored):
                pass

        return Handler
