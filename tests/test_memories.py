"""get, save, list, forget: one memory, and no memory any more."""
import json
import os
import re
import shutil
import time
import sqlite3
import subprocess

import pytest
from conftest import Script, memhook
from test_index import write
from test_search import results

SECRET = "the xylophone contract with Quuxington was cancelled because of the zeppelin clause and nobody may ever know"


def talk(box, session, *said):
    """A session that was captured and drained, of prompts and answers in turn."""
    script = box.script(session)
    for number, text in enumerate(said):
        script.answer(text) if number % 2 else script.prompt(text)
    box.hook("SessionEnd", script)
    box.drain()
    return script


def only_id(box, query):
    return results(box, query)[0]["id"]


def only_path(box, query):
    return results(box, query)[0]["path"]


def holding(box, *words):
    """The files of the home in which one of these stands, in whatever case."""
    found = []
    for folder, _, names in os.walk(box.home):
        for name in names:
            with open(os.path.join(folder, name), "rb") as stream:
                data = stream.read().lower() + name.encode().lower()
            found += [os.path.relpath(os.path.join(folder, name), box.home) for word in words if word.encode() in data]
    return sorted(set(found))


# ---- get


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """A store with one captured session and a note of a person's."""
    from conftest import Box
    box = Box(tmp_path_factory.mktemp("one"))
    box.install()
    talk(box, "session-0001", "Why is the zebra striped?", "Against flies.\n\nAnd lions.")
    write(box, "p/own.md", "# Own\n\nline three\nline four\n")
    return box


@pytest.mark.parametrize("length", [4, 5, 8, 36])
def test_an_id_is_known_by_a_beginning_of_four_characters_or_more(one, length):
    id = only_id(one, "zebra")
    assert json.loads(one.run("get", id[:length], "--json").stdout)["id"] == id


def test_an_id_is_known_in_capitals_and_with_blanks_around_it(one):
    id = only_id(one, "zebra")
    for name in (id.upper(), " %s\n" % id[:8].title()):
        assert json.loads(one.run("get", name, "--json").stdout)["id"] == id


def test_an_id_that_is_unknown_or_begins_two_gets_told_what_one_looks_like(box):
    for number in (1, 2):
        write(box, "p/%d.md" % number, '---\nid: "abcd%d000-0000"\n---\n# Note %d\n' % (number, number))
    done = box.run("get", "abcd", check=False)
    assert done.returncode == 1 and "abcd stands for 2 memories" in done.stderr and "36 characters" in done.stderr
    done = box.run("get", "abc", check=False)
    assert done.returncode == 1 and "3781d159: 4 characters of one or more" in done.stderr
    assert "Note 2" in box.run("get", "abcd2").stdout


@pytest.mark.parametrize("change", [lambda data: b"\xef\xbb\xbf" + data, lambda data: data.replace(b"\n", b"\r\n")], ids=["a mark", "line ends"])
def test_a_memory_that_an_editor_put_a_mark_before_or_whose_line_ends_it_converted_is_found_and_shown_as_before(box, change):
    box.install()
    talk(box, "session-0001", "Why is the zebra striped?", "Against flies.")
    before = results(box, "zebra flies")
    path = box.home / "memories" / before[0]["path"]
    shown = json.loads(box.run("get", before[0]["id"], "--json").stdout)
    path.write_bytes(change(path.read_bytes()))
    assert results(box, "zebra flies") == before
    assert json.loads(box.run("get", before[0]["id"], "--json").stdout) == shown


def test_get_shows_a_memory_by_the_beginning_of_its_id(one):
    id = only_id(one, "zebra flies")
    for name in (id, id[:8]):
        found = json.loads(one.run("get", name, "--json").stdout)
        assert found["id"] == id and found["session"] == "session-0001" and {"path", "start_line", "end_line", "text", "project", "at", "branch"} <= set(found)
    assert one.run("get", id[:8]).stdout == (one.home / "memories" / found["path"]).read_text("utf-8")


