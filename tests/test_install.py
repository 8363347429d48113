"""Installing, pausing, uninstalling, purging: consent first, nothing half, nothing left that runs. test_settings.py has settings.json itself."""
import ast
import contextlib
import fnmatch
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

import memhook
from conftest import PROGRAM, ROOT, Box, memory_folder, quote, tree
from standins import Claude
from terminal import at_terminal
from test_crash import CALLS, NO_STRACE, STRACE

pytestmark = pytest.mark.skipif(os.name == "nt", reason="a pseudo-terminal, /bin/sh and modes")

YES = ("install", "--consent", memhook.CONSENT_PHRASE, "--no-mcp")
SETTINGS = b'{\n  "model": "opus",\n  "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}\n}\n'
EVENTS = [spec.event for spec in memhook.HOOK_SPECS]
SECRET = "the plan is to move prices to integer cents"


@pytest.fixture
def tmp_path():
    with memory_folder() as root:
        yield root


@pytest.fixture
def bare(tmp_path):
    box = Box(tmp_path)
    (box.config / "settings.json").write_bytes(SETTINGS)
    return box


@pytest.fixture
def box(bare):
    bare.install()
    return bare


def typed(box, keys, *args, program=PROGRAM, **options):
    return at_terminal([box.python, program, *args], box.env, box.project, keys, **options)


def settings(box):
    return (box.config / "settings.json").read_bytes()


# ---- consent


@pytest.mark.parametrize("keys", [b"yes\n", b"i consent\n", b"\n", b"\x04", b"\x03", b"I CONSENT.\n", b"I  CONSENT\n", b"I CONSEN\x04\x04"])
def test_anything_but_the_words_writes_nothing(bare, keys):
    before = tree(bare.root)
    status, shown = typed(bare, keys, "install", "--no-mcp")
    assert status == (130 if keys == b"\x03" else 1)
    assert memhook.DISCLOSURE.split("\n")[0] in shown and "Traceback" not in shown and "memhook: nothing was installed" in shown
    assert ("the words are I CONSENT, in capitals" in shown) == (keys == b"i consent\n")
    assert tree(bare.root) == before


@pytest.mark.parametrize("keys", [b"I CONSENT\n", b"  I CONSENT \n"])
def test_the_words_install(bare, keys):
    status, shown = typed(bare, keys, "install", "--no-mcp")
    assert status == 0 and "memhook is on" in shown
    assert json.loads((bare.home / "consent.json").read_text())["capture"]["by"] == "typed"
    assert set(bare.status()["hooks"].values()) == {"installed"}
    assert typed(bare, None, "install", "--no-mcp")[0] == 0  # asked once only
    assert (bare.config / "settings.json.memhook-backup").read_bytes() == SETTINGS


def test_the_terminal_is_asked_where_stdin_is_a_pipe(bare):
    line = "printf 'I CONSENT\\n' | %s %s install --no-mcp" % (shlex.quote(bare.python), shlex.quote(str(PROGRAM)))
    before = tree(bare.root)
    assert at_terminal(["/bin/sh", "-c", line], bare.env, bare.project, b"no\n")[0] == 1
    assert tree(bare.root) == before
    assert at_terminal(["/bin/sh", "-c", line], bare.env, bare.project, b"I CONSENT\n")[0] == 0
    assert bare.status()["consent"]["capture"]


@pytest.mark.parametrize("keys, status", [(b"I CONSENT\n", 0), (b"yes\n", 1), (b"\x04", 1)])
def test_a_terminal_on_stdin_that_is_not_the_sessions_own_is_asked_too(bare, keys, status):
    before = tree(bare.root)
    ours, theirs = os.openpty()
    os.write(ours, keys)
    done = subprocess.run([bare.python, str(PROGRAM), "install", "--no-mcp"], env=bare.env, cwd=bare.project, stdin=theirs, capture_output=True, start_new_session=True, timeout=60)
    os.close(ours)
    os.close(theirs)
    assert done.returncode == status, done.stderr
    assert (tree(bare.root) == before) == bool(status)


@pytest.mark.parametrize("phrase", ["", "yes", "i consent", " I CONSENT", "I CONSENT\n"])
def test_another_phrase_on_the_command_line_writes_nothing(bare, phrase):
    before = tree(bare.root)
    done = bare.run("install", "--consent", phrase, check=False)
    assert done.returncode == 1 and "I CONSENT" in done.stderr and tree(bare.root) == before


def test_without_a_terminal_words_on_stdin_are_no_consent(bare):
    before = tree(bare.root)
    done = subprocess.run([bare.python, str(PROGRAM), "install"], env=bare.env, cwd=bare.project, input="I CONSENT\n", capture_output=True, text=True, start_new_session=True)
    assert done.returncode == 1 and "--consent" in done.stderr and tree(bare.root) == before


def test_a_dry_run_says_each_hook_and_writes_nothing(bare):
    before = tree(bare.root)
    said = bare.run("install", "--dry-run").stderr
    assert all(spec.event in said for spec in memhook.HOOK_SPECS)
    assert tree(bare.root) == before


def test_a_dry_run_names_every_file_that_an_install_writes(bare):
    (bare.user / ".local" / "bin").mkdir(parents=True)
    bare.env["PATH"] = "%s:%s" % (bare.user / ".local" / "bin", bare.env["PATH"])
    Claude(bare, MCP)
    said, before = bare.run("install", "--dry-run").stderr, set(tree(bare.root))
    bare.run(*OFFER)
    new = [path for path in set(tree(bare.root)) - before if (bare.root / path).is_file() and "claude-calls" not in str(path)]
    assert len(new) >= 8
    for path in new:
        name = "__pycache__" if "__pycache__" in str(path) else os.path.basename(str(path))
        assert name in said, path
    assert "MCP server" not in bare.run("install", "--dry-run", "--no-mcp").stderr


