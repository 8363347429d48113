"""Whatever happens to the index, a search finds what the Markdown says, or says in one line why it cannot; never a traceback."""
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest
from conftest import PROGRAM, heeding_modes, memhook
from test_index import found, write


@pytest.fixture
def store(shelf):
    """A store with 30 memories, indexed."""
    for number in range(30):
        write(shelf, "p/%02d.md" % number, "# Note %d\n\nThe zebra number%d eats grass.\n\n%s\n" % (number, number, "filler " * 200))
    assert len(found(shelf, "zebra")) == 10
    return shelf


def check(shelf):
    """A search as a person makes it finds what it should, and leaves a whole index."""
    done = shelf.run("search", "--all", "number17")
    assert "number17" in done.stdout and "Traceback" not in done.stderr
    with sqlite3.connect(shelf.home / "index.db") as db:
        assert db.execute("SELECT count(*) FROM chunks WHERE id IN (SELECT rowid FROM chunks_fts WHERE chunks_fts MATCH 'zebra')").fetchone()[0] >= 30
    db.close()


@pytest.mark.parametrize("keep", [0, 50, 3_000, 4_096, 9_000, 60_000])
def test_a_truncated_database_is_made_anew(store, keep):
    data = (store.home / "index.db").read_bytes()
    assert len(data) > 60_000
    (store.home / "index.db").write_bytes(data[:keep])
    check(store)


def test_garbage_in_the_place_of_the_database_is_made_anew(store):
    (store.home / "index.db").write_bytes(os.urandom(20_000))
    check(store)


def test_garbage_in_the_middle_of_the_database_is_made_anew(store):
    data = bytearray((store.home / "index.db").read_bytes())
    data[4_096:] = os.urandom(len(data) - 4_096)
    (store.home / "index.db").write_bytes(data)
    check(store)


def test_garbage_in_the_full_text_is_made_anew(store):
    with sqlite3.connect(store.home / "index.db") as db:
        db.execute("UPDATE chunks_fts_data SET block = randomblob(length(block))")
    db.close()
    check(store)


def test_a_full_text_without_its_rows_is_noticed_by_reindex(store):
    with sqlite3.connect(store.home / "index.db") as db:
        db.execute("DELETE FROM chunks_fts_docsize")
    db.close()
    store.run("reindex")
    check(store)


def test_a_folder_in_the_place_of_the_database_is_replaced(store):
    (store.home / "index.db").unlink()
    (store.home / "index.db" / "x").mkdir(parents=True)
    check(store)


def test_a_database_of_another_version_is_made_anew(store):
    with sqlite3.connect(store.home / "index.db") as db:
        db.execute("UPDATE meta SET value = '999' WHERE key = 'format'")
        db.execute("DROP TABLE chunks")
    db.close()
    check(store)


def test_a_database_that_lost_its_log_is_caught_up(store):
    with memhook.open_index(store.api) as index:
        write(store, "p/new.md", "# New\n\nA number31 zebra.\n")
        index.sync()
        saved = (store.home / "index.db").read_bytes()  # what is only in the log is not there
    for name in ("index.db-wal", "index.db-shm"):
        if (store.home / name).exists():
            (store.home / name).unlink()
    (store.home / "index.db").write_bytes(saved)
    check(store)
    assert found(store, "number31") == ["p/new.md"]


def test_a_log_of_another_database_beside_ours_harms_nothing(store):
    (store.home / "index.db-wal").write_bytes(os.urandom(9_000))
    check(store)


def run_with(prefix, box, *args):
    return subprocess.run([*prefix, sys.executable, "-I", "-S", "-B", "-c", memhook.BOOT, str(PROGRAM), *args],
                          env=box.env, cwd=box.project, capture_output=True, text=True, timeout=60)


def search_with(prefix, box, word):
    return run_with(prefix, box, "search", "--all", word)


