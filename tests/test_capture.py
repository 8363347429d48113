"""Capture: transcripts into segments, through real files, the real spool and the real drain.

`desk` is a machine on which a person has consented and no hook is installed: captures run in this process.
`box` has memhook installed: there the hooks run as Claude Code runs them.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import time
import uuid

import pytest

import memhook
from conftest import DATA, ROOT, Box

CLIENT = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]  # a session's process that ends with its hook
LONG = "The price module keeps integer cents, and this sentence says so once more. "
CONSENTED = 1_700_000_000.0  # when the person of `desk` consented: long before every line that says nothing else


class Desk(Box):
    """A machine whose sessions began some hours ago, as the drain meets them."""

    def script(self, session="session-0001", start=None):
        return super().script(session, time.time() - 50_000 if start is None else start)


@pytest.fixture
def desk(tmp_path):
    desk = Desk(tmp_path)
    consent(desk)
    return desk


def consent(box, at=CONSENTED, pauses=()):
    box.api.create()
    memhook.write_json(box.api.path("consent.json"), {"format": 1, "capture": {"at": at, "by": "test", "text": ""}, "pauses": list(pauses)})


def capture(box, script, home=None, **asked):
    """One capture in this process; -> what it did."""
    path = script.path if hasattr(script, "path") else script
    home = home or box.api
    if asked.get("live"):
        asked.setdefault("client", [0, ""])  # a hook whose session's process is not known
    return memhook.capture(home, memhook.read_consent(home), memhook.Request(str(path), **asked))


def stop(box, script, message="", **asked):
    return capture(box, script, message=message, cwd=str(asked.pop("cwd", box.project)), **asked)


def end(box, script, message="", **asked):
    return stop(box, script, message, final=True, **asked)


def drain(box):
    """The drain, in this process."""
    return memhook.drain(box.api, memhook.read_consent(box.api)).to_json()


def texts(box, kind="answer"):
    """What was said of a kind in all memories, in their order; a text said twice stands twice."""
    return [text for found, text in box.said() if found == kind]


def segments(home):
    """(session, number, id, project, turns) of every waiting segment, by session and number."""
    root = home.home if isinstance(home, Box) else pathlib.Path(home.root)
    found = [json.loads(path.read_bytes()) for path in (root / "spool" / "new").glob("*.json")]
    rows = [(item["session"], item["segment"], item["id"], item["project"], item["turns"]) for item in found]
    return sorted(rows, key=lambda row: row[:2])


def numbers(box):
    return [item[1] for item in segments(box)]


def talk(script, turns, first=0):
    """`turns` prompts and answers of about 1,000 characters together; -> what was said."""
    said = []
    for number in range(first, first + turns):
        prompt, answer = "Question %d?" % number, "Answer %d. %s" % (number, LONG * 13)
        script.prompt(prompt)
        script.answer(answer)
        said += [("prompt", prompt), ("answer", answer)]
    return said


def at_clock(monkeypatch, at):
    monkeypatch.setattr(memhook, "now", lambda: at)


# ---- the four invariants

WATCHED = """
import os, sys
seen = []
def note(event, given):
    if event in ("os.fork", "os.forkpty", "os.exec", "os.posix_spawn", "os.system", "subprocess.Popen") or event.startswith("socket."):
        seen.append(event)
    elif event == "import" and given[0] in ("subprocess", "socket", "http.client", "urllib.request", "sqlite3", "multiprocessing"):
        seen.append("import " + given[0])
sys.addaudithook(note)
sys.path.insert(0, %r)
import memhook
status = memhook.run_hook(sys.argv[2], memhook.HOOKS[sys.argv[2]])
with open(sys.argv[1], "w") as stream:
    print(status, *seen, file=stream)
