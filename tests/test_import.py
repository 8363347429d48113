"""import: past transcripts by the same path as live ones; asked for, interrupted, repeated, beside hooks."""
import json
import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest

import memhook
from conftest import PROGRAM, Script, wait_until
from terminal import at_terminal

OLD = time.time() - 30 * 86_400  # before any consent of these tests


def past(box, name="old-0001", said="An old question", folder="p", start=OLD, mtime=OLD):
    """A transcript of a session that is long over."""
    script = box.script(name, start)
    script.path = box.config / "projects" / folder / (name + ".jsonl")
    script.path.parent.mkdir(parents=True, exist_ok=True)
    script.prompt(said)
    script.answer("The answer to: " + said)
    os.utime(script.path, (mtime, mtime))
    return script


def imported(box, *args, **options):
    return json.loads(box.run("import", "--json", *args, **options).stdout)


def everything(box):
    """All that was kept, after a drain."""
    box.drain()
    return sorted(text for _, text in box.said())


def files(home):
    return {str(path.relative_to(home)): path.read_bytes() for path in home.rglob("*") if path.is_file() and path.suffix != ".log"}


def at_a_terminal(box, answer, *args):
    """`memhook import ARGS` at a terminal where `answer` is typed to its question; -> (exit status, what it showed)."""
    return at_terminal([box.python, "-I", "-S", "-c", memhook.BOOT, PROGRAM, "import", *args], box.env, box.project, answer, asked=b"[y/N] ")


# ---- what is taken


def test_without_a_consent_nothing_is_imported(bare):
    past(bare)
    done = bare.run("import", "--yes", check=False)
    assert done.returncode == 1 and "install" in done.stderr and not bare.home.exists()


def test_a_dry_run_counts_and_changes_nothing(box):
    scripts = [past(box, "old-%d" % number) for number in range(3)] + [past(box, "new-1", start=time.time(), mtime=time.time())]
    off = past(box, "off-1", folder="q")
    (box.root / "off").mkdir()
    (box.root / "off" / ".memhook-off").touch()
    off.path.write_text(off.path.read_text("utf-8").replace(json.dumps(str(box.project)), json.dumps(str(box.root / "off"))), "utf-8")
    before = files(box.home)
    sizes = [os.path.getsize(script.path) for script in scripts]
    report = imported(box, "--dry-run")
    assert report == {"transcripts": 5, "bytes": sum(sizes) + os.path.getsize(off.path), "new": 4, "new_bytes": sum(sizes), "past": 3, "off": 1}
    told = box.run("import", "--dry-run").stdout
    assert told.startswith("5 transcripts, ") and "New in memory would be 4 transcripts, " in told and "\n    3 of the new: said before" in told
    assert files(box.home) == before
    off_line = "    withheld in 1 transcript: said in a project that is switched off\n"
    assert off_line in told and off_line in box.run("import", "--yes").stdout
    again = box.run("import", "--dry-run").stdout
    assert "New in memory would be 0 transcripts, " in again and off_line in again and off_line in box.run("import").stdout


def test_the_past_is_taken_only_when_somebody_says_so(box):
    past(box, said="Before the consent")
    past(box, "new-1", "After the consent", start=time.time(), mtime=time.time())
    done = box.run("import")
    assert "1 of 2" in done.stderr and "--yes" in done.stderr
    assert everything(box) == ["After the consent", "The answer to: After the consent"]
    done = box.run("import", "--yes")
    assert done.stderr.startswith("A drain") and everything(box) == sorted(
        ["After the consent", "The answer to: After the consent", "Before the consent", "The answer to: Before the consent"])
    assert "consented" not in box.run("import").stderr


@pytest.mark.parametrize("answer, taken", [(b"y\n", 2), (b"yes\n", 2), (b"n\n", 0), (b"\n", 0), (b"\x04", 0)], ids=["y", "yes", "n", "Enter", "end"])
def test_a_person_at_a_terminal_is_asked(box, answer, taken):
    past(box)
    status, shown = at_a_terminal(box, answer)
    assert status == 0 and "is in 1 of 1 new transcript." in shown and "[y/N]" in shown
    assert "1 transcript looked at, " in shown and (": %d turns taken, in %s\n" % (taken, "1 segment" if taken else "0 segments")) in shown
    assert ("    withheld in 1 transcript: said before you consented: memhook import --yes takes it" in shown) == (not taken)
    assert len(everything(box)) == taken