@pytest.mark.parametrize("beside", ["log", "nothing"])
def test_in_a_home_that_cannot_be_written_the_index_is_read_as_it_is(store, beside):
    """Beside the database: a log with the last changes, as a process that was killed leaves it, or nothing."""
    prefix = heeding_modes()
    if beside == "log":
        write(store, "p/late.md", "# Late\n\nnumber77\n")
        subprocess.run([sys.executable, "-c", "import os, sys; sys.path.insert(0, sys.argv[1]); import memhook\n"
                        "index = memhook.open_index(memhook.Home(dict(os.environ))); index.sync(); os._exit(0)", str(PROGRAM.parent)], env=store.env, check=True)
        assert (store.home / "index.db-wal").stat().st_size
    os.chmod(store.home, 0o500)
    try:
        done = search_with(prefix, store, "number77" if beside == "log" else "number17")
    finally:
        os.chmod(store.home, 0o700)
    assert done.returncode == 0 and "number" in done.stdout, done.stderr
    assert "as it was" in done.stderr


def test_in_a_home_that_cannot_be_written_and_has_no_index_the_memories_are_read(store):
    prefix = heeding_modes()
    (store.home / "index.db").unlink()
    os.chmod(store.home, 0o500)
    try:
        done = search_with(prefix, store, "number17")
    finally:
        os.chmod(store.home, 0o700)
    assert done.returncode == 0 and "number17" in done.stdout, done.stderr
    assert not (store.home / "index.db").exists()


@pytest.mark.parametrize("place, mode", [(".", 0o500), ("index.db", 0o400)])
def test_reindex_says_that_an_index_is_read_only_and_changes_nothing(store, place, mode):
    prefix = heeding_modes()
    before = (store.home / "index.db").read_bytes()
    os.chmod(store.home / place, mode)
    try:
        done = run_with(prefix, store, "reindex")
    finally:
        os.chmod(store.home / place, 0o700)
    assert done.returncode == 1 and done.stderr.startswith("memhook: the index is read-only: %s\n" % (store.home / "index.db"))
    assert (store.home / "index.db").read_bytes() == before


def test_a_read_only_connection_searches_and_says_so(store):
    with memhook.open_index(store.api) as index:
        index.read_only = "it is as it was"
        assert index.sync() == 0 and "as it was" in index.refresh()
        assert memhook.Searcher(index, memhook.Scope()).ranked("number17", 3)


NO_FTS5 = """
import sqlite3, sys
real = sqlite3.connect
class Connection(sqlite3.Connection):
    def execute(self, statement, *values):
        if "fts5" in statement:
            raise sqlite3.OperationalError("no such module: fts5")
        return super().execute(statement, *values)
sqlite3.connect = lambda *args, **options: real(*args, factory=Connection, **options)
sys.path.insert(0, sys.argv.pop(1))
import memhook
sys.exit(memhook.main(sys.argv[1:]))
"""