""" % str(ROOT)


@pytest.mark.parametrize("event", ["stop", "session-start", "session-end"])
def test_a_hook_does_no_model_work_and_starts_no_process(desk, event):
    """An audit hook notes every process, socket and library for them that the interpreter touches; a `claude` on PATH tells if it ran."""
    bin_folder, touched, noted = desk.root / "bin", desk.root / "called", desk.root / "noted"
    bin_folder.mkdir()
    (bin_folder / "claude").write_text("#!/bin/sh\ntouch %s\n" % touched)
    (bin_folder / "claude").chmod(0o755)
    script = desk.script()
    talk(script, 20)
    environ = {**desk.env, "PATH": "%s:%s" % (bin_folder, desk.env["PATH"])}
    payload = json.dumps(desk.payload(event, script, last_assistant_message="The last.")).encode()
    done = subprocess.run([sys.executable, "-c", WATCHED, str(noted), event], input=payload, env=environ, capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"") and noted.read_text() == "0\n" and not touched.exists()
    assert (len(desk.spooled()) > 0) == (event != "session-start")


def test_a_stop_starts_no_drain_when_it_has_left_nothing(desk):
    script, noted = desk.script(), desk.root / "noted"
    talk(script, 2)
    environ = {name: value for name, value in desk.env.items() if name != "MEMHOOK_AUTODRAIN"}
    payload = json.dumps(desk.payload("Stop", script)).encode()
    subprocess.run([sys.executable, "-c", WATCHED, str(noted), "stop"], input=payload, env=environ, timeout=60)
    assert noted.read_text() == "0\n" and desk.checkpoint(script)["parsed"] == os.path.getsize(script.path)


def test_the_queued_offset_is_the_end_of_the_last_queued_turn_and_never_the_end_of_the_file(desk):
    script = desk.script()
    queued = 0
    for number in range(30):
        talk(script, 1, number)
        script.add({"type": "file-history-snapshot", "messageId": "m%d" % number, "snapshot": {}})
        stop(desk, script)
        stored, waiting = desk.checkpoint(script), segments(desk)
        assert stored["queued"] == (waiting[-1][4][-1][4] if waiting else 0)
        assert queued <= stored["queued"] < stored["parsed"] == os.path.getsize(script.path)
        assert not stored["turns"] or stored["turns"][0][3] >= stored["queued"]
        queued = stored["queued"]
    assert len(segments(desk)) == 3


def test_the_queued_offset_never_goes_back_at_the_end_either(desk):
    script = desk.script()
    script.add(script.line("user", "Begin.", version="2.0.60"))
    script.add({"type": "queue-operation", "operation": "enqueue", "content": "Typed ahead.", "timestamp": script.line("x")["timestamp"]})
    said = talk(script, 12)
    end(desk, script)
    found = segments(desk)
    for _, _, _, _, turns in found:
        assert turns[0][3] <= turns[-1][4] and max(turn[4] for turn in turns) == turns[-1][4]
    assert desk.checkpoint(script)["queued"] == max(turn[4] for item in found for turn in item[4])
    drain(desk)
    assert sorted(desk.said()) == sorted(said + [("prompt", "Begin."), ("prompt", "Typed ahead.")])


def test_segment_numbers_go_on_over_stops_a_session_end_and_a_resume(box):
    script = box.script()
    said = []
    for number in range(0, 20, 4):
        said += talk(script, 4, number)
        box.hook("Stop", script)
    box.hook("SessionEnd", script, reason="prompt_input_exit")
    box.hook("SessionStart", script, source="resume")
    first = numbers(box)
    for number in range(20, 40, 4):
        said += talk(script, 4, number)
        box.hook("Stop", script)
    box.hook("SessionEnd", script, reason="prompt_input_exit")
    assert first == [0, 1, 2] and numbers(box) == [0, 1, 2, 3, 4, 5]
    assert box.drain()["stored"] == 6 and box.said() == said
    assert [memory.front["segment"] for memory in box.memories()] == list(range(6))


def test_the_tail_is_parsed_from_the_offset(desk):
    """What lies before the offset is rewritten in place, but for the head and foot that the guards look at: nothing of it is seen."""
    script = desk.script()
    said = talk(script, 10)
    stop(desk, script)
    parsed = desk.checkpoint(script)["parsed"]
    data = script.path.read_bytes()
    with open(script.path, "r+b") as stream:
        stream.seek(2_000)
        stream.write(data[2_000:-600].replace(b"Question", b"NEVERRED").replace(b"-00", b"-99"))
    said += talk(script, 2, 10)
    done = end(desk, script)
    assert done.bytes == os.path.getsize(script.path) - parsed and desk.checkpoint(script)["generation"] == 0
    drain(desk)
    assert desk.said() == said


# ---- the whole way


def test_a_seeded_transcript_becomes_segments_0_1_2_and_a_tail_through_the_real_spool_and_drain(box):
    script = box.script()
    said, chance = [], random.Random(7)
    for number in range(40):
        prompt = "Prompt %d: %s" % (number, LONG * chance.randrange(1, 4))
        answer = "Answer %d: %s" % (number, LONG * chance.randrange(1, 20))
        script.prompt(prompt)
        script.tool("Bash", command="make step-%d" % number)
        script.result("output that is not kept " * 50)
        script.answer(answer)
        said += [("prompt", prompt), ("answer", answer)]
        if number % 3 == 0:
            box.hook("Stop", script, last_assistant_message=answer)
    full = numbers(box)
    box.hook("SessionEnd", script, reason="other")
    assert full == list(range(len(full))) and len(full) >= 3
    assert numbers(box) == full + [len(full)]
    assert all(sum(len(turn[2]) for turn in item[4]) >= memhook.SEGMENT_CHARS for item in segments(box)[:-1])
    assert box.drain()["stored"] == len(full) + 1
    assert box.said() == said and box.spooled() == []
    tools = [turn.text for memory in box.memories() for turn in memory.turns if turn.kind == "tool"]
    assert tools == ["Bash: make step-%d" % number for number in range(40)]
    assert box.drain() == {"stored": 0, "duplicate": 0, "empty": 0, "forgotten": 0, "retried": 0, "dead": 0, "left": 0}
    assert [receipt["outcome"] for receipt in box.receipts()] == ["stored"] * (len(full) + 1)


def test_thirty_stops_keep_each_turn_exactly_once_and_a_second_drain_changes_nothing(desk):
    script, said = desk.script(), []
    for number in range(30):
        said += talk(script, 1, number)
        stop(desk, script, said[-1][1])
        if number == 4:
            drain(desk)
    end(desk, script)
    drain(desk)
    before = {path: path.read_bytes() for path in (desk.home / "memories").rglob("*.md")}
    drain(desk)
    assert desk.said() == said and before == {path: path.read_bytes() for path in (desk.home / "memories").rglob("*.md")}


def test_nothing_happens_without_new_bytes_or_a_new_last_message(desk):
    script = desk.script()
    talk(script, 1)
    stop(desk, script, "The last.")
    path = memhook.checkpoint_path(desk.api, memhook.transcript_key(str(script.path)))
    before = os.stat(path)
    assert stop(desk, script, "The last.").bytes == 0
    assert os.stat(path).st_ino == before.st_ino and os.stat(path).st_mtime_ns == before.st_mtime_ns


def test_a_capture_that_finds_another_at_work_gives_up(desk):
    script = desk.script()
    talk(script, 1)
    with memhook.transcript_lock(desk.api, memhook.transcript_key(str(script.path))) as lock:
        assert lock.acquire()
        assert stop(desk, script).busy and not (desk.home / "checkpoints").exists()
    assert not stop(desk, script).busy


def test_the_id_of_a_segment_is_a_name_based_uuid_over_project_title_and_content(desk):
    script = desk.script()
    script.prompt("First line of the first prompt.\nSecond line.")
    script.answer("Yes.")
    end(desk, script)
    (_, _, found, project, turns), = segments(desk)
    content = "\n".join("%s %s\n%s" % (turn[0], turn[1], turn[2]) for turn in turns)
    assert found == str(uuid.uuid5(uuid.NAMESPACE_DNS, "\n".join((project, "First line of the first prompt.", content))))


# ---- chunks

CHUNKS = sorted(path for path in (DATA / "chunks").glob("*.json") if not path.name.endswith(".expected.json"))
CHUNK_TABLES = pytest.mark.parametrize("path", CHUNKS, ids=[path.stem for path in CHUNKS])


def chunk_turns(path):
    """Turns as the table has them: [kind, characters, project], each of 100 bytes."""
    given = json.loads(path.read_text("utf-8"))["turns"]
    return [memhook.Turn("k%d/0" % number, kind, "x" * chars, 100 * number, 100 * number + 100, project=project)
            for number, (kind, chars, project) in enumerate(given)]


@CHUNK_TABLES
def test_next_chunk_cuts_as_the_table_says(path):
    turns, expected = chunk_turns(path), json.loads(path.with_suffix(".expected.json").read_text("utf-8"))["next"]
    chunk = memhook.next_chunk(turns)
    assert (chunk and len(chunk.turns)) == expected
    assert chunk is None or (chunk.turns == turns[:expected] and chunk.end_byte == 100 * expected)


@CHUNK_TABLES
def test_plan_tail_segments_cuts_as_the_table_says(path):
    turns, expected = chunk_turns(path), json.loads(path.with_suffix(".expected.json").read_text("utf-8"))["tail"]
    chunks = memhook.plan_tail_segments(turns)
    assert [len(chunk.turns) for chunk in chunks] == expected
    assert [turn for chunk in chunks for turn in chunk.turns] == turns


@CHUNK_TABLES
def test_a_cut_depends_on_nothing_behind_it(path):
    turns = chunk_turns(path)
    whole = memhook.next_chunk(turns)
    for count in range(len(turns)):
        part = memhook.next_chunk(turns[:count])
        assert part is None or (whole is not None and part.turns == whole.turns)


# ---- reading


@pytest.mark.parametrize("final", [False, True])
def test_lines_are_read_whole_whatever_blocks_they_come_in(tmp_path, final):
    block = memhook.BLOCK_BYTES
    sizes = (0, 10, block - 12, 0, block, block - 1, block - 2, 3, 2 * block + 5, 1)
    lines = [b"x" * size for size in sizes] + [b'{"a":"%s"}' % (b"y" * 30_000)]
    data = b"\n".join(lines)
    path = tmp_path / "lines"
    path.write_bytes(data)
    places, start = [], 0
    for line in lines[:-1]:
        places.append((line, start, start + len(line) + 1))
        start += len(line) + 1
    with open(path, "rb") as stream:
        assert list(memhook.read_lines(stream, 0, None, final)) == places + ([(lines[-1], start, len(data))] if final else [])
        for stop_at in (0, 1, block, block + 1, 2 * block - 3, 3 * block):
            inside = [place for place in places if place[2] <= stop_at]
            assert list(memhook.read_lines(stream, 0, stop_at, False)) == inside
        middle = places[5][1]
        assert list(memhook.read_lines(stream, middle, None, False)) == places[5:]


def test_a_line_longer_than_any_message_is_skipped_and_counted(desk):
    script = desk.script()
    script.prompt("Before.")
    with open(script.path, "ab") as stream:
        stream.truncate(os.path.getsize(script.path) + memhook.LINE_BYTES + 3 * memhook.BLOCK_BYTES)
    script.add(b"")
    script.answer("After.")
    done = end(desk, script)
    drain(desk)
    assert desk.said() == [("prompt", "Before."), ("answer", "After.")] and done.skipped == 1


# ---- any split gives the same segments


def random_transcript(script, chance, others, lines=60):
    """Bytes of a session with everything in it; -> the offsets at which an answer begins, and its text."""
    answers, parent = [], None
    script.add()
    for _ in range(lines):
        text = " ".join("word%d" % chance.randrange(500) for _ in range(chance.choice([1, 5, 30, 200, 900])))
        move = chance.randrange(12)
        if move <= 2:
            parent = script.prompt(text, parentUuid=parent)["uuid"]
        elif move <= 5:
            answers.append((os.path.getsize(script.path), text))
            parent = script.answer(text, parentUuid=parent)["uuid"]
        elif move == 6:
            script.tool("Bash", command=text)
            script.result(text, error=chance.random() < 0.5)
        elif move == 7:
            script.cwd = str(chance.choice(others))
        elif move == 8:
            behind = json.dumps(script.line("user", "mended " + text)).encode()
            script.add(b'{"parentUuid":null,"type":"user","message":{"content":"cut ' + behind)
        elif move == 9:
            script.add(chance.choice([b"\0" * 30, b"", b"not JSON", b'{"type":"progress","data":{"type":"user"}}']))
        elif move == 10 and os.path.getsize(script.path):
            script.add(chance.choice(script.path.read_bytes().split(b"\n")[:-1]))
        else:
            script.add({"type": "queue-operation", "operation": chance.choice(["enqueue", "remove", "dequeue", "popAll"]), "content": text,
                        "timestamp": memhook.iso(script.clock)})
    return answers


def replay(desk, data, path, home, cuts, answers=()):
    """Write the transcript piece by piece, a Stop after each, a SessionEnd at the end; -> the segments."""
    api = memhook.Home({**desk.env, "MEMHOOK_HOME": str(home)})
    api.create()
    memhook.write_json(api.path("consent.json"), {"format": 1, "capture": {"at": CONSENTED, "by": "test", "text": ""}, "pauses": []})
    path.write_bytes(b"")
    done = 0
    for cut in sorted(cuts) + [len(data)]:
        with open(path, "ab") as stream:
            stream.write(data[done:cut])
        done = cut
        if cut < len(data):
            ahead = next((text for start, text in answers if data.find(b"\n", start) >= cut), "")
            capture(desk, path, api, cwd=str(desk.project), message=ahead)
    capture(desk, path, api, cwd=str(desk.project), final=True)
    return segments(api)


@pytest.mark.parametrize("seed", range(8))
def test_any_split_into_stops_gives_the_same_segments(desk, seed):
    chance = random.Random(seed)
    script = desk.script("session-%04d" % seed, start=1_750_000_000)
    random_transcript(script, chance, [desk.project, desk.root / "other"], chance.randrange(10, 110))
    data = script.path.read_bytes()
    expected = replay(desk, data, script.path, desk.root / "one", [])
    assert [number for _, number, _, _, _ in expected] == list(range(len(expected)))
    for run in range(3):
        cuts = {chance.randrange(len(data)) for _ in range(chance.choice([1, 3, 10, 40]))}
        assert replay(desk, data, script.path, desk.root / ("run%d" % run), cuts) == expected


@pytest.mark.parametrize("seed", range(4))
def test_last_messages_that_are_ahead_of_the_file_change_no_segment(desk, seed):
    """Each Stop tells the answer whose line comes next; it is not kept twice, nor does it move a cut."""
    chance = random.Random(100 + seed)
    script = desk.script("session-%04d" % seed, start=1_750_000_000)
    answers = []
    for number in range(40):
        script.prompt("Question %d?" % number)
        answers.append((os.path.getsize(script.path), "Answer %d. %s" % (number, LONG * chance.randrange(1, 20))))
        script.answer(answers[-1][1])
    data = script.path.read_bytes()
    expected = replay(desk, data, script.path, desk.root / "one", [])
    cuts = {chance.randrange(start, data.find(b"\n", start) + 1) for start, _ in answers if chance.random() < 0.7}
    assert replay(desk, data, script.path, desk.root / "two", cuts, answers) == expected


def test_a_stop_at_every_line_and_in_the_middle_of_each_gives_the_same_segments(desk):
    script = desk.script(start=1_750_000_000)
    talk(script, 25)
    data = script.path.read_bytes()
    ends = [place + 1 for place in range(len(data)) if data[place:place + 1] == b"\n"]
    expected = replay(desk, data, script.path, desk.root / "one", [])
    assert replay(desk, data, script.path, desk.root / "two", ends[:-1]) == expected
    assert replay(desk, data, script.path, desk.root / "three", [place - 40 for place in ends] + ends[:-1]) == expected


# ---- long texts


@pytest.mark.parametrize("text", [LONG * 700, "\n\n".join(LONG * count for count in range(1, 30)), "x" * 50_000, "日本語。\n" * 9_000],
                         ids=["sentences", "paragraphs", "one word", "wide"])
def test_long_prompts_and_answers_are_kept_to_the_last_character(desk, text):
    script = desk.script()
    script.prompt("P" + text)
    stop(desk, script)
    script.answer("A" + text)
    stop(desk, script, "A" + text)
    end(desk, script)
    assert len(segments(desk)) > 2 and all(len(turn[2]) <= memhook.TURN_CHARS for item in segments(desk) for turn in item[4])
    drain(desk)
    assert desk.said() == [("prompt", "P" + text), ("answer", "A" + text)]
    assert not any("left out" in path.read_text("utf-8") for path in (desk.home / "memories").rglob("*.md"))


def test_a_line_of_twenty_megabytes_is_the_drains_and_hides_nothing(desk):
    script = desk.script()
    script.prompt("Before.")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 1_800_000}}
    script.prompt([{"type": "text", "text": "What is on this?"}, image])
    script.answer("A chart.")
    stop(desk, script, live=True)
    end(desk, script, live=True)
    drain(desk)
    assert desk.said() == [("prompt", "Before."), ("prompt", "What is on this?\n[image]"), ("answer", "A chart.")]


# ---- the last message


def test_a_last_message_ahead_of_the_file_is_kept_once_and_as_the_line_that_brings_it(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    line = script.answer("THE CONCLUSION")
    stop(desk, script, "THE CONCLUSION")
    end(desk, script)
    drain(desk)
    (memory,) = desk.memories()
    assert [(turn.line, turn.text) for turn in memory.turns if turn.kind == "answer"] == [(line["uuid"], "THE CONCLUSION")]


def test_a_last_message_whose_line_comes_before_the_session_ends_is_kept_once(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    script.answer("THE CONCLUSION")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["THE CONCLUSION"]


def test_a_last_message_that_never_reaches_the_file_is_the_last_turn(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    end(desk, script)
    drain(desk)
    assert desk.said() == [("prompt", "Conclude."), ("answer", "THE CONCLUSION")]


def test_a_last_message_of_a_session_that_is_found_dead_is_the_last_turn(desk, monkeypatch):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    at_clock(monkeypatch, time.time() + 3 * 3600)
    drain(desk)
    assert desk.said() == [("prompt", "Conclude."), ("answer", "THE CONCLUSION")]


def test_a_line_that_comes_after_the_end_is_not_kept_a_second_time(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    end(desk, script)
    script.answer("THE CONCLUSION")
    script.add({"type": "last-prompt", "lastPrompt": "Conclude.", "sessionId": script.session})
    drain(desk)
    stop(desk, script)
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["THE CONCLUSION"]


def test_a_line_that_came_late_is_not_kept_when_it_comes_again(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    end(desk, script)
    line = script.answer("THE CONCLUSION")
    end(desk, script)
    script.add(line)
    end(desk, script)
    end(desk, fork(script, desk))
    drain(desk)
    assert texts(desk) == ["THE CONCLUSION"]


def test_the_same_answer_to_two_prompts_is_kept_twice(desk):
    script = desk.script()
    for number in range(2):
        script.prompt("Do step %d." % number)
        stop(desk, script, "Done.")
        script.answer("Done.")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["Done.", "Done."]


def test_the_same_answer_is_kept_twice_where_the_second_never_reaches_the_file(desk):
    script = desk.script()
    script.prompt("Do step 0.")
    script.answer("Done.")
    stop(desk, script, "Done.")
    script.prompt("Do step 1.")
    stop(desk, script, "Done.")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["Done.", "Done."]


def test_the_same_answer_is_kept_again_after_one_that_never_reached_the_file(desk):
    script = desk.script()
    script.prompt("Do step 0.")
    stop(desk, script, "Done.")
    end(desk, script)
    script.clock = time.time()
    script.prompt("Do step 1.")
    script.answer("Done.")
    stop(desk, script, "Done.", live=True)
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["Done.", "Done."]


def test_an_answer_is_kept_once_where_the_next_prompt_is_in_the_file_before_its_stop(desk):
    script = desk.script()
    script.prompt("Do step 0.")
    script.answer("Done with step 0.")
    script.prompt("Do step 1.")
    stop(desk, script, "Done with step 0.")
    script.answer("Done with step 1.")
    stop(desk, script, "Done with step 1.")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["Done with step 0.", "Done with step 1."]


def test_two_stops_with_one_message_keep_it_once(desk):
    script = desk.script()
    script.prompt("Wait for the subagent.")
    stop(desk, script, "Waiting.")
    stop(desk, script, "Waiting.")
    script.answer("Waiting.")
    stop(desk, script, "Waiting.")
    stop(desk, script, "Waiting.")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["Waiting."]


def test_a_message_that_never_came_is_kept_when_a_newer_one_comes(desk):
    script = desk.script()
    script.prompt("First.")
    stop(desk, script, "Answer one.")
    script.prompt("Second.")
    stop(desk, script, "Answer two.")
    script.answer("Answer two.")
    end(desk, script)
    drain(desk)
    assert sorted(texts(desk)) == ["Answer one.", "Answer two."]


@pytest.mark.parametrize("joint", ["\n\n", "\n", ""])
def test_a_message_of_several_blocks_is_kept_once(desk, joint):
    script = desk.script()
    script.prompt("Answer in blocks.")
    stop(desk, script, joint.join(["Part one.", "Part two."]))
    script.add(script.line("assistant", [{"type": "text", "text": "Part one."}, {"type": "text", "text": "Part two."}]))
    end(desk, script)
    drain(desk)
    assert "".join("".join(texts(desk)).split()) == "Partone.Parttwo."


def test_a_message_that_is_the_last_of_several_lines_is_kept_once(desk):
    script = desk.script()
    script.prompt("Answer in lines.")
    script.answer("I look first.")
    script.tool("Bash", command="ls")
    stop(desk, script, "Then I conclude.")
    script.answer("Then I conclude.")
    stop(desk, script, "Then I conclude.")
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["I look first.", "Then I conclude."]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_last_message_longer_than_a_turn_is_kept_whole_and_once(desk, arrives):
    script, message = desk.script(), LONG * 200
    script.prompt("Tell me everything.")
    stop(desk, script, message)
    if arrives:
        script.answer(message)
        stop(desk, script, message)
    end(desk, script)
    drain(desk)
    assert [text.strip() for text in texts(desk)] == [message.strip()]


def test_space_around_a_last_message_makes_no_difference(desk):
    script = desk.script()
    script.prompt("Conclude.")
    stop(desk, script, "THE CONCLUSION")
    script.answer("\nTHE CONCLUSION\n")
    end(desk, script)
    drain(desk)
    assert [text.strip() for text in texts(desk)] == ["THE CONCLUSION"]


def test_a_secret_in_a_last_message_is_written_nowhere(desk):
    script, secret = desk.script(), "ghp_" + "a1B2" * 9
    script.prompt("Which token?")
    stop(desk, script, "It is %s." % secret)
    assert not any(secret.encode() in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())
    script.answer("It is %s." % secret)
    end(desk, script)
    drain(desk)
    assert texts(desk) == ["It is [redacted:github-token]."]


@pytest.mark.parametrize("message", ["(no content)", "No response requested.", "", "  "])
def test_a_last_message_that_says_nothing_is_no_answer(desk, message):
    script = desk.script()
    script.prompt("Anything?")
    stop(desk, script, message)
    end(desk, script, message)
    drain(desk)
    assert desk.said() == [("prompt", "Anything?")]


def test_a_last_message_of_a_folder_that_is_off_is_withheld_wherever_the_hook_runs(desk):
    secret = desk.root / "secret"
    secret.mkdir()
    (secret / ".memhook-off").touch()
    script = desk.script()
    script.cwd = str(secret)
    script.prompt("In secret.")
    stop(desk, script, "A secret answer.", cwd=desk.project)
    script.answer("A secret answer.")
    stop(desk, script, "A secret answer.", cwd=desk.project)
    end(desk, script)
    drain(desk)
    assert desk.said() == [] and not any(b"secret answer" in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("dead", [False, True])
def test_a_session_without_any_transcript_keeps_its_last_message_in_its_project(desk, monkeypatch, dead):
    script = desk.script()
    stop(desk, script, "THE CONCLUSION")
    if dead:
        at_clock(monkeypatch, time.time() + 3 * 3600)
    else:
        end(desk, script)
    drain(desk)
    (memory,) = desk.memories()
    assert texts(desk) == ["THE CONCLUSION"] and memory.front["project"] == os.path.realpath(desk.project)


def test_a_session_end_whose_transcript_never_existed_leaves_nothing(desk, monkeypatch):
    script = desk.script()
    end(desk, script)
    at_clock(monkeypatch, time.time() + 3 * 3600)
    assert drain(desk)["stored"] == 0 and list((desk.home / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_a_transcript_that_is_no_file_is_left_alone(box, kind):
    path = box.config / "projects" / "p" / "odd.jsonl"
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    started = time.monotonic()
    done = box.hook("Stop", path, last_assistant_message="The last.")
    assert (done.returncode, done.stdout) == (0, b"") and time.monotonic() - started < 20


@pytest.mark.parametrize("in_the_way", ["bytes", "quota"])
def test_messages_told_while_lines_are_unread_are_stored_once_and_in_their_place(box, in_the_way):
    """A hook leaves bytes to the drain; before that comes, more Stops tell of answers whose lines are among them."""
    script = box.script()
    said = []
    for number in range(5_000):  # 55 segments: three hooks queue 48 at most, however fast the machine; the quota lets through one
        script.prompt("History %d? %s" % (number, LONG))
        said.append(("prompt", "History %d? %s" % (number, LONG)))
    box.env["MEMHOOK_QUOTA_MAX"] = "1" if in_the_way == "quota" else "60"
    for number in range(3):
        answer = "The answer %d, which is long enough that nobody would ever give it twice by chance." % number
        script.prompt("Question %d?" % number)
        script.answer(answer)
        said += [("prompt", "Question %d?" % number), ("answer", answer)]
        box.hook("Stop", script, last_assistant_message=answer)
        assert box.checkpoint(script)["deferred"], "the hook read everything"
    box.drain()
    box.hook("SessionEnd", script)
    box.drain()
    assert box.said() == said
    assert box.run("verify", check=False).returncode == 0


def test_a_message_whose_line_never_came_stands_before_the_next_prompt(desk):
    script = desk.script(start=time.time())  # what comes next is said after what was told
    script.prompt("First?")
    stop(desk, script, "The first answer, of which the file has no line.")
    script.prompt("Second?")
    script.answer("The second answer.")
    stop(desk, script, "The second answer.")
    end(desk, script)
    drain(desk)
    assert [text for _, text in desk.said()] == ["First?", "The first answer, of which the file has no line.", "Second?", "The second answer."]


def test_a_prompt_that_was_typed_ahead_and_written_after_the_message_is_not_the_next_one(desk):
    """Client 2.1.197 writes the queued prompt, then the answer to it, after Stop has told of that answer."""
    script = desk.script(start=time.time() - 60)
    script.prompt("Run it.")
    stop(desk, script, "It ran, and everything you asked for meanwhile is done as well.")
    script.prompt("And tidy up.")
    script.answer("It ran, and everything you asked for meanwhile is done as well.")
    stop(desk, script)
    script.clock = time.time() + 1
    script.prompt("Thanks.")
    end(desk, script)
    drain(desk)
    assert [text for _, text in desk.said()] == [
        "Run it.", "And tidy up.", "It ran, and everything you asked for meanwhile is done as well.", "Thanks."]


def test_of_two_messages_without_lines_each_is_kept_also_if_they_say_the_same(desk):
    script = desk.script(start=time.time())  # what comes next is said after what was told
    for question in ("First?", "Second?"):
        script.prompt(question)
        stop(desk, script, "Done.")
    script.answer("Done.")  # the line of the second
    end(desk, script)
    drain(desk)
    assert [text for _, text in desk.said()] == ["First?", "Done.", "Second?", "Done."]


# ---- forks


def fork(script, box, session="forked-0001", lines=None):
    """A new transcript that begins with the lines of another: same uuids and times, another session."""
    other = box.script(session, start=script.clock)
    other.count = script.count
    for raw in script.path.read_bytes().split(b"\n")[:-1][:lines]:
        other.add({**json.loads(raw), "sessionId": session})
    return other


def test_of_a_fork_only_the_new_lines_are_captured(desk):
    script = desk.script()
    said = talk(script, 20)
    end(desk, script)
    other = fork(script, desk)
    assert end(desk, other).repeats == 40
    said += talk(other, 1, 20)
    done = end(desk, other)
    assert done.turns == 2
    drain(desk)
    assert sorted(desk.said()) == sorted(said)


@pytest.mark.parametrize("first", ["original", "fork"])
@pytest.mark.parametrize("place", ["the same folder", "another worktree"])
def test_what_is_still_open_in_the_original_is_stored_once_whichever_ends_first(desk, first, place):
    """A fork made in another worktree is written, copied lines first, into the folder of that worktree."""
    script = desk.script()
    said = talk(script, 10)
    stop(desk, script)
    other = fork(script, desk)
    if place == "another worktree":
        folder = other.path.parent.with_name("tree")
        folder.mkdir()
        other.path = other.path.rename(folder / other.path.name)
    said += talk(other, 2, 10)
    stop(desk, other)
    script.session = "session-0002"
    said += talk(script, 2, 20)
    for one in (script, other) if first == "original" else (other, script):
        end(desk, one)
        drain(desk)
    assert sorted(desk.said()) == sorted(said)
    assert desk.run("verify", check=False).returncode == 0


def test_a_fork_of_a_fork_repeats_nothing(desk):
    script = desk.script()
    said = talk(script, 5)
    end(desk, script)
    second = fork(script, desk, "forked-0001")
    said += talk(second, 5, 5)
    end(desk, second)
    third = fork(second, desk, "forked-0002")
    said += talk(third, 5, 10)
    end(desk, third)
    drain(desk)
    assert sorted(desk.said()) == sorted(said)


@pytest.mark.parametrize("drained", [True, False])
@pytest.mark.parametrize("ended", [True, False])
def test_a_session_that_moved_with_its_project_repeats_nothing(desk, ended, drained):
    """A project's folder is renamed, and Claude's folder for it as well, so that --resume goes on finding its sessions."""
    script = desk.script()
    said = talk(script, 3)
    end(desk, script)  # a tail in the middle: read again from the start, the same turns are cut otherwise
    said += talk(script, 10, 3)
    end(desk, script) if ended else stop(desk, script)
    if drained:
        drain(desk)
    moved = script.path.parent.with_name("moved")
    script.path.parent.rename(moved)
    script.path = moved / script.path.name
    said += talk(script, 4, 13)
    done = end(desk, script)
    assert done.repeats >= (26 if ended else 20)
    drain(desk)
    assert sorted(desk.said()) == sorted(said)
    told = desk.run("verify", "--json", check=False)
    assert told.returncode == 0, told.stdout


def test_two_sessions_that_end_alike_at_the_same_byte_are_both_kept(desk):
    """Scripted sessions do: their last answers never reached the file, and all before was of the same length."""
    for session in ("nightly-0001", "nightly-0002"):
        script = desk.script(session)
        script.prompt("Run the checks.")
        end(desk, script, "All is well.")
    drain(desk)
    assert texts(desk) == ["All is well."] * 2


# ---- history that comes again


def test_a_line_that_is_written_again_with_more_words_is_kept_both_times(desk):
    script = desk.script()
    script.prompt("How does it end?")
    script.answer("It ends")
    first = script.path.read_bytes().splitlines()[-1]
    with open(script.path, "ab") as stream:
        for line in (first, first.replace(b"It ends", b"It ends well."), first, first.replace(b"It ends", b"It ends well.")):
            stream.write(line + b"\n")
    end(desk, script)
    drain(desk)
    answers = [turn.text for memory in desk.memories() for turn in memory.turns if turn.kind == "answer"]
    assert answers == ["It ends", "It ends well."]
    assert desk.run("verify", check=False).returncode == 0


@pytest.mark.parametrize("state", ["open", "queued", "drained"])
def test_history_that_a_compaction_appends_again_is_not_kept_again(desk, state):
    script = desk.script()
    said = talk(script, 3 if state == "open" else 12)
    stop(desk, script)
    if state == "drained":
        drain(desk)
    old = script.path.read_bytes()
    script.add({"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted"})
    with open(script.path, "ab") as stream:
        stream.write(old)
    script.prompt("This session is being continued from a previous conversation. Summary.", isCompactSummary=True)
    said += talk(script, 2, 50)
    stop(desk, script, said[-1][1])
    end(desk, script)
    drain(desk)
    assert desk.said() == said


def test_a_spliced_line_loses_no_record_because_another_on_it_was_taken_before(desk):
    script = desk.script()
    first = script.prompt("Said before.")
    end(desk, script)
    new = script.line("assistant", [{"type": "text", "text": "New behind an old one."}])
    script.add(json.dumps(first).encode() + json.dumps(new).encode())
    newer = script.line("user", "New before an old one.")
    script.add(json.dumps(newer).encode() + json.dumps(first).encode())
    end(desk, script)
    drain(desk)
    assert desk.said() == [("prompt", "Said before."), ("answer", "New behind an old one."), ("prompt", "New before an old one.")]


def test_two_typed_ahead_prompts_that_were_used_in_one_moment_are_both_kept(desk):
    script = desk.script()
    script.add(script.line("user", "Begin.", version="2.0.60"))
    moment = memhook.iso(script.clock + 5)
    for text in ("First typed ahead.", "Second typed ahead."):
        script.add({"type": "queue-operation", "operation": "enqueue", "content": text, "timestamp": memhook.iso(script.clock + 1)})
    for _ in range(2):
        script.add({"type": "queue-operation", "operation": "remove", "timestamp": moment})
    end(desk, script)
    drain(desk)
    assert texts(desk, "prompt") == ["Begin.", "First typed ahead.", "Second typed ahead."]


@pytest.mark.parametrize("later", ["user line", "attachment", "nothing"])
def test_a_prompt_typed_ahead_is_kept_once_whatever_becomes_of_it(desk, later):
    script = desk.script()
    script.add(script.line("user", "Begin.", version="2.0.60" if later != "attachment" else "2.1.200"))
    script.add({"type": "queue-operation", "operation": "enqueue", "content": "Typed ahead.", "timestamp": memhook.iso(script.clock + 1)})
    if later == "user line":  # the line that tells of its dequeue is lost
        script.add(script.line("user", "Typed ahead.", version="2.0.60"))
    elif later == "attachment":
        script.add(script.line("attachment", attachment={"type": "queued_command", "prompt": "Typed ahead.", "commandMode": "prompt"}))
    end(desk, script)
    drain(desk)
    assert texts(desk, "prompt") == ["Begin.", "Typed ahead."]


def rewrite(script, keep, in_place=False):
    """The file becomes its last `keep` lines behind a summary, as a compaction that collects garbage leaves it."""
    lines = script.path.read_bytes().split(b"\n")[:-1]
    summary = script.line("user", "This session is being continued from a previous conversation. Summary.", isCompactSummary=True)
    data = b"".join(raw + b"\n" for raw in [json.dumps(summary).encode()] + lines[len(lines) - keep:])
    if in_place:
        script.path.write_bytes(data)
    else:
        temp = script.path.with_suffix(".new")
        temp.write_bytes(data)
        os.replace(temp, script.path)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("turns", [3, 12])
def test_a_transcript_that_is_replaced_by_a_shorter_one_is_read_again_and_nothing_kept_twice(desk, in_place, turns):
    script = desk.script()
    said = talk(script, turns)
    stop(desk, script, said[-1][1])
    rewrite(script, 4, in_place)
    said += talk(script, 3, 50)
    stop(desk, script, said[-1][1])
    end(desk, script)
    assert desk.checkpoint(script)["generation"] == 1 and numbers(desk) == list(range(len(segments(desk))))
    drain(desk)
    assert desk.said() == said


def test_a_transcript_replaced_by_one_of_equal_size_is_read_again(desk):
    script = desk.script()
    said = talk(script, 3)
    stop(desk, script)
    data = script.path.read_bytes()
    status = os.stat(script.path)
    other = script.path.with_suffix(".new")
    other.write_bytes(data.replace(b"Question", b"Ques-ion").replace(b"session-0001-", b"session-9991-"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(other, script.path)
    assert os.stat(script.path).st_size == status.st_size
    end(desk, script)
    drain(desk)
    assert len(desk.said()) == 2 * len(said) and ("prompt", "Ques-ion 2?") in desk.said()


def test_a_transcript_whose_tail_is_rewritten_in_place_is_read_again(desk):
    script = desk.script()
    said = talk(script, 3)
    script.prompt("A prompt that will be taken back.")
    size = os.path.getsize(script.path)
    stop(desk, script)
    os.truncate(script.path, size - 120)
    with open(script.path, "ab") as stream:
        stream.write(b'"}}\n')
    said += talk(script, 2, 50)
    end(desk, script)
    drain(desk)
    assert [pair for pair in desk.said() if "taken back" not in pair[1]] == said


def test_a_transcript_that_is_deleted_and_written_anew_is_read_again(desk):
    script = desk.script()
    said = talk(script, 3)
    stop(desk, script)
    script.path.unlink()
    stop(desk, script)
    said += talk(script, 3, 10)
    end(desk, script)
    drain(desk)
    assert desk.said() == said


def test_what_was_open_when_the_transcript_was_deleted_is_flushed_at_the_end(desk):
    script = desk.script()
    said = talk(script, 3)
    stop(desk, script)
    script.path.unlink()
    end(desk, script)
    drain(desk)
    assert desk.said() == said


# ---- whatever happens


class Life:
    """A session to which things happen; `said` is what must be stored, each once, whatever did."""

    def __init__(self, desk, chance):
        self.desk, self.chance, self.count, self.said = desk, chance, 0, []
        self.script, self.parent = desk.script(), None
        self.scripts = [self.script]
        self.turn()

    def say(self, kind):
        self.count += 1
        text = "%s %d. %s" % (kind, self.count, LONG * self.chance.choice([0, 1, 5, 20, 70]))
        self.said.append((kind, text.strip()))
        return text

    def turn(self):
        prompt = self.script.prompt(self.say("prompt"), parentUuid=self.parent)
        if self.chance.random() < 0.3:
            self.script.tool("Bash", command="make")
            self.script.result("ok")
        answer, told = self.say("answer"), self.chance.random()
        if told < 0.3:
            stop(self.desk, self.script, answer, live=True)
        self.parent = self.script.answer(answer, parentUuid=prompt["uuid"])["uuid"]
        if told > 0.6:
            stop(self.desk, self.script, answer, live=True)

    def stop(self):
        while stop(self.desk, self.script, live=True).deferred:
            pass

    def end(self):
        while end(self.desk, self.script, live=True).deferred:
            pass

    def drain(self):
        drain(self.desk)

    def lose_checkpoint(self):
        self.stop()
        checkpoint_of(self.desk, self.script).unlink()

    def lose_seen(self):
        self.stop()
        (self.desk.home / "seen" / memhook.transcript_key(str(self.script.path))).unlink()

    def append_again(self):
        self.script.add(*self.script.path.read_bytes().split(b"\n")[:-1])

    def rewrite(self):
        self.stop()
        rewrite(self.script, self.chance.randrange(1, 9), self.chance.random() < 0.5)
        self.stop()

    def fork(self):
        self.stop()
        self.script = fork(self.script, self.desk, "forked-%04d" % len(self.scripts))
        self.scripts.append(self.script)

    def back(self):
        self.script = self.chance.choice(self.scripts)


def joined(desk):
    """(kind, text) of what is stored. The parts of a long text may lie in memories of two sessions, where one is a fork of the other."""
    parts = {}
    for memory in desk.memories():
        for turn in memory.turns:
            if turn.kind in ("prompt", "answer"):
                parts.setdefault((turn.line, turn.kind), []).append((int(turn.key.rpartition("/")[2]), turn.text))
    return [(kind, "".join(text for _, text in sorted(found)).strip()) for (_, kind), found in parts.items()]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_each_prompt_and_each_answer_is_stored_once(desk, seed):
    """Of the checkpoint and the traces of what was taken one may be lost; together they are the proof."""
    desk.env["MEMHOOK_QUOTA_MAX"] = "100000"
    life = Life(desk, random.Random(seed))
    lost = ["lose_checkpoint", "lose_seen"][seed % 2]
    for _ in range(20):
        for _ in range(life.chance.randrange(4)):
            life.turn()
        getattr(life, life.chance.choice(["stop", "end", "drain", lost, "append_again", "rewrite", "fork", "back"]))()
    for life.script in life.scripts:
        life.end()
    drain(desk)
    assert sorted(joined(desk)) == sorted(life.said)


# ---- after the end


def test_what_a_transcript_gets_after_its_end_is_captured_by_the_drain(desk):
    script = desk.script()
    said = talk(script, 10)
    end(desk, script)
    script.add({"type": "last-prompt", "lastPrompt": "x", "sessionId": script.session})
    assert drain(desk)["stored"] == 2
    said += talk(script, 2, 10)
    assert drain(desk)["stored"] == 1
    assert desk.said() == said and [memory.front["segment"] for memory in desk.memories()] == [0, 1, 2]


def test_a_whole_last_line_without_a_newline_is_taken_at_the_end_and_not_again_when_the_newline_comes(desk):
    script = desk.script()
    script.prompt("First.")
    with open(script.path, "ab") as stream:
        stream.write(json.dumps(script.line("assistant", [{"type": "text", "text": "Unterminated."}])).encode())
    stop(desk, script)
    assert len(desk.checkpoint(script)["turns"]) == 1
    end(desk, script)
    with open(script.path, "ab") as stream:
        stream.write(b"\n")
    said = talk(script, 1)
    end(desk, script)
    drain(desk)
    assert desk.said() == [("prompt", "First."), ("answer", "Unterminated.")] + said


def test_a_torn_last_line_is_taken_when_the_rest_of_it_comes(desk):
    script = desk.script()
    raw = json.dumps(script.line("user", "In two writes.")).encode() + b"\n"
    for part in (raw[:50], raw[50:-1]):
        with open(script.path, "ab") as stream:
            stream.write(part)
        stop(desk, script)
        assert desk.checkpoint(script)["parsed"] == 0
    with open(script.path, "ab") as stream:
        stream.write(b"\n")
    end(desk, script)
    drain(desk)
    assert desk.said() == [("prompt", "In two writes.")]


def test_a_resumed_session_is_open_again_and_its_open_turns_are_not_flushed_by_the_drain(box):
    script = box.script()
    said = talk(script, 2)
    box.hook("SessionEnd", script, reason="prompt_input_exit")
    for _ in range(2):
        box.hook("SessionStart", script, source="resume")
    said += talk(script, 2, 2)
    box.hook("Stop", script)
    assert box.drain()["stored"] == 1 and box.checkpoint(script)["state"] == "open"
    box.hook("SessionEnd", script, reason="prompt_input_exit")
    box.drain()
    assert box.said() == said


# ---- lost state

LOSSES = {
    "deleted": lambda data: None,
    "empty": lambda data: b"",
    "cut in half": lambda data: data[:len(data) // 2],
    "without its last brace": lambda data: data.rstrip()[:-1],
    "no JSON": lambda data: b"\0" * len(data),
    "another object": lambda data: b'{"format":1}',
    "a list": lambda data: b"[]",
    "mistyped": lambda data: json.dumps({**json.loads(data), "context": "x"}).encode(),
    "mistyped turns": lambda data: json.dumps({**json.loads(data), "turns": {"a": 1}}).encode(),
    "mistyped format": lambda data: json.dumps({**json.loads(data), "format": "x"}).encode(),
    "mistyped offset": lambda data: json.dumps({**json.loads(data), "parsed": "x", "head": None}).encode(),
    "an offset before the start": lambda data: json.dumps({**json.loads(data), "parsed": -1}).encode(),
    "a fraction for a number": lambda data: json.dumps({**json.loads(data), "segment": 1.5, "generation": 0.5}).encode(),
    "a turn without a place": lambda data: json.dumps({**json.loads(data), "turns": [[*turn[:7], 1, None] for turn in json.loads(data)["turns"]]}).encode(),
    "projects that are none": lambda data: json.dumps({**json.loads(data), "projects": {cwd: 1 for cwd in json.loads(data)["projects"]}}).encode(),
    "ranges that are none": lambda data: json.dumps({**json.loads(data), "withheld": [1], "early": [2]}).encode(),
}


def spoil(path, how):
    data = LOSSES[how](path.read_bytes())
    path.unlink() if data is None else path.write_bytes(data)


def checkpoint_of(box, script):
    return box.home / "checkpoints" / (memhook.transcript_key(str(script.path)) + ".json")


@pytest.mark.parametrize("how", LOSSES)
def test_a_lost_checkpoint_costs_nothing_and_repeats_nothing(desk, how):
    script = desk.script()
    said = talk(script, 12)
    stop(desk, script, said[-1][1])
    spoil(checkpoint_of(desk, script), how)
    said += talk(script, 12, 12)
    stop(desk, script, said[-1][1])
    end(desk, script)
    assert numbers(desk) == list(range(len(segments(desk))))
    drain(desk)
    assert desk.said() == said


def test_a_checkpoint_lost_after_a_full_segment_does_not_bring_the_last_answer_twice(desk):
    script = desk.script()
    said = talk(script, 7)
    script.prompt("The last question of the segment?")
    script.answer(LONG * 20)
    said += [("prompt", "The last question of the segment?"), ("answer", LONG * 20)]
    stop(desk, script, LONG * 20)
    assert len(segments(desk)) == 1 and desk.checkpoint(script)["turns"] == []
    checkpoint_of(desk, script).unlink()
    stop(desk, script, LONG * 20)
    end(desk, script)
    drain(desk)
    assert [(kind, text.strip()) for kind, text in desk.said()] == [(kind, text.strip()) for kind, text in said]


@pytest.mark.parametrize("how", LOSSES)
def test_a_damaged_checkpoint_of_a_dead_session_loses_nothing_and_keeps_the_drain_from_no_other(desk, monkeypatch, how):
    said = []
    for number, session in enumerate(("session-0001", "session-0002")):
        script = desk.script(session)
        said += talk(script, 12, 20 * number)
        stop(desk, script)
    spoil(checkpoint_of(desk, desk.script("session-0001")), how)
    at_clock(monkeypatch, time.time() + 3 * 3600)
    drain(desk)
    assert desk.said() == said


def test_a_checkpoint_of_a_newer_program_is_left_as_it_is(desk):
    script = desk.script()
    talk(script, 1)
    stop(desk, script)
    path = checkpoint_of(desk, script)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "format": 99}))
    before = path.read_bytes()
    with pytest.raises(memhook.StateError):
        stop(desk, script)
    drain(desk)
    assert path.read_bytes() == before


def test_a_checkpoint_with_any_byte_changed_never_stops_the_capture(desk):
    """Only where the change makes it one of a newer program is it left as it is."""
    script, chance, newer = desk.script(), random.Random(5), 0
    talk(script, 2)
    stop(desk, script)
    path = checkpoint_of(desk, script)
    sound = path.read_bytes()
    for _ in range(100):
        spoiled = bytearray(sound)
        for _ in range(chance.randrange(1, 4)):
            spoiled[chance.randrange(len(spoiled))] = chance.choice(b'0123456789abc"{}[],: \0\xff')
        path.write_bytes(bytes(spoiled))
        script.add({"type": "file-history-snapshot", "messageId": "m", "snapshot": {}})
        try:
            stop(desk, script)
            assert desk.checkpoint(script)["parsed"] == os.path.getsize(script.path), bytes(spoiled)
        except memhook.StateError:
            assert json.loads(spoiled)["format"] > memhook.CHECKPOINT_FORMAT
            newer += 1
    assert newer < 5


@pytest.mark.parametrize("how", ["seen", "seen and checkpoint"])
def test_lost_traces_of_what_was_taken_store_nothing_twice(desk, how):
    script = desk.script()
    said = talk(script, 12)
    stop(desk, script)
    drain(desk)
    (desk.home / "seen" / memhook.transcript_key(str(script.path))).unlink()
    if how != "seen":
        checkpoint_of(desk, script).unlink()
    rewrite(script, 24)
    said += talk(script, 2, 50)
    end(desk, script)
    drain(desk)
    assert desk.said() == said


# ---- withheld


def ranges(box, script):
    return box.checkpoint(script)["withheld"]


def test_what_was_said_before_the_consent_is_withheld_and_recorded(desk):
    script = desk.script(start=CONSENTED - 1_000)
    talk(script, 2)
    size = os.path.getsize(script.path)
    script.clock = CONSENTED
    said = talk(script, 2, 2)
    end(desk, script)
    drain(desk)
    assert desk.said() == said and ranges(desk, script) == [[0, size, "before"]]


def test_what_is_said_in_a_pause_is_withheld_and_recorded(box):
    script = box.script()

    def say(text):
        start = os.path.getsize(script.path) if script.path.exists() else 0
        script.prompt(text, timestamp=memhook.iso(time.time()))
        script.answer("Yes: " + text, timestamp=memhook.iso(time.time()))
        box.hook("Stop", script, last_assistant_message="Yes: " + text)
        return start, os.path.getsize(script.path)
    say("Before the pause.")
    box.run("pause")
    time.sleep(0.05)
    start, _ = say("In the pause.")
    _, stop_at = say("Still in it.")
    box.run("resume")
    time.sleep(0.05)
    say("After the pause.")
    box.run("pause")
    time.sleep(0.05)
    second = say("In a second pause.")
    box.run("resume")
    box.hook("SessionEnd", script, reason="other")
    box.drain()
    assert texts(box, "prompt") == ["Before the pause.", "After the pause."]
    assert ranges(box, script) == [[start, stop_at, "paused"], [second[0], second[1], "paused"]]
    assert not any(b"In the pause" in path.read_bytes() for path in box.home.rglob("*") if path.is_file())


def test_a_pause_that_has_not_ended_keeps_everything_out(box):
    script = box.script()
    box.run("install", "--off")
    script.clock = time.time()
    talk(script, 3)
    box.hook("Stop", script, last_assistant_message="Secret.")
    box.hook("SessionEnd", script)
    assert box.drain()["stored"] == 0 and not (box.home / "checkpoints").exists() and not (box.home / "spool").exists()


def test_an_answer_of_a_pause_is_not_taken_from_a_later_last_message(desk):
    script = desk.script(start=1_750_000_000)
    consent(desk, pauses=[[1_750_000_000, 1_750_000_010]])
    script.prompt("In the pause.")
    script.answer("Not to be kept.")
    stop(desk, script, "Not to be kept.")
    end(desk, script)
    drain(desk)
    assert desk.said() == [] and not any(b"Not to be kept" in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("word", ["1", "true", "Yes", "ON"])
def test_a_session_with_memhook_off_set_is_withheld(box, word):
    script = box.script()
    box.env["MEMHOOK_OFF"] = word
    talk(script, 12)
    box.hook("SessionStart", script, source="startup")
    box.hook("Stop", script, last_assistant_message="Secret.")
    box.hook("SessionEnd", script)
    del box.env["MEMHOOK_OFF"]
    assert box.drain()["stored"] == 0 and ranges(box, script) == [[0, os.path.getsize(script.path), "off"]]
    assert not any(b"Question" in path.read_bytes() or b"Secret" in path.read_bytes() for path in box.home.rglob("*") if path.is_file())


@pytest.mark.parametrize("then", ["nothing", "replaced", "appended again", "forked", "checkpoint lost"])
def test_what_was_said_with_memhook_off_stays_out_when_the_session_goes_on_without_it(desk, then):
    script = desk.script()
    talk(script, 3)
    stop(desk, script, off=True, live=True)
    end(desk, script, off=True, live=True)
    old = script.path.read_bytes()
    if then == "replaced":
        rewrite(script, 4)
    elif then == "appended again":
        with open(script.path, "ab") as stream:
            stream.write(old)
    elif then == "forked":
        script = fork(script, desk)
    elif then == "checkpoint lost":
        checkpoint_of(desk, script).unlink()
    said = talk(script, 2, 10)
    stop(desk, script, live=True)
    end(desk, script, live=True)
    drain(desk)
    assert desk.said() == said


def test_what_was_said_with_memhook_off_and_never_read_stays_out_when_the_session_goes_on_without_it(box):
    """The session was killed before its first Stop; SessionStart had noted that it is switched off."""
    script = box.script()
    box.env["MEMHOOK_OFF"] = "1"
    box.hook("SessionStart", script, source="startup")
    talk(script, 3)
    del box.env["MEMHOOK_OFF"]
    box.hook("SessionStart", script, source="resume")
    said = talk(script, 2, 10)
    box.hook("Stop", script)
    box.hook("SessionEnd", script)
    box.drain()
    assert box.said() == said


@pytest.mark.parametrize("place", [".", "..", "../.."])
def test_a_project_with_a_switch_at_or_above_it_is_withheld(desk, place):
    folder = desk.project / "a" / "b"
    folder.mkdir(parents=True)
    (folder / place / ".memhook-off").touch()
    script = desk.script()
    script.cwd = str(folder)
    talk(script, 2)
    stop(desk, script, "Secret.", cwd=folder)
    end(desk, script, cwd=folder)
    drain(desk)
    assert desk.said() == [] and ranges(desk, script) == [[0, os.path.getsize(script.path), "off"]]
    assert not any(b"Secret" in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())


def test_only_the_turns_whose_own_folder_is_off_are_withheld(desk):
    secret = desk.root / "secret"
    secret.mkdir()
    (secret / ".memhook-off").touch()
    script = desk.script()
    said = talk(script, 1)
    start, script.cwd = os.path.getsize(script.path), str(secret)
    talk(script, 1, 1)
    size, script.cwd = os.path.getsize(script.path), str(desk.project)
    said += talk(script, 1, 2)
    end(desk, script)
    drain(desk)
    assert desk.said() == said and ranges(desk, script) == [[start, size, "off"]]


def test_withheld_ranges_of_different_reasons_and_places_stay_apart(desk):
    consent(desk, at=1_750_000_000, pauses=[[1_750_000_100, 1_750_000_200], [1_750_000_300, 1_750_000_400]])
    script, marks, said = desk.script(start=1_749_999_000), [0], []
    for number, at in enumerate((1_749_999_000, 1_750_000_000, 1_750_000_100, 1_750_000_210, 1_750_000_300)):
        script.clock = at
        spoken = talk(script, 2, 10 * number)
        said += spoken if number in (1, 3) else []
        marks.append(os.path.getsize(script.path))
        stop(desk, script)
    end(desk, script)
    drain(desk)
    assert desk.said() == said
    assert ranges(desk, script) == [[marks[0], marks[1], "before"], [marks[2], marks[3], "paused"], [marks[4], marks[5], "paused"]]


# ---- our own summariser


def test_a_session_whose_first_prompt_bears_our_mark_is_never_captured(desk):
    script = desk.script()
    script.prompt(memhook.CHILD_MARK + "\nSummarise this.")
    script.answer("A digest. " + LONG * 200)
    stop(desk, script, "A digest.")
    talk(script, 12)
    end(desk, script, "A digest.")
    assert drain(desk)["stored"] == 0 and desk.spooled() == [] and desk.checkpoint(script)["own"] is True


@pytest.mark.parametrize("file", ["there", "missing"])
def test_a_session_that_runs_inside_our_home_is_never_captured(desk, file):
    folder = desk.home / "work"
    folder.mkdir()
    script = desk.script()
    script.cwd = str(folder)
    if file == "there":
        talk(script, 12)
    stop(desk, script, "A digest.", cwd=folder)
    end(desk, script, "A digest.", cwd=folder)
    assert drain(desk)["stored"] == 0 and not any(b"A digest" in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())


def test_a_session_of_ours_that_no_hook_told_of_is_not_captured_by_the_drain(desk, monkeypatch):
    script = desk.script()
    script.prompt(memhook.CHILD_MARK + "\nSummarise this.")
    script.answer("A digest.")
    at_clock(monkeypatch, time.time() + 3 * 3600)
    assert drain(desk)["stored"] == 0


def test_our_mark_anywhere_else_is_a_persons_text(desk):
    script = desk.script()
    mark = memhook.CHILD_MARK
    said = [("prompt", "What does %s mean?" % mark), ("answer", mark), ("prompt", mark + " as a second prompt")]
    for kind, text in said:
        script.prompt(text) if kind == "prompt" else script.answer(text)
    stop(desk, script)
    end(desk, script)
    drain(desk)
    assert desk.said() == said


def test_a_session_is_ours_for_ever_also_when_its_file_is_replaced(desk):
    script = desk.script()
    script.prompt(memhook.CHILD_MARK + "\nSummarise this.")
    script.answer("A digest.")
    stop(desk, script)
    script.path.unlink()
    talk(script, 3)
    end(desk, script)
    assert drain(desk)["stored"] == 0


# ---- projects


def git(folder, *args):
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    settings = ["user.name=a", "user.email=a@example.com", "protocol.file.allow=always", "init.defaultBranch=main"]
    given = [word for setting in settings for word in ("-c", setting)]
    subprocess.run(["git", *given, *args], cwd=folder, env=environ, check=True, capture_output=True)


def repository(folder, remote=None):
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    if remote:
        git(folder, "remote", "add", "origin", remote)
    return folder


@pytest.mark.parametrize("remote", [
    "git@github.com:acme/shop.git", "git@github.com:acme/shop", "github.com:acme/shop.git", "git@github.com:/acme/shop.git",
    "ssh://git@github.com/acme/shop.git", "ssh://git@github.com:22/acme/shop.git", "git+ssh://git@github.com/acme/shop",
    "https://github.com/acme/shop.git", "https://github.com/acme/shop/", "https://github.com:443/acme/shop.git",
    "https://GitHub.com/acme/shop.git", "https://ada@github.com/acme/shop.git", "git://github.com/acme/shop.git",
    "https://ada:%s@github.com/acme/shop.git" % ("ghp_" + "a1B2" * 9),
])
def test_every_spelling_of_a_remote_is_one_project(desk, remote):
    assert memhook.project_key(str(repository(desk.root / "shop", remote))) == "github.com/acme/shop"


def test_a_remote_that_is_a_folder_is_that_folder(desk):
    bare = desk.root / "bare" / "shop.git"
    bare.mkdir(parents=True)
    for number, remote in enumerate((str(bare), "file://%s" % bare, "../bare/shop.git")):
        assert memhook.project_key(str(repository(desk.root / ("shop%d" % number), remote))) == os.path.realpath(bare)[:-len(".git")]


def test_only_the_remote_called_origin_counts(desk):
    shop = repository(desk.root / "shop")
    git(shop, "remote", "add", "upstream", "https://github.com/other/shop.git")
    assert memhook.project_key(str(shop)) == os.path.realpath(shop)
    git(shop, "remote", "add", "origin", "https://github.com/acme/shop.git")
    git(shop, "config", "remote.origin.pushurl", "https://github.com/push/shop.git")
    assert memhook.project_key(str(shop)) == "github.com/acme/shop"


def test_without_a_repository_the_project_is_the_folder(desk):
    folder = desk.root / "plain" / "sub"
    folder.mkdir(parents=True)
    assert memhook.project_key(str(folder)) == os.path.realpath(folder)


def test_a_repository_whose_files_cannot_be_read_is_a_project_all_the_same(desk):
    """As another user's: "config" is a folder here, for root may read every file."""
    shop = desk.root / "shop"
    (shop / ".git" / "config").mkdir(parents=True)
    (shop / "src").mkdir()
    assert memhook.project_key(str(shop / "src")) == os.path.realpath(shop) == memhook.project_key(str(shop), separate_worktrees=True)


