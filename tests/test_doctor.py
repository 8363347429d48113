"""doctor: each thing that can be wrong is found, with what, why and what mends it; nothing is changed by looking; and SessionStart's one line."""
import json
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest

import memhook
from conftest import Box, heeding_modes
from standins import Claude, agree, status

DAY = 86_400


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """(the machine's folder, a copy of it as it was after the install): an install takes a second, and its paths are absolute."""
    folder = tmp_path_factory.mktemp("doctor")
    box = Box(folder / "machine")
    box.install()
    shutil.copytree(folder / "machine", folder / "pristine", symlinks=True)
    return folder / "machine", folder / "pristine"


@pytest.fixture
def box(installed):
    """An installed machine, as new, whose managed settings are in a folder of the test."""
    machine, pristine = installed
    shutil.rmtree(machine)
    shutil.copytree(pristine, machine, symlinks=True)
    box = Box(machine)
    box.env["MEMHOOK_MANAGED_DIR"] = str(machine / "managed")
    return box


def found(box, **options):
    """The findings of `doctor --json`; checks the exit status and the form."""
    done = box.run("doctor", "--json", check=False, **options)
    report = json.loads(done.stdout)
    assert done.returncode == (4 if report["findings"] else 0) and report["ok"] == (not report["findings"]), done.stderr
    for finding in report["findings"]:
        assert set(finding) == {"what", "why", "mend"} and all(isinstance(text, str) and text for text in finding.values())
    return report["findings"]


def only(box, **options):
    finding, = found(box, **options)
    return finding


def settings(box):
    return json.loads((box.config / "settings.json").read_text())


def write_settings(box, value):
    (box.config / "settings.json").write_text(json.dumps(value, indent=2))


def put(box, name, text):
    """A file of the home, with the modes that memhook gives its own, whatever the umask of the tests."""
    path = box.home / name
    for folder in reversed([folder for folder in path.parents if box.home in folder.parents and not folder.exists()]):
        folder.mkdir(0o700)
    path.write_text(text, "utf-8")
    path.chmod(0o600)


def age(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))


def consent_since(box, seconds):
    """Make the consent so old."""
    path = box.home / "consent.json"
    stored = json.loads(path.read_text())
    stored["capture"]["at"] = time.time() - seconds
    path.write_text(json.dumps(stored))


def captured(box, session="session-0001"):
    script = box.script(session)
    script.prompt("What is a cent?")
    script.answer("A hundredth.")
    box.hook("Stop", script)
    box.hook("SessionEnd", script)
    box.drain()
    return script


# ---- nothing wrong

def test_a_fresh_installation_and_one_in_use_are_in_order(box):
    assert found(box) == []
    captured(box)
    box.run("search", "cent")
    assert found(box) == []
    assert box.run("doctor").stdout == "Nothing is wrong.\n"


def test_without_an_installation_it_says_how_to_get_one(tmp_path):
    bare = Box(tmp_path)
    finding = only(bare)
    assert "not installed" in finding["what"] and finding["mend"].endswith("install") and not bare.home.exists()
    done = bare.run("doctor", check=False)
    assert done.returncode == 4 and "what mends it:" in done.stdout and "1 found." in done.stdout


def everything_wrong(box):
    """A home with many faults at once."""
    captured(box)
    box.run("search", "cent")
    value = settings(box)
    del value["hooks"]["Stop"]
    value["hooks"]["SessionEnd"] *= 2
    value["disableAllHooks"] = True
    write_settings(box, value)
    put(box, "spool/dead/1-0123456789abcdef0123-00000-12345678.json", "{")
    (box.home / "config.json").write_text('{"distiler": "claude", "quota_max": "many"}')
    (box.home / "memhook.log").chmod(0o644) if (box.home / "memhook.log").exists() else None
    (box.home / "receipts.jsonl").chmod(0o644)
    box.home.chmod(0o755)


def test_doctor_changes_nothing_whatever_it_finds(box):
    everything_wrong(box)

    def state():
        return {os.path.join(folder, name): (os.lstat(os.path.join(folder, name)).st_mode, os.lstat(os.path.join(folder, name)).st_mtime_ns, memhook.read_file(os.path.join(folder, name)))
                for folder, _, names in os.walk(box.root) for name in names}
    before = state()
    assert len(found(box)) >= 6
    assert state() == before


# ---- hooks

