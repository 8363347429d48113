#!/usr/bin/env python3
"""Speed of index and search on stores of 1,000, 10,000 and 100,000 units, beside plain FTS5 in the same run.

    search.py [--units 1000 10000 100000] [--queries 300]

Goals: at the largest store p95 at most half of a plain FTS5 OR of the same words, no query over 250 ms; indexing at most 4 times
bare FTS5 insertion of the same text; a sync check of 10,000 unchanged memories at most 100 ms; a cold `memhook search` at 10,000 units at
most 4 times `python3 -I -S -c "import sqlite3, json"`; SessionStart at 10,000 memories at most 3 times the interpreter's floor.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
from conftest import PROGRAM, Box, memhook  # noqa: E402

TURNS = 40  # of a memory
SYLLABLES = "ba co du fe gi ho ja ke li mo nu pa qui ra se ti vo wa xe yu za bro cle dri fla gre plu sta tri".split()


class Words:
    """A vocabulary with a Zipf-like distribution, as text has; names and Chinese words among it."""

    def __init__(self, seed, size=30_000):
        self.random = random.Random(seed)
        self.plain = list({"".join(self.random.choices(SYLLABLES, k=self.random.randint(2, 4))) for _ in range(size)})
        self.cjk = ["".join(chr(self.random.randint(0x4E00, 0x5000)) for _ in range(self.random.randint(2, 4))) for _ in range(2_000)]
        self.names = [a + b.title() for a, b in zip(self.random.sample(self.plain, 2_000), self.random.sample(self.plain, 2_000))]
        self.weights = [1 / (rank + 5) for rank in range(len(self.plain))]

    def text(self, count):
        words = self.random.choices(self.plain, self.weights, k=count)
        for number in range(len(words)):
            chance = self.random.random()
            if chance < 0.02:
                words[number] = self.random.choice(self.names)
            elif chance < 0.04:
                words[number] = self.random.choice(self.cjk)
        return " ".join(words).capitalize() + "."

    def query(self):
        kind = self.random.random()
        if kind < 0.1:
            return self.random.choice(self.cjk)
        words = self.random.choices(self.plain, self.weights, k=self.random.randint(3, 7)) + self.random.sample(self.plain, 1)
        if kind < 0.2:
            word = words[-1]
            at = self.random.randrange(len(word))
            words[-1] = word[:at] + self.random.choice("abcdefghijklmnopqrstuvwxyz") + word[at + 1:]
        return " ".join(words)


def fill(home, words, units):
    """Write memories until the store has so many units; -> all the text."""
    texts = []
    for number in range(units // TURNS):
        turns = []
        for place in range(TURNS):
            text = words.text(words.random.choice((8, 20, 60)))
            texts.append(text)
            turns.append(memhook.Turn("u%d-%d/0" % (number, place), "answer" if place % 2 else "prompt", text, place, place + 1, 1.7e9 + number * 60 + place))
        segment = {"id": memhook.content_id("p", "t", str(number)), "title": turns[0].text[:60], "project": "/bench", "session": "s%d" % (number // 3),
                   "segment": number % 3, "transcript": "/t", "at": 1.7e9 + number * 60, "key": "0" * 20}
        front = memhook.front_matter(segment, turns, "offline")
        path = memhook.memory_path(home, front, segment["title"])
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(memhook.render_memory(front, "# %s\n\nNothing." % segment["title"], turns))
    return texts


def milliseconds(call, *args):
    started = time.perf_counter()
    call(*args)
    return (time.perf_counter() - started) * 1e3


def quantile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def measure(units, queries):
    root = tempfile.mkdtemp(prefix="memhook-search-")
    box = Box(root)
    home = memhook.Home(dict(box.env, HOME=str(box.user)))
    home.create()
    words = Words(units)
    texts = fill(home, words, units)
    bare = sqlite3.connect(os.path.join(root, "bare.db"), isolation_level=None)
    bare.execute("PRAGMA journal_mode=WAL")
    bare.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize='porter unicode61')")
    started = time.perf_counter()
    bare.execute("BEGIN")
    bare.executemany("INSERT INTO t(body) VALUES(?)", [(text,) for text in texts])
    bare.execute("COMMIT")
    bare_seconds = time.perf_counter() - started
    started = time.perf_counter()
    index = memhook.open_index(home)
    index.sync()
    seconds = time.perf_counter() - started
    check = statistics.median(milliseconds(index.sync) for _ in range(9))
    plain, ours = [], []
    for _ in range(queries):
        query = words.query()
        match = " OR ".join('"%s"' % word for word in re.findall(r"\w+", query))
        plain.append(milliseconds(lambda: bare.execute("SELECT rowid FROM t WHERE t MATCH ? ORDER BY bm25(t) LIMIT 20", (match,)).fetchall()))
        searcher = memhook.Searcher(index, memhook.Scope("/bench"))
        ours.append(milliseconds(searcher.ranked, query, 6))
    print("%7d units: index %.2f s, bare FTS5 %.2f s (ratio %.2f, goal 4); sync check of %d memories %.1f ms" % (
        units, seconds, bare_seconds, seconds / bare_seconds, units // TURNS, check))
    print("                p50 %.1f p95 %.1f max %.1f ms; plain OR p50 %.1f p95 %.1f max %.1f ms; ratio of p95 %.2f" % (
        quantile(ours, .5), quantile(ours, .95), max(ours), quantile(plain, .5), quantile(plain, .95), max(plain), quantile(ours, .95) / quantile(plain, .95)))
    index.db.close()
    return box, home, root


def cold(box, home):
    """Whole processes at 10,000 units, interleaved."""
    base = [sys.executable, "-I", "-S", "-c", "import sqlite3, json"]
    ours = [sys.executable, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM), "search", "--all", "bacodu fegiho jakeli"]
    times = {"base": [], "ours": []}
    for _ in range(15):
        for name, command in (("base", base), ("ours", ours)):
            times[name].append(milliseconds(lambda: subprocess.run(command, env=box.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print("cold search %.0f ms, sqlite3+json %.0f ms: ratio %.2f (goal 4)" % (medians["ours"], medians["base"], medians["ours"] / medians["base"]))


def many_memories(count):
    """Sync check and SessionStart with so many memories."""
    root = tempfile.mkdtemp(prefix="memhook-many-")
    box = Box(root)
    box.install()
    home = memhook.Home(dict(box.env, HOME=str(box.user)))
    words = Words(7)
    for number in range(count):
        folder = home.path("memories", "p-%d" % (number % 20), "2026-%02d" % (number % 12 + 1))
        os.makedirs(folder, exist_ok=True)
        head = 'id: "%s"\nproject: "%s"\nsession: "s%d"\nsegment: 0\nat: "2026-%02d-01T00:00:00.000Z"\n' % (
            memhook.content_id("p", "t", str(number)), os.path.realpath(box.project), number, number % 12 + 1)
        with open(os.path.join(folder, "m%d.md" % number), "w") as stream:
            stream.write("---\n%s---\n# %s\n\nDone.\n\n## Open threads\n\n- %s\n" % (head, words.text(6), words.text(12)))
    with memhook.open_index(home) as index:
        index.sync()
        check = statistics.median(milliseconds(index.sync) for _ in range(9))
    payload = json.dumps(box.payload("SessionStart", box.script(), source="startup")).encode()
    floor = [sys.executable, "-I", "-S", "-c", "import json,sys; json.load(sys.stdin)"]
    times = {"floor": [], "hook": []}
    for _ in range(15):
        times["floor"].append(milliseconds(lambda: subprocess.run(floor, input=payload, stdout=subprocess.DEVNULL)))
        times["hook"].append(milliseconds(lambda: subprocess.run(box.command("SessionStart"), shell=True, input=payload, env=box.env, cwd=box.project, stdout=subprocess.DEVNULL)))
    hook, bottom = statistics.median(times["hook"]), statistics.median(times["floor"])
    print("%d memories: sync check %.0f ms (goal 100); SessionStart %.0f ms, interpreter with json %.0f ms: ratio %.2f (goal 3)" % (count, check, hook, bottom, hook / bottom))
    shutil.rmtree(root)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=300)
    options = parser.parse_args()
    for units in options.units:
        box, home, root = measure(units, options.queries)
        if units == 10_000:
            cold(box, home)
        shutil.rmtree(root)
    many_memories(10_000)


if __name__ == "__main__":
    main()
