"""The command line: exit statuses, what goes to stdout and what to stderr, help, pipes that break, and the demo."""
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import memhook
from conftest import PROGRAM, ROOT, Box, heeding_modes

NAMES = [command.name for command in memhook.COMMANDS]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    box = Box(tmp_path_factory.mktemp("commands"))
    box.install()
    return box


def run(box, *args, env=(), **options):
    """Run the program with its streams as `options` say."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "encoding": "utf-8", "timeout": 60, **options}
    return subprocess.run([sys.executable, str(PROGRAM), *args], env={**box.env, **dict(env)}, cwd=box.project, **options)


def shell(box, line, **options):
    """Run a shell line in which "$@" is the program."""
    return subprocess.run(["/bin/sh", "-c", line, "sh", sys.executable, str(PROGRAM)], env=box.env, cwd=box.project, capture_output=True,
                          text=True, timeout=60, start_new_session=True, **options)


def failed(done, status):
    """Check that a command failed as it should: one line for a person, perhaps a hint, nothing on stdout, no traceback."""
    assert done.returncode == status, done.stderr
    assert done.stdout == "" and done.stderr.startswith("memhook: ") and "Traceback" not in done.stderr
    return done.stderr


# ---- exit statuses

DONE = (["status"], ["drain", "--retry-dead"], ["--version"], ["--help"], [], ["install", "--dry-run"], ["install", "--status"], ["resume"])


@pytest.mark.parametrize("args", DONE, ids=lambda args: " ".join(args) or "nothing")
def test_what_is_done_exits_0(installed, args):
    done = installed.run(*args)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert (done.stdout == "") == (args in (["resume"], ["install", "--dry-run"]))


def test_what_a_person_can_mend_exits_1_with_one_line_and_a_hint(bare):
    assert "install" in failed(bare.run("pause", check=False), 1)
    assert "install" in failed(bare.run("resume", check=False), 1)
    assert "I CONSENT" in bare.run("install", "--consent", "yes", check=False).stderr
    assert bare.run("install", "--consent", "i consent", check=False).returncode == 1
    (bare.config / "settings.json").write_text('{"a": 1,}')
    assert "settings.json" in failed(bare.run("install", "--consent", "I CONSENT", check=False), 1)
    assert (bare.config / "settings.json").read_text() == '{"a": 1,}'
    assert not bare.home.exists()


def test_a_command_line_that_makes_no_sense_exits_2(installed):
    for args in (["--nonsense"], ["status", "--nonsense"], ["drain", "extra"], ["install", "--consent"], ["status", "--json=x"]):
        done = installed.run(*args, check=False)
        assert (done.returncode, done.stdout) == (2, ""), args
        assert "usage: memhook" in done.stderr and "Traceback" not in done.stderr, args


@pytest.mark.parametrize("line, fault, hint", [
    ("serach foo", "there is no command serach", "did you mean: memhook search"), ("Status", "there is no command Status", "did you mean: memhook status"),
    ("join", "there is no command join", "did you mean: memhook team join"), ("frobnicate", "there is no command frobnicate", "memhook --help lists the commands"),
    ("hub toekn list", "there is no command hub toekn", "did you mean: memhook hub token"),
    ("hub token frobnicate", "there is no command hub token frobnicate", "memhook hub token add | list | revoke"),
    ("hub token", "a command is missing after hub token", "memhook hub token add | list | revoke"),
    ("team", "a command is missing after team", "memhook team join | leave | status | propose | outbox | pull"),
], ids=lambda value: value)
def test_a_word_that_names_no_command_is_answered_with_the_nearest_or_with_what_can_follow(installed, line, fault, hint):
    assert failed(installed.run(*line.split(), check=False), 2) == "memhook: %s\n         %s\n" % (fault, hint)


def test_arguments_that_a_command_has_not_are_answered_with_its_own_usage(installed):
    for args in (["status", "--nonsense"], ["drain", "extra"], ["team", "pull", "x"]):
        stderr = installed.run(*args, check=False).stderr
        assert "usage: memhook %s [-h]" % " ".join(args[:-1]) in stderr and "unrecognized arguments: " + args[-1] in stderr, args


@pytest.mark.parametrize("query", ["", "   ", "!!!", '"', "*", "_", "🦓"])
def test_a_query_without_words_finds_nothing_and_says_why(installed, query):
    done = installed.run("search", "--all", query)
    assert done.stdout == "" and done.stderr == "Nothing found anywhere: there are no words in the query.\n"
    assert json.loads(installed.run("search", "--all", "--json", query).stdout)["results"] == []


def test_a_query_that_is_missing_and_a_number_below_1_are_usage_errors(installed):
    assert installed.run("search", "--all", check=False).returncode == 2
    for number in ("0", "-1", "x"):
        done = installed.run("search", "-n", number, "word", check=False)
        assert (done.returncode, done.stdout) == (2, "") and "a whole number from 1, not " + number in done.stderr


def test_erasing_everything_without_a_terminal_exits_2_and_erases_nothing(installed):
    before = sorted(installed.root.rglob("*"))
    assert "--purge" in failed(installed.run("uninstall", "--purge", check=False), 2)
    done = shell(installed, 'exec 0<&-; exec "$@" uninstall --purge')
    failed(done, 2)
    assert sorted(installed.root.rglob("*")) == before


def test_a_bug_exits_3_and_names_the_log_but_shows_no_traceback(installed):
    code = ("import sys; sys.dont_write_bytecode = True; sys.path.insert(0, %r); import memhook\n"
            "def broken(home, options): return {}['a secret of a transcript']\n"
            "memhook.COMMANDS = (memhook.Command('status', broken, 'Break.', 'memhook status'),)\n"
            "sys.exit(memhook.main(['status']))" % str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], env=installed.env, cwd=installed.project, capture_output=True, text=True)
    assert "KeyError" in failed(done, 3) and str(installed.home / "memhook.log") in done.stderr
    line = json.loads((installed.home / "memhook.log").read_text().splitlines()[-1])
    assert {name: line[name] for name in ("event", "command", "error")} == {"event": "bug", "command": "status", "error": "KeyError"}
    assert line["where"].startswith("broken:")
    assert "secret" not in done.stderr + json.dumps(line)


def test_a_drain_that_is_running_already_exits_75(installed):
    with memhook.Lock(str(installed.home / "drain.lock")) as lock:
        assert lock.acquire()
        done = run(installed, "drain", env={"MEMHOOK_BACKGROUND": "1"})
    failed(done, 75)


def interrupt(box, when):
    """Run a drain, press ^C when `when()` holds; -> CompletedProcess."""
    heed = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # a shell's background job ignores it
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM), "drain"], env=box.env, **pipes, **heed)
    deadline = time.monotonic() + 20
    while not when() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_a_running_drain_that_is_interrupted_exits_130_and_the_next_one_goes_on(tmp_path):
    box = Box(tmp_path)
    box.api.create()
    memhook.grant_consent(box.api, "flag")
    folder = box.home / "spool" / "new"
    folder.mkdir(parents=True)
    count = 80
    for number in range(count):
        checkpoint = memhook.Checkpoint("/t.jsonl", "s")
        checkpoint.segment = number
        text = "Question %d. " % number * 200
        turns = [memhook.Turn("u%d/0" % number, "prompt", text, number, number + 1, 1.7e9 + number, "/w", "", "/w")]
        made = memhook.make_segment("0123456789abcdef0123", checkpoint, memhook.Chunk(turns))
        (folder / (memhook.segment_stem(made) + ".json")).write_text(json.dumps(made))
    done = interrupt(box, lambda: (box.home / "receipts.jsonl").exists())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    stored = len(box.memories())
    assert 0 < stored < count
    assert box.drain()["left"] == 0
    assert sorted(memory.turns[0].key for memory in box.memories()) == sorted("u%d/0" % number for number in range(count))
    assert len(list(memhook.memory_files(box.api))) == count


def test_a_drain_that_waits_and_is_interrupted_exits_130(installed):
    started = time.monotonic()
    installed.run("--version")
    start_seconds = time.monotonic() - started  # of this machine, as busy as it is
    with memhook.Lock(str(installed.home / "drain.lock")) as lock:
        assert lock.acquire()
        pressed = time.monotonic() + min(0.5 + 5 * start_seconds, 20)
        done = interrupt(installed, lambda: time.monotonic() > pressed)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_hook_never_exits_2_whatever_follows_its_name(installed):
    for args in (["stop", "--help"], ["session-end", "--nonsense"], ["stop", "a", "b", "c"], ["session-start", ""]):
        done = installed.run(*args, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), args


# ---- stdout and stderr

def test_what_people_are_told_goes_to_stderr_and_results_to_stdout(tmp_path):
    box = Box(tmp_path)
    for args in (["install", "--consent", "I CONSENT", "--no-mcp"], ["pause"], ["install", "--off"], ["resume"], ["uninstall"]):
        done = box.run(*args)
        assert done.stdout == "" and done.stderr, args
    for args in (["status"], ["drain"]):
        done = box.run(*args)
        assert done.stdout and done.stderr == "", args


def test_json_is_one_line_of_json_and_nothing_else(installed):
    for args in (["status", "--json"], ["drain", "--json"], ["install", "--status", "--json"]):
        done = installed.run(*args)
        assert done.stderr == "" and done.stdout.count("\n") == 1 and isinstance(json.loads(done.stdout), dict), args


@pytest.mark.parametrize("name", ["consent.json", "config.json", "install.json", "quota.json", "checkpoints/x.json", "receipts.jsonl",
                                  "tombstones.jsonl", "spool/new/x.json",
                                  "memories/x.md"])
def test_a_damaged_file_of_ours_is_no_bug(tmp_path, name):
    box = Box(tmp_path)
    box.api.create()
    memhook.grant_consent(box.api, "flag")
    (box.config / "settings.json").write_text("{}")
    path = box.home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in (b"", b"\xff\0", b"[1]", b'"x"', b"null", b"5", b"{}", b'{"format":null}', b'{"key":"x","segment":null}', b"[" * 50_000):
        path.write_bytes(content)
        assert list(memhook.check_status(box.api, "/")) and memhook.hook_states(box.api), content
        memhook.drain(box.api, memhook.read_consent(box.api))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"[1]")
    done = box.run("uninstall", check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A machine with a memory and an open session."""
    box = Box(tmp_path_factory.mktemp("used"))
    box.install()
    script = box.script()
    script.prompt("Why integer cents?")
    script.answer("Because 19.99 * 100 is no whole number. " * 300)
    box.hook("SessionEnd", script)
    box.drain()
    script.prompt("What is left?")
    box.hook("Stop", script)
    return box, script


