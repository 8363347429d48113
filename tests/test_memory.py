"""A memory file parses back into the turns it was made of, whatever they hold; whatever a person makes of it is read without an error."""
import json
import os
import random
import re
import string

import pytest

import memhook
from conftest import PROGRAM

FRONT = {
    "id": "6f1c0c5e-0000-5000-8000-000000000000", "project": "github.com/someone/thing", "session": "s", "segment": 0, "from": "-",
    "to": "-",
    "branch": "main", "cwd": "/src/thing", "transcript": "/t.jsonl", "bytes": [0, 1], "distiller": "offline", "files": [],
    "at": "2026-01-31T12:00:00.000Z", "tenant": "x",
}
KINDS = ("prompt", "command", "shell", "answer", "plan", "reply", "question", "tool", "error", "result", "summary", "interrupt", "rewind")
MARKER = "<!-- turn u-1/0 prompt 2026-01-31T12:00:00.000Z 0-5 -->"
PIECES = [
    "", " ", "\n", "\n\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\t", "\x1b[31m", "\x7f", "\ufeff",
    "\u200b", "\u202e", "\ufffd", "\uffff",
    MARKER, "\\" + MARKER, "\\\\\\" + MARKER, "\n" + MARKER + "\n", "\n\\" + MARKER + "\n", "\r" + MARKER, " " + MARKER, MARKER[:-1],
    "<!-- turn ", "\\<!-- turn", "<!--", "-->",
    "## Transcript", "\n## Transcript\n", "\\## Transcript", "\n\\## Transcript\n", "# Title", "---", "\n---\n", "---\nid: \"x\"\n---\n",
    "id: \"x\"", "...", "```", "\n```\n## Transcript\n```",
    "\\", "\\\\", "\\n", "\\1", "$1", "%s", "{}", "\"", "'", "`", "<b>&amp;</b>", "a", "word ", "Zeile\n", "日本語", "😀",
    "\U0001f469\u200d\U0001f467", "\u05d0\u05d1\u05d2", "\u0627\u0644\u0644", "e\u0301", "\U0010ffff", "x" * 300,
]


def say(chance):
    return "".join(chance.choice(PIECES) for _ in range(chance.randrange(12)))


def some_turns(chance, number):
    turns, at = [], 1_700_000_000
    for _ in range(number):
        name = "".join(chance.choice(string.ascii_letters + string.digits + "_-") for _ in range(chance.choice((1, 8, 36, 64))))
        key = "%s/%d" % (name, chance.randrange(100))
        start = chance.randrange(10 ** chance.randrange(1, 13))
        at = chance.choice((None, 0.0, -0.001, 0.001, 253_402_300_799.999, at, round(chance.uniform(-30e9, 250e9), 3)))
        turns.append(memhook.Turn(key, chance.choice(KINDS), say(chance), start, start + chance.randrange(10 ** 9), at))
        at = at or 1
    return turns


def told(turns):
    return [(turn.key, turn.kind, turn.text, turn.start, turn.end, turn.at) for turn in turns]


def parsed(turns, digest="# Title\n\nA summary.", front=None):
    return memhook.parse_memory(memhook.render_memory(FRONT if front is None else front, digest, turns))


def turn(text, key="u-1/0", kind="prompt", at=1_769_860_800.0):
    return memhook.Turn(key, kind, text, 0, 5, at)


# ---- turns

def test_whatever_turns_hold_they_come_back_the_same():
    chance = random.Random(20_260_131)
    for number in range(1_500):
        turns = some_turns(chance, chance.randrange(6))
        digest = "\n".join(say(chance) for _ in range(chance.randrange(4)))
        memory = parsed(turns, digest)
        assert told(memory.turns) == told(turns), number
        assert memory.front == FRONT, number


@pytest.mark.parametrize("text", PIECES, ids=lambda text: ascii(text)[1:24])
def test_each_awkward_piece_comes_back_alone_first_last_doubled_and_between(text):
    texts = [text, text + "a", "a" + text, text + text, "a\n" + text + "\nb", text + "\n", "\n" + text, text + "\n\n\n", "\\" + text]
    turns = [turn(text, key="u/%d" % number) for number, text in enumerate(texts)]
    assert [part.text for part in parsed(turns).turns] == texts
    assert parsed([]).turns == []