def test_without_fts5_words_are_matched_one_by_one_with_a_notice(shelf):
    write(shelf, "p/a.md", "# Deploys\n\nOnly on Tuesdays, by Quentin.\n")
    write(shelf, "p/b.md", "# Lunch\n\nEvery day.\n")
    done = subprocess.run([sys.executable, "-B", "-c", NO_FTS5, str(PROGRAM.parent), "search", "--all", "when does Quentin deploy"],
                          env=shelf.env, cwd=shelf.project, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Quentin" in done.stdout and "Lunch" not in done.stdout, done.stderr
    assert "no FTS5" in done.stderr


def test_without_fts5_an_empty_query_finds_nothing_either(shelf):
    write(shelf, "p/a.md", "# Deploys\n\nOnly on Tuesdays, by Quentin.\n")
    done = subprocess.run([sys.executable, "-B", "-c", NO_FTS5, str(PROGRAM.parent), "search", "--all", " "],
                          env=shelf.env, cwd=shelf.project, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


HOLD = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA locking_mode = EXCLUSIVE")
db.execute("BEGIN EXCLUSIVE")
db.execute("UPDATE meta SET value = value")
print("held", flush=True)
time.sleep(3)
db.execute("COMMIT")
"""


def test_eight_searchers_find_it_while_a_drain_writes_and_another_process_holds_the_database(store):
    store.install()
    script = store.script()
    for number in range(20):
        script.prompt("Tell me of lion%d" % number)
        script.answer("It is the lion number %d. " % number + "roar " * 300)
    store.hook("SessionEnd", script)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(store.home / "index.db")], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    start = [sys.executable, "-I", "-S", "-c", memhook.BOOT, str(PROGRAM)]
    drain = subprocess.Popen([*start, "drain"], env=store.env, cwd=store.project, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    searchers = [subprocess.Popen([*start, "search", "--all", "number%d" % number], env=store.env, cwd=store.project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                 for number in range(8)]
    for number, searcher in enumerate(searchers):
        out, err = searcher.communicate(timeout=120)
        assert searcher.returncode == 0 and b"number%d" % number in out, err
    assert drain.wait(120) == 0 and holder.wait(60) == 0
    drain.stderr.close(), holder.stdout.close()
    assert any("session-0001" in result["session"] for result in memhook.search(store.api, "lion7", memhook.Scope(), 5)["results"])


class Meddler:
    """In the place of the embeddings: while a search is under way, another process takes out what it has found."""
    mode, notice = "text", ""

    def __init__(self, box, path):
        self.box, self.path = box, path

    def rerank(self, index, scope, hits):
        os.remove(self.path)
        with memhook.open_index(self.box.api) as other:
            other.sync()
        return hits


def test_what_goes_while_a_search_is_under_way_is_still_shown_by_it(shelf):
    path = write(shelf, "p/note.md", "# Note\n\nZebras are striped.\n")
    found = memhook.search(shelf.api, "zebras", memhook.Scope(), 5, meaning=Meddler(shelf, path))
    assert ["striped" in result["text"] for result in found["results"]] == [True]
    assert memhook.search(shelf.api, "zebras", memhook.Scope(), 5)["results"] == []


def test_two_processes_that_make_the_index_at_once_make_one(shelf):
    path = str(shelf.home / "index.db")
    one, other = memhook._connect(path), memhook._connect(path)  # both have found it empty
    for db in (one, other):
        memhook._create(db)
        assert memhook._usable(db) is not None
        db.close()


def test_a_database_held_for_too_long_is_told_in_one_line(store, monkeypatch):
    db = sqlite3.connect(store.home / "index.db", isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("UPDATE meta SET value = value")
    monkeypatch.setattr(memhook, "BUSY_SECONDS", 0.2)
    try:
        with pytest.raises(memhook.IndexUnavailable) as error:
            memhook.search(store.api, "zebra", memhook.Scope(), 5)
    finally:
        db.close()
    assert "in use" in str(error.value)


@pytest.mark.skipif(os.name == "nt", reason="there are no limits to set")
def test_reindex_on_a_full_disk_is_told_in_one_line_and_mended_by_the_next(store):
    import resource
    for number in range(400):
        write(store, "p/%d.md" % number, "# Note %d\n\n%s\n" % (number, " ".join("word%d" % (number * 97 + at) for at in range(200))))
    done = store.run("reindex", check=False, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)))
    assert done.returncode == 1 and done.stderr.startswith("memhook: the index could not be made") and "bug" not in done.stderr
    store.run("reindex")
    assert "Note 399" in store.run("search", "--all", "word%d" % (399 * 97)).stdout


def test_a_memory_of_ten_megabytes_is_indexed_in_units(shelf):
    write(shelf, "p/big.md", "# Big\n\n" + "\n".join("line %d of many, all alike but for the number" % number for number in range(200_000)) + "\n\nneedleword\n")
    started = time.perf_counter()
    assert found(shelf, "needleword") == ["p/big.md"]
    assert time.perf_counter() - started < 120
    result = memhook.search(shelf.api, "needleword", memhook.Scope(), 1)["results"][0]
    assert len(result["text"]) < 4_000


@pytest.mark.parametrize("data", [
    b"# Bad\n\n\xff\xfe zebra \xc3\x28\n", b"---\nid: {\nproject: [1, 2\n---\n# Zebra\n\nzebra\n", b"---\nsegment: 99999999999999999999999\nat: 7\nsession: [1]\n---\n# Z\n\nzebra\n",
    b"---\nno end of front matter\n\nzebra\n", b"zebra", b"\xef\xbb\xbf# Zebra\r\n\r\nzebra\r\n", b"---\nid: \"\\ud800\"\nproject: \"\\ud800\"\n---\n# \x00 zebra\n",
    b"# Z\n\n## Transcript\n<!-- turn k prompt - 1-2 -->\nzebra\n<!-- turn broken\nzebra\n", b"# Z\n\nzebra " + b"x" * 300_000 + b"\n",
])
def test_whatever_a_file_in_the_store_holds_it_is_found_and_hides_no_other(shelf, data):
    write(shelf, "p/odd.md", data)
    write(shelf, "p/plain.md", "# Plain\n\nA zebra as well.\n")
    assert set(found(shelf, "zebra")) == {"p/odd.md", "p/plain.md"}
    shelf.run("search", "--all", "zebra")


def test_a_link_that_leads_out_of_the_store_is_not_followed(shelf):
    outside = shelf.root / "outside.md"
    outside.write_text("# Secret\n\nzebra\n")
    inside = write(shelf, "p/inside.md", "# Inside\n\nlion\n")
    (inside.parent / "link.md").symlink_to(outside)
    (inside.parent / "folder").symlink_to(shelf.root)
    (inside.parent / "dangling.md").symlink_to(shelf.root / "nothing.md")
    (inside.parent / "alias.md").symlink_to(inside)
    assert found(shelf, "zebra") == []
    names = {path.split("/")[-1] for path in found(shelf, "lion")}
    assert names and names <= {"inside.md", "alias.md"}


def test_a_store_whose_folder_has_gone_is_empty_not_an_error(shelf):
    write(shelf, "p/a.md", "# A\n\nzebra\n")
    assert found(shelf, "zebra")
    shutil.rmtree(shelf.home / "memories")
    assert found(shelf, "zebra") == []


@pytest.fixture
def latin(shelf):
    """A store in which two names, and the name of a folder, are no UTF-8."""
    write(shelf, "p/plain.md", "# Plain\n\nThe zebra.\n")
    for name in (b"p/caf\xe9.md", b"\xe9t\xe9/caf\xe8.md"):
        place = os.path.join(os.fsencode(shelf.home / "memories"), name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "wb") as stream:
            stream.write(b"The zebra drinks coffee, %d.\n" % len(name))
    return shelf


@pytest.mark.skipif(sys.platform != "linux", reason="this file system takes no such name")
def test_a_file_whose_name_is_no_utf_8_is_found_shown_listed_and_forgotten_like_any_other(latin):
    assert sorted(found(latin, "zebra")) == ["\\udce9t\\udce9/caf\\udce8.md", "p/caf\\udce9.md", "p/plain.md"]
    assert len(latin.run("list", "--all").stdout.splitlines()) == 4  # and their day
    assert latin.run("doctor", check=False).returncode in (0, 4)
    latin.run("drain")
    latin.run("reindex")
    for name in ("\\udce9t\\udce9/caf\\udce8.md", "p/caf\\udce9.md", b"p/caf\xe9.md"):
        got = json.loads(latin.run("get", os.fsdecode(name), "--json").stdout)
        assert "coffee" in got["text"] and "coffee" in latin.run("get", got["id"]).stdout
    receipt = json.loads(latin.run("forget", got["id"], "--json").stdout)["forgotten"][0]
    assert receipt["removed"]["index"] == 1 and receipt["path"].endswith("p/caf\\udce9.md")
    assert len(found(latin, "zebra")) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="this file system takes no such name")
def test_names_that_are_no_utf_8_and_names_that_look_like_those_are_told_apart(shelf):
    folder = os.fsencode(shelf.home / "memories")
    names = [b"caf\xe9.md", b"caf\\udce9.md", b"caf\xe9\\udce9.md", b"caf\\udc5cudce9.md"]
    os.makedirs(folder)
    for number, name in enumerate(names):
        with open(os.path.join(folder, name), "wb") as stream:
            stream.write(b"The zebra number%d.\n" % number)
    for number, name in enumerate(names):
        (path,) = found(shelf, "number%d" % number)
        assert "number%d" % number in shelf.run("get", path).stdout
        assert os.fsencode(memhook.named_file(os.fsdecode(folder), path)) == os.path.join(folder, name)