ODD_PLACES = {
    "checkpoint": lambda box: next((box.home / "checkpoints").iterdir()),
    "receipts": lambda box: box.home / "receipts.jsonl",
    "consent": lambda box: box.home / "consent.json",
    "settings": lambda box: box.home / "config.json",
    "memory": lambda box: next((box.home / "memories").rglob("*.md")),
}
ODD_COMMANDS = ("status", "doctor", "verify", "search cents", "list", "get 00000000", "import --dry-run", "import --yes", "drain", "save x", "reindex",
                "forget 00000000", "config list", "config set recall off", "pause", "resume", "team status", "uninstall")


@pytest.mark.skipif(os.name == "nt", reason="there is no FIFO on Windows")
@pytest.mark.parametrize("kind", ["folder", "FIFO"])
@pytest.mark.parametrize("place", ODD_PLACES)
def test_what_is_no_file_where_a_file_belongs_hangs_nothing_and_is_no_bug(used, place, kind):
    box, script = used
    kept = box.root / "kept"
    shutil.copytree(box.user, kept, symlinks=True)
    try:
        path = ODD_PLACES[place](box)
        path.unlink(missing_ok=True)
        path.mkdir() if kind == "folder" else os.mkfifo(path)
        for event in ("Stop", "SessionStart", "SessionEnd"):
            done = box.hook(event, script)
            assert (done.returncode, done.stderr) == (0, b""), event
        for command in ODD_COMMANDS:
            done = box.run(*command.split(), check=False, timeout=30)
            assert done.returncode in (0, 1, 2, 4) and "Traceback" not in done.stderr, (command, done.stderr)
            assert not done.stderr.startswith("memhook: Is a directory") or "\n         memhook doctor tells" in done.stderr, command
    finally:
        shutil.rmtree(box.user)
        kept.rename(box.user)