def test_a_dry_run_on_an_installed_copy_says_only_what_it_would_change(box):
    said = box.run("install", "--dry-run", "--no-mcp").stderr
    assert said == "settings.json is as it should be\n"
    path = box.config / "settings.json"
    stored = json.loads(path.read_bytes())
    del stored["hooks"]["PreCompact"]
    path.write_text(json.dumps(stored).replace("session-start", "session-end"), "utf-8")
    said = box.run("install", "--dry-run", "--no-mcp").stderr
    assert re.findall(r"Would (\w+ \w+) .*: (\w+) -> ", said) == [("mend in", "SessionStart"), ("add to", "PreCompact")]
    box.env["PATH"] = ""  # no claude there
    assert "there is no claude command here" in box.run("install", "--dry-run").stderr


def test_copying_the_file_enables_nothing(bare):
    shutil.copy(PROGRAM, bare.config)
    assert bare.run("status", program=bare.config / "memhook.py", script=True).stdout.startswith("memhook %s: capture is off" % memhook.VERSION)
    assert settings(bare) == SETTINGS and not bare.home.exists()
    assert typed(bare, b"I CONSENT\n", "install", "--no-mcp", program=bare.config / "memhook.py")[0] == 0
    assert bare.status()["consent"]["capture"]


def test_the_disclosure_names_the_places_and_the_ways_out(bare):
    shown = bare.run("install", "--consent", "no", check=False).stderr
    for word in (str(bare.home), str(bare.config / "memhook.py"), str(bare.config / "settings.json"), "pause", "uninstall --purge", ".memhook-off", "MEMHOOK_OFF=1", "sends nothing"):
        assert word in shown


# ---- hooks that must do nothing


def _no_consent(box):
    (box.home / "consent.json").unlink()


def _paused(box):
    box.run("pause")


def _child(box):
    box.env["MEMHOOK_CHILD"] = "1"


def _own_child(box):
    return memhook.CHILD_MARK + "\nWrite the digest of this."


def _empty(box):
    return None


@pytest.mark.parametrize("guard", [_no_consent, _paused, _child, _own_child, _empty])
def test_a_guarded_hook_is_a_silent_no_op_and_runs_no_model(box, guard):
    claude = Claude(box)
    box.run("config", "set", "distiller", "claude", "--consent", memhook.CONSENT_PHRASE)
    script = box.script()
    prompt = SECRET
    if guard in (_own_child, _empty):
        prompt = guard(box)
    else:
        guard(box)
    if prompt is None:
        script.path.write_bytes(b"")
    else:
        script.prompt(prompt)
        script.answer(SECRET + ", said Claude. " * 700)  # more than a segment
    del box.env["MEMHOOK_AUTODRAIN"]
    for event in EVENTS:
        done = box.hook(event, script)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), event
    for _ in range(100):  # until the drains that were started have gone
        done = box.run("drain", "--json", check=False)
        if done.returncode == 0:
            break
        time.sleep(0.1)
    assert json.loads(done.stdout)["stored"] == 0 and box.memories() == [] and box.spooled() == []
    assert claude.calls == []
    assert SECRET.encode() not in b"".join(value[2] or b"" for path, value in tree(box.home).items() if not isinstance(value[2], str))


# ---- off, on, looked at


def test_what_is_said_in_a_pause_stays_out_after_it(box):
    script = box.script(start=time.time())
    for words, command in (("before the pause", ["pause"]), ("while it lasts", ["resume"]), ("after the pause", [])):
        script.clock = time.time() - 0.9
        script.prompt(words)
        script.clock = time.time() - 0.9
        script.answer(words + ", yes")
        assert box.hook("Stop", script).stdout == b""
        time.sleep(1.0)
        if command:
            box.run(*command)
    box.hook("SessionEnd", script)
    box.drain()
    assert [text for kind, text in box.said() if kind == "prompt"] == ["before the pause", "after the pause"]
    assert json.loads(box.run("verify", "--json").stdout)["totals"]["withheld"] == 2


def test_off_and_status_are_also_ways_to_call_install(box):
    box.run("install", "--off")
    assert "paused" in box.run("install", "--status").stdout
    done = box.run(*YES)
    assert "paused as before" in done.stderr and box.status()["consent"]["paused"]  # installing again is no resume
    box.run("resume")
    assert "capture is on" in box.run("install", "--status").stdout


def test_without_consent_there_is_nothing_to_pause(bare):
    for args in (["pause"], ["resume"], ["install", "--off"]):
        done = bare.run(*args, check=False)
        assert done.returncode == 1 and "install" in done.stderr
    assert not bare.home.exists()


def test_install_makes_damaged_bytecode_anew(box):
    box.hook("Stop", box.script())
    cache = box.config / "__pycache__"
    for path in cache.iterdir():
        path.write_bytes(path.read_bytes()[:3_000])
    box.install()
    box.hook("Stop", box.script())
    names = sorted(path.name.rpartition(".cpython")[0] for path in cache.iterdir())
    assert names == ["memhook", "memhook.hook"] and all(path.stat().st_size > 50_000 for path in cache.iterdir())


# ---- uninstall, purge


def _kept(box):
    """A session that has become a memory."""
    script = box.script()
    script.prompt("Why integer cents?")
    script.answer("Because 19.99 * 100 is not 1999.")
    box.hook("SessionEnd", script)
    assert box.drain()["stored"] == 1


def test_uninstall_leaves_the_memories_and_nothing_that_runs(box):
    _kept(box)
    memories = {path: value for path, value in tree(box.home / "memories").items()}
    hooks = {event: box.command(event) for event in EVENTS}
    assert any(".hook." in name for name in os.listdir(box.config / "__pycache__"))
    done = box.run("uninstall", program=box.config / "memhook.py")
    assert "Your memories stay in %s\n" % box.home in done.stderr and "rm -r %s\n" % quote(box.home) in done.stderr
    assert sorted(os.listdir(box.config)) == ["memhook-data", "projects", "settings.json"] and settings(box) == SETTINGS
    assert tree(box.home / "memories") == memories and not (box.home / "consent.json").exists()
    before = tree(box.root)
    for command in hooks.values():  # a client that still has them
        ran = subprocess.run(["/bin/sh", "-c", command], input=b"{}", env=box.env, capture_output=True)
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert tree(box.root) == before
    again = box.run("uninstall")
    assert "memhook was not installed." in again.stderr and settings(box) == SETTINGS


