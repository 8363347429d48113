"""The hook as installed: its real command line, a real shell, a real stdin. It ends in time, says nothing, exits 0 and loses nothing."""
import itertools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
import zlib

import pytest

import memhook
from conftest import PROGRAM, Box, Script, heeding_modes, quote, wait_until

NUMBERS = itertools.count(1)
CAPTURES = itertools.cycle(("Stop", "PreCompact"))  # one command line for two events: tests take turns
SAID = [("prompt", "Why is the sky blue? — 日本語"), ("answer", "Because short waves scatter more.")]


def fire(box, event, data=b"", command="%s", env=(), cwd=None, stdin=None, prefix=(), seconds=30, **options):
    """Run a hook as Claude Code does; it must be silent and exit 0. `command` is put around the command line. -> seconds it took."""
    given = {"input": data} if stdin is None else {"stdin": stdin}
    started = time.monotonic()
    done = subprocess.run([*prefix, "/bin/sh", "-c", command.replace("%s", box.command(event))], env={**box.env, **dict(env)},
                          cwd=cwd or box.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, **given, **options)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), event
    return time.monotonic() - started


def payload(box, event, script, **fields):
    return json.dumps(box.payload(event, script, **fields)).encode() + b"\n"


def both():
    """The events that capture: Stop or PreCompact, and SessionEnd."""
    return next(CAPTURES), "SessionEnd"


def fire_all(box, script, fields=(), **options):
    for event in both():
        fire(box, event, payload(box, event, script, **dict(fields)), **options)


def in_memory(box, script):
    """(kind, text) of what the memories hold of a transcript, the parts of one line joined: what is there twice shows."""
    files = [data for data in map(memhook.read_file, memhook.memory_files(box.api)) if script.path.name.encode() in data]
    memories = sorted(map(memhook.parse_memory, files), key=lambda memory: memory.front["segment"])
    found = {}
    for turn in [turn for memory in memories if memory.front["transcript"] == os.path.realpath(script.path) for turn in memory.turns]:
        found.setdefault((turn.line, turn.kind), []).append(turn.text)
    return [(kind, "".join(parts)) for (_, kind), parts in found.items()]


def settle(box, script):
    """What a normal end of the session and a drain do, in this process; -> what the memories hold of the session."""
    consent = memhook.read_consent(box.api)
    memhook.capture(box.api, consent, memhook.Request(str(script.path), script.session, final=True))
    memhook.drain(box.api, consent)
    return in_memory(box, script)


def talk(box):
    """A new session in which was said what SAID says."""
    script = box.script("s%07d-live" % next(NUMBERS))
    script.prompt(SAID[0][1])
    script.answer(SAID[1][1])
    return script


def is_captured(box, script):
    path = memhook.checkpoint_path(box.api, memhook.transcript_key(str(script.path)))
    return os.path.exists(path) and box.checkpoint(script)["parsed"] == os.path.getsize(script.path)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    box = Box(tmp_path_factory.mktemp("live"))
    box.env["MEMHOOK_QUOTA_MAX"] = "100000"  # nobody ends a hundred sessions in a minute, but this file does
    box.install()
    return box


