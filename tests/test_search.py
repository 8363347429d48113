"""Any text is a query, and the right memory comes back, with a word on how sure that is."""
import json
import os
import re
import subprocess
import sys

import pytest
import terminal
from conftest import PROGRAM, memhook
from test_index import write

SAID = """# Notes

## Configuration
The configuration lies in /etc/shop/checkout.toml and in ~/.config/shop.

## Loader
We renamed getUserById to load_user_record in src/api/users.py; parseHTTPResponse stays.

## Trouble
TypeError: Cannot read properties of undefined (reading 'total') at cart.js:41:7

## Versions
Node 20.11.1 breaks with webpack 5.90.0-beta.2; pinned in commit 3f9c2ab.

## Speech
El café de Ångström está cerrado. Grüße aus Zürich.

## 日本語
支払いのテストがCIで失敗した。丸め誤差が原因。

## 中文
我们把价格改成整数分，修复了checkout测试。

## 한국어
결제 테스트를 고쳤습니다. 데이터베이스가 느립니다.

## ไทย
การทดสอบล้มเหลวเพราะการปัดเศษ
"""

FINDS = {
    "a word": ("webpack", "Versions"), "a question": ("Where does the configuration lie?", "Configuration"), "a beginning": ("config", "Configuration"),
    "another form": ("configurations renaming", "Configuration"), "one typo": ("webpakc", "Versions"), "a typo in front": ("ebpack", "Versions"),
    "an identifier": ("getUserById", "Loader"), "its parts": ("get user by id", "Loader"), "a snake's parts": ("user record", "Loader"), "in another case": ("GETUSERBYID", "Loader"),
    "an acronym in it": ("http response", "Loader"), "joined otherwise": ("loadUserRecord", "Loader"),
    "a path": ("src/api/users.py", "Loader"), "a file's name": ("users.py", "Loader"), "an absolute path": ("/etc/shop/checkout.toml", "Configuration"),
    "an error message": ("TypeError: Cannot read properties of undefined (reading 'total')", "Trouble"), "a place in code": ("cart.js:41", "Trouble"),
    "a version": ("20.11.1", "Versions"), "a pre-release": ("5.90.0-beta.2", "Versions"), "a commit": ("3f9c2ab", "Versions"),
    "without accents": ("cafe angstrom", "Speech"), "with accents": ("CAFÉ", "Speech"), "an umlaut": ("zürich", "Speech"), "without the umlaut": ("Zurich grusse", "Speech"),
    "Japanese": ("丸め誤差", "日本語"), "two Japanese characters": ("誤差", "日本語"), "ASCII glued to Japanese": ("CIで失敗", "日本語"), "one character": ("丸", "日本語"),
    "Chinese": ("价格改成整数", "中文"), "two Chinese characters": ("整数", "中文"), "ASCII glued to Chinese": ("checkout测试", "中文"), "the ASCII alone": ("修复 checkout", "中文"),
    "Korean without its particle": ("테스트", "한국어"), "Korean with another particle": ("데이터베이스는", "한국어"), "Thai": ("ปัดเศษ", "ไทย"), "a Thai sentence": ("การทดสอบล้มเหลว", "ไทย"),
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    from conftest import Box
    box = Box(tmp_path_factory.mktemp("notes"))
    box.api.create()
    write(box, "p/notes.md", SAID)
    memhook.search(box.api, "x", memhook.Scope(), 1)
    return box


def results(box, query, limit=5, **scope):
    return memhook.search(box.api, query, memhook.Scope(**scope), limit)["results"]


@pytest.mark.parametrize("query, heading", FINDS.values(), ids=FINDS)
def test_it_is_found(notes, query, heading):
    first = results(notes, query)[0]
    assert "## " + heading in first["text"]


ODD = ["", " ", "\"", "\"\"\"", "'", "*", "**", "a*", "NEAR(", "NEAR(a b, 3)", "a AND", "OR", "NOT x", "-x", "x:y", "body: x", "{body meta} : x", "^x", "x + y", "(", ")", "()", ";", "%", "_",
       "\\", "\0", "a\0b", "\ud800", "🙂", "🙂 webpack", "x" * 50_000, "webpack " * 2_000, "the", "the of and", "\n\n", "--", "中", "zzallq", "\u200b", "a\u0301", "١٢٣", "ﬁ", "%s %d", "{}"]


@pytest.mark.parametrize("query", ODD, ids=lambda query: ascii(query[:20]))
def test_any_text_is_a_query(notes, query):
    found = memhook.search(notes.api, query, memhook.Scope(), 3)
    json.dumps(found).encode()
    assert isinstance(found["results"], list) and all(result["confidence"] in ("high", "low") for result in found["results"])


def test_a_query_among_odd_ones_still_finds(notes):
    assert "webpack" in results(notes, "🙂 \"webpack AND (")[0]["text"]


def test_about_something_never_stored_nothing_is_certain(notes):
    for query in ("kubernetes ingress timeout", "Wer hat den Drucker repariert", "getInvoiceTotals", "数据库备份"):
        assert not [result for result in results(notes, query) if result["confidence"] == "high"], query


# ---- what is searched


def save(box, project, day, text, session=""):
    front = '---\nproject: "%s"\nfrom: "%sT10:00:00.000Z"\nsession: "%s"\n---\n' % (project, day, session)
    write(box, "%s/%s.md" % (memhook.slug(project), memhook.slug(text)), front + "# %s\n\nAbout the zebra: %s\n" % (text, text))


def test_one_project_is_searched_or_all(shelf):
    save(shelf, "/a", "2026-01-01", "alpha")
    save(shelf, "/b", "2026-01-02", "beta")
    assert [result["title"] for result in results(shelf, "zebra", project="/a")] == ["alpha"]
    assert {result["title"] for result in results(shelf, "zebra")} == {"alpha", "beta"}
    assert results(shelf, "zebra", project="/c") == []


def test_a_teams_memories_are_found_from_every_project(shelf):
    save(shelf, "/a", "2026-01-01", "alpha")
    save(shelf, memhook.TEAM_PROJECT, "2026-01-02", "beta")
    assert {result["title"] for result in results(shelf, "zebra", project="/a")} == {"alpha", "beta"}


def test_since_leaves_out_what_is_older(shelf):
    save(shelf, "/a", "2026-01-01", "alpha")
    save(shelf, "/a", "2026-02-01", "beta")
    assert [result["title"] for result in results(shelf, "zebra", since=memhook.parse_since("2026-01-15"))] == ["beta"]


def test_since_leaves_out_a_turn_that_is_older_than_the_one_after_it(box):
    script = box.script()
    asked = script.prompt("Do giraffes sleep?")["timestamp"]
    told = script.answer("Giraffes sleep standing. " + "They are awake again after half an hour or so. " * 20)["timestamp"]
    box.hook("SessionEnd", script)
    box.drain()
    for since, texts in ((told, ["Giraffes sleep standing."]), (asked, ["Giraffes sleep standing.", "Do giraffes sleep?"])):
        found = results(box, "giraffes", source="session", since=memhook.parse_since(since))
        assert sorted(result["text"][:24].strip() for result in found) == sorted(text[:24] for text in texts), since


def test_since_is_a_date_a_time_or_a_span():
    week = memhook.now() - 7 * 86_400
    assert abs(memhook.parse_since("7d") - week) < 5 and abs(memhook.parse_since("1w") - week) < 5 and abs(memhook.parse_since("168h") - week) < 5
    assert memhook.parse_since("2026-01-31T10:00:00Z") == memhook.parse_time("2026-01-31T10:00:00.000Z") and memhook.parse_since("") == 0
    assert abs(memhook.parse_since("2026-01-31") - memhook.parse_time("2026-01-31T00:00:00.000Z")) <= 14 * 3_600  # local midnight
    for odd in ("yesterday", "7", "d", "2026-13-01", "-1d"):
        with pytest.raises(memhook.UsageError):
            memhook.parse_since(odd)


def test_source_tells_digests_from_what_was_said(box):
    script = box.script()
    script.prompt("Why does the zebra test fail?")
    script.answer("Because the zebra has too many stripes.")
    box.hook("SessionEnd", script)
    box.drain()
    for source, plural in (("session", "sessions"), ("memory", "memories")):
        found = results(box, "zebra", source=source)
        assert found and {result["source"] for result in found} == {source}
        shown = json.loads(box.run("search", "zebra", "--source", plural, "--json").stdout)
        assert [result["text"] for result in shown["results"]] == [result["text"] for result in found]
    assert box.run("search", "zebra", "--source", "dreams", check=False).returncode == 2


def test_an_answer_is_found_by_the_words_of_its_question(box):
    script = box.script()
    for subject in ("giraffe", "zebra", "lion"):
        script.prompt("Which colour has the %s in our logo?" % subject)
        script.answer("It is #%s." % {"giraffe": "ffcc00", "zebra": "000000", "lion": "cc8800"}[subject])
    box.hook("SessionEnd", script)
    box.drain()
    assert "#000000" in results(box, "logo colour zebra", source="session")[0]["text"]


def test_worktrees_and_subfolders_are_the_project_and_a_namesake_is_not(box):
    def git(folder, *args):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *args], cwd=folder, check=True, capture_output=True, env={**box.env, "HOME": str(box.user)})
    shop, other = box.root / "one" / "shop", box.root / "two" / "shop"
    for folder in (shop, other):
        folder.mkdir(parents=True)
        git(folder, "init", "-q")
        git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    git(shop, "worktree", "add", "-q", str(box.root / "tree"))
    (shop / "src" / "deep").mkdir(parents=True)
    box.run("save", "The zebra is ours", cwd=shop)
    for folder, there in ((shop / "src" / "deep", True), (box.root / "tree", True), (other, False), (box.project, False)):
        assert ("zebra is ours" in box.run("search", "zebra", cwd=folder).stdout) == there, folder
    assert "zebra is ours" in box.run("search", "zebra", "--all", cwd=other).stdout


