"""The spool's moves: each is one rename, each may be done again, and nothing that lies in a folder stops the others."""
import json
import os
import stat
import sys

import pytest

import memhook

STEM = "1700000000000-0123456789abcdef0123-00007-deadbeef"


@pytest.fixture
def spool(tmp_path):
    return memhook.Spool(str(tmp_path / "spool"))


def names(spool, state):
    return sorted(os.listdir(os.path.join(spool.root, state))) if os.path.isdir(os.path.join(spool.root, state)) else []


def lie(spool, name, state="new", data=b"{}"):
    folder = os.path.join(spool.root, state)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(os.fsencode(folder), os.fsencode(name)), "wb") as stream:
        stream.write(data)


def claim(spool):
    return next(spool.claim_all())


# ---- put

def test_a_put_item_waits_whole_and_private(spool):
    spool.put(STEM, b"data")
    assert names(spool, "new") == [STEM + ".json"] and names(spool, "tmp") == []
    path = os.path.join(spool.root, "new", STEM + ".json")
    with open(path, "rb") as stream:
        assert stream.read() == b"data"
    assert [stat.S_IMODE(os.stat(at).st_mode) for at in (path, os.path.dirname(path), spool.root)] == [0o600, 0o700, 0o700]


def test_putting_the_same_item_again_changes_nothing(spool):
    for data in (b"data", b"data", b"newer"):
        spool.put(STEM, data)
    assert names(spool, "new") == [STEM + ".json"]
    assert spool.read(claim(spool)) == b"newer"


def test_an_item_put_again_while_it_is_claimed_waits_again(spool):
    spool.put(STEM, b"data")
    item = claim(spool)
    spool.put(STEM, b"data")
    assert names(spool, "new") == names(spool, "claimed") == [STEM + ".json"]
    spool.release(item)
    assert names(spool, "claimed") == [] and len(names(spool, "new")) == 2


# ---- claim, ack

def test_claiming_takes_the_oldest_name_first_and_each_item_once(spool):
    stems = ["%013d-k-00000-%08x" % (at, at) for at in (30, 10, 20)]
    for stem in stems:
        spool.put(stem, stem.encode())
    claimed = []
    for item in spool.claim_all():
        claimed.append((item.stem, spool.read(item)))
        assert names(spool, "claimed") == [item.name]
        spool.ack(item)
    assert claimed == [(stem, stem.encode()) for stem in sorted(stems)]
    assert spool.counts() == {"new": 0, "claimed": 0, "dead": 0, "bytes": 0}


def test_an_item_that_comes_while_others_are_claimed_is_claimed_too(spool):
    spool.put("1-a-0-a", b"1")
    seen = []
    for item in spool.claim_all():
        seen.append(item.stem)
        if len(seen) < 4:
            spool.put("%d-a-0-a" % (len(seen) + 1), b"1")
        spool.ack(item)
    assert seen == ["1-a-0-a", "2-a-0-a", "3-a-0-a", "4-a-0-a"]


def test_an_item_released_in_a_run_is_not_handed_out_again_in_it(spool):
    spool.put("1-a-0-a", b"1")
    seen = []
    for item in spool.claim_all():
        seen.append(item.name)
        spool.release(item, counts=False)
        assert len(seen) < 10
    assert seen == ["1-a-0-a.json"]


def test_what_another_process_claimed_first_is_passed_over(spool):
    for stem in ("1-a-0-a", "2-a-0-a", "3-a-0-a"):
        spool.put(stem, b"1")
    claims = spool.claim_all()
    first = next(claims)
    os.rename(os.path.join(spool.root, "new", "2-a-0-a.json"), os.path.join(spool.root, "claimed", "2-a-0-a.json"))
    assert [first.stem] + [item.stem for item in claims] == ["1-a-0-a", "3-a-0-a"]


def test_acknowledging_twice_is_the_same_as_once(spool):
    spool.put(STEM, b"data")
    item = claim(spool)
    spool.ack(item)
    spool.ack(item)
    assert spool.counts()["claimed"] == 0


def test_nothing_is_claimed_where_there_is_no_spool(spool):
    assert list(spool.claim_all()) == [] and spool.recover() == spool.revive() == 0
    assert spool.counts() == {"new": 0, "claimed": 0, "dead": 0, "bytes": 0}
    assert not os.path.exists(spool.root)


# ---- release: attempts and the time to wait stand in the name

def test_a_released_item_carries_its_attempts_and_its_time_in_its_name(spool, monkeypatch):
    monkeypatch.setattr(memhook, "now", lambda: 1_000.0)
    spool.put(STEM, b"data")
    for attempt, wait in ((1, 60), (2, 120), (3, 240)):
        item = claim(spool)
        assert (item.stem, item.attempts) == (STEM, attempt - 1)
        spool.release(item, wait_seconds=wait)
        assert names(spool, "new") == ["%s,a%d,t%d.json" % (STEM, attempt, 1_000 + wait)]
        assert list(spool.claim_all()) == []
        monkeypatch.setattr(memhook, "now", lambda: 10_000.0)
        assert [spool.read(item) for item in spool.claim_all()] == [b"data"]
        assert spool.recover() == 1
        monkeypatch.setattr(memhook, "now", lambda: 1_000.0)
        moved = memhook.Item("%s,a%d,t%d.json" % (STEM, attempt, 1_000 + wait))
        os.rename(os.path.join(spool.root, "new", moved.name), os.path.join(spool.root, "new", "%s,a%d,t0.json" % (STEM, attempt)))


