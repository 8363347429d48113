"""The drain: every segment becomes a memory once, its receipt says so, and no item, file or crash keeps it from the others."""
import json
import os
import subprocess
import sys
import threading
import time

import pytest

import memhook
from conftest import PROGRAM, Box, heeding_modes

KEY = "0123456789abcdef0123"
NONE = {"stored": 0, "duplicate": 0, "empty": 0, "forgotten": 0, "retried": 0, "dead": 0, "left": 0}
START = 1_769_860_800.0


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path).consent()


def turns_of(*texts, first=1, kinds=("prompt", "answer")):
    """Turns u<first>/0, u<first+1>/0, … of alternating kinds, ten bytes each."""
    return [memhook.Turn("u%d/0" % number, kinds[(number - first) % len(kinds)], text, number * 10, number * 10 + 10, START + number,
                         "/src/thing", "main", "thing")
            for number, text in enumerate(texts, first)]


def segment(turns, number=0, key=KEY, **changes):
    checkpoint = memhook.Checkpoint("/transcripts/s.jsonl", "session-1")
    checkpoint.segment = number
    return {**memhook.make_segment(key, checkpoint, memhook.Chunk(turns)), "at": START + 100, **changes}


def put(box, turns, number=0, key=KEY, **changes):
    made = segment(turns, number, key, **changes)
    lay(box, memhook.segment_stem(made) + ".json", json.dumps(made).encode())
    return made


def lay(box, name, data, state="new"):
    path = box.home / "spool" / state / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def drained(box, **options):
    """Drain in this process; -> the counts that are not 0."""
    done = memhook.drain(box.api, memhook.read_consent(box.api), **options).to_json()
    return {name: count for name, count in done.items() if count}


def files(box):
    """Every memory as (name, bytes, time of change)."""
    return sorted((path, memhook.read_file(path), os.stat(path).st_mtime_ns) for path in memhook.memory_files(box.api))


def texts(box):
    return [turn.text for memory in box.memories() for turn in memory.turns]


# ---- one segment

def test_a_segment_becomes_a_memory_and_leaves_the_spool(box):
    made = put(box, turns_of("Why is the sky blue?", "Because short waves scatter more."))
    assert drained(box) == {"stored": 1}
    memory, = box.memories()
    assert [(turn.key, turn.kind, turn.text, turn.start, turn.end, turn.at) for turn in memory.turns] == [
        ("u1/0", "prompt", "Why is the sky blue?", 10, 20, START + 1),
        ("u2/0", "answer", "Because short waves scatter more.", 20, 30, START + 2)]
    expected = {"id": made["id"], "project": "thing", "session": "session-1", "segment": 0, "bytes": [10, 30], "distiller": "offline",
                "transcript": "/transcripts/s.jsonl", "branch": "main", "cwd": "/src/thing"}
    assert {name: memory.front[name] for name in expected} == expected
    assert memory.digest.startswith("# Why is the sky blue?")
    assert box.spooled("new") == box.spooled("claimed") == box.spooled("dead") == []


def test_a_receipt_says_what_became_of_the_segment_and_holds_no_text(box):
    made = put(box, turns_of("A question about kumquats", "An answer about kumquats"), number=4, generation=2)
    drained(box)
    receipt, = box.receipts()
    path, data, _ = files(box)[0]
    assert {name: receipt[name] for name in receipt if name != "at"} == {
        "key": KEY, "segment": 4, "id": made["id"], "generation": 2, "parser": memhook.PARSER_VERSION, "outcome": "stored",
        "bytes": [10, 30], "file": memhook.file_hash(data),
        "turns": [["u1/0", memhook.text_hash("A question about kumquats")], ["u2/0", memhook.text_hash("An answer about kumquats")]]}
    assert memhook.parse_time(receipt["at"])
    for name in ("receipts.jsonl", "memhook.log"):
        assert b"kumquat" not in (memhook.read_file(box.api.path(name)) or b"")


def test_the_json_of_a_drain_has_these_keys(box):
    put(box, turns_of("a", "b"))
    assert list(box.drain().items()) == list({**NONE, "stored": 1}.items())
    assert box.run("drain").stdout == "stored 0, duplicate 0, empty 0, forgotten 0, retried 0, dead 0, left 0\n"


