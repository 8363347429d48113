#!/usr/bin/env python3
"""A hub that is killed again and again while clients write: is every accepted candidate there once, and the chain whole?

    hub_soak.py [--seconds 300] [--every 10] [--clients 8] [--folder DIR]

The hub is a process that gets SIGKILL every 10 s and is started again on the same port. Each client sends one candidate after the other and
sends it again, under the same id, until it is answered 201: what a member's outbox does. Exits 1 where a promise is broken.
"""
import argparse
import http.client
import json
import pathlib
import shutil
import signal
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
sys.dont_write_bytecode = True
from hubs import RunningHub  # noqa: E402


class Client(threading.Thread):
    """Writes until `stop` is set; `accepted` are the ids that were answered 201, `again` how often one was sent more than once."""

    def __init__(self, hub, number, token, stop):
        super().__init__()
        self.hub, self.number, self.token, self.stopped = hub, number, token, stop
        self.accepted, self.again, self.known, self.strange = [], 0, 0, []
        self.link = None

    def run(self):
        count = 0
        while not self.stopped.is_set():
            self.deliver("n%d-%d" % (self.number, count))
            count += 1

    def deliver(self, id):
        body = json.dumps({"id": id, "title": "Soak", "content": "Candidate %s." % id})
        while not self.stopped.is_set():
            try:
                status, reply = self.send(body)
            except (OSError, http.client.HTTPException, ValueError):
                self.link, status = None, 0
                time.sleep(0.05)
            if status == 201:
                self.accepted.append(id)
                self.known += reply["duplicate"]
                return
            if status not in (0, 503):
                self.strange.append(status)
            self.again += 1

    def send(self, body):
        if self.link is None:
            self.link = http.client.HTTPConnection("127.0.0.1", self.hub.port, timeout=10)
        self.link.request("POST", "/api/candidates", body, {"Authorization": "Bearer " + self.token})
        response = self.link.getresponse()
        return response.status, json.loads(response.read())


def broken_promises(hub, clients):
    stored = [id for (id,) in hub.sql("SELECT id FROM candidates")]
    accepted = [id for client in clients for id in client.accepted]
    receipts = [json.loads(detail)["id"] for (detail,) in hub.sql("SELECT detail FROM receipts WHERE kind = 'proposed'")]
    found = []
    if set(accepted) - set(stored):
        found.append("%d accepted candidates are lost" % len(set(accepted) - set(stored)))
    if len(stored) != len(set(stored)) or sorted(receipts) != sorted(stored):
        found.append("%d candidates, %d receipts: one is there twice or without the other" % (len(stored), len(receipts)))
    if len(accepted) != len(set(accepted)) or any(client.strange for client in clients):
        found.append("strange answers: %s" % [client.strange[:5] for client in clients])
    audit = hub.run("audit", check=False)
    return found + ([audit.stdout] if audit.returncode else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--folder", default=".")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memhook-soak-", dir=options.folder)).resolve()
    stop, kills = threading.Event(), 0
    try:
        with RunningHub(folder, "--quota-max", "0") as hub:
            clients = [Client(hub, number, hub.token("client%d" % number), stop) for number in range(options.clients)]
            for client in clients:
                client.start()
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                time.sleep(min(options.every, max(0.0, end - time.monotonic())))
                hub.stop(signal.SIGKILL)
                kills += 1
                hub.start()
            stop.set()
            for client in clients:
                client.join()
            ended = hub.stop()
            found = broken_promises(hub, clients) + (["SIGTERM gave exit status %d" % ended] if ended else [])
        print("%d s, %d kills, %d clients: %d accepted, %d sent again, of which %d had been stored; %s" % (
            options.seconds, kills, options.clients, sum(len(client.accepted) for client in clients), sum(client.again for client in clients),
            sum(client.known for client in clients), "; ".join(found) or "each is there once, the chain is whole"))
        sys.exit(bool(found))
    finally:
        stop.set()
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