def test_a_missing_hook_is_found_and_install_mends_it(box):
    value = settings(box)
    del value["hooks"]["Stop"]
    write_settings(box, value)
    finding = only(box)
    assert "hook Stop is missing: settings.json was changed since memhook's install, perhaps by another program" == finding["what"]
    assert finding["mend"] == "python3 %s install" % memhook.PROGRAM
    for event in ("PreCompact", "SessionEnd"):
        del value["hooks"][event]
    write_settings(box, value)
    assert only(box)["what"].startswith("hooks Stop, PreCompact and SessionEnd are missing: ")
    box.run("install", "--no-mcp")
    assert found(box) == []


@pytest.mark.parametrize("told", [
    lambda bare: only(bare)["mend"],
    lambda bare: bare.run("status").stdout.split("To mend it: ")[1].split("\n")[0],
    lambda bare: started(bare)["systemMessage"].split("To mend it: ")[1],
])
def test_the_command_that_mends_hooks_can_be_pasted_into_a_shell_that_does_not_know_the_home(tmp_path, told):
    bare = Box(tmp_path)
    shell = {**bare.env, "PATH": os.path.dirname(sys.executable) + os.pathsep + bare.env["PATH"]}  # whose python3 is this one
    bare.env["MEMHOOK_HOME"] = str(tmp_path / "it's mine")  # as the launcher sets it
    bare.install()
    stop, value = bare.command("Stop"), settings(bare)
    del value["hooks"]["Stop"]
    write_settings(bare, value)
    subprocess.run(told(bare) + " --no-mcp", shell=True, env=shell, cwd=bare.project, capture_output=True, check=True)
    assert bare.command("Stop") == stop and found(bare) == []


def test_all_hooks_dropped_are_one_finding(box):
    write_settings(box, {"model": "opus"})
    finding = only(box)
    assert all(spec.event in finding["what"] for spec in memhook.HOOK_SPECS) and "are missing: settings.json was changed" in finding["what"]


def test_settings_that_are_gone_are_missing_hooks(box):
    (box.config / "settings.json").unlink()
    assert "missing" in only(box)["what"]


def test_a_doubled_hook_is_found(box):
    value = settings(box)
    value["hooks"]["SessionEnd"] *= 2
    write_settings(box, value)
    assert only(box)["what"] == "hook SessionEnd is doubled"


def test_a_stale_hook_is_found(box):
    value = settings(box)
    value["hooks"]["Stop"][0]["hooks"][0]["command"] = "%s %s stop" % (sys.executable, memhook.program_path(box.api))
    write_settings(box, value)
    assert "hook Stop is stale: written by another version" in only(box)["what"]


def test_an_interpreter_that_is_gone_is_found(box):
    link = box.root / "python3"
    link.symlink_to(sys.executable)
    value = json.dumps(settings(box)).replace(memhook.stable_interpreter(), str(link))
    (box.config / "settings.json").write_text(value)
    assert found(box) == []
    link.unlink()
    finding = only(box)
    assert "its interpreter %s is gone" % link in finding["what"] and finding["mend"] == "python3 %s install" % memhook.PROGRAM


def test_a_program_that_is_gone_is_found(box):
    os.unlink(memhook.program_path(box.api))
    assert "its program %s is gone" % memhook.program_path(box.api) in only(box)["what"]


def test_hooks_are_run_as_they_stand_and_a_program_that_is_damaged_is_found(box):
    path = pathlib.Path(memhook.program_path(box.api))
    path.write_text(path.read_text("utf-8").replace("\nimport json\n", "\nraise SystemExit(7)\n", 1), "utf-8")
    findings = found(box)
    assert len(findings) == len(memhook.HOOK_SPECS) and all("ends with status 7" in finding["what"] for finding in findings)


def test_an_interpreter_that_runs_something_else_is_found(box):
    """The command line is silent and exits 0 whatever it runs; so it is asked for its version."""
    fake = box.root / "python3"
    fake.write_text("#!/bin/sh\nexit 0\n")
    fake.chmod(0o755)
    (box.config / "settings.json").write_text(json.dumps(settings(box)).replace(memhook.stable_interpreter(), str(fake)))
    assert "do not run memhook %s but nothing that answers" % memhook.VERSION in only(box)["what"]


