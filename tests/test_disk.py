"""Files that are whole or absent and private; locks that die with their process; times and ids that agree with the standard library."""
import datetime
import os
import random
import resource
import signal
import subprocess
import sys
import time
import uuid

import pytest

import memhook
from conftest import ROOT

UTC = datetime.timezone.utc


def child(code, *args, **options):
    """A Python process with memhook imported; it prints what the test waits for."""
    start = "import os, sys, time; sys.dont_write_bytecode = True; sys.path.insert(0, %r); import memhook\n" % str(ROOT)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", start + code, *map(str, args)], **pipes, **options)


def say(process, line=""):
    process.stdin.write(line + "\n")
    process.stdin.flush()


# ---- writing

def test_a_file_is_written_whole_private_and_leaves_no_temp_file(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    memhook.make_folder(str(path.parent))
    for data in (b"", b"first", b"\0\xff" * 500_000, b"shorter"):
        memhook.write_file(str(path), data)
        assert path.read_bytes() == data
        assert os.listdir(path.parent) == ["file"]
    assert [oct(at.stat().st_mode & 0o777) for at in (path, path.parent, path.parent.parent)] == ["0o600", "0o700", "0o700"]


def test_a_file_replaces_a_link_and_not_what_the_link_leads_to(tmp_path):
    (tmp_path / "target").write_text("mine")
    os.symlink(tmp_path / "target", tmp_path / "link")
    memhook.write_file(str(tmp_path / "link"), b"new")
    assert (tmp_path / "target").read_text() == "mine" and not (tmp_path / "link").is_symlink()


def test_the_temp_file_is_removed_when_the_rename_fails(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        memhook.write_file(str(tmp_path / "folder"), b"data")
    assert os.listdir(tmp_path) == ["folder"]


def test_the_temp_file_is_removed_and_the_old_file_stays_when_the_disk_takes_no_more(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    process = child("try: memhook.write_file(sys.argv[1], b'x' * 1_000_000)\nexcept OSError: print('refused')", path,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)))
    assert process.communicate()[0] == "refused\n"
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["file"]


def test_a_folder_below_a_file_cannot_be_made_and_nothing_is_left(tmp_path):
    (tmp_path / "file").touch()
    for path in ("file/x", "file/a/b"):
        with pytest.raises(OSError):
            memhook.make_folder(str(tmp_path / path))
        with pytest.raises(OSError):
            memhook.write_file(str(tmp_path / path), b"data")
    assert os.listdir(tmp_path) == ["file"]


def test_nothing_that_is_written_makes_the_folder_of_a_home_that_is_gone(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path / "gone")})
    writers = (lambda: memhook.Lock(home.path("drain.lock")).acquire(), lambda: memhook.write_json(home.path("usage.json"), {}),
               lambda: memhook.append_line(home.path("receipts.jsonl"), b"{}\n"), lambda: memhook.Spool(home.path("spool")).put("stem", b"{}"),
               lambda: memhook.transcript_lock(home, "key"), lambda: memhook.write_checkpoint(home, "key", memhook.Checkpoint("/t.jsonl", "s")),
               lambda: memhook.make_folder(home.path("memories", "shop", "2026-01"), 3))
    for write in writers:
        with pytest.raises(FileNotFoundError):
            write()
    memhook.log(home, "event")
    assert os.listdir(tmp_path) == []
    home.create()
    for write in writers:
        write()
    assert {"spool", "seen", "checkpoints", "memories"} <= set(os.listdir(home.root))


@pytest.mark.parametrize("durable", [True, False])
def test_a_reader_sees_the_old_file_or_the_new_one_also_when_the_writer_is_killed(tmp_path, durable):
    path = tmp_path / "file"
    whole = [b"a" * 300_000, b"b" * 500_000]
    memhook.write_file(str(path), whole[0])
    code = """
while True:
    for data in (b'a' * 300_000, b'b' * 500_000):
        memhook.write_file(sys.argv[1], data, %r)
        print(flush=True)
""" % durable
    for pause in (0.0, 0.01, 0.05):
        process = child(code, path)
        process.stdout.readline()
        deadline = time.monotonic() + pause
        while time.monotonic() < deadline:
            assert path.read_bytes() in whole
        process.kill()
        process.communicate()
        assert path.read_bytes() in whole


