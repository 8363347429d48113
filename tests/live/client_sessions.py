#!/usr/bin/env python3
"""Drive the real Claude Code client through sessions of every kind, and check what memhook kept of them.

    client_sessions.py                          every scenario, each installed client version
    client_sessions.py --only interrupt --keep  one scenario; its homes stay, to look at
    client_sessions.py --list                   what there is

Needed: the scripts that drive the client on loopback (harness.py, fake_api.py, netns.sh) in the folder MEMHOOK_CLIENT_SCRIPTS
(default: ../shared/client beside the repository), a client installed by their setup.sh, tmux, and the right to make a network
namespace. What is missing is printed, and the exit status is 77.

Nothing here is memhook's code. What was said is known from the scenario; what the client recorded is read by a JSONL reader of
ten lines; what memhook kept is read from its Markdown. Memories must appear by themselves after the client has gone: no memhook
command is run but `install`, and `pause` and `resume` where the scenario is about them. When all is compared, `memhook verify` must agree.

Exit: 0 all kept, 1 something is wrong, 77 nothing could be run.
"""
import argparse
import collections
import concurrent.futures
import glob
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid

sys.dont_write_bytecode = True  # the scripts' folder is not ours to write to
ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = os.path.abspath(os.environ.get("MEMHOOK_CLIENT_SCRIPTS") or ROOT.parent / "shared" / "client")
CLIENTS = os.environ.get("CLIENT_ROOT") or os.path.join(os.environ.get("TMPDIR", "/tmp"), "memhook-client")
VERSIONS = ("2.1.332", "2.1.197")
INSIDE = "MEMHOOK_LIVE_NAMESPACE"  # set once we run with loopback only
NOTHING_RUN = 77
KINDS = ("prompt", "answer", "tool", "error", "result", "command", "shell", "interrupt", "rewind")  # of turns that these scenarios lead to
DRAIN_SECONDS = 20  # a detached drain that needs longer has failed
OTHER = "cat >/dev/null; echo %s >> \"$HOME/other-tool.log\"; echo the other tool is here"
FOREIGN = {"env": {"OTHER_TOOL": "1"}, "x-other-tool": {"keep": [1, 2.5, "é"]},
           "permissions": {"allow": ["Bash", "Read", "Write", "Edit", "Agent", "Task"]}}
GUARDED_HOOKS = {"PreToolUse": [{"matcher": "NoSuchTool", "hooks": [{"type": "command", "command": "true", "timeout": 7}]}]}


# ---- what the client recorded


def read_transcript(path):
    """The JSON objects of a transcript, one a line; a torn last line is left out."""
    records = []
    for line in pathlib.Path(path).read_bytes().split(b"\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            pass
    return [record for record in records if isinstance(record, dict)]


def texts(record):
    """The text blocks of a message."""
    content = (record.get("message") or {}).get("content")
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content or [] if isinstance(block, dict) and block.get("type") == "text"]


def recorded_answers(transcripts):
    """What Claude said according to the client, once for each line: a fork copies lines with their uuids.

    A line that is no API error counts, whatever model it names: the text of an interrupted answer is Claude's.
    """
    found = {}
    for path in transcripts:
        for record in read_transcript(path):
            if record.get("type") == "assistant" and not record.get("isSidechain") and not record.get("isApiErrorMessage"):
                for text in texts(record):
                    if text.strip() and text.strip() not in ("No response requested.", "(no content)"):
                        found[record["uuid"], text.strip()] = None
    return [text for _, text in found]


def hook_trouble(transcripts, quiet):
    """What the client noted about our hooks that it should not have: errors, output, a turn that was held up."""
    wrong = []
    for path in transcripts:
        for record in read_transcript(path):
            attachment = record.get("attachment") or {}
            if record.get("subtype") == "stop_hook_summary":
                if record.get("hookErrors") != [] or record.get("preventedContinuation") or (quiet and record.get("hasOutput")):
                    wrong.append("stop_hook_summary: %s" % {name: record.get(name) for name in ("hookErrors", "preventedContinuation", "hasOutput")})
            elif str(attachment.get("type", "")).startswith("hook_") and "memhook.py" in json.dumps(attachment):
                event = attachment.get("hookEvent")
                said = attachment.get("stdout") or attachment.get("stderr") or attachment.get("content")
                if attachment["type"] not in ("hook_success", "hook_additional_context") or (event in ("Stop", "SessionEnd", "PreCompact") and said):
                    wrong.append("%s of %s: %s" % (attachment["type"], event, str(attachment)[:300]))
    return wrong


def stop_milliseconds(transcripts):
    """How long each of our Stop hooks took, as the client saw it."""
    return [info["durationMs"] for path in transcripts for record in read_transcript(path) if record.get("subtype") == "stop_hook_summary"
            for info in record.get("hookInfos", []) if "memhook.py" in info.get("command", "") and "durationMs" in info]


# ---- what memhook kept


class Kept:
    """One turn of a memory file."""

    def __init__(self, path, marker):
        self.path = path
        self.key, self.kind, _, start, end = marker.groups()
        self.start, self.end = int(start), int(end)
        self.line, _, self.number = self.key.rpartition("/")
        self.lines = []

    @property
    def text(self):
        return "\n".join(self.lines)


def read_memory(path):
    """(front matter, turns) of a memory file."""
    lines = pathlib.Path(path).read_bytes().decode("utf-8").split("\n")
    end = lines.index("---", 1)
    front = {name: json.loads(value) for name, _, value in (line.partition(":") for line in lines[1:end])}
    turns = []
    for line in lines[lines.index("## Transcript") + 1:-1]:
        marker = re.match(r"<!-- turn (\S+) (\S+) (\S+) (\d+)-(\d+) -->$", line)
        if marker:
            turns.append(Kept(path, marker))
        else:
            turns[-1].lines.append(line[1:] if re.match(r"\\+<!-- turn ", line) else line)
    return front, turns


