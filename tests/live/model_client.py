#!/usr/bin/env python3
"""The real Claude Code client as the model that writes digests: its own `claude -p`, and a scripted API that answers it.

    model_client.py                     each installed client version
    model_client.py --version 2.1.332 --keep

A person's session ends, the drain that its hook starts asks `claude -p`, which is the same client, and which would fire the same hooks.
Checked: the digest is the one the API gave; one call was made, without tools, with the record and with no words of a secret; no session of the
child was recorded by the client or captured by memhook; a limit notice in place of a digest leaves every memory as it was.

What is needed, and the exit status where it is missing, are those of client_sessions.py, beside this.
"""
import argparse
import http.server
import json
import pathlib
import sys
import threading
import time

sys.dont_write_bytecode = True
import client_sessions as live

DIGEST = {"title": "Cents for the checkout", "summary": "The person asked about cents. They are what prices are kept in.", "decisions": ["Prices are integer cents"],
          "problems": [], "open_threads": ["Migrate the invoices table"], "patterns": []}
LIMIT = "You've hit your limit · resets 3pm (Europe/Berlin)"
SECRET = "ghp_" + "a1B2" * 9
MARK = "memhook: write the digest"


class Scripted:
    """The Messages API for `claude -p`: notes each request, and answers every one with the same text."""

    def __init__(self, text):
        self.text, self.requests = text, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *given):
                pass

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
                outer.requests.append({"path": self.path, "key": self.headers.get("x-api-key"), "body": body})
                data = outer.stream(body) if body.get("stream") else json.dumps(outer.message(body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.server.server_address[1]

    @property
    def asked(self):
        """The requests for a digest."""
        return [request for request in self.requests if MARK in json.dumps(request["body"].get("messages", []))]

    def message(self, body, content=True):
        return {"id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model", "m"), "stop_reason": "end_turn", "stop_sequence": None,
                "content": [{"type": "text", "text": self.text}] if content else [], "usage": {"input_tokens": 9, "output_tokens": 9}}

    def stream(self, body):
        events = [{"type": "message_start", "message": {**self.message(body, content=False), "stop_reason": None}},
                  {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                  {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": self.text}},
                  {"type": "content_block_stop", "index": 0},
                  {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 9}},
                  {"type": "message_stop"}]
        return "".join("event: %s\ndata: %s\n\n" % (event["type"], json.dumps(event)) for event in events).encode()


class Machine(live.Box):
    """A person's machine whose digests `claude` writes; the child speaks to an API of its own."""

    def __init__(self, harness, version, options, text):
        play = live.Scenario("model", lambda box: None)
        self.api = Scripted(text)
        super().__init__(harness, play, version, options.program, options.keep)
        folder = pathlib.Path(self.home, ".local", "bin")  # where its installer puts it; the drain's PATH is a hook's
        folder.mkdir(parents=True)
        # the client takes the API's address from its environment: the child gets another one than the session
        (folder / "claude").write_text('#!/bin/sh\nANTHROPIC_BASE_URL=%s ANTHROPIC_API_KEY=child-key exec "%s" "$@"\n' % (self.api.url, self.env.bin))
        (folder / "claude").chmod(0o755)
        self.memhook(self.program, "config", "set", "distiller", "claude", "--consent", "I CONSENT")

    def close(self):
        self.api.server.shutdown()
        self.api.server.server_close()
        super().close()

    def session(self):
        """One session of a prompt and an answer; -> when the drain has stored it and asked the model."""
        self.p(self.turn("What is a cent? My token is %s" % SECRET, "say A hundredth of a unit."))
        live.wait_for(lambda: self.usage().get("calls"), live.DRAIN_SECONDS, "a call of the model")
        live.wait_for(lambda: not self.processes(b"memhook.py"), 60, "the end of the drain")

    def usage(self):
        try:
            return json.loads(pathlib.Path(self.data, "usage.json").read_text("utf-8"))["distiller"]
        except (OSError, ValueError, LookupError):
            return {}


def faults(box, upgraded):
    """What is not as it should be."""
    wrong, memories = [], box.memories()
    text = "".join(pathlib.Path(path).read_text("utf-8") for path in memories)
    sessions = box.transcripts()
    if len(memories) != 1 or len(sessions) != 1:
        wrong.append("%d memories and %d recorded sessions, where there was one session" % (len(memories), len(sessions)))
    if (DIGEST["title"] in text, "- Migrate the invoices table" in text, 'distiller: "claude:haiku"' in text) != (upgraded,) * 3:
        wrong.append("the digest is %sthe model's:\n%s" % ("not " if upgraded else "", text[:800]))
    if "What is a cent?" not in text or "A hundredth of a unit." not in text:
        wrong.append("what was said has gone:\n%s" % text[-800:])
    if len(box.api.asked) != 1 or box.usage().get("calls") != 1:
        wrong.append("%d requests for a digest, %s counted" % (len(box.api.asked), box.usage().get("calls")))
    for request in box.api.asked:
        if request["body"].get("tools") or SECRET in json.dumps(request["body"]) or "A hundredth" not in json.dumps(request["body"]):
            wrong.append("the request has tools, a secret, or not the record: %s" % json.dumps(request["body"])[:1500])
    if bool(box.usage().get("failures")) == upgraded:
        wrong.append("failures are counted wrongly: %s" % box.usage())
    if [path for path in pathlib.Path(box.data, "model").iterdir()]:
        wrong.append("the child left files in its folder")
    return wrong + ["left in the spool: %s" % path for path in box.waiting()]


def run(harness, version, options, upgraded):
    """Play one session with one client; -> (what is wrong, seconds)."""
    started, box, wrong = time.monotonic(), None, []
    try:
        box = Machine(harness, version, options, json.dumps(DIGEST) if upgraded else LIMIT)
        box.session()
        wrong = faults(box, upgraded)
    except (live.Failed, OSError, ValueError, LookupError) as error:
        wrong.append("%s: %s" % (type(error).__name__, error))
    finally:
        if box:
            box.close()
    return wrong, time.monotonic() - started


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="append", help="this client; may be given again (default: %s)" % ", ".join(live.VERSIONS))
    parser.add_argument("--program", default=str(live.ROOT / "memhook.py"), help="the memhook.py to try")
    parser.add_argument("--keep", action="store_true", help="leave the homes where they are")
    options = parser.parse_args()
    wanted = options.version or list(live.VERSIONS)
    harness = live.enter(__file__, wanted)
    if not harness:
        return live.NOTHING_RUN
    failed = 0
    for version in live.installed_versions(wanted):
        for name, upgraded in (("digest", True), ("limit", False)):
            wrong, seconds = run(harness, version, options, upgraded)
            failed += bool(wrong)
            print("%-8s client %-8s %-4s %.1f s%s" % (name, version, "FAIL" if wrong else "ok", seconds, "".join("\n  " + line for line in wrong)), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