def test_another_installed_version_is_found(box):
    path = memhook.program_path(box.api)
    text = memhook.read_file(path).decode().replace('VERSION = "%s"' % memhook.VERSION, 'VERSION = "0.0.99"')  # longer: bytecode is told by second and size
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    assert "but memhook 0.0.99" in only(box)["what"]


@pytest.mark.parametrize("text", ["{", '{"a": 1,}', '{"hooks": 7}', ""])
def test_settings_that_claude_code_cannot_read_are_found_with_their_line(box, text):
    (box.config / "settings.json").write_text(text)
    finding = only(box)
    assert "line 1" in finding["what"] and "every hook" in finding["why"]
    assert finding["mend"].endswith("and run this again") and "nothing was changed" not in finding["mend"]
    told = box.run("status").stdout.splitlines()[0]
    assert "capture is BROKEN" in told and finding["what"] in told and finding["mend"] in told


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: os.mkfifo(path), lambda path: path.symlink_to("nowhere")],
                         ids=["folder", "FIFO", "dangling link"])
def test_settings_that_are_no_file_are_found_and_keep_nothing_else_from_being_looked_at(box, make):
    (box.config / "settings.json").unlink()
    make(box.config / "settings.json")
    (box.home / "receipts.jsonl").write_text("")
    (box.home / "receipts.jsonl").chmod(0o644)
    box.home.chmod(0o755)
    hooks, modes = found(box)
    assert "settings.json" in hooks["what"] and "others may read" in modes["what"]
    assert box.status()["cleanup"]["days"] == 30


@pytest.mark.parametrize("place", ["consent.json", "config.json", "receipts.jsonl", "checkpoints/0123456789abcdef0123.json", "seen/0123456789abcdef0123",
                                   "memories/p/2026-01/a.md", "spool/new/x.json", "memhook.log"])
@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_where_a_file_belongs_is_found(box, place, kind):
    path = box.home / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    finding = only(box)
    assert finding["what"].startswith("%s: a folder, a pipe or a device" % path) and str(box.home) in finding["mend"]


@pytest.mark.parametrize("place", ["", "seen", "memories/p/2026-01", "receipts.jsonl"])
def test_what_may_not_be_written_is_found_and_the_command_mends_it(box, place):
    prefix = heeding_modes()
    put(box, "receipts.jsonl", "")
    put(box, "memories/p/2026-01/of-a-person.md", "")
    (box.home / "memories/p/2026-01/of-a-person.md").chmod(0o400)
    (box.home / "seen").mkdir(mode=0o700, exist_ok=True)
    assert found(box, prefix=prefix) == []
    path = box.home / place
    path.chmod(path.stat().st_mode & 0o500)
    finding = only(box, prefix=prefix)
    assert finding["what"] == "not writable: %s" % path and "nothing can be captured" in finding["why"]
    told = box.run("status", prefix=prefix).stdout.splitlines()[0]
    is_folder_of_a_capture = place in ("", "seen")
    assert ("capture is BROKEN" in told and "%s is not writable" % path in told and "doctor" in told) == is_folder_of_a_capture
    subprocess.run(finding["mend"], shell=True, check=True, timeout=60)
    assert found(box, prefix=prefix) == [] and "capture is on" in box.run("status", prefix=prefix).stdout


def test_a_home_of_another_user_is_not_to_be_mended_by_its_modes(box):
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(box.home, 65534, 65534)
    box.home.chmod(0o755)
    assert only(box, prefix=heeding_modes())["mend"].startswith("sudo chown -R ")


def test_a_claude_folder_in_which_an_install_cannot_write_is_found_before_there_is_one(tmp_path):
    box = Box(tmp_path)
    box.config.chmod(0o555)
    closed, absent = found(box, prefix=heeding_modes())
    assert closed["what"] == "the folder %s is not writable" % box.config and "not installed" in absent["what"]
    assert closed["mend"].startswith("chmod u+rwx %s" % box.config)
    box.config.chmod(0o755)
    assert "not installed" in only(box)["what"]


# ---- switches of Claude Code

def test_disable_all_hooks_is_found_in_any_settings_file_and_the_nearest_wins(box):
    write_settings(box, {**settings(box), "disableAllHooks": True})
    assert "disableAllHooks is set in %s" % (box.config / "settings.json") in only(box)["what"]
    local = box.project / ".claude"
    local.mkdir()
    (local / "settings.json").write_text('{"disableAllHooks": false}')
    assert found(box) == []
    (local / "settings.local.json").write_text('{"disableAllHooks": true}')
    assert str(local / "settings.local.json") in only(box)["what"]
    assert "take disableAllHooks out" in only(box)["mend"]


