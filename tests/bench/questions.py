#!/usr/bin/env python3
"""Questions about coding sessions (tests/data/recall): how often the right session comes first, and how often a thing never stored seems found.

    questions.py [-v]

The questions came before any tuning on them. Sessions take the whole way: transcripts, import, drain, the MCP server's search.
"""
import argparse
import json
import pathlib
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
from conftest import DATA, Box, memhook  # noqa: E402


def load(box):
    """Give a box the sessions as stored memories."""
    for session in json.loads((DATA / "recall" / "sessions.json").read_text("utf-8")):
        script = box.script(session["id"], memhook.parse_time(session["at"]))
        for kind, text in session["turns"]:
            if kind == "bash":
                script.tool("Bash", command=text)
                script.result("ok")
            else:
                script.prompt(text) if kind == "user" else script.answer(text)
    box.run("import", "--yes", script.path.parent)
    box.drain()


def ask(box):
    """-> [(question, session that has the answer or None, sessions found in order, whether the first is sure)]."""
    asked = []
    project = memhook.Scope(memhook.this_project(box.api, str(box.project)))
    for question in json.loads((DATA / "recall" / "questions.json").read_text("utf-8")):
        results = memhook.search(box.api, question["q"], project, 10)["results"]
        found = list(dict.fromkeys(result["session"] for result in results))
        asked.append((question["q"], question["session"], found, any(result["confidence"] == "high" for result in results)))
    return asked


def figures(asked):
    """-> {"hit@1", "hit@5", "sure": share of answerable questions with a sure result, "false": of the others}."""
    known = [entry for entry in asked if entry[1]]
    unknown = [entry for entry in asked if not entry[1]]
    return {"hit@1": sum(found[:1] == [gold] for _, gold, found, _ in known) / len(known),
            "hit@5": sum(gold in found[:5] for _, gold, found, _ in known) / len(known),
            "sure": sum(sure for _, _, _, sure in known) / len(known), "false": sum(sure for _, _, _, sure in unknown) / len(unknown)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-v", "--verbose", action="store_true", help="print every question that was not answered first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        box = Box(root)
        box.install()
        load(box)
        asked = ask(box)
    for query, gold, found, sure in asked if options.verbose else []:
        if found[:1] != [gold] and (gold or sure):
            print("%s: %s; found %s" % (query, gold, found[:3]))
    print(len(asked), "questions:", ", ".join("%s %.3f" % item for item in figures(asked).items()))


if __name__ == "__main__":
    main()
