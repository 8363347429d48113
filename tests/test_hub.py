"""The hub: idempotent intake, a quota for each token, receipts that are atomic and a chain, an end that loses nothing."""
import http.client
import json
import os
import re
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
import uuid

import pytest

import memhook
from conftest import PROGRAM, wait_until
from hubs import RunningHub

SECRET = "the key is ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8"


def insert(hub, tenant, content, id=None, status="inbox"):
    """A candidate as an older hub, with a weaker filter, may have taken it in."""
    id = id or "c%d" % len(hub.statuses(tenant))
    hub.sql("INSERT INTO candidates(id, tenant, title, content, content_hash, actor, status) VALUES(?,?,?,?,?,?,?)",
            id, tenant, "Title", content, memhook.file_hash(content.encode()), "ann", status)
    return id


# ---- intake


def test_a_candidate_sent_again_is_201_with_the_existing_one_and_no_second_receipt(hub, tenant):
    token = hub.token("ann", tenant=tenant)
    first = hub.propose(token, "Use cents.")
    assert (first.status, first.json["status"], first.json["duplicate"]) == (201, "inbox", False)
    again = hub.propose(token, "Use cents.")
    assert (again.status, again.json) == (201, {**first.json, "duplicate": True})
    hub.ask("POST", "/api/candidates/%s/promote" % first.json["id"], hub.admin(tenant))
    assert hub.propose(token, "Use cents.").json["status"] == "promoted"
    assert hub.kinds(tenant) == ["proposed", "promoted"]


def test_an_id_is_the_uuid5_of_tenant_title_and_content(hub, tenant):
    made = hub.propose(hub.token("ann", tenant=tenant), "Gewöhnt euch an Cents: 日本", "Beträge").json
    assert made["id"] == str(uuid.uuid5(uuid.NAMESPACE_DNS, "%s\nBeträge\nGewöhnt euch an Cents: 日本" % tenant))


def test_the_same_content_under_another_id_and_title_is_the_existing_one(hub, tenant):
    first = hub.propose(hub.token("ann", tenant=tenant), "Use cents.", "A", id="one").json
    second = hub.propose(hub.token("bob", tenant=tenant), "Use cents.", "B", id="two").json
    assert second == {"id": "one", "status": "inbox", "duplicate": True} and first["duplicate"] is False
    assert hub.kinds(tenant) == ["proposed"] and len(hub.sql("SELECT 1 FROM candidates WHERE tenant = ?", tenant)) == 1


def test_an_id_that_belongs_to_other_content_is_409_and_changes_nothing(hub, tenant):
    token = hub.token("ann", tenant=tenant)
    hub.propose(token, "Use cents.", id="one")
    assert hub.propose(token, "Use floats.", id="one").status == 409
    assert hub.statuses(tenant) == {"Use cents.": "inbox"} and hub.kinds(tenant) == ["proposed"]


def test_two_clients_that_send_the_same_at_once_make_one_candidate(hub, tenant):
    tokens = [hub.token(name, tenant=tenant) for name in ("ann", "bob", "cyd", "dan")]
    replies = []
    for round in range(10):
        threads = [threading.Thread(target=lambda token: replies.append(hub.propose(token, "Round %d." % round).json), args=(token,)) for token in tokens]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(not reply["duplicate"] for reply in replies) == 10 == len({reply["id"] for reply in replies})
    assert hub.kinds(tenant) == ["proposed"] * 10


def test_the_same_content_of_two_tenants_is_two_rows(hub, tenant):
    for name in (tenant, tenant + "2"):
        reply = hub.propose(hub.token("ann", tenant=name), "Use cents.", id="one")
        assert (reply.status, reply.json["duplicate"]) == (201, False)
    assert len(hub.sql("SELECT 1 FROM candidates WHERE id = 'one' AND tenant IN (?, ?)", tenant, tenant + "2")) == 2


def test_nothing_of_one_tenant_is_visible_to_another(hub, tenant):
    other = tenant + "2"
    ann, boss, eve, chief = hub.token("ann", tenant=tenant), hub.admin(tenant), hub.token("eve", tenant=other), hub.admin(other)
    kept = hub.propose(ann, "The zebra lives in cents.", "Zebra", id="kept").json["id"]
    hub.propose(ann, "Still in the inbox.", id="waiting")
    hub.ask("POST", "/api/candidates/%s/promote" % kept, boss)
    assert hub.ask("GET", "/api/memories?q=zebra", ann).json["memories"][0]["id"] == kept
    # not by id: what is another's and what is nobody's get the same bytes
    for verb in ("promote", "reject"):
        theirs, nobodys = (hub.ask("POST", "/api/candidates/%s/%s" % (id, verb), chief) for id in ("waiting", "nothing"))
        assert theirs.status == 404 and theirs.body == nobodys.body
    # not by 409, nor by hash
    assert hub.propose(eve, "Other content.", id="kept").json == {"id": "kept", "status": "inbox", "duplicate": False}
    assert hub.propose(eve, "The zebra lives in cents.", id="mine").json == {"id": "mine", "status": "inbox", "duplicate": False}
    # not in any list, search, cursor or receipt
    for status in memhook.STATUSES:
        for path in ("/api/candidates?status=" + status, "/api/candidates?status=%s&after=waiting" % status):
            assert [row["id"] for row in hub.ask("GET", path, chief).json["candidates"]] == (["kept", "mine"] if status == "inbox" else []), path
    assert hub.ask("GET", "/api/memories?q=zebra", eve).json["memories"] == []
    assert hub.ask("GET", "/api/memories?since=0", eve).json == {"memories": [], "tombstones": [], "cursor": 0}
    receipts = hub.ask("GET", "/api/receipts?since=0", chief).json["receipts"]
    assert [receipt["seq"] for receipt in receipts] == [1, 2] and {receipt["tenant"] for receipt in receipts} == {other}
    assert hub.statuses(tenant)["Still in the inbox."] == "inbox"


