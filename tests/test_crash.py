"""Killed at every step, refused by the disk at every step: afterwards each prompt and each answer is in exactly one memory.

How a process is killed at a step. `strace` stops it at the ENTRY of the N-th call of a name and sends SIGKILL: that call is not
carried out (the first test proves it). An uninjured run is recorded first; then the same run is repeated from the same files
once for each recorded call that changes something of ours, and for exit_group. Every call that can change a file is in CALLS, so
between two recorded calls the disk stays as it is: the moment after one call is the moment before the next, and the moment after
the last one is the entry of exit_group. Both sides of every call are tried this way.

How the disk refuses. The same points, but the N-th call (or every one from the N-th on) fails with an error number instead.

MEMHOOK_CRASH=all tries every point with every error and both ways of recovering; without it a part of them, in every test the same.
"""
import errno
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from typing import NamedTuple

import pytest

import memhook
from conftest import Box, heeding_modes, wait_until

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals, /bin/sh and strace are not there on Windows")

ALL = os.environ.get("MEMHOOK_CRASH") == "all"
EVERY = 1 if ALL else 36  # of the points of error injection: every 36th, each error's share beginning at another one
KILLS = 1 if ALL else 5  # of the kill points: every fifth, and each that commits something
ERRORS = ("ENOSPC", "EACCES", "EIO", "EROFS")
CALLS = ("?open,openat,?creat,write,?pwrite64,?writev,fsync,?fdatasync,?ftruncate,?truncate,?rename,?renameat,renameat2,?unlink,unlinkat,"
         "?rmdir,?mkdir,mkdirat,?chmod,fchmod,fchmodat,?link,linkat,?symlink,symlinkat,flock,exit_group")
REFUSED = re.compile(r"open|openat|write|fsync|rename|renameat2?|unlink|unlinkat|mkdir|mkdirat|ftruncate")
CLIENT = ("/bin/sh", "-c", '"$@"; exit $?', "client")  # a client that is gone when its hook is
SLOW = 10  # seconds after which a process counts as one that never ends; the slowest takes less than one
LONG_AGO = 1_000  # seconds


# ---- a session, and what must have become of it


