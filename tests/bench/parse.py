"""Bytes per second of the parser, beside a bare `for line in stream: json.loads(line)` over the same file.

    python tests/bench/parse.py [megabytes, default 24] [rounds, default 7]

The transcript is synthetic; its byte shares by kind of content are those measured over some 400 real sessions, and its
line lengths come near theirs (median 1 KB, 99th percentile 45 KB). The two are run in turn, so that a busy machine slows
both. Goal: at least half the bare loop's speed.
"""
import json
import pathlib
import random
import statistics
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent))
import memhook  # noqa: E402

GOAL = 0.5
WORDS = ("the price module test fails because total cents float invoice migration table column checkout cart cache build deploy branch "
         "commit function returns value when called with an empty list and the error says that it expected integer").split()
SHARES = {  # kind of content -> share of a transcript's bytes; what is missing to 1 is the envelope (ids, cwd, usage)
    "details": 0.387, "progress": 0.162, "result": 0.130, "image": 0.028, "signature": 0.025, "body": 0.023, "thinking": 0.010,
    "tool": 0.0097, "answer": 0.0086, "snapshot": 0.0059, "summary": 0.0026, "attachment": 0.0024, "prompt": 0.0021, "wrapper": 0.0021,
    "meta": 0.0017,
}


class Writer:
    """Writes the line whose kind of content is furthest behind its share, until the file is long enough."""

    def __init__(self, seed=1):
        self.chance = random.Random(seed)
        self.lines, self.size, self.number = [], 0, 0
        self.written = dict.fromkeys(SHARES, 0)

    def text(self, median, longest=200_000):
        """Prose and code: words, quotes, a line end every few words."""
        size = min(longest, int(median * self.chance.lognormvariate(0, 1.5)) + 10)
        words = self.chance.choices(WORDS, k=min(600, size // 6 + 1))
        text = "".join(word + self.chance.choice((" ", " ", " ", " ", ' "', '", ', "\n    ", "\n", "\t", ": ")) for word in words)
        return (text * (size // len(text) + 1))[:size]

    def record(self, kind, content=None, **fields):
        self.number += 1
        record = {"parentUuid": "%08x-0000-4000-8000-000000000000" % self.number, "isSidechain": False, "userType": "external",
                  "cwd": "/srv/shop", "sessionId": "00000000-0000-4000-8000-000000000000", "version": "2.1.42", "gitBranch": "main",
                  "type": kind, "uuid": "%08x-0000-4000-8000-%012x" % (self.number, self.number),
                  "timestamp": memhook.iso(1_750_000_000 + self.number)}
        if content is not None:
            record["message"] = {"role": kind, "content": content}
        if kind == "assistant":
            usage = {"input_tokens": 4, "cache_creation_input_tokens": 900, "cache_read_input_tokens": 60_000, "output_tokens": 200}
            record["message"].update(id="msg_%d" % self.number, model="claude", type="message", stop_reason=None, usage=usage)
            record["requestId"] = "req_%d" % self.number
        record.update(fields)
        return record

    def put(self, record, **parts):
        line = json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self.lines.append(line)
        self.size += len(line)
        for kind, text in parts.items():
            self.written[kind] += len(json.dumps(text, ensure_ascii=False).encode())

    def step(self):
        kind = min(SHARES, key=lambda kind: self.written[kind] / SHARES[kind])
        getattr(self, "put_" + kind)()

    def use(self, name, **given):
        return {"type": "tool_use", "id": "toolu_%d" % self.number, "name": name, "input": given}

    def put_tool(self):
        command = "grep -rn " + self.text(60, 400)
        self.put(self.record("assistant", [self.use("Bash", command=command, description="Look for it")]), tool=command)

    def put_body(self):
        body = self.text(350, 20_000)
        self.put(self.record("assistant", [self.use("Edit", file_path="/srv/shop/a.py", old_string="", new_string=body)]), body=body)

    def put_result(self, details=None):
        text = self.text(450)
        failed = self.chance.random() < 0.04
        block = {"type": "tool_result", "tool_use_id": "toolu_%d" % (self.number - 1), "content": text, "is_error": failed}
        self.put(self.record("user", [block], toolUseResult=details or "x"), result=text, details=details or "x")

    def put_details(self):
        self.put_result({"stdout": self.text(700), "stderr": "", "structuredPatch": [{"lines": [self.text(300)] * 2}]})

    def put_progress(self):
        message = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": self.text(700)}]}}
        data = self.chance.choice([{"type": "agent_progress", "message": message}, {"type": "bash_progress", "output": self.text(500)}])
        self.put(self.record("progress", data=data, toolUseID="toolu_1"), progress=data)

    def put_image(self):
        data = "iVBORw0KGgo" * self.chance.randrange(2_000, 60_000)
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
        self.put(self.record("user", [{"type": "tool_result", "tool_use_id": "x", "content": [image]}]), image=data)

    def put_signature(self):
        signature, thinking = "c2lnbmF0dXJl" * self.chance.randrange(20, 200), self.text(200)
        block = {"type": "thinking", "thinking": thinking, "signature": signature}
        self.put(self.record("assistant", [block]), signature=signature, thinking=thinking)

    put_thinking = put_signature

    def put_answer(self):
        text = self.text(250, 20_000)
        self.put(self.record("assistant", [{"type": "text", "text": text}]), answer=text)

    def put_snapshot(self):
        snapshot = {"trackedFileBackups": {"src/%d.py" % number: {"version": 1} for number in range(20)}}
        self.put({"type": "file-history-snapshot", "messageId": "m", "snapshot": snapshot, "isSnapshotUpdate": False}, snapshot=snapshot)

    def put_summary(self):
        text = "This session is being continued from a previous conversation. " + self.text(6_000)
        self.put(self.record("user", text, isCompactSummary=True), summary=text)

    def put_attachment(self):
        attachment = {"type": "hook_success", "content": self.text(300)}
        self.put(self.record("attachment", attachment=attachment), attachment=attachment)

    def put_prompt(self):
        text = self.text(120, 20_000)
        self.put(self.record("user", text), prompt=text)

    def put_wrapper(self):
        text = "<local-command-stdout>%s</local-command-stdout>" % self.text(200)
        self.put(self.record("user", text), wrapper=text)

    def put_meta(self):
        text = "Base directory for this skill: /srv/skills/x\n\n" + self.text(1_500)
        self.put(self.record("user", text, isMeta=True), meta=text)


def bare_loop(path):
    with open(path, "rb") as stream:
        for line in stream:
            json.loads(line)


def parser(path):
    context = memhook.Context()
    with open(path, "rb") as stream:
        for line, start, end in memhook.read_lines(stream, 0, None, True):
            memhook.parse_line(line, start, end, context)


def timed(run, path):
    started = time.perf_counter()
    run(path)
    return time.perf_counter() - started


def main(megabytes=24, rounds=7):
    writer = Writer()
    while writer.size < megabytes << 20:
        writer.step()
    lengths = sorted(map(len, writer.lines))
    at = [lengths[min(len(lengths) - 1, len(lengths) * share // 100)] for share in (50, 90, 99, 100)]
    data = b"".join(writer.lines)
    turns = memhook.parse_turns(data)
    print("%d lines, %d bytes; line length: median %d, 90 %% %d, 99 %% %d, longest %d" % (len(lengths), len(data), *at))
    print("shares: " + ", ".join("%s %.1f" % (kind, 100 * size / writer.size) for kind, size in writer.written.items())
          + ", envelope %.1f" % (100 - 100 * sum(writer.written.values()) / writer.size))
    print("%d turns; their text is %.1f %% of the bytes" % (len(turns), 100 * sum(len(turn.text.encode()) for turn in turns) / len(data)))
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as stream:
        stream.write(data)
        stream.flush()
        bare, ours = [], []
        for _ in range(rounds):
            bare.append(timed(bare_loop, stream.name))
            ours.append(timed(parser, stream.name))
    speed = {name: len(data) / statistics.median(times) / 1e6 for name, times in (("bare json.loads", bare), ("parser", ours))}
    for name, value in speed.items():
        print("%-16s %7.1f MB/s" % (name, value))
    ratio = statistics.median(one / other for one, other in zip(bare, ours))
    print("ratio %.2f (goal: at least %.2f): %s" % (ratio, GOAL, "reached" if ratio >= GOAL else "MISSED"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