# ---- what is printed

KEYS = ["query", "mode", "results"]
RESULT = {"id", "path", "start_line", "end_line", "score", "text_score", "vector_score", "title", "text", "project", "session", "segment", "at", "source", "confidence", "content_hash"}


def test_json_has_the_keys_that_were_promised(notes):
    found = json.loads(notes.run("search", "--all", "webpack", "--json").stdout)
    assert list(found) == KEYS and found["mode"] == "text"
    result = found["results"][0]
    assert set(result) == RESULT and result["vector_score"] is None
    lines = (notes.home / "memories" / result["path"]).read_text("utf-8").split("\n")
    assert result["text"] in "\n".join(lines[result["start_line"] - 1:result["end_line"]])


def test_explain_prints_parts_that_make_up_the_score(notes):
    found = memhook.search(notes.api, "when was webpack pinned", memhook.Scope(), 5, explain=True)["results"]
    assert found
    for result in found:
        parts = result["explain"]
        total = parts["bm25"] + parts["session"] + parts["dated"]
        assert result["text_score"] == pytest.approx(total / (total + memhook.SCORE_HALF), abs=0.001)
        assert (parts["coverage"] >= memhook.SURE_COVERAGE) == (result["confidence"] == "high")
    assert '"coverage"' in notes.run("search", "--all", "--explain", "webpack").stdout