class Talk:
    """A session that grows; `said` is what was said in it, word for word."""

    def __init__(self, box, session="session-0001", start=None):
        self.script = box.script(session, time.time() - LONG_AGO if start is None else start)
        self.said = []

    def prompt(self, text):
        self.script.prompt(text)
        self.said.append(("prompt", text))

    def answer(self, text):
        self.script.answer(text)
        self.said.append(("answer", text))

    def say(self, chars=0, past=False):
        """A prompt and an answer, the answer with so many characters more."""
        if not past:
            self.script.clock = max(self.script.clock, time.time())
        number = len(self.said)
        self.prompt("%s asks %d: what follows %d?" % (self.script.session, number, number * 7))
        self.answer(("%s answers %d. " % (self.script.session, number) + "So it goes on. " * (chars // 15)).strip())
        return self

    def mark(self):
        status = os.stat(self.script.path)
        return len(self.said), status.st_size, status.st_mtime_ns, self.script.clock, self.script.count

    def back(self, mark):
        """As it was at the mark; the file stays the same file."""
        length, size, mtime_ns, self.script.clock, self.script.count = mark
        del self.said[length:]
        os.truncate(self.script.path, size)
        os.utime(self.script.path, ns=(mtime_ns, mtime_ns))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A machine as it is after an install, with the consent of a while ago, and a copy of its folders.

    In memory where there is such a place: that fsync is called counts here, not what it costs.
    """
    shared = "/dev/shm"
    root = tempfile.mkdtemp(prefix="memhook-test-", dir=shared if os.access(shared, os.W_OK) else tmp_path_factory.mktemp("crash"))
    box = Box(os.path.join(root, "box"))
    box.install()
    consent = json.loads((box.home / "consent.json").read_text("utf-8"))
    consent["capture"]["at"] -= 2 * LONG_AGO
    (box.home / "consent.json").write_text(json.dumps(consent), "utf-8")
    yield box, shutil.copytree(box.root, os.path.join(root, "installed"))
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def room(installed, monkeypatch):
    """That machine, as it was."""
    machine, copy = installed
    shutil.rmtree(machine.root)
    shutil.copytree(copy, machine.root)
    box = Box(machine.root)
    box.env["MEMHOOK_QUOTA_MAX"] = "100000"
    monkeypatch.setenv("HOME", str(box.user))
    return box


def memories_of(box, talk):
    """The memories of one session, in the order in which it was said."""
    real = os.path.realpath(talk.script.path)
    found = [memory for memory in box.memories() if memory.front.get("transcript") == real]
    return sorted(found, key=lambda memory: (memory.front["segment"], memory.front["bytes"]))


def said_in(memories):
    """(kind, text) of each prompt and answer, the parts of one line joined: a turn that stands twice doubles its text."""
    whole = {}
    for memory in memories:
        for turn in memory.turns:
            if turn.kind in ("prompt", "answer"):
                whole.setdefault((turn.line, turn.kind), []).append(turn.text)
    return [(kind, "".join(parts)) for (_, kind), parts in whole.items()]


def short(said):
    return [(kind, text if len(text) < 60 else text[:30] + "…%d…" % len(text) + text[-20:]) for kind, text in said]


def wrong_in(box, talk):
    """What is wrong with the memories of one session whose SessionEnd and drain have come."""
    wrong = []
    memories = memories_of(box, talk)
    if said_in(memories) != talk.said:
        wrong.append("stored %s\n  instead of %s" % (short(said_in(memories)), short(talk.said)))
    keys = [turn.key for memory in memories for turn in memory.turns]
    wrong += ["the turn %s is there %d times" % (key, keys.count(key)) for key in sorted(set(keys)) if keys.count(key) > 1]
    ranges = [(turn.start, turn.end) for memory in memories for turn in memory.turns]
    wrong += ["the ranges %s and %s overlap" % pair for pair in zip(ranges, ranges[1:]) if pair[0][1] > pair[1][0]]
    numbers = [memory.front["segment"] for memory in memories]
    if len(set(numbers)) != len(numbers):
        wrong.append("two memories have the same segment number: %s" % numbers)
    key = memhook.transcript_key(str(talk.script.path))
    counted = {receipt["segment"] for receipt in memhook.read_receipts(box.api, key)}
    if counted != set(range(max(counted, default=-1) + 1)):
        wrong.append("segment numbers with gaps: %s" % sorted(counted))
    return wrong


def wrong_on_disk(box, dead=0):
    """What is wrong with a home in which nothing should wait any more."""
    counts = memhook.Spool(str(box.home / "spool")).counts()
    wrong = ["left over in the spool: %s" % counts] if (counts["new"], counts["claimed"], counts["dead"]) != (0, 0, dead) else []
    everything = [os.path.join(folder, name) for folder, _, names in os.walk(box.home) for name in [".", *names]]
    wrong += ["left over: %s" % path for path in everything if path.endswith(".tmp")]
    wrong += ["%s has the mode %o" % (path, os.stat(path).st_mode & 0o777) for path in everything if os.stat(path).st_mode & 0o077]
    noted = {receipt["id"] for receipt in memhook.read_receipts(box.api) if receipt["outcome"] == "stored"}
    wrong += ["no receipt of the memory %s" % memory.front["id"] for memory in box.memories() if memory.front.get("id") not in noted]
    return wrong


def age_leftovers(box):
    """Temp files that killed writers left become an hour older, so that the next drain sweeps them."""
    for folder, _, names in os.walk(box.home):
        for name in names:
            if name.endswith(".tmp"):
                os.utime(os.path.join(folder, name), (time.time() - 2 * memhook.TEMP_SECONDS,) * 2)


# ---- processes


COMMANDS = {"drain": ["drain", "--json"], "import": ["import", "--yes", "--json"]}


def drain_command(box, name="drain"):
    """The drain as hooks start it, or an import, but with a result on stdout."""
    return [box.python, "-I", "-S", "-c", memhook.BOOT, str(box.config / "memhook.py"), *COMMANDS[name]]


class Ended(NamedTuple):
    status: object  # None: it did not end, and was killed with its group
    out: bytes
    err: bytes


def run(box, command, data=b"", seconds=SLOW, **options):
    """Run a command in a process group of its own; the whole group goes if it does not end."""
    process = subprocess.Popen(command, env=options.pop("env", box.env), cwd=box.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, start_new_session=True, **options)
    try:
        out, err = process.communicate(data, timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return Ended(None, *process.communicate())
    return Ended(process.returncode, out, err)


def act(box, name, talk=None, prefix=(), fields=(), **options):
    """A hook as installed, from a client that is gone when it ends, or a command."""
    if name in COMMANDS:
        return run(box, [*prefix, *drain_command(box, name)], **options)
    data = json.dumps(box.payload(name, talk.script, **dict(fields))).encode() + b"\n"
    return run(box, [*CLIENT, *prefix, "/bin/sh", "-c", box.command(name)], data, **options)


def quietly(box, *args, **options):
    ended = act(box, *args, **options)
    assert ended == Ended(0, b"", b""), "%s: %r" % (args[0], ended)


def drained(box, *more, **options):
    """A drain that works; -> its counts."""
    ended = run(box, drain_command(box) + list(more), **options)
    assert ended.status == 0, "the drain ended with %r" % (ended,)
    return json.loads(ended.out)


# ---- strace


def find_strace():
    """(command, "") if processes can be stopped at their system calls here, else ([], why not)."""
    if not shutil.which("strace"):
        return [], "there is no strace"
    for command in (["strace", "-f", "--seccomp-bpf"], ["strace", "-f"]):  # the first is faster, and newer
        injection = ["-o", os.devnull, "-e", "trace=exit_group", "-e", "inject=exit_group:signal=SIGKILL:when=1"]
        tried = subprocess.run([*command, *injection, "/bin/sh", "-c", ":"], capture_output=True, text=True)
        if tried.returncode == -signal.SIGKILL:
            return command, ""
    return [], "strace may not trace, or not inject: %s" % (tried.stderr.strip() or tried.returncode)


STRACE, NO_STRACE = find_strace()


@pytest.fixture
def tell(capsys):
    """Print past pytest's capture: how many points were tried, and what was skipped, stands in every run."""
    def tell(text):
        with capsys.disabled():
            print("\n  %s" % text, end=" ", flush=True)
    return tell


@pytest.fixture
def strace(tell):
    if NO_STRACE:
        tell("skipped: " + NO_STRACE)
        pytest.skip(NO_STRACE)


class Call(NamedTuple):
    """One recorded system call."""

    name: str
    nth: int  # of this name in this process: what strace counts
    what: str  # name and paths of ours, without process ids: the same in each run
    changes: bool  # something of ours, or it is the end

    @property
    def commits(self):
        """Whether it is the last of several steps: killed before it, the earlier ones stand and nobody knows of them."""
        return bool(re.match("rename.* checkpoints|unlink.* spool/claimed", self.what))


def parse_calls(text, home):
    """The calls of a strace log. One process, or one after the other: the hook starts none here."""
    counts, calls = {}, []
    for name, rest in re.findall(r"(?m)^\d+ +(\w+)\((.*)$", text):
        counts[name] = counts.get(name, 0) + 1
        given = rest.split(" = ")[0]
        paths = re.findall(r'["<](%s[^">]*)' % re.escape(str(home)), given)
        reads = name.startswith("open") and not re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", given)
        what = " ".join([name] + [re.sub(r"\.\d+\.tmp", ".tmp", os.path.relpath(path, home)) for path in paths])
        calls.append(Call(name, counts[name], what, name == "exit_group" or bool(paths) and not reads))
    return calls


def traced(box, name, talk, fields=(), inject=""):
    """Run a hook or the drain under strace; -> (how it ended, its calls, the log)."""
    log = box.root / "strace.log"
    log.write_bytes(b"")
    prefix = [*STRACE, "-y", "-s", "16", "-o", str(log), "-e", "trace=" + CALLS, *(["-e", "inject=" + inject] if inject else [])]
    ended = act(box, name, talk, prefix=prefix, fields=fields)
    text = log.read_text("utf-8", "replace")
    return ended, parse_calls(text, box.home), text


# ---- stages: a moment of a machine, to which each point goes back


class Stage:
    """What is on the disk just before the run that gets hurt, and what is run then."""

    def __init__(self, box, act, talks, fields=(), late="", sure=True, dead=0, copy="stage"):
        self.box, self.act, self.talks, self.fields = box, act, talks, fields
        self.late = late  # an answer that the hooks were told of, and whose line comes only after the accident
        self.sure = sure  # a drain alone mends everything: a checkpoint exists already
        self.dead = dead  # items that end in spool/dead
        self.copy = box.root / copy
        shutil.copytree(box.home, self.copy, symlinks=True)
        self.marks = [talk.mark() for talk in talks]

    def back(self):
        for name in os.listdir(self.box.home):
            path = self.box.home / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        shutil.copytree(self.copy, self.box.home, symlinks=True, dirs_exist_ok=True)
        for talk, mark in zip(self.talks, self.marks):
            talk.back(mark)

    def run(self, inject=""):
        return traced(self.box, self.act, self.talks[0], self.fields, inject)

    def calls(self):
        """The calls of an uninjured run that change something."""
        self.back()
        ended, calls, _ = self.run()
        assert ended.status == 0 and ended.err == b"", ended
        return [call for call in calls if call.changes]

    def mend(self, drain_first):
        """Life goes on: the session too. Raises AssertionError for what is wrong then."""
        self.drain_first = drain_first
        talk = self.talks[0]
        said = list(talk.said)
        if drain_first:
            drained(self.box)
            if self.sure:
                talk.said = said + [("answer", self.late)] * bool(self.late)
                self.check("after a drain")
        if self.late:
            talk.script.answer(self.late)
            talk.said = said + [("answer", self.late)]
        talk.say()
        quietly(self.box, "Stop", talk)
        quietly(self.box, "SessionEnd", talk)
        if self.act == "import":
            ended = act(self.box, "import")
            assert ended.status == 0  # the person runs it again
        age_leftovers(self.box)
        drained(self.box)
        self.check("at the end", finished=True)

    def check(self, when, finished=False):
        wrong = [found for talk in self.talks for found in wrong_in(self.box, talk)]
        wrong += wrong_on_disk(self.box, self.dead) if finished else []
        assert not wrong, "%s (%s): %s" % (when, "drained first" if self.drain_first else "resumed first", "\n  ".join(wrong))


def stage_first_stop(box):
    """The first hook of all: no folder is there yet; enough was said for one segment."""
    return Stage(box, "Stop", [Talk(box).say(4_100, past=True).say(4_100, past=True).say(past=True)], sure=False)


def stage_stop(box):
    """A later Stop: the checkpoint holds open turns, one segment gets full."""
    talk = Talk(box).say(past=True)
    quietly(box, "Stop", talk)
    return Stage(box, "Stop", [talk.say(4_100).say(4_100).say()])


def stage_session_end(box):
    """One segment waits, the tail is open."""
    talk = Talk(box).say(8_100, past=True)
    quietly(box, "Stop", talk)
    quietly(box, "Stop", talk.say())
    return Stage(box, "SessionEnd", [talk.say()])


def stage_resumed(box):
    """The second SessionEnd of a session that was resumed: its first tail is a memory."""
    talk = Talk(box).say(past=True)
    quietly(box, "SessionEnd", talk)
    drained(box)
    quietly(box, "Stop", talk.say())
    return Stage(box, "SessionEnd", [talk.say()])


def stage_last_message(box):
    """The hooks know of an answer that is not in the file yet."""
    talk = Talk(box).say(past=True)
    talk.script.clock = time.time()
    talk.prompt("Is the last word in the file?")
    late = "The last word comes late."
    quietly(box, "Stop", talk, fields={"last_assistant_message": late})
    return Stage(box, "SessionEnd", [talk], late=late)


def stage_drain(box):
    """A segment waits, another session died with open turns, and one item is garbage."""
    talk, other = Talk(box).say(past=True), Talk(box, "session-died").say(past=True)
    quietly(box, "Stop", other)
    quietly(box, "SessionEnd", talk)
    (box.home / "spool" / "new" / "0000000000000-garbage.json").write_bytes(b"garbage")
    os.chmod(box.home / "spool" / "new" / "0000000000000-garbage.json", 0o600)
    return Stage(box, "drain", [talk, other.say()], dead=1)


def stage_import(box):
    """Two sessions that nobody captured, one of them with more than a segment."""
    return Stage(box, "import", [Talk(box).say(8_100, past=True).say(past=True), Talk(box, "session-other").say(past=True)], sure=False)


STAGES = {name[len("stage_"):]: value for name, value in list(globals().items()) if name.startswith("stage_")}
on_every_stage = pytest.mark.parametrize("name", STAGES)


def try_points(stage, points, tell, hurt):
    """Hurt the run at each point, mend it, and collect what is wrong; `hurt(point)` -> what went wrong at once, or ""."""
    failures, tried = [], 0
    for number, point in points:
        both = ALL or isinstance(point, Call) and point.commits
        for drain_first in (False, True) if both else (number // 2 % 2 == 1,):
            tried += 1
            wrong = hurt(point)
            try:
                stage.mend(drain_first)
            except AssertionError as error:
                wrong = "%s%s%s" % (wrong, "; " * bool(wrong), error)
            if wrong:
                failures.append("%s: %s" % (point, wrong))
    tell("%d points" % tried)
    assert tried, "no point was tried"
    assert not failures, "%d of %d points:\n\n%s" % (len(failures), tried, "\n\n".join(failures))


# ---- killed


def test_a_process_is_killed_before_the_call_it_is_stopped_at(strace, tmp_path):
    name = "mkdir" if "mkdir(" in subprocess.run([*STRACE, "mkdir", tmp_path / "a"], capture_output=True, text=True).stderr else "mkdirat"
    injection = ["-o", os.devnull, "-e", "inject=%s:signal=SIGKILL:when=1" % name]
    killed = subprocess.run([*STRACE, *injection, "mkdir", tmp_path / "b"], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "a").is_dir() and not (tmp_path / "b").exists()


def kill_at(stage, call):
    """Kill the run at the entry of a call; -> "" if it died there. A busy machine may change the order of calls: then once more."""
    for _ in range(4):
        stage.back()
        ended, calls, text = stage.run("%s:signal=SIGKILL:when=%d" % (call.name, call.nth))
        if "+++ killed by SIGKILL" in text and calls[-1].what == call.what:
            return ""
    return "not killed there: %r" % (ended,)


@on_every_stage
def test_a_run_that_is_killed_at_any_step_loses_nothing_and_repeats_nothing(room, strace, tell, name):
    stage = STAGES[name](room)
    points = list(enumerate(stage.calls()))
    assert len(points) > 10 and points[-1][1].name == "exit_group"
    chosen = [(number, call) for number, call in points if number % KILLS == 0 or call.commits]
    try_points(stage, chosen, tell, lambda call: kill_at(stage, call))


def test_a_drain_killed_after_a_session_end_was_killed_loses_nothing_and_repeats_nothing(room, strace, tell):
    """The tail is in the spool, the checkpoint does not know it: here turns are cut again, and the drain that does it dies as well."""
    first = stage_session_end(room)
    call = [call for call in first.calls() if call.name.startswith("rename") and "checkpoints" in call.what][-1]
    assert kill_at(first, call) == ""
    second = Stage(room, "drain", first.talks, copy="second")
    try_points(second, list(enumerate(second.calls()))[::2 * KILLS - 1], tell, lambda call: kill_at(second, call))


# ---- refused


def says_why(ended, why=b""):
    """Whether a drain ended as an expected failure does: one line that says why, perhaps one that says what to do, and nothing on stdout."""
    lines = ended.err.splitlines()
    return ended.status == 1 and ended.out == b"" and ended.err.startswith(b"memhook: " + why) and (len(lines) == 1 or lines[1:] == [lines[-1]] and b"memhook doctor" in lines[1])


def refused_at(stage, point):
    """Let a call fail; -> what the run did wrong itself. A hook says nothing and exits 0; a drain may exit 1 with one line."""
    call, error, on = point
    for _ in range(4):
        stage.back()
        ended, _, text = stage.run("%s:error=%s:when=%d%s" % (call.name, error, call.nth, on))
        if "(INJECTED)" in text:
            break
    else:
        return "nothing was refused: %r" % (ended,)
    if stage.act not in COMMANDS:
        return "" if ended == Ended(0, b"", b"") else "the hook ended with %r" % (ended,)
    if call.name == "write" and on and ended == Ended(120, b"", b""):
        return ""  # its stdout was refused too, which is what Python says of that
    told = stage.act == "import" and ended.status == 1 and b'"failed": 0' not in ended.out  # a transcript that could not be taken
    return "" if (ended.status == 0 or told) and ended.err == b"" or says_why(ended) else "the %s ended with %r" % (stage.act, ended)


@on_every_stage
@pytest.mark.parametrize("on", ["", "+"], ids=["once", "from then on"])
def test_a_run_that_the_disk_refuses_something_loses_nothing_and_repeats_nothing(room, strace, tell, name, on):
    stage = STAGES[name](room)
    calls = [call for call in stage.calls() if REFUSED.fullmatch(call.name)]
    points = []
    for share, error in enumerate(ERRORS):
        points += [(number, (call, error, on)) for number, call in enumerate(calls)][(6 * share + 3 * bool(on)) % EVERY::EVERY]
    try_points(stage, points, tell, lambda point: refused_at(stage, point))


# ---- a disk that is full or read-only


@pytest.fixture
def mount(tell):
    """mount(*arguments, at=folder) as mount(8) takes them; undone at the end."""
    places = []

    def refuse(reason):
        tell("skipped: " + reason)
        pytest.skip(reason)

    def mount(*arguments, at):
        if os.geteuid():
            refuse("only root can mount")
        if not shutil.which("mount"):
            refuse("there is no mount(8)")
        done = subprocess.run(["mount", *arguments, str(at)], capture_output=True, text=True)
        if done.returncode:
            refuse("a mount was refused: " + done.stderr.strip())
        if not any("remount" in argument for argument in arguments):
            places.append(at)
    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


def on_small_disk(box, mount):
    """Move the home to a file system of its own: 2 MB, 400 files."""
    aside = box.root / "aside"
    box.home.rename(aside)
    box.home.mkdir(0o700)
    mount("-t", "tmpfs", "-o", "size=2m,nr_inodes=400,mode=0700", "tmpfs", at=box.home)
    shutil.copytree(aside, box.home, dirs_exist_ok=True)
    return box


def fill(box, blocks=None, files=None):
    """Leave so many free blocks, or so many more files."""
    ballast = box.home / "ballast"
    ballast.mkdir(0o700)
    free = os.statvfs(box.home)
    for number in range(free.f_ffree - files if files is not None else 0):
        (ballast / str(number)).touch(0o600)
    if blocks is not None:
        with open(ballast / "bytes", "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            if free.f_bfree > blocks:
                os.posix_fallocate(stream.fileno(), 0, (free.f_bfree - blocks) * free.f_frsize)
    after = os.statvfs(box.home)
    assert blocks is None or after.f_bfree == blocks
    assert files is None or after.f_ffree <= files + 1


def on_full_disk(stage, **left):
    """Run the stage's run on a disk with so little left; -> what it did wrong itself."""
    stage.back()
    fill(stage.box, **left)
    ended = act(stage.box, stage.act, stage.talks[0], fields=stage.fields)
    shutil.rmtree(stage.box.home / "ballast")
    if stage.act == "drain":
        return "" if ended.status == 0 or says_why(ended, b"No space left on device") else "the drain ended with %r" % (ended,)
    return "" if ended == Ended(0, b"", b"") else "the hook ended with %r" % (ended,)


@pytest.mark.parametrize("name", ["first_stop", "stop", "session_end", "drain"])
def test_a_full_disk_costs_nothing_that_was_said(room, mount, tell, name):
    stage = STAGES[name](on_small_disk(room, mount))
    points = [{"blocks": count} for count in range(0, 16 if name == "drain" else 8)] + [{"files": count} for count in range(0, 8)]
    try_points(stage, list(enumerate(points))[::1 if ALL else 4], tell, lambda left: on_full_disk(stage, **left))


def test_a_full_disk_says_so_at_a_terminal(room, mount):
    stage = stage_drain(on_small_disk(room, mount))
    fill(room, blocks=0)
    ended = run(room, drain_command(room))
    assert says_why(ended, b"No space left on device"), ended
    assert len(os.listdir(room.home / "spool" / "new")) >= 2
    shutil.rmtree(room.home / "ballast")
    stage.mend(True)


def test_a_read_only_home_costs_nothing_that_was_said(room, mount):
    """The whole config folder is read-only, and the bytecode is missing too."""
    stage = stage_session_end(room)
    talk, = stage.talks
    shutil.rmtree(room.config / "__pycache__")
    room.env["MEMHOOK_AUTODRAIN"] = "1"
    mount("--bind", str(room.config), at=room.config)
    mount("-o", "remount,bind,ro", at=room.config)
    with pytest.raises(OSError) as refused:
        (room.home / "x").touch()
    assert refused.value.errno == errno.EROFS
    for event in ("SessionStart", "Stop", "PreCompact", "SessionEnd"):
        quietly(room, event, talk)
    ended = run(room, drain_command(room))
    assert says_why(ended, b"Read-only file system"), ended
    assert room.status()["spool"]["new"] == 1
    wait_until(lambda: not drains(room), "the drains of these hooks to end")
    mount("-o", "remount,bind,rw", at=room.config)
    room.env["MEMHOOK_AUTODRAIN"] = "0"
    stage.mend(True)


def with_file_limit(size):
    """A preexec_fn after which no file can get larger: a write that would pass it is cut short, and the next one fails."""
    import resource
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_receipt_that_the_disk_cut_short_spoils_no_other(room):
    stage = stage_session_end(room)
    quietly(room, "SessionEnd", *stage.talks)
    receipts = room.home / "receipts.jsonl"
    other = {"key": "f" * 20, "segment": 0, "id": "x", "outcome": "duplicate", "turns": []}
    line = json.dumps(other, separators=(",", ":")).encode() + b"\n"
    receipts.write_bytes(line * (60_000 // len(line)))
    receipts.chmod(0o600)
    limit = receipts.stat().st_size + 100
    run(room, drain_command(room), preexec_fn=with_file_limit(limit))
    assert receipts.stat().st_size == limit, "nothing was cut short"
    stage.mend(True)


def test_hashes_of_lines_that_the_disk_cut_short_spoil_no_others(room):
    stage = stage_stop(room)
    talk, = stage.talks
    key = memhook.transcript_key(str(talk.script.path))
    seen = room.home / "seen" / key
    seen.write_bytes(os.urandom(8 * 3_000))
    act(room, "Stop", talk, preexec_fn=with_file_limit(seen.stat().st_size + 3))
    assert seen.stat().st_size % 8 == 3, "nothing was cut short"
    stage.mend(False)
    known = memhook.Seen(room.api).of(key)
    uuids = [json.loads(line)["uuid"] for line in talk.script.path.read_bytes().splitlines()]
    assert [uuid for uuid in uuids if memhook.line_hash(uuid) not in known] == []


def entries_not_synced(text, home):
    """Folders whose new entries were not synced when a spool item was removed, or at the end of the run, in a strace log.

    Temp files, checkpoints, `seen`, the quota, the index and the log may be lost: they are made again. So may a claim: the item is in new/ then.
    """
    may_be_lost = r"\.tmp$|/checkpoints|/seen|/quota\.json|/index\.db|\.log$|/spool/tmp$|/spool/claimed|\.lock$"
    known, unsynced, late = set(), set(), set()
    for name, rest in re.findall(r"(?m)^\d+ +(\w+)\((.*)$", text):
        given, _, result = rest.rpartition(" = ")
        paths = re.findall(r'["<](%s[^">]*)' % re.escape(str(home)), given)
        if result.startswith("-1") or not paths or re.search(may_be_lost, paths[-1]):
            continue
        if name.startswith(("mkdir", "rename")) or name.startswith("open") and "O_CREAT" in given and paths[-1] not in known:
            unsynced.add(os.path.dirname(paths[-1]))
            known.add(paths[-1])
        elif name == "fsync":
            unsynced.discard(paths[-1])
        elif name.startswith("unlink"):
            late |= unsynced
    return sorted(os.path.relpath(folder, home) for folder in late | unsynced)


@pytest.mark.parametrize("name", ["first_stop", "stop", "session_end", "drain", "import"])
def test_every_folder_that_got_a_new_entry_is_synced_before_the_entry_counts(room, strace, name):
    """What power loss takes cannot be tried here; that each step asked the disk to keep it can."""
    stage = STAGES[name](room)
    ended, _, text = stage.run()
    assert ended.status == 0
    assert entries_not_synced(text, room.home) == []


@pytest.mark.parametrize("left", [b"", b"\0" * 512, b"{", None], ids=["empty", "NULs", "half", "gone"])
@pytest.mark.parametrize("drain_first", [False, True], ids=["resumed", "drained"])
def test_a_checkpoint_that_power_loss_took_is_made_again_from_what_was_kept(room, left, drain_first):
    """A checkpoint is not synced: it may come back empty, or not at all."""
    stage = stage_session_end(room)
    stage.sure = False
    quietly(room, "SessionEnd", *stage.talks)
    path, = (room.home / "checkpoints").iterdir()
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:200] if left == b"{" else left)
    stage.mend(drain_first)


# ---- killed from outside


def processes():
    """pid -> (parent, process group, session, words of the command line)."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid, "rb") as stream:
                parent, group, session = stream.read().rpartition(b")")[2].split()[1:4]
            with open("/proc/%s/cmdline" % pid, "rb") as stream:
                words = stream.read().split(b"\0")[:-1]
        except (OSError, ValueError):
            continue  # it ended while we looked
        found[int(pid)] = int(parent), int(group), int(session), [os.fsdecode(word) for word in words]
    return found


def drains(box):
    """The processes that are drains of this machine now."""
    return [pid for pid, (_, _, _, words) in processes().items() if words[-2:] == [str(box.config / "memhook.py"), "drain"]]


def descendants(pid):
    found, listed = {pid}, processes()
    while True:
        more = {child for child, (parent, _, _, _) in listed.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are looked up in /proc, and there is none")


def start_session_end(box, talk):
    """Start the hook in a process group of its own, with autodrain on; stdin stays open."""
    command = [*CLIENT, "/bin/sh", "-c", box.command("SessionEnd")]
    process = subprocess.Popen(command, env={**box.env, "MEMHOOK_AUTODRAIN": "1"}, cwd=box.project, stdin=subprocess.PIPE,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    process.stdin.write(json.dumps(box.payload("SessionEnd", talk.script)).encode() + b"\n")
    process.stdin.flush()
    return process


def kill_group(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # all of it has ended
    process.wait()
    process.stdin.close()


@needs_proc
@pytest.mark.parametrize("milliseconds", [0, 20, 50, 200, 800])
def test_a_session_end_whose_process_group_is_killed_loses_nothing(room, milliseconds):
    stage = stage_session_end(room)
    for drain_first in (True, False):
        stage.back()
        process = start_session_end(room, *stage.talks)
        time.sleep(milliseconds / 1000)
        kill_group(process)
        wait_until(lambda: not drains(room), "the drain to end")
        stage.mend(drain_first)


@needs_proc
@pytest.mark.parametrize("when", ["during", "after"])
def test_a_drain_outlives_its_hooks_process_group_and_the_tree_under_it(room, when):
    """A client that has waited long enough kills the group, and every descendant that it finds."""
    talk = Talk(room).say(past=True)
    quietly(room, "Stop", talk)
    for _ in range(12):
        talk.say(8_100)
    process = start_session_end(room, talk)
    seen = set()
    wait_until(lambda: seen.update(drains(room)) or seen or process.poll() is not None, "the drain to start")
    if when == "after":
        process.wait()
    tree = descendants(process.pid)
    listed = processes()
    for pid in sorted(tree):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    kill_group(process)
    assert not seen & tree, "the drain is in the tree of its hook"
    for pid in seen & set(listed):
        _, group, session, words = listed[pid]
        assert not words or group != process.pid and session != process.pid
    wait_until(lambda: room.memories() and not drains(room), "the drain to end")
    assert room.spooled() == room.spooled("claimed") == []
    before = len(room.memories())
    assert before >= 12
    drained(room)  # a busy machine may have left the tail to a drain that runs when the client is gone
    assert wrong_in(room, talk) + wrong_on_disk(room) == []
    assert len(room.memories()) - before <= 1


@needs_proc
def test_a_drain_that_is_killed_again_and_again_gets_everything_done(room):
    talk = Talk(room)
    for _ in range(12):
        talk.say(8_100, past=True)
    quietly(room, "SessionEnd", talk)
    killed = 0
    for goal in range(1, 12, 2):
        process = subprocess.Popen(drain_command(room), env=room.env, cwd=room.project, stdout=subprocess.DEVNULL)
        while len(list(memhook.memory_files(room.api))) < goal and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    assert killed > 2
    drained(room)
    age_leftovers(room)
    drained(room)
    assert wrong_in(room, talk) + wrong_on_disk(room) == []


# ---- poison


def put(box, data, name):
    """An item in spool/new, as a program that went wrong would leave it."""
    path = box.home / "spool" / "new" / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path


@pytest.fixture
def waiting(room):
    """Two sessions wait in the spool; -> (room, talks, one of the segments)."""
    starts = {"session-aaaa": time.time() - LONG_AGO, "session-zzzz": time.time() - LONG_AGO / 2}
    talks = [Talk(room, session, start).say(past=True) for session, start in starts.items()]
    for talk in talks:
        quietly(room, "SessionEnd", talk)
    return room, talks, room.spooled()[0]


def name_between(number):
    """Names before, between and after those of the good items."""
    return "%013d-poison-%05d-%08x.json" % ((0, (time.time() - 0.75 * LONG_AGO) * 1000, 9e12)[number % 3], number, number)


def assert_buried(box, talks, names, drained):
    """The good are stored, the bad lie in dead/, and a receipt says of each why."""
    wrong = [found for talk in talks for found in wrong_in(box, talk)]
    dead = sorted(os.listdir(box.home / "spool" / "dead")) if (box.home / "spool" / "dead").exists() else []
    wrong += ["not buried: %s" % name for name in names if name not in dead]
    reasons = {receipt.get("item", "") + ".json": receipt.get("reason") for receipt in box.receipts() if receipt["outcome"] == "dead"}
    wrong += ["no reason for %s" % name for name in names if name in dead and not reasons.get(name)]
    wrong += ["a memory was made of %s" % name for name in names if len(box.memories()) != len(talks)][:1]
    assert not wrong, "%s\n%s" % (drained, "\n".join(wrong))


NO_SEGMENT = {
    "nothing": b"", "a newline": b"\n", "garbage": b"\x00\xff\xfegarbage", "binary": bytes(range(256)) * 40, "HTML": b"<html></html>",
    "a list": b"[]", "null": b"null", "a number": b"1", "a string": b'"x"', "an empty object": b"{}", "two objects": b"{}{}",
    "deep": b"[" * 100_000, "UTF-16": '{"format": 1}'.encode("utf-16"),
}


def test_items_that_are_no_segments_are_buried_with_a_reason_and_block_nothing(waiting):
    room, talks, segment = waiting
    bad = {**NO_SEGMENT, "truncated": json.dumps(segment).encode()[:-40], "half": json.dumps(segment).encode()[:200]}
    names = {what: name_between(number) for number, what in enumerate(bad)}
    for what, data in bad.items():
        put(room, data, names[what])
    counts = drained(room)
    assert_buried(room, talks, names.values(), counts)
    assert (counts["stored"], counts["dead"], counts["left"], counts["retried"]) == (2, len(bad), 0, 0)


def changed(made_from, /, turn=None, **fields):
    """A segment of another identity, with fields replaced (... = without it), or one place of its first turn."""
    made = json.loads(json.dumps(made_from))
    made["id"] = "00000000" + made["id"][8:]
    made["key"], made["transcript"] = "e" * 20, "/elsewhere.jsonl"
    made.update(fields)
    if turn:
        made["turns"][0][turn[0]] = turn[1]
    return json.dumps({name: value for name, value in made.items() if value is not ...}).encode()


WRONG_TYPES = {
    "format a string": {"format": "1"}, "format null": {"format": None}, "no format": {"format": ...},
    "id a number": {"id": 5}, "no id": {"id": ...}, "title a list": {"title": []}, "project null": {"project": None},
    "session a number": {"session": 7}, "key an object": {"key": {}}, "no transcript": {"transcript": ...},
    "segment a string": {"segment": "1"}, "segment null": {"segment": None}, "no generation": {"generation": ...},
    "no parser": {"parser": ...}, "no time": {"at": ...}, "time a string": {"at": "now"}, "time a list": {"at": [1]},
    "turns a string": {"turns": "x"}, "turns null": {"turns": None}, "no turns": {"turns": []}, "turns of numbers": {"turns": [1, 2]},
    "a turn too short": {"turns": [["k/0"]]}, "a turn an object": {"turns": [{"key": "k/0"}]},
    "turn key a number": {"turn": (0, 7)}, "turn kind null": {"turn": (1, None)}, "turn text a number": {"turn": (2, 5)},
    "turn start a string": {"turn": (3, "0")}, "turn end null": {"turn": (4, None)}, "turn time a string": {"turn": (5, "noon")},
    "turn folder a list": {"turn": (6, ["/"])}, "turn branch a number": {"turn": (7, 5)},
}


def test_segments_of_wrong_types_are_buried_with_a_reason_and_block_nothing(waiting):
    room, talks, segment = waiting
    names = {what: name_between(number) for number, what in enumerate(WRONG_TYPES)}
    for what, fields in WRONG_TYPES.items():
        put(room, changed(segment, **fields), names[what])
    counts = drained(room)
    assert [found for talk in talks for found in wrong_in(room, talk)] == []
    left = sorted(what for what, name in names.items() if not (room.home / "spool" / "dead" / name).exists())
    assert not left, "not buried: %s; %s; %d memories of them" % (left, counts, len(room.memories()) - len(talks))
    assert_buried(room, talks, names.values(), counts)


def test_an_item_that_is_a_folder_is_buried_with_a_reason_and_blocks_nothing(waiting):
    room, talks, _ = waiting
    (room.home / "spool" / "new" / name_between(0)).mkdir(0o700)
    ended = run(room, drain_command(room))
    assert ended.status == 0, "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    assert_buried(room, talks, [name_between(0)], ended)


def test_an_item_that_may_not_be_read_is_buried_with_a_reason_and_blocks_nothing(waiting):
    room, talks, segment = waiting
    put(room, json.dumps(segment).encode(), name_between(0)).chmod(0)
    ended = run(room, [*heeding_modes(), *drain_command(room)])
    assert ended.status == 0, "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    assert_buried(room, talks, [name_between(0)], ended)


def test_an_item_that_is_a_link_to_nothing_is_buried_with_a_reason_and_blocks_nothing(waiting):
    room, talks, _ = waiting
    (room.home / "spool" / "new" / name_between(0)).symlink_to(room.home / "nowhere")
    ended = run(room, drain_command(room))
    assert ended.status == 0, "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    assert_buried(room, talks, [name_between(0)], ended)


def test_an_item_that_cannot_be_moved_blocks_nothing(waiting):
    """A folder that may not be written has a parent that may not be changed."""
    room, talks, _ = waiting
    (room.home / "spool" / "new" / name_between(0)).mkdir(0o500)
    ended = run(room, [*heeding_modes(), *drain_command(room)])
    assert ended.status == 0, "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    assert [found for talk in talks for found in wrong_in(room, talk)] == []
    assert json.loads(ended.out)["left"] == 1


STRANGE_NAMES = ("x.json", ".json", "1-²-²-²,a²,t².json", "a-b-²-d.json", "x,a99,t.json", "-,a,t.json", "日本-🎉-00001-x.json",
                 "1-k-99999999999999999999-x.json")


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_an_item_with_a_strange_name_is_buried_with_a_reason_and_blocks_nothing(waiting, name):
    room, talks, _ = waiting
    put(room, b"garbage", name)
    ended = run(room, drain_command(room))
    assert ended.status == 0, "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    assert [found for talk in talks for found in wrong_in(room, talk)] == []
    assert room.status()["spool"]["dead"] == 1
    assert [bool(receipt["reason"]) for receipt in room.receipts() if receipt["outcome"] == "dead"] == [True]


@pytest.mark.parametrize("place", ["memories", "project"])
def test_a_store_that_may_not_be_written_keeps_the_segments_and_the_drain_ends(waiting, place):
    """Something else lies where the folder should be: no memory can be written, again and again."""
    room, talks, segment = waiting
    folder = room.home / "memories"
    if place == "project":
        front = {"project": segment["project"], "from": "2026-01-01", "at": "2026-01-01", "id": segment["id"]}
        folder = pathlib.Path(memhook.memory_path(room.api, front, "x")).parent.parent
        folder.parent.mkdir(0o700)
    folder.write_bytes(b"in the way")
    ended = run(room, drain_command(room))
    assert ended.status in (0, 1), "the drain %s" % ("never ends" if ended.status is None else repr(ended))
    counts = room.status()["spool"]
    assert counts["new"] == 2 and counts["claimed"] == counts["dead"] == 0
    folder.unlink()
    for name in os.listdir(room.home / "spool" / "new"):
        make_due(room, name)
    drained(room)
    assert [found for talk in talks for found in wrong_in(room, talk)] + wrong_on_disk(room) == []


def test_retry_dead_brings_back_what_was_buried(waiting):
    room, talks, segment = waiting
    name = os.listdir(room.home / "spool" / "new")[0]
    path = room.home / "spool" / "new" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    assert (drained(room)["dead"], drained(room)["dead"], room.status()["spool"]["dead"]) == (1, 0, 1)
    counts = drained(room, "--retry-dead")
    assert (counts["dead"], counts["left"], room.status()["spool"]["dead"]) == (1, 0, 1), "as broken as before: buried again"
    (room.home / "spool" / "dead" / name).write_bytes(whole)
    counts = drained(room, "--retry-dead")
    assert (counts["stored"], counts["dead"], counts["left"]) == (1, 0, 0)
    assert [found for talk in talks for found in wrong_in(room, talk)] + wrong_on_disk(room) == []


# ---- back-off


def make_due(box, name):
    """Let the time pass that an item waits for; -> its name now."""
    due = re.sub(r",t\d+\.json$", ",t%d.json" % (time.time() - 1), name)
    os.rename(box.home / "spool" / "new" / name, box.home / "spool" / "new" / due)
    return due


def test_an_item_of_a_newer_memhook_backs_off_delays_nobody_and_is_buried_at_last(waiting):
    room, talks, segment = waiting
    stem = name_between(0)[:-len(".json")]
    put(room, changed(segment, format=memhook.SEGMENT_FORMAT + 1), stem + ".json")
    for attempt in range(1, memhook.ATTEMPTS):
        before = time.time()
        counts = drained(room)
        assert (counts["retried"], counts["left"], counts["stored"]) == (1, 1, 2 if attempt == 1 else 0)
        name, = os.listdir(room.home / "spool" / "new")
        given = re.fullmatch(re.escape(stem) + r",a(\d+),t(\d+)\.json", name)
        assert given and int(given.group(1)) == attempt
        wait = memhook.BACKOFF_SECONDS * 2 ** (attempt - 1)
        assert before + wait - 1 <= int(given.group(2)) <= time.time() + wait
        talk = Talk(room, "session-%04d" % attempt).say(past=True)
        talks.append(talk)
        quietly(room, "SessionEnd", talk)
        counts = drained(room)
        assert (counts["retried"], counts["left"], counts["stored"]) == (0, 1, 1), "it waits, and the others do not"
        assert os.listdir(room.home / "spool" / "new") == [name]
        make_due(room, name)
    counts = drained(room)
    assert (counts["dead"], counts["left"]) == (1, 0)
    assert_buried(room, talks, [stem + ".json"], counts)
    path = room.home / "spool" / "dead" / (stem + ".json")
    path.write_bytes(changed(segment, turn=(0, "later/0")))
    assert drained(room, "--retry-dead")["stored"] == 1, "after an update"


def test_an_item_that_backs_off_keeps_its_time_when_the_drain_is_killed(waiting):
    """Recovered from claimed/ by the next drain, with its attempts and its time."""
    room, talks, segment = waiting
    stem = name_between(2)[:-len(".json")]
    claimed = room.home / "spool" / "claimed"
    claimed.mkdir(0o700)
    put(room, changed(segment, format=9), stem + ".json").rename(claimed / ("%s,a3,t%d.json" % (stem, time.time() + 1_000)))
    counts = drained(room)
    assert (counts["stored"], counts["retried"], counts["left"]) == (2, 0, 1)
    name, = os.listdir(room.home / "spool" / "new")
    assert name.startswith(stem + ",a3,t")