@pytest.mark.parametrize("name,value", [("disableAllHooks", True), ("allowManagedHooksOnly", True), ("strictPluginOnlyCustomization", True),
                                        ("strictPluginOnlyCustomization", ["hooks"]), ("strictPluginOnlyCustomization", {"hooks": True})])
@pytest.mark.parametrize("place", ["managed-settings.json", "managed-settings.d/10-hooks.json"])
def test_managed_settings_that_keep_hooks_from_running_are_found(box, name, value, place):
    path = box.root / "managed" / place
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({name: value}))
    finding = only(box)
    assert name in finding["what"] and str(path) in finding["what"] and "manages this machine" in finding["mend"]


@pytest.mark.parametrize("value", [{"disableAllHooks": False}, {"allowManagedHooksOnly": False}, {"strictPluginOnlyCustomization": ["agents"]},
                                   {"strictPluginOnlyCustomization": {"hooks": False}}, {"allowManagedHooksOnly": "yes"}])
def test_managed_settings_that_let_hooks_run_are_none(box, value):
    (box.root / "managed").mkdir()
    (box.root / "managed" / "managed-settings.json").write_text(json.dumps(value))
    assert found(box) == []


# ---- switched off by a person

def test_a_pause_that_may_be_forgotten_is_found_and_resume_ends_it(box):
    box.run("pause")
    finding = only(box)
    assert finding["what"] == "capture is paused since " + box.status()["since"]["pause"]
    assert "before it is safe" in finding["why"] and finding["mend"].startswith("memhook resume")
    box.run("resume")
    assert found(box) == []


@pytest.mark.parametrize("place", ["user", "project", "managed"])
def test_memhook_off_in_the_environment_that_settings_give_is_found(box, place):
    paths = {"user": box.config / "settings.json", "project": box.project / ".claude" / "settings.local.json", "managed": box.root / "managed" / "managed-settings.json"}
    path = paths[place]
    path.parent.mkdir(exist_ok=True)
    stored = settings(box) if place == "user" else {}
    path.write_text(json.dumps({**stored, "env": {"MEMHOOK_OFF": "true"}}))
    box.env["MEMHOOK_OFF"] = "1"  # as in a shell of Claude's, which has these settings: told once
    assert only(box)["what"] == "MEMHOOK_OFF=1 is set under env in %s" % path
    del box.env["MEMHOOK_OFF"]
    for harmless in ({"MEMHOOK_OFF": "0"}, {"OTHER": "1"}, [], None):
        path.write_text(json.dumps({**stored, "env": harmless}))
        assert found(box) == []


def test_a_variable_that_has_no_effect_is_found(box):
    box.env["MEMHOOK_RECALL"] = "perhaps"
    assert "MEMHOOK_RECALL in the environment has no effect" in only(box)["what"]


def test_a_folder_or_a_shell_in_which_memhook_is_off_is_found(box):
    (box.project / ".memhook-off").touch()
    finding = only(box)
    assert finding["what"].startswith("a .memhook-off file lies in this folder") and finding["why"] == "nothing is captured here"
    assert found(box, cwd=box.root) == []
    box.env["MEMHOOK_OFF"] = "1"
    assert only(box, cwd=box.root)["what"] == "MEMHOOK_OFF=1 is set"


# ---- transcripts

def test_capture_that_has_not_fired_lately_is_found(box):
    consent_since(box, DAY)
    script = box.script()
    script.prompt("What is a cent?")
    age(script.path, 3 * 3600)
    finding = only(box)
    assert "capture has not fired lately: 1 transcript is newer" in finding["what"] and str(script.path) in finding["what"] and "memhook drain" in finding["mend"]
    box.run("drain")
    assert found(box) == []


def test_a_transcript_that_grew_after_its_last_capture_is_found(box):
    script = captured(box)
    script.prompt("And a mill?")
    consent_since(box, DAY)
    age(script.path, 3 * 3600)
    assert "has not fired lately" in only(box)["what"]


def test_a_session_that_runs_now_is_nothing(box):
    box.script().prompt("What is a cent?")
    assert found(box) == []