def test_uninstall_leaves_no_folder_where_nothing_was_kept(box):
    box.run("search", "anything")  # makes an index
    done = box.run("uninstall")
    assert sorted(os.listdir(box.config)) == ["settings.json"] and "stay" not in done.stderr and "rm -r" not in done.stderr


@pytest.mark.parametrize("name", ["config.json", "memories/p/mine.txt", "memories/p/.gitignore", "memories/poetry.lock", "hub.db"])
def test_uninstall_leaves_what_a_person_could_miss(box, name):
    (box.home / name).parent.mkdir(parents=True, exist_ok=True)
    (box.home / name).write_text("{}")
    assert "stays in %s" % box.home in box.run("uninstall").stderr and (box.home / name).exists() and (box.home / ".gitignore").exists()


@pytest.mark.parametrize("kept", [False, True])
def test_uninstall_speaks_of_the_token_of_a_team_and_of_the_hub_that_it_leaves(box, kept):
    if kept:
        _kept(box)
    url, token = "http://127.0.0.1:9", "mh_" + "a1" * 20
    (box.home / "team-token").write_text(token)
    (box.home / "team.json").write_text(json.dumps({"format": 1, "url": url, "tenant": "t", "name": "me", "role": "member"}))
    (box.home / "hub.db").write_text("the team's")
    said = box.run("uninstall").stderr
    assert "hub's database (hub.db)" in said and ("Your memories, and" in said) == kept and ("No memory was made" in said) != kept
    assert "To erase it all, the hub too: rm -r %s\n" % quote(box.home) in said
    assert "Your token of %s" % url in said and "memhook team leave" in said and token not in said
    subprocess.run(shlex.split(said.split("erase it alone: ")[1].split("\n")[0]), check=True)
    assert not (box.home / "team-token").exists() and (box.home / "hub.db").exists()


def test_uninstall_leaves_a_folder_that_memhook_did_not_make(bare, tmp_path):
    bare.env["MEMHOOK_HOME"] = str(tmp_path / "theirs")
    (tmp_path / "theirs" / "empty").mkdir(parents=True)
    bare.run("uninstall")
    assert (tmp_path / "theirs" / "empty").is_dir()


def test_a_gitignore_of_a_person_outlives_install_uninstall_and_purge(bare, tmp_path):
    bare.home = tmp_path / "repository"
    bare.env["MEMHOOK_HOME"] = str(bare.home)
    bare.home.mkdir()
    (bare.home / ".gitignore").write_text("*.pyc\n")
    bare.install()
    bare.run("uninstall")
    assert (bare.home / ".gitignore").read_text() == "*.pyc\n"
    bare.install()
    _, shown = typed(bare, b"PURGE\n", "uninstall", "--purge")
    assert "but for what is not memhook's: .gitignore" in shown and os.listdir(bare.home) == [".gitignore"]
    assert (bare.home / ".gitignore").read_text() == "*.pyc\n"


@pytest.mark.parametrize("make", [lambda path: path.touch(), lambda path: path.symlink_to("/nowhere/at all")])
def test_what_is_no_folder_is_no_home_and_nothing_is_asked(bare, make):
    make(bare.home)
    before = tree(bare.root)
    done = bare.run("install", check=False)
    assert (done.returncode, done.stderr.split("\n")[0]) == (1, "memhook: %s is no folder" % bare.home) and tree(bare.root) == before


@pytest.mark.parametrize("record", ["{", "[]", '{"original": 5}', '{"original": "{", "left": "x"}'])
def test_a_damaged_install_json_keeps_nobody_from_the_uninstall(box, record):
    (box.home / "install.json").write_text(record)
    box.run("uninstall")
    assert settings(box) == SETTINGS and not os.path.exists(memhook.program_path(box.api))


def test_a_second_life_finds_the_memories_of_the_first(box):
    _kept(box)
    box.run("uninstall")
    box.install()
    assert len(box.memories()) == 1 and "cents" in box.run("search", "integer", "cents").stdout


@pytest.mark.parametrize("keys", [b"\n", b"purge\n", b"I CONSENT\n", b"\x04", b"\x03"])
def test_a_purge_that_is_not_confirmed_does_nothing_at_all(box, keys):
    _kept(box)
    before = tree(box.root)
    status, shown = typed(box, keys, "uninstall", "--purge")
    assert status == (130 if keys == b"\x03" else 2) and "with 1 memory. " in shown
    assert "memhook: %snothing was erased, nothing uninstalled\n" % ("" if keys == b"\x03" else "PURGE was not typed: ") in shown
    assert tree(box.root) == before


def test_a_purge_leaves_nothing_of_ours(box):
    _kept(box)
    box.run("search", "cents")
    status, shown = typed(box, b"PURGE\n", "uninstall", "--purge")
    assert status == 0 and "Erased" in shown
    assert sorted(os.listdir(box.config)) == ["projects", "settings.json"] and settings(box) == SETTINGS


def test_a_purge_spares_what_a_person_put_beside_the_memories(box):
    (box.home / "my-notes.txt").write_text("mine")
    (box.home / "photos").mkdir()
    status, shown = typed(box, b"PURGE\n", "uninstall", "--purge")
    assert status == 0 and "my-notes.txt, photos" in shown
    assert sorted(os.listdir(box.home)) == ["my-notes.txt", "photos"]


def test_a_purge_waits_for_a_drain_that_works(box):
    _kept(box)
    lock = memhook.Lock(str(box.home / "drain.lock"))
    assert lock.acquire()
    before = tree(box.root)
    erased = threading.Thread(target=memhook.uninstall_and_erase, args=(box.api, lambda text: None))
    erased.start()
    erased.join(0.5)
    assert erased.is_alive() and tree(box.root) == before, "should it wait in vain, the program is still there to try again"
    lock.release()
    erased.join()
    assert not box.home.exists() and not (box.config / "memhook.py").exists()


def test_a_purge_goes_on_where_a_process_writes_into_the_home_meanwhile(box):
    spool, count = memhook.Spool(box.api.path("spool")), 0

    def write_until_it_is_gone():
        nonlocal count
        with contextlib.suppress(FileNotFoundError):
            while count < 10_000:
                spool.put("stem-%d" % count, b"{}")
                count += 1
                time.sleep(0.001)

    writing = threading.Thread(target=write_until_it_is_gone)
    writing.start()
    while count < 20:
        time.sleep(0.001)
    memhook.uninstall_and_erase(box.api, lambda text: None)
    writing.join()
    assert count < 10_000 and not box.home.exists()


