"""status and list: the facts, for a person and as JSON; rotation and sweeps: what grows, and what does not."""
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import time

import pytest

import memhook
from conftest import Box

DAY = 86_400
KEYS = ["version", "home", "consent", "off_here", "since", "hooks", "mcp", "spool", "dead", "outbox", "memories", "sessions", "index", "model", "bytes", "last", "cleanup"]


def said(box, session="session-0001", text="A question", start=None):
    """A session of one prompt, ended."""
    script = box.script(session, start)
    script.prompt(text)
    box.hook("SessionEnd", script)
    return script


def on_disk(folder):
    return sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file())


# ---- status


def test_status_has_these_keys_and_says_what_is_there_after_an_install(box):
    status = box.status()
    counts = {"new": 0, "claimed": 0, "dead": 0, "bytes": 0}
    assert list(status) == KEYS
    assert set(status["model"]) >= {"calls_today", "chars_today", "credential", "distiller"}
    assert status["version"] == memhook.VERSION and status["home"] == str(box.home)
    assert status["consent"] == {"capture": True, "model": False, "team": False, "paused": False}
    assert status["hooks"] == {event: "installed" for event in ("SessionStart", "Stop", "PreCompact", "SessionEnd")}
    assert status["spool"] == status["outbox"] == counts and status["dead"] == []
    assert status["memories"] == {"count": 0, "bytes": 0} and status["sessions"] == {"open": 0, "closed": 0}
    assert status["index"] == {"present": False, "bytes": 0} and status["last"] == {"capture": None, "failure": None}
    assert status["cleanup"] == {"days": 30, "late": 0, "expiring": 0, "past": 0}


def test_status_counts_what_is_there(box):
    scripts = [box.script("session-%d" % number) for number in range(3)]
    for script in scripts:
        script.prompt("A question")
        box.hook("Stop", script)
    box.hook("SessionEnd", scripts[0])
    status = box.status()
    assert status["sessions"] == {"open": 2, "closed": 1} and status["spool"]["new"] == 1 and status["spool"]["bytes"] > 100
    box.drain()
    status = box.status()
    assert status["spool"] == {"new": 0, "claimed": 0, "dead": 0, "bytes": 0}
    sizes = [os.path.getsize(path) for path in memhook.memory_files(box.api)]
    assert len(sizes) == 1 and status["memories"] == {"count": 1, "bytes": sum(sizes)}


def test_it_says_since_when_capture_is_on_or_paused(box):
    started = time.time()
    since = box.status()["since"]
    assert abs(memhook.parse_time(since["consent"]) - started) < 60 and since["pause"] is None
    assert "on since " + since["consent"] in box.run("status").stdout
    box.run("pause")
    status = box.status()
    assert status["consent"]["paused"] is True and memhook.parse_time(status["since"]["pause"]) >= memhook.parse_time(since["consent"])
    assert "paused since " + status["since"]["pause"] in box.run("status").stdout
    box.run("uninstall")
    assert "capture is off" in box.run("status").stdout and box.status()["since"] == {"consent": None, "pause": None}


def test_a_folder_or_a_shell_in_which_memhook_is_off_is_told(box):
    assert "OFF HERE" not in box.run("status").stdout and box.status()["off_here"] == ""
    (box.project / ".memhook-off").touch()
    (box.project / "below").mkdir()
    shown = box.run("status", cwd=box.project / "below").stdout
    assert "capture is on" in shown and "OFF HERE   a .memhook-off file lies" in shown
    box.env["MEMHOOK_OFF"] = "1"
    assert "OFF HERE   MEMHOOK_OFF=1 is set" in box.run("status", cwd=box.root).stdout


def test_a_claude_without_our_mcp_server_is_told_with_the_command_that_adds_it(box):
    """An install that finds no claude prints the command once: it may be long gone."""
    file = box.user / ".claude.json"
    command = "claude mcp add --scope user memhook -- python3 %s mcp" % memhook.program_path(box.api)

    def shown():
        return [line for line in box.run("status").stdout.splitlines() if line.startswith("mcp")]

    for text in (None, "{}", '{"mcpServers": {"other": {"command": "x"}}}'):
        if text:
            file.write_text(text)
        assert box.status()["mcp"] == "missing"
        line, = shown()
        assert str(file) in line and line.endswith("To add it: " + command)
    file.write_text('{"mcpServers": {"memhook": {"command": "memhook", "args": ["mcp"]}}}')
    assert box.status()["mcp"] == "registered" and shown() == []
    file.write_text("{")
    assert box.status()["mcp"] == "unknown" and shown() == []