def test_a_release_that_does_not_count_leaves_the_name_as_it_was(spool, monkeypatch):
    monkeypatch.setattr(memhook, "now", lambda: 1_000.0)
    for name in (STEM + ".json", STEM + ",a3,t900.json"):
        lie(spool, name)
        spool.release(claim(spool), counts=False)
        assert names(spool, "new") == [name]
        os.unlink(os.path.join(spool.root, "new", name))


def test_a_release_that_waits_without_counting_waits(spool, monkeypatch):
    monkeypatch.setattr(memhook, "now", lambda: 1_000.0)
    spool.put(STEM, b"data")
    spool.release(claim(spool), wait_seconds=60, counts=False)
    assert list(spool.claim_all()) == []
    monkeypatch.setattr(memhook, "now", lambda: 1_061.0)
    item = claim(spool)
    assert (item.stem, item.attempts) == (STEM, 0)


def test_one_item_that_waits_delays_no_other(spool):
    lie(spool, "1-a-0-a,a1,t99999999999.json")
    lie(spool, "2-b-0-b.json")
    assert [item.stem for item in spool.claim_all()] == ["2-b-0-b"]


@pytest.mark.parametrize("name, parts", [
    ("s.json", ("s", 0, 0)), ("s,a2,t5.json", ("s", 2, 5)), ("s,a2.json", ("s", 2, 0)), (",a1,t1.json", ("", 1, 1)), (".json", ("", 0, 0)),
    ("s,ax,ty.json", ("s", 0, 0)), ("s,a-1,t-5.json", ("s", 0, 0)), ("s,a1,t1,a2,t2.json", ("s", 1, 0)),
    ("s,a\u00b2,t\u00b2.json", ("s", 0, 0)),
    ("s,a\u0663,t\u0663.json", None), ("s,a1e3,t1.5.json", ("s", 0, 0)), ("\udcff,a1,t1.json", ("\udcff", 1, 1)),
    ("s,a%s,t%s.json" % ("9" * 100, "9" * 100), None),
])
def test_any_name_can_be_taken_apart(name, parts):
    item = memhook.Item(name)
    assert parts in (None, (item.stem, item.attempts, item.not_before))
    assert memhook.Item(item.renamed(item.attempts, item.not_before)).stem == item.stem


# ---- bury, revive, recover

def test_a_buried_item_lies_where_a_person_can_look_and_comes_back_only_when_revived(spool):
    lie(spool, STEM + ",a5,t1.json", data=b"data")
    spool.bury(claim(spool))
    assert names(spool, "dead") == [STEM + ".json"] and list(spool.claim_all()) == [] and spool.recover() == 0
    assert spool.counts() == {"new": 0, "claimed": 0, "dead": 1, "bytes": 4}
    assert spool.revive() == 1 and spool.revive() == 0
    item = claim(spool)
    assert (item.attempts, item.not_before, spool.read(item)) == (0, 0, b"data")


def test_what_a_killed_process_had_claimed_is_given_back_as_it_was(spool):
    for name in (STEM + ".json", STEM + ",a2,t5.json"):
        lie(spool, name, "claimed", b"data")
    assert spool.recover() == 2 and spool.recover() == 0
    assert names(spool, "new") == [STEM + ",a2,t5.json", STEM + ".json"] and names(spool, "claimed") == []


def test_each_move_of_an_item_that_is_gone_does_nothing(spool):
    for move in (spool.ack, spool.bury, spool.release):
        spool.put(STEM, b"data")
        item = claim(spool)
        os.unlink(os.path.join(spool.root, "claimed", item.name))
        move(item)
        assert spool.counts() == {"new": 0, "claimed": 0, "dead": 0, "bytes": 0}


def test_counts_are_of_items_and_their_bytes(spool):
    for state, size in (("new", 10), ("claimed", 20), ("dead", 30), ("tmp", 1_000)):
        lie(spool, "x.json", state, b"x" * size)
        lie(spool, "README", state, b"x" * 5_000)
    assert spool.counts() == {"new": 1, "claimed": 1, "dead": 1, "bytes": 60}


# ---- what else may lie there

HOSTILE = [
    "s,a\u00b2,t1.json", "s,a1,t\u00b2.json", ",a1,t1.json", ".json", ".hidden.json", "a b 'c' \"d\" $(e).json", "-rf.json", "a\nb.json",
    "%s%d.json", "a,b,c.json", "\u202egnp.json", "x" * 200 + ".json", "no suffix", "x.tmp", "x.JSON", "x.json.bak", ".DS_Store",
    "Thumbs.db",
    "x,a999999999999,t1.json", *([] if sys.platform == "darwin" else [b"\xff\xfe.json"]),
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:30])
def test_no_file_name_stops_a_move(spool, name):
    spool.put(STEM, b"data")
    for state in ("new", "claimed", "dead", "tmp"):
        lie(spool, name, state)
    spool.counts()
    assert STEM in [item.stem for item in spool.claim_all()]
    spool.recover()
    for item in spool.claim_all():
        spool.bury(item)
    spool.revive()
    for item in spool.claim_all():
        spool.release(item, wait_seconds=5)
    assert STEM in [item.stem for item in spool.items("new")]