def test_a_folder_that_is_gone_is_a_project_all_the_same(desk):
    assert memhook.project_key(str(desk.root / "gone")) == os.path.realpath(desk.root / "gone")


def test_a_folder_in_a_repository_belongs_to_it(desk):
    shop = repository(desk.root / "shop")
    (shop / "src" / "deep").mkdir(parents=True)
    assert memhook.project_key(str(shop / "src" / "deep")) == memhook.project_key(str(shop)) == os.path.realpath(shop)


@pytest.mark.parametrize("remote", [None, "git@github.com:acme/shop.git"])
def test_a_worktree_belongs_to_its_repository_unless_a_setting_says_otherwise(desk, remote):
    shop = repository(desk.root / "shop", remote)
    git(shop, "worktree", "add", "-q", str(desk.root / "elsewhere" / "tree"))
    tree = desk.root / "elsewhere" / "tree"
    assert memhook.project_key(str(tree)) == memhook.project_key(str(shop)) == (remote and "github.com/acme/shop" or os.path.realpath(shop))
    assert memhook.project_key(str(tree), separate_worktrees=True) == memhook.project_key(str(shop)) + "#tree"
    assert memhook.project_key(str(shop), separate_worktrees=True) == memhook.project_key(str(shop))


def test_two_worktrees_of_one_name_are_two_projects_where_they_are_separate(desk):
    shop = repository(desk.root / "shop")
    for place in ("one", "two"):
        git(shop, "worktree", "add", "-q", "-b", place, str(desk.root / place / "tree"))
    keys = {memhook.project_key(str(desk.root / place / "tree"), separate_worktrees=True) for place in ("one", "two")}
    assert len(keys) == 2