@pytest.mark.parametrize("original", [SETTINGS, None])
def test_a_home_that_only_the_install_was_told_of_is_found_by_the_uninstall(bare, original):
    path = bare.config / "settings.json"
    path.write_bytes(original) if original else path.unlink()
    bare.env["MEMHOOK_HOME"] = str(bare.user / "my memories")
    bare.install()
    assert (bare.user / "my memories" / "consent.json").exists()
    del bare.env["MEMHOOK_HOME"]
    status, shown = typed(bare, b"PURGE\n", "uninstall", "--purge")
    assert status == 0 and not (bare.user / "my memories").exists(), shown
    assert (path.read_bytes() if path.exists() else None) == original and os.listdir(bare.config) == ["settings.json"][:1 if original else 0]


def test_a_home_that_holds_other_things_is_refused(bare):
    for place in ("/", str(bare.user), "~", str(bare.config), str(bare.root), str(bare.config) + "/"):
        bare.env["MEMHOOK_HOME"] = place
        before = tree(bare.root)
        done = bare.run(*YES, check=False)
        assert done.returncode == 1 and "MEMHOOK_HOME" in done.stderr, place
        assert tree(bare.root) == before
    bare.env["MEMHOOK_HOME"] = str(bare.user / "my memories")
    bare.install()


def test_every_file_that_the_program_keeps_is_known_to_the_purge():
    named = set(re.findall(r'home\.path\("([^"]+)"', PROGRAM.read_text("utf-8"))) - {"index-cache.%d.tmp"}
    assert len(named) > 20
    assert [name for name in sorted(named) + ["index.db-wal", "hub.db-shm", "memhook.log.1", "config.json.123.tmp", ".gitignore"] if not memhook._OWN_FILES.fullmatch(name)] == []


def test_the_readme_has_every_file_that_the_program_keeps():
    table = (ROOT / "README.md").read_text("utf-8").partition("## What is written")[2].partition("\n## ")[0]
    known = [word.rstrip("/").split("/")[0] for word in re.findall(r"`([^`]+)`", table)]
    named = set(re.findall(r'home\.path\("([\w.-]+)"', PROGRAM.read_text("utf-8")))
    assert [name for name in sorted(named) if not any(fnmatch.fnmatch(name, word) for word in known)] == []


# ---- what is half there


def _remove(*names):
    def remove(box):
        for name in names:
            path = box.config / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return remove


def _cut_program(box):
    path = box.config / "memhook.py"
    path.write_bytes(path.read_bytes()[:70_000])


def _home_is_a_file(box):
    shutil.rmtree(box.home)
    box.home.write_bytes(b"")


@pytest.mark.parametrize("broken", [
    _remove("memhook.py"), _remove("memhook-data"), _remove("memhook-data/consent.json"), _remove("memhook.py", "__pycache__"), _remove("memhook.py", "memhook-data", "__pycache__"),
    _cut_program, _home_is_a_file, lambda box: (box.config / "memhook.py").write_bytes(b""), lambda box: (box.config / "memhook.py").write_bytes(b"\0" * 9),
])
def test_a_hook_of_a_half_removed_installation_is_silent(box, broken):
    script = box.script()
    script.prompt(SECRET)
    broken(box)
    before = tree(box.config)
    for event in EVENTS:
        done = box.hook(event, script)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), event
    bytecode = {str(path) for path in box.config.glob("__pycache__/*")} | {str(box.config / "__pycache__")}
    working = box.home.is_dir() and (box.home / "consent.json").exists() and (box.config / "memhook.py").exists()
    assert working or tree(box.config).keys() - before.keys() <= bytecode
    box.run("uninstall")
    assert settings(box) == SETTINGS and not (box.config / "memhook.py").exists()


def test_a_vanished_interpreter_is_silent_and_found_by_status(tmp_path):
    folder = tmp_path / "python that goes"
    folder.mkdir()
    (folder / "own-python").symlink_to(os.path.realpath(sys.executable))
    box = Box(tmp_path / "box", str(folder / "own-python"))
    box.install()
    data = (box.config / "settings.json").read_bytes()
    command = memhook.parse_hook(box.command("Stop"))
    gone = json.dumps(str(folder / "python3"))[1:-1].encode()
    (box.config / "settings.json").write_bytes(data.replace(b" %s " % command.interpreter.encode(), b" '%s' " % gone))
    assert memhook.parse_hook(box.command("Stop")).interpreter == str(folder / "python3")
    assert set(box.status()["hooks"].values()) == {"stale"}
    script = box.script()
    script.prompt(SECRET)
    for event in EVENTS:
        done = box.hook(event, script)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    box.install()
    assert set(box.status()["hooks"].values()) == {"installed"}


# ---- the interpreter, and what it loads


def test_the_interpreter_is_the_one_that_runs_by_a_name_that_upgrades_keep():
    path = memhook.stable_interpreter()
    assert os.path.isabs(path) and os.path.realpath(path) == os.path.realpath(sys.executable)
    assert re.fullmatch(r"python3?", os.path.basename(path))


NO_SYSTEM_PYTHON = not os.path.islink("/usr/bin/python3") or os.system("/usr/bin/python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))'")


@pytest.mark.skipif(bool(NO_SYSTEM_PYTHON), reason="no system Python of 3.9 with a name that stays")
def test_of_the_systems_python_the_name_without_a_version_is_noted(tmp_path):
    box = Box(tmp_path, os.path.realpath("/usr/bin/python3"))
    assert re.search(r"python3\.\d+$", box.python)
    box.install()
    assert memhook.parse_hook(box.command("Stop")).interpreter == "/usr/bin/python3"