def test_a_megabyte_comes_back_whole():
    for text in ("x" * 1_000_000, ("\\" * 50 + MARKER + "\n") * 10_000, "\n" * 1_000_000, "\\" * 1_000_000, "## Transcript\n" * 70_000,
                 "<!-- turn " * 100_000):
        assert parsed([turn(text), turn("b", "u/1")]).turns[0].text == text


def test_many_turns_come_back_in_their_order():
    turns = [turn("", "u/%d" % number) for number in range(5_000)]
    assert told(parsed(turns).turns) == told(turns)


def test_a_turn_of_before_our_era_or_without_a_time_keeps_what_it_has():
    for text in ("0001-01-01T00:00:00.000Z", "0999-12-31T23:59:59.500Z", "9999-12-31T23:59:59.999Z", "1969-12-31T23:59:59.999Z"):
        at = memhook.parse_time(text)
        assert parsed([turn("x", at=at)]).turns[0].at == at, text
    assert parsed([turn("x", at=None)]).turns[0].at is None


def test_turns_take_their_place_from_the_front_matter():
    memory = parsed([turn("x")])
    assert (memory.turns[0].cwd, memory.turns[0].branch, memory.turns[0].project) == ("/src/thing", "main", "github.com/someone/thing")


def test_the_turns_of_a_real_transcript_come_back():
    lines = []
    for number, text in enumerate(PIECES):
        lines.append(json.dumps({"type": "user", "uuid": "u-%d" % number, "message": {"content": "said: " + text + " (end)"},
                                 "timestamp": "2026-01-31T12:00:%02d.123Z" % (number % 60)}))
    turns = memhook.parse_turns("\n".join(lines).encode() + b"\n")
    assert len(turns) >= len(PIECES) - 1
    assert told(parsed(turns).turns) == told(turns)


# ---- the section

@pytest.mark.parametrize("line", ["## Transcript", "## Transcript ", "## Transcript\t", "\\## Transcript", "\\\\## Transcript",
                                  "## Transcript\r", "## Transcript\x0b", "##  Transcript", "  ## Transcript"])
def test_a_line_of_the_digest_cannot_open_the_transcript(line):
    for digest in (line, "# T\n\n" + line, "# T\n\n" + line + "\n\n- x", "# T\n\n" + line + "\n" + MARKER + "\nfalse"):
        memory = parsed([turn("true")], digest)
        assert [part.text for part in memory.turns] == ["true"]
        assert line.strip().lstrip("\\") in memory.digest


@pytest.mark.parametrize("line", ["## Transcript", "# T", "- `a`", "\\# T", "a \\## Transcript", "## Transcripts", "```", "---", "a: b"])
def test_a_digest_comes_back_as_it_was(line):
    for digest in (line, "# T\n\n" + line, line + "\n\nmore"):
        assert parsed([turn("x")], digest).digest.strip("\n") == digest


def test_a_digest_that_quotes_a_transcript_says_so_in_a_real_segment():
    turns = [turn("Fix this:\n## Transcript\n" + MARKER + "\nWe decided to use ## Transcript as the heading."),
             turn("Done.\n## Transcript\n", "u-2/0", "answer")]
    digest = memhook.render_digest(memhook.distil(turns, "## Transcript"))
    assert told(parsed(turns, digest).turns) == told(turns)


# ---- front matter

HARD = ["", "a: b", "- a", "# no comment", "'", '"', "\\", "yes", "null", "1e3", "{", "[", "&a", "*a", "!t", "%", "@", "`", "|", ">", "---",
        "\n---\n", "a\nb", "\r", "\t", "\x00", "\x07", "\x1b",
        "\x7f", "\x80", "\x85", "\x9f", "\u2028", "\u2029", "\ufeff", "\ufffe", "\uffff", "é—日本", "😀", "\u202e", " lead", "trail ",
        "/a b/c'd", "C:\\Users\\x"]


@pytest.mark.parametrize("value", HARD + [HARD, 5, -1.5, None, True, [1, 2], []], ids=lambda value: ascii(value)[:20])
def test_every_value_of_the_front_matter_comes_back_and_is_json(value):
    front = {**FRONT, "branch": value, "files": [value]}
    data = memhook.render_memory(front, "# T", [turn("x")])
    assert memhook.parse_memory(data).front == front
    head = data.decode().split("\n---\n")[0].split("\n")[1:]
    assert [line.split(": ", 1)[0] for line in head] == list(front)
    assert [json.loads(line.split(": ", 1)[1]) for line in head] == list(front.values())