def test_results_come_best_first_and_no_text_twice(shelf):
    for number in range(8):
        write(shelf, "p/%d.md" % number, "# N\n\n%s\n" % ("The same zebra text." if number % 2 else "zebra " * (number + 1) + "lion"))
    found = results(shelf, "zebra lion", limit=10)
    assert [result["score"] for result in found] == sorted((result["score"] for result in found), reverse=True)
    assert len({result["text"] for result in found}) == len(found) >= 5
    assert found == results(shelf, "zebra lion", limit=10)


def test_piped_it_is_plain_and_names_the_id_to_get(notes):
    done = notes.run("search", "--all", "webpack")
    assert "\033" not in done.stdout and "\r" not in done.stdout
    lines = done.stdout.split("\n")
    assert lines[0].startswith("Notes  20") and lines[0].endswith("high") and any("webpack 5.90.0-beta.2" in line for line in lines)
    found = re.search(r"memhook get (\S+) --from (\d+)", done.stdout)
    assert "webpack" in notes.run("get", found.group(1), "--from", found.group(2), "--lines", "4").stdout


def test_at_a_terminal_the_match_is_marked_and_no_color_is_obeyed(notes):
    start = [sys.executable, "-I", "-S", "-B", "-c", memhook.BOOT, str(PROGRAM), "search", "--all", "webpack"]
    for env, marked in ((notes.env, True), ({**notes.env, "NO_COLOR": "1"}, False)):
        status, shown = terminal.at_terminal(start, env, notes.project, None)
        assert status == 0
        assert ("\033[1mwebpack\033[0m 5.90.0-beta.2" in shown) == marked and "webpack" in shown


