"""Many processes at once: hooks on one transcript, drains on one spool, installs on one settings.json. What was said is stored once."""
import json
import os
import subprocess
import sys
import threading
import time

import pytest

import memhook
from conftest import Box, wait_until
import test_crash
from test_crash import STRACE, Talk, act, age_leftovers, drain_command, drained, drains, needs_proc, quietly, wrong_in, wrong_on_disk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no /bin/sh and no FIFO on Windows")
installed, room, strace, tell = test_crash.installed, test_crash.room, test_crash.strace, test_crash.tell  # fixtures


class Gate:
    """Processes that wait at it go on in the same instant: each opens a FIFO for reading, which blocks until somebody writes."""

    def __init__(self, box):
        self.box = box
        self.path = str(box.root / "gate")
        self.waiting = []
        os.mkfifo(self.path)

    def add(self, command, data=b"", env=None):
        waiting = ["/bin/sh", "-c", ': < "$0"; exec "$@"', self.path, *map(str, command)]
        process = subprocess.Popen(waiting, env=env or self.box.env, cwd=self.box.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        process.stdin.write(data)
        process.stdin.close()
        process.stdin = None
        self.waiting.append(process)

    def hook(self, event, talk):
        self.add(["/bin/sh", "-c", self.box.command(event)], json.dumps(self.box.payload(event, talk.script)).encode() + b"\n")

    def drain(self, **environ):
        self.add(drain_command(self.box), env={**self.box.env, **environ})

    def open(self, meanwhile=lambda: None):
        """Let them go, and wait until all have ended. Hooks are silent; a drain does its work, or says that another one is at it."""
        fd = os.open(self.path, os.O_WRONLY)  # returns when the first has come; those that come later find it open
        try:
            meanwhile()
            for process in self.waiting:
                out, err = process.communicate(timeout=60)
                ended = process.returncode, out, err
                if process.args[-1] != "--json":
                    assert ended == (0, b"", b"")
                elif process.returncode:
                    assert (process.returncode, out) == (75, b"") and err.startswith(b"memhook: another drain is running"), ended
                else:
                    assert json.loads(out) and err == b"", ended
        finally:
            os.close(fd)
            self.waiting = []


def settled(box, *talks):
    """The normal end of sessions; afterwards everything is in one memory, and no segment was worked on twice."""
    for talk in talks:
        quietly(box, "Stop", talk.say())
        quietly(box, "SessionEnd", talk)
    age_leftovers(box)
    drained(box)
    wrong = [found for talk in talks for found in wrong_in(box, talk)] + wrong_on_disk(box)
    assert wrong == []
    return [receipt["outcome"] for receipt in box.receipts()]


def test_fifty_stops_and_two_drains_at_once_on_one_growing_session_store_it_once(room):
    talk = Talk(room).say(past=True)
    gate = Gate(room)

    def grow():
        for _ in range(40):
            talk.say(1_500)
            time.sleep(0.02)
    for number in range(50):
        gate.hook("Stop", talk)
        if number in (10, 40):
            gate.drain()
    gate.open(grow)
    assert set(settled(room, talk)) == {"stored"}


def test_the_same_hook_twice_at_the_same_instant_fifty_times_stores_everything_once(room):
    talk = Talk(room).say(past=True)
    gate = Gate(room)
    for number in range(50):
        talk.say(8_100 if number % 10 == 5 else 0)
        gate.hook("Stop", talk)
        gate.hook("Stop", talk)
        gate.open()
    assert set(settled(room, talk)) == {"stored"}


def test_stop_and_session_end_at_once_store_everything_once(room):
    """The client cancels a Stop that is slow, and sends SessionEnd; the session is resumed, twenty times."""
    talk = Talk(room).say(past=True)
    gate = Gate(room)
    for number in range(20):
        talk.say(8_100 if number % 5 == 2 else 0)
        for event in ("Stop", "SessionEnd") if number % 2 else ("SessionEnd", "Stop"):
            gate.hook(event, talk)
        gate.open()
        if number % 7 == 6:
            drained(room)
    assert set(settled(room, talk)) == {"stored"}


def test_two_session_ends_and_a_drain_at_once_store_everything_once(room):
    """Also a drain captures: here the session's client is gone."""
    talk = Talk(room).say(past=True)
    gate = Gate(room)
    for _ in range(10):
        quietly(room, "Stop", talk.say())
        talk.say()
        gate.hook("SessionEnd", talk)
        gate.drain(MEMHOOK_BACKGROUND="1")
        gate.hook("SessionEnd", talk)
        gate.open()
    assert set(settled(room, talk)) == {"stored"}


def test_twenty_sessions_at_once_with_one_drain_are_stored_once_each(room):
    talks = [Talk(room, "s%02d-at-once" % number).say(8_100, past=True).say(past=True) for number in range(20)]
    gate = Gate(room)
    for number, talk in enumerate(talks):
        gate.hook("SessionEnd", talk)
        if number == 10:
            gate.drain()
    gate.open()
    assert set(settled(room, *talks)) == {"stored"}


def test_five_drains_at_once_work_on_no_segment_twice(room):
    talks = [Talk(room, "s%02d-waits" % number).say(8_100, past=True).say(past=True) for number in range(6)]
    for talk in talks:
        quietly(room, "SessionEnd", talk)
    gate = Gate(room)
    for number in range(5):
        gate.drain(**({"MEMHOOK_BACKGROUND": "1"} if number % 2 else {}))
    gate.open()
    assert [receipt["outcome"] for receipt in room.receipts()] == ["stored"] * 12
    assert set(settled(room, *talks)) == {"stored"}


COME_AND_GO = """
import os, sys, time
folders, end = sys.argv[1:], time.time() + 1.5
while time.time() < end:
    for folder in folders:
        for number in range(20):
            path = os.path.join(folder, "x%d.%d.tmp" % (number, os.getpid()))
            open(path, "w").close()
            os.rename(path, path + ".done")
            os.unlink(path + ".done")
"""


def test_a_drain_that_sweeps_while_temp_files_come_and_go_does_not_fail(room):
    talk = Talk(room).say(past=True)
    quietly(room, "SessionEnd", talk)
    folders = [str(room.home), str(room.home / "checkpoints"), str(room.home / "spool" / "tmp")]
    writers = [subprocess.Popen([sys.executable, "-I", "-S", "-c", COME_AND_GO, *folders]) for _ in range(2)]
    ended = [act(room, "drain")]
    while writers[0].poll() is None:
        ended.append(act(room, "drain"))
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(ended) > 5 and [one for one in ended if one.status or one.err] == []
    assert set(settled(room, talk)) == {"stored"}


def test_a_drain_does_not_fail_when_a_temp_file_is_renamed_while_it_looks_at_it(room, strace):
    """The same, but certain: the drain is held at each stat of a file for a while, in which the file goes."""
    talk = Talk(room).say(past=True)
    quietly(room, "SessionEnd", talk)
    temp = room.home / "spool" / "tmp" / "x.1.tmp"
    temp.write_bytes(b"")
    log = room.root / "strace.log"
    holding = [*STRACE, "-o", str(log), "-P", str(temp), "-e", "trace=file", "-e", "inject=file:delay_enter=500000", *drain_command(room)]
    process = subprocess.Popen(holding, env=room.env, cwd=room.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.2)
    wait_until(lambda: not room.spooled() and not room.spooled("claimed"), "the drain to be done with the segment")
    time.sleep(0.1)
    temp.rename(temp.with_suffix(".json"))
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"") and json.loads(out)["stored"] == 1
    assert "x.1.tmp" in log.read_text("utf-8"), "the drain did not look at it"