def test_the_front_matter_holds_no_character_that_yaml_forbids_or_takes_for_a_line_end():
    """YAML 1.1 section 4.1 and 1.2 section 5.1: c-printable; NEL, LS and PS are line breaks to 1.1."""
    head = memhook.render_memory({**FRONT, "branch": HARD, "cwd": "".join(HARD)}, "# T", []).decode().split("\n---\n")[0]
    assert re.findall("[^\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]", head) == []


def test_front_matter_of_a_person_is_read_as_far_as_it_goes():
    memory = memhook.parse_memory(b"---\ntitle: My note: about it\ntags: [a, b]\nn: 5\nnothing\n\n---\n# Note\n")
    assert memory.front == {"title": "My note: about it", "tags": "[a, b]", "n": 5} and memory.digest == "# Note\n" and memory.turns == []


def test_front_matter_tells_the_segment():
    turns = [memhook.Turn("a/0", "prompt", "p", 10, 20, 1_769_860_800.0, "/w", "dev"),
             memhook.Turn("b/0", "tool", "Edit: /w/x.py", 20, 30, None, "/w", "dev"),
             memhook.Turn("b/1", "tool", "Write: /w/x.py", 20, 30), memhook.Turn("c/0", "answer", "Edit: /no.py", 30, 40, 1_769_860_790.5)]
    segment = {"id": "i", "project": "p", "session": "s", "segment": 3, "transcript": "/t", "at": 1_769_860_900.0}
    assert memhook.front_matter(segment, turns, "offline") == {
        "id": "i", "project": "p", "session": "s", "segment": 3, "from": "2026-01-31T11:59:50.500Z", "to": "2026-01-31T12:00:00.000Z",
        "branch": "dev", "cwd": "/w",
        "transcript": "/t", "bytes": [10, 40], "distiller": "offline", "files": ["/w/x.py"], "at": "2026-01-31T12:01:40.000Z",
        "tenant": "p"}
    assert list(memhook.front_matter(segment, turns, "offline"))[:14] == list(FRONT)


# ---- files that are not as they were written

def whole_file():
    return memhook.render_memory(FRONT, "# Title\n\nSummary.\n\n## Decisions\n\n- One",
                                 [turn("A prompt"), turn("An answer\nof two lines", "u-2/0", "answer")])


def test_a_file_cut_anywhere_is_read_without_an_error():
    data = whole_file()
    for end in range(len(data)):
        memory = memhook.parse_memory(data[:end])
        assert len(memory.turns) <= 2
    assert len(memhook.parse_memory(data[:-1]).turns) == 2


def test_a_file_with_any_byte_changed_is_read_without_an_error():
    data, chance = whole_file(), random.Random(3)
    for _ in range(3_000):
        place = chance.randrange(len(data))
        memhook.parse_memory(data[:place] + bytes([chance.randrange(256)]) * chance.choice((0, 1, 1, 5)) + data[place + 1:])


def test_random_bytes_and_random_pieces_are_read_without_an_error():
    chance = random.Random(4)
    for _ in range(500):
        memhook.parse_memory(bytes(chance.randrange(256) for _ in range(chance.randrange(300))))
        pieces = [chance.choice(PIECES + ["---\n", "\n## Transcript\n", MARKER + "\n"]) for _ in range(20)]
        memhook.parse_memory("".join(pieces).encode("utf-8", "replace"))


ODD = {
    "empty": b"", "a newline": b"\n", "no front matter": b"# Just a note\n\nText.", "unclosed front matter": b"---\nid: \"x\"\n# Title\n",
    "binary": bytes(range(256)) * 100,
    "the program": PROGRAM.read_bytes(), "front matter alone": b"---\n---\n", "a rule": b"---\n",
    "deep JSON": b"---\nid: " + b"[" * 100_000 + b"\n---\n# T\n",
    "a long number": b"---\nid: " + b"9" * 5_000 + b"\n---\n",
    "long byte numbers": b"## Transcript\n<!-- turn u p - " + b"9" * 5_000 + b"-" + b"9" * 5_000 + b" -->\nx\n",
    "digits of another script": "## Transcript\n<!-- turn u p - \u0661-\u0662 -->\nx\n".encode(),
    "two sections": b"## Transcript\n## Transcript\n" + MARKER.encode() + b"\nx\n",
    "a long marker": b"## Transcript\n<!-- turn " + b"a" * 200_000 + b" -->\n",
    "many half markers": b"## Transcript\n" + b"<!-- turn a b c 1-\n" * 20_000,
    "many dashes": b"---\n" + b"--\n" * 100_000, "UTF-16": whole_file().decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + whole_file(),
}