def test_a_virtual_environment_may_go(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    box = Box(tmp_path / "box", str(tmp_path / "venv" / "bin" / "python3"))
    box.install()
    shutil.rmtree(tmp_path / "venv")
    assert set(Box(tmp_path / "box").status()["hooks"].values()) == {"installed"}
    script = box.script()
    script.prompt("Still here?")
    box.hook("SessionEnd", script)
    assert len(box.spooled()) == 1


SHADOWS = ("json.py", "os.py", "re.py", "time.py", "typing.py", "hashlib.py", "memhook/__init__.py", "m.py", "importlib/__init__.py", "sitecustomize.py", "usercustomize.py", "__pycache__/json.py",
           "select.py", "sqlite3.py", "shlex.py", "argparse.py")


def test_nothing_that_lies_in_the_config_folder_or_the_project_changes_what_runs(tmp_path):
    box = Box(tmp_path)
    folder = box.user / ".local" / "bin"
    folder.mkdir(parents=True)
    box.env["PATH"] = "%s:%s" % (folder, box.env["PATH"])
    for place, name in itertools.product((box.config, box.project), SHADOWS):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("open(%r, 'a').write(%r)\nraise SystemExit(9)\n" % (str(tmp_path / "shadowed"), str(path)))
    box.env.update(PYTHONPATH=str(box.config), PYTHONSTARTUP=str(box.config / "json.py"))
    shutil.copy(PROGRAM, box.config)
    clean = {name: value for name, value in box.env.items() if name != "PYTHONPATH"}
    done = subprocess.run([box.python, "-S", str(box.config / "memhook.py"), *YES], env=clean, cwd=box.config, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    script = box.script()
    script.prompt("Is this kept?")
    for event in EVENTS:
        assert box.hook(event, script).returncode == 0
    assert json.loads(subprocess.run([str(folder / "memhook"), "drain", "--json"], env=box.env, cwd=box.config, capture_output=True, check=True).stdout)["stored"] == 1
    assert box.said() == [("prompt", "Is this kept?")]
    assert not (tmp_path / "shadowed").exists(), (tmp_path / "shadowed").read_text()


def test_a_hook_that_does_not_work_is_named_and_there_is_no_consent(bare):
    """Hooks swallow their own errors but for a check: a program whose Stop fails must not pass for installed."""
    broken = bare.root / "memhook.py"
    run = "run_hook(argv[0], hooks[argv[0]])"
    broken.write_text(PROGRAM.read_text("utf-8").replace("os._exit(%s)" % run, "os._exit(7 if argv[0] == 'stop' else %s)" % run), "utf-8")
    done = bare.run(*YES, program=broken, check=False)
    assert done.returncode == 1 and re.search(r"Stop: exit status 7; PreCompact: exit status 7", done.stderr) and "SessionEnd" not in done.stderr
    assert not (bare.home / "consent.json").exists()
    bare.run("uninstall")
    assert settings(bare) == SETTINGS


# ---- one list of hooks


def test_there_is_one_list_of_hooks():
    lists = []
    for node in ast.walk(ast.parse(PROGRAM.read_text("utf-8"))):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
            names = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and part.value in EVENTS]
            if len(set(names)) > 1:
                lists.append(node)
    assert [type(node) for node in lists] == [ast.Tuple] and len(lists[0].elts) == len(memhook.HOOK_SPECS)
    words = set(EVENTS) | {spec.subcommand for spec in memhook.HOOK_SPECS}
    assert not [word for word in words if re.search(r"(?<![\w-])%s(?![\w-])" % word, (ROOT / "install.sh").read_text("utf-8"))]


# ---- the command memhook


@pytest.fixture
def with_bin(bare):
    (bare.user / ".local" / "bin").mkdir(parents=True)
    bare.env["PATH"] = "%s:%s" % (bare.user / ".local" / "bin", bare.env["PATH"])
    return bare


def test_the_command_is_made_where_path_finds_it_and_goes_whatever_path_says_then(with_bin):
    with_bin.env["MEMHOOK_HOME"] = "%s/it's \"my\" $HOME; é" % with_bin.user
    with_bin.install()
    path = with_bin.user / ".local" / "bin" / "memhook"
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    env = {name: value for name, value in with_bin.env.items() if name != "MEMHOOK_HOME"}
    found = json.loads(subprocess.run([str(path), "status", "--json"], env=env, cwd=with_bin.project, capture_output=True, check=True).stdout)
    assert found["home"] == with_bin.env["MEMHOOK_HOME"] and found["consent"]["capture"] and set(found["hooks"].values()) == {"installed"}
    env["PATH"] = os.defpath
    subprocess.run([str(path), "uninstall"], env=env, cwd=with_bin.project, capture_output=True, check=True)
    assert not path.exists() and settings(with_bin) == SETTINGS


def test_the_command_says_so_where_its_program_is_gone(with_bin):
    with_bin.env["CLAUDE_CONFIG_DIR"] = "%s/it's 100%%" % with_bin.user
    with_bin.install()
    program = pathlib.Path(memhook.program_path(with_bin.api))
    program.unlink()
    done = subprocess.run(["memhook", "status"], env=with_bin.env, cwd=with_bin.project, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "memhook: %s is gone: install it again\n" % program)


def test_where_no_command_memhook_can_be_made_the_line_to_type_instead_is_told(bare):
    said = bare.install().stderr
    line, = re.findall("No command `memhook` was made: .* Type instead: (.*)", said)
    assert subprocess.run(line + " status", shell=True, env=bare.env, cwd=bare.project, capture_output=True).returncode == 0
    (bare.user / "bin").mkdir()
    bare.env["PATH"] = "%s:%s" % (bare.user / "bin", bare.env["PATH"])
    assert "No command" not in bare.install().stderr
    (bare.user / "bin" / "memhook").write_text("of another")
    assert "No command `memhook` was made" in bare.install().stderr


def test_an_install_prints_the_facts_as_json_where_they_are_asked_for(bare):
    for args in (["--dry-run"], ["--consent", "I CONSENT", "--no-mcp"], ["--off"]):
        done = bare.run("install", *args, "--json")
        assert json.loads(done.stdout) == bare.status() and done.stderr
    assert bare.status()["consent"]["paused"]


@pytest.mark.parametrize("names", [["MEMHOOK_HOME"], ["CLAUDE_CONFIG_DIR"], ["CLAUDE_CONFIG_DIR", "MEMHOOK_HOME"]])
def test_the_commands_that_install_prints_work_as_printed(bare, names):
    env = {**bare.env, "PATH": "/usr/bin:/bin"}
    bare.env.update({name: "%s/it's \"my\" $%s" % (bare.user, name) for name in names})
    said = bare.install().stderr

    def run(label, *words):
        line = said.split(label)[1].split("\n")[0].strip()
        return subprocess.run(" ".join([line, *words]), shell=True, env=env, cwd=bare.project, capture_output=True, text=True, check=True)

    looked = run("Look at it:", "--json")
    found = json.loads(looked.stdout)
    assert found["home"] == str(bare.api.root) and found["consent"]["capture"] and set(found["hooks"].values()) == {"installed"}
    assert looked.stderr == ""
    run("Undo it:")
    assert not os.path.exists(bare.api.path("consent.json")) and not os.path.exists(memhook.program_path(bare.api))


def test_a_home_that_only_the_install_was_told_of_is_named_where_another_is_looked_at(bare):
    there = str(bare.user / "it's my memory")
    bare.env["MEMHOOK_HOME"] = there
    bare.install()
    del bare.env["MEMHOOK_HOME"]
    for args in (["status"], ["doctor"], ["verify"], ["search", "cents"], ["install", "--dry-run"]):
        line, = [line for line in bare.run(*args, check=False).stderr.split("\n") if "but the hooks keep all in" in line]
        assert there in line and shlex.split(line.split("before the command: ")[1]) == ["MEMHOOK_HOME=" + there], args
    for args, label in ((["status"], "To look where the hooks keep all: "), (["verify"], "To look where the hooks keep all: "),
                        (["doctor"], "what mends it:  ")):
        line = bare.run(*args, check=False).stdout.split(label)[1].split("\n")[0]
        looked = subprocess.run(line + " --json", shell=True, env=bare.env, cwd=bare.project, capture_output=True, text=True)
        assert shlex.split(line)[0] == "MEMHOOK_HOME=" + there and shlex.split(line)[-1:] == args
        assert "nobody" not in looked.stdout and looked.stderr == "" and json.loads(looked.stdout), args
    bare.env["MEMHOOK_HOME"] = there
    assert bare.run("status").stderr == ""
    (bare.config / "settings.json").write_text("{")  # and where it cannot be known, the command says what it has to say
    del bare.env["MEMHOOK_HOME"]
    assert bare.run("status").stderr == ""


@pytest.mark.parametrize("make", [lambda path: path.write_text("#!/bin/sh\necho mine\n"), lambda path: path.symlink_to("/nowhere"),
                                  lambda path: path.mkdir()])
def test_a_foreign_command_of_our_name_stays(with_bin, make):
    path = with_bin.user / ".local" / "bin" / "memhook"
    make(path)
    before = tree(path.parent)
    assert "python3 %s status" % (with_bin.config / "memhook.py") in with_bin.install().stderr
    with_bin.run("uninstall")
    assert tree(path.parent) == before


def test_the_command_of_another_claude_folder_stays(with_bin):
    with_bin.install()
    path = with_bin.user / ".local" / "bin" / "memhook"
    before = path.read_bytes()
    with_bin.env["CLAUDE_CONFIG_DIR"] = str(with_bin.user / "work account")
    with_bin.install()
    assert path.read_bytes() == before
    with_bin.run("uninstall")
    assert path.read_bytes() == before


# ---- Claude's MCP servers

MCP = """
path = os.path.join(os.environ["HOME"], ".claude.json")
stored = json.load(open(path)) if os.path.exists(path) else {"theme": "dark"}
servers = stored.setdefault("mcpServers", {})
words = sys.argv[2:]
if words[:4] == ["add", "--scope", "user", "memhook"]:
    if "memhook" in servers: sys.exit(1)
    servers["memhook"] = {"type": "stdio", "command": words[5], "args": words[6:], "env": {}}
elif words == ["remove", "--scope", "user", "memhook"]:
    del servers["memhook"]
else:
    sys.exit(1)
json.dump(stored, open(path, "w"))
"""
OFFER = ("install", "--consent", memhook.CONSENT_PHRASE)


def servers(box):
    return json.loads((box.user / ".claude.json").read_text())["mcpServers"]


def test_the_mcp_server_comes_once_works_and_goes(bare):
    claude = Claude(bare, MCP)
    bare.run(*OFFER)
    entry = servers(bare)["memhook"]
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}})
    answer = subprocess.run([entry["command"], *entry["args"]], input=request + "\n", env=bare.env, cwd=bare.project, capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout.split("\n")[0])["result"]["serverInfo"]["name"] == "memhook"
    bare.run(*OFFER)
    assert len(claude.calls) == 1
    bare.run("uninstall")
    assert servers(bare) == {}


