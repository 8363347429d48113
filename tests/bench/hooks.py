#!/usr/bin/env python3
"""Measure memhook's hooks as the client runs them: whole processes, `/bin/sh -c COMMAND`, the event on stdin.

    tests/bench/hooks.py                                  the python that runs this, everything, some minutes
    tests/bench/hooks.py --quick                          fewer rounds, smaller files
    tests/bench/hooks.py --python python3.9 --python python3.13 --json
    tests/bench/hooks.py --only stop                      one part: stop, sync, big, unseen, end

Every figure is the median of rounds in which all cases of a part run once, in random order, together with a bare start
of the same interpreter on the same input: on a shared machine only ratios of one run mean anything. Where the ratios of
the median are noisy, those of the processor's time ("cpu ms") still hold.
memhook is installed into a fresh HOME on the disk that holds the real one; it is removed at the end. 1.5 GB are needed.
The exit status is 0 whatever comes out: tests judge, this reports. POSIX only.
"""
import argparse
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASELINE = "import json,sys; json.load(sys.stdin)"
SYNC_DELAY_US = 20_000
KB, MB = 1_000, 1_000_000

# ==== Text and lines ==============================================================

SENTENCES = (
    "The parser reads a block, splits it at line ends and keeps the rest for the next read.",
    "I moved the check in front of the loop, so an empty list no longer raises.",
    "Please look at why the second test hangs when the folder is read only.",
    "That was the wrong design: the lock must be held until the rename is done.",
    "Run the task again with a smaller batch and write down how long it takes.",
    "src/loader/reader.py opened the file twice; now it is opened once and passed along.",
    "The disk was full, hence the short write; the retry hides it and should not.",
    "All 42 tests pass here. The slow one takes 3.1 s, most of it in set-up.",
    "Could you also rename the option, and say in the help what the default is?",
    "We decided to keep both formats for one release and to warn about the old one.",
    "Done: reader \u2192 queue \u2192 writer, each with its own test \u2014 and the flaky one no longer sleeps.",
)
TELLING = (  # what is said about logins and addresses makes the redaction look closer
    "The token comes from the environment, the password never does; see https://example.com/docs/auth for the details.",
    "Ask ops@corp.internal who owns the secret, then set API_KEY=$KEY in /home/dev/app/.env and restart.",
)


class Speaker:
    """Text that looks like talk about code; the same seed says the same."""

    def __init__(self, seed, sentences=SENTENCES):
        self.random = random.Random(seed)
        self.sentences = sentences

    def say(self, length):
        parts, total = [], 0
        while total < length:
            parts.append(self.random.choice(self.sentences))
            total += len(parts[-1]) + 1
        return " ".join(parts)[:length]

    def output(self, length):
        """Like say(), in lines, as tools print."""
        return self.say(length).replace(". ", ".\n    ")


