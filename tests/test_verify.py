"""verify: the proof that nothing was lost and nothing stored twice, and what it says when that is not so."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import pytest

import memhook
import reader
from conftest import DATA, PROGRAM, Box, heeding_modes
from terminal import at_terminal

FIXTURES = sorted((DATA / "transcript").glob("*.jsonl"))
LONG = "The cause was found in the module that nobody had read for years. " * 150  # more than a segment
# where the two readers differ on purpose
ONLY_OURS = {"cut": ["Whole,beginningwithisSidechain."]}  # a record behind a cut one, whose first field the description does not list
ONLY_THEIRS = {"row-sources": ["Stophookfeedback:keepgoing.", "Continuefromwhereyouleftoff."]}  # `rowSource` is newer than the description


def verified(box, *args, ok=None):
    """`verify --json`; `ok`: what it must say, with the exit status that goes with it."""
    done = box.run("verify", "--json", *args, check=False)
    found = json.loads(done.stdout)
    assert done.returncode == (0 if found["ok"] else 4) and done.stderr == ""
    assert ok is None or found["ok"] is ok, found
    return found


def at_a_terminal(box, *args):
    """What `memhook ARGS` shows at a terminal; -> (exit status, text)."""
    return at_terminal([box.python, "-I", "-S", "-c", memhook.BOOT, PROGRAM, *args], {**box.env, "NO_COLOR": "1"}, box.project, None)


def talk(box, session="session-0001", rounds=3, start=None):
    """A session of `rounds` long answers, ended and drained."""
    script = box.script(session, start)
    for number in range(rounds):
        script.prompt("Question %d of %s?" % (number, session))
        script.answer("Answer %d of %s. %s" % (number, session, LONG))
    box.hook("SessionEnd", script)
    box.drain()
    return script


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """A machine with one session in three memories; tests that change something work on a copy of it."""
    box = Box(tmp_path_factory.mktemp("told"))
    box.install()
    talk(box)
    return box


@pytest.fixture
def damaged(told):
    """`told`, to be damaged: what a test does to the store is undone."""
    kept = told.root / "kept"
    shutil.copytree(told.home, kept)
    yield told
    shutil.rmtree(told.home)
    shutil.move(kept, told.home)


def memory_paths(box):
    found = sorted((path for path in memhook.memory_files(box.api)), key=lambda path: memhook.parse_memory(pathlib.Path(path).read_bytes()).front["segment"])
    assert len(found) >= 3
    return [pathlib.Path(path) for path in found]


# ---- nothing is wrong


def test_what_was_said_is_found_in_memories_and_the_exit_status_is_0(told):
    found = verified(told, ok=True)
    assert list(found) == ["ok", "transcripts", "totals"]
    (one,) = found["transcripts"]
    assert list(one) == ["path", "bytes", "turns", "gaps", "repeats", "state"]
    assert one["state"] == "ok" and one["gaps"] == one["repeats"] == [] and one["bytes"] == os.path.getsize(one["path"])
    assert set(one["turns"]) >= {"stored", "waiting", "open", "duplicate", "forgotten", "withheld", "missing", "repeated"}
    assert one["turns"]["stored"] == sum(turn.is_spoken for memory in told.memories() for turn in memory.turns) > 6
    assert found["totals"]["bytes"] == one["bytes"]


def test_a_turn_is_found_wherever_it_is_on_its_way(box):
    script = box.script()
    script.prompt("Open?")
    script.answer("Open, in a checkpoint.")
    box.hook("Stop", script)
    assert verified(box, ok=True)["totals"]["open"] == 2
    box.hook("SessionEnd", script)
    assert verified(box, ok=True)["totals"]["waiting"] == 2
    box.drain()
    assert verified(box, ok=True)["totals"]["stored"] == 2
    script.prompt("Said since?")
    assert verified(box, ok=True)["totals"]["open"] == 1
    memory = box.memories()[0]
    box.run("forget", memory.front["id"])
    totals = verified(box, ok=True)["totals"]
    assert totals["forgotten"] == 2 and totals["stored"] == 0


def test_a_session_that_was_never_captured_is_open_while_it_lives_and_missing_when_it_is_over(box):
    script = box.script()
    script.prompt("The first prompt of all, before any Stop.")
    assert verified(box, ok=True)["totals"]["open"] == 1
    os.utime(script.path, (time.time() - 2 * memhook.DEAD_SECONDS,) * 2)
    box.run("import", str(script.path))
    box.drain()
    assert verified(box, ok=True)["totals"]["stored"] == 1
    other = box.script("session-0002", time.time())
    other.prompt("Nobody told the hooks.")
    memhook.write_json(str(box.home / "consent.json"), {"format": 1, "capture": {"at": time.time() - 9 * memhook.DEAD_SECONDS, "by": "test"}, "pauses": []})
    os.utime(other.path, (time.time() - 2 * memhook.DEAD_SECONDS,) * 2)
    found = verified(box, ok=False)
    assert found["totals"]["missing"] == 1
    assert "rm " not in mended_as_told(box)
    assert verified(box, ok=True)["totals"]["stored"] == 2


def mended_as_told(box):
    """Do what verify says of what is missing; -> the command."""
    command, = re.findall("(?m)^    to take what is missing into memory: (.*)$", box.run("verify", check=False).stdout)
    subprocess.run(command, shell=True, env=box.env, cwd=box.project, check=True, capture_output=True, timeout=60)
    box.drain()
    return command


def test_what_was_lost_behind_a_checkpoint_is_taken_as_verify_says_and_nothing_twice(box):
    script = box.script("it's 1")
    for number in range(3):
        script.prompt("Question %d?" % number)
        script.answer("Answer %d, in a few words. " % number * 400)
    box.hook("SessionEnd", script)
    items = sorted((box.home / "spool" / "new").iterdir())
    assert len(items) > 2
    items[1].unlink()
    box.drain()
    before = verified(box, ok=False)["totals"]
    assert before["missing"] > 0 and mended_as_told(box).startswith("rm ")
    after = verified(box, ok=True)["totals"]
    assert after["stored"] == before["stored"] + before["missing"] and after["duplicate"] == 0


def test_of_a_transcript_that_is_gone_verify_promises_nothing(damaged):
    (one, *_) = verified(damaged)["transcripts"]
    ledger = damaged.home / "receipts.jsonl"
    for path in memory_paths(damaged):
        memory = memhook.parse_memory(path.read_bytes())
        data = memhook.render_memory(memory.front, memory.digest, [])
        ledger.write_text(ledger.read_text("utf-8").replace(memhook.file_hash(path.read_bytes()), memhook.file_hash(data)), "utf-8")
        path.write_bytes(data)
    assert "to take what is missing" in damaged.run("verify", check=False).stdout
    os.rename(one["path"], one["path"] + ".away")
    told = damaged.run("verify", check=False)
    os.rename(one["path"] + ".away", one["path"])
    assert told.returncode == 4 and "missing" in told.stdout and one["path"] in told.stdout and "to take what is missing" not in told.stdout


def test_what_was_withheld_is_said_to_be(box):
    early = box.script("early", time.time() - 5_000)
    early.prompt("Before the consent.")
    box.run("pause")
    script = box.script(start=time.time() - 1)
    script.prompt("In the pause.")
    box.run("resume")
    off = box.root / "off"
    off.mkdir()
    (off / ".memhook-off").touch()
    switched = box.script("off")
    switched.cwd = str(off)
    switched.prompt("In a folder that is off.")
    totals = verified(box, ok=True)["totals"]
    assert totals["withheld"] == 3 and totals["open"] == 0
    for one in (early, script, switched):
        box.hook("SessionEnd", one)
    box.drain()
    totals = verified(box, ok=True)["totals"]
    assert totals["withheld"] == 3 and totals["stored"] == 0


def test_a_last_message_that_came_before_its_line_accounts_for_the_line_wherever_it_is(box):
    script = box.script()
    script.clock = time.time()
    script.prompt("Is the last word in the file?")
    message = "It comes late.\n\n" + LONG[:5_000]
    box.hook("Stop", script, last_assistant_message=message)
    box.hook("SessionEnd", script)
    script.answer("  " + message)
    box.hook("Stop", script)
    assert verified(box, ok=True)["totals"]["waiting"] >= 2
    box.drain()
    totals = verified(box, ok=True)["totals"]
    assert totals["stored"] >= 2 and totals["missing"] == totals["open"] == 0
    script.answer("  " + message)  # the same words once more, unknown to any hook, are another turn
    checkpoint = memhook.checkpoint_path(box.api, memhook.transcript_key(str(script.path)))
    stored = json.loads(pathlib.Path(checkpoint).read_bytes())
    pathlib.Path(checkpoint).write_text(json.dumps({**stored, "parsed": os.path.getsize(script.path)}))
    assert verified(box, ok=False)["totals"]["missing"] >= 1


def test_prompts_that_were_typed_ahead_and_never_ran_are_looked_for_too(box):
    script = box.script()
    script.prompt("Begin.")
    script.add({"type": "queue-operation", "operation": "enqueue", "content": "And then the other thing.", "sessionId": script.session, "timestamp": memhook.iso(time.time() + 2)})
    box.hook("SessionEnd", script)
    box.drain()
    assert verified(box, ok=True)["totals"]["stored"] == 2
    path = next(memhook.memory_files(box.api))
    text = pathlib.Path(path).read_text("utf-8")
    pathlib.Path(path).write_text(text.replace("And then the other thing.", "And then nothing."))
    assert verified(box)["transcripts"][0]["turns"]["edited"] == 1


def test_history_that_stands_twice_in_the_transcripts_is_stored_once_and_no_repeat(box):
    script = talk(box, rounds=1)
    data = script.path.read_bytes()
    with open(script.path, "ab") as stream:
        stream.write(data)  # as a second compaction appends it
    fork = script.path.with_name("fork.jsonl")
    fork.write_bytes(data)
    box.hook("SessionEnd", script)
    box.hook("SessionEnd", fork)
    box.drain()
    totals = verified(box, ok=True)["totals"]
    assert totals["duplicate"] == 2 * totals["stored"] > 0 and totals["repeated"] == 0


def test_an_unfinished_last_line_is_no_gap(box):
    script = talk(box, rounds=1)
    before = verified(box, ok=True)["totals"]
    with open(script.path, "ab") as stream:
        stream.write(json.dumps(script.line("user", "Cut off by a crash")).encode()[:-20])
    after = verified(box, ok=True)["totals"]
    assert {**after, "bytes": 0} == {**before, "bytes": 0}


# ---- something is wrong


DROPS_ONE = """
import sys
sys.argv[0] = {program!r}
sys.path.insert(0, {folder!r})
import memhook
whole = memhook._assistant_said
memhook._assistant_said = lambda record, context: [pair for pair in whole(record, context) if "Answer 1" not in pair[1]]
for argv in (["import", "--yes"], ["drain"]):
    assert memhook.main(argv) == 0