# ---- help

def test_the_version_is_one_line(installed):
    assert installed.run("--version").stdout == "memhook %s\n" % memhook.VERSION


def test_help_names_every_command_and_every_hook(installed):
    text = installed.run("--help").stdout
    assert installed.run().stdout == text
    groups = {}
    for command in memhook.COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group and group not in groups:
            groups[group] = installed.run(*group.split(), "--help").stdout
            assert re.search(r"(?m)^    %s\s" % group.split()[0], text), group
        assert re.search(r"(?m)^    %s\s+%s" % (name, re.escape(command.summary[:30])), groups[group] if group else text), command.name
    assert all(name in text for name in memhook.HOOKS)
    assert "examples:" in text


@pytest.mark.parametrize("name", NAMES)
def test_help_of_a_command_is_a_sentence_examples_and_options(installed, name):
    command = next(command for command in memhook.COMMANDS if command.name == name)
    done = installed.run(*name.split(), "--help")
    text = " ".join(done.stdout.split())
    assert done.stderr == "" and command.summary in text and command.summary.endswith(".") and "Traceback" not in done.stdout
    assert "examples:" in done.stdout
    for example in command.examples.split("\n"):
        assert "\n  %s\n" % example in done.stdout + "\n"
    for argument in command.arguments:
        if argument.name.startswith("-"):
            assert argument.name in text and argument.options.get("help"), argument.name
            assert " ".join(argument.options["help"].split()) in text, argument.name
        else:
            assert argument.options.get("metavar", argument.name) in text, argument.name