def test_a_terminal_obeys_nothing_of_what_was_said_and_a_pipe_gets_it_whole(shelf):
    reordering = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    escapes = "\x1b]52;c;cm0gLXJm\x07 \x1b[2Jcleared \x9b31m %sreversed\rhidden" % reordering
    write(shelf, "p/notes.md", "# Escapes\n\nThe giraffe said %s\n" % escapes)
    (name,) = (result["id"] for result in results(shelf, "giraffe"))
    start = [sys.executable, "-I", "-S", "-B", "-c", memhook.BOOT, str(PROGRAM)]
    for command in (["search", "--all", "giraffe"], ["get", name]):
        status, shown = terminal.at_terminal([*start, *command], shelf.env, shelf.project, None)
        assert status == 0 and "cleared" in shown and "reversed" in shown and "hidden" in shown
        assert not set("\x07\x9b" + reordering) & set(shown) and not re.search("\x1b(?!\\[[012]m)|\r", shown), command
    raw = subprocess.run([*start, "get", name], env=shelf.env, cwd=shelf.project, stdout=subprocess.PIPE, check=True).stdout
    assert escapes.encode() in raw


def test_when_nothing_is_certain_it_says_so_and_why_and_exits_0(notes):
    done = notes.run("search", "--all", "kubernetes ingress versions timeout of the gateway")
    assert done.returncode == 0 and "Nothing certain" in done.stderr and "telling words" in done.stderr
    done = notes.run("search", "qqqqwwww")
    assert done.returncode == 0 and done.stdout == "" and "Nothing found in this project (--all searches everywhere)" in done.stderr


def test_where_nothing_is_found_it_says_whether_a_session_is_not_in_memory_yet(box):
    box.consent()
    script = box.script("session-0001")
    script.prompt("Tell me about wombats.")
    script.answer("They dig.")
    box.run("stop", input=json.dumps(box.payload("Stop", script)), stdin=None)
    assert "1 session is still open" in box.run("search", "wombats").stderr
    box.run("session-end", input=json.dumps(box.payload("SessionEnd", script)), stdin=None)
    box.drain()
    found = box.run("search", "wombats")
    assert "wombats" in found.stdout and "still open" not in found.stderr + box.run("search", "qqqqwwww").stderr


def test_where_memhook_is_not_installed_a_search_says_so(bare):
    done = bare.run("search", "anything")
    assert done.returncode == 0 and "Nothing found" in done.stderr and "memhook is not installed" in done.stderr and not bare.home.exists()


def test_as_many_results_as_were_asked_for(shelf):
    for number in range(10):
        write(shelf, "p/%d.md" % number, "# N\n\nzebra %d\n" % number)
    assert len(json.loads(shelf.run("search", "--all", "zebra", "-n", "3", "--json").stdout)["results"]) == 3
    assert len(json.loads(shelf.run("search", "--all", "zebra", "--json").stdout)["results"]) == 6
    assert len(json.loads(subprocess.run([sys.executable, str(PROGRAM), "search", "--all", "zebra", "--json"], env={**shelf.env, "MEMHOOK_MAX_RESULTS": "2"},
                                         cwd=shelf.project, capture_output=True).stdout)["results"]) == 2