def test_the_mcp_server_looks_into_the_home_that_only_the_install_was_told_of(bare):
    Claude(bare, MCP)
    bare.env["MEMHOOK_HOME"] = str(bare.user / "my memories")
    bare.run(*OFFER)
    bare.run("save", SECRET)
    del bare.env["MEMHOOK_HOME"]
    entry = servers(bare)["memhook"]
    call = {"name": "memory_search", "arguments": {"query": "integer cents"}}
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
    answer = subprocess.run([entry["command"], *entry["args"]], input=request + "\n", env=bare.env, cwd=bare.project, capture_output=True, text=True, timeout=60)
    assert SECRET in answer.stdout, answer


def test_a_claude_that_only_its_installer_knows_is_found_too(bare):
    """~/.local/bin is where Claude's installer puts it; an editor's PATH, and that of a shell from before, does not have it."""
    claude = Claude(bare, MCP)
    (bare.user / ".local" / "bin").mkdir(parents=True)
    claude.path.rename(bare.user / ".local" / "bin" / "claude")
    bare.run(*OFFER)
    assert servers(bare)["memhook"]["args"][-1] == "mcp"
    bare.run("uninstall")
    assert servers(bare) == {}


def test_an_entry_of_an_earlier_version_is_replaced(bare):
    Claude(bare, MCP)
    old = json.loads((pathlib.Path(__file__).parent / "data" / "earlier_boots.json").read_text())["second"]
    (bare.user / ".claude.json").write_text(json.dumps({"mcpServers": {"memhook": {"command": "/gone/python3", "args": ["-I", "-S", "-c", old, "/gone/memhook.py", "mcp"]}}}))
    bare.run(*OFFER)
    assert servers(bare)["memhook"]["args"][3] == memhook.BOOT


