"""The index follows the Markdown: what is edited, added, moved or deleted by hand is found as it is now."""
import os
import stat

import pytest
from conftest import memhook


def write(shelf, path, text):
    place = shelf.home / "memories" / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(text if isinstance(text, bytes) else text.encode())
    return place


def found(shelf, query, **scope):
    return [result["path"] for result in memhook.search(shelf.api, query, memhook.Scope(**scope), 10)["results"]]


def indexed(shelf, statement="SELECT count(*) FROM chunks"):
    with memhook.open_index(shelf.api) as index:
        return index.db.execute(statement).fetchall()


def test_a_memory_put_into_the_store_by_hand_is_found(shelf):
    write(shelf, "p/notes.md", "# Deploys\n\nOnly on Tuesdays, by Quentin.\n")
    assert found(shelf, "quentin") == ["p/notes.md"]


def test_an_edited_memory_is_found_by_its_new_words_only(shelf):
    place = write(shelf, "p/notes.md", "# Deploys\n\nOnly on zebras.\n")
    assert found(shelf, "zebras")
    place.write_text("# Deploys\n\nOnly on giraffes, as of now.\n")
    assert (found(shelf, "giraffes"), found(shelf, "zebras")) == (["p/notes.md"], [])


def test_an_edit_that_changes_neither_size_nor_words_is_not_indexed_anew(shelf):
    place = write(shelf, "p/notes.md", "# A\n\nzebras\n")
    found(shelf, "zebras")
    before = indexed(shelf, "SELECT id FROM files")
    os.utime(place, (1, 1))
    with memhook.open_index(shelf.api) as index:
        index.sync()
    assert indexed(shelf, "SELECT id FROM files") == before and indexed(shelf, "SELECT mtime_ns FROM files") == [(10 ** 9,)]


def test_an_edit_of_the_same_size_is_noticed_by_its_time(shelf):
    place = write(shelf, "p/notes.md", "# A\n\nzebras\n")
    found(shelf, "zebras")
    place.write_text("# A\n\ngirafs\n")
    assert (found(shelf, "girafs"), found(shelf, "zebras")) == (["p/notes.md"], [])


def test_a_moved_memory_is_found_once_at_its_new_place(shelf):
    place = write(shelf, "p/notes.md", "# A\n\nzebras\n")
    found(shelf, "zebras")
    place.rename(place.with_name("other.md"))
    assert found(shelf, "zebras") == ["p/other.md"]


def test_a_deleted_memory_leaves_nothing_in_any_table(shelf):
    place = write(shelf, "p/notes.md", "# A\n\nzebras\n")
    found(shelf, "zebras")
    place.unlink()
    assert found(shelf, "zebras") == []
    assert [indexed(shelf, "SELECT count(*) FROM " + table)[0][0] for table in ("files", "chunks", "vocabulary")] == [0, 0, 0]


def test_units_of_a_digest_end_at_headings_and_overlap(shelf):
    long = "\n".join("Sentence %d tells of thing number %d in a few words." % (number, number) for number in range(120))
    write(shelf, "p/notes.md", "# Top\n\nintro\n\n## Part one\n\n%s\n\n## Part two\n\nshort\n" % long)
    found(shelf, "intro")
    units = indexed(shelf, "SELECT head, start_line, end_line, text FROM chunks ORDER BY start_line")
    parts = [unit for unit in units if unit[0] == "Part one"]
    assert [unit[0] for unit in units][::len(units) - 1] == ["Top", "Part two"] and len(parts) > 3
    assert all(memhook.count_tokens(unit[3]) <= 400 for unit in units)
    assert all(later[1] <= earlier[2] for earlier, later in zip(parts, parts[1:])), "no overlap"


def test_a_heading_in_a_code_fence_opens_nothing():
    lines = ["# A", "```", "# not a heading", "```", "## B", "text"]
    assert [(first, heading) for first, _, heading in memhook.heading_sections(lines, 1)] == [(1, "A"), (5, "B")]


