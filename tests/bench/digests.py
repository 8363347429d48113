#!/usr/bin/env python3
"""Turn the sessions of tests/data/sessions into memories by the real hooks and drain, and write their digests out, one file a session.

    digests.py OUTPUT_FOLDER

What a reader can answer from these digests alone is judged by people: the questions lie beside the sessions.
"""
import json
import pathlib
import shutil
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
from conftest import Box, Script  # noqa: E402


def write(box, session, name):
    """One session of tests/data as a transcript of the box."""
    script = Script(box.config / "projects" / "p" / (name + ".jsonl"), session["cwd"], name)
    for turn in session["turns"]:
        if "prompt" in turn:
            script.prompt(turn["prompt"])
        elif "answer" in turn:
            script.answer(turn["answer"])
        elif "tool" in turn:
            script.tool(turn["tool"], **turn.get("input", {}))
            script.result(turn.get("result", ""), error=bool(turn.get("error")))
        elif turn.get("interrupt"):
            script.prompt("[Request interrupted by user]")
    return script


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    root = tempfile.mkdtemp(prefix="memhook-digests-")
    box = Box(root)
    box.install()
    for path in sorted((TESTS / "data" / "sessions").glob("*.json")):
        if not path.name.endswith(".questions.json"):
            script = write(box, json.loads(path.read_text("utf-8")), path.stem)
            box.hook("Stop", script)
            box.hook("SessionEnd", script)
    box.drain()
    said = kept = 0
    texts = {}
    for memory in box.memories():
        texts.setdefault(memory.front["session"], []).append(memory.digest.strip())
        said += sum(len(turn.text) for turn in memory.turns)
        kept += len(memory.digest)
    for session, parts in texts.items():
        (out / (session + ".md")).write_text("\n\n---\n\n".join(parts) + "\n", "utf-8")
    print("%d sessions, %d characters said, %d in digests (%.0f %%): %s" % (len(texts), said, kept, 100 * kept / said, out))
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
