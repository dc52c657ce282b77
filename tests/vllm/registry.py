#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The registry of vLLM's producers, written apart from kvferry, and requests to any of them."""
import http.client
import http.server
import json
import os
import threading
import urllib.parse

PATIENCE = 60 if os.environ.get("KVF_SANITIZER") else 20


class Registry:
    """POST /register and GET /query. `hold`: answers wait while it is clear; `broken`: (status, body) for all."""

    def __init__(self, host="127.0.0.1", port=0):
        self.workers, self.asked, self.lock = {}, [], threading.Lock()
        self.broken, self.hold = None, threading.Event()
        self.hold.set()
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def say(self, status, body):
                data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.send_header("content-type", "application/json")
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):
                registry.asked.append("query")
                registry.hold.wait(PATIENCE)
                if registry.broken:
                    self.say(*registry.broken)
                elif self.path.split("?")[0] == "/query":
                    self.say(200, registry.query())
                else:
                    self.say(404, {"detail": "Not Found"})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                registry.asked.append(body)
                registry.hold.wait(PATIENCE)
                self.say(*(registry.broken or registry.register(body)))

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_):
                pass

        self.server = Server((host, port), Handler)
        self.port = self.server.server_address[1]
        self.url = "http://%s:%d" % (host, self.port)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def register(self, body):
        dp, tp, pp = body["dp_rank"], body["tp_rank"], body["pp_rank"]
        with self.lock:
            known = self.workers.setdefault(dp, {"engine_id": body["engine_id"], "worker_addr": {}})
            if known["engine_id"] != body["engine_id"]:
                return 400, {"detail": "Engine ID mismatch for dp_rank=%d: expected %s, got %s"
                             % (dp, known["engine_id"], body["engine_id"])}
            slot = known["worker_addr"].setdefault(tp, {})
            if slot.get(pp, body["addr"]) != body["addr"]:
                return 400, {"detail": "Worker with dp_rank=%d, tp_rank=%d, pp_rank=%d is already registered at %s, "
                             "but still want to register at %s" % (dp, tp, pp, slot[pp], body["addr"])}
            slot[pp] = body["addr"]
        return 200, {"status": "ok"}

    def query(self):
        with self.lock:
            return json.loads(json.dumps(self.workers))

    def forget(self):
        with self.lock:
            self.workers.clear()

    def close(self):
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()


def http_request(method, url, path, body=None, timeout=PATIENCE):
    """(status, body as JSON or bytes)"""
    where = urllib.parse.urlsplit(url)
    link = http.client.HTTPConnection(where.hostname, where.port, timeout=timeout)
    try:
        link.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
        answer = link.getresponse()
        data = answer.read()
    finally:
        link.close()
    try:
        return answer.status, json.loads(data)
    except ValueError:
        return answer.status, data