def test_words_that_every_unit_has_still_find(shelf):
    for number in range(30):
        write(shelf, "p/%02d.md" % number, "# N\n\nzebra number%d\n" % number)
    assert len(results(shelf, "zebra", limit=10)) == 10
    assert results(shelf, "zebra number7", limit=10)[0]["text"].endswith("number7")


def test_many_common_words_select_by_the_rarest(shelf, monkeypatch):
    """The bounded query of large stores, with a bound that a small one reaches."""
    monkeypatch.setattr(memhook, "SCORED_POSTINGS", 5)
    for number in range(40):
        write(shelf, "p/%02d.md" % number, "# N\n\nzebra lion number%d %s\n" % (number, "rareword" if number in (7, 9) else ""))
    found = results(shelf, "zebra lion rareword number9", limit=3)
    assert "number9" in found[0]["text"] and "number7" in found[1]["text"]


def test_the_question_set_is_answered():
    """The figures of tests/bench/questions.py, with room below what was measured."""
    import tempfile
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "bench"))
    import questions
    from conftest import Box
    with tempfile.TemporaryDirectory() as root:
        box = Box(root)
        box.install()
        questions.load(box)
        asked = questions.ask(box)
    found = questions.figures(asked)
    assert len(asked) >= 60 and sum(entry[1] is None for entry in asked) == 15
    assert found["hit@1"] >= 0.9 and found["hit@5"] >= 0.97 and found["false"] <= 0.2, found


def test_a_folder_whose_name_is_no_utf8_is_a_project_like_any(shelf):
    """The client's JSON spells such a byte as U+FFFD."""
    folder = os.path.join(os.fsencode(shelf.root), b"M\xfcller")
    os.mkdir(folder)
    shelf.env["CLAUDE_PROJECT_DIR"] = os.fsdecode(folder)
    memhook.grant_consent(shelf.api, "flag")
    memhook.save_note(shelf.api, "zebras are striped", "", os.path.join(os.path.realpath(shelf.root), "M\ufffdller"))
    assert [result["title"] for result in results(shelf, "zebras")] == ["zebras are striped"]
    assert "zebras are striped" in shelf.run("list").stdout


def test_a_query_as_long_as_a_log_costs_no_more_than_its_beginning(notes):
    query = "TypeError reading total cart " + " ".join("unheard%dof" % number for number in range(50_000))
    with memhook.open_index(notes.api) as index:
        assert len(memhook.Searcher(index, memhook.Scope()).plan(query)) <= 2 * memhook.QUERY_WORDS
    assert isinstance(results(notes, query), list)


def test_a_known_word_is_found_behind_any_number_of_unknown_ones(notes):
    for before in (120, 300, 5_000):
        log = " ".join("unheard%dof" % number for number in range(before))
        assert "## Versions" in results(notes, log + " webpack")[0]["text"], before
        assert results(notes, log) == []


@pytest.mark.parametrize("query", ["what is it about", "how", "Was ist das denn, und wie war das noch?", "Wer hat das gemacht", "Qu'est-ce que c'est pour nous ?",
                                   "¿Qué es esto y cómo lo hago?", "Che cosa abbiamo fatto con questo?", "O que é isto e como foi feito?"])
def test_stop_words_alone_find_nothing_for_sure(shelf, query):
    write(shelf, "p/notes.md", "# N\n\n%s\n\n## Giraffe\n\nThe giraffe is spotted.\n" % query)
    found = results(shelf, query)
    assert found and not [result for result in found if result["confidence"] == "high"]


def test_stop_words_of_its_language_do_not_make_a_question_less_sure(shelf):
    write(shelf, "p/notes.md", "# N\n\nDer Drucker wurde von Anna repariert.\n")
    assert results(shelf, "Wer hat denn den Drucker repariert, und wann war das?")[0]["confidence"] == "high"