def test_the_command_for_the_mcp_server_names_the_launcher_where_there_is_one(bare):
    folder = bare.user / ".local" / "bin"
    folder.mkdir(parents=True)
    bare.env["PATH"] = "%s:%s" % (folder, bare.env["PATH"])
    bare.install()
    assert "claude mcp add --scope user memhook -- memhook mcp\n" in bare.run("status").stdout


def test_where_nothing_is_installed_no_line_is_empty(bare):
    lines = bare.run("status").stdout.splitlines()
    assert "disk       nothing" in lines and [line for line in lines if line.endswith(" ")] == []


def test_a_command_that_it_prints_can_be_pasted(bare):
    program = bare.root / "it's a copy" / "memhook.py"
    program.parent.mkdir()
    shutil.copy(memhook.PROGRAM, program)
    first = bare.run("status", program=program).stdout.splitlines()[0]
    assert shlex.split(first.partition("To install: ")[2]) == ["python3", str(program), "install"]


def test_a_dead_letter_is_shown_with_its_reason(box):
    said(box)
    (box.home / "spool" / "new" / "0000000000000-garbage.json").write_bytes(b"garbage")
    box.run("drain")
    status = box.status()
    (letter,) = status["dead"]
    assert letter["item"] == "0000000000000-garbage" and letter["reason"].startswith("not a segment") and memhook.parse_time(letter["at"])
    shown = box.run("status").stdout
    assert letter["reason"] in shown and "memhook doctor" in shown
    assert status["last"]["failure"]["event"] == "buried"


def test_the_team_that_was_joined_and_what_waits_for_it_are_told(box):
    assert "\nteam " not in box.run("status").stdout
    for state, count in (("new", 2), ("dead", 1)):
        (box.home / "outbox" / state).mkdir(parents=True)
        for number in range(count):
            (box.home / "outbox" / state / ("%d-x.json" % number)).write_text("{}")
    lines = box.run("status").stdout.splitlines()
    assert [line for line in lines if "2 candidates wait for a team that was left" in line and line.startswith("team ")]
    url = "http://127.0.0.1:9"
    memhook.write_json(str(box.home / "team.json"), {"format": memhook.TEAM_FORMAT, "url": url, "tenant": "shop", "name": "alice", "role": "member"})
    (box.home / "team-token").write_text("token-of-alice")
    stored = json.loads((box.home / "consent.json").read_text())
    memhook.write_json(str(box.home / "consent.json"), {**stored, "team": {"url": url, "at": 1.0}})
    lines = box.run("status").stdout.splitlines()
    row = next(number for number, line in enumerate(lines) if line.startswith("team "))
    assert lines[row].split(None, 1)[1] == "shop at http://127.0.0.1:9, as alice"
    assert lines[row + 1].strip() == "outbox: 2 waiting, 0 in work, 1 refused" and "refused for good" in lines[row + 2]


def test_bytes_are_those_of_each_part_and_add_up(box):
    said(box)
    box.drain()
    said(box, "session-0002")
    box.run("search", "question")
    memhook.log(box.api, "test")
    parts = box.status()["bytes"]
    assert parts["memories"] == on_disk(box.home / "memories") > 0 and parts["spool"] == on_disk(box.home / "spool") > 0
    assert parts["checkpoints"] == on_disk(box.home / "checkpoints") > 0 and parts["seen"] == on_disk(box.home / "seen") > 0
    assert parts["receipts"] == os.path.getsize(box.home / "receipts.jsonl") and parts["log"] == os.path.getsize(box.home / "memhook.log")
    assert parts["index"] == sum(path.stat().st_size for path in box.home.glob("index.db*")) > 0
    assert parts["total"] == on_disk(box.home) == sum(count for name, count in parts.items() if name != "total")
    assert box.status()["index"] == {"present": True, "bytes": parts["index"]}


def test_the_last_capture_and_the_last_failure_are_named(box):
    before = time.time()
    script = said(box)
    last = box.status()["last"]
    assert before - 1 <= memhook.parse_time(last["capture"]) <= time.time() + 1 and last["failure"] is None
    memhook.log(box.api, "capture-failed", transcript="x", error="PermissionError")
    memhook.log(box.api, "caught-up", transcript="x")
    failure = box.status()["last"]["failure"]
    assert failure["event"] == "capture-failed" and failure["error"] == "PermissionError"
    shown = box.run("status").stdout
    assert "capture-failed: PermissionError" in shown and last["capture"] in shown and "A question" not in shown and script.path.name not in shown


