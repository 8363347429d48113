"""A second reader of transcripts, written from the description of the format alone, to check the first one by.

It shares no code with memhook and takes no pains to be fast: the file is read whole, and prompts typed ahead are
settled at the end, with everything that came later in view. What it yields: Said(kind, text, line, start), where
kind is prompt, answer, command (a slash command), shell (a `!` command) or plan (one that was approved).
"""
import collections
import json
import re

Said = collections.namedtuple("Said", "kind text line start")  # text: all blocks of the line; line: its uuid; start: its first byte

RECORD = re.compile(r'\{"(?:parentUuid|type|uuid|sessionId)"')  # how records begin: where to go on behind one that was cut
REMINDER = re.compile(r"<system-reminder>.*?(?:</system-reminder>|\Z)", re.S)
OPENED = re.compile(r"<(ide_opened_file|ide_selection)>.*?(?:</\1>|\Z)", re.S)
WRAPPERS = ("local-command-stdout", "local-command-stderr", "local-command-caveat", "bash-stdout", "bash-stderr", "task-notification",
            "teammate-message", "cross-session-message", "user-prompt-submit-hook")
SILENCE = ("(no content)", "No response requested.")


def physical_lines(data, ended):
    """(start, bytes) of each line; the last, unterminated one only if the session has ended and the line is one whole object."""
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start)
        if stop < 0:
            try:
                if ended and isinstance(json.loads(data[start:].replace(b"\0", b"").decode("utf-8", "replace")), dict):
                    yield start, data[start:]
            except ValueError:
                pass
            return
        yield start, data[start:stop]
        start = stop + 1


def records(line):
    """The objects on one line. Behind a record that was cut only those count that name their session: others are parts of it."""
    text = line.replace(b"\0", b"").decode("utf-8", "replace").lstrip("\ufeff")
    at, broken = 0, False
    while True:
        while at < len(text) and text[at] in " \t\r":
            at += 1
        if at >= len(text):
            return
        try:
            value, at = json.JSONDecoder().raw_decode(text, at)
        except (ValueError, RecursionError):
            broken = True
            following = RECORD.search(text, at + 1)
            if not following:
                return
            at = following.start()
            continue
        if isinstance(value, dict) and (not broken or "sessionId" in value):
            yield value


def whole(text):
    """Text that UTF-8 can hold: lone surrogates become U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def blocks(content):
    """message.content as a list of blocks."""
    listed = content if isinstance(content, list) else [content]
    return [{"type": "text", "text": block} if isinstance(block, str) else block for block in listed if isinstance(block, (str, dict))]


def typed_text(content):
    """What a person's content says, images as [image], without what the client put in."""
    parts = []
    for block in blocks(content):
        if block.get("type") == "text" and isinstance(block.get("text"), str):
            parts.append(whole(block["text"]))
        elif block.get("type") == "image":
            parts.append("[image]")
    return OPENED.sub("", REMINDER.sub("", "\n".join(parts))).strip()


def inside(tag, text):
    found = re.search("<%s>(.*?)</%s>" % (tag, tag), text, re.S)
    return found.group(1).strip() if found else ""


def of_person(origin):
    kind = origin.get("kind") if isinstance(origin, dict) else None
    return kind is None or kind == "human"


def classify_user(record, content):
    """(kind, text) of a user line that a person is behind, else None. First match wins."""
    if record.get("isSidechain") or any(block.get("type") == "tool_result" for block in blocks(content)):
        return None
    if record.get("isCompactSummary") or record.get("isVisibleInTranscriptOnly") or record.get("isMeta"):
        return None
    text = typed_text(content)
    if not text or text.startswith("[Request interrupted by user"):
        return None
    if text.startswith("<bash-input>"):
        return "shell", inside("bash-input", text)
    if text.startswith(("<command-name>", "<command-message>")):
        return "command", (inside("command-name", text) + " " + inside("command-args", text)).strip()
    if text.startswith(tuple("<%s" % tag for tag in WRAPPERS)):
        return None
    if text.startswith(("This session is being continued from a previous conversation", "Caveat: The messages below were generated")):
        return None
    if record.get("planContent") or text.startswith("Implement the following plan:"):
        return "plan", text
    return ("prompt", text) if of_person(record.get("origin")) else None


