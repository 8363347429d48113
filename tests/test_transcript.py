"""The parser: tables of small transcripts with the turns they must give, splits at every byte, damage, long texts, hostile input.

tests/data/transcript/NAME.jsonl is a transcript; NAME.expected.json the turns in it: [kind, text, start, end] each.
Space around a text is not compared.
"""
import json
import random
import time

import pytest

import memhook
from conftest import DATA

FILES = sorted((DATA / "transcript").glob("*.jsonl"))
TABLES = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


def rows(turns):
    return [[turn.kind, turn.text.strip(), turn.start, turn.end] for turn in turns]


def whole(turn):
    return turn.to_json() + [turn.whole]


def line(kind, content, **fields):
    record = {"type": kind, "uuid": "u-1", "sessionId": "s", "timestamp": "2026-03-04T10:00:00.000Z"}
    return json.dumps({**record, "message": {"role": kind, "content": content}, **fields}).encode() + b"\n"


def kinds_and_texts(data, **options):
    return [(turn.kind, turn.text) for turn in memhook.parse_turns(data, **options)]


def copied(context):
    """The context as a checkpoint brings it back."""
    return memhook.Context(json.loads(json.dumps(context.to_json())))


# ---- tables


@TABLES
def test_a_transcript_gives_the_turns_of_its_table(path):
    expected = json.loads(path.with_suffix(".expected.json").read_text("utf-8"))
    turns = memhook.parse_turns(path.read_bytes(), final=True)
    assert rows(turns) == [[kind, text.strip(), start, end] for kind, text, start, end in expected]


def test_every_table_has_both_files():
    names = {path.name.split(".jsonl")[0].split(".expected.json")[0] for path in (DATA / "transcript").iterdir()}
    assert len(FILES) > 30 and names == {path.stem for path in FILES} and all(path.with_suffix(".expected.json").exists() for path in FILES)


@TABLES
def test_a_line_is_parsed_when_its_newline_is_there_and_not_before(path):
    """With the next test: whatever the split, the turns are the same."""
    data, context, start = path.read_bytes(), memhook.Context(), 0
    for whole_line in data.split(b"\n")[:-1]:
        before = context.to_json()
        for cut in range(1, len(whole_line) + 1):
            assert memhook.parse_turns(whole_line[:cut], start, context) == []
        assert context.to_json() == before
        memhook.parse_turns(whole_line + b"\n", start, context)
        start += len(whole_line) + 1


@TABLES
def test_a_transcript_split_between_any_two_lines_gives_the_same_turns(path):
    data = path.read_bytes()
    expected = [whole(turn) for turn in memhook.parse_turns(data, final=True)]
    context, first, start = memhook.Context(), [], 0
    for whole_line in data.split(b"\n")[:-1]:
        first += memhook.parse_turns(whole_line + b"\n", start, context)
        start += len(whole_line) + 1
        second = memhook.parse_turns(data[start:], start, copied(context), final=True)
        assert [whole(turn) for turn in first + second] == expected


@pytest.mark.parametrize("name", ["spliced", "nuls", "crlf", "surrogates", "separators", "rewinds", "queued-before-2.1.97", "torn"])
def test_a_transcript_split_at_any_byte_gives_the_same_turns(name):
    data = (DATA / "transcript" / (name + ".jsonl")).read_bytes()
    expected = [whole(turn) for turn in memhook.parse_turns(data)]
    for cut in range(0, len(data), 7):
        context = memhook.Context()
        first = memhook.parse_turns(data[:cut], 0, context)
        parsed = data.rfind(b"\n", 0, cut) + 1
        assert [whole(turn) for turn in first + memhook.parse_turns(data[parsed:], parsed, context)] == expected


def test_a_transcript_that_begins_elsewhere_has_its_turns_there():
    data = (DATA / "transcript" / "answers.jsonl").read_bytes()
    moved = [[kind, text, start + 1000, end + 1000] for kind, text, start, end in rows(memhook.parse_turns(data))]
    assert rows(memhook.parse_turns(data, 1000)) == moved


# ---- the end of the file