FOREIGN = b'{\r\n\t"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "echo theirs"}]}]},\r\n\t"model": "opus"\r\n}'


@pytest.mark.parametrize("before", [None, FOREIGN], ids=["no settings", "settings"])
def test_two_installs_at_once_are_one(tmp_path, before):
    for number in range(3):
        box = Box(tmp_path / str(number))
        if before is not None:
            (box.config / "settings.json").write_bytes(before)
        command = [box.python, memhook.__file__, "install", "--consent", "I CONSENT", "--no-mcp"]
        options = {"env": box.env, "cwd": box.project, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        both = [subprocess.Popen(command, **options) for _ in range(2)]
        ended = [(process.communicate(timeout=60), process.returncode) for process in both]
        assert [(out, status) for (out, _), status in ended] == [("", 0), ("", 0)], ended
        settings = json.loads((box.config / "settings.json").read_bytes())
        ours = [(event, hook["command"]) for event, groups in settings["hooks"].items() for group in groups for hook in group["hooks"]
                if memhook.parse_hook(hook["command"])]
        assert sorted(event for event, _ in ours) == sorted(spec.event for spec in memhook.HOOK_SPECS)
        assert box.status()["consent"]["capture"] and set(box.status()["hooks"].values()) == {"installed"}
        assert [name for name in os.listdir(box.config) + os.listdir(box.home) if name.endswith(".tmp")] == []
        talk = Talk(box, start=time.time())
        quietly(box, "SessionEnd", talk.say())
        assert drained(box)["stored"] == 1
        box.run("uninstall")
        after = (box.config / "settings.json").read_bytes() if (box.config / "settings.json").exists() else None
        assert after == before


def lock_holders(path):
    """The processes that hold a lock on this file now, by the kernel's own list."""
    try:
        inode = os.stat(path).st_ino
        with open("/proc/locks") as stream:
            rows = [line.split() for line in stream]
    except OSError:
        return set()
    return {int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].endswith(":%d" % inode)}


@needs_proc
def test_a_hundred_session_ends_with_their_drains_leave_nothing_waiting_and_no_process(room):
    """At most one drain works at a time; none is left; and none was needed afterwards: no wake-up was lost."""
    room.env["MEMHOOK_AUTODRAIN"] = "1"
    talk = Talk(room).say(past=True)
    working, alive, done = [], [], threading.Event()

    def watch():
        while not done.is_set():
            working.append(lock_holders(room.home / "drain.lock"))
            alive.append(len(drains(room)))
            done.wait(0.02)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(100):
            quietly(room, "SessionEnd", talk.say())
        wait_until(lambda: not drains(room) and not room.spooled(), "the last drain to begin, and all to end")
    finally:
        done.set()
        watcher.join()
    assert max(map(len, working)) == 1, "at most one, and one was seen"
    assert room.spooled() == room.spooled("claimed") == []
    assert wrong_in(room, talk) + wrong_on_disk(room) == []
    outcomes = [receipt["outcome"] for receipt in room.receipts()]  # one more where a drain caught up between a prompt and its answer
    assert set(outcomes) == {"stored"} and len(outcomes) >= 100
    assert max(alive) < 20, "drains that find another at work end at once"
