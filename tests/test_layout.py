"""The file keeps its own rules: map and banners agree, sections use only those above, two broad handlers, a lean hook path."""
import ast
import re
import subprocess
import sys

import memhook
from conftest import PROGRAM, ROOT

SOURCE = PROGRAM.read_text("utf-8")
TREE = ast.parse(SOURCE)


def test_the_docstring_maps_the_banners():
    banners = re.findall(r"(?m)^# ==== (\d+\. \w+) =+$", SOURCE)
    mapped = re.findall(r"(?m)^    (\d+\. \w+) +\S.*$", ast.get_docstring(TREE))
    assert banners == mapped
    assert [int(name.split(".")[0]) for name in banners] == list(range(1, len(banners) + 1))


def test_every_section_opens_with_its_contract():
    opened = re.findall(r"(?m)^# ==== \d+\. (\w+) =+\n((?:#.*\n)*)", SOURCE)
    assert len(opened) > 20 and [name for name, contract in opened if "# Job:" not in contract] == []


def test_lines_fit_a_screen_and_functions_a_glance():
    assert [number for number, line in enumerate(SOURCE.split("\n"), 1) if len(line) > 140] == []
    functions = [node for node in ast.walk(TREE) if isinstance(node, ast.FunctionDef)]
    assert len(functions) > 500 and [node.name for node in functions if node.end_lineno - node.lineno > 60] == []


def test_definitions_use_only_what_stands_above_them():
    lines = {}
    for node in TREE.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            lines[node.name] = node.lineno
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                lines.update({name.id: node.lineno for name in ast.walk(target) if isinstance(name, ast.Name)})
    forward = [(node.name, name.id) for node in TREE.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)) for name in ast.walk(node)
               if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and lines.get(name.id, 0) > node.lineno]
    assert forward == []


def test_exactly_two_handlers_are_broad():
    broad = [node.lineno for node in ast.walk(TREE) if isinstance(node, ast.ExceptHandler)
             and (node.type is None or getattr(node.type, "id", "") in ("Exception", "BaseException"))]
    owners = sorted(function.name for function in TREE.body if isinstance(function, ast.FunctionDef)
                    for line in broad if function.lineno <= line <= function.end_lineno)
    assert owners == ["main", "run_hook"] and len(broad) == 2


def test_no_function_is_long_and_all_are_annotated():
    for node in ast.walk(TREE):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name
            assert node.returns is not None, node.name


def test_it_parses_as_python_3_9():
    ast.parse(SOURCE, feature_version=(3, 9))


def test_importing_it_loads_nothing_that_a_hook_cannot_afford():
    code = "import sys; sys.path.insert(0, %r); import json, os, re; allowed = set(sys.modules); import memhook; print(*sorted(set(sys.modules) - allowed))" % str(ROOT)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"memhook", "time", "__future__"}


def test_only_the_agreed_files_lie_at_the_top():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout.split("\n")
    tops = {name.split("/")[0] for name in files if name}
    assert {name for name in tops if not name.startswith(".")} <= {"memhook.py", "tests", "install.sh", "README.md", "LICENSE"}


def test_nothing_in_the_module_is_mutable_state():
    changed = [node.names for node in ast.walk(TREE) if isinstance(node, ast.Global)]
    assert changed == [] and memhook.VERSION