def answer_text(record, message):
    """What an assistant line says, "" for one that is the client's own or a subagent's."""
    if record.get("isSidechain") or record.get("isApiErrorMessage") or message.get("model") == "<synthetic>":
        return ""
    texts = [whole(block["text"]) for block in blocks(message.get("content")) if block.get("type") == "text" and isinstance(block.get("text"), str)]
    return "\n".join(text for text in texts if text.strip() and text.strip() not in SILENCE)


def queued_attachment(record):
    """The text of a prompt typed ahead that stands as an attachment, "" for any other attachment."""
    given = record.get("attachment")
    if not isinstance(given, dict) or given.get("type") != "queued_command" or given.get("commandMode", "prompt") != "prompt":
        return ""
    if record.get("isSidechain") or record.get("isMeta") or given.get("isMeta") or not of_person(given.get("origin")):
        return ""
    text = typed_text(given.get("prompt"))
    return "" if text.startswith("<") else text


class Ahead:
    """One prompt that was typed while Claude worked."""

    def __init__(self, text, start):
        self.text, self.start = text, start
        self.waits, self.taken_back = True, False


def is_typed_prompt(text):
    """Whether an enqueued text is a person's prompt: no notification, no slash command (a path is not one)."""
    return bool(text) and not text.startswith(("<", '{"task_id')) and not re.match(r"/[A-Za-z][\w:.-]*(?:\s|$)", text)


def operate(record, queue, start):
    """Do one queue-operation on `queue`, a list of Ahead."""
    operation = record.get("operation")
    waiting = [ahead for ahead in queue if ahead.waits]
    content = record.get("content")
    text = typed_text(content) if isinstance(content, (str, list)) else ""
    if operation == "enqueue":
        queue.append(Ahead(text, start))
    elif operation == "popAll":
        for ahead in waiting:
            ahead.waits, ahead.taken_back = False, True
    elif operation in ("dequeue", "remove") and waiting:
        chosen = next((ahead for ahead in waiting if text and ahead.text == text), waiting[0])
        chosen.waits = False


def read_said(data, ended=True):
    """Every prompt and answer of a transcript's bytes, as Said, in file order."""
    said, queue, uuids, operations = [], [], set(), set()
    for start, line in physical_lines(data, ended):
        for record in records(line):
            uuid = record.get("uuid")
            if isinstance(uuid, str) and uuid in uuids:
                continue
            if isinstance(uuid, str):
                uuids.add(uuid)
            kind, message = record.get("type"), record.get("message")
            message = message if isinstance(message, dict) else {}
            if kind == "user":
                found = classify_user(record, message.get("content"))
                if found:
                    said.append(Said(found[0], found[1], uuid, start))
            elif kind == "assistant":
                text = answer_text(record, message)
                if text:
                    said.append(Said("answer", text, uuid, start))
            elif kind == "attachment":
                text = queued_attachment(record)
                if text:
                    said.append(Said("prompt", text, uuid, start))
            elif kind == "queue-operation":
                name = json.dumps([record.get(name) for name in ("timestamp", "operation", "content")])
                if not (record.get("timestamp") and name in operations):  # a history that is appended again brings its queue
                    operate(record, queue, start)
                operations.add(name)
    return sorted(said + never_came(queue, said), key=lambda one: one.start)


def never_came(queue, said):
    """The prompts typed ahead that appear nowhere else and were not taken back."""
    found, used = [], set()
    for ahead in queue:
        if not is_typed_prompt(ahead.text):
            continue
        later = [number for number, one in enumerate(said)
                 if one.kind == "prompt" and one.start >= ahead.start and one.text == ahead.text and number not in used]
        if later:
            used.add(later[0])
        elif not ahead.taken_back:
            found.append(Said("prompt", ahead.text, None, ahead.start))
    return found


def squeezed(text):
    """Text without white space: what a comparison goes by, since blocks are joined in more than one way."""
    return "".join(text.split())


def count_said(data, kinds=("prompt", "answer"), ended=True):
    """A Counter of (kind, squeezed text)."""
    return collections.Counter((one.kind, squeezed(one.text)) for one in read_said(data, ended) if one.kind in kinds)