def test_an_unterminated_last_line_counts_only_at_the_end_and_only_when_it_is_whole():
    whole_file, torn = ((DATA / "transcript" / (name + ".jsonl")).read_bytes() for name in ("no-newline", "torn"))
    assert len(memhook.parse_turns(whole_file)) == 1 and len(memhook.parse_turns(whole_file, final=True)) == 2
    assert len(memhook.parse_turns(torn)) == len(memhook.parse_turns(torn, final=True)) == 1


def test_an_unterminated_last_line_that_is_no_object_is_not_taken():
    for last in (b'"user"', b"42", b"[]", b"\0", b'{"type":"user"'):
        assert memhook.parse_turns(last, final=True) == [] and not memhook.is_whole(last)


def test_nothing_gives_nothing():
    assert memhook.parse_turns(b"") == memhook.parse_turns(b"\n\n") == memhook.parse_turns(b"", final=True) == []


# ---- identity, time, place


def test_the_key_of_a_turn_is_the_uuid_of_its_line_and_a_number():
    turns = memhook.parse_turns(line("assistant", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]))
    assert [turn.key for turn in turns] == ["u-1/0", "u-1/1"] and turns[0].line == "u-1"


def test_lines_without_a_usable_uuid_have_keys_that_differ_and_stay():
    data = b"".join(line("user", text, uuid=uuid) for text, uuid in zip("abcde", (None, "", "no/slash -->", "x" * 100, 5)))
    keys = [turn.key for turn in memhook.parse_turns(data)]
    assert len(set(keys)) == 5 and keys == [turn.key for turn in memhook.parse_turns(data)]
    assert all(key.rpartition("/")[0].isalnum() for key in keys)


def test_a_record_keeps_its_key_whether_or_not_another_stands_before_it_on_the_line():
    alone = line("assistant", [{"type": "text", "text": "b"}], uuid="u-2")
    spliced = line("user", "a")[:-1] + alone
    assert memhook.parse_turns(spliced)[1].key == memhook.parse_turns(alone)[0].key


def test_a_line_without_time_place_or_branch_takes_those_of_an_earlier_line():
    turns = memhook.parse_turns(line("user", "a", cwd="/srv/a", gitBranch="main") + line("user", "b", timestamp=None))
    assert [(turn.at, turn.cwd, turn.branch) for turn in turns] == [(1772618400.0, "/srv/a", "main")] * 2


def test_times_may_go_back_and_the_order_of_the_file_stays():
    turns = memhook.parse_turns((DATA / "transcript" / "order.jsonl").read_bytes())
    assert turns[1].at < turns[0].at and [turn.text[:6] for turn in turns] == ["Line %d" % number for number in range(1, 10)]


def test_a_place_is_that_of_its_own_line():
    turns = memhook.parse_turns(line("user", "a", cwd="/srv/a") + line("user", "b", cwd="/srv/b"))
    assert [turn.cwd for turn in turns] == ["/srv/a", "/srv/b"]


def test_the_hash_of_an_answer_is_that_of_its_whole_text_in_each_part():
    text = "A sentence of the answer. " * 400
    turns = memhook.parse_turns(line("assistant", [{"type": "text", "text": text}]))
    short = memhook.parse_turns(line("assistant", [{"type": "text", "text": text[:-1]}]))
    assert len(turns) > 2 and len({turn.whole for turn in turns}) == 1 and turns[0].whole and turns[0].whole == short[0].whole


# ---- going back

RESULT = [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}]


def test_going_back_is_noticed_however_much_was_done_since():
    data = line("user", "First.", uuid="p-1", parentUuid="root")
    for number in range(100):
        data += line("user", RESULT, uuid="r-%d" % number, parentUuid="a-%d" % number)
    turns = kinds_and_texts(data + line("user", "Second.", uuid="p-2", parentUuid="root"))
    assert turns == [("prompt", "First."), ("rewind", "[the person went back to before: First.]"), ("prompt", "Second.")]


def test_a_prompt_behind_tool_results_goes_back_to_nothing():
    lines = [line("user", content, uuid="u-%d" % number, parentUuid="a-1") for number, content in enumerate((RESULT, RESULT, "Go on."))]
    data = b"".join(lines)
    assert kinds_and_texts(data) == [("prompt", "Go on.")]


# ---- length