def test_a_submodule_is_a_project_of_its_own(desk):
    part = repository(desk.root / "part")
    shop = repository(desk.root / "shop", "git@github.com:acme/shop.git")
    git(shop, "submodule", "add", "-q", str(part), "lib/part")
    (shop / "lib" / "part" / "src").mkdir()
    assert memhook.project_key(str(shop / "lib" / "part" / "src")) == os.path.realpath(part)
    git(shop / "lib" / "part", "remote", "remove", "origin")
    alone = memhook.project_key(str(shop / "lib" / "part"))
    assert alone != memhook.project_key(str(shop)) and alone == memhook.project_key(str(shop / "lib" / "part" / "src"))


def test_a_submodule_is_no_worktree_to_the_setting(desk):
    part = repository(desk.root / "part")
    shop = repository(desk.root / "shop")
    git(shop, "submodule", "add", "-q", str(part), "lib")
    assert memhook.project_key(str(shop / "lib"), separate_worktrees=True) == memhook.project_key(str(shop / "lib"))


def test_two_repositories_of_one_name_are_two_projects_in_two_folders(desk):
    scripts = []
    for number, place in enumerate(("one", "two")):
        script = desk.script("session-000%d" % number)
        script.cwd = str(repository(desk.root / place / "shop"))
        talk(script, 1)
        end(desk, script)
        scripts.append(script)
    drain(desk)
    assert len({memory.front["project"] for memory in desk.memories()}) == 2 and len(os.listdir(desk.home / "memories")) == 2