def test_a_foreign_server_of_our_name_stays(bare):
    claude = Claude(bare, MCP)
    (bare.user / ".claude.json").write_text(json.dumps({"mcpServers": {"memhook": {"type": "http", "url": "https://example.org"}}}))
    assert "claude mcp add" in bare.run(*OFFER).stderr
    bare.run("uninstall")
    assert servers(bare) == {"memhook": {"type": "http", "url": "https://example.org"}} and claude.calls == []


@pytest.mark.parametrize("content", [None, "{", "[]", '{"mcpServers": []}', '{"mcpServers": {"memhook": "x"}}', '{"mcpServers": {"memhook": {"args": 5}}}'],
                         ids=lambda content: content or "a folder")
def test_a_file_of_the_client_that_tells_nothing_stops_neither_install_nor_uninstall(bare, content):
    path = bare.user / ".claude.json"
    path.mkdir() if content is None else path.write_text(content)
    Claude(bare, "sys.exit(1)")
    assert "claude mcp add" in bare.run(*OFFER).stderr
    assert "memhook is off" in bare.run("uninstall").stderr and not (bare.config / "memhook.py").exists()
    assert path.is_dir() if content is None else path.read_text() == content


def test_an_entry_that_cannot_be_removed_is_spoken_of(bare):
    Claude(bare, MCP)
    bare.run(*OFFER)
    Claude(bare, "sys.exit(1)")
    assert "claude mcp remove --scope user memhook" in bare.run("uninstall").stderr


def test_without_claude_the_command_is_printed(bare):
    bare.env["PATH"] = "/usr/bin:/bin"
    if memhook.find_claude(bare.api):
        pytest.skip("there is a claude")
    said = bare.run(*OFFER).stderr
    line = said[said.index("claude mcp add"):].split("memhook is on")[0]
    program = str(bare.config / "memhook.py")
    assert shlex.split(line) == ["claude", "mcp", "add", "--scope", "user", "memhook", "--", "python3", program, "mcp"]


@pytest.mark.parametrize("form", ["memhook", "python3"])
def test_an_entry_that_a_person_made_as_it_was_printed_goes_with_the_uninstall(bare, form):
    (bare.user / ".local" / "bin").mkdir(parents=True)
    bare.env["PATH"] = "%s:%s" % (bare.user / ".local" / "bin", bare.env["PATH"])
    Claude(bare, "sys.exit(1)")
    said = bare.run(*OFFER).stderr
    assert "\n  claude mcp add --scope user memhook -- memhook mcp\n" in said
    words = {"memhook": ["memhook", "mcp"], "python3": ["python3", str(bare.config / "memhook.py"), "mcp"]}[form]
    (bare.user / ".claude.json").write_text(json.dumps({"mcpServers": {"memhook": {"command": words[0], "args": words[1:]}}}))
    Claude(bare, MCP)
    bare.run("uninstall")
    assert servers(bare) == {}


def test_an_older_python_is_told_in_one_line(bare):
    code = "import sys; sys.path.insert(0, %r); import memhook; sys.version_info = (3, 8, 18); sys.exit(memhook.main(['install']))" % str(PROGRAM.parent)
    done = subprocess.run([sys.executable, "-B", "-c", code], env=bare.env, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == "memhook: needs Python 3.9 or newer; this is 3.8, %s\n" % sys.executable and not bare.home.exists()


# ---- Windows: the forms only


@pytest.mark.parametrize("user", ["me", "J D'oe & co", "Zoë (work) $x %TEMP% ^"])
def test_a_hook_on_windows_is_quoted_for_the_bash_that_claude_code_runs_there(user):
    program, python = "C:\\Users\\%s\\.claude\\memhook.py" % user, "C:\\Program Files\\Python313\\python.exe"
    for spec in memhook.HOOK_SPECS:
        command = memhook.hook_command(spec, program, python, "D:\\mem hook")
        line = memhook.parse_hook(command)
        assert (line.interpreter, line.program, line.subcommand, line.home, line.current) == (python, program, spec.subcommand, "D:\\mem hook", True)
        words = subprocess.run(["/bin/sh", "-c", command.replace("test ! -x", "printf '%s\\0'", 1).partition(" || ")[0]], capture_output=True, text=True).stdout
        assert words == python + "\0"
        after = command.rpartition(" || exec ")[2]
        words = subprocess.run(["/bin/sh", "-c", "printf '%s\\0' " + after], capture_output=True, text=True).stdout.split("\0")[:-1]
        assert words == [python, "-I", "-S", "-c", memhook.BOOT, program, spec.subcommand, "D:\\mem hook"]


def test_on_windows_hooks_are_checked_by_gits_bash(monkeypatch, bare):
    bare.env["CLAUDE_CODE_GIT_BASH_PATH"] = "C:\\Git\\bin\\bash.exe"
    home = bare.api
    with monkeypatch.context() as patch:
        patch.setattr(memhook.os, "name", "nt")
        words = memhook.shell_words(home, "the line")
        places = memhook._launcher_places(home)
    assert words == ["C:\\Git\\bin\\bash.exe", "-c", "the line"] and places == []
    assert memhook.shell_words(home, "the line") == ["/bin/sh", "-c", "the line"]


def test_on_windows_the_drain_has_no_window_and_no_shell(monkeypatch):
    started = []
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "CREATE_NO_WINDOW", 0x08000000, raising=False)
        patch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x00000200, raising=False)
        patch.setattr(subprocess, "Popen", lambda command, **options: started.append((command, options)))
        memhook._start_on_windows(["python.exe", "-c", memhook.BOOT, "C:\\a b\\memhook.py", "drain"], {"A": "1"})
    (command, options), = started
    assert command[-1] == "drain" and options["creationflags"] == 0x08000200 and not options.get("shell")
    assert {options[name] for name in ("stdin", "stdout", "stderr")} == {subprocess.DEVNULL} and options["env"] == {"A": "1"}