def test_nobody_is_asked_where_there_is_nothing_to_ask(box):
    past(box, start=time.time(), mtime=time.time())
    status, shown = at_a_terminal(box, None)
    assert status == 0 and "[y/N]" not in shown and len(everything(box)) == 2
    status, shown = at_a_terminal(box, None, "--yes")
    assert status == 0 and "[y/N]" not in shown


def test_what_was_said_in_a_pause_is_taken_only_with_yes(box):
    box.run("pause")
    script = box.script(start=time.time() - 1)
    script.prompt("Said in the pause")
    assert "unless you import it on purpose" in box.run("resume").stderr
    for _ in range(2):  # the second finds nothing new in it
        assert "withheld in 1 transcript: said in a pause" in box.run("import").stdout
    assert everything(box) == []
    box.run("import", "--yes")
    assert everything(box) == ["Said in the pause"]


@pytest.mark.parametrize("how", ["file", "file above"])
def test_a_project_that_is_switched_off_is_never_imported(box, how):
    off = box.root / "secret" / "deep"
    off.mkdir(parents=True)
    (off if how == "file" else off.parent).joinpath(".memhook-off").touch()
    script = past(box, said="A secret question")
    script.path.write_text(script.path.read_text("utf-8").replace(json.dumps(str(box.project)), json.dumps(str(off))), "utf-8")
    past(box, "old-2", "A plain question")
    box.run("import", "--yes")
    assert everything(box) == ["A plain question", "The answer to: A plain question"]
    assert not any(b"A secret" in data for data in files(box.home).values())
    found = json.loads(box.run("verify", "--json").stdout)
    assert found["ok"] and found["totals"]["withheld"] == 2


def test_a_scripts_path_a_folder_and_several_may_be_named(box):
    one, two, three = (past(box, "old-%d" % number, "Question %d" % number, folder) for number, folder in enumerate("ppq"))
    assert imported(box, "--yes", one.path)["transcripts"] == 1
    assert imported(box, "--yes", two.path.parent, three.path)["transcripts"] == 3
    assert len(everything(box)) == 6
    done = box.run("import", box.root / "nowhere", check=False)
    assert done.returncode == 1 and "nowhere" in done.stderr


def test_subagents_transcripts_are_none_of_a_session(box):
    script = past(box)
    for name in ("agent-1.jsonl", "old-0001/subagents/agent-2.jsonl"):
        target = script.path.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(script.path.read_bytes().replace(b"old-0001", b"agent-1"))
    assert imported(box, "--yes")["transcripts"] == 1


def test_the_newest_transcripts_come_first(box):
    scripts = [past(box, "old-%02d" % number, mtime=OLD + number) for number in range(40)]
    box.run("import", "--yes")
    written = [os.stat(memhook.checkpoint_path(box.api, memhook.transcript_key(str(script.path)))).st_mtime_ns for script in scripts]
    assert written == sorted(written, reverse=True)


def test_a_transcript_that_cannot_be_read_keeps_no_other_out_and_is_told(box):
    past(box, "old-1", "Readable")
    bad = past(box, "old-2", "Unreadable")
    checkpoint = pathlib.Path(memhook.checkpoint_path(box.api, memhook.transcript_key(str(bad.path))))
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_text('{"format": 99}')
    assert imported(box, "--dry-run")["new"] == 2
    assert json.loads(box.run("import", "--json", check=False).stdout)["failed"] == 1
    done = box.run("import", "--yes", "--json", check=False)
    assert done.returncode == 1 and json.loads(done.stdout)["failed"] == 1
    assert everything(box) == ["Readable", "The answer to: Readable"]


# ---- nothing twice