def test_a_member_sees_its_own_candidates_and_receipts_an_admin_its_tenants(hub, tenant):
    ann, bob, boss = hub.token("ann", tenant=tenant), hub.token("bob", tenant=tenant), hub.admin(tenant)
    hub.propose(ann, "From Ann.", id="a")
    hub.propose(bob, "From Bob.", id="b")
    seen = {name: [row["id"] for row in hub.ask("GET", "/api/candidates", token).json["candidates"]] for name, token in (("ann", ann), ("bob", bob), ("boss", boss))}
    assert seen == {"ann": ["a"], "bob": ["b"], "boss": ["a", "b"]}
    assert [row["actor"] for row in hub.ask("GET", "/api/receipts", ann).json["receipts"]] == ["ann"]
    assert [row["actor"] for row in hub.ask("GET", "/api/receipts", boss).json["receipts"]] == ["ann", "bob"]
    assert hub.ask("GET", "/api/receipts?since=1", boss).json["receipts"][0]["detail"]["id"] == "b"


def test_pages_of_the_inbox_follow_each_other_without_gap_or_repeat(hub, tenant):
    token = hub.token("ann", tenant=tenant)
    for number in range(7):
        hub.propose(token, "Content %d." % number, id="c%d" % number)
    found, after = [], ""
    while True:
        page = hub.ask("GET", "/api/candidates?limit=3&after=" + after, token).json
        found += [row["id"] for row in page["candidates"]]
        after = page["next"]
        if not after:
            break
    assert found == ["c%d" % number for number in range(7)]


# ---- memories


def test_only_what_was_promoted_is_a_memory_and_what_is_rejected_later_a_tombstone(hub, tenant):
    token, boss = hub.token("ann", tenant=tenant), hub.admin(tenant)
    for name in ("kept", "retracted", "refused", "waiting"):
        hub.propose(token, "About %s pelicans." % name, id=name)
    for path in ("kept/promote", "retracted/promote", "refused/reject"):
        assert hub.ask("POST", "/api/candidates/" + path, boss).status == 200
    first = hub.ask("GET", "/api/memories?since=0", token).json
    assert [(row["id"], row["by"], row["promoted_by"]) for row in first["memories"]] == [("kept", "ann", "boss"), ("retracted", "ann", "boss")]
    assert hub.ask("POST", "/api/candidates/retracted/reject", boss).json == {"id": "retracted", "status": "rejected"}
    second = hub.ask("GET", "/api/memories?since=%d" % first["cursor"], token).json
    assert second["memories"] == [] and [row["id"] for row in second["tombstones"]] == ["retracted"]
    assert [row["id"] for row in hub.ask("GET", "/api/memories?q=pelicans", token).json["memories"]] == ["kept"]
    assert hub.ask("POST", "/api/candidates/retracted/promote", boss).status == 409
    assert hub.kinds(tenant)[4:] == ["promoted", "promoted", "rejected", "retracted"]


def test_a_search_finds_stems_and_parts_of_names_best_first(hub, tenant):
    token, boss = hub.token("ann", tenant=tenant), hub.admin(tenant)
    for id, content in (("a", "Retries of `parseInvoiceTotal` go through the queue."), ("b", "The invoice, the invoice and the total."), ("c", "Deploy on Tuesdays.")):
        hub.propose(token, content, id=id)
        hub.ask("POST", "/api/candidates/%s/promote" % id, boss)
    assert [row["id"] for row in hub.ask("GET", "/api/memories?q=retry", token).json["memories"]] == ["a"]
    assert [row["id"] for row in hub.ask("GET", "/api/memories?q=invoices+total", token).json["memories"]] == ["b", "a"]
    assert [row["id"] for row in hub.ask("GET", "/api/memories?q=deploying&limit=1", token).json["memories"]] == ["c"]
    log = "+".join("unheard%d" % number for number in range(200))  # a pasted log has more words than the team ever wrote
    assert [row["id"] for row in hub.ask("GET", "/api/memories?q=%s+tuesdays" % log, token).json["memories"]] == ["c"]


# ---- quota