def test_get_shows_some_lines(one):
    found = json.loads(one.run("get", "p/own.md", "--from", "3", "--lines", "1", "--json").stdout)
    assert (found["text"], found["start_line"], found["end_line"]) == ("line three", 3, 3)
    assert one.run("get", "p/own.md", "--from", "4").stdout == "line four\n"
    done = one.run("get", "p/own.md", "--from", "99", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "memhook: p/own.md has 4 lines\n         there is no line 99\n")


@pytest.mark.parametrize("args", [("--from", "0"), ("--from", "-3"), ("--lines", "0"), ("--lines", "many"), ("--from", "1e3")])
def test_a_line_is_a_whole_number_from_1(one, args):
    done = one.run("get", "p/own.md", *args, check=False)
    assert (done.returncode, done.stdout) == (2, "") and "a whole number from 1, not %s" % args[1] in done.stderr


@pytest.mark.parametrize("command", ["get", "forget"])
def test_an_empty_id_is_a_usage_error(one, command):
    for name in ("", " "):
        done = one.run(command, name, check=False)
        assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("memhook: the id is empty")


@pytest.mark.parametrize("front", ["", '---\nid: "My note/1"\n---\n'], ids=["no front matter", "an id that nobody could type"])
def test_a_file_of_a_persons_has_one_id_that_search_and_get_show_and_get_takes(shelf, front):
    write(shelf, "p/own.md", front + "# Own\n\nline four\n")
    id = only_id(shelf, "line four")
    for name in ("p/own.md", id, id[:8]):
        shown = json.loads(shelf.run("get", name, "--json").stdout)
        assert (shown["id"], shown["path"]) == (id, "p/own.md")


def test_a_file_of_a_persons_is_of_its_folders_project_whatever_its_name(shelf):
    write(shelf, "p/2026-01/memory.md", '---\nproject: "/shop"\n---\n# N\n\nzebra\n')
    write(shelf, "p/00-own.md", "# Own\n\nzebra\n")
    assert {result["path"] for result in results(shelf, "zebra", project="/shop")} == {"p/2026-01/memory.md", "p/00-own.md"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "../consent.json", "p/../../consent.json", "p", ".", "p/none.md", "ffffffff-ffff", "p/own.md/x", "x" * 5_000, "p/link.md"])