def test_in_a_pause_nothing_is_late(box):
    consent_since(box, DAY)
    script = box.script()
    script.prompt("What is a cent?")
    age(script.path, 3 * 3600)
    box.run("pause")
    assert "capture is paused since" in only(box)["what"]


@pytest.mark.parametrize("days,old,expected", [(30, 28.5, True), (30, 20, False), (10, 8, True), (None, 28.5, True), (400, 28.5, False)])
def test_transcripts_about_to_go_uncaptured_are_found_in_time(box, days, old, expected):
    write_settings(box, {**settings(box), **({"cleanupPeriodDays": days} if days else {})})
    consent_since(box, 90 * DAY)
    script = box.script()
    script.prompt("What is a cent?")
    age(script.path, old * DAY)
    finding = only(box)
    assert ("about to go uncaptured" in finding["what"]) == expected
    if expected:
        assert "after %d days" % (days or 30) in finding["why"] and finding["mend"] == "memhook drain"


def test_history_from_before_the_consent_is_spoken_of_before_it_is_deleted(box):
    script = box.script()
    script.prompt("What is a cent?")
    age(script.path, 20 * DAY)
    assert found(box) == []
    age(script.path, 28.5 * DAY)
    finding = only(box)
    assert "before your consent" in finding["what"] and "memhook import --yes" in finding["mend"]
    box.run("import", "--yes")
    box.run("drain")
    assert found(box) == []


def test_our_own_summarisers_session_is_not_missed(box):
    script = box.script()
    script.prompt(memhook.CHILD_MARK + "\n\nrecord")
    box.hook("Stop", script)
    consent_since(box, DAY)
    script.answer("{}")
    age(script.path, 3 * 3600)
    assert found(box) == []


# ---- what waits

def test_dead_letters_are_found(box):
    put(box, "spool/dead/1-0123456789abcdef0123-00000-12345678.json", '{"format": 1}')
    finding = only(box)
    assert finding["what"] == "1 dead letter in the spool: unknown" and "drain --retry-dead" in finding["mend"]


def test_of_a_dead_letter_that_is_no_segment_it_says_where_it_lies_and_advises_no_other_try(box):
    put(box, "spool/new/0-garbage.json", "garbage")
    box.run("drain")
    finding = only(box)
    assert "1 dead letter in the spool: not a segment" in finding["what"] and "tries" not in finding["why"]
    assert str(box.home / "spool" / "dead") in finding["mend"] and "delete" in finding["mend"] and "--retry-dead" not in finding["mend"]
    (box.home / "spool" / "dead" / "0-garbage.json").unlink()
    assert found(box) == []


def test_segments_that_wait_for_more_than_a_day_are_found(box):
    script = box.script()
    script.prompt("What is a cent?")
    script.answer("A hundredth.")
    box.hook("SessionEnd", script)
    assert found(box) == []
    for name in os.listdir(box.home / "spool" / "new"):
        age(box.home / "spool" / "new" / name, 2 * DAY)
    assert "1 segment has waited" in only(box)["what"]


def joined(box, url):
    """Join a team whose hub is at `url`, and queue a candidate for it; -> its file."""
    consent = json.loads((box.home / "consent.json").read_text())
    put(box, "consent.json", json.dumps({**consent, "team": {"url": url}}))
    put(box, "team.json", json.dumps({"format": memhook.TEAM_FORMAT, "url": url, "tenant": "shop", "name": "ann", "role": "member"}))
    put(box, "team-token", "a-token-of-the-hub")
    id = memhook.content_id("shop", "Money", "Use cents.")
    memhook.enqueue(box.api, {"id": id, "title": "Money", "content": "Use cents.", "hub": url})
    waiting, = (box.home / "outbox" / "new").iterdir()
    return waiting


def test_candidates_that_wait_after_a_sending_in_vain_are_found_with_what_the_hub_said(box, serve):
    hub = serve(lambda given: status(429, Retry_After="3000"))
    waiting = joined(box, hub.url)
    age(waiting, 600)
    since = memhook.iso(waiting.stat().st_mtime)
    assert found(box) == []
    box.run("team", "outbox", "--retry", check=False)
    finding = only(box)
    until = json.loads(box.run("team", "status", "--json").stdout)["wait_until"]
    assert finding["what"].startswith("1 candidate waits for the team at %s since %s: the hub cannot take it now (429" % (hub.url, since))
    assert until and finding["why"].endswith("nothing is tried before " + until) and "outbox --retry" in finding["mend"]
    box.drain()  # tries nothing
    age(waiting, 2 * DAY)
    assert only(box)["what"].endswith("the hub asked to wait until " + until) and len(hub.requests) == 1
    hub.does = lambda given: status(201, '{"status": "inbox"}')
    box.run("team", "outbox", "--retry")
    assert found(box) == []