def test_the_61st_intake_in_60_seconds_is_429_whatever_the_address_and_no_token_shares(tmp_path):
    with RunningHub(tmp_path) as hub:
        ann, bob, boss = hub.token("ann"), hub.token("bob"), hub.admin()
        addresses = ["127.0.0.%d" % (1 + number % 5) for number in range(61)]
        for number, address in enumerate(addresses[:60]):
            body = {"title": "T", "content": "Number %d." % (number // 2)}  # a repeat is an intake too
            assert hub.ask("POST", "/api/candidates", ann, body, source=address).status == 201
            assert hub.ask("GET", "/api/candidates", ann).status == 200  # not counted
        late = hub.ask("POST", "/api/candidates", ann, {"title": "T", "content": "Number 60."}, source=addresses[60])
        assert late.status == 429 and 1 <= int(late.headers["Retry-After"]) <= 61
        assert late.headers["Content-Type"] == "application/problem+json"
        assert hub.ask("POST", "/api/candidates", bob, {"title": "T", "content": "Of Bob."}).status == 201
        ids = [row["id"] for row in hub.ask("GET", "/api/candidates", ann).json["candidates"]]
        assert len(ids) == 30
        for id in 3 * ids:  # 90 calls of an admin
            assert hub.ask("POST", "/api/candidates/%s/promote" % id, boss).status == 200
        assert hub.ask("GET", "/api/memories?q=number", ann).status == 200


def test_a_quota_is_there_again_after_the_time_it_names(tmp_path):
    with RunningHub(tmp_path, "--quota-max", "2", "--quota-window", "2") as hub:
        token = hub.token("ann")
        assert [hub.propose(token, "Number %d." % number).status for number in range(3)] == [201, 201, 429]
        time.sleep(int(hub.propose(token, "Number 2.").headers["Retry-After"]))
        assert hub.propose(token, "Number 2.").status == 201


# ---- govern, receipts


def fill_inbox(hub, tenant):
    """One to promote, one with a secret, one that is the first's duplicate."""
    hub.propose(hub.token("ann", tenant=tenant), "Use cents.", id="good")
    insert(hub, tenant, SECRET, "secret")
    insert(hub, tenant, "Use cents.", "twice")


def status_of(hub, tenant):
    return dict(hub.sql("SELECT id, status FROM candidates WHERE tenant = ?", tenant))


@pytest.fixture
def quiet(tmp_path):
    """A hub's database that nobody serves."""
    with RunningHub(tmp_path, "--quota-max", "0") as hub:
        yield hub


def test_govern_promotes_quarantines_and_marks_duplicates_under_one_receipt(quiet):
    fill_inbox(quiet, "team")
    assert json.loads(quiet.run("govern", "--json").stdout) == {"promoted": 1, "quarantined": 1, "duplicate": 1, "left": 0}
    assert status_of(quiet, "team") == {"good": "promoted", "secret": "quarantined", "twice": "duplicate"}
    assert quiet.kinds() == ["proposed", "promoted", "governed"]
    assert json.loads(quiet.sql("SELECT detail FROM receipts WHERE kind = 'governed'")[0][0]) == {"quarantined": {"secret": ""}, "duplicate": {"twice": "good"}}
    assert json.loads(quiet.run("govern", "--json").stdout) == {"promoted": 0, "quarantined": 0, "duplicate": 0, "left": 0}
    assert quiet.kinds() == ["proposed", "promoted", "governed"]
    assert quiet.run("audit").returncode == 0


def test_govern_looks_for_secrets_in_each_text_once(quiet):
    fill_inbox(quiet, "team")
    looked = []
    db = memhook.open_hub(str(quiet.path))
    sys.setprofile(lambda frame, event, value: looked.append(1) if event == "call" and frame.f_code is memhook.holds_secret.__code__ else None)
    try:
        memhook.govern(db, hold=False)
    finally:
        sys.setprofile(None)
        db.close()
    assert len(looked) == len(status_of(quiet, "team")) == 3


def test_where_the_receipt_of_a_sweep_fails_no_flip_stays_and_the_next_run_repeats_them(quiet):
    fill_inbox(quiet, "team")
    quiet.sql("CREATE TRIGGER broken BEFORE INSERT ON receipts WHEN NEW.kind = 'governed' BEGIN SELECT RAISE(ABORT, 'the disk is full'); END")
    for _ in range(2):
        done = quiet.run("govern", "--json", check=False)
        assert (done.returncode, done.stdout) == (1, "") and "the disk is full" in done.stderr and "run the same again" in done.stderr and "Traceback" not in done.stderr
        assert status_of(quiet, "team") == {"good": "promoted", "secret": "inbox", "twice": "inbox"}
        assert quiet.kinds() == ["proposed", "promoted"]  # made before it failed, with its own receipt
    quiet.sql("DROP TRIGGER broken")
    assert json.loads(quiet.run("govern", "--json").stdout) == {"promoted": 0, "quarantined": 1, "duplicate": 1, "left": 0}
    assert status_of(quiet, "team") == {"good": "promoted", "secret": "quarantined", "twice": "duplicate"}
    assert quiet.run("audit").returncode == 0


def test_where_the_receipt_of_a_decision_or_an_intake_fails_nothing_of_it_is_done(quiet):
    token = quiet.token("ann")
    quiet.propose(token, "Use cents.", id="one")
    quiet.sql("CREATE TRIGGER broken BEFORE INSERT ON receipts BEGIN SELECT RAISE(ABORT, 'no'); END")
    reply = quiet.ask("POST", "/api/candidates/one/promote", quiet.admin())
    assert reply.status == 503 and reply.headers["Retry-After"]
    assert quiet.propose(token, "More.").status == 503
    assert quiet.run("govern", check=False).returncode == 1
    assert quiet.statuses() == {"Use cents.": "inbox"} and quiet.ask("GET", "/api/memories?q=cents", token).json["memories"] == []
    quiet.sql("DROP TRIGGER broken")
    assert quiet.propose(token, "More.").status == 201
    assert quiet.run("audit").returncode == 0


@pytest.fixture
def writer(tmp_path):
    """A hub's writer, without the server before it."""
    path = str(tmp_path / "hub.db")
    memhook.open_hub(path).close()
    writer = memhook.Writer(memhook.Home({"MEMHOOK_HOME": str(tmp_path), "HOME": str(tmp_path)}), path)
    yield writer
    writer.db.close()


def caller_of(writer, name, tenant="team"):
    return memhook.find_caller(writer.db, "Bearer " + memhook.add_token(writer.db, tenant, name, "member"))


def submit_together(writer, works):
    """Give each work to the writer in a thread of its own, all of them while the first is done; -> what each returned or raised."""
    begun, all_wait = threading.Event(), threading.Event()
    results = {}

    def first(chains):
        begun.set()
        assert all_wait.wait(30)
        return works[0](chains)

    def submit(number):
        try:
            results[number] = writer.submit(works[number] if number else first)
        except (memhook.Problem, *memhook.BUGS) as error:
            results[number] = error

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(len(works))]
    threads[0].start()
    assert begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(writer.waiting) < len(works) - 1:
        time.sleep(0.001)
    all_wait.set()
    for thread in threads:
        thread.join(30)
    return [results.get(number) for number in range(len(works))]


def intake(caller, id):
    return lambda chains: memhook.take_in(chains, caller, {"id": id, "title": "T", "content": "About %s." % id})["id"]


def raising(error):
    def work(chains):
        raise error
    return work


def test_writes_that_come_while_one_is_done_share_its_commit_and_none_pays_for_another(writer):
    ann, statements = caller_of(writer, "ann"), []
    writer.db.set_trace_callback(statements.append)
    no = memhook.Problem(409, "no")
    results = submit_together(writer, [raising(no) if number % 3 == 2 else intake(ann, "c%d" % number) for number in range(12)])
    assert results == [no if number % 3 == 2 else "c%d" % number for number in range(12)]
    assert statements.count("COMMIT") == 1
    assert memhook.audit(writer.db, "") == {"ok": True, "receipts": 8, "anchors": 0, "findings": []}


def test_a_write_that_fails_takes_none_of_those_that_share_its_commit_with_it(writer):
    ann, eve, bug = caller_of(writer, "ann"), caller_of(writer, "eve", "damaged"), ValueError("a bug")
    writer.submit(intake(eve, "e0"))
    writer.db.execute("INSERT INTO receipts SELECT tenant, 2, kind, at, actor, detail, prev_hash, hash, number + 1 FROM receipts")  # no room for another
    works = [raising(bug) if number == 4 else intake(eve if number in (0, 7, 8, 11) else ann, "c%d" % number) for number in range(12)]
    results = submit_together(writer, works)
    assert results[4] is bug
    assert [result.status for number, result in enumerate(results) if number in (0, 7, 8, 11)] == [503] * 4
    assert [result for number, result in enumerate(results) if number not in (0, 4, 7, 8, 11)] == ["c1", "c2", "c3", "c5", "c6", "c9", "c10"]
    assert writer.submit(intake(ann, "last")) == "last"
    assert [id for (id,) in writer.db.execute("SELECT id FROM candidates ORDER BY number")] == ["e0", "c1", "c2", "c3", "c5", "c6", "c9", "c10", "last"]
    assert {finding.split(":")[0] for finding in memhook.audit(writer.db, "")["findings"]} == {"damaged"}


def test_the_log_has_its_length_before_the_first_intake_and_holds_nothing(quiet):
    log = str(quiet.path) + "-wal"
    length = os.path.getsize(log)
    assert length >= memhook.HUB_CHECKPOINT_PAGES * memhook.HUB_PAGE_BYTES and stat.S_IMODE(os.stat(log).st_mode) == 0o600
    for number in range(20):
        quiet.propose(quiet.token("ann"), "Number %d." % number)
    assert os.path.getsize(log) == length
    assert quiet.sql("SELECT key FROM meta") == [("format",)] and os.path.getsize(quiet.path) < 1_000_000


def test_a_hub_starts_though_its_log_cannot_have_its_length(tmp_path):
    path = str(tmp_path / "hub.db")
    db = memhook.open_hub(path)
    db.execute("CREATE TRIGGER full BEFORE INSERT ON meta BEGIN SELECT RAISE(ABORT, 'no'); END")
    db.close()
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path), "HOME": str(tmp_path)})
    writer = memhook.Writer(home, path)
    assert writer.submit(lambda chains: chains.db.in_transaction) and not writer.db.in_transaction
    assert "hub-log-short" in (tmp_path / "memhook.log").read_text()
    writer.db.close()