"""


def test_an_answer_that_a_patched_parser_dropped_is_named_by_the_unpatched_verify(box):
    script = box.script()
    for number in range(3):
        script.prompt("Question %d?" % number)
        script.answer("Answer %d, in a few words." % number)
    os.utime(script.path, (time.time() - 2 * memhook.DEAD_SECONDS,) * 2)
    code = DROPS_ONE.format(program=str(PROGRAM), folder=str(PROGRAM.parent))
    subprocess.run([sys.executable, "-B", "-c", code], env=box.env, cwd=box.project, check=True, capture_output=True)
    assert len(box.said()) == 5
    found = verified(box, ok=False)
    (one,) = found["transcripts"]
    assert one["state"] == "missing" and one["turns"]["missing"] == 1 and one["turns"]["stored"] == 5
    ((start, end),) = one["gaps"]
    line = script.path.read_bytes()[start:end]
    assert json.loads(line)["message"]["content"][0]["text"] == "Answer 1, in a few words."
    status, shown = at_a_terminal(box, "verify")
    assert status == 4 and "Answer 1, in a few words." in shown and "bytes %d-%d" % (start, end) in shown
    piped = box.run("verify", check=False)
    assert piped.returncode == 4 and "bytes %d-%d" % (start, end) in piped.stdout
    for text in (json.dumps(found), piped.stdout, piped.stderr, (box.home / "memhook.log").read_text("utf-8") if (box.home / "memhook.log").exists() else ""):
        assert "Answer 1" not in text  # words belong to the person at the terminal alone


def test_a_memory_that_was_deleted_is_edited_and_no_gap(damaged):
    paths = memory_paths(damaged)
    count = sum(turn.is_spoken for turn in memhook.parse_memory(paths[1].read_bytes()).turns)
    paths[1].unlink()
    (one,) = verified(damaged, ok=True)["transcripts"]
    assert one["state"] == "edited" and one["turns"]["edited"] == count and one["turns"]["missing"] == 0 and one["gaps"] == []
    told = damaged.run("verify").stdout
    assert "edited" in told and "    memory %s was deleted: nothing brings it back, but the transcript" % paths[1].stem[-8:] in told


def test_a_memory_that_was_truncated_is_edited_and_no_gap(damaged):
    path = memory_paths(damaged)[1]
    path.write_bytes(path.read_bytes()[:-100])
    (one,) = verified(damaged, ok=True)["transcripts"]
    assert one["state"] == "edited" and one["turns"]["edited"] == 1
    assert "    memory %s is not as it was written: %s\n" % (path.stem[-8:], path) in damaged.run("verify").stdout


def test_two_memories_that_were_swapped_lose_nothing(damaged):
    before = verified(damaged, ok=True)["totals"]
    first, second = memory_paths(damaged)[:2]
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    assert verified(damaged, ok=True)["totals"] == before


def test_a_memory_that_stands_there_twice_is_a_repeat_and_its_words_are_for_a_terminal(damaged):
    path = memory_paths(damaged)[0]
    turns = [turn for turn in memhook.parse_memory(path.read_bytes()).turns if turn.is_spoken]
    shutil.copy(path, path.with_name("copy.md"))
    found = verified(damaged, ok=False)
    (one,) = found["transcripts"]
    assert one["turns"]["repeated"] == len(turns) and one["repeats"] == [[turns[0].start, turns[-1].end]] and one["gaps"] == []
    assert "Question 0" not in json.dumps(found)
    status, shown = at_a_terminal(damaged, "verify")
    assert status == 4 and "repeated" in shown and "Question 0" in shown
    assert "Question 0" not in damaged.run("verify", check=False).stdout


def test_an_answer_that_was_kept_by_its_line_and_as_stop_told_it_is_a_repeat(box):
    script = box.script()
    script.prompt("Why?")
    script.answer("Because the module that nobody had read for years rounds the prices down.")
    box.hook("SessionEnd", script)
    box.drain()
    memory, = box.memories()
    answer = next(turn for turn in memory.turns if turn.kind == "answer")
    told = memhook.Turn("m%s-x-5/0" % memhook.message_hash(answer.text), "answer", answer.text, 5, 5, answer.at, answer.cwd, project=memory.front["project"])
    path = pathlib.Path(next(memhook.memory_files(box.api))).with_name("2026-01-01-told-00000000.md")
    path.write_bytes(memhook.render_memory({**memory.front, "id": "told"}, memory.digest, [told]))
    found = verified(box, ok=False)
    assert found["totals"]["repeated"] == 1 and found["transcripts"][0]["repeats"]
    path.unlink()
    verified(box, ok=True)


def test_a_turn_that_an_untouched_memory_should_hold_and_does_not_is_a_gap(damaged):
    """Our own fault, as receipts tell it: they name the turn and the very bytes of the file, in which it is not."""
    path = memory_paths(damaged)[1]
    memory = memhook.parse_memory(path.read_bytes())
    lost = [turn for turn in memory.turns if turn.is_spoken][0]
    data = memhook.render_memory(memory.front, memory.digest, [turn for turn in memory.turns if turn is not lost])
    ledger = damaged.home / "receipts.jsonl"
    ledger.write_text(ledger.read_text("utf-8").replace(memhook.file_hash(path.read_bytes()), memhook.file_hash(data)), "utf-8")
    path.write_bytes(data)
    (one,) = verified(damaged, ok=False)["transcripts"]
    assert one["turns"]["missing"] == 1 and one["gaps"] == [[lost.start, lost.end]] and one["state"] == "missing"


def test_no_ledger_is_needed_to_find_what_is_there(damaged):
    before = verified(damaged, ok=True)["totals"]
    for name in ("checkpoints", "seen"):
        shutil.rmtree(damaged.home / name)
    (damaged.home / "receipts.jsonl").unlink()
    after = verified(damaged, ok=True)["totals"]
    assert after == before


def test_a_ledger_that_claims_everything_hides_no_gap(damaged):
    """Without the memories nothing is there, whatever checkpoints say; and without receipts nobody says that a person deleted them."""
    shutil.rmtree(damaged.home / "memories")
    (damaged.home / "receipts.jsonl").unlink()
    found = verified(damaged, ok=False)
    assert found["totals"]["missing"] > 6 and found["totals"]["stored"] == 0


def test_turns_that_an_older_parser_did_not_keep_are_told_apart(damaged):
    path = memory_paths(damaged)[0]
    ledger = damaged.home / "receipts.jsonl"
    lines = [json.loads(line) for line in ledger.read_text("utf-8").splitlines()]
    lost = lines[0]["turns"].pop(0)
    for line in lines:
        line["parser"] = memhook.PARSER_VERSION - 1
    memory = memhook.parse_memory(path.read_bytes())
    path.write_bytes(memhook.render_memory(memory.front, memory.digest, [turn for turn in memory.turns if turn.key != lost[0]]))
    lines[0]["file"] = memhook.file_hash(path.read_bytes())
    ledger.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")
    (one,) = verified(damaged, ok=False)["transcripts"]
    assert one["state"] == "other-parser" and one["turns"]["missing"] == 1


@pytest.mark.parametrize("odd", [b'{"key":"%s","turns":[["x"]],"outcome":"stored","bytes":5}\n', b'{"key":"%s","turns":5,"outcome":"stored"}\n', b'{"key":"%s","tur\n'])
def test_a_damaged_receipt_stops_no_proof(damaged, odd):
    script = verified(damaged)["transcripts"][0]["path"]
    ledger = damaged.home / "receipts.jsonl"
    ledger.write_bytes(odd % memhook.transcript_key(script).encode() + ledger.read_bytes())
    memory_paths(damaged)[0].unlink()
    assert verified(damaged, ok=True)["totals"]["edited"] > 0
    os.rename(script, script + ".away")
    assert verified(damaged, ok=True)["transcripts"][0]["state"] == "source-gone"
    os.rename(script + ".away", script)


# ---- transcripts that are gone or were rewritten


def test_for_a_transcript_that_is_gone_the_receipts_speak(box):
    script = talk(box)
    script.path.unlink()
    (one,) = verified(box, ok=True)["transcripts"]
    turns = sum(len(memory.turns) for memory in box.memories())
    assert one["state"] == "source-gone" and one["turns"]["stored"] == turns and one["bytes"] == 0
    assert verified(box, str(script.path), ok=True)["transcripts"] == [one]
    memory_paths(box)[0].unlink()
    (one,) = verified(box, ok=True)["transcripts"]
    assert one["turns"]["edited"] > 0 and one["turns"]["stored"] + one["turns"]["edited"] == turns
    assert "gone" in box.run("verify").stdout


def test_a_rewritten_transcript_is_verified_as_it_is_and_its_earlier_turns_by_their_receipts(box):
    script = talk(box, rounds=1)
    stored = verified(box, ok=True)["totals"]["stored"]
    script.path.unlink()
    script.prompt("Another beginning.")
    script.answer("In another file of the same name.")
    box.hook("SessionEnd", script)
    box.drain()
    (one,) = verified(box, ok=True)["transcripts"]
    assert one["state"] == "rewritten" and one["turns"]["stored"] == stored + 2
    next(path for path in map(pathlib.Path, memhook.memory_files(box.api)) if b"Another beginning" not in path.read_bytes()).unlink()
    (one,) = verified(box, ok=True)["transcripts"]
    assert one["turns"]["edited"] > 0 and one["state"] == "edited"


def test_a_path_of_which_nothing_is_known_is_an_error(box):
    done = box.run("verify", str(box.root / "nowhere.jsonl"), check=False)
    assert done.returncode == 1 and "nowhere.jsonl" in done.stderr


@pytest.mark.parametrize("trouble", ["of root's", "of a newer program", "of root's, and its transcript is gone", "its transcript is root's"])
def test_what_cannot_be_read_keeps_no_other_transcript_from_being_checked(box, trouble):
    """As `sudo claude` leaves it. Without its checkpoint nobody knows what is open or was withheld: it is named, and nothing is called lost."""
    prefix = heeding_modes()
    for number in range(3):
        talk(box, "session-000%d" % number, 1)
    transcript = box.script("session-0001").path.resolve()
    checkpoint = pathlib.Path(memhook.checkpoint_path(box.api, memhook.transcript_key(str(transcript))))
    if "newer" in trouble:
        checkpoint.write_text(json.dumps({**json.loads(checkpoint.read_text()), "format": 99}))
    else:
        (transcript if trouble.startswith("its") else checkpoint).chmod(0)
    if "gone" in trouble:
        transcript.unlink()
    command = [*prefix, box.python, str(PROGRAM), "verify"]
    asked = [subprocess.run(command + more, env=box.env, cwd=box.project, capture_output=True, text=True, timeout=60) for more in ([], ["--json"])]
    assert [(done.returncode, done.stderr) for done in asked] == [(4, "")] * 2
    found = json.loads(asked[1].stdout)
    named = str(checkpoint if "gone" in trouble else transcript)
    states = {one["path"]: one["state"] for one in found["transcripts"]}
    assert states.pop(named) == "not-checked" and list(states.values()) == ["ok", "ok"]
    assert found["ok"] is False and found["totals"]["not_checked"] == 1 and found["totals"]["missing"] == 0 and found["totals"]["stored"] >= 4
    assert "not-checked  %s  (" % named in asked[0].stdout and "checkpoints cannot be read: 1." in asked[0].stdout


def test_verify_of_nothing_proves_nothing_and_says_what_to_do(bare):
    done = bare.run("verify")
    assert "0 transcripts," in done.stdout and not bare.home.exists()
    assert "nothing to prove yet: memhook is not installed" in done.stdout and done.stdout.endswith("memhook.py install\n")
    bare.install()
    shown = bare.run("verify").stdout
    assert "nothing to prove yet: no session" in shown and "is lost" not in shown and "Not read" not in shown
    assert "Nothing was verified: no transcript lies there." in bare.run("verify", str(bare.project)).stdout
    talk(bare, rounds=1)
    shown = bare.run("verify").stdout
    assert shown.endswith("Nothing is lost and nothing is stored twice.\n") and "to prove" not in shown


def test_transcripts_that_nothing_was_written_to_since_the_consent_are_counted_and_read_where_they_are_named(box):
    old = box.script("old", time.time() - 5_000)
    old.prompt("Before the consent.")
    older = box.script("older", time.time() - 5_000)
    older.prompt("Before the consent, too.")
    for script in (old, older):
        os.utime(script.path, (time.time() - 4_000,) * 2)
    box.script("empty").path.touch()
    os.utime(box.script("empty").path, (time.time() - 4_000,) * 2)
    shown = box.run("verify").stdout
    assert "since you consented: 2 transcripts. memhook import takes" in shown and "is lost" not in shown
    totals = verified(box, ok=True)["totals"]
    assert (totals["past"], totals["withheld"]) == (2, 0)
    totals = verified(box, str(old.path), ok=True)["totals"]
    assert (totals["past"], totals["withheld"]) == (0, 1)
    assert "Not read" not in box.run("verify", str(old.path)).stdout
    box.run("import", "--yes", str(old.path))
    box.drain()
    totals = verified(box, ok=True)["totals"]
    assert (totals["past"], totals["stored"]) == (1, 1)


# ---- every shape of transcript


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Every fixture as a transcript in a folder of its own, imported and drained."""
    box = Box(tmp_path_factory.mktemp("shapes"))
    box.install()
    for number, path in enumerate(FIXTURES):
        target = box.config / "projects" / path.stem / (path.stem + ".jsonl")
        target.parent.mkdir(parents=True)
        target.write_bytes(re.sub(rb'("uuid": ?")', rb"\1f%d-" % number, path.read_bytes()))  # the fixtures share some
        os.utime(target, (time.time() - 2 * memhook.DEAD_SECONDS,) * 2)
    box.run("import", "--yes")
    box.drain()
    return box