def long_texts():
    yield "words", "word " * 9_000
    yield "paragraphs", "\n\n".join("Paragraph %d. " % number + "It says something. " * (number % 60) for number in range(200))
    yield "one word", "x" * 30_000
    yield "wide", "日本語の文章。" * 4_000
    yield "emoji", "🙂" * 9_001
    yield "newlines", "\n" * 1_000 + "text" + "\n" * 9_000 + "end"
    yield "just over", "y" * (memhook.TURN_CHARS + 1)


@pytest.mark.parametrize("kind", ["user", "assistant"])
@pytest.mark.parametrize("text", [text for _, text in long_texts()], ids=[name for name, _ in long_texts()])
def test_a_long_text_becomes_several_turns_that_together_are_the_text(kind, text):
    data = line(kind, [{"type": "text", "text": text}])
    turns = memhook.parse_turns(data)
    assert "".join(turn.text for turn in turns) == text and len({turn.key for turn in turns}) == len(turns)
    assert all(0 < len(turn.text) <= memhook.TURN_CHARS for turn in turns)
    assert turns[0].start == 0 and turns[-1].end == len(data) and all(a.end == b.start for a, b in zip(turns, turns[1:]))


def test_a_long_text_is_cut_between_paragraphs_where_there_are_any():
    text = "\n\n".join("Paragraph %d. %s" % (number, "Words. " * 90) for number in range(30))
    assert all(part.startswith("Paragraph") for part in memhook.split_text(text))


def test_a_text_at_the_limit_is_one_turn():
    assert memhook.split_text("x" * 4_000) == ["x" * 4_000] and memhook.split_text("") == []


def test_a_plan_or_a_reply_is_never_shortened_either():
    plan = "Step. " * 2_000
    call = {"type": "tool_use", "id": "t", "name": "ExitPlanMode", "input": {"plan": plan}}
    answers = {"questions": [{"question": "Q"}], "answers": {"Q": plan}}
    data = line("assistant", [call]) + line("user", [{"type": "tool_result", "tool_use_id": "q", "content": "x"}], toolUseResult=answers)
    texts = {}
    for kind, text in kinds_and_texts(data):
        texts[kind] = texts.get(kind, "") + text
    assert texts == {"plan": plan, "reply": "Q: " + plan}


# ---- giant lines


@pytest.mark.parametrize("text", ["word " * 300_000, "x" * 1_500_000, "A0+/" * 400_000], ids=["words", "one word", "like base64"])
def test_a_prompt_of_more_than_a_megabyte_is_kept_whole(text):
    assert "".join(text for _, text in kinds_and_texts(line("user", text))) == text


def test_a_giant_image_costs_no_text():
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo" * 300_000}}
    assert kinds_and_texts(line("user", [{"type": "text", "text": "What is this?"}, image])) == [("prompt", "What is this?\n[image]")]


def test_a_giant_line_does_not_hide_the_lines_around_it():
    giant = [{"type": "tool_result", "content": "z" * 3_000_000}]
    data = line("user", "before") + line("user", giant, uuid="u-2") + line("user", "after", uuid="u-3")
    assert kinds_and_texts(data) == [("prompt", "before"), ("prompt", "after")]


# ---- anything at all


def is_sane(turns, start, size):
    assert all(start <= turn.start <= turn.end <= start + size for turn in turns)
    assert all(a.start <= b.start and a.end <= b.end for a, b in zip(turns, turns[1:]))
    for turn in turns:
        assert turn.text.strip() and turn.kind.isalpha() and turn.text.encode("utf-8") is not None and "\0" not in turn.text
        json.dumps(turn.to_json(), ensure_ascii=False).encode("utf-8")


def parse_sanely(data, start=0):
    context = memhook.Context()
    is_sane(memhook.parse_turns(data, start, context, final=True), start, len(data))
    assert copied(context).to_json() == json.loads(json.dumps(context.to_json()))


def test_random_bytes_never_raise():
    chance = random.Random(1)
    letters = [b"\n", b"{", b"}", b'"', b":", b",", b"\\", b"\0", b"\r", b"\xff", b"\xe2\x80\xa8", b'{"type":"user"', b'"message"',
               b'"content"', b"[", b"]", b'"assistant"', b"queue", b'{"parentUuid":null', b"\\ud800", b"<system-reminder>", b"0", b" "]
    for _ in range(1_500):
        parse_sanely(b"".join(chance.choice(letters) for _ in range(chance.randrange(60))), chance.randrange(1 << 40))
        parse_sanely(bytes(chance.randrange(256) for _ in range(chance.randrange(80))))