# ---- killed at each step

EVERY = 1 if os.environ.get("MEMHOOK_CRASH") == "all" else 6  # of the points that move nothing into its place
COMMITS = re.compile(r"rename|unlink|mkdir|rmdir")


def changing_calls(log, root):
    """(name, how many of that name came before and with it, its text) of each call in an strace log that changes something below a folder."""
    counts, found = {}, []
    for name, given in re.findall(r"(?m)^(?:\d+ +)?(\w+)\((.*)$", log):
        counts[name] = counts.get(name, 0) + 1
        reads = name.startswith("open") and not re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", given)
        if name == "exit_group" or (str(root) in given.split(" = ")[0] and not reads):
            found.append((name, counts[name], given))
    return found


class Accident:
    """A command that is killed at one of its system calls after another, always from the same files."""

    def __init__(self, box, *args):
        self.box, self.args = box, args
        self.copy = box.root.parent / (box.root.name + "-copy")
        shutil.copytree(box.root, self.copy, symlinks=True)
        self.log = box.root.parent / "strace.log"

    def run(self, inject=""):
        shutil.rmtree(self.box.root)
        shutil.copytree(self.copy, self.box.root, symlinks=True)
        self.log.write_bytes(b"")
        command = [STRACE[0], "-y", "-o", str(self.log), "-e", "trace=" + CALLS, *(["-e", "inject=" + inject] if inject else [])]  # no -f: not its children
        done = subprocess.run([*command, self.box.python, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM), *self.args], env=self.box.env, cwd=self.box.project,
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        return done, self.log.read_text("utf-8", "replace")

    def points(self):
        done, log = self.run()
        assert done.returncode == 0, done.stderr
        calls = changing_calls(log, self.box.user)
        return [(name, nth) for number, (name, nth, given) in enumerate(calls)
                if COMMITS.match(name) or name == "exit_group" or "settings.json" in given or number % EVERY == 0]


def quiet(text):
    pass


@pytest.mark.skipif(bool(NO_STRACE), reason=NO_STRACE or "strace")
@pytest.mark.parametrize("original", [SETTINGS, None, "earlier"], ids=["settings", "none", "earlier version"])
def test_an_install_that_is_killed_at_any_step_leaves_the_old_file_or_the_new_and_can_go_on_or_back(tmp_path, original):
    box = Box(tmp_path / "box")
    path = box.config / "settings.json"
    plain = SETTINGS if original else None
    if original == "earlier":
        from test_settings import our_line
        value = json.loads(SETTINGS)
        value["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": our_line("first", "stop", "/old/memhook.py")}]})
        original = json.dumps(value).encode()
        plain = json.dumps(json.loads(SETTINGS)).encode()
    if original:  # the program is there and compiled: without settings.json it is copied as well, and that takes longer
        box.install()
        shutil.rmtree(box.home)
        path.write_bytes(original)
    accident = Accident(box, *YES)
    points = accident.points()
    new = path.read_bytes()
    assert len(points) > 8
    home, killed = box.api, 0
    for number, (name, nth) in enumerate(points):
        done, _ = accident.run("%s:signal=SIGKILL:when=%d" % (name, nth))
        killed += done.returncode == -signal.SIGKILL
        now = path.read_bytes() if path.exists() else None
        assert now in (original, new), (name, nth)
        program = box.config / "memhook.py"
        assert not program.exists() or program.read_bytes() == PROGRAM.read_bytes()
        if now == new:  # the backup came first
            assert original is None or (box.config / "settings.json.memhook-backup").read_bytes() == original
            assert memhook.read_record(home)["left"] == memhook.file_hash(new)
        if memhook.read_consent(home):  # the marker came last
            assert now == new and set(memhook.hook_states(home).values()) == {"installed"}
        if number % 8 == 0:
            memhook.install(home, memhook.CONSENT_PHRASE, False, quiet)
            assert path.read_bytes() == new and memhook.read_consent(home)
        memhook.uninstall(home, quiet)
        left = path.read_bytes() if path.exists() else None
        assert left == plain, (name, nth)
        assert set(os.listdir(box.config)) - {"memhook-data"} == ({"settings.json"} if plain else set()), (name, nth)
    assert killed == len(points)


@pytest.mark.skipif(bool(NO_STRACE), reason=NO_STRACE or "strace")
@pytest.mark.parametrize("original", [SETTINGS, None], ids=["settings", "none"])
def test_an_uninstall_that_is_killed_at_any_step_is_finished_by_the_next(tmp_path, original):
    box = Box(tmp_path / "box")
    path = box.config / "settings.json"
    path.write_bytes(original) if original else None
    box.install()
    new, home = path.read_bytes(), box.api
    accident = Accident(box, "uninstall")
    points = accident.points()
    assert len(points) > 6
    for name, nth in points:
        done, _ = accident.run("%s:signal=SIGKILL:when=%d" % (name, nth))
        assert done.returncode == -signal.SIGKILL
        now = path.read_bytes() if path.exists() else None
        assert now in (original, new), (name, nth)
        assert now == original or memhook.read_consent(home)  # hooks go first
        memhook.uninstall(home, quiet)
        assert (path.read_bytes() if path.exists() else None) == original
        assert set(os.listdir(box.config)) - {"memhook-data"} == ({"settings.json"} if original else set())


def test_two_uninstalls_at_once_are_one(box):
    threads = [threading.Thread(target=box.run, args=("uninstall",)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings(box) == SETTINGS and sorted(os.listdir(box.config)) == ["settings.json"]


def test_a_folder_whose_name_is_not_utf_8_is_refused_in_one_line(tmp_path):
    try:
        os.makedirs(os.fsencode(tmp_path) + b"/latin\xe9")
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    box = Box(os.fsdecode(os.fsencode(tmp_path) + b"/latin\xe9"))
    (box.config / "settings.json").write_bytes(b'{"model": "opus"}')
    done = box.run("install", "--consent", "I CONSENT", "--no-mcp", check=False)
    assert done.returncode == 1 and "is not UTF-8" in done.stderr and "bug" not in done.stderr
    assert (box.config / "settings.json").read_bytes() == b'{"model": "opus"}' and not (box.home / "consent.json").exists()