def test_temp_files_of_killed_writers_are_swept_when_they_are_old_and_nothing_else_is(tmp_path):
    old = time.time() - memhook.TEMP_SECONDS - 60
    for name, at in (("old.1.tmp", old), ("new.2.tmp", None), ("old.json", old), ("tmp", old)):
        (tmp_path / name).touch()
        if at:
            os.utime(tmp_path / name, (at, at))
    assert memhook.sweep_temp(str(tmp_path)) == 1
    assert sorted(os.listdir(tmp_path)) == ["new.2.tmp", "old.json", "tmp"]
    assert memhook.sweep_temp(str(tmp_path / "nothing")) == 0


def test_a_temp_file_that_is_renamed_away_under_the_sweep_does_not_stop_it(tmp_path):
    os.symlink(tmp_path / "gone", tmp_path / "a.tmp")  # listed, but there is nothing behind the name: as after a rename
    (tmp_path / "b.tmp").touch()
    os.utime(tmp_path / "b.tmp", (1, 1))
    memhook.sweep_temp(str(tmp_path))
    assert not (tmp_path / "b.tmp").exists()


def test_a_folder_named_like_a_temp_file_does_not_stop_the_sweep(tmp_path):
    (tmp_path / "a.tmp").mkdir()
    (tmp_path / "b.tmp").touch()
    for name in ("a.tmp", "b.tmp"):
        os.utime(tmp_path / name, (1, 1))
    memhook.sweep_temp(str(tmp_path))
    assert os.listdir(tmp_path) == ["a.tmp"]


def test_lines_that_many_processes_append_never_mix(tmp_path):
    path = tmp_path / "log"
    code = "for n in range(200): memhook.append_file(sys.argv[1], (sys.argv[2] * 3000 + '\\n').encode())"
    writers = [child(code, path, letter) for letter in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    lines = path.read_text().splitlines()
    assert len(lines) == 800 and {line for line in lines} == {letter * 3_000 for letter in "abcd"}
    for writer in writers:
        writer.communicate()


def test_reading_tells_absent_from_empty(tmp_path):
    (tmp_path / "empty").touch()
    assert memhook.read_file(str(tmp_path / "empty")) == b""
    assert memhook.read_file(str(tmp_path / "no")) is None
    assert memhook.read_file(str(tmp_path / "empty" / "below")) is None
    assert memhook.list_folder(str(tmp_path / "no")) == memhook.list_folder(str(tmp_path / "empty")) == []


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"{}x", b"[" * 100_000, b'{"a":' * 100_000, b"\0\0", b"9" * 5_000])
def test_what_is_not_one_whole_json_value_reads_as_none(tmp_path, data):
    (tmp_path / "file").write_bytes(data)
    assert memhook.read_json(str(tmp_path / "file")) is None


def test_a_byte_order_mark_is_no_part_of_json(tmp_path):
    (tmp_path / "file").write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n')
    assert memhook.read_json(str(tmp_path / "file")) == {"a": 1}


def test_json_with_lone_surrogates_can_be_written(tmp_path):
    memhook.write_json(str(tmp_path / "file"), {"a": "\ud83d—é\u2028"})
    assert memhook.read_json(str(tmp_path / "file")) == {"a": "?—é\u2028"}


# ---- locks

HOLD = """
lock = memhook.Lock(sys.argv[1])
print(lock.acquire(float(sys.argv[2])), flush=True)
sys.stdin.readline()
lock.release()
print('free', flush=True)
"""