def test_a_segment_belongs_to_the_project_in_which_its_turns_were_said(desk):
    shop, blog = repository(desk.root / "shop", "git@github.com:acme/shop.git"), repository(desk.root / "blog")
    (shop / "src").mkdir()
    script = desk.script()
    for folder, first in ((shop, 0), (shop / "src", 2), (blog, 4), (shop, 6)):
        script.cwd = str(folder)
        talk(script, 2, first)
        stop(desk, script, cwd=blog)
    end(desk, script, cwd=blog)
    found = [(project, [turn[2] for turn in turns if turn[1] == "prompt"]) for _, _, _, project, turns in segments(desk)]
    asked = [["Question %d?" % number for number in part] for part in ((0, 1, 2, 3), (4, 5), (6, 7))]
    assert found == list(zip(("github.com/acme/shop", os.path.realpath(blog), "github.com/acme/shop"), asked))
    assert numbers(desk) == [0, 1, 2]


def test_a_token_in_a_remote_is_written_nowhere(desk):
    secret = "ghp_" + "a1B2" * 9
    shop = repository(desk.root / "shop", "https://%s@github.com/acme/shop.git" % secret)
    script = desk.script()
    script.cwd = str(shop)
    talk(script, 12)
    end(desk, script)
    drain(desk)
    assert not any(secret.encode() in path.read_bytes() for path in desk.home.rglob("*") if path.is_file())


