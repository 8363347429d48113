"""README and program agree, in both directions: commands, options, settings, variables, hooks, files."""
import re
import shlex

import memhook
from conftest import PROGRAM, ROOT

README = (ROOT / "README.md").read_text("utf-8")
SOURCE = PROGRAM.read_text("utf-8")
NAMES = [command.name for command in memhook.COMMANDS]


def command_lines():
    """What README tells a person to type to memhook, without the descriptions beside it: code blocks, code spans, both sides of && and ;"""
    blocks = [line[4:] for line in README.split("\n") if line.startswith("    ")]
    for code in blocks + re.findall(r"`([^`\n]+)`", README):
        for line in re.split(r" && |; ", re.split(r"\s{2,}|\s# ", code.strip())[0]):
            found = re.match(r"(?:\$ )?(?:memhook|python3 \S*memhook\.py) (.*)", line)
            if found:
                yield found.group(1)


def named(line):
    """The commands that a line names: the longest known name at its start; "a | b" names two, "team a | b" two of one group."""
    group = ""
    for part in line.split(" | "):
        words = part.split()
        found = next((" ".join(words[:count]) for count in (3, 2, 1) if " ".join(words[:count]) in NAMES), "")
        found = found or next((name for name in NAMES if name == group + words[0]), "")
        group = found.rpartition(" ")[0] + " "
        yield found


def test_it_is_short():
    assert README.count("\n") <= 220


def test_every_command_line_in_it_is_one_that_the_program_knows():
    lines = [line for line in command_lines() if not line.startswith(("COMMAND", "--", "help"))]
    assert len(lines) > 20
    for line in lines:
        assert all(named(line)), line


def test_every_command_is_in_it():
    written = {name for line in command_lines() for name in named(line)}
    assert sorted(set(NAMES) - written) == []


def test_every_option_in_it_is_one_of_its_command():
    for line in command_lines():
        for name, part in zip(named(line), line.split(" | ")):
            given = {word.split("=")[0] for word in part.split() if word.startswith("-") and name}
            known = {argument.name for command in memhook.COMMANDS if command.name == name for argument in command.arguments} | {"--help", "-n"}
            assert given <= known, line


def test_a_line_without_choices_or_placeholders_is_understood():
    parser = memhook.build_parser()
    for line in command_lines():
        if not re.search(r"\| |…|\b[A-Z]{2,}\b", line) and not line.startswith("--"):
            assert parser.parse_args(shlex.split(line)).command in NAMES, line


def test_every_variable_in_it_is_read_by_the_program_or_the_installer():
    sources = SOURCE + (ROOT / "install.sh").read_text("utf-8") + (ROOT / "tests" / "run.sh").read_text("utf-8")
    settings = {"MEMHOOK_" + name.upper() for name in memhook.SETTINGS}
    written = set(re.findall(r"\b(?:MEMHOOK|CLAUDE)_[A-Z_]+\b", README))
    assert written and [name for name in written - settings if not re.search(r"\b%s\b" % name, sources)] == []


def test_its_hooks_are_those_that_are_installed():
    block = re.search(r"## How it works\n\n((?:    .*\n)+)", README).group(1)
    assert {spec.event for spec in memhook.HOOK_SPECS} == set(re.findall(r"\b(?:Session|Pre|Post|Stop|User|Sub)\w*\b", block)) - {"Markdown"}


def test_every_entry_of_its_table_of_files_is_written_by_the_program():
    table = re.search(r"\| file \| what it is \|\n(?:\|.*\n)+", README).group(0)
    for name in re.findall(r"`([\w./<>*~-]+)`", " ".join(row.split("|")[1] for row in table.strip().split("\n")[2:])):
        stem = re.sub(r"<[^>]+>|\*.*", "", name).strip("/").split("/")[-1]
        for part in filter(None, re.split(r"[/]", stem)):
            assert re.search(r"\b%s\b" % re.escape(part.strip(".")), SOURCE) or part in ("memhook.py", "__pycache__", "md"), name