def test_damaged_lines_of_the_log_are_no_failure_and_no_bug(box):
    (box.home / "memhook.log").write_text('["event", {"event": "bug"}]\n{"event": "bug"\n{"event": "bug"}\n["event", {"event": "hook-failed"}]\n')
    assert box.status()["last"]["failure"] == {"event": "bug"}
    assert "None bug: ? (" in box.run("status").stdout
    (box.home / "memhook.log").chmod(0o600)
    assert box.run("doctor").returncode == 0


@pytest.mark.parametrize("days, counts", [(None, {"late": 1, "expiring": 0, "past": 1}), (7, {"late": 0, "expiring": 1, "past": 1}), (400, {"late": 1, "expiring": 0, "past": 0})])
def test_what_claude_will_delete_uncaptured_is_counted(box, days, counts):
    settings = box.config / "settings.json"
    if days:
        settings.write_text(json.dumps({**json.loads(settings.read_text("utf-8")), "cleanupPeriodDays": days}), "utf-8")
    consent = json.loads((box.home / "consent.json").read_bytes())
    consent["capture"]["at"] = time.time() - 20 * DAY
    (box.home / "consent.json").write_text(json.dumps(consent))
    for name, age in (("before", 29 * DAY), ("since", 6 * DAY), ("now", 0)):
        script = box.script(name, time.time() - age)
        script.prompt("Nobody captured this")
        os.utime(script.path, (time.time() - age,) * 2)
    captured = box.script("captured", time.time() - 6 * DAY)
    captured.prompt("Captured")
    box.hook("SessionEnd", captured)
    os.utime(captured.path, (time.time() - 6 * DAY,) * 2)
    assert box.status()["cleanup"] == {"days": days or 30, **counts}
    shown = box.run("status").stdout
    assert "after %d days" % (days or 30) in shown and ("memhook import" in shown) == bool(counts["past"])


def test_status_of_a_machine_without_memhook_changes_nothing(bare):
    status = bare.status()
    assert list(status) == KEYS and status["consent"]["capture"] is False and not bare.home.exists()
    assert "capture is off" in bare.run("status").stdout


# ---- list


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    """Memories of three days in one project and one in another."""
    box = Box(tmp_path_factory.mktemp("listed"))
    box.install()
    other = box.root / "other"
    other.mkdir()
    for number, day in enumerate((0, 3, 40)):
        said(box, "session-%d" % number, "Prompt of %d days ago" % day, time.time() - day * DAY)
    script = box.script("elsewhere", time.time() - 3 * DAY)
    script.cwd = str(other)
    script.prompt("Another project")
    box.run("import", "--yes")
    box.drain()
    return box


def titles(box, *args, **options):
    return [row["title"] for row in json.loads(box.run("list", "--json", *args, **options).stdout)["memories"]]


def test_list_shows_this_projects_memories_by_day_newest_first(listed):
    assert titles(listed) == ["Prompt of %d days ago" % day for day in (0, 3, 40)]
    lines = listed.run("list").stdout.split("\n")
    assert [line for line in lines if line and not line.startswith(" ")] == [memhook.iso(time.time() - day * DAY)[:10] for day in (0, 3, 40)]
    rows = json.loads(listed.run("list", "--json").stdout)["memories"]
    assert list(rows[0]) == ["id", "at", "title", "project", "path", "session"] and rows[0]["session"] == "session-0"
    assert listed.run("get", rows[0]["id"]).stdout.count("Prompt of 0 days ago")


def test_list_keeps_to_a_time_and_to_a_project(listed):
    assert titles(listed, "--since", "7d") == ["Prompt of 0 days ago", "Prompt of 3 days ago"]
    assert titles(listed, "--since", memhook.iso(time.time() - 10 * DAY)[:10]) == ["Prompt of 0 days ago", "Prompt of 3 days ago"]
    assert titles(listed, "--project", str(listed.root / "other")) == ["Another project"] == titles(listed, cwd=listed.root / "other")
    assert len(titles(listed, "--all")) == 4
    assert str(listed.root / "other") in listed.run("list", "--all").stdout


def test_a_project_that_no_memory_is_of_is_answered_with_those_there_are(listed):
    wrong, right = str(listed.root / "othr"), str(listed.root / "other")
    for args in (("list",), ("search", "prompt")):
        done = listed.run(*args, "--project", wrong, check=False)
        assert (done.returncode, done.stdout) == (1, "") and "no project %s\n         the projects are: %s, " % (wrong, right) in done.stderr
        listed.run(*args, "--project", right)


def test_nothing_is_printed_after_the_results(listed):
    assert listed.run("list").stderr == "" == listed.run("search", "Prompt of 3 days ago").stderr