def test_a_hub_that_is_down_is_found_while_a_candidate_waits(box):
    joined(box, "http://127.0.0.1:9")
    box.drain()
    finding = only(box)
    assert finding["what"].startswith("1 candidate waits for the team at http://127.0.0.1:9 since")
    assert "cannot be reached" in finding["what"]
    assert finding["why"].endswith("nothing of it is lost")
    box.run("team", "outbox", "--purge")
    assert found(box) == []


def test_candidates_that_wait_long_for_the_hub_are_found(box):
    waiting = joined(box, "http://127.0.0.1:9")
    assert found(box) == []
    age(waiting, 2 * DAY)
    assert only(box)["what"] == "1 candidate for the team waited for more than a day"


@pytest.mark.parametrize("text, likely", [('{"a": 1,}', True), ('{"a": [1, ]}', True), ('// mine\n{}', True), ('{"a": 1 /* x */}', True), ('{"a" 1}', False), ('{"a":', False)])
def test_comments_and_trailing_commas_are_named_where_they_are_the_likely_cause(box, text, likely):
    (box.config / "settings.json").write_text(text)
    assert ("comments and trailing commas are not JSON" in only(box)["what"]) == likely


def test_hooks_that_failed_are_found_for_a_day(box):
    memhook.log(box.api, "hook-failed", hook="stop", error="OSError", where="write_all:1")
    finding = only(box)
    assert "1 capture failed within a day, the last with OSError write_all:1" in finding["what"] and "memhook.log" in finding["mend"]
    line = json.dumps({"at": memhook.iso(time.time() - 2 * DAY), "event": "hook-failed"})
    (box.home / "memhook.log").write_text(line + "\n-failed {\n")
    assert found(box) == []


# ---- the home

@pytest.mark.parametrize("name,mode", [("receipts.jsonl", 0o644), ("memories", 0o755), (".", 0o750), ("consent.json", 0o604)])
def test_wrong_modes_are_found_and_the_command_mends_them(box, name, mode):
    captured(box)
    os.chmod(box.home / name, mode)
    assert [finding for finding in found(box) if name != "."] == []  # nobody gets into the home
    os.chmod(box.home, 0o750)
    finding = only(box)
    assert os.path.normpath(box.home / name) in finding["what"]
    assert subprocess.run(finding["mend"], shell=True).returncode == 0 and found(box) == []


def test_a_key_file_that_others_may_read_is_found(box):
    key = box.root / "key"
    key.write_text("sesame")
    key.chmod(0o644)
    box.env["MEMHOOK_DISTILLER_KEY_FILE"] = str(key)
    finding = only(box)
    assert str(key) in finding["what"] and str(box.home) not in finding["mend"] and "sesame" not in json.dumps(finding)


def test_a_disk_with_little_room_is_found(box):
    box.env["MEMHOOK_DISK_LOW_MB"] = str(10 ** 12)
    finding = only(box)
    assert "MB are free" in finding["what"] and str(box.home) in finding["what"]


# ---- the index

def indexed(box):
    captured(box)
    box.run("search", "cent")
    return box.home / "index.db"


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b"not a database" * 99), lambda path: path.write_bytes(path.read_bytes()[:5_000]),
                                    lambda path: path.write_bytes(b"")], ids=["foreign", "cut", "empty"])
def test_a_damaged_index_is_found_and_reindex_mends_it(box, damage):
    damage(indexed(box))
    finding = only(box)
    assert "the index is damaged" in finding["what"] and finding["mend"] == "memhook reindex"
    box.run("reindex")
    assert found(box) == []


def test_a_newer_index_is_found(box):
    with sqlite3.connect(str(indexed(box))) as db:
        db.execute("UPDATE meta SET value = '99' WHERE key = 'format'")
    db.close()
    assert "newer memhook" in only(box)["what"]