def test_draining_twice_is_draining_once(box):
    for number in range(3):
        put(box, turns_of("question %d" % number, "answer %d" % number, first=10 * number + 1), number)
    assert drained(box) == {"stored": 3}
    before, receipts = files(box), box.receipts()
    assert drained(box) == {}
    assert files(box) == before and box.receipts() == receipts


# ---- once

def test_a_segment_that_was_stored_is_a_duplicate_the_next_time(box):
    turns = turns_of("a question", "an answer")
    put(box, turns)
    drained(box)
    before = files(box)
    put(box, turns)
    assert drained(box) == {"duplicate": 1}
    assert files(box) == before
    assert {name: box.receipts()[1][name] for name in ("outcome", "turns", "bytes", "file")} == {
        "outcome": "duplicate", "turns": [], "bytes": [], "file": ""}


def test_a_tail_that_was_queued_again_longer_is_stored_without_what_it_repeats(box):
    put(box, turns_of("one", "two", "three"))
    put(box, turns_of("one", "two", "three", "four", "five"))
    assert drained(box) == {"stored": 2}
    assert sorted(texts(box)) == ["five", "four", "one", "three", "two"]
    assert sorted([receipt["bytes"] for receipt in box.receipts()]) == [[10, 40], [40, 60]]
    assert sorted(memory.front["bytes"] for memory in box.memories()) == [[10, 40], [40, 60]]