def test_list_of_nothing_says_where_to_look(listed):
    done = listed.run("list", cwd=listed.root)
    assert done.stdout == "" and "--all" in done.stderr
    assert listed.run("list", "--since", "nonsense", check=False).returncode == 2


# ---- nothing grows without bound but the memories and their receipts


def test_the_log_is_rotated_and_never_more_than_two_files(box):
    path = box.home / "memhook.log"
    for _ in range(3):
        with open(path, "ab") as stream:
            stream.write(b"x" * memhook.LOG_BYTES + b"\n")
        memhook.log(box.api, "full")
        memhook.log(box.api, "next")
    assert sorted(path.name for path in box.home.glob("memhook.log*")) == ["memhook.log", "memhook.log.1"]
    assert path.stat().st_size < 1_000 < memhook.LOG_BYTES < (box.home / "memhook.log.1").stat().st_size < memhook.LOG_BYTES + 2_000
    assert [oct(path.stat().st_mode & 0o777) for path in box.home.glob("memhook.log*")] == ["0o600"] * 2


def test_a_hundred_sessions_whose_transcripts_are_gone_leave_memories_and_receipts_and_nothing_else(box, monkeypatch):
    for number in range(100):
        script = box.script("session-%03d" % number)
        script.prompt("Prompt %d" % number)
        memhook.capture(box.api, memhook.read_consent(box.api), memhook.Request(str(script.path), final=True, live=True, client=[0, ""]))
        script.path.unlink()
    box.run("drain")
    (box.home / "checkpoints" / "x.json.1.tmp").write_bytes(b"x")
    (box.home / "spool" / "tmp" / "x.1.tmp").write_bytes(b"x")
    assert len(os.listdir(box.home / "seen")) == 100
    real = time.time()
    monkeypatch.setattr(memhook, "now", lambda: real + memhook.FORGET_CHECKPOINT_SECONDS + 60)
    done = memhook.drain(box.api, memhook.read_consent(box.api))
    assert done.to_json() == {"stored": 0, "duplicate": 0, "empty": 0, "forgotten": 0, "retried": 0, "dead": 0, "left": 0}
    left = sorted(str(path.relative_to(box.home)) for path in box.home.rglob("*") if path.is_file() and "memories" not in path.parts)
    left = {name for name in left if not name.startswith("index.db")}
    assert left <= {".gitignore", "consent.json", "drain.lock", "install.json", "install.lock", "memhook.log", "quota.json", "receipts.jsonl"}
    assert len(box.memories()) == len(box.receipts()) == 100
    assert len(json.loads((box.home / "quota.json").read_bytes())) <= 60


def test_what_a_lock_without_a_checkpoint_left_in_seen_is_swept_when_it_is_old(box):
    """Of a transcript that was looked at and never captured: the lock file is made before anything is known."""
    path = box.home / "seen" / ("0" * 20)
    path.parent.mkdir(exist_ok=True)
    path.touch()
    box.run("drain")
    assert path.exists()
    script = box.script()
    script.prompt("Of a transcript that is there, whose checkpoint was lost")
    kept = box.home / "seen" / memhook.transcript_key(str(script.path))
    kept.touch()
    for one in (path, kept):
        os.utime(one, (time.time() - memhook.FORGET_CHECKPOINT_SECONDS - 60,) * 2)
    box.run("drain")
    assert not path.exists() and kept.exists()


def test_hooks_in_a_settings_file_that_may_only_be_read_are_told_as_they_stand(box):
    (box.config / "settings.json").chmod(0o444)
    assert set(box.status()["hooks"].values()) == {"installed"} and "capture is on" in box.run("status").stdout


def test_in_a_folder_that_was_deleted_it_still_tells_the_facts(box):
    for words in (["status"], ["install", "--status"]):
        done = subprocess.run(["/bin/sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "sh", box.python, memhook.PROGRAM, *words],
                              env=box.env, cwd=box.project, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and "capture is on" in done.stdout


@pytest.mark.parametrize("days, told", [("1e400", 1_000_000), ("1" + "0" * 400, 1_000_000), ("99999", 99_999)])
def test_transcripts_that_are_kept_for_ever_are_none_to_hurry_for(box, days, told):
    path = box.config / "settings.json"
    path.write_text('{"cleanupPeriodDays": %s,%s' % (days, path.read_text("utf-8")[1:]), "utf-8")
    box.script().prompt("Nobody captured this")
    assert box.status()["cleanup"] == {"days": told, "late": 0, "expiring": 0, "past": 0}
    assert box.run("doctor").stdout == "Nothing is wrong.\n" and box.drain()["left"] == 0
