"""A box for each test: its own HOME, Claude folder, memhook home and project; real processes run in it."""
import contextlib
import json
import os
import pathlib
import re
import shlex
import signal
import shutil
import stat
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell starts what runs beside it so, and ^C is among what is tried here
    signal.signal(signal.SIGINT, signal.default_int_handler)
import memhook  # noqa: E402
from hubs import RunningHub  # noqa: E402
from standins import Server  # noqa: E402

PROGRAM = ROOT / "memhook.py"
REAL_HOME = os.path.realpath(os.path.expanduser("~"))
DATA = pathlib.Path(__file__).resolve().parent / "data"


class Script:
    """A transcript under construction: lines as Claude Code writes them, one second apart."""

    def __init__(self, path, cwd, session, start=None):
        self.path, self.cwd, self.session = pathlib.Path(path), str(cwd), session
        self.clock = time.time() if start is None else start
        self.count = 0
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def line(self, kind, content=None, **fields):
        """The next line as a dict; `content` becomes message.content."""
        self.count += 1
        self.clock += 1
        record = {"type": kind, "uuid": fields.pop("uuid", "%s-%04d" % (self.session[:12], self.count)), "parentUuid": None, "isSidechain": False,
                  "sessionId": self.session, "cwd": self.cwd, "gitBranch": "main", "version": "2.1.332", "timestamp": memhook.iso(self.clock)}
        if content is not None:
            record["message"] = {"role": kind, "content": content}
        record.update(fields)
        return record

    def add(self, *records):
        with open(self.path, "ab") as stream:
            for record in records:
                stream.write((record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n")
        return records[-1] if records else None

    def prompt(self, text, **fields):
        return self.add(self.line("user", text, **fields))

    def answer(self, text, **fields):
        return self.add(self.line("assistant", [{"type": "text", "text": text}], **fields))

    def tool(self, name, **given):
        return self.add(self.line("assistant", [{"type": "tool_use", "id": "toolu_%d" % self.count, "name": name, "input": given}]))

    def result(self, text, error=False, **fields):
        return self.add(self.line("user", [{"type": "tool_result", "tool_use_id": "toolu_%d" % (self.count - 1), "content": text, "is_error": error}], **fields))


class Box:
    """A person's machine."""

    def __init__(self, root, python=sys.executable):
        self.root = pathlib.Path(root)
        self.python = python
        self.user = self.root / "user"
        self.config = self.user / ".claude"
        self.project = self.root / "project"
        for folder in (self.config, self.project):
            folder.mkdir(parents=True, exist_ok=True)
        self.home = self.config / "memhook-data"
        keep = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        self.env = {**keep, "HOME": str(self.user), "MEMHOOK_AUTODRAIN": "0"}

    def run(self, *args, check=True, stdin=subprocess.DEVNULL, program=PROGRAM, **options):
        """Run `memhook ARGS` as its launcher does; -> CompletedProcess with text output. `script`: as `python3 memhook.py`, compiled at each start; `prefix`: a command before it."""
        options.setdefault("start_new_session", True)  # it must not find the terminal of whoever runs the tests
        start = [str(program)] if options.pop("script", False) else ["-I", "-S", "-c", memhook.BOOT, str(program)]
        done = subprocess.run([*options.pop("prefix", ()), self.python, *start, *map(str, args)], env=self.env, cwd=options.pop("cwd", self.project), stdin=stdin,
                              capture_output=True, text=True, encoding="utf-8", timeout=options.pop("timeout", 120), **options)
        if check and done.returncode:
            raise AssertionError("memhook %s: exit %d\n%s%s" % (" ".join(map(str, args)), done.returncode, done.stdout, done.stderr))
        return done

    def install(self):
        return self.run("install", "--consent", "I CONSENT", "--no-mcp")

    def consent(self):
        """A home with a consent and no hooks, which is all that a drain needs; -> the box."""
        self.api.create()
        memhook.grant_consent(self.api, "flag")
        return self

    def command(self, event):
        """Our hook's command line as it stands in settings.json."""
        settings = json.loads((self.config / "settings.json").read_text("utf-8-sig"))
        return next(hook["command"] for group in settings["hooks"][event] for hook in group["hooks"] if memhook.parse_hook(hook["command"]))

    def payload(self, event, transcript, **fields):
        path = transcript.path if isinstance(transcript, Script) else transcript
        session = transcript.session if isinstance(transcript, Script) else pathlib.Path(str(path)).stem
        return {"session_id": session, "transcript_path": str(path), "cwd": str(self.project), "hook_event_name": event, **fields}

    def hook(self, event, transcript, raw=None, prefix=(), **fields):
        """Run the hook as installed, the payload on its stdin; -> CompletedProcess with bytes."""
        data = json.dumps(self.payload(event, transcript, **fields)).encode() + b"\n" if raw is None else raw
        command = [*prefix, "/bin/sh", "-c", self.command(event)]
        return subprocess.run(command, input=data, env=self.env, cwd=self.project, capture_output=True, timeout=60)

    def script(self, session="session-0001", start=None):
        return Script(self.config / "projects" / "p" / (session + ".jsonl"), self.project, session, start)

    def drain(self, *args, **options):
        return json.loads(self.run("drain", "--json", *args, **options).stdout)

    def status(self):
        return json.loads(self.run("status", "--json").stdout)

    @property
    def api(self):
        """memhook's Home of this box, for calls in this process."""
        return memhook.Home(dict(self.env))

    def memories(self):
        """Every memory, parsed, by session and segment."""
        found = [memhook.parse_memory(pathlib.Path(path).read_bytes()) for path in memhook.memory_files(self.api)]
        return sorted(found, key=lambda memory: (memory.front.get("session", ""), memory.front.get("segment", 0)))

    def said(self):
        """(kind, text) of every prompt and answer in all memories, parts of one text joined."""
        whole = {}
        for memory in self.memories():
            for turn in memory.turns:
                if turn.kind in ("prompt", "answer"):
                    whole.setdefault((turn.line, turn.kind), []).append(turn.text)
        return [(kind, "".join(parts)) for (_, kind), parts in whole.items()]

    def receipts(self):
        path = self.home / "receipts.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def spooled(self, state="new"):
        folder = self.home / "spool" / state
        return [json.loads((folder / name).read_bytes()) for name in sorted(os.listdir(folder))] if folder.is_dir() else []

    def checkpoint(self, transcript):
        return json.loads(pathlib.Path(memhook.checkpoint_path(self.api, memhook.transcript_key(str(transcript.path)))).read_bytes())


def wait_until(condition, what, seconds=30, pause=0.002):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited %d s for %s" % (seconds, what)
        time.sleep(pause)


def heeding_modes():
    """A command prefix under which file modes count even for root. Skips where there is none."""
    if os.geteuid():
        return ()
    if not shutil.which("setpriv"):
        pytest.skip("root ignores file modes, and there is no setpriv")
    return ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")


@contextlib.contextmanager
def memory_folder():
    """A folder in memory where there is such a place: that fsync is called counts here, not what it costs."""
    root = tempfile.mkdtemp(prefix="memhook-test-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        yield pathlib.Path(root)
    finally:
        shutil.rmtree(root)


def tree(root):
    """Every path below a folder: what it is, its mode, its content."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in folders + names:
            path = pathlib.Path(folder, name)
            what = path.lstat()
            found[str(path)] = (what.st_mode, what.st_mtime_ns, os.readlink(path) if path.is_symlink() else path.read_bytes() if stat.S_ISREG(what.st_mode) else None)
    return found


@pytest.fixture
def box(tmp_path):
    """A machine on which memhook is installed."""
    box = Box(tmp_path)
    box.install()
    return box


@pytest.fixture
def bare(tmp_path):
    """A machine without memhook."""
    return Box(tmp_path)


@pytest.fixture
def shelf(tmp_path):
    """A machine with an empty store and no hooks: what is put into the store does not need them."""
    box = Box(tmp_path)
    box.api.create()
    return box


@pytest.fixture
def serve():
    """Start servers, which answer as standins.Server does, and end with the test."""
    with contextlib.ExitStack() as servers:
        yield lambda does: servers.enter_context(contextlib.closing(Server(does)))


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """One hub for the tests that use a tenant of their own."""
    with RunningHub(tmp_path_factory.mktemp("hub"), "--quota-max", "0") as hub:
        yield hub


@pytest.fixture
def tenant(request):
    return re.sub(r"\W", "", request.node.name)[-60:]


def _signature(path):
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


@pytest.fixture(autouse=True)
def real_home_is_untouched(monkeypatch, tmp_path):
    """A test that writes to the real Claude folder fails; one that asks for ~ in this process gets a temporary one."""
    watched = [os.path.join(REAL_HOME, ".claude", name) for name in ("settings.json", "memhook.py", "memhook-data")] + [os.path.join(REAL_HOME, ".claude.json")]
    before = [_signature(path) for path in watched]
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    for name in [name for name in os.environ if name.startswith(("MEMHOOK_", "CLAUDE_"))]:
        monkeypatch.delenv(name)
    yield
    assert [_signature(path) for path in watched] == before, "a test touched the real home"


def quote(path):
    return shlex.quote(str(path))


def pytest_collection_modifyitems(config, items):
    """MEMHOOK_SHARE=K/N: only each Nth test, from the Kth on. The N shares together are the whole suite."""
    share, shares = map(int, os.environ.get("MEMHOOK_SHARE", "1/1").split("/"))
    mine = items[share - 1::shares]
    if len(mine) < len(items):
        config.hook.pytest_deselected(items=[item for number, item in enumerate(items) if number % shares != share - 1])
        items[:] = mine