class Transcript:
    """A transcript under construction, written as the client writes it."""

    def __init__(self, path, cwd, seed=1):
        self.path, self.cwd = path, cwd
        self.session = os.path.basename(path)[:-len(".jsonl")]
        self.speaker = Speaker(seed)
        self.ids = random.Random(seed + 1)
        os.makedirs(os.path.dirname(path), exist_ok=True)

    def record(self, kind, at, **fields):
        uuid = "%032x" % self.ids.getrandbits(128)
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at))
        return {
            "parentUuid": None, "isSidechain": False, "userType": "external", "cwd": self.cwd, "sessionId": self.session,
            "version": "2.1.332", "gitBranch": "main", "type": kind, "uuid": uuid,
            "timestamp": "%s.%03dZ" % (seconds, at % 1 * 1000), **fields,
        }

    def prompt(self, at, text):
        return self.record("user", at, message={"role": "user", "content": text})

    def answer(self, at, text, kind="text"):
        block = {"type": "text", "text": text}
        if kind == "thinking":
            block = {"type": "thinking", "thinking": text, "signature": "c2ln" * 80}
        return self.record("assistant", at, message={"role": "assistant", "content": [block]})

    def call(self, at, name, **given):
        block = {"type": "tool_use", "id": "toolu_%024x" % self.ids.getrandbits(96), "name": name, "input": given}
        return self.record("assistant", at, message={"role": "assistant", "content": [block]})

    def result(self, at, call, output):
        block = {"type": "tool_result", "tool_use_id": call["message"]["content"][0]["id"], "content": output}
        details = {"stdout": output, "stderr": "", "interrupted": False}  # the client writes it twice
        return self.record("user", at, message={"role": "user", "content": [block]}, toolUseResult=details)

    def tool(self, at, length, name="Bash"):
        given = {"command": "python3 -m pytest -q tests/test_reader.py"} if name == "Bash" else {"file_path": self.cwd + "/src/reader.py"}
        call = self.call(at, name, **given)
        return [call, self.result(at, call, self.speaker.output(length // 2))]

    def kilobyte(self, at, said=SENTENCES):
        """A prompt and its answer, 1 KB of lines; -> (records, the answer's text)."""
        speaker = Speaker(self.ids.random(), said)
        room = KB - sum(len(json.dumps(record)) + 1 for record in (self.prompt(at, ""), self.answer(at, "")))
        asked, told = speaker.say(room // 3), speaker.say(room - room // 3)
        return [self.prompt(at, asked), self.answer(at + 0.001, told)], told

    def turn(self, at):
        """A prompt, some work, an answer, in the proportions of real sessions: 50 KB, of which about 1,500 characters are kept."""
        say = self.speaker.say
        yield self.prompt(at, say(250))
        for length, name in ((6 * KB, "Bash"), (24 * KB, "Read"), (8 * KB, "Edit")):
            yield self.answer(at, say(900), kind="thinking")
            yield from self.tool(at, length, name)
            yield self.record("progress", at, data={"type": "hook_progress", "text": say(700)})
        yield self.answer(at, say(800))

    def add(self, records):
        with open(self.path, "ab") as stream:
            for record in records:
                stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def fill(self, size, at, make):
        """Append make(at) again and again up to `size` bytes; the times end before now."""
        written = 0
        with open(self.path, "ab") as stream:
            while written < size:
                at += 0.01
                for record in make(at):
                    written += stream.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        return written

    def thin_turn(self, at):
        """A megabyte of output between two short remarks."""
        yield self.prompt(at, self.speaker.say(80))
        yield from self.tool(at, MB, "Read")
        yield self.answer(at, self.speaker.say(80))


# ==== Processes ===================================================================


LAUNCHER = """
import json, os, select, sys, time
for line in sys.stdin:
    command, payload, environ, wait_for_children = json.loads(line)
    source, sink = os.pipe()
    os.write(sink, payload.encode())
    os.close(sink)
    gate, held = os.pipe()  # inherited by all that the command starts: at its end of file nothing runs any more
    os.set_inheritable(held, wait_for_children)
    streams = [(os.POSIX_SPAWN_DUP2, source, 0)] + [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    begun = time.perf_counter()
    child = os.posix_spawn(command[0], command, environ, file_actions=streams)
    _, status, usage = os.wait4(child, 0)
    milliseconds = (time.perf_counter() - begun) * 1000
    os.close(source)
    os.close(held)
    if wait_for_children:
        select.select([gate], [], [], 120)
    os.close(gate)
    cpu = (usage.ru_utime + usage.ru_stime) * 1000
    print(json.dumps([milliseconds, cpu, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024), status]), flush=True)
"""


class Sample:
    """One process, from start to end: milliseconds by the clock and of the processor, peak memory in bytes."""

    def __init__(self, milliseconds, cpu, peak):
        self.milliseconds, self.cpu, self.peak = milliseconds, cpu, peak


class Launcher:
    """Starts what is measured from a process as small as a bare interpreter: a child's peak memory counts what its parent had."""

    def __init__(self, cwd):
        command = [sys.executable, "-I", "-S", "-c", LAUNCHER]
        self.process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def run(self, command, payload, environ, wait_for_children=False):
        """Run a command, `payload` on its stdin; -> Sample. `wait_for_children`: return when all it left behind has ended, unmeasured."""
        self.process.stdin.write(json.dumps([command, payload, environ, wait_for_children]).encode() + b"\n")
        self.process.stdin.flush()
        *figures, status = json.loads(self.process.stdout.readline())
        if status:
            raise SystemExit("exit status %d of: %s" % (status, " ".join(command)))
        return Sample(*figures)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Machine:
    """A fresh HOME with memhook installed in it."""

    def __init__(self, python, program):
        home = os.path.realpath(os.path.expanduser("~"))
        beside = os.path.dirname(home)
        usable = os.access(beside, os.W_OK) and os.stat(beside).st_dev == os.stat(home).st_dev
        self.root = tempfile.mkdtemp(prefix=".memhook-bench-", dir=beside if usable else home)
        self.python, self.program = python, program
        self.launcher = None
        self.config = os.path.join(self.root, ".claude")
        self.data = os.path.join(self.config, "memhook-data")
        self.project = os.path.join(self.root, "src", "project")
        self.environ = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "HOME": self.root, "MEMHOOK_AUTODRAIN": "0"}

    def __enter__(self):
        os.makedirs(self.config)
        os.makedirs(os.path.join(self.project, ".git"))
        with open(os.path.join(self.project, ".git", "config"), "w") as stream:
            stream.write('[core]\n\tbare = false\n[remote "origin"]\n\turl = git@example.com:team/project.git\n')
        installed = subprocess.run([self.python, self.program, "install", "--consent", "I CONSENT", "--no-mcp"],
                                   env=self.environ, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if installed.returncode:
            raise SystemExit(installed.stderr)
        with open(os.path.join(self.config, "settings.json")) as stream:
            hooks = json.load(stream)["hooks"]
        self.commands = {event: hooks[event][0]["hooks"][0]["command"] for event in hooks}
        words = shlex.split(self.commands["Stop"])
        self.start = words[words.index("exec") + 1:-1]  # the interpreter and all before the subcommand
        self.consented_long_ago()
        self.launcher = Launcher(self.project)
        return self

    def __exit__(self, *exc):
        if self.launcher:
            self.launcher.close()
        shutil.rmtree(self.root)

    def consented_long_ago(self):
        """Or nothing said before this run would be taken."""
        path = os.path.join(self.data, "consent.json")
        with open(path) as stream:
            consent = json.load(stream)
        consent["capture"]["at"] -= 30 * 86_400
        with open(path, "w") as stream:
            json.dump(consent, stream)

    def transcript(self, session, seed=1):
        return Transcript(os.path.join(self.config, "projects", "-project", session + ".jsonl"), self.project, seed)

    def payload(self, event, transcript, message=""):
        fields = {"session_id": transcript.session, "transcript_path": transcript.path, "cwd": self.project,
                  "permission_mode": "default", "hook_event_name": event}
        if event == "Stop":
            fields.update(stop_hook_active=False, last_assistant_message=message)
        return json.dumps(fields) + "\n"

    def hook(self, event, transcript, message="", prefix=(), **environ):
        command = [*prefix, "/bin/sh", "-c", self.commands[event]]
        drains = environ.get("MEMHOOK_AUTODRAIN") == "1"
        return self.launcher.run(command, self.payload(event, transcript, message), {**self.environ, **environ}, drains)

    def baseline(self, payload, prefix=()):
        return self.launcher.run([*prefix, self.start[0], "-I", "-S", "-c", BASELINE], payload, self.environ)

    def drain(self):
        return self.launcher.run([self.start[0], os.path.join(self.config, "memhook.py"), "drain", "--json"], "", self.environ)

    def spooled(self):
        folder = os.path.join(self.data, "spool", "new")
        return [os.path.join(folder, name) for name in os.listdir(folder)] if os.path.isdir(folder) else []

    def find_checkpoint(self, transcript):
        folder = os.path.join(self.data, "checkpoints")
        for name in os.listdir(folder):
            with open(os.path.join(folder, name)) as stream:
                if json.load(stream)["path"] == os.path.realpath(transcript.path):
                    return os.path.join(folder, name)
        raise SystemExit("no checkpoint of " + transcript.path)


class Moment:
    """A session at one point of its life, to which it can be brought back: each round measures the same thing."""

    def __init__(self, machine, transcript):
        self.machine, self.transcript = machine, transcript
        self.checkpoint = machine.find_checkpoint(transcript)
        key = os.path.basename(self.checkpoint)[:-len(".json")]
        self.seen = os.path.join(machine.data, "seen", key)
        quotas = [os.path.join(machine.data, name) for name in os.listdir(machine.data) if name.startswith("quota")]
        self.stored = {}  # path -> content; the quota as it was then, or rounds would use it up
        for path in [self.checkpoint, *quotas]:
            with open(path, "rb") as stream:
                self.stored[path] = stream.read()
        self.sizes = os.path.getsize(transcript.path), os.path.getsize(self.seen)

    def restore(self):
        os.truncate(self.transcript.path, self.sizes[0])
        os.truncate(self.seen, self.sizes[1])
        for path, data in self.stored.items():
            with open(path, "wb") as stream:
                stream.write(data)
        for path in self.machine.spooled():
            os.unlink(path)
        os.sync()  # what the restoring wrote must not be paid by the hook's own syncs


class Case:
    """One thing to measure: `run()` -> Sample, after whatever has to be prepared."""

    def __init__(self, name, run):
        self.name, self.run = name, run
        self.samples = []


def stop_case(name, moment, said=SENTENCES, prefix=(), event="Stop", queues=None, **environ):
    """The hook after 1 KB was added to a session at that moment."""
    machine, transcript = moment.machine, moment.transcript

    def once():
        moment.restore()
        records, told = transcript.kilobyte(time.time(), said)
        if event != "SessionStart":
            transcript.add(records)
        sample = machine.hook(event, transcript, told, prefix, **environ)
        if queues is not None and bool(machine.spooled()) != queues:
            raise SystemExit("%s: %d segments were queued" % (name, len(machine.spooled())))
        return sample

    return Case(name, once)


def shell_case(machine, transcript):
    """What the shell alone adds."""
    payload = machine.payload("Stop", transcript, Speaker(7).say(300))
    command = "exec %s -I -S -c %s" % (shlex.quote(machine.start[0]), shlex.quote(BASELINE))
    return Case("  through /bin/sh", lambda: machine.launcher.run(["/bin/sh", "-c", command], payload, machine.environ))


def baseline_case(machine, transcript, prefix=(), name="bare interpreter"):
    payload = machine.payload("Stop", transcript, Speaker(7).say(300))
    return Case(name, lambda: machine.baseline(payload, prefix))


def measure(cases, rounds):
    """Each case once a round, in random order; the first two rounds only warm the caches."""
    order = random.Random(rounds)
    for number in range(rounds + 2):
        for case in order.sample(cases, len(cases)):
            sample = case.run()
            if number >= 2:
                case.samples.append(sample)


# ==== Figures =====================================================================


def quantile(values, share):
    values = sorted(values)
    at = share * (len(values) - 1)
    low = int(at)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (at - low)


class Report:
    """The rows of one interpreter."""

    def __init__(self, python):
        self.python = python
        self.rows = []

    def row(self, name, value="", unit="", goal=None, **more):
        """`goal`: the most that `value` may be."""
        verdict = "" if goal is None else "met" if value <= goal else "missed"
        self.rows.append({"name": name, "value": value, "unit": unit, "goal": goal, "verdict": verdict, **more})

    def case(self, case, against=None, goal=None, memory_goal=None):
        times = [sample.milliseconds for sample in case.samples]
        peak = max(sample.peak for sample in case.samples) / MB
        cpu = quantile([sample.cpu for sample in case.samples], 0.5)
        more = {"median_ms": quantile(times, 0.5), "p95_ms": quantile(times, 0.95), "cpu_ms": cpu, "count": len(times), "peak_mb": peak}
        if against is None:
            self.row(case.name, **more)
        else:
            ratio = more["median_ms"] / quantile([sample.milliseconds for sample in against.samples], 0.5)
            self.row(case.name, ratio, "x " + against.name, goal, **more)
        if memory_goal is not None:
            self.row("  its peak memory", more["peak_mb"], "MB", memory_goal)

    def process(self, name, sample):
        """One long run."""
        self.row(name, sample.milliseconds / 1000, "s", cpu_ms=sample.cpu, peak_mb=sample.peak / MB)

    def show(self):
        print("\n%s\n%-55s %9s %7s %7s %8s   %s" % (self.python, "", "median ms", "p95 ms", "cpu ms", "peak MB", "result"))
        for row in self.rows:
            figures = ["%.1f" % row[name] if name in row else "" for name in ("median_ms", "p95_ms", "cpu_ms", "peak_mb")]
            value = "%.2f %s" % (row["value"], row["unit"]) if row["value"] != "" else ""
            goal = "   goal <= %g: %s" % (row["goal"], row["verdict"]) if row["goal"] is not None else ""
            print("%-55s %9s %7s %7s %8s   %s%s" % (row["name"], *figures, value, goal))
        sys.stdout.flush()


# ==== The parts ===================================================================


def open_session(machine, name, seed, kept):
    """A session that is under way: segments were queued before, and `kept` characters stand open since."""
    transcript = machine.transcript(name, seed)
    machine.hook("SessionStart", transcript)
    transcript.fill(200 * KB, time.time() - 7200, transcript.turn)
    at = time.time() - 3600
    while True:
        machine.hook("Stop", transcript)
        with open(machine.find_checkpoint(transcript)) as stream:
            stored = json.load(stream)
        length = sum(len(turn[2]) for turn in stored["turns"])
        if stored["deferred"]:
            continue  # on a busy machine a hook's time is over before all is read
        if 0 <= kept - length <= 200:
            return Moment(machine, transcript)
        at += 1
        missing = kept - length if kept > length else 8_200 - length  # over the cut first, if too much stands open
        told = transcript.speaker.say(min(3_000, max(60, missing - 100)))
        transcript.add([transcript.prompt(at, transcript.speaker.say(40)), transcript.answer(at, told)])


def part_stop(machine, report, rounds):
    below, above = open_session(machine, "stop-below", 11, 4_000), open_session(machine, "stop-above", 12, 7_900)
    bare = baseline_case(machine, below.transcript)
    cases = [
        stop_case("Stop, 1 KB new, below a cut", below, queues=False),
        stop_case("Stop, 1 KB new, a segment is queued", above, queues=True),
        stop_case("Stop, 1 KB new about tokens and addresses, below a cut", below, SENTENCES[:2] + TELLING, queues=False),
    ]
    shell = shell_case(machine, below.transcript)
    measure([bare, shell, *cases], rounds)
    report.case(bare)
    report.case(shell, bare)
    for case in cases:
        report.case(case, bare, 1.5)


def part_sync(machine, report, rounds):
    """Every fsync takes 20 ms longer, as on a network disk."""
    below, above = open_session(machine, "sync-below", 21, 4_000), open_session(machine, "sync-above", 22, 7_900)
    calls = "fsync,fdatasync"
    log = os.path.join(machine.root, "syncs")
    prefix = [shutil.which("strace") or "", "-f", "-qq", "-o", log, "-e", "trace=" + calls]
    prefix += ["-e", "inject=%s:delay_enter=%d" % (calls, SYNC_DELAY_US)]
    if not prefix[0] or subprocess.run([*prefix, "true"], stderr=subprocess.DEVNULL).returncode:
        report.row("(strace is not here or may not be used: no figures for slow syncs)")
        return
    if subprocess.run([*prefix, "--seccomp-bpf", "true"], stderr=subprocess.DEVNULL).returncode == 0:
        prefix.append("--seccomp-bpf")  # stops only at the calls that are traced
    bare = baseline_case(machine, below.transcript, prefix, "bare, traced")
    cases = [
        stop_case("Stop, each sync 20 ms slower, below a cut", below, prefix=prefix, queues=False),
        stop_case("Stop, each sync 20 ms slower, a segment is queued", above, prefix=prefix, queues=True),
        stop_case("SessionEnd, each sync 20 ms slower", below, prefix=prefix, event="SessionEnd", queues=True),
    ]
    measure([bare, *cases], rounds)
    report.case(bare)
    for case in cases:
        case.run()
        with open(log) as stream:
            report.case(case, bare)
            report.row("  its syncs", sum("sync(" in line for line in stream))


def session_of_size(machine, name, seed, size):
    """A captured session whose transcript has `size` bytes, most of them output that is not kept."""
    transcript = machine.transcript(name, seed)
    machine.hook("SessionStart", transcript)
    transcript.fill(size, time.time() - 86_400, transcript.thin_turn)
    machine.hook("Stop", transcript)
    drained = machine.drain()
    with open(machine.find_checkpoint(transcript)) as stream:
        if json.load(stream)["parsed"] < os.path.getsize(transcript.path):
            raise SystemExit("the drain left bytes of " + transcript.path)
    return Moment(machine, transcript), drained


def stretch(machine, name, seed, size):
    """A session of which `size` bytes came since the last cut, through several Stops; 3,000 characters of them are kept."""
    moment = open_session(machine, name, seed, 0)
    transcript, at = moment.transcript, time.time() - 1800
    for _ in range(10):
        at += 1
        transcript.add([transcript.prompt(at, transcript.speaker.say(100)), transcript.answer(at, transcript.speaker.say(200))])
        if size > 6 * KB:
            transcript.add(transcript.tool(at, size // 10, "Read"))
        machine.hook("Stop", transcript)
    return Moment(machine, transcript)


def part_big(machine, report, rounds, size):
    big, drained = session_of_size(machine, "big", 31, size)
    small, _ = session_of_size(machine, "small", 32, MB)
    long, short = stretch(machine, "long", 33, 600 * KB), stretch(machine, "short", 34, 6 * KB)
    bare = baseline_case(machine, small.transcript)
    label = "%g MB" % (size / MB) if size < 1000 * MB else "%g GB" % (size / MB / 1000)
    cases = [
        stop_case("Stop on 1 MB", small), stop_case("Stop, 1 KB new, transcript of " + label, big),
        stop_case("Stop on 6 KB", short, queues=False), stop_case("Stop, 1 KB new, 600 KB since the last cut", long, queues=False),
    ]
    measure([bare, *cases], rounds)
    report.case(bare)
    report.case(cases[0], bare)
    report.case(cases[1], cases[0], 1.2, memory_goal=40)
    report.case(cases[2], bare)
    report.case(cases[3], cases[2], 1.1)
    report.process("the drain's catching up with those " + label, drained)
    os.unlink(big.transcript.path)


def part_unseen(machine, report, size, most):
    """Stop after Stop on a transcript that was never captured; what they leave is the drain's."""
    transcript = machine.transcript("unseen", 41)
    size = transcript.fill(size, time.time() - 86_400, transcript.turn)
    bare, stop = baseline_case(machine, transcript), Case("Stop, %g MB never seen before" % round(size / MB), None)
    left, queued, waiting = True, 0, len(machine.spooled())
    while left and len(stop.samples) < most:
        bare.samples.append(bare.run())
        stop.samples.append(machine.hook("Stop", transcript, MEMHOOK_QUOTA_MAX="1000000"))
        with open(machine.find_checkpoint(transcript)) as stream:
            stored = json.load(stream)
            left, queued = stored["deferred"], stored["parsed"]
    report.case(bare)
    report.case(stop, bare)
    slowest, peak = max(sample.milliseconds for sample in stop.samples), max(sample.peak for sample in stop.samples)
    report.row("  the slowest of them", slowest, "ms", 200)
    report.row("  their peak memory", peak / MB, "MB", 100)
    report.row("  read by each", queued / len(stop.samples) / MB, "MB")
    report.row("  queued by each", (len(machine.spooled()) - waiting) / len(stop.samples), "segments")
    drained, rest = machine.drain(), (size - queued) / MB
    report.process("the drain of the rest (%d MB to read)" % rest, drained)
    report.row("  its pace", rest / (drained.milliseconds / 1000), "MB/s")
    with open(machine.find_checkpoint(transcript)) as stream:
        report.row("  left by it", (size - json.load(stream)["parsed"]) / MB, "MB", 0)
    os.unlink(transcript.path)


def part_end(machine, report, rounds):
    below = open_session(machine, "end", 51, 4_000)
    bare, stop = baseline_case(machine, below.transcript), stop_case("Stop", below, queues=False)
    quiet = [stop_case("SessionEnd, no drain started", below, event="SessionEnd", queues=True),
             stop_case("SessionStart, no drain started", below, event="SessionStart")]
    drains = [stop_case("SessionEnd, starts a drain", below, event="SessionEnd", MEMHOOK_AUTODRAIN="1"),
              stop_case("SessionStart, starts a drain", below, event="SessionStart", MEMHOOK_AUTODRAIN="1")]
    measure([bare, stop, *quiet, *drains], rounds)
    report.case(bare)
    report.case(stop, bare)
    for end, start in (quiet, drains):
        report.case(end, stop, 3)
        report.case(start, bare)


PARTS = ("stop", "sync", "big", "unseen", "end")


def bench(python, options):
    """Every part on one interpreter; -> its Report."""
    rounds = options.rounds or (15 if options.quick else 60)
    with Machine(python, os.path.abspath(options.program)) as machine:
        shown = subprocess.run([machine.start[0], "-V"], capture_output=True, text=True).stdout.strip()
        report = Report("%s (%s), %d rounds" % (shown, machine.start[0], rounds))
        for part in options.only or PARTS:
            if part == "big":
                part_big(machine, report, rounds, 100 * MB if options.quick else 1000 * MB)
            elif part == "unseen":
                part_unseen(machine, report, 60 * MB if options.quick else 300 * MB, 10 if options.quick else 60)
            else:
                {"stop": part_stop, "sync": part_sync, "end": part_end}[part](machine, report, rounds)
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="PATH", help="an interpreter to measure (may be given several times)")
    parser.add_argument("--program", default=os.path.join(ROOT, "memhook.py"), help="the memhook.py to measure")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part to measure (may be given several times)")
    parser.add_argument("--rounds", type=int, help="how often each case is run (60)")
    parser.add_argument("--quick", action="store_true", help="15 rounds, smaller files")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("interrupted"))  # so that the folder is removed
    reports = []
    for python in options.python or [sys.executable]:
        reports.append(bench(shutil.which(python) or python, options))
        if not options.json:
            reports[-1].show()
    if options.json:
        print(json.dumps([{"python": report.python, "rows": report.rows} for report in reports], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
