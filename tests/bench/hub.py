#!/usr/bin/env python3
"""How fast a hub takes candidates in, and answers at 100,000 of them.

    hub.py [--rounds N] [--seconds S] [--folder DIR] [--skip-large]

Intake: 1 and 8 clients (a process each, http.client, HTTP/1.1 kept alive) against a hub with its quota lifted, every 201 a durable commit,
and against a bare http.server that answers 201 from memory in one piece, with TCP_NODELAY. The two take turns, round by round, so that
what else the machine does falls on both; the ratio is that of each round, and the median of these is reported.
Large: intake, an inbox page and searches at 1,000 and at 100,000 candidates, half of them promoted.
The database lies in --folder (the current one by default): its disk decides how long a commit takes, which is reported too.
"""
import argparse
import http.client
import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "memhook.py"
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True
import memhook  # noqa: E402

# words of digests; one in eight candidates speaks of a token, which costs the search for secrets a closer look
WORDS = """rounding float cents invoice migration locale timezone cache retry deadlock index schema parser encoding surrogate branch rebase deploy rollback latency timeout
socket proxy worker queue batch cursor offset checksum digest segment transcript budget quota receipt anchor chain build compile linker header module package version
release changelog fixture mock assert coverage flaky runner container image layer volume network bridge firewall gateway router balancer replica shard partition leader
follower quorum snapshot backup restore archive compress stream buffer chunk frame packet codec bitrate render layout viewport gesture widget theme palette contrast
keyboard focus modal dialog tooltip menu toolbar sidebar canvas texture shader vertex polygon camera physics collision entity component system event handler listener
callback promise future channel mutex semaphore barrier atomic memory heap stack pointer leak arena pool cargo crate trait generic closure iterator lambda monad functor
""".split() * 4 + ["token"]


def text(random_words, count):
    return " ".join(random_words.choices(WORDS, k=count))


def candidate(random_words, number):
    """About 600 characters, as a digest with three items has, and an id, as `memhook team` sends it."""
    items = "\n".join("- We decided to use %s because %s. (%d)" % (text(random_words, 4), text(random_words, 12), number) for _ in range(4))
    title, content = "About %s %d" % (text(random_words, 4), number), "## Decisions\n\n" + items
    return {"id": memhook.content_id("team", title, content), "title": title, "content": content}


# ---- the bare server


class Bare(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece
    disable_nagle_algorithm = True

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"id": given["title"], "status": "inbox", "duplicate": False}).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def serve_bare():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bare)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


# ---- clients


def run_client(port, token, seconds, seed):
    """Post for some seconds; prints the latencies as JSON. A line on stdin is the starting shot."""
    random_words = random.Random(seed)
    bodies = [json.dumps(candidate(random_words, number)).encode() for number in range(int(seconds * 12_000))]  # more than any server answers
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    link.connect()
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    print("ready", flush=True)
    sys.stdin.readline()
    latencies = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        link.request("POST", "/api/candidates", bodies[len(latencies)], headers)
        response = link.getresponse()
        response.read()
        latencies.append(time.perf_counter() - start)
        assert response.status == 201, response.status
    print(json.dumps(latencies), flush=True)


def measure(port, token, clients, seconds):
    """-> (requests per second, latencies)."""
    seeds = [random.randrange(1 << 60) for _ in range(clients)]
    running = [subprocess.Popen([sys.executable, __file__, "client", str(port), token, str(seconds), str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
               for seed in seeds]
    for process in running:
        process.stdout.readline()
    start = time.perf_counter()
    for process in running:
        process.stdin.write("\n")
        process.stdin.flush()
    latencies = [latency for process in running for latency in json.loads(process.stdout.readline())]
    took = time.perf_counter() - start
    for process in running:
        process.communicate()
    return len(latencies) / took, latencies


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def milliseconds(seconds):
    return "%.1f ms" % (1000 * seconds)


# ---- the hub


class HubProcess:
    """A hub in a folder of its own."""

    def __init__(self, folder):
        self.env = {**os.environ, "HOME": str(folder), "MEMHOOK_HOME": str(folder / "home")}
        self.path = folder / "home" / "hub.db"
        self.token = self.run("hub", "token", "add", "member")
        self.admin = self.run("hub", "token", "add", "boss", "--role", "admin")
        self.process = None

    def run(self, *args):
        return subprocess.run([sys.executable, str(PROGRAM), *args], env=self.env, check=True, capture_output=True, text=True).stdout.strip()

    def start(self):
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), "hub", "serve", "--port", "0", "--quota-max", "0"], env=self.env, stderr=subprocess.PIPE, text=True)
        self.port = int(self.process.stderr.readline().rsplit(":", 1)[1].split()[0])
        return self

    def stop(self):
        self.process.terminate()
        assert self.process.wait(60) == 0