def test_get_reads_nothing_outside_the_store(one, name):
    outside = one.root / "outside.md"
    outside.write_text("outside")
    link = one.home / "memories" / "p" / "link.md"
    if not link.is_symlink():
        link.symlink_to(outside)
    done = one.run("get", name, check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.startswith("memhook: ") and "Traceback" not in done.stderr


def test_get_asks_for_more_of_an_id_that_several_have(shelf):
    for number in (1, 2):
        write(shelf, "p/%d.md" % number, '---\nid: "abcdef%d"\n---\n# N\n\nzebra\n' % number)
    done = shelf.run("get", "abcdef", check=False)
    assert "2 memories" in done.stderr and "p/1.md, p/2.md" in done.stderr
    assert "zebra" in shelf.run("get", "abcdef2").stdout


# ---- save and list


def test_a_saved_note_is_found_and_saved_once(box):
    first = box.run("save", "Deploys only on Tuesdays", "--title", "Deploys")
    again = box.run("save", "Deploys only on Tuesdays", "--title", "Deploys")
    assert first.stdout == again.stdout and ("Saved" in first.stderr, "Known already" in again.stderr) == (True, True)
    found = results(box, "when do we deploy")
    assert len(found) == 1 and found[0]["id"] == first.stdout.strip() and found[0]["source"] == "memory" and found[0]["title"] == "Deploys"


def test_a_note_is_known_by_its_whole_id(box):
    """Another note's id may begin with the same 8 characters, and its file may even have the name that this one would have."""
    id = box.run("save", "zebras are striped").stdout.strip()
    path = box.home / "memories" / only_path(box, "zebras")
    other = path.read_text("utf-8").replace(id, id[:9] + "0000-5000-8000-000000000000").replace("zebras", "walruses")
    path.write_text(other, "utf-8")
    for told in ("Saved.", "Known already."):
        done = box.run("save", "zebras are striped")
        assert done.stdout.strip() == id and told in done.stderr
    assert path.read_text("utf-8") == other and "zebras are striped" in box.run("get", id).stdout


def test_a_note_comes_from_stdin_and_its_secrets_do_not(box):
    done = subprocess.run(["/bin/sh", "-c", 'printf "The key is %s and zebras" ghp_012345678901234567890123456789abcdef | "$@"', "sh", box.python, str(memhook.__file__), "save", "-"],
                          env=box.env, cwd=box.project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = box.run("get", done.stdout.strip()).stdout
    assert "zebras" in text and "ghp_0123" not in text and "[redacted:" in text and holding(box, "ghp_0123") == []


def test_save_says_what_it_replaced_and_says_nothing_of_what_was_replaced_before(box):
    said = box.run("save", "zebras: ann@quuxington.com <private>not this</private> [redacted:jwt]", "--title", "ghp_012345678901234567890123456789abcdef").stderr
    assert said == "Saved.\nWhat is private, or looks like a secret, was replaced by [private], [redacted:email], [redacted:github-token].\n"
    assert box.run("save", "zebras: [redacted:email]").stderr == "Saved.\n"


@pytest.mark.parametrize("given, kept", [(r"printf 'zebras \303\274ben'", "zebras \u00fcben"), (r"printf 'zebras \374ben'", "zebras \ufffdben")], ids=["UTF-8", "Latin-1"])
@pytest.mark.parametrize("locale", ["C", "C.UTF-8", "de_DE.ISO-8859-1"])
def test_a_note_from_stdin_is_utf8_whatever_the_locale_and_what_is_none_is_no_bug(box, given, kept, locale):
    done = subprocess.run(["/bin/sh", "-c", given + ' | "$@"', "sh", box.python, str(memhook.__file__), "save", "-"],
                          env={**box.env, "LC_ALL": locale}, cwd=box.project, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert kept in box.run("get", done.stdout.strip()).stdout


def test_a_note_from_a_closed_stdin_is_an_empty_one(box):
    done = subprocess.run(["/bin/sh", "-c", '"$@" <&-', "sh", box.python, str(memhook.__file__), "save", "-"], env=box.env, cwd=box.project, capture_output=True, text=True)
    assert done.returncode == 2 and "the note is empty" in done.stderr


def test_an_empty_note_and_one_without_consent_are_refused(box, tmp_path):
    assert box.run("save", "  ", check=False).returncode == 2
    box.run("pause")
    box.run("uninstall")
    assert box.run("save", "text", check=False).returncode == 1


def test_list_is_by_day_of_this_project_or_all(shelf):
    key = memhook.this_project(shelf.api, str(shelf.project))
    for project, day, title in ((key, "2026-01-01", "First"), (key, "2026-01-02", "Second"), ("/else", "2026-01-03", "Third")):
        write(shelf, "%s/%s.md" % (memhook.slug(project), title), '---\nproject: "%s"\nfrom: "%sT08:00:00.000Z"\n---\n# %s\n\ntext\n' % (project, day, title))
    listed = shelf.run("list").stdout
    assert re.findall(r"2026-01-0\d|First|Second|Third", listed) == ["2026-01-02", "Second", "2026-01-01", "First"]
    assert "Third" in shelf.run("list", "--all").stdout and "First" not in shelf.run("list", "--since", "2026-01-02T00:00:00Z").stdout
    assert [memory["title"] for memory in json.loads(shelf.run("list", "--json").stdout)["memories"]] == ["Second", "First"]
    write(shelf, "team/x.md", '---\nproject: "team"\nkind: "team"\nfrom: "2026-01-04T08:00:00.000Z"\n---\n# Theirs\n\ntext\n')
    assert "Theirs  (team)\n" in shelf.run("list").stdout  # as search shows them


# ---- forget


def test_forget_leaves_no_byte_of_it_in_the_home_and_says_where_it_was(box):
    script = talk(box, "session-0001", "Tell me: " + SECRET, "I see that " + SECRET)
    talk(box, "session-0002", "What about the zebra?", "It is fine.")
    assert holding(box, "xylophone") and results(box, "xylophone")
    receipt = json.loads(box.run("forget", only_id(box, "xylophone"), "--json").stdout)["forgotten"][0]
    assert receipt["removed"]["memory"] == 1 and receipt["removed"]["index"] >= 2
    assert any(str(script.path) in place for place in receipt["kept"]) and any("backups" in place for place in receipt["kept"])
    assert holding(box, "xylophon", "quuxington", "zeppelin") == []
    assert results(box, "xylophone contract") == [] and "fine" in str(results(box, "zebra"))
    assert not (box.home / "index.db-wal").exists() or (box.home / "index.db-wal").stat().st_size == 0


def test_several_memories_are_forgotten_with_one_vacuum_and_each_has_its_receipt(box):
    for number in range(3):
        talk(box, "session-%04d" % number, *["Tell me of zebra %d: " % number + SECRET, "I see."] * (number + 1))

    def units(index):
        counted = "SELECT memory, count(*) FROM files JOIN chunks ON chunks.file = files.id GROUP BY memory"
        return dict(index.db.execute(counted)), index.db.execute("PRAGMA schema_version").fetchone()[0]

    before, vacuums = memhook.with_index(box.api, units)
    *gone, left = sorted(before)
    receipts = memhook.forget(box.api, [*gone, gone[0]])
    assert {receipt["id"]: receipt["removed"]["index"] for receipt in receipts} == {id: before[id] for id in gone} and len(receipts) == 2
    assert memhook.with_index(box.api, units) == ({left: before[left]}, vacuums + 1), "each VACUUM adds one to the number"
    assert len((box.home / "tombstones.jsonl").read_bytes().splitlines()) == 2


def test_forget_says_what_it_forgets(box):
    talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    id = only_id(box, "xylophone")
    shown = box.run("forget", id).stdout
    assert shown.startswith("Forgot %s: Tell me: " % id) and "\n    from %s/" % (box.home / "memories") in shown


@pytest.mark.parametrize("text", ["<private>x</private>", " <private>x", "<private>a</private> <private>b</private>", "ghp_" + "a1B2" * 9])
def test_a_note_of_which_nothing_would_be_kept_is_refused(box, text):
    done = box.run("save", text, check=False)
    assert done.returncode == 2 and "the note is empty: what is private or redacted is not kept" in done.stderr and box.memories() == []


def test_forget_empties_the_words_of_the_full_text(box):
    talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    box.run("forget", only_id(box, "xylophone"))
    with memhook.open_index(box.api) as index:
        assert index.db.execute("SELECT term FROM vocabulary WHERE term GLOB 'xylo*' OR term GLOB 'zeppel*'").fetchall() == []
        assert index.db.execute("SELECT count(*) FROM chunks WHERE text LIKE '%xylophone%'").fetchone() == (0,)


def test_forget_takes_it_out_of_the_spool_the_dead_letters_and_open_checkpoints(box):
    script = box.script("session-0001")
    script.prompt("Tell me: " + SECRET)
    script.answer("I see. " + SECRET)
    box.hook("SessionEnd", script)
    new = box.home / "spool" / "new"
    item = next(new.iterdir())
    copy, name = item.read_bytes(), item.name
    box.drain()
    shutil.rmtree(box.home / "seen")  # then the resumed session's lines are taken again
    for state in ("new", "dead"):
        (box.home / "spool" / state).mkdir(exist_ok=True)
        (box.home / "spool" / state / name).write_bytes(copy)
    fork = box.script("session-0002")
    fork.path.write_bytes(script.path.read_bytes().replace(b"session-0001", b"session-0002"))
    for path in (box.home / "checkpoints").iterdir():
        path.unlink()
    box.hook("Stop", fork)
    assert len(holding(box, "xylophone")) >= 4
    receipt = json.loads(box.run("forget", only_id(box, "xylophone"), "--json").stdout)["forgotten"][0]
    assert receipt["removed"]["spool"] == 4 and receipt["removed"]["checkpoints"] == 2
    assert holding(box, "xylophon") == []


def again(box):
    """Everything that could bring a memory back; -> the files that hold it now."""
    box.run("import", "--yes")
    box.drain()
    box.run("reindex")
    return holding(box, "xylophon")


def test_what_was_forgotten_does_not_come_back_by_import_reindex_or_a_lost_checkpoint(box):
    talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    box.run("forget", only_id(box, "xylophone"))
    assert again(box) == []
    shutil.rmtree(box.home / "checkpoints")
    shutil.rmtree(box.home / "seen")
    assert again(box) == []
    (box.home / "index.db").unlink()
    assert results(box, "xylophone") == [] and json.loads(box.run("verify", "--json").stdout)["totals"]["forgotten"] == 2


def test_it_does_not_come_back_by_a_resumed_session(box):
    script = talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    box.run("forget", only_id(box, "xylophone"))
    script.prompt("And the zebra?")
    script.answer("Fine.")
    box.hook("Stop", script)
    box.hook("SessionEnd", script)
    box.drain()
    assert holding(box, "xylophon") == [] and results(box, "zebra")


def test_it_does_not_come_back_by_a_fork_that_is_cut_differently(box):
    script = talk(box, "session-0001", "Tell me: " + SECRET, "I see.", "And more?", "No.")
    box.run("forget", only_id(box, "xylophone"))
    fork = Script(box.config / "projects" / "p" / "session-0009.jsonl", box.project, "session-0009")
    lines = [json.loads(line) for line in script.path.read_text("utf-8").splitlines()]
    fork.prompt("A preface " * 400)
    for line in lines[:3]:  # the history as a fork copies it; then with new uuids, as a rewritten file has it
        fork.add({**line, "sessionId": "session-0009"})
    fork.add({**lines[0], "sessionId": "session-0009", "uuid": "other-0001"})
    fork.answer("An epilogue.")
    box.hook("SessionEnd", fork)
    box.drain()
    assert holding(box, "xylophon") == [] and results(box, "epilogue")


def test_the_same_words_said_again_later_are_new(box):
    said = "Please run the full test suite, fix whatever fails, and commit everything with a good message.", "It is done: %s" % SECRET * 3
    talk(box, "session-0001", *said)
    box.run("forget", only_id(box, "commit"))
    script = box.script("session-0002", time.time() + 60)
    for _ in range(2):  # in another session, and once more in it
        script.prompt(said[0])
        script.answer(said[1])
        box.hook("SessionEnd", script)
        box.drain()
    assert [[turn.text for turn in memory.turns] for memory in box.memories()] == [list(said)] * 2
    totals = json.loads(box.run("verify", "--json").stdout)["totals"]
    assert (totals["stored"], totals["forgotten"], totals["missing"], totals["repeated"]) == (4, 2, 0, 0)


def test_a_crash_after_the_tombstone_brings_nothing_back(box):
    """The tombstone is the first write; whatever comes after may be missing."""
    talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    memory = next(box.home.glob("memories/*/*/*.md"))
    saved = memory.read_bytes()
    box.run("forget", only_id(box, "xylophone"))
    memory.write_bytes(saved)  # as if the process had been killed before this
    box.run("forget", only_id(box, "xylophone"))
    assert holding(box, "xylophon") == []


def test_an_index_that_is_in_use_keeps_forget_from_no_other_place(box, monkeypatch):
    script = talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    id = only_id(box, "xylophone")
    with open(script.path, "rb") as stream:
        lines = [json.loads(line) for line in stream]
    other = Script(box.config / "projects" / "p" / "session-0002.jsonl", box.project, "session-0002")
    other.add({**lines[0], "sessionId": "session-0002", "uuid": "other-0001"})
    box.hook("Stop", other)
    assert holding(box, "xylophon") != []
    monkeypatch.setattr(memhook, "BUSY_SECONDS", 0.2)
    db = sqlite3.connect(box.home / "index.db", isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    with pytest.raises(memhook.IndexUnavailable):
        memhook.forget(box.api, [id])
    db.close()
    assert not [name for name in holding(box, "xylophon") if not name.startswith("index.db")]
    assert results(box, "xylophone") == []


def test_forget_names_what_it_cannot_find_and_forgets_nothing_then(box):
    talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    done = box.run("forget", "gone", only_id(box, "xylophone")[:8], "00000000", check=False)
    assert done.returncode == 1 and "nothing was forgotten: no memory gone; no memory 00000000" in done.stderr and results(box, "xylophone")


@pytest.mark.parametrize("command", ["get", "forget"])
def test_of_an_id_that_was_forgotten_it_is_said_and_when(box, command):
    id = box.run("save", "zebras are striped").stdout.strip()
    box.run("forget", id)
    done = box.run(command, id[:8], check=False)
    assert done.returncode == 1 and "no memory %s: it was forgotten on %s" % (id[:8], memhook.iso(time.time())[:10]) in done.stderr
    with open(box.home / "tombstones.jsonl", "a") as tombstones:
        tombstones.write('{"at":"2026-01-01T00:00:00.000Z","memory":"abcd0000","by":"team"}\n{"memory":7}\n')
    assert "no memory abcd: it was taken back by the team on 2026-01-01" in box.run(command, "abcd", check=False).stderr


def test_a_note_without_front_matter_can_be_forgotten(box):
    write(box, "p/own.md", "# Own\n\n%s\n" % SECRET)
    id = only_id(box, "xylophone")
    assert box.run("forget", id).stdout.startswith("Forgot %s: Own\n" % id)
    assert holding(box, "xylophon") == []


def test_a_saved_note_that_was_forgotten_can_be_saved_again(box):
    id = box.run("save", "zebras are striped").stdout.strip()
    box.run("forget", id)
    assert box.run("save", "zebras are striped").stdout.strip() == id and results(box, "zebras")


def test_the_printed_receipt_is_for_a_person(box):
    script = talk(box, "session-0001", "Tell me: " + SECRET, "I see.")
    shown = box.run("forget", only_id(box, "xylophone")).stdout
    assert "removed: memory 1" in shown and "not ours to erase: Claude Code's own transcript: %s" % script.path in shown and "I see." not in shown


def test_forget_names_the_teams_hub_only_where_it_may_have_some_of_it(box):
    ids = [box.run("save", "zebra %d is striped" % number).stdout.strip() for number in range(3)]
    (box.home / "team.json").write_text('{"url": "http://hub.example:8377"}')
    assert "hub" not in box.run("forget", ids[0]).stdout, "nothing was ever proposed"
    (box.home / "outbox").mkdir()
    assert "if you proposed it: what the team's hub http://hub.example:8377 has of it" in box.run("forget", ids[1]).stdout
    (box.home / "team.json").unlink()
    assert "if you proposed it: what the team's hub (that you left) has of it" in box.run("forget", ids[2]).stdout
    write(box, "team/x.md", '---\nid: "aaaaaaaa-0000-5000-8000-000000000000"\nkind: "team"\nhub: "http://h.example"\n---\n# Theirs\n')
    assert "not ours to erase: what the team's hub http://h.example has of it" in box.run("forget", "aaaaaaaa").stdout


def test_forget_names_a_copy_that_has_the_same_id_and_how_to_forget_it_too(box):
    text = '---\nid: "aaaaaaaa-0000-5000-8000-000000000000"\n---\n# Note\n\nThe zebra is striped.\n'
    for name in ("own", "a copy", "other"):
        write(box, "p/%s.md" % name, text)
    refused = box.run("forget", "aaaaaaaa", check=False)
    assert refused.returncode == 1 and "p/own.md" in refused.stderr
    shown = box.run("forget", "p/own.md").stdout
    assert shown.endswith("same id; to forget that too: memhook forget 'p/a copy.md' p/other.md\n")
    receipts = json.loads(box.run("forget", "p/a copy.md", "p/other.md", "--json").stdout)["forgotten"]
    assert [receipt["copies"] for receipt in receipts] == [[], []] and not results(box, "zebra")