# ---- backpressure and the limits of a hook


def session_of(box, number, turns):
    script = box.script("session-%04d" % number)
    return script, talk(script, turns, 1_000 * number)


def test_the_sixty_first_segment_in_a_minute_is_put_off_and_the_drain_loses_nothing(desk, monkeypatch):
    at = [float(int(time.time()))]
    monkeypatch.setattr(memhook, "now", lambda: at[0])
    said, scripts = [], []
    for number in range(16):
        script, spoken = session_of(desk, number, 38)
        said += spoken
        scripts.append(script)
    for script in scripts * 3:
        stop(desk, script, live=True)
    assert len(desk.spooled()) == 60
    waiting = [desk.checkpoint(script) for script in scripts]
    assert any(stored["deferred"] and stored["parsed"] < os.path.getsize(stored["path"]) for stored in waiting)
    at[0] += 59
    assert all(stop(desk, script, live=True).segments == 0 for script in scripts)
    at[0] += 2
    assert sum(stop(desk, script, live=True).segments for script in scripts) > 0
    at[0] += 3 * 3600
    drain(desk)
    assert sorted(desk.said()) == sorted(said) and desk.spooled() == []


def test_the_quota_is_a_setting(desk):
    desk.env.update(MEMHOOK_QUOTA_MAX="2")
    script, said = session_of(desk, 1, 40)
    for _ in range(5):
        stop(desk, script, live=True)
    assert len(desk.spooled()) == 2
    end(desk, script, live=True)
    assert len(desk.spooled()) == 2 and desk.checkpoint(script)["state"] == "open"
    del desk.env["MEMHOOK_QUOTA_MAX"]
    end(desk, script)
    drain(desk)
    assert desk.said() == said