def test_importing_twice_is_importing_once(box):
    for number in range(20):
        past(box, "old-%02d" % number, "Question %d. %s" % (number, "Words and words. " * 600))
    first = imported(box, "--yes")
    assert first["segments"] >= 40 and first["turns"] > 100
    box.drain()
    before = {path: data for path, data in files(box.home).items() if path.startswith("memories")}
    again = imported(box, "--yes")
    assert again["segments"] == again["turns"] == 0 and again["transcripts"] == 20
    assert box.drain()["stored"] == 0
    assert {path: data for path, data in files(box.home).items() if path.startswith("memories")} == before


def test_what_hooks_have_captured_is_not_taken_again(box):
    live = box.script("live-0001")
    live.prompt("Captured by a hook")
    box.hook("Stop", live)
    box.run("import", "--yes")
    assert box.checkpoint(live)["state"] == "open" and box.checkpoint(live)["turns"] and box.spooled() == []  # its tail stays open: the session goes on
    live.answer("And this later")
    box.hook("SessionEnd", live)
    box.run("import", "--yes")
    assert everything(box) == ["And this later", "Captured by a hook"] and len(box.memories()) == 1


def test_a_session_that_goes_on_after_its_import_is_stored_once(box):
    script = past(box, said="Imported")
    box.run("import", "--yes")
    script.clock = time.time()
    script.prompt("Resumed")
    box.hook("Stop", script)
    box.hook("SessionEnd", script)
    assert everything(box) == ["Imported", "Resumed", "The answer to: Imported"]
    assert json.loads(box.run("verify", "--json").stdout)["ok"]


def test_an_import_beside_live_capture_and_drains_stores_everything_once(box):
    for number in range(30):
        past(box, "old-%02d" % number, "Question %d. %s" % (number, "Words and words. " * 600))
    live = box.script("live-0001")
    said, stop = [], threading.Event()

    def hooks():
        while not stop.is_set() or len(said) < 5:
            said.append("Live prompt %d. %s" % (len(said), "More words. " * 400))
            live.prompt(said[-1])
            box.hook("Stop", live)
        box.hook("SessionEnd", live)

    def drains():
        while not stop.is_set():
            box.run("drain", check=False)

    threads = [threading.Thread(target=target) for target in (hooks, drains)]
    for thread in threads:
        thread.start()
    reports = [imported(box, "--yes") for _ in range(2)]
    stop.set()
    for thread in threads:
        thread.join(60)
    assert reports[0]["failed"] == reports[1]["failed"] == 0
    kept = everything(box)
    assert len(kept) == len(set(kept)) == 60 + len(said) and set(text.strip() for text in said) <= set(text.strip() for text in kept)
    found = json.loads(box.run("verify", "--json").stdout)
    assert found["ok"] and {one["state"] for one in found["transcripts"]} == {"ok"}


def test_two_imports_at_once_store_everything_once(box):
    for number in range(40):
        past(box, "old-%02d" % number, "Question %d" % number)
    start = [box.python, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM), "import", "--yes", "--json"]
    both = [subprocess.Popen(start, env=box.env, cwd=box.project, stdout=subprocess.PIPE) for _ in range(2)]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0] and sum(report["turns"] for report in reports) == 80
    assert len(everything(box)) == 80


# ---- interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["^C", "killed"])
def test_an_import_that_is_interrupted_goes_on_later_and_stores_nothing_twice(box, number):
    for count in range(80):
        past(box, "old-%03d" % count, "Question %d. %s" % (count, "Words and words. " * 1_500))
    process = subprocess.Popen([box.python, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM), "import", "--yes"], env=box.env, cwd=box.project,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    checkpoints = box.home / "checkpoints"
    wait_until(lambda: checkpoints.is_dir() and any(checkpoints.iterdir()), "the import to begin")
    process.send_signal(number)
    told = process.communicate(timeout=30)[1]
    assert process.returncode == (130 if number == signal.SIGINT else -9) and b"Traceback" not in told
    taken = len(list(checkpoints.iterdir()))
    assert 0 < taken < 80, "it was over before the signal came"
    report = imported(box, "--yes")
    assert 0 < report["segments"] and report["failed"] == 0
    box.drain()
    assert len(box.said()) == 160
    found = json.loads(box.run("verify", "--json").stdout)
    assert found["ok"] and found["totals"]["missing"] == found["totals"]["repeated"] == 0
    segments = {}
    for memory in box.memories():
        segments.setdefault(memory.front["session"], []).append(memory.front["segment"])
    assert all(len(numbers) == len(set(numbers)) for numbers in segments.values())