def test_a_word_of_programs_that_another_language_has_as_a_stop_word_is_searched():
    for query in ("die", "worker die", "war file", "con", "sin cos"):
        assert memhook.query_words(query) == query.split()
    assert memhook.query_words("why did the worker die") == ["worker", "die"]


# ---- typos

WRITTEN = ["ECONNREFUSED", "deduplication", "Überweisung", "mapping", "Tuesdays", "webhook", "postgres", "configuration", "retries", "Москва"]
LETTER_EDITS = {
    "drop": lambda word, at: word[:at] + word[at + 1:],
    "double": lambda word, at: word[:at] + word[at] + word[at:],
    "insertion": lambda word, at: word[:at] + ("ж" if word == "Москва" else "k") + word[at:],
    "substitution": lambda word, at: word[:at] + ("ж" if word == "Москва" else "x") + word[at + 1:],
    "swap": lambda word, at: word[:at] + word[at + 1:at + 2] + word[at] + word[at + 2:],
}


@pytest.fixture(scope="module")
def typos(tmp_path_factory):
    from conftest import Box
    box = Box(tmp_path_factory.mktemp("typos")).consent()
    box.run("save", "The worker and its words: %s." % ", ".join(WRITTEN))
    for number in range(20):
        box.run("save", "Invoice %d: the printer in the hall, parcels and labels, a cable for the pump; getUserById fails." % number)
    return box


@pytest.mark.parametrize("edit", LETTER_EDITS.values(), ids=LETTER_EDITS)
@pytest.mark.parametrize("word", WRITTEN)
def test_a_typo_at_any_letter_is_forgiven(typos, word, edit):
    missed = [edit(word, at) for at in range(len(word)) if not any("The worker" in found["text"] for found in results(typos, edit(word, at)))]
    assert missed == []


def test_a_typo_in_an_identifier_is_forgiven_before_its_parts_are_asked_for(typos):
    found = memhook.search(typos.api, "getUserBId", memhook.Scope(), 1)
    assert "getUserById" in found["results"][0]["text"] and found["notice"] == "no memory has getUserBId: searched as getuserbyid"


def test_what_a_typo_was_taken_for_is_told_and_alone_is_not_sure(typos):
    done = typos.run("search", "--all", "webhok")
    assert "The worker" in done.stdout and "no memory has webhok: searched as webhook" in done.stderr and "Nothing certain" in done.stderr
    assert [found["confidence"] for found in results(typos, "table")] == ["low"] * len(results(typos, "table"))  # for cable
    assert results(typos, "ECONNREFUSED deduplication webhok")[0]["confidence"] == "high"


def test_a_word_that_is_known_is_not_taken_for_a_typo(typos):
    typos.run("save", "A giraffe, mopping.")
    found = memhook.search(typos.api, "mopping", memhook.Scope(), 5)
    assert [result["title"] for result in found["results"]] == ["A giraffe, mopping."] and "notice" not in found


def test_of_several_words_that_a_typo_may_have_meant_the_rare_ones_are_found_too(shelf):
    for number, word in enumerate(["plant", "plant", "plane", "plane", "blank"]):
        write(shelf, "p/%d.md" % number, "# N\n\nThe %s number %d.\n" % (word, number))
    assert any("blank" in result["text"] for result in results(shelf, "plank"))


def test_a_number_is_not_taken_for_another(typos):
    typos.run("save", "The port is port8080 here.")
    assert not any("port8080" in result["text"] for result in results(typos, "port8081"))


def test_a_log_is_not_mended_word_by_word(typos):
    log = " ".join("unheard%dof" % number for number in range(300))
    with memhook.open_index(typos.api) as index:
        searcher = memhook.Searcher(index, memhook.Scope())
        searcher.plan(log)
    assert len(searcher.repaired) == memhook.REPAIRED_WORDS


def test_help_says_what_explain_prints(notes):
    shown = " ".join(notes.run("search", "--help").stdout.split())
    assert all("%s (" % part in shown for part in ("bm25", "session", "dated")) and "coverage, the share" in shown