def mutated(data, chance):
    """The transcript with some bytes changed, cut out, doubled or put in."""
    data = bytearray(data)
    for _ in range(chance.randrange(1, 6)):
        at, size = chance.randrange(len(data)), chance.randrange(1, 60)
        move = chance.randrange(4)
        if move == 0:
            data[at] = chance.randrange(256)
        elif move == 1:
            del data[at:at + size]
        elif move == 2:
            data[at:at] = data[at:at + size]
        else:
            data[at:at] = chance.choice([b"\0" * size, b"\n", b"{", b'"', b"\xff", b"\\ud800", b"[" * size, b"9" * 5_000])
        if not data:
            data = bytearray(b"\n")
    return bytes(data)


@TABLES
def test_damaged_transcripts_never_raise(path):
    chance = random.Random(path.stem)
    data = path.read_bytes()[:6_000]
    for _ in range(40):
        parse_sanely(mutated(data, chance))


VALUES = [None, True, 0, -1.5, 10 ** 30, "", "text", "\ud800", "\0", [], {}, ["x"], [None], [["x"]], {"type": "text"}, {"text": {"a": 1}}]


def mistyped(value, chance):
    """The record with some values of another type."""
    if chance.random() < 0.12:
        return chance.choice(VALUES)
    if isinstance(value, dict):
        return {name: mistyped(item, chance) for name, item in value.items()}
    return [mistyped(item, chance) for item in value] if isinstance(value, list) else value


def test_records_with_values_of_any_type_never_raise():
    chance = random.Random(3)
    records = []
    for path in FILES:
        for raw in path.read_bytes().split(b"\n"):
            try:
                records.append(json.loads(raw.decode("utf-8")))
            except ValueError:
                continue
    for record in records * 4:
        parse_sanely(json.dumps(mistyped(record, chance)).encode() + b"\n")


def test_deep_nesting_never_raises():
    shapes = ('{"type":"assistant","message":{"content":[{"type":"tool_use","name":"x","id":"a","input":{"a":DEEP}}]}}\n',
              '{"type":"assistant","message":{"content":[{"type":"tool_use","name":DEEP,"id":DEEP,"input":{}}]}}\n',
              '{"type":"user","message":{"content":[{"type":"text","text":[{"text":DEEP}]}]}}\n',
              '{"type":"user","message":{"content":[{"type":"tool_result"}]},"toolUseResult":{"answers":{"q":DEEP},"questions":[]}}\n')
    for depth in list(range(80, 1_100, 20)) + [20_000, 100_000]:
        for shape in shapes:
            parse_sanely(shape.replace("DEEP", "[" * depth + "]" * depth).encode())


def test_numbers_of_thousands_of_digits_never_raise():
    for name in ("version", "timestamp", "uuid", "cwd", "gitBranch"):
        parse_sanely(line("user", "text", **{name: "9" * 5_000}))
    parse_sanely(line("user", "text")[:-2] + b',"costUSD":' + b"9" * 5_000 + b"}\n")


@pytest.mark.parametrize("text", [
    "x<system-reminder>" * 4_000, "x<ide_selection>" * 4_000, "<command-name>/x</command-name>" + "<command-args>" * 5_000,
    "<bash-input>" * 5_000, "<private>" * 20_000, "reason " * 20_000, "<!-- turn " * 10_000, "\n" * 200_000, " " * 200_000,
], ids=lambda text: text[:20].strip() or repr(text[0]))
def test_hostile_text_costs_no_more_than_its_length(text):
    """Linear, each of these takes some hundredths of a second; pasted by the megabyte, quadratic ones would hang a hook."""
    refusal = {"type": "tool_result", "is_error": True, "content": "The user doesn't want to " + text}
    started = time.process_time()
    memhook.parse_turns(line("user", text) + line("user", [refusal]))
    assert time.process_time() - started < 1


def test_memhooks_own_injected_text_is_never_a_turn():
    recall = "<memhook-recall>what was said before</memhook-recall>"
    attachment = line("attachment", None, attachment={"type": "hook_additional_context", "content": [recall], "prompt": recall})
    assert memhook.parse_turns(line("user", recall) + line("user", "<system-reminder>%s</system-reminder>" % recall) + attachment) == []