def test_an_index_long_behind_the_store_is_found(box, monkeypatch):
    indexed(box)
    path, = memhook.memory_files(box.api)
    with open(path, "a") as stream:
        stream.write("mine\n")
    assert found(box) == [], "the next search takes it in"
    monkeypatch.setattr(memhook, "now", lambda: time.time() + 2 * DAY)  # the clock, which is all that a test may replace
    assert "the index is stale: it lacks 1 memory changed" in next(memhook.check_index(box.api))[0]


# ---- formats

@pytest.mark.parametrize("place", ["consent.json", "checkpoints/0123456789abcdef0123.json", "spool/new/1-0123456789abcdef0123-00000-12345678.json"])
def test_what_a_newer_memhook_wrote_is_found(box, place):
    path = box.home / place
    stored = json.loads(path.read_text()) if path.exists() else {}
    put(box, place, json.dumps({**stored, "format": 99}))
    first = found(box)[0]
    assert "a newer memhook" in first["what"] and place in first["what"] and "update" in first["mend"]


# ---- models and settings

def test_a_model_that_fails_again_and_again_is_found(box):
    Claude(box)
    agree(box, "distiller", distiller="claude")
    for _ in range(2):
        memhook.note_failure(box.api, "distiller", memhook.ModelFailed("a limit notice instead of a digest"))
    assert found(box) == []
    memhook.note_failure(box.api, "distiller", memhook.ModelFailed("a limit notice instead of a digest"))
    finding = only(box)
    assert finding["what"] == "the distiller, model haiku, is failing: a limit notice instead of a digest (3 times today)"
    assert "offline" in finding["why"] and finding["mend"] == "wait, or: memhook config set distiller offline; then: memhook distil"


@pytest.mark.parametrize("why,mend", [
    ("nothing answers at http://127.0.0.1:9", "start it, or: memhook config set distiller_url URL; then: memhook distil"),
    ("HTTP status 401 from http://127.0.0.1:9/v1/chat/completions", "memhook config set distiller_key_file FILE; then: memhook distil"),
    ("HTTP status 404 from http://127.0.0.1:9/v1/chat/completions", "memhook config set distiller_url URL, or distiller_model MODEL; then: memhook distil"),
    ("http://127.0.0.1:9/v1/chat/completions redirects, which is not followed", "memhook config set distiller_url URL, or distiller_model MODEL; then: memhook distil"),
    ("the answer of http://127.0.0.1:9/v1/chat/completions is not JSON", "memhook config set distiller_url URL, or distiller_model MODEL; then: memhook distil"),
    ("the answer is too long", "memhook config set distiller_model MODEL for another one; then: memhook distil"),
])
def test_a_failure_that_does_not_pass_is_found_at_once_with_the_place_and_what_mends_it(box, why, mend):
    agree(box, "distiller", distiller="http", distiller_url="http://127.0.0.1:9", distiller_model="m1")
    memhook.note_failure(box.api, "distiller", memhook.EndpointFailed(why))
    finding = only(box)
    assert "the distiller, model m1" in finding["what"] and "http://127.0.0.1:9/v1/chat/completions" in finding["what"] and why in finding["what"]
    assert finding["mend"] == mend


def test_a_failing_embedder_is_found_with_the_command_that_tries_again(box):
    agree(box, "embedder", embedder="http", embedder_url="http://127.0.0.1:9/api/embed", embedder_model="m1")
    memhook.note_failure(box.api, "embedder", memhook.NoSuccess("HTTP status 500 from x"))
    finding = only(box)
    assert "the embedder, model m1 at http://127.0.0.1:9/api/embed, is failing" in finding["what"] and finding["mend"].endswith("; then: memhook reindex")


def test_a_claude_that_fails_is_found_with_the_command_that_shows_why(box):
    Claude(box)
    agree(box, "distiller", distiller="claude", distiller_model="opus")
    memhook.note_failure(box.api, "distiller", memhook.NoSuccess("claude ended with status 1"))
    assert only(box)["mend"] == "see what it says: claude -p --model opus hello; then: memhook distil"


def test_a_claude_that_is_not_there_is_one_finding_also_after_it_failed(box):
    box.env["PATH"] = "/usr/bin:/bin"
    agree(box, "distiller", distiller="claude")
    memhook.note_failure(box.api, "distiller", memhook.EndpointFailed("there is no claude on PATH"))
    assert "no claude on PATH" in only(box)["what"]


