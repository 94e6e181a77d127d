"""A server that answers as SGLang does where the server panel reads; what it says is the test's."""

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


class SmallServer:
    """`rate` is the tok/s of its metrics, `methods` are the kinds of request that came."""

    def __init__(self):
        self.rate, self.methods = "14.9", set()
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _answer(self, path: str) -> str | None:
        gauges = (("spec_accept_length", "2.86"), ("gen_throughput", self.rate))
        metrics = "".join(f"# TYPE sglang:{name} gauge\nsglang:{name} {value}\n" for name, value in gauges)
        return {"/health": "", "/server_info": json.dumps(INFO), "/metrics": metrics}.get(path)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.methods.add(self.command)
                answer = server._answer(self.path.partition("?")[0].rstrip("/"))
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Length", str(len((answer or "").encode())))
                self.end_headers()
                self.wfile.write((answer or "").encode())

            do_POST = do_GET

            def log_message(self, *ignored):
                pass

        return Handler