@pytest.mark.parametrize("name", ODD)
def test_what_a_person_or_an_accident_put_there_is_read_without_an_error(name):
    memory = memhook.parse_memory(ODD[name])
    assert isinstance(memory.front, dict) and isinstance(memory.digest, str) and isinstance(memory.turns, list)


def test_a_byte_order_mark_or_line_ends_that_an_editor_or_git_converted_hide_nothing():
    data = whole_file()
    for changed in (b"\xef\xbb\xbf" + data, data.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n")):
        memory = memhook.parse_memory(changed)
        assert memory.front == FRONT and memory.digest.startswith("# Title")
        assert [part.text for part in memory.turns] == ["A prompt", "An answer\nof two lines"]


def test_an_edited_digest_leaves_the_turns_as_they_are():
    text = whole_file().decode()
    edited = text.replace("# Title", "# A better title\n\nMy own words.").replace("- One", "").replace("id:", "mine: true\nid:")
    memory = memhook.parse_memory(edited.encode())
    assert "My own words." in memory.digest and memory.front["mine"] is True and memory.front["id"] == FRONT["id"]
    assert [part.text for part in memory.turns] == ["A prompt", "An answer\nof two lines"]


def test_an_edited_turn_keeps_its_key_and_the_others_their_text():
    memory = memhook.parse_memory(whole_file().replace(b"A prompt", b"Something else\n\nin three lines"))
    told = [(part.key, part.text) for part in memory.turns]
    assert told == [("u-1/0", "Something else\n\nin three lines"), ("u-2/0", "An answer\nof two lines")]


# ---- rendering

def test_rendering_is_deterministic_and_ends_lines_with_newlines_only():
    turns = [turn("a"), turn("b", "u-2/0", "answer")]
    segment = {"id": FRONT["id"], "project": "p", "session": "s", "segment": 0, "transcript": "/t", "at": 5.0}
    once, twice = (memhook.render_memory(front, digest, turns) for front, digest in [
        (memhook.front_matter(segment, turns, "offline"), memhook.render_digest(memhook.distil(turns, "t"))) for _ in range(2)])
    assert once == twice and b"\r" not in once and once.endswith(b"\n")


def test_lone_surrogates_become_something_that_can_be_written():
    data = memhook.render_memory({**FRONT, "cwd": "\udc88"}, "# \ud83d", [turn("\ud83d")])
    data.decode("utf-8")
    assert len(memhook.parse_memory(data).turns) == 1


# ---- paths

NAMES = ["", "/", "//", ".", "..", "../../etc", "/a/../../b", "a/b", "C:\\x\\y", "con", "nul", "aux.txt", "a" * 5_000, "日本語", "é", "😀",
         "\x00", "\n", " ", "-", "--", "~", "$HOME", "`id`", "a b",
         "github.com/Some-One/My.Thing", "github.com/some-one/my.thing", "/home/me/My Project", "*?<>|:\"", "\u202e", "\ud83d", "İ", "ß",
         "ﬁ"]


def path_of(project="p", title="t", said="2026-01-31T12:00:00.000Z", number=0):
    home = memhook.Home({"MEMHOOK_HOME": "/h"})
    return memhook.memory_path(home, {**FRONT, "project": project, "from": said, "id": "%08x-0000-5000-8000-000000000000" % number}, title)


def test_paths_are_safe_in_any_file_system():
    for name in NAMES:
        for path in (path_of(project=name), path_of(title=name)):
            parts = path.split("/")
            assert parts[:3] == ["", "h", "memories"] and len(parts) == 6 and parts[4] == "2026-01", name
            assert re.fullmatch(r"[a-z0-9][a-z0-9-]*-[0-9a-f]{6}", parts[3]) and len(parts[3]) <= 60, name
            assert re.fullmatch(r"2026-01-31-[a-z0-9][a-z0-9-]*-[0-9a-f]{8}\.md", parts[5]) and len(parts[5]) <= 100, name


def test_paths_tell_projects_and_memories_apart():
    assert len({path_of(project=name) for name in NAMES if name not in ("\ud83d",)}) == len(NAMES) - 1
    assert len({path_of(number=number) for number in range(100)}) == 100
    assert path_of(project="/a/thing") != path_of(project="/b/thing")


def test_a_project_can_be_recognised_by_its_folder():
    assert path_of(project="github.com/someone/My.Thing").split("/")[3].startswith("someone-my-thing-")
    assert path_of(project="/home/me/Café du Nord/").split("/")[3].startswith("me-cafe-du-nord-")
    assert path_of(project="C:\\Users\\me\\thing").split("/")[3].startswith("me-thing-")
    assert path_of(title="Why does the Login FAIL on Mondays?").split("/")[5].startswith("2026-01-31-why-does-the-login-fail-on-mondays-")


def test_a_memory_without_a_time_is_filed_under_the_day_of_its_capture():
    assert path_of(said="-").split("/")[4:] == ["2026-01", "2026-01-31-t-00000000.md"]


def test_the_file_of_a_segment_can_be_made(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path)})
    for number, name in enumerate(NAMES):
        front = {**FRONT, "project": name, "from": "2026-01-31T12:00:00.000Z", "id": "%08x" % number}
        path = memhook.memory_path(home, front, name)
        memhook.make_folder(os.path.dirname(path), 3)
        memhook.write_file(path, b"x", durable=False)
    assert len(list(memhook.memory_files(home))) == len(NAMES)