@pytest.fixture
def live(installed, monkeypatch):
    """One machine for all the tests that leave it as it was."""
    monkeypatch.setenv("HOME", str(installed.user))
    return installed


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A machine to be damaged."""
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    box = Box(tmp_path)
    memhook.install(box.api, "I CONSENT", False, lambda text: None)
    return box


@pytest.fixture(autouse=True)
def whose_turn(request, monkeypatch):
    """Which of the two events comes first depends on the test alone, not on those that ran before it."""
    first = zlib.crc32(request.node.name.encode("utf-8", "replace")) % 2
    monkeypatch.setattr(sys.modules[__name__], "CAPTURES", itertools.cycle(("Stop", "PreCompact", "Stop")[first:first + 2]))


# ---- the payload

NO_EVENT = {  # name -> the bytes, made from a whole payload
    "empty": lambda whole: b"",
    "a newline": lambda whole: b"\n",
    "cut": lambda whole: whole[:len(whole) // 2],
    "cut before its last byte": lambda whole: whole.rstrip()[:-1],
    "no JSON": lambda whole: b"hello\n",
    "a list": lambda whole: b"[%s]\n" % whole,
    "a number": lambda whole: b"42\n",
    "a string": lambda whole: json.dumps(whole.decode()).encode(),
    "null": lambda whole: b"null\n",
    "an empty object": lambda whole: b"{}\n",
    "a closing brace": lambda whole: b"}\n",
    "deep": lambda whole: b'{"a":' * 50_000,
    "deep brackets": lambda whole: b"[" * 500_000,
    "binary": lambda whole: bytes(range(256)) * 64,
    "UTF-16": lambda whole: whole.decode().encode("utf-16"),
    "NULs": lambda whole: b"\0" * 10_000,
    "a number of 5,000 digits": lambda whole: b'{"a":' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("name", NO_EVENT)
def test_a_payload_that_is_no_event_costs_nothing(live, name):
    script = talk(live)
    for event in both():
        assert fire(live, event, NO_EVENT[name](payload(live, event, script))) < 1.5
    assert settle(live, script) == SAID


EVENT = {
    "a byte order mark": lambda whole: b"\xef\xbb\xbf" + whole,
    "garbage after it": lambda whole: whole + b"garbage }{ \xff\0",
    "two objects": lambda whole: whole + b'{"hook_event_name": "Stop", "transcript_path": "/nowhere"}\n',
    "two objects on one line": lambda whole: whole.rstrip() + whole,
    "empty lines before it": lambda whole: b"\r\n\n \t" + whole,
    "no newline": lambda whole: whole.rstrip(),
    "CRLF": lambda whole: whole.rstrip() + b"\r\n",
    "many lines": lambda whole: json.dumps(json.loads(whole), indent=4).encode(),
    "raw UTF-8": lambda whole: json.dumps({**json.loads(whole), "prompt": "—日本語😀"}, ensure_ascii=False).encode(),
    "bytes that are no UTF-8": lambda whole: whole.rstrip()[:-1] + b', "prompt": "\xff\xfe caf\xe9"}\n',
    "lone surrogates": lambda whole: whole.rstrip()[:-1] + b', "prompt": "\\ud83d \\udc88", "\\ud83d": 1}\n',
    "an unknown field of every kind": lambda whole: whole.rstrip()[:-1] + b', "a": [{"b": null}], "c": 1e999, "d": {"e": true}}\n',
    "NaN": lambda whole: whole.rstrip()[:-1] + b', "a": NaN, "b": -Infinity}\n',
}


@pytest.mark.parametrize("name", EVENT)
def test_a_payload_that_can_be_read_is_read(live, name):
    script = talk(live)
    for event in both():
        fire(live, event, EVENT[name](payload(live, event, script)))
        assert is_captured(live, script)
    assert settle(live, script) == SAID


WRONG = (None, True, -1.5, 10 ** 400, "", "x" * 5_000, "\ud83d", "\udc88 \x00\x1b[31m\n", ["a"], {"a": 1})


@pytest.mark.parametrize("value", WRONG, ids=lambda value: ascii(value)[:20])
def test_fields_of_any_type_do_no_harm(live, value):
    script = talk(live)
    fields = dict.fromkeys(("session_id", "cwd", "hook_event_name", "reason", "stop_hook_active", "permission_mode", "prompt_id"), value)
    fire(live, "Stop", payload(live, "Stop", script, **fields))
    assert is_captured(live, script)
    fire_all(live, script, {**fields, "last_assistant_message": value})
    said = settle(live, script)
    assert [turn for turn in said if turn in SAID] == SAID
    assert len(said) == 2 + (isinstance(value, str) and bool(value.strip()))  # even nonsense was said, if it is text


def test_a_transcript_path_of_any_type_does_no_harm(live):
    script = talk(live)
    for number, value in enumerate(WRONG):
        event = ("Stop", "PreCompact", "SessionEnd")[number % 3]
        fire(live, event, payload(live, event, script, transcript_path=value))
    assert settle(live, script) == SAID


def test_a_working_folder_that_cannot_be_named_takes_nothing_from_a_session_without_one(live):
    script = live.script("s%07d-live" % next(NUMBERS))
    for kind, text in SAID:
        script.add(script.line("user" if kind == "prompt" else "assistant", [{"type": "text", "text": text}], cwd=None))
    for value in ("\ud83d", "\udc88", "a\0b", "x" * 5_000, "", "relative"):
        fire(live, "Stop", payload(live, "Stop", script, cwd=value))
        assert is_captured(live, script), ascii(value)[:20]
    assert settle(live, script) == SAID


def test_all_fields_of_wrong_types_at_once(live):
    script = talk(live)
    for event in both():
        fire(live, event, json.dumps({name: [name] for name in live.payload(event, script, last_assistant_message="")}).encode())
    assert settle(live, script) == SAID


def test_a_last_message_of_5_mb_is_taken_whole(live):
    script = live.script("s%07d-live" % next(NUMBERS))
    script.prompt("Print the table")
    message = ("{%s} " % ("row " * 12)) * 100_000
    assert len(message) > 5_000_000
    fire(live, "Stop", payload(live, "Stop", script, last_assistant_message=message))
    assert live.checkpoint(script)["pending"][0][1] == message
    os.remove(memhook.checkpoint_path(live.api, memhook.transcript_key(str(script.path))))  # its 600 segments are no use to other tests


def test_a_payload_of_closing_braces_costs_what_one_of_letters_costs(live):
    """Each piece that the pipe gives may be the end: that must not make reading quadratic. Measured in processor time."""
    script, spent = talk(live), {"x": [], "}": []}
    for letter in "x}" * 5:
        data = payload(live, "Stop", script, junk=letter * 8_000_000)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        fire(live, "Stop", data)
        spent[letter].append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
        assert is_captured(live, script)
    assert min(spent["}"]) < 2 * min(spent["x"]) + 0.2  # 64 pieces tried each time would be seconds


# ---- stdin

def held_open(box, event, *pieces):
    """Run a hook whose stdin is written slowly and never closed; -> seconds it took, after which it must be silent and 0."""
    process = subprocess.Popen(["/bin/sh", "-c", box.command(event)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               env=box.env, cwd=box.project)
    started = time.monotonic()
    try:
        for number, piece in enumerate(pieces):
            time.sleep(0.1 if number else 0)
            process.stdin.write(piece)
            process.stdin.flush()
        status = process.wait(30)
        took = time.monotonic() - started
        assert (status, process.stdout.read(), process.stderr.read()) == (0, b"", b"")
    finally:
        process.kill()
        process.stdin.close()
        process.wait()
    return took


@pytest.mark.parametrize("event", ["Stop", "PreCompact", "SessionEnd"])
def test_a_stdin_that_is_never_closed_is_not_waited_for(live, event):
    script = talk(live)
    assert held_open(live, event, payload(live, event, script)) < 1.5
    assert is_captured(live, script)
    assert settle(live, script) == SAID


def test_half_a_payload_or_none_on_an_open_stdin_is_given_up(live):
    script = talk(live)
    for event, share in (("Stop", 0.5), ("SessionEnd", 0.9), ("PreCompact", 0.0)):
        whole = payload(live, event, script)
        assert held_open(live, event, whole[:int(len(whole) * share)]) < 1.5
    assert settle(live, script) == SAID


def test_a_payload_that_comes_in_pieces_is_put_together(live):
    script = talk(live)
    whole = payload(live, "Stop", script, last_assistant_message="} an end that is none }")
    cuts = [0, 1, whole.index(b"} an") + 1, whole.index(b"none }") + 6, len(whole) - 2, len(whole)]
    assert held_open(live, "Stop", *(whole[start:end] for start, end in zip(cuts, cuts[1:]))) < 1.5
    assert is_captured(live, script)


def test_a_stdin_without_end_ends_all_the_same(live):
    script = talk(live)
    with open("/dev/zero", "rb") as stream:
        fire(live, "Stop", stdin=stream, seconds=6)
    assert settle(live, script) == SAID


def test_a_stdin_that_is_closed_the_null_device_or_only_for_writing_costs_nothing(live):
    script = talk(live)
    for event in both():
        fire(live, event, stdin=subprocess.DEVNULL)
        fire(live, event, command="exec 0<&-; %s")
        fire(live, event, command="exec 0>/dev/null; %s")
    assert settle(live, script) == SAID


def test_closed_output_streams_change_nothing(live):
    script = talk(live)
    fire(live, "Stop", payload(live, "Stop", script), command="exec >&- 2>&-; %s")
    assert is_captured(live, script)
    fire(live, "SessionEnd", payload(live, "SessionEnd", script),
         command="exec >/dev/full 2>/dev/full; %s" if os.path.exists("/dev/full") else "%s")
    assert settle(live, script) == SAID


# ---- the transcript

def _fifo(folder):
    os.mkfifo(folder / "fifo.jsonl")
    return folder / "fifo.jsonl"


def _socket(folder):
    here = os.getcwd()
    os.chdir(folder)  # a socket's path may have 108 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s.jsonl")
    finally:
        os.chdir(here)
    return folder / "s.jsonl"


def _link(target):
    def make(folder):
        os.symlink(target, folder / "link.jsonl")
        return folder / "link.jsonl"
    return make


NO_TRANSCRIPT = {
    "missing": lambda folder: folder / "missing.jsonl",
    "in a missing folder": lambda folder: folder / "a" / "b" / "c.jsonl",
    "below a file": lambda folder: str(PROGRAM) + "/x.jsonl",
    "an empty string": lambda folder: "",
    "a space": lambda folder: " ",
    "a folder": lambda folder: folder,
    "the root": lambda folder: "/",
    "a FIFO": _fifo,
    "a socket": _socket,
    "an endless device": lambda folder: "/dev/zero",
    "the null device": lambda folder: "/dev/null",
    "its own stdin": lambda folder: "/dev/stdin",
    "with a NUL": lambda folder: str(folder / "a\0b.jsonl"),
    "a lone surrogate": lambda folder: str(folder / "\ud83d.jsonl"),
    "too long": lambda folder: str(folder / ("x" * 5_000)),
    "a link to nothing": _link("nothing"),
    "a link to itself": _link("link.jsonl"),
    "a link to a device": _link("/dev/zero"),
    "of nobody": lambda folder: "~nobody-of-this-name/x.jsonl",
}


@pytest.mark.parametrize("name", NO_TRANSCRIPT)
def test_a_transcript_that_is_no_file_costs_nothing(live, tmp_path, name):
    script = talk(live)
    path = str(NO_TRANSCRIPT[name](tmp_path))
    for event in both():
        assert fire(live, event, payload(live, event, script, transcript_path=path)) < 1.5
    assert settle(live, script) == SAID


def test_a_transcript_may_be_named_from_the_working_folder_from_home_or_by_a_link(live, tmp_path):
    for name in ("relative", "home", "link"):
        script = talk(live)
        os.symlink(script.path, tmp_path / "link.jsonl") if name == "link" else None
        path = {"relative": script.path.name, "home": "~/" + str(script.path.relative_to(live.user)),
                "link": str(tmp_path / "link.jsonl")}[name]
        fire(live, "Stop", payload(live, "Stop", script, transcript_path=path), cwd=script.path.parent)
        assert is_captured(live, script), name
        assert settle(live, script) == SAID, name


def test_a_transcript_that_may_not_be_read_now_is_read_later(live):
    prefix = heeding_modes()
    script = talk(live)
    os.chmod(script.path, 0)
    try:
        fire_all(live, script, prefix=prefix)
        assert not is_captured(live, script)
    finally:
        os.chmod(script.path, 0o600)
    assert settle(live, script) == SAID


def test_a_missing_transcript_is_found_under_another_project_by_its_session(live):
    script = talk(live)
    for event in both():
        fire(live, event, payload(live, event, script, transcript_path=str(live.config / "projects" / "worktree" / script.path.name)))
        assert is_captured(live, script), event
    assert settle(live, script) == SAID


def test_a_session_id_finds_nothing_outside_the_projects(live, tmp_path):
    script = Script(tmp_path / "outside.jsonl", live.project, "outside-0001")
    script.prompt("Not a transcript of Claude's")
    for session in (os.path.relpath(script.path, live.config / "projects" / "p")[:-6], "../../outside", "*", "[a-z]*"):
        fire(live, "Stop", payload(live, "Stop", script, transcript_path="/nowhere/x.jsonl", session_id=session))
    assert not is_captured(live, script)


# ---- odd places

def test_every_character_that_a_shell_heeds_may_stand_in_the_home_folder(tmp_path, monkeypatch):
    root = tmp_path / "J D'oe & \"co\" $HOME ${x} `touch ran` $(touch ran) ; touch ran | ! # * ? [a] \\ \\n %s ~ ü日😀 (1) {a,b} <x> =y"
    check_machine(Box(root), monkeypatch)
    assert not list(tmp_path.rglob("ran"))


def test_newlines_tabs_and_a_leading_hyphen_may_stand_in_the_home_folder(tmp_path, monkeypatch):
    root = tmp_path / "-n"
    box = Box(root / "two\nlines\tand 'more'")
    check_machine(box, monkeypatch)


def check_machine(box, monkeypatch):
    """Install, two turns, the end, a drain: with the commands as they stand in settings.json."""
    monkeypatch.setenv("HOME", str(box.user))
    box.install()
    script = talk(box)
    fire(box, "Stop", payload(box, "Stop", script))
    assert is_captured(box, script)
    fire(box, "SessionEnd", payload(box, "SessionEnd", script))
    assert box.drain()["stored"] == 1
    assert in_memory(box, script) == SAID
    assert box.status()["hooks"] == {spec.event: "installed" for spec in memhook.HOOK_SPECS}


def test_the_config_folder_may_have_a_space_and_lie_elsewhere(tmp_path, monkeypatch):
    box = Box(tmp_path)
    box.config = tmp_path / "other account's" / "claude config"
    box.home = box.config / "memhook-data"
    box.env["CLAUDE_CONFIG_DIR"] = str(box.config)
    check_machine(box, monkeypatch)
    assert not (box.user / ".claude" / "memhook-data").exists() and not (box.user / ".claude" / "memhook.py").exists()


@pytest.mark.parametrize("later", [{}, {"MEMHOOK_HOME": ""}], ids=["unset", "empty"])
def test_a_home_chosen_at_the_install_is_used_by_the_hooks_without_being_told_again(bare, tmp_path, later):
    elsewhere = tmp_path / "my memories' place"
    bare.env["MEMHOOK_HOME"] = str(elsewhere)
    bare.install()
    script = talk(bare)
    del bare.env["MEMHOOK_HOME"]
    fire_all(bare, script, env=later)
    assert not bare.home.exists()
    bare.env["MEMHOOK_HOME"] = str(elsewhere)
    assert is_captured(bare, script)
    assert settle(bare, script) == SAID


ENVIRONMENTS = (
    {"LC_ALL": "C"}, {"LC_ALL": "xx_YY.nonsense", "LANG": "C"}, {"PYTHONUTF8": "0", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONIOENCODING": "cp1252"}, {"PYTHONIOENCODING": "nonsense", "PYTHONHASHSEED": "nonsense", "PYTHONTRACEMALLOC": "nonsense"},
    {"PYTHONPATH": "/nonsense", "PYTHONHOME": "/nonsense", "PYTHONSTARTUP": "/nonsense", "PYTHONUSERBASE": "/nonsense"},
    {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONINSPECT": "1", "PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1", "PYTHONVERBOSE": "2",
     "PYTHONOPTIMIZE": "2", "PYTHONPROFILEIMPORTTIME": "1", "PYTHONDEBUG": "1"},
    {"PATH": ""}, {"PATH": "/nonsense", "TMPDIR": "/nonsense", "TZ": "nonsense", "TERM": "", "COLUMNS": "x", "USER": "", "LOGNAME": ""},
    {"MEMHOOK_QUOTA_MAX": "nonsense", "MEMHOOK_QUOTA_WINDOW": "1e999"}, {"MEMHOOK_DEBUG": "1", "CLAUDE_PROJECT_DIR": "/nonsense"},
)


@pytest.mark.parametrize("env", ENVIRONMENTS, ids=lambda env: "%s=%s" % next(iter(env.items())))
def test_no_environment_keeps_a_hook_from_its_work(live, env):
    script = talk(live)
    for event in ("Stop", "SessionEnd"):
        fire(live, event, payload(live, event, script), env=env)
        assert is_captured(live, script)
    assert [segment["session"] for segment in live.spooled()] == [script.session]
    assert settle(live, script) == SAID


def test_home_may_be_unset_where_the_config_folder_is_named(bare):
    bare.env["CLAUDE_CONFIG_DIR"] = str(bare.config)
    bare.install()
    script = talk(bare)
    home = bare.env.pop("HOME")
    fire_all(bare, script)
    bare.env["HOME"] = home
    assert is_captured(bare, script)
    assert settle(bare, script) == SAID


def test_the_quota_of_a_config_file_may_be_nonsense(own):
    for number, value in enumerate(("1e999", "-1e999", "NaN", '"x"', "null", "[]", "{}", '{"a": 1}', "1e400")):
        (own.home / "config.json").write_text('{"quota_max": %s, "quota_window": %s, "worktrees": %s}' % (value, value, value))
        script = talk(own)
        fire(own, "SessionEnd", payload(own, "SessionEnd", script))
        assert len(own.spooled()) == number + 1, value


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777], ids=oct)
def test_everything_is_private_whatever_the_umask(bare, umask):
    bare.run("install", "--consent", "I CONSENT", "--no-mcp", umask=umask)
    script = talk(bare)
    script.answer("A long answer. " * 700)
    fire_all(bare, script, umask=umask)
    bare.run("drain", umask=umask)
    bare.run("pause", umask=umask)
    modes = {path: path.lstat().st_mode & 0o7777 for path in [bare.home, *bare.home.rglob("*")]}
    assert len([path for path in modes if path.suffix == ".md"]) == 2
    assert {str(path): oct(mode) for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_a_home_that_was_there_before_becomes_private(bare):
    bare.home.mkdir(mode=0o755)
    os.chmod(bare.home, 0o755)
    bare.install()
    assert oct(bare.home.stat().st_mode & 0o777) == oct(0o700)


def test_a_working_folder_that_is_deleted_does_not_matter(live, tmp_path):
    script = talk(live)
    for event in both():
        gone = tmp_path / event
        gone.mkdir()
        fire(live, event, payload(live, event, script, cwd=str(gone)), command="rmdir " + quote(gone) + "; %s", cwd=gone)
        assert is_captured(live, script), event
    assert settle(live, script) == SAID


@pytest.mark.parametrize("env", [{"CLAUDE_CONFIG_DIR": "relative"}, {"MEMHOOK_HOME": "relative"}, {"HOME": "relative"}], ids=str)
def test_a_relative_folder_in_a_working_folder_that_is_deleted_makes_no_noise(live, tmp_path, env):
    gone = tmp_path / "gone"
    script = talk(live)
    for event in both():
        gone.mkdir()
        fire(live, event, payload(live, event, script), command="rmdir " + quote(gone) + "; %s", cwd=gone, env=env)
    assert settle(live, script) == SAID


SHADOWS = ("json.py", "typing.py", "re.py", "os.py", "time.py", "sys.py", "codecs.py", "fcntl.py", "select.py", "importlib.py",
           "sitecustomize.py",
           "usercustomize.py", "memhook.py", "memhook/__init__.py", "json/__init__.py", "encodings/__init__.py", "importlib/machinery.py")


def test_nothing_that_lies_about_is_run_instead_of_the_standard_library_or_memhook(own, tmp_path):
    ran = tmp_path / "ran"
    code = "open(%r, 'a').write(__file__ + '\\n')\n" % str(ran)
    for folder in (own.config, own.project, own.user, own.home, own.config / "projects" / "p", own.config / "__pycache__"):
        for name in SHADOWS:
            path = folder / name
            if path.parent == own.config and name == "memhook.py":
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(code)
    own.env["PYTHONPATH"] = str(own.project)
    del own.env["MEMHOOK_AUTODRAIN"]
    script = talk(own)
    for folder in (own.project, own.config, own.home):
        fire_all(own, script, cwd=folder)
    wait_for_memory(own, script)
    assert not ran.exists(), ran.read_text()


def wait_for_memory(box, script):
    """Wait for the drain that a hook started."""
    wait_until(lambda: in_memory(box, script) == SAID and not os.listdir(box.home / "spool" / "new"), "the drain", pause=0.05)
    with memhook.Lock(box.api.path("drain.lock")) as lock:
        assert lock.acquire(20)


def test_hooks_and_the_drain_they_start_run_neither_claude_nor_git(own, tmp_path):
    ran = tmp_path / "ran"
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("claude", "git", "node", "python", "python3"):
        (programs / name).write_text("#!/bin/sh\necho %s >> %s\n" % (name, quote(ran)))
        (programs / name).chmod(0o755)
    (own.project / ".git").mkdir()
    (own.project / ".git" / "config").write_text('[remote "origin"]\n\turl = git@github.com:someone/thing.git\n')
    own.env["PATH"] = "%s:%s" % (programs, own.env["PATH"])
    del own.env["MEMHOOK_AUTODRAIN"]
    script = talk(own)
    started = own.command("SessionStart")
    done = subprocess.run(["/bin/sh", "-c", started], input=payload(own, "SessionStart", script, source="startup"), env=own.env,
                          cwd=own.project, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    fire_all(own, script)
    wait_for_memory(own, script)
    assert not ran.exists(), ran.read_text()
    assert own.memories()[0].front["project"] == "github.com/someone/thing"


# ---- the program

def test_bytecode_that_cannot_be_written_or_read_does_not_matter(own):
    cache = own.config / "__pycache__"
    script = talk(own)
    shutil.rmtree(cache)
    cache.write_text("no folder")
    fire_all(own, script)
    assert is_captured(own, script)
    cache.unlink()
    cache.mkdir(0o500)
    prefix = heeding_modes()
    fire_all(own, script, prefix=prefix)
    assert os.listdir(cache) == []
    cache.chmod(0o700)
    assert settle(own, script) == SAID


BYTECODE = {"empty": lambda data: b"", "cut in its head": lambda data: data[:10], "zeroed": lambda data: b"\0" * len(data),
            "cut": lambda data: data[:4_096], "zeroed at its end": lambda data: data[:4_096] + b"\0" * (len(data) - 4_096)}


def test_damaged_bytecode_does_not_matter(own):
    fire(own, "Stop")
    compiled, = (own.config / "__pycache__").glob("memhook.hook.*")
    whole = compiled.read_bytes()
    for name, damage in BYTECODE.items():
        compiled.write_bytes(damage(whole))
        script = talk(own)
        fire_all(own, script)
        assert is_captured(own, script), name


def test_with_memhook_debug_each_hook_tells_the_log_how_long_it_took(own):
    script, told = talk(own), []
    for setting in ({}, {"MEMHOOK_DEBUG": "1"}):
        own.env.update(setting)
        fire_all(own, script)
        lines = map(json.loads, (own.home / "memhook.log").read_bytes().splitlines() if (own.home / "memhook.log").exists() else ())
        told.append([event for event in lines if event["event"] == "hook"])
    assert told[0] == [] and {event["hook"] for event in told[1]} >= {"stop", "session-end"}
    assert all(0 <= event["milliseconds"] < 10_000 for event in told[1])


def test_hooks_are_silent_when_the_program_or_the_interpreter_is_gone(own, tmp_path):
    script = talk(own)
    program = own.config / "memhook.py"
    program.rename(tmp_path / "away.py")
    fire_all(own, script)
    program.mkdir()
    fire_all(own, script)
    program.rmdir()
    (tmp_path / "away.py").rename(program)
    gone = tmp_path / "python3"
    os.symlink(tmp_path / "nothing", gone)
    for event in both():
        command = own.command(event).replace(quote(memhook.stable_interpreter()), quote(gone))
        assert command.count(str(gone)) == 2
        fire(own, event, payload(own, event, script), command=command)
    assert not is_captured(own, script)
    assert settle(own, script) == SAID


def test_hooks_are_silent_when_the_program_is_damaged(own):
    script = talk(own)
    for content in (b"", b"<html>404: Not Found</html>\n", PROGRAM.read_bytes()[:60_000], b"\0" * 1_000):
        (own.config / "memhook.py").write_bytes(content)
        fire_all(own, script)


# ---- consent

NO_CONSENT = {
    "empty": b"", "garbage": b"\xff\0garbage", "cut": b'{"format":1,"capture":{"at":1', "null": b"null", "a list": b"[1]", "a number": b"1",
    "no format": b'{"capture":{"at":1}}',
    "another format": b'{"format":2,"capture":{"at":1}}', "no capture": b'{"format":1}', "capture a number": b'{"format":1,"capture":1}',
    "a time in words": b'{"format":1,"capture":{"at":"yesterday"}}', "a time that is null": b'{"format":1,"capture":{"at":null}}',
    "a time that is true": b'{"format":1,"capture":{"at":true},"pauses":[]}',
    "a time that is no number": b'{"format":1,"capture":{"at":NaN},"pauses":[]}',
    "a time without end": b'{"format":1,"capture":{"at":1e999},"pauses":[]}',
    "pauses a number": b'{"format":1,"capture":{"at":1},"pauses":5}',
    "pauses a word": b'{"format":1,"capture":{"at":1},"pauses":"never"}',
    "pauses of words": b'{"format":1,"capture":{"at":1},"pauses":[["a","b"]]}',
    "pauses an object": b'{"format":1,"capture":{"at":1},"pauses":{"from":1}}',
    "half a pause": b'{"format":1,"capture":{"at":1},"pauses":[[1]]}',
    "a pause from nowhere": b'{"format":1,"capture":{"at":1},"pauses":[[null,5]]}', "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name, event", list(zip(NO_CONSENT, itertools.cycle(("Stop", "SessionEnd")))))
def test_a_consent_that_cannot_be_understood_is_none(live, name, event):
    path = live.home / "consent.json"
    given = path.read_bytes()
    script = talk(live)
    before = sorted(live.home.rglob("*"))
    try:
        path.write_bytes(NO_CONSENT[name])
        fire(live, event, payload(live, event, script, last_assistant_message=SAID[1][1]))
        assert {file.name for file in set(live.home.rglob("*")) - set(before)} <= {"memhook.log"}
        assert not memhook.check_status(live.api, "/")["consent"]["capture"]
    finally:
        path.write_bytes(given)
    assert settle(live, script) == SAID


@pytest.mark.parametrize("name", ["checkpoints/KEY.json", "quota.json", "config.json", "consent.json", "memhook.log", "receipts.jsonl"])
def test_a_pipe_in_place_of_a_file_holds_no_hook_up(live, name):
    """open() of a FIFO waits for its other end, which nobody has."""
    script = talk(live)
    path = live.home / name.replace("KEY", memhook.transcript_key(str(script.path)))
    aside = path.with_name(path.name + ".aside")
    was_there = path.exists()
    if was_there:
        path.rename(aside)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    try:
        fire_all(live, script, seconds=10)
    finally:
        if path.is_fifo():
            path.unlink()
        if was_there:
            aside.replace(path)
    assert settle(live, script) == SAID


def test_without_a_consent_nothing_is_captured(live):
    path = live.home / "consent.json"
    script = talk(live)
    for is_folder in (False, True):
        path.rename(live.root / "consent.json")
        try:
            if is_folder:
                path.mkdir()
            fire_all(live, script)
        finally:
            if is_folder:
                path.rmdir()
            (live.root / "consent.json").rename(path)
        assert not is_captured(live, script)
    assert settle(live, script) == SAID


def test_a_child_of_ours_captures_nothing(live):
    script = talk(live)
    fire_all(live, script, env={"MEMHOOK_CHILD": "1"})
    assert not is_captured(live, script)
    assert settle(live, script) == SAID


def test_in_a_pause_nothing_is_captured_and_what_was_said_before_it_comes_later(own):
    consent = json.loads((own.home / "consent.json").read_text())
    consent["capture"]["at"] -= 1_000
    (own.home / "consent.json").write_text(json.dumps(consent))
    script = own.script("s%07d-live" % next(NUMBERS), start=time.time() - 500)
    script.prompt(SAID[0][1])
    script.answer(SAID[1][1])
    own.run("pause")
    for say in (script.prompt, script.answer):
        script.clock = time.time() - 1
        say("Said in the pause")
    fire_all(own, script, {"last_assistant_message": "Said in the pause"})
    assert not is_captured(own, script)
    own.run("resume")
    script.clock = time.time()
    script.prompt("On again?")
    assert settle(own, script) == SAID + [("prompt", "On again?")]
    assert [reason for _, _, reason in own.checkpoint(script)["withheld"]] == ["paused"]


# ---- our own files

def test_a_home_that_is_gone_is_not_made_again_by_a_hook(live, tmp_path):
    script = talk(live)
    live.home.rename(tmp_path / "away")
    try:
        fire_all(live, script)
        assert not live.home.exists()
        live.home.write_text("a file")
        fire_all(live, script)
        live.home.unlink()
    finally:
        (tmp_path / "away").rename(live.home)
    assert settle(live, script) == SAID


IN_THE_WAY = [(name, "file") for name in ("spool", "spool/new", "spool/tmp", "checkpoints", "seen")]
IN_THE_WAY += [(name, "folder") for name in ("memhook.log", "quota.json", "drain.lock", "receipts.jsonl")]
IN_THE_WAY += [(name, "link") for name in ("spool", "checkpoints", "seen", "memhook.log", "quota.json")]


@pytest.mark.parametrize("name, other", IN_THE_WAY, ids=lambda value: value)
def test_what_stands_in_the_place_of_our_files_loses_nothing(live, tmp_path, name, other):
    script = talk(live)
    fire(live, "Stop", payload(live, "Stop", script))
    script.answer("Long. " * 1_500)
    path, kept = live.home / name, tmp_path / "kept"
    if path.exists():
        path.rename(kept)
    {"file": path.touch, "folder": path.mkdir, "link": lambda: path.symlink_to(tmp_path / "no" / "where")}[other]()
    try:
        fire_all(live, script)
    finally:
        path.rmdir() if other == "folder" else path.unlink()
        if kept.exists():
            kept.rename(path)
    assert settle(live, script) == SAID + [("answer", "Long. " * 1_500)]


def test_a_home_that_may_not_be_written_loses_nothing(own):
    prefix = heeding_modes()
    script = talk(own)
    fire(own, "Stop", payload(own, "Stop", script))
    script.answer("Long. " * 1_500)
    for folder in [own.home, *(path for path in own.home.rglob("*") if path.is_dir())]:
        folder.chmod(0o500)
    fire_all(own, script, prefix=prefix)
    for folder in [own.home, *(path for path in own.home.rglob("*") if path.is_dir())]:
        folder.chmod(0o700)
    assert settle(own, script) == SAID + [("answer", "Long. " * 1_500)]


@pytest.mark.parametrize("blocks", [0, 1, 8])
def test_a_disk_that_is_full_loses_nothing(own, blocks):
    script = talk(own)
    script.answer("Long. " * 1_500)
    fire_all(own, script, command="ulimit -f " + str(blocks) + "; %s")
    assert not list((own.home / "spool").rglob("*.tmp"))
    assert settle(own, script) == SAID + [("answer", "Long. " * 1_500)]


def test_a_checkpoint_of_a_newer_memhook_is_left_alone(live):
    script = talk(live)
    fire(live, "Stop", payload(live, "Stop", script))
    path = memhook.checkpoint_path(live.api, memhook.transcript_key(str(script.path)))
    stored = live.checkpoint(script)
    newer = json.dumps({**stored, "format": 99}).encode()
    with open(path, "wb") as stream:
        stream.write(newer)
    script.answer("And more.")
    fire_all(live, script)
    with open(path, "rb") as stream:
        assert stream.read() == newer
    with open(path, "w") as stream:
        json.dump(stored, stream)
    assert settle(live, script) == SAID + [("answer", "And more.")]


DAMAGES = {
    "empty": b"", "binary": b"\xff\0" * 100, "cut": "cut", "a list": b"[1]", "an object": b"{}", "format null": {"format": None},
    "format a word": {"format": "x"},
    "parsed a word": {"parsed": "x"}, "parsed null": {"parsed": None}, "parsed too far": {"parsed": 10 ** 9},
    "turns a word": {"turns": "x"}, "turns short": {"turns": [["k"]]},
    "turns of numbers": {"turns": [[1, 2, 3, 4, 5, 6, 7, 8, 9]]}, "context a list": {"context": [1]}, "head null": {"head": None},
    "client short": {"client": [1]},
    "projects a list": {"projects": []}, "segment a word": {"segment": "x"}, "early null": {"early": None},
    "withheld a word": {"withheld": "x"}, "pending short": {"pending": ["a"]},
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_rebuilt(live, name):
    script = talk(live)
    script.answer("Long. " * 1_500)
    script.prompt("Next?")
    fire(live, "Stop", payload(live, "Stop", script))
    path = memhook.checkpoint_path(live.api, memhook.transcript_key(str(script.path)))
    damage, whole = DAMAGES[name], memhook.read_file(path)
    if isinstance(damage, dict):
        damage = json.dumps({**json.loads(whole), **damage}).encode()
    with open(path, "wb") as stream:
        stream.write(whole[:len(whole) // 2] if damage == "cut" else damage)
    script.answer("Done.")
    fire(live, "Stop", payload(live, "Stop", script))
    try:
        assert settle(live, script) == SAID + [("answer", "Long. " * 1_500), ("prompt", "Next?"), ("answer", "Done.")]
    finally:
        os.remove(path)


def test_a_torn_record_of_taken_lines_does_not_make_later_ones_be_taken_twice(own):
    script = talk(own)
    script.answer("Long. " * 1_500)
    fire(own, "Stop", payload(own, "Stop", script))
    key = memhook.transcript_key(str(script.path))
    with open(own.home / "seen" / key, "ab") as stream:
        stream.write(b"abc")  # a disk that was full took only so much
    script.answer("More. " * 1_500)
    fire(own, "Stop", payload(own, "Stop", script))
    os.remove(memhook.checkpoint_path(own.api, key))
    assert settle(own, script) == SAID + [("answer", "Long. " * 1_500), ("answer", "More. " * 1_500)]


# ---- PreCompact

def test_precompact_captures_like_stop_before_the_file_is_rewritten(live):
    script = talk(live)
    script.answer("Long. " * 1_500)
    fire(live, "PreCompact", payload(live, "PreCompact", script, trigger="auto", custom_instructions=""))
    assert is_captured(live, script)
    assert [segment["segment"] for segment in live.spooled() if segment["session"] == script.session] == [0]
    assert live.checkpoint(script)["state"] == "open"
    temp = script.path.with_suffix(".tmp")
    compacted = Script(temp, live.project, "c%07d-live" % next(NUMBERS))
    compacted.add(compacted.line("user", "This session is being continued from a previous conversation. Summary: …", isCompactSummary=True))
    compacted.prompt("Go on")
    os.replace(temp, script.path)
    fire(live, "Stop", payload(live, "Stop", script))
    kept = [turn for turn in settle(live, script) if not turn[1].startswith("This session is being continued")]
    assert kept == SAID + [("answer", "Long. " * 1_500), ("prompt", "Go on")]


def test_both_events_write_the_same_segments(own):
    stems = []
    for event in ("Stop", "PreCompact"):
        script = own.script("same-session", start=1_900_000_000)
        script.path.unlink(missing_ok=True)
        for text in ("One. ", "Two. ", "Three. "):
            script.prompt(text)
            script.answer(text * 1_000)
            fire(own, event, payload(own, event, script))
        stems.append(sorted(os.listdir(own.home / "spool" / "new")))
        for folder in ("spool", "seen", "checkpoints"):
            shutil.rmtree(own.home / folder)
    assert len(stems[0]) == 2 and stems[0] == stems[1]


def test_the_hooks_of_the_table_are_those_in_the_settings(live):
    settings = json.loads((live.config / "settings.json").read_text())
    assert sorted(settings["hooks"]) == sorted(spec.event for spec in memhook.HOOK_SPECS)
    assert all(re.search(r" (stop|session-end|session-start)$", live.command(spec.event)) for spec in memhook.HOOK_SPECS)