def commit_seconds(folder):
    """The median time of a durable commit of one row, as this disk and SQLite take it."""
    db = memhook.connect_hub(str(folder / "commit.db"))
    db.execute("CREATE TABLE rows(text TEXT)")
    times = []
    for number in range(200):
        start = time.perf_counter()
        with memhook.transaction(db):
            db.execute("INSERT INTO rows VALUES(?)", ("x" * 600,))
        times.append(time.perf_counter() - start)
    db.close()
    return statistics.median(times)


def compare(hub, bare_port, clients, rounds, seconds):
    """Take turns; print rates, their ratio and the hub's latencies."""
    measured = {"bare": [], "hub": []}
    latencies, ratios = [], []
    for _ in range(rounds):
        bare, _ = measure(bare_port, hub.token, clients, seconds)
        rate, times = measure(hub.port, hub.token, clients, seconds)
        measured["bare"].append(bare)
        measured["hub"].append(rate)
        ratios.append(rate / bare)
        latencies += times
    print("%d client%s: hub %.0f/s, bare %.0f/s, ratio %.2f (rounds %s); hub p50 %s, p99 %s" % (
        clients, "s" * (clients > 1), statistics.median(measured["hub"]), statistics.median(measured["bare"]), statistics.median(ratios),
        " ".join("%.2f" % ratio for ratio in sorted(ratios)), milliseconds(percentile(latencies, .5)), milliseconds(percentile(latencies, .99))))


# ---- many candidates


def fill(hub, count):
    """Bring the hub to `count` candidates, half of them promoted: by the hub's own functions, many to a transaction."""
    db = memhook.open_hub(str(hub.path))
    caller, boss = (memhook.find_caller(db, "Bearer " + token) for token in (hub.token, hub.admin))
    random_words = random.Random(count)
    have = db.execute("SELECT count(*) FROM candidates").fetchone()[0]
    while have < count:
        with memhook.Chains(db) as chains:
            for _ in range(min(1000, count - have)):
                made = candidate(random_words, random_words.randrange(1 << 60))
                memhook.take_in(chains, caller, made)
                if have % 2:
                    memhook.promote(chains, boss, made["id"])
                have += 1
    db.close()


def get(hub, path, token):
    link = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=60)
    headers = {"Authorization": "Bearer " + token}
    link.request("GET", path, headers=headers)
    link.getresponse().read()
    start = time.perf_counter()
    link.request("GET", path, headers=headers)
    response = link.getresponse()
    data = response.read()
    assert response.status == 200, data
    return time.perf_counter() - start, json.loads(data)


def time_reads(hub, times=60):
    random_words = random.Random(7)
    pages, after = [], ""
    for _ in range(times):
        took, page = get(hub, "/api/candidates?status=inbox&after=" + after, hub.admin)
        pages.append(took)
        after = page["next"]
    queries = [text(random_words, 1 + number % 5).replace(" ", "+") for number in range(times)] + ["what+did+we+decide+about+" + text(random_words, 2).replace(" ", "+")] * 5
    searches = [get(hub, "/api/memories?q=" + query, hub.token)[0] for query in queries]
    pulls = [get(hub, "/api/memories?since=%d" % (number * 1000), hub.token)[0] for number in range(20)]
    for name, took in (("inbox page", pages), ("search", searches), ("pull page", pulls)):
        print("    %s: p50 %s, p95 %s" % (name, milliseconds(percentile(took, .5)), milliseconds(percentile(took, .95))))


def large(folder, rounds, seconds):
    """The small and the large hub take turns, too."""
    hubs = []
    for count in (1_000, 100_000):
        made = folder / str(count)
        made.mkdir()
        hub = HubProcess(made)
        fill(hub, count)
        hubs.append((count, hub.start()))
    rates = {count: [] for count, _ in hubs}
    for _ in range(rounds):
        for count, hub in hubs:
            rates[count].append(measure(hub.port, hub.token, 8, seconds)[0])
    ratios = sorted(few / many for few, many in zip(*rates.values()))
    print("intake with 8 clients at 1,000: %.0f/s, at 100,000: %.0f/s; %.2f times as long (rounds %s)" % (
        *(statistics.median(found) for found in rates.values()), statistics.median(ratios), " ".join("%.2f" % ratio for ratio in ratios)))
    for count, hub in hubs:
        print("at %d" % count)
        time_reads(hub)
        hub.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--skip-large", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memhook-hub-bench-", dir=options.folder)).resolve()
    bare = subprocess.Popen([sys.executable, __file__, "bare"], stdout=subprocess.PIPE, text=True)
    try:
        bare_port = int(bare.stdout.readline())
        hub = HubProcess(folder).start()
        print("a durable commit of one row takes %s here (median)" % milliseconds(commit_seconds(folder)))
        for clients in (1, 8):
            compare(hub, bare_port, clients, options.rounds, options.seconds)
        hub.stop()
        if not options.skip_large:
            large(folder, options.rounds, options.seconds)
    finally:
        bare.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        serve_bare()
    elif sys.argv[1:2] == ["client"]:
        run_client(int(sys.argv[2]), sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
