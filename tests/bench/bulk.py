"""Import, drain and verify of many transcripts, and status with many memories: bytes per second and memory, each in a process of its own.

    python tests/bench/bulk.py [--transcripts N, default 1000] [--memories N, default 10000] [--keep FOLDER]

The transcripts are those of parse.py, 1 MB each, in projects of 50. Beside them the bare json.loads loop over the same files,
in the same run. Everything lies in a temporary folder; --keep uses a named one, and what it holds already.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

HERE = pathlib.Path(__file__).resolve()
PROGRAM = HERE.parent.parent.parent / "memhook.py"
SIZE = 1_000_000  # bytes of a transcript
GOALS = {"import with drain": 20.0, "peak": 80, "status": 10.0}  # MB/s, MB, times the interpreter's start


def make_transcripts(root, count):
    """`count` transcripts below root/projects. Runs in a process of its own, so that its memory counts for nobody else's."""
    sys.path.insert(0, str(HERE.parent))
    import parse
    for number in range(count):
        path = root / "projects" / ("p%03d" % (number // 50)) / ("%08x-0000-4000-8000-000000000000.jsonl" % number)
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = parse.Writer(number)
        writer.number = number * 10_000  # uuids of its own
        while writer.size < SIZE:
            writer.step()
        path.write_bytes(b"".join(writer.lines).replace(b'"/srv/shop"', b'"/srv/shop%03d"' % (number // 50)))


def make_memories(root, count):
    """A home with `count` small memories, as the drain writes them."""
    sys.path.insert(0, str(PROGRAM.parent))
    import memhook as program
    home = program.Home({"HOME": str(root)})
    for number in range(count):
        turn = program.Turn("%08x/0" % number, "prompt", "What of number %d?" % number, 0, 100, 1.75e9 + number, "/srv/p%d" % (number % 30), "main", "/srv/p%d" % (number % 30))
        segment = {"id": program.content_id("t", "t", str(number)), "title": "Number %d" % number, "project": turn.project, "session": "s%d" % (number // 3),
                   "segment": number % 3, "key": "0" * 20, "transcript": "/t.jsonl", "at": 1.75e9}
        front = program.front_matter(segment, [turn], "offline")
        path = pathlib.Path(program.memory_path(home, front, segment["title"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(program.render_memory(front, "# Number %d\n" % number, [turn]))


def bare_loop(root):
    for path in sorted(root.glob("projects/*/*.jsonl")):
        with open(path, "rb") as stream:
            for line in stream:
                json.loads(line)


class Cost(NamedTuple):
    peak: float  # memory, in MB
    cpu: float  # seconds: on a busy machine the figure to compare


def timed(args, env=None, quiet=False):
    """Run a process; -> (its stdout, seconds, what it cost)."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, *map(str, args)], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else None)
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit("%s: exit status %d" % (args, process.returncode))
    return out, seconds, Cost(usage.ru_maxrss / 1000, usage.ru_utime + usage.ru_stime)


def memhook(env, *args):
    """timed() for `memhook ARGS`, started as its launcher does: from cached bytecode."""
    start = "import importlib.machinery as m; print(m.SourceFileLoader('m', %r).load_module().BOOT)" % str(PROGRAM)
    boot = subprocess.run([sys.executable, "-W", "ignore", "-c", start], stdout=subprocess.PIPE, text=True, check=True).stdout
    return timed(["-I", "-S", "-c", boot, PROGRAM, *args], env, quiet=args[0] == "install")


def measure(root, count, memories):
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "CLAUDE_CONFIG_DIR": str(root), "MEMHOOK_AUTODRAIN": "0"}
    timed([HERE, "--make", root, "--transcripts", count])
    paths = sorted(root.glob("projects/*/*.jsonl"))
    size = sum(path.stat().st_size for path in paths)
    print("%d transcripts, %.0f MB; Python %s" % (len(paths), size / 1e6, sys.version.split()[0]), flush=True)
    memhook(env, "install", "--consent", "I CONSENT", "--no-mcp")

    def row(name, seconds, cost=None, more=""):
        print("%-18s %7.1f s %7.1f MB/s%s%s" % (name, seconds, size / seconds / 1e6, "   CPU %5.1f s   peak %3.0f MB" % (cost.cpu, cost.peak) if cost else "", more), flush=True)

    _, bare, cost = timed([HERE, "--bare", root])
    row("bare json.loads", bare, cost)
    out, imported, import_cost = memhook(env, "import", "--yes", "--json")
    row("import", imported, import_cost, "   " + out.decode().strip())
    out, drained, drain_cost = memhook(env, "drain", "--json")
    row("drain", drained, drain_cost, "   " + out.decode().strip())
    both = imported + drained
    row("import with drain", both, Cost(max(import_cost.peak, drain_cost.peak), import_cost.cpu + drain_cost.cpu), "   goal: %g MB/s, %g MB" % (GOALS["import with drain"], GOALS["peak"]))
    out, verified, cost = memhook(env, "verify", "--json")
    row("verify", verified, cost, "   %s   goal: as fast as the import" % json.dumps(json.loads(out)["totals"]))
    _, again, cost = memhook(env, "import", "--yes", "--json")
    row("import again", again, cost)
    _, indexed, cost = memhook(env, "reindex")
    row("reindex", indexed, cost)
    beside = import_with_drain(root, env)
    row("import and drain", beside, None, "   at the same time, as a person's import runs (peaks as above); the index is made by the drain too")
    measure_status(root / "many", memories)


def import_with_drain(root, env):
    """Seconds from the start of an import to the end of the drain that it starts beside itself, in a home of its own."""
    env = {**env, "MEMHOOK_HOME": str(root / "beside"), "MEMHOOK_AUTODRAIN": "1"}
    memhook(env, "install", "--consent", "I CONSENT", "--no-mcp")
    started = time.perf_counter()
    memhook(env, "import", "--yes", "--json")
    while True:
        left = json.loads(memhook(env, "drain", "--json")[0])["left"]  # waits for the drain that runs
        if not left:
            return time.perf_counter() - started


def measure_status(root, memories):
    root.mkdir(exist_ok=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(root), "MEMHOOK_AUTODRAIN": "0"}
    memhook(env, "install", "--consent", "I CONSENT", "--no-mcp")
    timed([HERE, "--fill", root, "--memories", memories])
    rounds = [(timed(["-I", "-S", "-c", "pass"], env)[1], memhook(env, "status", "--json")[1]) for _ in range(5)]
    floor, status = (min(column) for column in zip(*rounds))
    print("status with %d memories: %.0f ms, an empty interpreter %.0f ms, %.1f times (goal: at most %g); median %.0f ms" % (
        memories, status * 1000, floor * 1000, status / floor, GOALS["status"], statistics.median(row[1] for row in rounds) * 1000))


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--transcripts", type=int, default=1000)
    parser.add_argument("--memories", type=int, default=10_000)
    parser.add_argument("--keep", type=pathlib.Path)
    for name in ("--make", "--bare", "--fill"):
        parser.add_argument(name, type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.make:
        make_transcripts(options.make, options.transcripts)
    elif options.fill:
        make_memories(options.fill, options.memories)
    elif options.bare:
        bare_loop(options.bare)
    elif options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        measure(options.keep, options.transcripts, options.memories)
    else:
        with tempfile.TemporaryDirectory() as root:
            measure(pathlib.Path(root), options.transcripts, options.memories)


if __name__ == "__main__":
    main()