def test_a_slug_is_words_of_ascii():
    assert [memhook.slug(text) for text in ("A  b!c", "", "日本", "--", "Straße 5", "x" * 100, "a-" * 30)] == [
        "a-b-c", "session", "session", "session", "strae-5", "x" * 48, ("a-" * 24).strip("-")]


# ---- the store

def test_the_store_holds_markdown_files_and_nothing_that_a_link_leads_out_to(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path / "h")})
    assert list(memhook.memory_files(home)) == []
    store = tmp_path / "h" / "memories"
    (store / "p" / "2026-01").mkdir(parents=True)
    (store / ".trash").mkdir()
    for name in ("note.md", "p/2026-01/a.md", "p/.hidden.md", ".trash/a.md", "p/a.txt", "p/a.md.1.tmp"):
        (store / name).write_text("x")
    (tmp_path / "secret.md").write_text("x")
    (tmp_path / "h" / "memories2").mkdir()
    (tmp_path / "h" / "memories2" / "x.md").write_text("x")
    for name, target in (("out.md", tmp_path / "secret.md"), ("sibling.md", tmp_path / "h" / "memories2" / "x.md"),
                         ("in.md", store / "note.md"), ("folder", tmp_path), ("itself.md", store / "itself.md")):
        os.symlink(target, store / name)
    assert sorted(os.path.relpath(path, store) for path in memhook.memory_files(home)) == ["in.md", "note.md", "p/2026-01/a.md"]


def test_tombstones_are_read_as_far_as_they_can_be(tmp_path):
    home = memhook.Home({"MEMHOOK_HOME": str(tmp_path)})
    assert not memhook.read_graves(home).lines and not memhook.read_graves(home).texts
    (tmp_path / "tombstones.jsonl").write_bytes(
        b'{"turns":["t1","t2"],"lines":["l1"]}\n\nhalf {"turns":\n[]\n{"lines":null}\n{"turns":5}\n{"turns":{"a":1}}\n"x"\n\xff\n'
        b'{"lines":["l2"]}\n{"at":"2026-01-01T00:00:00.000Z","turns":["t3"]}\n{"at":7,"turns":["t4"]}')
    graves = memhook.read_graves(home)
    assert {"l1", "l2"} <= graves.lines and graves.texts["t3"] == memhook.parse_time("2026-01-01T00:00:00.000Z")
    assert [graves.texts[name] for name in ("t1", "t2", "t4")] == [float("inf")] * 3


def test_touched_files_are_those_of_tool_lines_each_once():
    turns = [turn(text, kind=kind) for kind, text in (("tool", "Edit: /a b.py"), ("tool", "Write: /c.py"), ("tool", "Edit: /a b.py"),
                                                      ("tool", "Bash: Edit: /no"), ("answer", "Edit: /no"),
                                                      ("tool", "MultiEdit: /d"), ("tool", "NotebookEdit: /e.ipynb"), ("tool", "Read: /no"))]
    assert memhook.touched_files(turns) == ["/a b.py", "/c.py", "/d", "/e.ipynb"]