@pytest.mark.parametrize("why", ["resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))", "memhook.HUB_ROOM = 1 << 40"], ids=["it fails", "the disk is nearly full"])
def test_a_log_that_cannot_have_its_length_takes_no_room_and_leaves_the_cache_as_it_is_to_be(tmp_path, why):
    path = str(tmp_path / "hub.db")
    memhook.open_hub(path).close()
    code = ("import os, resource, sys, memhook\n"
            "home = memhook.Home({'MEMHOOK_HOME': sys.argv[1], 'HOME': sys.argv[1]})\n"
            + why + "\n"
            "db = memhook.Writer(home, sys.argv[2]).db\n"
            "print(os.path.getsize(sys.argv[2] + '-wal'), *(db.execute('PRAGMA ' + name).fetchone()[0] for name in ('cache_size', 'wal_autocheckpoint')))\n")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), path], cwd=PROGRAM.parent, capture_output=True, text=True)
    assert done.stdout == "0 -%d %d\n" % (memhook.HUB_CACHE_KB, memhook.HUB_SHORT_PAGES), done.stderr
    assert "hub-log-short" in (tmp_path / "memhook.log").read_text()


def test_govern_with_hold_promotes_nothing(quiet):
    fill_inbox(quiet, "team")
    assert json.loads(quiet.run("govern", "--hold", "--json").stdout) == {"promoted": 0, "quarantined": 1, "duplicate": 1, "left": 1}
    assert status_of(quiet, "team")["good"] == "inbox"


def test_two_governors_at_once_decide_each_candidate_once(quiet):
    token = quiet.token("ann")
    for number in range(60):
        quiet.propose(token, "Number %d." % number)
    running = [subprocess.Popen([sys.executable, str(PROGRAM), "hub", "govern", "--json"], env=quiet.env, stdout=subprocess.PIPE) for _ in range(3)]
    done = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert sum(counts["promoted"] for counts in done) == 60
    assert quiet.kinds() == ["proposed"] * 60 + ["promoted"] * 60
    assert quiet.run("audit").returncode == 0