def test_what_is_repeated_is_cut_out_wherever_it_stands_and_whichever_comes_first(box):
    put(box, turns_of("one", "two", "three", "four", "five", "six"), number=1)
    drained(box)
    put(box, turns_of("zero", "one", "two", first=0), number=2)
    put(box, turns_of("five", "six", "seven", "eight", first=5), number=3)
    put(box, turns_of("three", "four", first=3), number=4)
    assert drained(box) == {"stored": 2, "duplicate": 1}
    assert sorted(texts(box)) == sorted(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"])


def test_history_copied_into_another_transcript_of_the_folder_is_cut_out(box):
    put(box, turns_of("one", "two"))
    put(box, turns_of("one", "two", "three"), key=KEY[:8] + "f" * 12)
    assert drained(box) == {"stored": 2}
    assert sorted(texts(box)) == ["one", "three", "two"]


def test_the_same_words_of_another_line_are_not_a_repetition(box):
    put(box, turns_of("yes", "ok"))
    put(box, turns_of("yes", "ok", first=3))
    put(box, turns_of("no", "ok"), number=2)  # u1 says something else now: the file was rewritten
    assert drained(box) == {"stored": 3}
    assert sorted(texts(box)) == ["no", "ok", "ok", "yes", "yes"]


def test_a_transcript_that_was_copied_to_another_folder_is_stored_once(box):
    put(box, turns_of("yes", "ok"))
    put(box, turns_of("yes", "ok"), key="f" * 20)
    assert drained(box) == {"stored": 1, "duplicate": 1}
    assert texts(box) == ["yes", "ok"]
    put(box, turns_of("yes", "ok", "and now?"), key="e" * 20)  # in a later drain, and cut otherwise
    assert drained(box) == {"stored": 1}
    assert sorted(texts(box)) == ["and now?", "ok", "yes"]


def test_a_receipt_of_something_buried_covers_nothing(box):
    turns = turns_of("a question", "an answer")
    memhook.write_receipt(box.api, KEY, {"segment": 0, "id": "x", "outcome": "dead",
                                         "turns": [[turn.key, memhook.text_hash(turn.text)] for turn in turns]})
    put(box, turns)
    assert drained(box) == {"stored": 1}


def test_damaged_receipts_make_nothing_lost_and_later_ones_can_be_read(box):
    half = b'{"key":"%s","segment":3,"outcome":"stored","half' % KEY.encode()
    (box.home / "receipts.jsonl").write_bytes(b'{"key":"%s","turns":[["u1/0",\n\xff\xfe\n' % KEY.encode() + half)
    turns = turns_of("a question", "an answer")
    put(box, turns)
    assert drained(box) == {"stored": 1}
    put(box, turns)
    assert drained(box) == {"duplicate": 1}
    assert len(box.memories()) == 1


@pytest.mark.parametrize("odd", [{"turns": 5}, {"turns": [5]}, {"turns": [["a"]]}, {"turns": {"a": 1}}, {"file": 5},
                                 {"id": None, "file": "x"}, {"segment": "x"}, {}], ids=str)
def test_a_receipt_of_wrong_types_stops_nothing_and_hides_no_other(box, odd):
    turns = turns_of("a question", "an answer")
    (box.home / "receipts.jsonl").write_text(json.dumps({"key": KEY, **odd}, separators=(",", ":")) + "\n")
    put(box, turns)
    assert drained(box) == {"stored": 1}
    put(box, turns)
    put(box, turns_of("more", first=9), number=1)
    assert drained(box) == {"stored": 1, "duplicate": 1}


# ---- nothing, and nothing any more

def test_a_segment_in_which_nobody_spoke_leaves_a_receipt_and_no_file(box):
    put(box, turns_of("Bash: ls", "tool\nfailed", kinds=("tool", "error")))
    put(box, turns_of("  \n", "\t", first=3))
    assert drained(box) == {"empty": 2}
    assert box.memories() == [] and not (box.home / "memories").exists()
    assert [(receipt["outcome"], len(receipt["turns"]), receipt["file"]) for receipt in box.receipts()] == [("empty", 2, "")] * 2
    put(box, turns_of("Bash: ls", "tool\nfailed", kinds=("tool", "error")))
    assert drained(box) == {"duplicate": 1}


def test_what_was_forgotten_does_not_come_back(box):
    def forget(**names):
        with open(box.home / "tombstones.jsonl", "a") as stream:
            stream.write(json.dumps(names) + "\n")

    told = "a text so long that nobody says it twice by chance, word for word, ever: "
    forget(turns=[memhook.text_hash(told + "one"), memhook.text_hash(told + "two"), memhook.text_hash("five")])  # five is said again some day
    forget(lines=["u3", "u4", "u6"])
    put(box, turns_of(told + "one", told + "two"))
    put(box, turns_of("three", "four", first=3), number=1)
    put(box, turns_of("five", "six", "seven", first=5), number=2)
    assert drained(box) == {"forgotten": 2, "stored": 1}
    assert texts(box) == ["five", "seven"]
    data = b"".join(data for _, data, _ in files(box))
    assert b"six" not in data
    outcomes = sorted((receipt["outcome"], len(receipt["turns"])) for receipt in box.receipts())
    assert outcomes == [("forgotten", 2), ("forgotten", 2), ("stored", 3)]
    put(box, turns_of(told + "one", told + "two"))
    assert drained(box) == {"duplicate": 1}


def test_a_damaged_tombstone_stops_nothing_and_the_others_count(box):
    (box.home / "tombstones.jsonl").write_bytes(b'{"turns":5}\n\xff\nhalf {"lines":\n{"lines":["u1"],"turns":null}\n')
    put(box, turns_of("one", "two"))
    assert drained(box) == {"stored": 1}
    assert texts(box) == ["two"]


# ---- a crash between two steps, and a person

def replay(box, item):
    """As if the drain had been killed before it wrote the receipt: the item is back and nothing tells of it."""
    (box.home / "receipts.jsonl").unlink()
    lay(box, memhook.segment_stem(item) + ".json", json.dumps(item).encode(), "claimed")


def test_a_segment_drained_again_after_a_crash_gives_the_same_bytes_in_the_same_place(box):
    item = put(box, turns_of("Why?\n\n- a\n- b", "We decided to use a.\n\nNext step: b.", "Go on", "Fixed: the cause was c."))
    drained(box)
    (path, data, _), = files(box)
    os.unlink(path)
    replay(box, item)
    assert drained(box) == {"stored": 1}
    assert [found[:2] for found in files(box)] == [(path, data)]


def test_the_bytes_do_not_depend_on_locale_time_zone_or_hash_seed(box, tmp_path):
    other = Box(tmp_path / "other")
    other.env["MEMHOOK_HOME"] = str(other.home)
    other.api.create()
    item = segment(turns_of("Why? ü", "Because. " * 2_000, "Edit: /x.py", kinds=("prompt", "answer", "tool")))
    for machine in (box, other):
        lay(machine, memhook.segment_stem(item) + ".json", json.dumps(item).encode())
    drained(box)
    done = subprocess.run([sys.executable, "-X", "utf8=0", "-R", str(PROGRAM), "drain"],
                          env={**other.env, "LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "123"}, capture_output=True)
    assert done.returncode == 0, done.stderr
    one, two = ([(os.path.relpath(path, machine.home), data) for path, data, _ in files(machine)] for machine in (box, other))
    assert one == two


def test_a_file_that_a_person_edited_is_not_overwritten_when_its_segment_is_drained_again(box):
    item = put(box, turns_of("a question", "an answer"))
    drained(box)
    (path, data, _), = files(box)
    with open(path, "ab") as stream:
        stream.write(b"My own words.\n")
    before = files(box)
    replay(box, item)
    assert drained(box) == {"stored": 1}
    assert files(box) == before
    assert [receipt["file"] for receipt in box.receipts()] == [memhook.file_hash(data)]


def test_a_memory_that_a_person_deleted_stays_deleted(box):
    item = put(box, turns_of("a question", "an answer"))
    drained(box)
    os.unlink(files(box)[0][0])
    lay(box, memhook.segment_stem(item) + ".json", json.dumps(item).encode())
    assert drained(box) == {"duplicate": 1}
    assert box.memories() == []


def test_what_a_killed_drain_had_claimed_is_stored(box):
    item = segment(turns_of("a question", "an answer"))
    lay(box, memhook.segment_stem(item) + ".json", json.dumps(item).encode(), "claimed")
    assert drained(box) == {"stored": 1}
    assert box.spooled("claimed") == []


# ---- items that cannot be used

NO_SEGMENT = {
    "empty": b"", "no JSON": b"hello", "binary": b"\xff\0" * 50, "a list": b"[1]", "null": b"null", "a number": b"5", "an object": b"{}",
    "deep": b"[" * 100_000,
    "cut": json.dumps(segment(turns_of("a", "b"))).encode()[:-20],
    **{"%s is %r" % (name, value): json.dumps({**segment(turns_of("a", "b")), name: value}).encode() for name, value in (
        ("id", None), ("title", 5), ("project", ["a"]), ("session", None), ("key", {}), ("transcript", None), ("segment", "x"),
        ("turns", []), ("turns", "ab"), ("turns", [5]),
        ("turns", [["k"]]), ("turns", None), ("turns", [["u/0", "prompt", 5, 0, 1]]), ("format", "x"), ("format", None))},
}


@pytest.mark.parametrize("name", NO_SEGMENT)
def test_what_is_no_segment_is_buried_where_a_person_can_look(box, name):
    lay(box, "1-%s-00003-deadbeef.json" % KEY, NO_SEGMENT[name])
    put(box, turns_of("a question", "an answer"))
    assert drained(box) == {"stored": 1, "dead": 1}
    assert [path.read_bytes() for path in (box.home / "spool" / "dead").iterdir()] == [NO_SEGMENT[name]]
    receipt = next(receipt for receipt in box.receipts() if receipt["outcome"] == "dead")
    told = {name: receipt[name] for name in ("key", "segment", "id", "item")}
    assert told == {"key": KEY, "segment": 3, "id": "deadbeef", "item": "1-%s-00003-deadbeef" % KEY}
    assert receipt["reason"].startswith(("not a segment: it", "not a segment: one of", "not a segment: a part")) and memhook.parse_time(receipt["at"])
    assert drained(box) == {}


ODD_SEGMENT = [("generation", None), ("parser", None), ("at", "x"), ("at", None), ("turns", [[5, "prompt", "x", 0, 1]]),
               ("turns", [["u/0", "prompt", "x", "a", "b"]]),
               ("turns", [["u/0", "prompt", "x", 0, 1, "yesterday"]]), ("turns", [["u/0", None, "x", 0, 1]])]


@pytest.mark.parametrize("name, value", ODD_SEGMENT, ids=lambda value: str(value)[:40])
def test_an_odd_segment_costs_itself_and_no_other(box, name, value):
    odd = {**segment(turns_of("a", "b")), name: value}
    if value is None:
        del odd[name]
    lay(box, "0-%s-00003-deadbeef.json" % KEY, json.dumps(odd).encode())
    put(box, turns_of("a question", "an answer"))
    done = drained(box)
    assert sum(done.get(outcome, 0) for outcome in ("stored", "empty", "dead", "retried")) == 2 and done["stored"] >= 1
    assert "a question" in texts(box)


def test_a_bad_item_in_the_middle_delays_nobody(box):
    for number in range(20):
        if number == 3:
            lay(box, "%013d-%s-00003-bad.json" % ((START + 31.5) * 1000, KEY), b"{")
        put(box, turns_of("question %d" % number, first=10 * number + 1), number)
    assert drained(box) == {"stored": 20, "dead": 1}
    assert len(box.memories()) == 20


def test_a_segment_of_a_newer_memhook_waits_longer_each_time_and_is_never_thrown_away(box, monkeypatch):
    clock = [START + 1_000]
    monkeypatch.setattr(memhook, "now", lambda: clock[0])
    made = put(box, turns_of("a", "b"), format=99)
    stem, waits = memhook.segment_stem(made), []
    for attempt in range(1, memhook.ATTEMPTS):
        assert drained(box) == {"retried": 1, "left": 1}
        name, = os.listdir(box.home / "spool" / "new")
        item = memhook.Item(name)
        assert (item.stem, item.attempts) == (stem, attempt)
        waits.append(item.not_before - clock[0])
        assert drained(box) == {"left": 1}
        clock[0] = item.not_before + 1
    assert waits == [60, 120, 240, 480, 960]
    assert drained(box) == {"dead": 1}
    assert box.spooled("dead") == [made]
    lay(box, stem + ".json", json.dumps({**made, "format": 1}).encode(), "dead")
    assert drained(box, retry_dead=True) == {"stored": 1}


def test_what_was_buried_is_tried_again_only_when_asked_for(box):
    made = segment(turns_of("a question", "an answer"))
    path = lay(box, memhook.segment_stem(made) + ".json", b"{")
    assert box.drain() == {**NONE, "dead": 1}
    dead = box.home / "spool" / "dead" / path.name
    dead.write_text(json.dumps(made))
    assert box.drain() == NONE
    assert box.drain("--retry-dead") == {**NONE, "stored": 1}
    assert not dead.exists() and texts(box) == ["a question", "an answer"]
    assert box.drain("--retry-dead") == NONE


def test_trying_again_what_is_still_bad_buries_it_again_and_ends(box):
    lay(box, "bad.json", b"{", "dead")
    assert box.drain("--retry-dead", timeout=60) == {**NONE, "dead": 1}
    assert os.listdir(box.home / "spool" / "dead") == ["bad.json"]


# ---- a disk that refuses

def test_a_store_that_may_not_be_written_leaves_everything_in_the_spool_and_the_drain_ends(box):
    for number in range(3):
        put(box, turns_of("question %d" % number, first=10 * number + 1), number)
    (box.home / "memories").mkdir(mode=0o500)
    command = [*heeding_modes(), sys.executable, str(PROGRAM), "drain", "--json"]
    done = subprocess.run(command, env=box.env, cwd=box.project, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1)
    assert len(box.spooled("new")) == 3 and box.spooled("claimed") == box.spooled("dead") == []
    (box.home / "memories").chmod(0o700)
    make_due(box)
    assert drained(box) == {"stored": 3}


def make_due(box):
    """As if the time that items wait had passed."""
    for name in os.listdir(box.home / "spool" / "new"):
        item = memhook.Item(name)
        os.rename(box.home / "spool" / "new" / name, box.home / "spool" / "new" / (item.stem + ".json"))


@pytest.mark.parametrize("name, other", [("memories", "file"), ("receipts.jsonl", "folder"), ("tombstones.jsonl", "folder"),
                                         ("spool/claimed", "file")])
def test_a_thing_in_the_place_of_what_the_drain_needs_loses_nothing_and_the_drain_ends(box, name, other):
    put(box, turns_of("a question", "an answer"))
    path = box.home / name
    path.touch() if other == "file" else path.mkdir()
    done = box.run("drain", "--json", check=False, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1)
    assert len(box.spooled("new")) == 1
    path.unlink() if other == "file" else path.rmdir()
    make_due(box)
    assert drained(box) == {"stored": 1}


def test_a_disk_that_takes_no_more_ends_the_drain_and_loses_nothing(box):
    put(box, turns_of("a question", "An answer. " * 2_000))
    done = subprocess.run(["/bin/sh", "-c", "ulimit -f 8; exec \"$0\" \"$@\"", sys.executable, str(PROGRAM), "drain", "--json"],
                          env=box.env, cwd=box.project, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr and done.returncode in (0, 1)
    assert len(box.spooled("new")) == 1 and box.memories() == [] and not list(box.home.rglob("*.tmp"))
    make_due(box)
    assert drained(box) == {"stored": 1}


# ---- one at a time

def test_a_second_drain_says_busy_and_changes_nothing(box):
    put(box, turns_of("a question", "an answer"))
    box.env["MEMHOOK_BACKGROUND"] = "1"
    with memhook.Lock(box.api.path("drain.lock")) as lock:
        assert lock.acquire()
        started = time.monotonic()
        done = box.run("drain", "--json", check=False)
        assert (done.returncode, done.stdout) == (75, "") and "another drain is running" in done.stderr
        assert time.monotonic() - started < 5
        assert len(box.spooled("new")) == 1
    assert box.drain()["stored"] == 1


def test_a_drain_at_a_terminal_waits_for_the_one_that_runs(box):
    put(box, turns_of("a question", "an answer"))
    lock = memhook.Lock(box.api.path("drain.lock"))
    assert lock.acquire()
    release = threading.Timer(0.5, lock.release)
    release.start()
    assert box.drain()["stored"] == 1
    release.join()


def test_an_item_that_comes_while_the_drain_works_is_drained_too(box):
    put(box, turns_of("first"))
    spool = memhook.Spool(str(box.home / "spool"))
    done, batch = memhook.Drained(), memhook.Batch(box.api, spool)
    for item in spool.claim_all():
        assert memhook.drain_item(batch, item) == "" and batch.commit() == ["stored"]
        done.stored += 1
        if done.stored < 5:
            put(box, turns_of("later", first=done.stored * 10), done.stored)
    assert done.stored == 5 and len(box.memories()) == 5


def test_a_batch_that_cannot_be_committed_gives_everything_back_and_covers_nothing(box):
    for number in range(6):
        put(box, turns_of("batch", first=number * 10), number)
    spool = memhook.Spool(str(box.home / "spool"))
    batch = memhook.Batch(box.api, spool)
    for item in spool.claim_all():
        assert memhook.drain_item(batch, item) == ""
    (box.home / "receipts.jsonl").mkdir()
    assert batch.commit() == ["retried"] * 6 and len(spool.items("new")) == 6 and spool.items("claimed") == []
    (box.home / "receipts.jsonl").rmdir()
    assert batch.commit() == []
    assert box.drain()["stored"] == 6 and len(box.receipts()) == len(box.memories()) == 6
    assert [name for _, _, names in os.walk(box.home) for name in names if name.endswith(".tmp")] == []


# ---- capture by the drain

def forget_client(box, script, **changes):
    """As if the session's process were unknown and had written nothing since `updated_at`."""
    path = memhook.checkpoint_path(box.api, memhook.transcript_key(str(script.path)))
    stored = {**box.checkpoint(script), "client": [0, ""], **changes}
    with open(path, "w") as stream:
        json.dump(stored, stream)
    return path


def begun(box, name, text="A question"):
    """A session with a checkpoint that holds one open prompt."""
    script = box.script(name)
    script.prompt(text)
    memhook.capture(box.api, memhook.read_consent(box.api), memhook.Request(str(script.path), name, live=True, client=[0, ""]))
    return script


OPENED = """
import sys
opened = []
sys.addaudithook(lambda event, given: opened.append(str(given[0])) if event == "open" and given[1] else None)
sys.path.insert(0, sys.argv[1])
import memhook, os
home = memhook.Home(dict(os.environ))
memhook.catch_up(home, memhook.read_consent(home))
print(opened.count(sys.argv[2]))
"""


def test_a_drain_reads_the_settings_of_claude_once_for_all_transcripts(box):
    (box.config / "settings.json").write_text('{"cleanupPeriodDays": 9}')
    for number in range(4):
        begun(box, "session-%d" % number).answer("An answer")
    done = subprocess.run([sys.executable, "-c", OPENED, str(PROGRAM.parent), str(box.config / "settings.json")], env=box.env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("change", ["consent gone", "paused"])
def test_without_a_consent_or_in_a_pause_the_drain_captures_nothing_and_stores_what_was_captured(box, change):
    script = begun(box, "session-a1")
    script.answer("An answer")
    forget_client(box, script, updated_at=1.0)
    os.utime(script.path, (1, 1))
    put(box, turns_of("captured before"))
    (box.home / "consent.json").unlink() if change == "consent gone" else memhook.set_pause(box.api, True)
    assert drained(box) == {"stored": 1}
    assert texts(box) == ["captured before"]
    memhook.grant_consent(box.api, "flag") if change == "consent gone" else memhook.set_pause(box.api, False)
    drained(box)
    assert "A question" in texts(box)


def test_what_a_dead_session_left_is_captured(box):
    script = begun(box, "session-b1")
    script.answer("An answer nobody saw the end of")
    assert drained(box) == {}
    forget_client(box, script, updated_at=1.0)
    os.utime(script.path, (1, 1))
    assert drained(box) == {"stored": 1}
    assert texts(box) == ["A question", "An answer nobody saw the end of"]
    assert drained(box) == {}


def test_open_turns_of_a_transcript_that_is_gone_are_stored_from_the_checkpoint(box):
    script = begun(box, "session-c1")
    script.path.unlink()
    forget_client(box, script, updated_at=1.0)
    assert drained(box) == {"stored": 1}
    assert texts(box) == ["A question"]


DAMAGES = [b"", b"\xff", b"[1]", b"5", b"{}", {"format": None}, {"format": "x"}, {"format": 99}, {"parsed": "x"}, {"path": 5},
           {"path": None},
           {"path": "a\0b"}, {"client": [1]}, {"client": None}, {"context": [1]}, {"turns": [[1, 2, 3, 4, 5]]}, {"updated_at": "x"},
           {"segment": None}, {"state": 5}]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_a_damaged_checkpoint_keeps_no_other_session_from_being_captured_or_stored(box, damage):
    broken, whole = begun(box, "session-d1"), begun(box, "session-d2", "Mine")
    forget_client(box, whole, updated_at=1.0)
    path = forget_client(box, broken, updated_at=1.0)
    for script in (broken, whole):
        os.utime(script.path, (1, 1))
    if isinstance(damage, bytes):
        with open(path, "wb") as stream:
            stream.write(damage)
    else:
        forget_client(box, broken, **{"updated_at": 1.0, **damage})
    put(box, turns_of("captured before"))
    drained(box)
    assert {"captured before", "Mine"} <= set(texts(box))
    assert memhook.check_status(box.api, "/")["memories"]["count"] >= 2


def test_a_transcript_that_may_not_be_captured_keeps_no_other_from_it(box):
    for name in ("session-e1", "session-e2"):
        script = box.script(name)
        script.prompt("In " + name)
        os.utime(script.path, (time.time() + 1, time.time() - memhook.DEAD_SECONDS - 60))
    consent = json.loads((box.home / "consent.json").read_text())
    consent["capture"]["at"] -= 86_400
    (box.home / "consent.json").write_text(json.dumps(consent))
    (box.home / "seen").mkdir()
    (box.home / "seen" / memhook.transcript_key(str(box.config / "projects" / "p" / "session-e1.jsonl"))).mkdir()
    drained(box)
    assert texts(box) == ["In session-e2"]


# ---- sweeping

def test_old_temp_files_are_swept_wherever_writers_leave_them(box):
    put(box, turns_of("a question"))
    drained(box)
    store = os.path.dirname(files(box)[0][0])
    old = time.time() - memhook.TEMP_SECONDS - 60
    places = [box.home, box.home / "checkpoints", box.home / "spool" / "tmp", box.home / "spool" / "new", box.home / "outbox" / "claimed", box.home / "memories", store]
    for folder in places:
        os.makedirs(folder, exist_ok=True)
        for name, at in (("old.1.tmp", old), ("new.2.tmp", time.time())):
            path = os.path.join(folder, name)
            open(path, "w").close()
            os.utime(path, (at, at))
    assert drained(box) == {}
    assert [sorted(name for name in os.listdir(folder) if name.endswith(".tmp")) for folder in places] == [["new.2.tmp"]] * 7
    assert len(box.memories()) == 1


def test_what_hinders_the_sweep_does_not_fail_the_drain(box):
    (box.home / "checkpoints").mkdir()
    os.symlink("nothing", box.home / "checkpoints" / "gone.1.tmp")
    (box.home / "folder.tmp").mkdir()
    os.utime(box.home / "folder.tmp", (1, 1))
    put(box, turns_of("a question"))
    assert box.drain()["stored"] == 1


def test_a_checkpoint_goes_90_days_after_its_transcript(box, monkeypatch):
    script = begun(box, "session-f1")
    path = forget_client(box, script, updated_at=1.0)
    os.utime(script.path, (1, 1))
    assert drained(box) == {"stored": 1}
    seen = box.home / "seen" / memhook.transcript_key(str(script.path))
    real = time.time()
    monkeypatch.setattr(memhook, "now", lambda: real + 365 * 86_400)
    drained(box)
    assert os.path.exists(path)  # the transcript is there: a resume goes on from it
    script.path.unlink()
    for days, stays in ((89, True), (91, False)):
        monkeypatch.setattr(memhook, "now", lambda: real + days * 86_400)
        assert drained(box) == {}
        assert (os.path.exists(path), seen.exists()) == (stays, stays), days
    assert len(box.memories()) == 1


def test_a_checkpoint_of_a_session_that_never_said_anything_goes_at_once(box):
    script = box.script("session-g1")
    memhook.begin_session(box.api, memhook.Request(str(script.path), "session-g1", live=True, client=[0, ""]))
    path = forget_client(box, script, updated_at=time.time() - memhook.DEAD_SECONDS - 60)
    drained(box)
    assert not os.path.exists(path)


def test_a_checkpoint_of_a_session_that_lives_stays_however_old(box, monkeypatch):
    script = begun(box, "session-h1")
    path = forget_client(box, script, client=memhook.client_process(os.getpid()), updated_at=1.0)
    script.path.unlink()
    drained(box)
    assert os.path.exists(path) and texts(box) == []


def test_a_checkpoint_that_may_not_be_read_keeps_no_segment_waiting_and_doctor_names_it(tmp_path):
    """As `sudo claude` leaves one: root's, 0600."""
    prefix = heeding_modes()
    box = Box(tmp_path)
    box.install()
    for session in ("session-a-0001", "session-b-0001"):
        script = box.script(session)
        script.prompt("What does %s ask?" % session)
        script.answer("It asks this.")
        box.hook("Stop", script)
    box.hook("SessionEnd", script)
    closed = memhook.checkpoint_path(box.api, memhook.transcript_key(str(box.script("session-a-0001").path)))
    os.chmod(closed, 0)
    start = [*prefix, sys.executable, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM)]
    done = subprocess.run([*start, "drain", "--json"], env=box.env, stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["stored"] == 1
    told = subprocess.run([*start, "doctor"], env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert told.returncode == 4 and "you may not read " + closed in told.stdout and "chmod -R u+rwX " in told.stdout
    status = subprocess.run([*start, "status", "--json"], env=box.env, stdout=subprocess.PIPE, check=True)
    assert json.loads(status.stdout)["sessions"] == {"open": 0, "closed": 1}
    told = subprocess.run([*start, "verify"], env=box.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert told.returncode == 4 and "memhook doctor" in told.stdout
    os.chmod(closed, 0o600)
    box.hook("SessionEnd", box.script("session-a-0001"))
    assert box.drain()["stored"] == 1 and len(box.said()) == 4


def test_what_is_known_of_a_neighbour_and_may_not_be_read_keeps_no_session_uncaptured(tmp_path):
    box = Box(tmp_path)
    box.install()
    first, second = box.script("session-a-0001"), box.script("session-b-0001")
    for script in (first, second):
        script.prompt("What does %s ask?" % script.session)
        script.answer("It asks this.")
    box.hook("Stop", first)
    os.chmod(memhook.checkpoint_path(box.api, memhook.transcript_key(str(first.path))).replace("checkpoints", "seen")[:-5], 0)
    box.hook("SessionEnd", second, prefix=heeding_modes())
    assert [segment["session"] for segment in box.spooled()] == ["session-b-0001"]