def test_every_shape_of_transcript_is_stored_whole_and_once(shapes):
    found = verified(shapes, ok=True)
    assert len(found["transcripts"]) == len(FIXTURES) > 20
    assert {one["state"] for one in found["transcripts"]} == {"ok"}
    assert found["totals"]["stored"] > 100 and found["totals"]["open"] == found["totals"]["waiting"] == 0


@pytest.mark.parametrize("path", FIXTURES, ids=[path.stem for path in FIXTURES])
def test_a_reader_that_shares_no_code_counts_the_same_turns(shapes, path):
    """What the memories hold, against what tests/reader.py finds in the transcript. Where [image] stands is not compared, nor NULs."""
    def plain(kind, text):
        return kind, reader.squeezed(text).replace("[image]", "").replace("\0", "")

    name = shapes.config / "projects" / path.stem / path.name
    whole = {}
    for memory in shapes.memories():
        if memory.front["transcript"] == memhook.redact_path(os.path.realpath(name)):
            for turn in memory.turns:
                if turn.kind in ("prompt", "answer"):
                    whole.setdefault((turn.line, turn.kind), []).append(turn.text)
    ours = sorted(plain(kind, "".join(parts)) for (_, kind), parts in whole.items())
    theirs = sorted(plain(one.kind, one.text) for one in reader.read_said(name.read_bytes()) if one.kind in ("prompt", "answer"))
    ours = [pair for pair in ours if pair[1] not in ONLY_OURS.get(path.stem, ())]
    theirs = [pair for pair in theirs if pair[1] not in ONLY_THEIRS.get(path.stem, ())]
    assert ours == theirs