def test_a_turn_is_a_unit_with_its_lines(shelf):
    shelf.install()
    script = shelf.script()
    script.prompt("What eats zebras?")
    script.answer("Lions.\n\nAnd crocodiles.")
    shelf.hook("SessionEnd", script)
    shelf.drain()
    found(shelf, "zebras")
    memory = next(shelf.home.glob("memories/*/*/*.md"))
    lines = memory.read_text().split("\n")
    units = indexed(shelf, "SELECT text, start_line, end_line FROM chunks WHERE source = 'session'")
    assert len(units) == 2
    for text, start, end in units:
        assert "\n".join(lines[start - 1:end]).strip("\n") == text


def test_the_drain_leaves_nothing_for_the_next_search_to_index(shelf):
    shelf.install()
    script = shelf.script()
    script.prompt("What eats zebras?")
    script.answer("Lions.")
    shelf.hook("SessionEnd", script)
    shelf.drain()
    with memhook.open_index(shelf.api) as index:
        assert index.db.execute("SELECT count(*) FROM chunks WHERE text = 'Lions.'").fetchone() == (1,)
        assert index.sync() == 0


def test_the_index_is_private_whatever_the_umask(shelf):
    write(shelf, "p/notes.md", "# A\n\nzebras\n")
    old = os.umask(0)
    try:
        with memhook.open_index(shelf.api) as index:
            index.sync()
            modes = {name: stat.S_IMODE(os.stat(shelf.home / name).st_mode) for name in os.listdir(shelf.home) if name.startswith("index.db")}
    finally:
        os.umask(old)
    assert set(modes) >= {"index.db", "index.db-wal"} and set(modes.values()) == {0o600}


def test_foreign_keys_and_the_write_ahead_log_are_on(shelf):
    with memhook.open_index(shelf.api) as index:
        assert index.db.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert index.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_the_tables_are_there_with_that_of_embeddings(shelf):
    names = {name for (name,) in indexed(shelf, "SELECT name FROM sqlite_master")}
    assert names >= {"meta", "files", "chunks", "chunks_fts", "embedding_cache"}


def test_reindex_makes_the_same_index_and_tells_how_many(shelf):
    for number in range(3):
        write(shelf, "p/%d.md" % number, "# Note %d\n\nzebras and %d lions\n" % (number, number))
    before = found(shelf, "zebras lions")
    (shelf.home / "index.db").write_bytes(b"")
    assert "Indexed 3 memories" in shelf.run("reindex").stderr
    assert found(shelf, "zebras lions") == before and len(before) == 3


def test_an_interrupted_rebuild_goes_on_where_it_was(shelf):
    for number in range(memhook.BATCH_FILES + 10):
        write(shelf, "p/%03d.md" % number, "# Note\n\nword%d\n" % number)

    def stop(done, total):
        raise KeyboardInterrupt
    with memhook.open_index(shelf.api) as index:
        with pytest.raises(KeyboardInterrupt):
            index.sync(stop)
    with memhook.open_index(shelf.api) as index:
        assert index.sync() == 10


def test_projects_are_ranges_of_ids_that_do_not_meet(shelf):
    for name in ("a", "b"):
        for number in range(3):
            write(shelf, "%s/%d.md" % (name, number), '---\nproject: "/%s"\n---\n# N\n\nzebra %d\n' % (name, number))
    found(shelf, "zebra")
    with memhook.open_index(shelf.api) as index:
        ranges = index.ids_of("/a", "/b")
        ids = {project: {id for (id,) in index.db.execute("SELECT chunks.id FROM chunks JOIN files ON files.id = file WHERE project = ?", (project,))} for project in ("/a", "/b")}
        assert index.ids_of("/c") == []
    assert len(ids["/a"]) == len(ids["/b"]) == 3
    assert sorted(all(low <= id <= high for id in ids[project]) for project, (low, high) in zip(("/a", "/b"), ranges)) == [True, True]


def test_a_store_without_projects_in_its_files_takes_that_of_the_folder(shelf):
    write(shelf, "p/a.md", '---\nproject: "/shop"\n---\n# A\n\nzebra\n')
    found(shelf, "zebra")
    write(shelf, "p/b.md", "# B\n\nlion\n")
    assert found(shelf, "lion", project="/shop") == ["p/b.md"]