def test_a_lock_is_held_by_one_process_until_it_is_released(tmp_path):
    path = tmp_path / "lock"
    first = child(HOLD, path, 0)
    assert first.stdout.readline() == "True\n"
    second = child(HOLD, path, 0)
    assert second.stdout.readline() == "False\n"
    assert memhook.Lock(str(path)).acquire() is False
    waiting = child(HOLD, path, 20)
    say(first)
    assert first.stdout.readline() == "free\n"
    assert waiting.stdout.readline() == "True\n"
    assert memhook.Lock(str(path)).acquire() is False
    for process in (first, second, waiting):
        process.communicate("\n") if process.poll() is None else process.communicate()
    with memhook.Lock(str(path)) as lock:
        assert lock.acquire()
    assert memhook.Lock(str(path)).acquire()


def test_waiting_for_a_lock_takes_the_time_that_was_given(tmp_path):
    with memhook.Lock(str(tmp_path / "lock")) as lock:
        assert lock.acquire()
        started = time.monotonic()
        assert not memhook.Lock(str(tmp_path / "lock")).acquire(0.3)
        assert 0.3 <= time.monotonic() - started < 2


def test_a_lock_is_free_when_its_holder_was_killed(tmp_path):
    path = tmp_path / "lock"
    holder = child(HOLD, path, 0)
    assert holder.stdout.readline() == "True\n"
    assert not memhook.Lock(str(path)).acquire()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    with memhook.Lock(str(path)) as lock:
        assert lock.acquire()
    holder.communicate()


def test_a_lock_file_left_by_anybody_with_any_content_is_no_lock(tmp_path):
    path = tmp_path / "lock"
    path.write_text("12345\n")
    with memhook.Lock(str(path)) as lock:
        assert lock.acquire()
    assert path.read_text() == "12345\n"


def test_a_lock_whose_file_was_removed_is_taken_again_on_the_file_that_is_there(tmp_path):
    path = tmp_path / "lock"
    with memhook.Lock(str(path)) as first:
        assert first.acquire()
        waiting = child(HOLD, path, 20)
        time.sleep(0.2)
        path.unlink()  # as the drain does with the lock of a session that it forgets
    assert waiting.stdout.readline() == "True\n"
    assert path.exists()
    assert not memhook.Lock(str(path)).acquire()
    waiting.communicate("\n")


def test_many_processes_that_want_a_lock_get_it_one_after_the_other(tmp_path):
    (tmp_path / "count").write_text("0")
    code = """
for _ in range(25):
    with memhook.Lock(sys.argv[1] + "/lock") as lock:
        assert lock.acquire(60)
        count = int(open(sys.argv[1] + "/count").read())
        open(sys.argv[1] + "/count", "w").write(str(count + 1))
        if count % 7 == 0:
            os.unlink(sys.argv[1] + "/lock")
"""
    workers = [child(code, tmp_path) for _ in range(4)]
    assert [worker.wait(60) for worker in workers] == [0] * 4
    assert (tmp_path / "count").read_text() == "100"
    for worker in workers:
        worker.communicate()


# ---- times

EDGES = ["1970-01-01T00:00:00", "1969-12-31T23:59:59", "2000-02-29T12:00:00", "1900-02-28T23:59:59", "1900-03-01T00:00:00",
         "2100-02-28T23:59:59", "2024-02-29T00:00:00",
         "2024-12-31T23:59:59", "2025-01-01T00:00:00", "1600-02-29T00:00:00", "0001-01-01T00:00:00", "0099-06-15T01:02:03",
         "9999-12-31T23:59:59", "2038-01-19T03:14:08"]


