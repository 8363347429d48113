"""Stand-ins for models: an executable `claude` on the PATH, and servers on port 0. All real; nothing of memhook is replaced."""
import contextlib
import http.server
import json
import os
import sys
import threading
import time

import memhook

DIGEST = {"title": "Cents for the checkout", "summary": "Prices were floats and rounding broke the total. They are integer cents now.",
          "decisions": ["Integer cents instead of floats in price.ts"], "problems": [{"problem": "The total is 1999 on CI", "resolution": "19.99 * 100 was rounded"}],
          "open_threads": ["Migrate the invoices table"], "patterns": ["Never floats for money"]}
ANSWER = json.dumps(DIGEST)
CLAUDE = """#!%s -S
import json, os, sys, time
given = sys.stdin.read()
with open(%r, "a") as stream:
    stream.write(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "given": given, "cwd": os.getcwd(), "there": os.listdir(".")}) + "\\n")
ANSWER = %r
def result(text, **more):
    print(json.dumps({"type": "result", "subtype": "success", "is_error": False, "result": text, **more}))
%s
"""


class Claude:
    """A `claude` on a box's PATH that notes how it was called, then does what `body` says."""

    def __init__(self, box, body="result(ANSWER)"):
        self.box, self.noted = box, box.root / "claude-calls"
        folder = box.root / "bin"
        folder.mkdir(exist_ok=True)
        self.path = folder / "claude"
        self.does(body)
        if not box.env["PATH"].startswith(str(folder)):
            box.env["PATH"] = "%s%s%s" % (folder, os.pathsep, box.env["PATH"])

    def does(self, body):
        self.path.write_text(CLAUDE % (sys.executable, str(self.noted), ANSWER, body), "utf-8")
        self.path.chmod(0o755)

    @property
    def calls(self):
        return [json.loads(line) for line in self.noted.read_text("utf-8").splitlines()] if self.noted.exists() else []


def completion(text):
    return {"id": "x", "object": "chat.completion", "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]}


class Server:
    """An HTTP server that notes each request and answers with `does(request)`: a value for JSON, or a function that writes to the handler."""

    def __init__(self, does):
        self.does, self.requests = does, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *given):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.given = json.loads(body)
                outer.requests.append({"path": self.path, "headers": dict(self.headers), "json": self.given})
                with contextlib.suppress(OSError):  # the client may have hung up, as it should
                    answer = outer.does(self.given) if callable(outer.does) else outer.does
                    answer(self) if callable(answer) else send(self, 200, json.dumps(answer))

            do_GET = do_POST

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *given):
                pass

        self.server = Quiet(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.port

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def send(handler, status, text, **headers):
    data = text.encode() if isinstance(text, str) else text
    handler.send_response(status)
    for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(data)


def status(code, text="{}", **headers):
    return lambda handler: send(handler, code, text, **headers)


def hang(handler):
    """Answer nothing, and keep the connection."""
    handler.connection.settimeout(20)
    with contextlib.suppress(OSError):
        handler.connection.recv(1)


def drip(handler):
    """A header byte now and then: no socket timeout notices."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    for _ in range(400):
        handler.wfile.write(b"a")
        handler.wfile.flush()
        time.sleep(0.05)


def cut(handler):
    """Promise more than comes."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 4096\r\n\r\n{\"choices\": [{\"mess")
    handler.close_connection = True


def flood(handler):
    """10 GB of answer."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{\"a\": \"")
    for _ in range(10_000):
        handler.wfile.write(b"x" * 1_000_000)


def agree(box, role, **settings):
    """Set a role's settings in the environment of a box, and a person's consent to where it sends."""
    for name, value in settings.items():
        box.env["MEMHOOK_" + name.upper()] = str(value)
    memhook.grant_models(box.api, [role], "flag")


def snapshot(box, *leave):
    """Every file of the home with its bytes, but for those that are left out: names of which a path begins with one."""
    found = {}
    for folder, _, names in os.walk(box.home):
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, box.home)
            if not relative.startswith(leave):
                found[relative] = memhook.read_file(path)
    return found


COUNTS = ("usage.json", "usage.lock", "model.lock", "drain.lock", "memhook.log")  # what a failed call may touch
