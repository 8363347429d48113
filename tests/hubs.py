"""A hub as a process of its own, a wire to it that can be cut, and a session worth proposing."""
import http.client
import json
import os
import pathlib
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import memhook

PROGRAM = pathlib.Path(memhook.__file__)


class Reply:
    def __init__(self, response):
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def json(self):
        return json.loads(self.body)


class RunningHub:
    """`memhook hub serve` in a home of its own; every restart gets the same port."""

    def __init__(self, root, *args, env=(), start=True):
        self.root = pathlib.Path(root)
        self.home = self.root / "home"
        self.path = self.home / "hub.db"
        self.env = {"PATH": os.environ["PATH"], "HOME": str(self.root), "MEMHOOK_HOME": str(self.home), **dict(env)}
        self.args, self.port, self.process, self.tokens = args, 0, None, {}
        self.root.mkdir(parents=True, exist_ok=True)
        if start:
            self.start()

    def start(self):
        self.errors = open(self.root / "stderr", "ab+")
        mark = self.errors.seek(0, os.SEEK_END)
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), "hub", "serve", "--port", str(self.port), *self.args], env=self.env, stdin=subprocess.DEVNULL,
                                        stdout=self.errors, stderr=self.errors)
        deadline = time.monotonic() + 30
        while True:
            said = (self.root / "stderr").read_bytes()[mark:].decode()
            if "\n" in said and "http://" in said:
                break
            assert self.process.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.02)
        self.port = int(said.split("http://")[1].split()[0].rsplit(":", 1)[1])
        return self

    def stop(self, how=signal.SIGTERM):
        """-> the exit status."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(40)
        self.errors.close()
        return self.process.returncode

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stop(signal.SIGKILL)

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    def run(self, *args, check=True):
        """A `memhook hub` command of this hub."""
        done = subprocess.run([sys.executable, str(PROGRAM), "hub", *args], env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done

    def token(self, name, role="member", tenant="team"):
        """The token of a name, made at its first use."""
        if (tenant, name) not in self.tokens:
            memhook.make_folder(str(self.home))
            db = memhook.open_hub(str(self.path))
            self.tokens[tenant, name] = memhook.add_token(db, tenant, name, role)
            db.close()
        return self.tokens[tenant, name]

    def admin(self, tenant="team"):
        return self.token("boss", "admin", tenant)

    def ask(self, method, path, token="", body=None, source="127.0.0.1", **headers):
        """One request on a connection of its own; `body`: bytes, or a value for JSON."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30, source_address=(source, 0))
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            link.request(method, path, data, {**({"Authorization": "Bearer " + token} if token else {}), **headers})
            return Reply(link.getresponse())
        finally:
            link.close()

    def propose(self, token, content, title="What we learned", **more):
        return self.ask("POST", "/api/candidates", token, {"title": title, "content": content, **more})

    def raw(self, data, seconds=15.0):
        """Send bytes as they are; -> all that comes back until the hub hangs up, or for some seconds."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as link:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            found = b""
            while True:
                more = link.recv(65_536)
                if not more:
                    return found
                found += more

    def sql(self, statement, *values):
        """Straight into the database, as somebody who has it may."""
        db = sqlite3.connect(str(self.path), timeout=30)
        try:
            with db:
                return db.execute(statement, values).fetchall()
        finally:
            db.close()

    def kinds(self, tenant="team"):
        return [kind for (kind,) in self.sql("SELECT kind FROM receipts WHERE tenant = ? ORDER BY seq", tenant)]

    def statuses(self, tenant="team"):
        """Content -> status."""
        return dict(self.sql("SELECT content, status FROM candidates WHERE tenant = ?", tenant))

    def log(self):
        path = self.home / "memhook.log"
        return path.read_text() if path.exists() else ""


class Wire:
    """A server before a hub, which passes requests on, or does what `plan` says for the next proposals:

    "before": hangs up, and the hub never sees it; "after": the hub has committed it, and the answer is lost; (status, headers): answers so.
    Of questions it passes on as many as `pages` says, and answers the others with 503; None: all.
    """

    def __init__(self, hub):
        self.hub, self.plan, self.pages, self.seen = hub, [], None, []  # seen: (method, path, JSON body)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *given):
                pass

            def do_GET(self):
                outer.serve(self)

            do_POST = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = "http://127.0.0.1:%d" % self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def serve(self, handler):
        data = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        self.seen.append((handler.command, handler.path, json.loads(data) if data else None))
        step = self.plan.pop(0) if self.plan and handler.command == "POST" else "pass"
        if handler.command == "GET" and self.pages is not None:
            self.pages -= 1
            step = (503, {}) if self.pages < 0 else "pass"
        if step == "before":
            handler.close_connection = True
            return
        if isinstance(step, tuple):
            return self.answer(handler, step[0], b"{}", **step[1])
        reply = self.hub.ask(handler.command, handler.path, handler.headers.get("Authorization", "")[len("Bearer "):], data or None)
        if step == "after":
            handler.close_connection = True
            return
        self.answer(handler, reply.status, reply.body)

    def answer(self, handler, status, body, **headers):
        handler.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    def posts(self):
        return [body for method, _, body in self.seen if method == "POST"]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