def some_times():
    """Edges and 10,000 random times, as (text, seconds)."""
    chance = random.Random(20_260_101)
    texts = [edge + fraction for edge in EDGES for fraction in ("", ".0", ".001", ".5", ".999")]
    for _ in range(10_000):
        moment = datetime.datetime(1, 1, 1) + datetime.timedelta(days=chance.randrange(3_652_059), seconds=chance.randrange(86_400))
        digits = chance.choice((0, 1, 3, 3, 3, 6))
        fraction = ".%0*d" % (digits, chance.randrange(10 ** digits)) if digits else ""
        texts.append(moment.strftime("%%04d-%m-%dT%H:%M:%S") % moment.year + fraction)
    for text in texts:
        whole, _, fraction = text.partition(".")
        moment = datetime.datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
        yield text, round((moment - datetime.datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() + float("0." + (fraction or "0")), 3)


def test_times_are_read_as_datetime_reads_them():
    wrong = [(text, memhook.parse_time(text + "Z"), at) for text, at in some_times() if memhook.parse_time(text + "Z") != at]
    assert wrong == []
    assert memhook.parse_time("2026-01-31 12:00:00") == memhook.parse_time("2026-01-31T12:00:00z") == 1_769_860_800


def test_times_are_written_as_they_are_read():
    for text, at in some_times():
        written = memhook.iso(at)
        assert memhook.parse_time(written) == at, text
        if len(text) == 23:
            assert written == text + "Z"
    assert memhook.iso(None) == "-" and memhook.parse_time("-") is None


def test_what_is_no_time_is_none_and_never_an_error():
    for value in (None, 5, True, [], {}, "", "2026", "2026-01-31", "today at noon, of all times", "2026-01-31X12:00:00Z",
                  "2026-01-3\u00b2T12:00:00Z", "x" * 40, "\ud83d" * 20):
        assert memhook.parse_time(value) is None, value
    chance = random.Random(7)
    for _ in range(5_000):
        text = "".join(chance.choice("0123456789-:TZ. +\u0663\u00b2\U0001d7d8e_\n") for _ in range(chance.randrange(18, 30)))
        assert isinstance(memhook.parse_time(text[:10] + "T" + text[11:]), (float, int, type(None)))


def test_a_fraction_that_is_none_does_not_cost_the_time():
    for rest in ("", "Z", ".Z", ".5x", "+00:00", " UTC", ".\u00b2"):
        assert memhook.parse_time("2026-01-31T12:00:00" + rest) in (1_769_860_800, None), rest
    assert memhook.parse_time("2026-01-31T12:00:00.123456789Z") == 1_769_860_800.123


# ---- ids

def test_a_content_id_is_this_and_stays_this():
    parts = "github.com/someone/thing", "Fix the login — now", "We decided to use integer cents.\n日本語 😀"
    assert memhook.content_id(*parts) == "605333a2-6939-5806-b86d-4adf2bd77941"


def test_content_ids_are_those_of_uuid5():
    chance = random.Random(5)
    letters = "abc XYZ09\n\t\0é—日本😀\u2028"
    for _ in range(2_000):
        parts = ["".join(chance.choice(letters) for _ in range(chance.randrange(40))) for _ in range(3)]
        assert memhook.content_id(*parts) == str(uuid.uuid5(uuid.NAMESPACE_DNS, "\n".join(parts)))
    assert memhook.content_id("", "", "") == str(uuid.uuid5(uuid.NAMESPACE_DNS, "\n\n"))
    assert memhook.content_id("a", "b", "c" * 1_000_000) == str(uuid.uuid5(uuid.NAMESPACE_DNS, "a\nb\n" + "c" * 1_000_000))


def test_a_content_id_exists_for_text_that_utf_8_cannot_hold():
    assert memhook.content_id("a", "\ud83d", "b") == memhook.content_id("a", "?", "b")
    assert len(memhook.text_hash("\ud83d")) == 16


def test_hashes_are_those_of_hashlib():
    import hashlib
    for data in (b"", b"abc", b"\xff" * 100_000):
        assert memhook.sha1_hex(data) == hashlib.sha1(data).hexdigest()
        assert memhook.file_hash(data) == hashlib.sha256(data).hexdigest()
