"""Answer a few paths of an SGLang server. usage: answering.py PORT [silent]"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SILENT = sys.argv[2:] == ["silent"]  # never becomes healthy


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        healthy = self.path == "/health" and not SILENT
        self._answer(200 if healthy else 503, {})

    def do_POST(self):
        self._answer(200, {"output_ids": [4, 5], "text": "four five", "meta_info": {"completion_tokens": 2}})

    def _answer(self, status, body):
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, *ignored):
        pass


if __name__ == "__main__":
    print("Load weight begin", flush=True)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