TAMPERED = {
    "changed": "UPDATE receipts SET actor = 'eve' WHERE seq = 2",
    "changed in its detail": "UPDATE receipts SET detail = replace(detail, 'c1', 'c9') WHERE seq = 2",
    "changed to no JSON": "UPDATE receipts SET detail = '{' WHERE seq = 2",
    "removed": "DELETE FROM receipts WHERE seq = 2",
    "removed at the end": "DELETE FROM receipts WHERE seq = (SELECT max(seq) FROM receipts)",
    "removed at the end, its decision undone": "DELETE FROM receipts WHERE seq = 6; UPDATE candidates SET status = 'inbox' WHERE id = 'c1'",
    "removed with its candidate and counted anew": "DELETE FROM receipts WHERE seq = 3; DELETE FROM candidates WHERE id = 'c2'; UPDATE chains SET count = count - 1",
    "removed all": "DELETE FROM receipts",
    "inserted beside the chain": "INSERT INTO receipts SELECT tenant, seq, kind, at, actor, detail, prev_hash, hash, 7 FROM receipts WHERE seq = 1",
    "changed to two lines": """UPDATE receipts SET kind = kind || char(10) || at, at = substr(actor, 1, 0) WHERE seq = 2""",
    "removed, the rest moved up": "DELETE FROM receipts WHERE seq = 2; UPDATE receipts SET seq = seq - 1 WHERE seq > 2",
    "inserted": "INSERT INTO receipts(%s) SELECT tenant, 99, kind, at, actor, detail, hash, hash FROM receipts WHERE seq = 4" % memhook._RECEIPT_COLUMNS,
    "inserted before": "INSERT INTO receipts(%s) SELECT tenant, 0, kind, at, actor, detail, prev_hash, hash FROM receipts WHERE seq = 1" % memhook._RECEIPT_COLUMNS,
    "reordered": "UPDATE receipts SET seq = 99 WHERE seq = 2; UPDATE receipts SET seq = 2 WHERE seq = 3; UPDATE receipts SET seq = 3 WHERE seq = 99",
    "candidate decided without": "UPDATE candidates SET status = 'rejected' WHERE id = 'c3'",
    "candidate gone": "DELETE FROM candidates WHERE id = 'c2'",
    "candidate rewritten": "UPDATE candidates SET content = 'Use floats.' WHERE id = 'c3'",
    "changed to other shapes": """UPDATE receipts SET kind = 'governed', detail = '{"duplicate":[[]],"quarantined":5}' WHERE seq = 2; UPDATE receipts SET detail = '[]' WHERE seq = 3""",
    "counted wrong": "UPDATE chains SET count = 'many'",
    "memory added": "INSERT INTO memories(tenant, id, seq, title, content, by, promoted_by, at) VALUES('team', 'x', 99, 'T', 'Use floats.', 'ann', 'boss', '')",
    "memory rewritten": "UPDATE memories SET content = 'Use floats.' WHERE id = 'c0'",
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The bytes of a database with six receipts, and a folder to put copies of it."""
    with RunningHub(tmp_path_factory.mktemp("ledger")) as hub:
        for number in range(4):
            hub.propose(hub.token("ann"), "Number %d." % number, id="c%d" % number)
        hub.ask("POST", "/api/candidates/c0/promote", hub.admin())
        hub.ask("POST", "/api/candidates/c1/reject", hub.admin())
        hub.stop()
        assert hub.run("audit").returncode == 0
        yield hub, hub.path.read_bytes()


@pytest.mark.parametrize("how", TAMPERED)
def test_an_audit_finds_a_row_that_was(ledger, how):
    hub, whole = ledger
    hub.path.write_bytes(whole)
    for statement in TAMPERED[how].split("; "):
        hub.sql(statement)
    with memhook.using_hub(str(hub.path)) as db:
        found = memhook.audit(db, str(hub.path) + ".anchors.jsonl")
    assert found["ok"] is False and found["findings"]


def test_an_audit_finds_a_chain_that_was_made_anew_by_its_anchor(ledger):
    hub, whole = ledger
    hub.path.write_bytes(whole)
    assert len(hub.run("anchor").stdout.splitlines()) == 1
    head = memhook.NO_HASH
    db = memhook.open_hub(str(hub.path))
    receipts = memhook.list_receipts(db, memhook.governor("team"), 0, 100)
    db.close()
    for receipt in receipts:
        receipt.update(actor="eve", prev_hash=head, detail=memhook.canonical(receipt["detail"]))
        head = memhook.receipt_hash(list(receipt.values())[:-1])
        hub.sql("UPDATE receipts SET actor = 'eve', prev_hash = ?, hash = ? WHERE seq = ?", receipt["prev_hash"], head, receipt["seq"])
    hub.sql("UPDATE chains SET head = ?", head)
    done = hub.run("audit", check=False)
    assert done.returncode == memhook.EXIT_FOUND and "anchor" in done.stdout and "Traceback" not in done.stderr
    os.rename(str(hub.path) + ".anchors.jsonl", hub.root / "moved.jsonl")
    assert hub.run("audit").stdout.endswith(" 0 anchors: every chain is whole\n")  # nothing but the anchor knew
    assert hub.run("audit", "--anchors", hub.root / "moved.jsonl", check=False).returncode == memhook.EXIT_FOUND
    done = hub.run("audit", "--anchors", hub.root / "misspelt.jsonl", check=False)
    assert done.returncode == 2 and "there is no file" in done.stderr and "whole" not in done.stdout


def test_an_audit_of_a_hub_that_goes_on_writing_finds_nothing(quiet):
    token, accepted = quiet.token("ann"), []
    threads = [threading.Thread(target=write_until_it_ends, args=(quiet, token, accepted, 1_000_000 * number)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(accepted) < 50:
        time.sleep(0.02)
    audits = [json.loads(quiet.run("audit", "--json", check=False).stdout) for _ in range(4)]
    quiet.stop()
    for thread in threads:
        thread.join()
    assert [found["findings"] for found in audits] == [[]] * 4
    assert audits[0]["receipts"] < audits[3]["receipts"] <= len(accepted)


def test_an_anchor_with_nothing_new_appends_nothing(quiet):
    quiet.propose(quiet.token("ann"), "Use cents.")
    path = quiet.path.with_name("hub.db.anchors.jsonl")
    done = quiet.run("anchor")
    assert json.loads(done.stdout)["count"] == 1 and done.stderr == "Appended to %s\n" % path
    before = path.read_bytes()
    for _ in range(2):
        done = quiet.run("anchor")
        assert done.stdout == "" and "Nothing to anchor" in done.stderr and path.read_bytes() == before
    quiet.propose(quiet.token("ann"), "Use cents always.")
    assert json.loads(quiet.run("anchor").stdout)["count"] == 2
    assert path.read_bytes().startswith(before) and len(path.read_bytes().splitlines()) == 2
    assert quiet.run("audit").returncode == 0


def test_an_anchor_after_one_that_a_power_loss_cut_short_has_a_line_of_its_own(quiet):
    quiet.propose(quiet.token("ann"), "Use cents.")
    path = quiet.path.with_name("hub.db.anchors.jsonl")
    path.write_bytes(b'{"at":"2026-01-01T00:00:00.000Z","cou')
    assert json.loads(quiet.run("anchor").stdout)["count"] == 1
    assert json.loads(path.read_bytes().splitlines()[1])["count"] == 1 and quiet.run("anchor").stdout == ""


# ---- the README's table


def test_every_curl_line_of_the_readme_works(tmp_path):
    readme = (PROGRAM.parent / "README.md").read_text("utf-8")
    table = readme[readme.index("| request | curl"):].split("\n\n")[0]
    lines = re.findall(r"(?m)^\| (.+?) \| `(curl .+)` \|$", table)
    assert len(lines) == len(table.splitlines()) - 2
    with RunningHub(tmp_path) as hub:
        answers = {}
        for name, line in lines:
            setting = {"A": "Authorization: Bearer " + hub.admin(), "H": hub.url}
            done = subprocess.run(["/bin/sh", "-c", line.replace("curl ", "curl -sf ", 1)], env={**os.environ, **setting}, capture_output=True, text=True)
            assert done.returncode == 0, (name, done.stdout, done.stderr)
            answers[name] = json.loads(done.stdout)
    assert answers["propose"] == {"id": "c1", "status": "inbox", "duplicate": False}
    assert answers["promote (admin)"]["status"] == "promoted" and answers["reject, take back (admin)"]["status"] == "rejected"
    assert [row["id"] for name in ("the inbox (a member: its own)",) for row in answers[name]["candidates"]] == ["c1"]
    assert answers["search what was kept"]["memories"][0]["content"] == answers["what is new since a cursor"]["memories"][0]["content"] == "Only on Tuesdays."
    assert [row["kind"] for row in answers["receipts"]["receipts"]] == ["proposed", "promoted", "retracted"]
    asked = {(("POST" if "-X POST" in line or " -d " in line else "GET"), line.split("$H")[1].split("?")[0].split('"')[0].split(" ")[0]) for _, line in lines}
    for method, path, _, _ in memhook.ROUTES:  # and the table has every route
        assert any(method == verb and re.fullmatch(path, target) for verb, target in asked), path


# ---- serving


def test_every_hub_command_means_the_same_database(tmp_path):
    hub = RunningHub(tmp_path, start=False)
    for command in (["govern"], ["anchor"], ["audit"], ["token", "list"], ["token", "revoke", "ann"]):
        assert hub.run(*command, check=False).returncode == 1 and not hub.path.exists()
    token = hub.run("token", "add", "ann").stdout.strip()
    with hub.start():
        assert hub.propose(token, "Use cents.").status == 201
    assert json.loads(hub.run("govern", "--json").stdout)["promoted"] == 1
    assert json.loads(hub.run("anchor").stdout)["count"] == 2
    assert json.loads(hub.run("audit", "--json").stdout) == {"ok": True, "receipts": 2, "anchors": 1, "findings": []}
    assert [row["name"] for row in json.loads(hub.run("token", "list", "--json").stdout)["tokens"]] == ["ann"]
    for path in hub.home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    missing = tmp_path / "other.db"
    assert hub.run("audit", "--db", str(missing), check=False).returncode == 1 and not missing.exists()
    (tmp_path / "text").write_text("no database")
    done = hub.run("audit", "--db", str(tmp_path / "text"), check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr


def test_to_read_a_hubs_database_nobody_waits_for_who_writes(quiet):
    quiet.propose(quiet.token("ann"), "Use cents.")
    db = sqlite3.connect(str(quiet.path), isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    start = time.monotonic()
    for command in (["audit"], ["anchor"], ["token", "list"]):
        assert quiet.run(*command).returncode == 0
    assert time.monotonic() - start < memhook.BUSY_SECONDS
    db.close()


def test_a_database_of_another_version_is_left_alone_and_what_to_do_is_said(tmp_path):
    hub = RunningHub(tmp_path, start=False)
    hub.token("ann")
    hub.sql("UPDATE meta SET value = '1' WHERE key = 'format'")
    for command in (["serve", "--port", "0"], ["audit"], ["token", "add", "bob"]):
        done = hub.run(*command, check=False)
        assert done.returncode == 1 and "another version" in done.stderr and "move %s* away" % hub.path in done.stderr
    assert hub.sql("SELECT name FROM tokens") == [("ann",)]


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_a_database_of_another_program_is_refused_and_stays_as_it_is(tmp_path, mode):
    hub, path = RunningHub(tmp_path, start=False), tmp_path / "other.db"
    write = ("import os, sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.execute('PRAGMA journal_mode = ' + sys.argv[2])\n"
             "db.execute('CREATE TABLE meta(key, value)'); db.execute(\"INSERT INTO meta VALUES('format', '%d')\"); db.commit(); os._exit(0)" % memhook.HUB_FORMAT)
    subprocess.run([sys.executable, "-c", write, str(path), mode], check=True)  # it ends without a close: what it wrote to a log stays there
    before = {file.name: file.read_bytes() for file in tmp_path.glob("other.db*") if not file.name.endswith("-shm")}
    assert len(before) == (2 if mode == "wal" else 1)
    for command in (["serve", "--port", "0"], ["audit"], ["govern"], ["anchor"], ["token", "list"], ["token", "add", "ann"]):
        done = hub.run(*command, "--db", str(path), check=False)
        assert done.returncode == 1 and "not a hub's database" in done.stderr, done.stderr
        assert {file.name: file.read_bytes() for file in tmp_path.glob("other.db*") if not file.name.endswith("-shm")} == before, command


def test_a_foreign_interface_without_a_valid_token_is_refused(tmp_path):
    hub = RunningHub(tmp_path, start=False)
    for host in ("0.0.0.0", "::"):
        done = hub.run("serve", "--host", host, "--port", "0", check=False)
        assert done.returncode == 1 and "token" in done.stderr
    hub.run("token", "add", "ann")
    hub.run("token", "revoke", "ann")
    assert hub.run("serve", "--host", "0.0.0.0", "--port", "0", check=False).returncode == 1
    hub.run("token", "add", "ann")
    hub.args = ("--host", "0.0.0.0")
    with hub.start():
        assert hub.ask("GET", "/healthz").json == {"ok": True, "version": memhook.VERSION}
        wait_until(lambda: "put a proxy with TLS before it" in (hub.root / "stderr").read_text(), "the advice")


def test_a_port_that_is_taken_is_said_and_not_a_traceback(hub):
    done = hub.run("serve", "--port", str(hub.port), check=False)
    assert done.returncode == 1 and str(hub.port) in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_hub_whose_database_was(tmp_path, how):
    """... takes nothing into a file that nobody has any more, and touches no other; once it is back, it goes on."""
    with RunningHub(tmp_path) as hub:
        token = hub.token("ann")
        assert hub.propose(token, "Before.").status == 201
        aside, other = tmp_path / "aside.db", tmp_path / "other.db"
        memhook.open_hub(str(other)).close()
        os.rename(hub.path, aside)
        if how == "replaced":
            os.rename(other, hub.path)
        before = hub.path.read_bytes() if how == "replaced" else b""
        time.sleep(memhook.HUB_LOOK_SECONDS)
        replies = [hub.propose(token, "Between."), hub.ask("GET", "/api/candidates", token), hub.ask("GET", "/healthz")]
        assert [reply.status for reply in replies] == [503, 503, 200] and replies[0].headers["Retry-After"]
        assert "start the hub again" in hub.log()
        assert (hub.path.read_bytes() if hub.path.exists() else b"") == before
        os.rename(aside, hub.path)
        assert hub.propose(token, "After.").status == 201
        assert hub.statuses() == {"Before.": "inbox", "After.": "inbox"}
        assert hub.run("audit").returncode == 0


@pytest.mark.parametrize("end", ["-wal", "-shm"])
def test_a_hub_whose_side_file_was_deleted_takes_nothing_in_and_lost_nothing(tmp_path, end):
    """What is answered 201 would be in a file that nobody finds after a power loss, or be written over by who makes that file anew."""
    with RunningHub(tmp_path) as hub:
        token = hub.token("ann")
        assert hub.propose(token, "Before.").status == 201
        os.unlink(str(hub.path) + end)
        time.sleep(memhook.HUB_LOOK_SECONDS)
        assert hub.propose(token, "Between.").status == 503 and "start the hub again" in hub.log()
        assert hub.stop() == 0
        hub.start()
        assert hub.propose(token, "After.").status == 201 and hub.statuses() == {"Before.": "inbox", "After.": "inbox"}


def test_a_backup_that_takes_the_place_of_a_running_hubs_database_is_what_the_next_one_has(tmp_path):
    with RunningHub(tmp_path) as hub:
        token, backup, aside = hub.token("ann"), tmp_path / "backup.db", tmp_path / "aside.db"
        hub.propose(token, "Early.")
        hub.sql("VACUUM INTO ?", str(backup))
        hub.propose(token, "Late.")
        os.rename(hub.path, aside)
        os.rename(backup, hub.path)
        assert hub.stop() == 0  # what is in the log belongs to the one that was moved aside
        hub.start()
        assert hub.statuses() == {"Early.": "inbox"} and hub.run("audit").returncode == 0
        hub.stop()
        os.rename(aside, hub.path)
        assert hub.statuses() == {"Early.": "inbox", "Late.": "inbox"} and hub.run("audit").returncode == 0


def test_no_connection_is_opened_to_another_database_however_short_it_is_there(tmp_path):
    path, other = tmp_path / "hub.db", tmp_path / "other.db"
    memhook.open_hub(str(other)).close()
    hub = memhook.Hub(memhook.Home({"MEMHOOK_HOME": str(tmp_path), "HOME": str(tmp_path)}), str(path), memhook.Quota(0, 60), ())
    hub.writer.check_files()
    os.rename(other, path)
    with pytest.raises(sqlite3.OperationalError, match="not where it was opened"):
        hub.read(memhook.list_tokens)
    hub.writer.db.close()


def write_until_it_ends(hub, token, accepted, offset):
    """Propose until the hub answers no more; the ids that were answered 201 go into `accepted`."""
    link = http.client.HTTPConnection("127.0.0.1", hub.port, timeout=30)
    try:
        for number in range(offset, offset + 100_000):
            link.request("POST", "/api/candidates", json.dumps({"title": "T", "content": "Number %d." % number, "id": "n%d" % number}), {"Authorization": "Bearer " + token})
            response = link.getresponse()
            response.read()
            if response.status == 201:
                accepted.append("n%d" % number)
    except (OSError, http.client.HTTPException):
        pass


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_what_was_answered_201_is_there_once_after(tmp_path, how):
    with RunningHub(tmp_path, "--quota-max", "0") as hub:
        token, accepted = hub.token("ann"), []
        threads = [threading.Thread(target=write_until_it_ends, args=(hub, token, accepted, 1_000_000 * number)) for number in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(accepted) >= 100, "a hundred to be taken in")
        assert hub.stop(how) == (0 if how == signal.SIGTERM else -signal.SIGKILL)
        for thread in threads:
            thread.join()
        stored = [id for (id,) in hub.sql("SELECT id FROM candidates")]
        assert set(accepted) <= set(stored) and len(stored) == len(hub.kinds())
        if how == signal.SIGTERM:  # and each that was stored was answered
            assert set(accepted) == set(stored)
        assert hub.run("audit").returncode == 0


def test_a_hub_that_was_killed_under_its_clients_starts_on_the_same_port_at_once(tmp_path):
    import socket
    with RunningHub(tmp_path) as hub:
        links = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(5)]
        assert hub.ask("GET", "/healthz").status == 200
        hub.stop(signal.SIGKILL)
        assert [link.recv(1) for link in links] == [b""] * 5
        assert hub.start().ask("GET", "/healthz").status == 200
        for link in links:
            link.close()


def test_a_request_that_is_in_work_at_sigterm_is_answered(tmp_path):
    with RunningHub(tmp_path) as hub:
        token, replies = hub.token("ann"), []
        db = sqlite3.connect(str(hub.path), isolation_level=None)
        db.execute("BEGIN IMMEDIATE")  # the intake waits for it
        thread = threading.Thread(target=lambda: replies.append(hub.propose(token, "Use cents.")))
        thread.start()
        time.sleep(0.5)
        hub.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert hub.process.poll() is None and not replies
        db.execute("ROLLBACK")
        db.close()
        thread.join()
        assert replies[0].status == 201 and replies[0].headers["Connection"] == "close"
        assert hub.process.wait(20) == 0
        assert hub.statuses() == {"Use cents.": "inbox"}


def test_it_ends_at_once_though_clients_hold_idle_connections(tmp_path):
    import socket
    with RunningHub(tmp_path) as hub:
        links = [socket.create_connection(("127.0.0.1", hub.port)) for _ in range(20)]
        links[0].sendall(b"GET /healthz HTT")
        start = time.monotonic()
        assert hub.stop() == 0 and time.monotonic() - start < 15
        assert [link.recv(1) for link in links[1:]] == [b""] * 19


def test_it_ends_though_clients_connect_again_and_again(tmp_path):
    with RunningHub(tmp_path) as hub:
        def connect():
            while hub.process.poll() is None:
                try:
                    hub.ask("GET", "/healthz")
                except (OSError, http.client.HTTPException):
                    pass
        threads = [threading.Thread(target=connect, daemon=True) for _ in range(2 * memhook.HUB_THREADS)]
        for thread in threads:
            thread.start()
        time.sleep(2)
        assert hub.stop() == 0


def test_the_log_and_the_terminal_hold_no_content(tmp_path):
    with RunningHub(tmp_path, "--quota-max", "4") as hub:
        token = hub.token("ann")
        hub.propose(token, "Contentword of mine.", "Titleword", id="idword")
        hub.propose(token, "Other contentword.", "Titleword", id="idword")  # 409
        hub.propose(token, SECRET)  # 422
        hub.ask("POST", "/api/candidates", token, b'{"title": "Titleword", "content": ')  # 400
        hub.propose(token, "Fifth contentword.")  # 429
        hub.ask("GET", "/api/memories?q=queryword&since=x", token)
        hub.ask("GET", "/api/pathword?queryword", "wrongtoken", **{"X-Header": "headerword"})
        hub.ask("GET", "/api/memories?since=pathword", token)
        hub.sql("CREATE TRIGGER broken BEFORE INSERT ON receipts BEGIN SELECT RAISE(ABORT, 'no'); END")
        hub.ask("POST", "/api/candidates/idword/promote", hub.admin())  # 503
        hub.stop()
        logged = hub.log() + (hub.root / "stderr").read_text()
        assert '"status": 409' in logged and '"status": 503' in logged
        for word in ("contentword", "titleword", "idword", "queryword", "pathword", "headerword", "wrongtoken", "ghp_", token[20:]):
            assert word.lower() not in logged.lower(), word