def test_a_model_that_nobody_agreed_to_is_found(box):
    box.env["PATH"] = "/usr/bin:/bin"
    box.env["MEMHOOK_DISTILLER"] = "claude"
    findings = found(box)
    assert "nobody agreed" in findings[0]["what"] and findings[0]["mend"] == "memhook config set distiller claude" and "no claude on PATH" in findings[1]["what"]


def test_an_endpoint_that_is_refused_and_a_key_that_is_not_there_are_found(box):
    agree(box, "embedder", embedder="http", embedder_url="http://127.0.0.1:9", embedder_key_env="NO_SUCH_KEY")
    assert "has no key" in only(box)["what"] and "NO_SUCH_KEY (which is not set here)" in only(box)["what"]
    box.env["MEMHOOK_EMBEDDER_URL"] = "http://far.test/v1"
    assert "plain http to far.test" in only(box)["what"]


@pytest.mark.parametrize("text,what", [("[1]", "is not a JSON object"), ('{"distiler": "claude"}', "no setting distiler"), ('{"quota_max": "many"}', "quota_max is a whole number"),
                                       ('{"recall": "perhaps"}', "recall is on or off"), ('{"max-results": 3}', "no setting max-results")])
def test_settings_that_have_no_effect_are_found(box, text, what):
    put(box, "config.json", text)
    assert what in only(box)["what"]


def test_settings_that_have_an_effect_or_say_nothing_are_in_order(box):
    put(box, "config.json", '{"quota_max": 50.0, "recall": false, "distiller_model": null, "min_score": null}')
    assert found(box) == [] and box.run("config", "get", "quota_max").stdout == "50\n"


# ---- SessionStart

def started(box, source="startup", **env):
    """What SessionStart prints, {} for nothing."""
    script = box.script("session-%d" % time.time_ns())
    before = dict(box.env)
    box.env.update(env)
    done = box.hook("SessionStart", script, source=source)
    box.env.clear()
    box.env.update(before)
    assert done.returncode == 0 and done.stderr == b""
    assert done.stdout.count(b"\n") == 0
    return json.loads(done.stdout or b"{}")


def test_session_start_says_nothing_while_capture_works(box):
    assert started(box) == {}
    captured(box)
    box.run("search", "cent")
    told = started(box)
    assert set(told) == {"hookSpecificOutput"} and "install" not in told["hookSpecificOutput"]["additionalContext"]


@pytest.mark.parametrize("event", ["Stop", "SessionEnd", "PreCompact"])
@pytest.mark.parametrize("source", ["startup", "resume"])
def test_session_start_names_the_hook_that_is_gone_and_the_command(box, event, source):
    value = settings(box)
    del value["hooks"][event]
    write_settings(box, value)
    told = started(box, source)
    line = told["systemMessage"]
    assert "the %s hook has gone" % event in line and line.endswith("python3 %s install" % memhook.program_path(box.api)) and "\n" not in line
    assert (line in told.get("hookSpecificOutput", {}).get("additionalContext", "")) == (source == "startup")


def test_session_start_says_it_also_where_the_recall_is_off_but_not_in_a_project_that_is(box):
    value = settings(box)
    del value["hooks"]["Stop"]
    write_settings(box, value)
    assert set(started(box, MEMHOOK_RECALL="off")) == {"systemMessage"}
    assert started(box, MEMHOOK_OFF="1") == {}
    (box.project / ".memhook-off").touch()
    assert started(box) == {}


def test_a_hook_wired_elsewhere_is_not_missed_at_session_start(box):
    command = box.command("SessionStart")
    for text in ("{}", "{", '{"hooks": {"Stop": []}}', '{"hooks": 7}', "[]"):
        (box.config / "settings.json").write_text(text)
        payload = json.dumps(box.payload("SessionStart", box.script(), source="startup")).encode()
        done = subprocess.run(["/bin/sh", "-c", command], input=payload, env=box.env, cwd=box.project, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), text


def test_a_byte_order_mark_and_another_home_are_no_trouble(tmp_path):
    box = Box(tmp_path)
    box.env["MEMHOOK_HOME"] = str(tmp_path / "J D'oe & co" / "ü")
    box.home = tmp_path / "J D'oe & co" / "ü"
    box.env["MEMHOOK_MANAGED_DIR"] = str(tmp_path / "managed")
    (box.config / "settings.json").write_bytes(b"\xef\xbb\xbf{}\n")
    box.install()
    assert started(box) == {} and found(box) == []