def test_the_quota_counts_over_all_sessions_and_not_what_the_drain_queues(desk):
    desk.env.update(MEMHOOK_QUOTA_MAX="3")
    scripts = [session_of(desk, number, 18)[0] for number in range(4)]
    for script in scripts:
        stop(desk, script, live=True)
    assert len(desk.spooled()) == 3
    for script in scripts:
        stop(desk, script)
    assert len(desk.spooled()) == 8


def test_a_deferred_session_whose_client_has_died_is_finished_by_the_drain(box):
    box.env["MEMHOOK_QUOTA_MAX"] = "1"
    script = box.script()
    said = talk(script, 30)
    box.hook("Stop", script, prefix=CLIENT)
    box.hook("SessionEnd", script, prefix=CLIENT)
    assert len(box.spooled()) == 1
    box.drain()
    assert box.said() == said and box.checkpoint(script)["state"] == "closed"


def test_a_session_end_that_left_something_is_finished_by_the_drain_though_its_client_lives(box):
    """After /clear the client goes on for hours, and no other hook will ever name the old session."""
    box.env["MEMHOOK_QUOTA_MAX"] = "1"
    script = box.script()
    said = talk(script, 30)
    box.hook("SessionEnd", script, reason="clear")
    assert len(box.spooled()) == 1
    box.drain()
    assert box.said() == said and box.checkpoint(script)["state"] == "closed"