def said_in(turns, kind):
    """The texts of a kind, the parts of a long one joined; how often each stands there."""
    parts = {}
    for turn in turns:
        if turn.kind == kind:
            parts.setdefault(turn.line, []).append((int(turn.number), turn.text))
    return collections.Counter("".join(text for _, text in sorted(found)).strip() for found in parts.values())


def misplaced(front, turns):
    """Turns whose bytes in the transcript do not hold the line they name."""
    try:
        data = pathlib.Path(front["transcript"]).read_bytes()
    except OSError as error:
        return ["%s names a transcript that cannot be read: %s" % (turns[0].path, error)]
    wrong = []
    for turn in turns:
        if turn.line[:1] not in ("m", "x"):  # those came from no line, or from one without a uuid
            whole = [other for other in turns if other.line == turn.line]
            start, end = min(other.start for other in whole), max(other.end for other in whole)
            line = data[data.rfind(b"\n", 0, start + 1) + 1 if start else 0:end + data[end:].find(b"\n") + 1]
            if turn.line.encode() not in (data[start:end] if start < end else line) and turn.line.encode() not in line:
                wrong.append("turn %s is not in bytes %d-%d of its transcript" % (turn.key, start, end))
    return wrong


# ---- the scenario's script


def scripted(step):
    """The texts that a step of a scripted reply says."""
    kind, _, rest = step.partition(" ")
    if kind == "say":
        return [rest]
    if kind == "text":
        count, _, word = rest.partition(" ")
        phrase = word + " ipsum dolor sit amet. "
        return [(phrase * (int(count) // len(phrase) + 1))[:int(count)]]
    if kind in ("slow", "delay", "think", "usage"):
        return scripted(rest.partition(" ")[2])
    if kind == "multi":
        return [text for part in rest.split("&&") for text in scripted(part.strip())]
    return []


class Failed(Exception):
    """The scenario itself could not be played."""


def wait_for(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    raise Failed("waited %d s for %s" % (seconds, what))


class Box:
    """A person's machine with memhook on it, a project, a client, and a model that says what the script tells it."""

    def __init__(self, harness, scenario, version, program, keep):
        self.name = "live-%d-%s-%s" % (os.getpid(), scenario.name, version.replace(".", "_"))
        hooks = {**GUARDED_HOOKS, **{event: [{"hooks": [{"type": "command", "command": OTHER % event}]}] for event in scenario.other}}
        self.env = harness.Env(self.name + scenario.suffix, version, hooks=hooks, extra_settings=dict(FOREIGN), watch=False, minutes=5,
                               env={"CLAUDE_CODE_TMPDIR": os.path.join(CLIENTS, "home", self.name + scenario.suffix)})
        self.env.name = self.name  # it names tmux's socket too
        self.version, self.keep, self.quiet = version, keep, not scenario.other
        self.home, self.project = self.env.home, self.env.proj
        self.data = os.path.join(self.home, ".claude", "memhook-data")
        self.settings = os.path.join(self.home, ".claude", "settings.json")
        self.foreign = json.loads(pathlib.Path(self.settings).read_text("utf-8"))
        self.prompts, self.answers = [], []  # what must be kept, each once
        self.never = []  # what must be nowhere
        self.others = []  # (kind, text) of which one turn must be
        self.rewinds = 0
        self.terminals, self.streams = [], []
        self.program = program
        if scenario.installed:
            self.install()

    def install(self):
        self.memhook(self.program, "install", "--consent", "I CONSENT", "--no-mcp")

    def memhook(self, program, *args):
        """Run memhook as the person would."""
        done = subprocess.run([sys.executable, str(program), *args], cwd=self.project, env=self.env.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise Failed("memhook %s: exit %d: %s" % (args[0], done.returncode, done.stderr[-500:]))

    @property
    def installed(self):
        """The program where `install` put it."""
        return os.path.join(self.home, ".claude", "memhook.py")

    # the script

    def turn(self, words, *steps, kept=True, sure=True):
        """A prompt with its scripted reply. Notes what memhook must keep of it (or must not); not `sure`: the reply may be cut short."""
        prompt = words + "".join(" @@ " + step for step in steps)
        answers = [text.strip() for step in steps for text in scripted(step)]
        if not kept:
            self.never += [words] + answers
        else:
            self.prompts.append(prompt.strip())
            self.answers += answers if sure else []
        return prompt

    def expect(self, kind, text):
        """A turn of this kind must hold this text."""
        self.others.append((kind, text))

    # ways to talk to the client

    def p(self, prompt, *args, resume=None, status=0, env=None, cwd=None):
        """One `claude -p`, in the project unless told otherwise; -> its session id."""
        ran = self.env.p(prompt, *args, *(["--resume", resume] if resume else []), timeout=60, env=env, cwd=cwd)
        if status is not None and ran.returncode != status:
            raise Failed("claude -p: exit %d: %s %s" % (ran.returncode, ran.stdout[-300:], ran.stderr[-300:]))
        return (ran.json or {}).get("session_id")

    def stream(self):
        stream = Stream(self)
        self.streams.append(stream)
        return stream

    def terminal(self, *args):
        terminal = Terminal(self, *args)
        self.terminals.append(terminal)
        return terminal

    # what is there

    def transcripts(self):
        return glob.glob(glob.escape(self.home) + "/.claude/projects/*/*.jsonl")

    def answered(self, text):
        return text in recorded_answers(self.transcripts())

    def requests(self):
        return sum(bool(request.get("kind")) for request in self.env.reqs())

    def memories(self):
        return glob.glob(glob.escape(self.data) + "/memories/**/*.md", recursive=True)

    def waiting(self):
        return [path for state in ("tmp", "new", "claimed", "dead") for path in glob.glob(glob.escape(self.data) + "/spool/%s/*" % state)]

    def processes(self, word=b""):
        """The ids of processes of this home whose command line holds the word."""
        found, mark = [], b"HOME=" + os.fsencode(self.home) + b"\0"
        for entry in glob.glob("/proc/[0-9]*"):
            try:
                command = pathlib.Path(entry, "cmdline").read_bytes()
                if command and word in command and mark in pathlib.Path(entry, "environ").read_bytes() + b"\0":
                    found.append(int(entry[len("/proc/"):]))
            except OSError:
                pass  # gone, or not ours
        return found

    def end_processes(self):
        """End what a killed client left running: everything with this home, by its id."""
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass

    def close(self):
        for terminal in self.terminals:
            terminal.tmux("kill-server")
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            self.end_processes()
            time.sleep(0.1)
        for stream in self.streams:
            stream.process.kill()
            stream.process.wait(5)
        self.env.close()
        socket = os.path.join(os.environ.get("TMUX_TMPDIR", "/tmp"), "tmux-%d" % os.getuid(), "cc-" + self.name)
        if os.path.exists(socket):
            os.remove(socket)
        if not self.keep:
            shutil.rmtree(self.env.root, ignore_errors=True)


class Stream:
    """One `claude -p` that is given several turns on its stdin."""

    def __init__(self, box):
        self.process = subprocess.Popen([box.env.bin, "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"], cwd=box.project,
                                        env=box.env.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8")

    def send(self, prompt):
        self.process.stdin.write(json.dumps({"type": "user", "message": {"role": "user", "content": prompt}}) + "\n")
        self.process.stdin.flush()

    def result(self):
        """Wait for the end of the turn."""
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if json.loads(line).get("type") == "result":
                    return
        finally:
            watchdog.cancel()
        raise Failed("the client ended in mid-turn")

    def close(self):
        """No more turns: the client ends."""
        self.process.stdin.close()
        watchdog = threading.Timer(30, self.process.kill)
        watchdog.start()
        self.process.stdout.read()
        self.process.wait(30)
        watchdog.cancel()


class Terminal:
    """The interactive client in a terminal of its own."""

    def __init__(self, box, *args):
        self.box, self.tmux = box, box.env.tmux
        words = ["env", "-i", *("%s=%s" % pair for pair in box.env.env().items()), box.env.bin, *args]
        self.tmux("new-session", "-d", "-s", "s", "-x", "160", "-y", "50", "-c", box.project, *words)
        self.tmux("set-option", "-t", "s", "remain-on-exit", "on")
        wait_for(lambda: self.tmux("display-message", "-p", "-t", "s", "#{pane_pid}").stdout.strip().isdigit(), 5, "the terminal")
        self.pid = box.env.pid = int(self.tmux("display-message", "-p", "-t", "s", "#{pane_pid}").stdout)
        self.shows("❯", 30)
        time.sleep(0.5)  # the prompt is drawn before it listens

    def screen(self):
        return self.tmux("capture-pane", "-p", "-t", "s").stdout

    def shows(self, text, seconds=20):
        wait_for(lambda: text in self.screen(), seconds, "%r on the screen:\n%s" % (text, self.screen()[-1200:]))

    def keys(self, *names):
        self.tmux("send-keys", "-t", "s", *names)

    def enter(self, text):
        """Type a line and press Enter, once the line is there."""
        self.tmux("send-keys", "-t", "s", "-l", text)
        self.shows(text[-12:], 10)
        time.sleep(0.15)
        self.keys("Enter")

    def wipe(self):
        """Empty the input line, into which the client put an earlier prompt."""
        time.sleep(0.5)
        self.keys("C-u")
        time.sleep(0.5)  # a key that comes with the text of the next line counts as part of it

    def busy(self):
        return "esc to interrupt" in self.screen()

    def begin(self, prompt):
        """Type a prompt and wait until the model was asked."""
        before = self.box.requests()
        self.enter(prompt)
        wait_for(lambda: self.box.requests() > before, 15, "a request to the model after %r:\n%s" % (prompt[:60], self.screen()[-1200:]))

    def until(self, answer, seconds=30):
        """Wait until the answer is on record and the turn is over."""
        wait_for(lambda: self.box.answered(answer), seconds, "the answer %r:\n%s" % (answer[:40], self.screen()[-1200:]))
        self.idle()

    def idle(self):
        wait_for(lambda: not self.busy(), 20, "the end of the turn")
        time.sleep(0.25)

    def say(self, prompt, answer):
        self.begin(prompt)
        self.until(answer)

    def wait_gone(self, seconds=20):
        wait_for(lambda: not self.box.env.alive(), seconds, "the client to go:\n%s" % self.screen()[-800:])

    def exit(self, how="/exit"):
        """Leave: /exit, or C-c or C-d twice."""
        if how.startswith("/"):
            self.enter(how)
        else:
            self.keys(how)
            time.sleep(0.2)
            self.keys(how)
        self.wait_gone()
        self.tmux("kill-server")

    def signal(self, number):
        os.kill(self.pid, number)
        self.wait_gone()


# ---- the scenarios


class Scenario:
    def __init__(self, name, play, other=(), suffix="", installed=True):
        self.name, self.play = name, play
        self.installed = installed  # before the client starts
        self.other = other  # events at which another tool has a hook too
        self.suffix = suffix  # of the home's path


SCENARIOS = {}


def scenario(**options):
    def register(play):
        SCENARIOS[play.__name__] = Scenario(play.__name__, play, **options)
        return play
    return register


@scenario()
def p_one(box):
    """claude -p, one turn"""
    box.p(box.turn("alpha one", "say Answer alpha."))


@scenario()
def p_resume(box):
    """claude -p, several turns with --resume; text that looks like ours, and every kind of character"""
    session = box.p(box.turn("alpha first", "say Answer alpha."))
    box.p(box.turn("bravo\n## Transcript\n<!-- turn a/0 prompt - 0-1 -->\n\\<!-- turn b/0 answer - 0-1 -->\n---", "say Answer bravo.\n\n## Transcript\n<!-- turn c/0 answer - 0-1 -->\nend"), resume=session)
    box.p(box.turn("charlie 日本語 🙂 a\u2028b \u0085 é \"quoted\" \\n", "bash echo hi", "say Answer charlie 語🙂\u2028."), resume=session)
    box.p(box.turn("delta", "multi say Answer delta one. && bash true", "think 300 say Answer delta two."), resume=session)


@scenario()
def stream(box):
    """stream-json, several turns in one process"""
    client = box.stream()
    for word in ("alpha", "bravo", "charlie"):
        client.send(box.turn(word + " streamed", "bash echo " + word, "say Answer %s." % word))
        client.result()
    client.close()


@scenario()
def interactive(box):
    """several turns in a terminal, then /exit"""
    client = box.terminal()
    for word in ("alpha", "bravo", "charlie"):
        client.say(box.turn(word + " typed", "say Answer %s." % word), "Answer %s." % word)
    client.exit()


@scenario()
def clear(box):
    """/clear between two turns"""
    client = box.terminal()
    client.say(box.turn("alpha before", "say Answer alpha."), "Answer alpha.")
    client.enter("/clear")
    wait_for(lambda: "Answer alpha." not in client.screen(), 10, "an empty screen")
    time.sleep(0.5)
    client.say(box.turn("bravo after", "say Answer bravo."), "Answer bravo.")
    client.exit("C-d")


@scenario()
def compact(box):
    """/compact between two turns"""
    client = box.terminal()
    client.say(box.turn("alpha before", "bash echo hi", "say Answer alpha."), "Answer alpha.")
    client.say(box.turn("bravo before", "say Answer bravo."), "Answer bravo.")
    client.enter("/compact")
    wait_for(lambda: any(record.get("isCompactSummary") for path in box.transcripts() for record in read_transcript(path)), 20, "the compaction")
    client.shows("Compacted")
    client.idle()
    client.say(box.turn("charlie after", "say Answer charlie."), "Answer charlie.")
    client.exit()


@scenario()
def auto_compact(box):
    """compaction by the client itself, as the context is full"""
    session = box.p(box.turn("alpha before", "say Answer alpha."))
    box.p(box.turn("bravo full", "usage 990000 say Answer bravo."), resume=session)
    box.p(box.turn("charlie after", "say Answer charlie."), resume=session)


@scenario()
def resume_terminal(box):
    """a -p session gone on with in a terminal"""
    session = box.p(box.turn("alpha printed", "say Answer alpha."))
    client = box.terminal("--resume", session)
    client.say(box.turn("bravo typed", "say Answer bravo."), "Answer bravo.")
    client.exit("C-c")


@scenario()
def fork(box):
    """--fork-session: a new transcript that begins with copied lines"""
    session = box.p(box.turn("alpha original", "say Answer alpha."))
    box.p(box.turn("bravo original", "say Answer bravo."), resume=session)
    forked = box.p(box.turn("charlie forked", "say Answer charlie."), "--fork-session", resume=session)
    if forked == session:
        raise Failed("the client did not fork")
    box.p(box.turn("delta original", "say Answer delta."), resume=session)
    box.p(box.turn("echo forked", "say Answer echo."), resume=forked)


@scenario()
def worktree(box):
    """A session that is resumed, then forked, in another worktree: the fork lies in another folder and begins with copied lines"""
    def git(*args):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *args], cwd=box.project, check=True, capture_output=True, timeout=30)

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "Begin")
    tree = box.project + "-tree"
    git("worktree", "add", "-q", tree)
    session = box.p(box.turn("alpha original", "say Answer alpha."))
    box.p(box.turn("bravo original", "say Answer bravo."), resume=session)
    box.p(box.turn("charlie in the tree", "say Answer charlie."), resume=session, cwd=tree)
    forked = box.p(box.turn("delta forked", "say Answer delta."), "--fork-session", resume=session, cwd=tree)
    if len({os.path.dirname(path) for path in box.transcripts()}) != 2:
        raise Failed("the fork lies in the folder of the original")
    box.p(box.turn("echo original", "say Answer echo."), resume=session)
    box.p(box.turn("foxtrot forked", "say Answer foxtrot."), resume=forked, cwd=tree)


@scenario()
def branch(box):
    """/branch, then the branch and the original go on, each in a client of its own"""
    client = box.terminal()
    client.say(box.turn("alpha original", "say Answer alpha."), "Answer alpha.")
    client.say(box.turn("bravo original", "say Answer bravo."), "Answer bravo.")
    client.enter("/branch aside")
    time.sleep(1.5)
    client.idle()
    client.say(box.turn("charlie branched", "say Answer charlie."), "Answer charlie.")
    client.exit("C-d")
    original, = (path for path in box.transcripts() if "charlie" not in pathlib.Path(path).read_text("utf-8"))
    box.p(box.turn("delta original", "say Answer delta."), resume=pathlib.Path(original).stem)


@scenario()
def named(box):
    """--session-id, --continue, and a fork of what was continued"""
    session = str(uuid.uuid4())
    box.p(box.turn("alpha first", "say Answer alpha."), "--session-id", session)
    box.p(box.turn("bravo continued", "say Answer bravo."), "--continue")
    box.p(box.turn("charlie forked", "say Answer charlie."), "--continue", "--fork-session")
    box.p(box.turn("delta continued", "say Answer delta."), "--continue")
    box.p(box.turn("echo first", "say Answer echo."), resume=session)


@scenario()
def moved(box):
    """A project that is renamed; Claude's folder for it is copied, so that --resume finds its sessions"""
    project = os.path.join(box.project, "old-name")
    os.mkdir(project)
    session = box.p(box.turn("alpha before", "say Answer alpha."), cwd=project)
    box.p(box.turn("bravo before", "say Answer bravo."), resume=session, cwd=project)
    folder = os.path.dirname(box.transcripts()[0])
    if not folder.endswith("-old-name"):
        raise Failed("Claude's folder is called otherwise: " + folder)
    renamed = os.path.join(box.project, "new-name")
    os.rename(project, renamed)
    shutil.copytree(folder, folder[:-len("old-name")] + "new-name")
    box.p(box.turn("charlie after", "say Answer charlie."), resume=session, cwd=renamed)


@scenario()
def interrupt(box):
    """Esc and Ctrl-C in mid-answer and in mid-tool, each followed by another prompt"""
    client = box.terminal()
    for word, key in (("alpha", "Escape"), ("bravo", "C-c")):
        client.begin(box.turn(word + " cut short", "slow 8 text 900 " + word.upper(), sure=False))
        client.shows(word.upper() + " ipsum")
        time.sleep(0.5)
        client.keys(key)
        client.shows("Interrupted")
        client.idle()
        client.say(box.turn(word + " again", "say Answer %s." % word), "Answer %s." % word)
    client.begin(box.turn("charlie tool", "multi say Answer charlie. && bash sleep 20"))
    wait_for(lambda: box.answered("Answer charlie."), 10, "the first part of the answer")
    time.sleep(0.5)
    client.keys("Escape")
    client.idle()
    client.say(box.turn("delta after", "say Answer delta."), "Answer delta.")
    client.exit()


@scenario()
def kill_first(box):
    """kill -9 in the first turn of a session; the next session's start captures it"""
    client = box.terminal()
    client.begin(box.turn("alpha killed", "multi say Answer alpha. && bash sleep 20"))
    wait_for(lambda: box.answered("Answer alpha."), 10, "the first part of the answer")
    client.signal(signal.SIGKILL)
    box.p(box.turn("bravo next", "say Answer bravo."))


@scenario()
def kill_later(box):
    """kill -9 in a later turn, in mid-answer; the next session's start captures it"""
    client = box.terminal()
    client.say(box.turn("alpha whole", "say Answer alpha."), "Answer alpha.")
    client.begin(box.turn("bravo killed", "multi say Answer bravo. && bash true", "slow 20 text 900 BRAVO", sure=False))
    wait_for(lambda: box.answered("Answer bravo."), 10, "the first part of the answer")
    client.shows("BRAVO ipsum")
    client.signal(signal.SIGKILL)
    box.p(box.turn("charlie next", "say Answer charlie."))


@scenario()
def kill_unreaped(box):
    """kill -9 of a client whose parent does not ask for its exit status"""
    client = box.stream()
    client.send(box.turn("alpha killed", "multi say Answer alpha. && bash sleep 20"))
    wait_for(lambda: box.answered("Answer alpha."), 10, "the first part of the answer")
    client.process.send_signal(signal.SIGKILL)
    box.p(box.turn("bravo next", "say Answer bravo."))


@scenario()
def killpane(box):
    """the terminal is closed after a turn, and again in mid-turn"""
    client = box.terminal()
    client.say(box.turn("alpha whole", "say Answer alpha."), "Answer alpha.")
    client.tmux("kill-session", "-t", "s")
    client.wait_gone()
    client = box.terminal()
    client.begin(box.turn("bravo cut", "multi say Answer bravo. && bash sleep 20"))
    wait_for(lambda: box.answered("Answer bravo."), 10, "the first part of the answer")
    client.tmux("kill-session", "-t", "s")
    client.wait_gone()


@scenario()
def terminate(box):
    """SIGTERM in mid-turn"""
    client = box.terminal()
    client.begin(box.turn("alpha cut", "multi say Answer alpha. && bash sleep 20"))
    wait_for(lambda: box.answered("Answer alpha."), 10, "the first part of the answer")
    client.signal(signal.SIGTERM)


@scenario()
def queued(box):
    """prompts typed while Claude answers, and while a tool runs"""
    client = box.terminal()
    client.begin(box.turn("alpha busy", "slow 3 text 400 ALPHA"))
    client.shows("ALPHA ipsum")
    client.enter(box.turn("bravo typed ahead", "say Answer bravo."))
    client.until("Answer bravo.")
    client.begin(box.turn("charlie busy", "bash sleep 3", "say Answer charlie."))
    client.shows("sleep 3")
    time.sleep(0.7)
    client.enter(box.turn("delta typed during the tool"))
    client.until("Answer charlie.")
    time.sleep(1)  # should the client give it a turn of its own
    client.idle()
    client.exit()


@scenario()
def long_texts(box):
    """a prompt and answers of many segments"""
    client = box.stream()
    client.send(box.turn("alpha long", "text 20000 ALPHA"))
    client.result()
    client.send(box.turn("bravo " + "long words of a prompt. " * 500, "say Answer bravo."))
    client.result()
    client.send(box.turn("charlie long", "multi text 9000 CHARLIE && bash true", "text 12000 CHARLES"))
    client.result()
    client.close()


@scenario()
def rewind(box):
    """a prompt taken back before its answer, a rewind to an earlier prompt, a command of the person's own"""
    client = box.terminal()
    client.say(box.turn("alpha stays", "say Answer alpha."), "Answer alpha.")
    client.begin(box.turn("bravo taken back", "delay 5 say Never.", sure=False))
    time.sleep(0.5)
    client.keys("Escape")
    client.idle()
    client.wipe()
    client.say(box.turn("charlie instead", "multi bash echo 1 && bash echo 2 && bash echo 3", "say Answer charlie."), "Answer charlie.")
    client.keys("Escape")
    time.sleep(0.2)
    client.keys("Escape")
    client.shows("(current)")
    client.keys("Up")
    time.sleep(0.2)
    client.keys("Enter")
    client.shows("Restore conversation")
    client.keys("Enter")
    wait_for(lambda: "● Answer charlie." not in client.screen(), 10, "the earlier conversation")
    client.wipe()
    client.say(box.turn("delta instead", "say Answer delta."), "Answer delta.")
    client.enter("!echo by-hand")
    time.sleep(1.5)
    client.idle()
    client.exit()
    box.rewinds = 2
    box.expect("shell", "echo by-hand")


@scenario(installed=False)
def midway(box):
    """installed while a session runs: what was said before the consent is not taken, what comes after is"""
    client = box.terminal()
    client.say(box.turn("alpha before", "bash echo alpha-before", "say Answer alpha.", kept=False), "Answer alpha.")
    client.say(box.turn("bravo before", "say Answer bravo.", kept=False), "Answer bravo.")
    box.install()
    time.sleep(1.5)
    client.say(box.turn("charlie after", "say Answer charlie."), "Answer charlie.")
    client.exit()


@scenario()
def background(box):
    """a command in the background that ends after the turn"""
    client = box.terminal()
    command = json.dumps({"command": "sleep 2; echo bg", "run_in_background": True, "description": "wait"})
    client.say(box.turn("alpha background", "tool Bash " + command, "say Answer alpha."), "Answer alpha.")
    client.until("All done. (2 steps)")
    client.exit()


@scenario()
def switched_off(box):
    """MEMHOOK_OFF=1, then a folder with .memhook-off, then neither"""
    off = {"MEMHOOK_OFF": "1"}
    session = box.p(box.turn("alpha secretly", "bash echo alpha-secretly", "say Answer alpha.", kept=False), env=off)
    box.p(box.turn("bravo secretly", "say Answer bravo.", kept=False), resume=session, env=off)
    marker = pathlib.Path(box.project, ".memhook-off")
    marker.touch()
    session = box.p(box.turn("charlie secretly", "bash echo charlie-secretly", "say Answer charlie.", kept=False))
    box.p(box.turn("delta secretly", "say Answer delta.", kept=False), resume=session)
    client = box.terminal("--resume", session)
    client.say(box.turn("echo secretly", "say Answer echo.", kept=False), "Answer echo.")
    client.exit()
    marker.unlink()
    box.p(box.turn("foxtrot openly", "say Answer foxtrot."))


@scenario()
def paused(box):
    """pause, a session, resume, the same session gone on with, another session; a pause within a session"""
    box.memhook(box.installed, "pause")
    session = box.p(box.turn("alpha secretly", "bash echo alpha-secretly", "say Answer alpha.", kept=False))
    box.p(box.turn("bravo secretly", "say Answer bravo.", kept=False), resume=session)
    box.memhook(box.installed, "resume")
    box.p(box.turn("charlie openly", "say Answer charlie."), resume=session)
    box.p(box.turn("delta openly", "say Answer delta."))
    client = box.terminal()
    client.say(box.turn("echo openly", "say Answer echo."), "Answer echo.")
    box.memhook(box.installed, "pause")
    client.say(box.turn("foxtrot secretly", "say Answer foxtrot.", kept=False), "Answer foxtrot.")
    box.memhook(box.installed, "resume")
    client.say(box.turn("golf openly", "say Answer golf."), "Answer golf.")
    client.exit()


@scenario()
def two_at_once(box):
    """two sessions at the same time in one project"""
    clients = {"alpha": box.stream(), "bravo": box.stream()}
    for number in range(3):
        for word, client in clients.items():
            client.send(box.turn("%s at once %d" % (word, number), "bash echo %s" % word, "text %d %s%d" % (3000, word.upper(), number)))
        for client in clients.values():
            client.result()
    for client in clients.values():
        client.process.stdin.close()  # both end at once
    for client in clients.values():
        client.close()


@scenario()
def subagent(box):
    """a subagent: its talk is not the person's; its report is kept"""
    session = box.p(box.turn("alpha delegated", "agent look around ## bash echo hi ## say The report of the agent.", "say Answer alpha."))
    box.p(box.turn("bravo after", "say Answer bravo."), resume=session)
    box.expect("tool", "a subtask")
    box.expect("result", "The report of the agent.")


@scenario()
def failing_bash(box):
    """a command that fails"""
    box.p(box.turn("alpha fails", "bash echo the-cause >&2; exit 3", "say Answer alpha."))
    box.expect("error", "the-cause")


@scenario()
def api_error(box):
    """the model answers with an error: no Stop, only the end of the session"""
    session = box.p(box.turn("alpha refused", "error 400"), status=None)
    box.p(box.turn("bravo works", "say Answer bravo."), resume=session)


@scenario(other=("SessionStart", "Stop", "SessionEnd", "PreCompact"))
def other_hooks(box):
    """another tool's hooks at the same events"""
    session = box.p(box.turn("alpha shared", "say Answer alpha."))
    box.p(box.turn("bravo shared", "say Answer bravo."), resume=session)
    client = box.terminal("--resume", session)
    client.say(box.turn("charlie shared", "say Answer charlie."), "Answer charlie.")
    client.exit()
    fired = collections.Counter(pathlib.Path(box.home, "other-tool.log").read_text().split())
    if fired["Stop"] != 3 or fired["SessionEnd"] != 3 or fired["SessionStart"] != 3:
        raise Failed("the other tool's hooks fired %s times, not 3 each" % dict(fired))


@scenario(suffix=" J \"D'oe\" $x & ü")
def odd_home(box):
    """a home with a space, quotes and a letter that is not ASCII in its path"""
    session = box.p(box.turn("alpha odd", "say Answer alpha."))
    client = box.terminal("--resume", session)
    client.say(box.turn("bravo odd", "say Answer bravo."), "Answer bravo.")
    client.exit()


# ---- the verdict


def kept_turns(box):
    return [turn for path in box.memories() for turn in read_memory(path)[1]]


def differences(box):
    """What memhook kept against what was said: everything once, nothing twice, nothing else."""
    turns, wrong = kept_turns(box), []
    wrong += ["turn %s is kept %d times" % (key, count) for key, count in collections.Counter(turn.key for turn in turns).items() if count > 1]
    recorded = collections.Counter(text for text in recorded_answers(box.transcripts()) if text not in box.never)
    for kind, wanted in (("prompt", collections.Counter(box.prompts)), ("answer", recorded | collections.Counter(box.answers))):
        found = said_in(turns, kind)
        for text in wanted.keys() | found.keys():
            if wanted[text] != found[text]:
                wrong.append("%s said %d times, kept %d times: %r%s" % (kind, wanted[text], found[text], text[:70], where(box, text)))
    wrong += ["a turn of kind %s: %r" % (turn.kind, turn.text[:70]) for turn in turns if turn.kind not in KINDS or not turn.text.strip()]
    rewinds = sum(turn.kind == "rewind" for turn in turns)
    wrong += ["%d rewinds, kept %d" % (box.rewinds, rewinds)] if rewinds != box.rewinds else []
    wrong += ["a result that tells nothing: %r" % turn.text[:90] for turn in turns if turn.kind == "result" and "agent launched" in turn.text]
    wrong += ["no %s turn holds %r" % (kind, text) for kind, text in box.others if not any(turn.kind == kind and text in turn.text for turn in turns)]
    return wrong


def where(box, text):
    """Which lines of the transcripts hold a text: the evidence."""
    held = ["%s %s" % (record.get("type"), record.get("uuid")) for path in box.transcripts() for record in read_transcript(path)
            if text.strip() in [found.strip() for found in texts(record)] or text in str((record.get("attachment") or {}).get("prompt", ""))]
    return " (transcript: %s)" % (", ".join(held) or "no line")


def leaks(box):
    """Files of memhook's that hold what was not to be taken."""
    wrong = []
    for path in glob.glob(glob.escape(box.data) + "/**", recursive=True):
        if os.path.isfile(path):
            data = pathlib.Path(path).read_bytes()
            wrong += ["%s holds %r, which was not to be taken" % (os.path.relpath(path, box.data), text) for text in box.never if text.encode() in data]
    return wrong


def settings_trouble(box):
    """What is different in settings.json without our entries."""
    settings = json.loads(pathlib.Path(box.settings).read_text("utf-8"))
    ours = 0
    for event, groups in list(settings["hooks"].items()):
        for group in list(groups):
            mine = [hook for hook in group["hooks"] if "memhook.py" in hook["command"]]
            ours += len(mine)
            group["hooks"] = [hook for hook in group["hooks"] if hook not in mine]
            if mine and not group["hooks"]:
                groups.remove(group)
        if not groups and event not in box.foreign["hooks"]:
            del settings["hooks"][event]
    wrong = [] if ours == 4 else ["settings.json holds %d hooks of ours, not 4" % ours]
    return wrong + ([] if json.dumps(settings) == json.dumps(box.foreign) else ["settings.json: foreign parts changed: %s" % json.dumps(settings)])


def settle(box):
    """Wait until the drain has done its work; -> seconds."""
    started = time.monotonic()
    while time.monotonic() - started < DRAIN_SECONDS:
        if not box.processes(b"memhook.py") and not box.waiting() and not differences(box):
            break
        time.sleep(0.1)
    seconds = time.monotonic() - started
    time.sleep(0.3)  # whatever comes twice comes now
    return seconds


def unproven(box):
    """What `memhook verify` finds; it must find all that was taken in memories, and nothing open, lost or twice."""
    if not os.path.isdir(box.data):
        return []
    done = subprocess.run([sys.executable, str(box.program), "verify", "--json"], cwd=box.project, env=box.env.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    if done.returncode not in (0, 4):
        return ["memhook verify: exit %d: %s" % (done.returncode, done.stderr[-300:])]
    found = json.loads(done.stdout)
    counts = {name: count for name, count in found["totals"].items() if count and name in ("waiting", "open", "missing", "repeated", "edited")}
    wrong = ["memhook verify: %s in %s" % (counts, [one for one in found["transcripts"] if one["state"] != "ok" or one["turns"]["open"]])] if counts else []
    return wrong + ([] if found["ok"] and done.returncode == 0 or counts else ["memhook verify: exit %d" % done.returncode])


def verdict(box):
    """Everything that is wrong after a scenario."""
    wrong = differences(box) + leaks(box) + settings_trouble(box) + hook_trouble(box.transcripts(), box.quiet)
    for path in box.memories():
        front, turns = read_memory(path)
        wrong += misplaced(front, turns)
        if not any(turn.kind in ("prompt", "answer", "shell") for turn in turns):
            wrong.append("a memory in which nobody says anything: %r" % [(turn.kind, turn.text[:60]) for turn in turns])
    wrong += ["left in the spool: %s" % os.path.relpath(path, box.data) for path in box.waiting()]
    for pid in box.processes(b"memhook.py"):
        wrong.append("still running: %s" % pathlib.Path("/proc/%d/cmdline" % pid).read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    log = pathlib.Path(box.data, "memhook.log")
    wrong += unproven(box)
    wrong += ["memhook.log: " + line for line in (log.read_text("utf-8").splitlines() if log.exists() else []) if "failed" in line]
    return wrong


class Outcome:
    def __init__(self, name, version):
        self.name, self.version = name, version
        self.wrong, self.milliseconds = [], []
        self.turns = self.memories = 0
        self.seconds = self.settled = 0.0


def run(harness, chosen, version, options):
    """Play one scenario with one client; -> Outcome."""
    outcome, started, box = Outcome(chosen.name, version), time.monotonic(), None
    try:
        box = Box(harness, chosen, version, options.program, options.keep)
        chosen.play(box)
        outcome.settled = settle(box)
        outcome.wrong = verdict(box)
        outcome.milliseconds = stop_milliseconds(box.transcripts())
        outcome.memories, outcome.turns = len(box.memories()), len(kept_turns(box))
    except (Failed, OSError, ValueError, LookupError, subprocess.SubprocessError) as error:
        outcome.wrong.append("%s: %s" % (type(error).__name__, error))
    finally:
        if box:
            box.close()
    outcome.seconds = time.monotonic() - started
    return outcome


# ---- the run


def installed_versions(wanted):
    return [version for version in wanted if glob.glob(os.path.join(glob.escape(CLIENTS), version, "node_modules", "@anthropic-ai", "claude-code-linux-*", "claude"))]


def missing(wanted):
    """What keeps us from running; "" if nothing does."""
    for name in ("harness.py", "fake_api.py", "netns.sh"):
        if not os.path.exists(os.path.join(SCRIPTS, name)):
            return "no %s in %s (MEMHOOK_CLIENT_SCRIPTS)" % (name, SCRIPTS)
    if not installed_versions(wanted):
        return "no client %s in %s (CLIENT_ROOT): run setup.sh" % (" or ".join(wanted), CLIENTS)
    for tool in ("git", "tmux", "unshare", "ip"):
        if not shutil.which(tool):
            return "no %s" % tool
    if not os.environ.get(INSIDE) and subprocess.run(["sh", os.path.join(SCRIPTS, "netns.sh"), "true"], capture_output=True).returncode:
        return "no network namespace can be made here"
    return ""


def enter_namespace(program):
    """Start this program again where there is no network but loopback, unless that was done."""
    if not os.environ.get(INSIDE):
        os.environ[INSIDE] = "1"
        os.execvp("sh", ["sh", os.path.join(SCRIPTS, "netns.sh"), sys.executable, os.path.abspath(program), *sys.argv[1:]])


def enter(program, wanted):
    """The harness, in a namespace of its own for this program; None where nothing can be run, and why is printed."""
    reason = missing(wanted)
    if reason:
        print("not run: " + reason)
        return None
    enter_namespace(program)
    sys.path.insert(0, SCRIPTS)
    import harness
    return harness


def report(outcomes, seconds):
    print("%-16s %-8s %-6s %9s %6s %9s  %s" % ("scenario", "client", "result", "memories", "turns", "drained s", "Stop ms: median / max (n)"))
    for outcome in outcomes:
        times = outcome.milliseconds
        spent = "%d / %d (%d)" % (statistics.median(times), max(times), len(times)) if times else "-"
        print("%-16s %-8s %-6s %9d %6d %9.1f  %s" % (outcome.name, outcome.version, "FAIL" if outcome.wrong else "ok", outcome.memories, outcome.turns, outcome.settled, spent))
    for version in sorted({outcome.version for outcome in outcomes}):
        times = [value for outcome in outcomes if outcome.version == version for value in outcome.milliseconds]
        if times:
            print("Stop hook as client %s saw it: median %d ms, max %d ms, %d runs" % (version, statistics.median(times), max(times), len(times)))
    failed = [outcome for outcome in outcomes if outcome.wrong]
    for outcome in failed:
        print("\n%s, client %s:" % (outcome.name, outcome.version))
        for line in outcome.wrong:
            print("  " + line.replace("\n", "\n    "))
    print("\n%d of %d as they should be, %d s, load average %.1f" % (len(outcomes) - len(failed), len(outcomes), seconds, os.getloadavg()[0]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", choices=sorted(SCENARIOS), help="this scenario; may be given again")
    parser.add_argument("--version", action="append", help="this client; may be given again (default: %s)" % ", ".join(VERSIONS))
    parser.add_argument("--jobs", type=int, default=2, help="scenarios at the same time (default 2)")
    parser.add_argument("--program", default=str(ROOT / "memhook.py"), help="the memhook.py to try")
    parser.add_argument("--keep", action="store_true", help="leave the homes where they are")
    parser.add_argument("--list", action="store_true", help="print the scenarios")
    options = parser.parse_args()
    if options.list:
        for name, chosen in SCENARIOS.items():
            print("%-16s %s" % (name, chosen.play.__doc__))
        return 0
    wanted = options.version or list(VERSIONS)
    harness = enter(__file__, wanted)
    if not harness:
        return NOTHING_RUN
    started = time.monotonic()
    for version in set(wanted) - set(installed_versions(wanted)):
        print("not run: no client %s" % version)
    todo = [(SCENARIOS[name], version) for name in options.only or SCENARIOS for version in installed_versions(wanted)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(lambda pair: run(harness, *pair, options), todo))
    report(outcomes, time.monotonic() - started)
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