def test_every_example_in_the_help_is_a_command_line_that_is_understood():
    parser = memhook.build_parser()
    for command in memhook.COMMANDS:
        for example in command.examples.split("\n"):
            program, *args = shlex.split(example)
            if program != "claude":  # how to tell Claude Code of it
                assert program == "memhook" and parser.parse_args(args[:args.index("<")] if "<" in args
                                                                  else args).command == command.name, example


def test_commands_have_names_of_their_own_and_none_is_a_hook():
    assert len(set(NAMES)) == len(NAMES) and not set(NAMES) & set(memhook.HOOKS)


# ---- output that nobody reads

@pytest.mark.parametrize("args", [["status"], ["status", "--json"], ["drain", "--json"], ["--help"], ["status", "--help"], ["--version"],
                                  [], ["demo"]], ids=lambda args: " ".join(args) or "nothing")
def test_a_reader_that_went_away_is_no_error(installed, tmp_path, args):
    reader, writer = os.pipe()
    os.close(reader)
    done = run(installed, *args, env={"TMPDIR": str(tmp_path)}, stdout=writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_pipe_into_head_is_no_error(installed):
    for args in ("status", "status --json", "--help"):
        done = shell(installed, '{ "$@" %s; echo "status $?" >&2; } | head -c 1' % args)
        assert len(done.stdout) == 1 and done.stderr == "status 0\n", args


@pytest.mark.parametrize("streams", [">&-", "2>&-", ">&- 2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_bug(installed, streams):
    for args in ("status", "resume", "search zebra", "verify", "reindex", "mcp"):
        done = shell(installed, 'exec "$@" %s %s' % (args, streams))
        assert done.returncode == 0 and "Traceback" not in done.stderr, (args, done.stderr)
        assert args != "search zebra" or done.stdout == "", "what a person is told is no result"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_output_that_cannot_be_written_exits_1_with_one_line(installed):
    for args in (["status"], ["status", "--json"], ["drain"]):
        with open("/dev/full", "w") as full:
            done = run(installed, *args, stdout=full)
        assert done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("memhook: "), args


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("line, statuses", [
    ("get nonsense", (1,)), ("search --source dreams zebra", (2,)), ("status --nonsense", (1, 2)), ("resume", (1,)), ("search zebra", (1,))])
def test_an_error_that_nobody_can_be_told_has_its_exit_status(installed, line, statuses):
    """argparse of older Pythons lets its usage fail, and that is an expected failure, 1."""
    assert shell(installed, 'exec "$@" %s 2>/dev/full' % line).returncode in statuses


def test_a_reader_of_errors_that_went_away_is_no_error(installed):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert run(installed, "resume", stderr=writing).returncode == 0
    finally:
        os.close(writing)


def test_a_command_that_used_up_the_descriptors_says_so_in_one_line(installed):
    code = ("import os, resource, sys; sys.dont_write_bytecode = True; sys.path.insert(0, %r); import memhook\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)); held = []\n"
            "def greedy(home, options):\n"
            "    while True: held.append(os.open(os.devnull, os.O_RDONLY))\n"
            "memhook.COMMANDS = (memhook.Command('status', greedy, 'Take all.', 'memhook status'),)\n"
            "sys.exit(memhook.main(['status']))" % str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], env=installed.env, cwd=installed.project, capture_output=True, text=True)
    assert "Too many open files" in failed(done, 1) and done.stderr.count("\n") == 1


def test_output_is_utf_8_whatever_the_locale_says(tmp_path):
    box = Box(tmp_path / "日本 é")
    for env in ({"LC_ALL": "C"}, {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "cp1252:strict"}):
        for args in (["status"], ["status", "--json"]):
            done = run(box, *args, env=env, text=False, encoding=None)
            assert done.returncode == 0 and "日本 é" in done.stdout.decode("utf-8"), (env, args, done.stderr)


# ---- the demo

def snapshot(*folders):
    """Every path in the folders with what a write would change."""
    paths = [path for folder in folders for path in [folder, *sorted(folder.rglob("*"))]]
    return {str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.lstat().st_size) for path in paths}


def demo(box, folder, prefix=(), **env):
    """Run the demo with its temporary folder in `folder`; -> its stdout and its folder."""
    folder.mkdir()
    environ = {**box.env, "TMPDIR": str(folder), **env}
    environ = {name: value for name, value in environ.items() if value is not None}
    command = [*prefix, sys.executable, str(PROGRAM), "demo"]
    done = subprocess.run(command, env=environ, cwd=box.project, capture_output=True, text=True, encoding="utf-8", timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    made = list(folder.iterdir())
    assert len(made) == 1 and made[0].name.startswith("memhook-demo-")
    return done.stdout, made[0]


def test_the_demo_shows_a_session_becoming_memories_and_touches_nothing_else(installed, tmp_path):
    before = snapshot(installed.root)
    text, folder = demo(installed, tmp_path / "temp it's \"here\"")
    assert snapshot(installed.root) == before
    files = sorted(folder.rglob("*.md"))
    assert len(files) == 2 and all(str(path) in text for path in files)
    assert '"stored": 2' in text and "exit status 0" in text and "exit status -9" in text
    turns = [turn for path in files for turn in memhook.parse_memory(path.read_bytes()).turns]
    assert [turn.kind for turn in turns if turn.kind == "prompt"] == ["prompt"] * 3
    assert len(turns) == len({turn.key for turn in turns})
    assert b"ghp_" not in b"".join(path.read_bytes() for path in (folder / "claude" / "memhook-data").rglob("*") if path.is_file())
    assert "rm -r" in text and "Traceback" not in text
    proof, damaged, after = text.partition("$ memhook verify")[2].partition("$ memhook verify")[0], text.split("$ memhook verify")[2], text.partition("7. ")[2]
    assert "Nothing is lost and nothing is stored twice." in proof and "missing" not in proof
    assert "edited  " in damaged and "were edited or deleted since" in damaged
    assert "$ memhook search" in after and "high" in after and "integer cents" in after.split("$ memhook get")[1]
    assert json.loads(subprocess.run([sys.executable, str(PROGRAM), "verify", "--json"], stdout=subprocess.PIPE, env={**installed.env, "HOME": str(folder), "CLAUDE_CONFIG_DIR": str(folder / "claude")},
                                     check=True).stdout)["totals"]["edited"] == 0  # the damage was undone


def test_the_demo_works_without_a_home_and_in_any_state_of_this_one(installed, tmp_path):
    environments = ({"HOME": None}, {"HOME": "/nonsense/nowhere", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
                    {"HOME": "", "MEMHOOK_HOME": "/nonsense", "CLAUDE_CONFIG_DIR": "/nonsense", "MEMHOOK_OFF": "1", "MEMHOOK_CHILD": "1",
                     "MEMHOOK_BACKGROUND": "1"})
    for number, env in enumerate(environments):
        text, folder = demo(installed, tmp_path / str(number), **env)
        assert '"stored": 2' in text, env


def test_the_demo_works_where_home_may_not_be_written(installed, tmp_path):
    prefix = heeding_modes()
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    text, folder = demo(installed, tmp_path / "temp", prefix, HOME=str(home))
    assert '"stored": 2' in text and list(home.iterdir()) == []


@pytest.mark.parametrize("step", ["1. ", "3. ", "   $ memhook verify"])
def test_a_demo_that_is_interrupted_says_so_and_leaves_no_folder(installed, tmp_path, step):
    folder = tmp_path / "temp"
    folder.mkdir()
    process = subprocess.Popen([sys.executable, str(PROGRAM), "demo"], env={**installed.env, "TMPDIR": str(folder)}, cwd=installed.project,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", start_new_session=True)
    line = next(line for line in process.stdout if line.startswith(step))
    os.killpg(process.pid, signal.SIGINT)  # as the terminal does it: to all that run there
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "the demo was stopped; %s" % folder in said and "is removed" in said and "Traceback" not in said, (line, said)
    assert list(folder.iterdir()) == []


def test_a_demo_whose_reader_has_gone_leaves_no_folder(installed, tmp_path):
    folder = tmp_path / "temp"
    folder.mkdir()
    with subprocess.Popen([sys.executable, str(PROGRAM), "demo"], env={**installed.env, "TMPDIR": str(folder)}, cwd=installed.project,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)
    assert list(folder.iterdir()) == []