def test_a_hook_queues_no_more_than_sixteen_segments_and_the_drain_gets_the_rest(desk):
    desk.env.update(MEMHOOK_QUOTA_MAX="1000")
    script, said = session_of(desk, 1, 200)
    done = stop(desk, script, live=True)
    assert 0 < done.segments <= 16 and done.deferred and desk.checkpoint(script)["deferred"]
    stop(desk, script)
    end(desk, script)
    drain(desk)
    assert desk.said() == said


def test_a_hook_reads_no_more_than_sixteen_megabytes_and_the_drain_reads_the_rest(desk):
    script = desk.script()
    said = talk(script, 1)
    noise = b'{"type":"progress","data":"' + b"z" * (1 << 20) + b'"}\n'
    with open(script.path, "ab") as stream:
        for _ in range(18):
            stream.write(noise)
    said += talk(script, 1, 1)
    done = end(desk, script, live=True)
    assert done.bytes <= 16 << 20 and done.deferred and desk.checkpoint(script)["state"] == "open"
    at_end = memhook.Request(str(script.path), final=True)
    memhook.capture(desk.api, memhook.read_consent(desk.api), at_end)
    drain(desk)
    assert desk.said() == said


def test_hooks_that_each_leave_something_get_to_the_end_by_themselves(desk):
    desk.env.update(MEMHOOK_QUOTA_MAX="1000")
    script, said = session_of(desk, 1, 150)
    for _ in range(200):
        if not end(desk, script, live=True).deferred:
            break
    drain(desk)
    assert desk.said() == said and desk.checkpoint(script)["state"] == "closed"


# ---- sessions that end without a word


def test_a_session_whose_process_was_killed_is_caught_up_by_the_next_drain(box):
    script, said = box.script(), []
    for number in range(5):
        said += talk(script, 1, number)
        box.hook("Stop", script, prefix=CLIENT)
    said += talk(script, 1, 5)  # no Stop came for this one
    assert box.spooled() == []
    box.hook("SessionStart", box.script("session-0002"), source="startup")
    assert box.drain()["stored"] == 1 and box.said() == said and box.checkpoint(script)["state"] == "closed"


def test_a_session_killed_in_its_first_turn_is_caught_up(box):
    script = box.script()
    box.hook("SessionStart", script, source="startup", prefix=CLIENT)
    script.prompt("The first and only prompt.")
    box.drain()
    assert box.said() == [("prompt", "The first and only prompt.")]


def test_a_session_whose_process_lives_is_left_open(box):
    script = box.script()
    talk(script, 2)
    box.hook("Stop", script)
    os.utime(script.path, (0, 0))
    assert box.drain()["stored"] == 0 and box.checkpoint(script)["state"] == "open"


def test_a_process_with_the_number_of_a_dead_one_is_not_taken_for_it(desk):
    script = desk.script()
    said = talk(script, 2)
    stop(desk, script, live=True, client=[os.getpid(), "1"])
    drain(desk)
    assert desk.said() == said


def test_a_session_whose_process_is_unknown_is_dead_after_two_hours_without_growth(desk, monkeypatch):
    script = desk.script()
    said = talk(script, 2)
    stop(desk, script)
    at_clock(monkeypatch, time.time() + 2 * 3600 - 60)
    assert drain(desk)["stored"] == 0
    at_clock(monkeypatch, time.time() + 2 * 3600 + 60)
    assert drain(desk)["stored"] == 1 and desk.said() == said


def test_a_session_that_no_hook_ever_told_of_is_caught_up_after_two_hours(desk, monkeypatch):
    script = desk.script()
    said = talk(script, 12)
    subagent = desk.config / "projects" / "p" / "session-0001" / "subagents" / "agent-1.jsonl"
    subagent.parent.mkdir(parents=True)
    subagent.write_bytes(script.path.read_bytes())
    (desk.config / "projects" / "p" / "agent-2.jsonl").write_bytes(script.path.read_bytes())
    assert drain(desk)["stored"] == 0
    at_clock(monkeypatch, time.time() + 3 * 3600)
    assert drain(desk)["stored"] == 2 and desk.said() == said


def test_a_transcript_that_claude_is_about_to_delete_is_captured_though_its_session_lives(desk, monkeypatch):
    (desk.config / "settings.json").write_text('{"cleanupPeriodDays": 9}')
    script = desk.script()
    said = talk(script, 9)
    stop(desk, script, live=True, client=memhook.client_process(os.getpid()))
    said += talk(script, 9, 9)
    at_clock(monkeypatch, time.time() + 6.5 * 86_400)
    drain(desk)
    assert len(desk.said()) < len(said)
    at_clock(monkeypatch, time.time() + 7.5 * 86_400)
    drain(desk)
    stored = desk.checkpoint(script)
    assert stored["state"] == "open" and stored["parsed"] == os.path.getsize(script.path)
    script.path.unlink()
    end(desk, script)
    drain(desk)
    assert desk.said() == said


@pytest.mark.parametrize("settled", ["turns", "message", "typed ahead"])
def test_a_transcript_that_vanished_with_turns_still_open_loses_none(desk, monkeypatch, settled):
    script = desk.script()
    script.add(script.line("user", "Said.", version="2.0.60"))
    expected = [("prompt", "Said.")]
    if settled == "message":
        expected.append(("answer", "Told."))
    elif settled == "typed ahead":
        script.add({"type": "queue-operation", "operation": "enqueue", "content": "Typed ahead.", "timestamp": memhook.iso(script.clock)})
        expected.append(("prompt", "Typed ahead."))
    stop(desk, script, "Told." if settled == "message" else "")
    script.path.unlink()
    at_clock(monkeypatch, time.time() + 3 * 3600)
    drain(desk)
    assert desk.said() == expected


def test_a_folder_of_projects_that_vanished_loses_nothing_that_was_read(desk, monkeypatch):
    script = desk.script()
    said = talk(script, 12)
    stop(desk, script)
    script.path.unlink()
    script.path.parent.rmdir()
    at_clock(monkeypatch, time.time() + 3 * 3600)
    drain(desk)
    assert desk.said() == said


def test_a_drain_captures_nothing_in_a_pause_and_without_consent(desk, monkeypatch):
    script = desk.script()
    talk(script, 2)
    stop(desk, script)
    at_clock(monkeypatch, time.time() + 3 * 3600)
    consent(desk, pauses=[[time.time(), None]])
    assert drain(desk)["stored"] == 0
    (desk.home / "consent.json").unlink()
    assert drain(desk)["stored"] == 0
    consent(desk)
    assert drain(desk)["stored"] == 1