def test_segments_are_durable_before_a_checkpoint_says_that_they_were_taken(box):
    """The order of a group: its segments first; what was begun is marked, so that no number is used twice."""
    script = past(box, said="Words. " * 3_000)
    consent = memhook.read_consent(box.api)
    importing = memhook.Import(box.api, consent, True)
    importing.take(str(script.path))
    assert importing.report["segments"] >= 2 and box.spooled() == []
    checkpoint = pathlib.Path(memhook.checkpoint_path(box.api, memhook.transcript_key(str(script.path))))
    assert not checkpoint.exists() and os.path.getsize(box.home / "seen" / checkpoint.stem) == 0
    importing.group[0][1].mark()
    importing.spool.write()  # and here it is killed
    for lock, _ in importing.group:
        lock.release()
    assert json.loads(checkpoint.read_bytes())["cutting"] is True and len(box.spooled()) == importing.report["segments"]
    again = imported(box, "--yes")
    assert again["segments"] == importing.report["segments"]
    numbers = [segment["segment"] for segment in box.spooled()]
    assert len(numbers) == len(set(numbers)) == 2 * again["segments"]
    assert len(everything(box)) == 2


# ---- what it starts and shows


def test_an_import_starts_a_drain_for_what_it_took(box):
    past(box)
    del box.env["MEMHOOK_AUTODRAIN"]
    box.run("import", "--yes")
    wait_until(box.memories, "the drain", pause=0.05)
    assert len(box.said()) == 2
    with memhook.Lock(str(box.home / "drain.lock")) as lock:
        assert lock.acquire(30.0)  # it ends before the box goes


def test_progress_is_for_a_terminal_only(box):
    for number in range(20):
        past(box, "old-%02d" % number)
    assert "looked at" not in box.run("import", "--yes").stderr
    status, shown = at_a_terminal(box, None, "--yes")
    assert status == 0 and "looked at 20 of 20" in shown


def test_a_secret_in_the_name_of_a_transcript_reaches_no_memory(box):
    secret = "ghp_" + "a1B2c3D4e5" * 4
    folder = box.root / "exports"
    script = Script(folder / ("chat about %s.jsonl" % secret), box.project, "session-0001")
    script.prompt("What is left?")
    script.answer("Nothing.")
    box.run("import", "--yes", folder)
    box.drain()
    memory, = box.memories()
    assert memory.front["session"] == "chat about [redacted:github-token]"
    kept = {path: path.read_bytes() for path in box.home.rglob("*") if path.is_file() and path.parent.name != "checkpoints"}  # that one must find the file
    assert [path.name for path in kept if secret.encode() in kept[path] or secret in path.name] == []
    assert box.run("verify", folder).returncode == 0


@pytest.mark.parametrize("purged", [False, True])
def test_an_import_ends_where_the_consent_is_withdrawn_meanwhile(box, purged):
    for number in range(3):
        past(box, "old-%d" % number)

    def withdraw(done, total):
        memhook.uninstall_and_erase(box.api, lambda text: None) if purged else memhook.uninstall(box.api, lambda text: None)

    consent = memhook.read_consent(box.api)
    importing = memhook.Import(box.api, consent, True)
    with pytest.raises(memhook.StateError, match="uninstalled"):
        importing.run(memhook.find_transcripts(box.api, []), withdraw)
    assert importing.report["transcripts"] == 1 and box.home.exists() is not purged
    assert purged or memhook.Spool(box.api.path("spool")).counts()["new"] == 0, "nor was the one put into the spool that was read before"