@pytest.mark.parametrize("names", [HOSTILE[:1], HOSTILE[1:2], HOSTILE[2:]],
                         ids=["a superscript for attempts", "a superscript for a time", "all others"])
def test_no_file_name_in_the_spool_stops_a_drain_or_a_hook(box, names):
    session = box.script("hostile-0001")
    session.prompt("A question")
    session.answer("Long. " * 1_500)
    spool = memhook.Spool(str(box.home / "spool"))
    for name in names:
        for state in ("new", "claimed", "dead", "tmp"):
            lie(spool, name, state, b'{"format": 1}')
    for event in ("Stop", "SessionEnd"):
        assert box.hook(event, session).returncode == 0
    memhook.drain(box.api, memhook.read_consent(box.api))
    assert box.said() == [("prompt", "A question"), ("answer", "Long. " * 1_500)]
    assert memhook.check_status(box.api, "/")["memories"]["count"] == 2


@pytest.mark.parametrize("kind", ["a folder", "a link to nothing", "a link to a folder"])
def test_a_thing_in_the_spool_that_cannot_be_read_does_not_keep_the_drain_busy_for_ever(box, tmp_path, kind):
    session = box.script("hostile-0002")
    session.prompt("A question")
    box.hook("SessionEnd", session)
    path = box.home / "spool" / "new" / "0-thing.json"
    {"a folder": path.mkdir, "a link to nothing": lambda: path.symlink_to("nothing"),
     "a link to a folder": lambda: path.symlink_to(tmp_path)}[kind]()
    assert box.drain(timeout=6)["stored"] == 1
    assert len(box.memories()) == 1


def test_an_item_of_another_process_that_is_removed_under_a_drain_costs_nothing(box):
    session = box.script("removed-0001")
    session.prompt("A question")
    box.hook("SessionEnd", session)
    spool = memhook.Spool(str(box.home / "spool"))
    item = claim(spool)
    spool.ack(item)
    assert memhook.drain_item(memhook.Batch(box.api, spool), item) == "retried"
    assert box.drain() == {"stored": 0, "duplicate": 0, "empty": 0, "forgotten": 0, "retried": 0, "dead": 0, "left": 0}


# ---- receipts

def test_receipts_are_found_by_the_key_of_their_transcript(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path)})
    assert list(memhook.read_receipts(home)) == []
    for key in ("aa11", "aa22", "bb33"):
        memhook.write_receipt(home, key, {"segment": 0, "id": key, "outcome": "stored", "text": "é\ud83d"})
    (tmp_path / "receipts.jsonl").open("ab").write(b'{"key":"aa44","segm\n\xff\xfe\n[]\n{"key":"aa55","segment":1}\n')
    assert [receipt["key"] for receipt in memhook.read_receipts(home, "aa")] == ["aa11", "aa22", "aa55"]
    assert len(list(memhook.read_receipts(home))) == 4


def test_a_receipt_after_half_a_line_can_be_read(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path)})
    memhook.write_receipt(home, "aa11", {"segment": 0})
    with open(tmp_path / "receipts.jsonl", "ab") as stream:
        stream.write(b'{"key":"aa22","segment":1,"id":"x')  # the disk was full
    memhook.write_receipt(home, "aa33", {"segment": 2})
    assert [receipt["key"] for receipt in memhook.read_receipts(home)] == ["aa11", "aa33"]


def test_segment_numbers_go_on_from_what_waits_and_what_was_done(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path)})
    key = "0123456789abcdef0123"
    assert memhook.last_segment(home, key) == -1
    for odd in ({}, {"segment": None}, {"segment": "x"}, {"segment": 3, "outcome": "stored"}):
        memhook.write_receipt(home, key, odd)
    assert memhook.last_segment(home, key) == 3
    spool = memhook.Spool(str(tmp_path / "spool"))
    lie(spool, STEM + ",a1,t5.json", "dead")
    lie(spool, STEM.replace(key, "f" * 20).replace("00007", "00099") + ".json")
    lie(spool, "odd.json")
    assert memhook.last_segment(home, key) == 7


def test_a_stem_tells_the_time_the_transcript_the_number_and_the_id():
    turn = memhook.Turn("u/0", "prompt", "text", 0, 5, 1_700_000_000.25)
    segment = {"turns": [turn.to_json()], "at": 5.0, "key": "k" * 20, "segment": 12, "id": "deadbeef-0000"}
    assert memhook.segment_stem(segment) == "1700000000250-%s-00012-deadbeef" % ("k" * 20)
    segment["turns"][0][5] = None
    assert memhook.segment_stem(segment) == "0000000005000-%s-00012-deadbeef" % ("k" * 20)
    assert json.loads(json.dumps(segment)) == segment
