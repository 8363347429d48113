"""install.sh: from a checkout, piped, offline; under dash and bash; a download that was cut does nothing."""
import functools
import hashlib
import http.server
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading

import pytest

import memhook
from conftest import PROGRAM, ROOT, Box, memory_folder, tree
from terminal import at_terminal

pytestmark = pytest.mark.skipif(os.name == "nt", reason="there is no sh")

SCRIPT = ROOT / "install.sh"
CONSENT = ("--consent", memhook.CONSENT_PHRASE)
SETTINGS = b'{\n\t"model": "opus"\n}\n'
TOOLS = ("sh", "cat", "cp", "rm", "mkdir", "mktemp", "dirname", "basename", "printf")  # what a POSIX system surely has
DIGEST = hashlib.sha256(PROGRAM.read_bytes()).hexdigest()
EMBEDDED = re.compile(r"(?m)^SHA256=\$\{MEMHOOK_SHA256-([0-9a-f]{64})\}$")


@pytest.fixture
def tmp_path():
    with memory_folder() as root:
        yield root


@pytest.fixture
def box(tmp_path):
    """A machine without memhook, with a temporary folder and settings of its own."""
    box = Box(tmp_path)
    (tmp_path / "tmp").mkdir()
    box.env.update(TMPDIR=str(tmp_path / "tmp"), PYTHON=sys.executable)
    (box.config / "settings.json").write_bytes(SETTINGS)
    return box


@pytest.fixture(params=["dash", "bash"])
def shell(request):
    if not shutil.which(request.param):
        pytest.skip("there is no %s" % request.param)
    return shutil.which(request.param)


@pytest.fixture
def released(tmp_path):
    """A checkout as released: install.sh knows the checksum of the memhook.py beside it."""
    folder = tmp_path / "released"
    folder.mkdir()
    shutil.copy(PROGRAM, folder)
    text, count = EMBEDDED.subn("SHA256=${MEMHOOK_SHA256-%s}" % DIGEST, SCRIPT.read_text("utf-8"))
    assert count == 1
    (folder / "install.sh").write_text(text, "utf-8")
    return folder


@pytest.fixture
def site(released):
    """The address of a server that has the released files."""
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(released)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield "http://127.0.0.1:%d" % server.server_address[1]
    server.shutdown()
    server.server_close()


def run(box, command, check=True, **options):
    done = subprocess.run(list(map(str, command)), env=box.env, cwd=options.pop("cwd", box.project), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=120, start_new_session=True, **options)
    if check:
        assert done.returncode == 0, done.stderr
    return done


def piped(shell, script, *args):
    """As `curl … | sh -s -- ARGS` runs it: the script comes from a pipe."""
    return ["/bin/sh", "-c", 'script=$1; shell=$2; shift 2; cat "$script" | "$shell" -s -- "$@"', "sh", script, shell, *args]


def is_on(box):
    assert set(box.status()["hooks"].values()) == {"installed"} and box.status()["consent"]["capture"]
    assert (box.config / "memhook.py").read_bytes() == PROGRAM.read_bytes()
    assert os.listdir(box.env["TMPDIR"]) == []


def only(box, *names):
    """A PATH that has the tools of any POSIX system, and these."""
    folder = box.root / "few-tools"
    folder.mkdir()
    for name in (*TOOLS, *names):
        found = sys.executable if name == "python3" else shutil.which(name)
        if not found:
            pytest.skip("there is no %s" % name)
        (folder / name).symlink_to(os.path.realpath(found) if name == "python3" else found)
    box.env["PATH"] = str(folder)
    box.env.pop("PYTHON", None)
    return folder


# ---- the ways to install


def test_from_a_checkout(box, shell, released):
    done = run(box, [shell, released / "install.sh", *CONSENT, "--no-mcp"])
    is_on(box)
    assert "no checksum was compared" in done.stderr and "uninstall" in done.stderr and "status" in done.stderr and str(box.config / "settings.json") in done.stderr
    before = tree(box.config)
    run(box, [shell, "install.sh", *CONSENT, "--no-mcp"], cwd=released)
    after = tree(box.config)
    assert set(after) == set(before)
    changed = {path for path in after if after[path][2] != before[path][2]}
    assert all(path.endswith(".pyc") for path in changed), changed  # what compiles anew may write its constants in another order


def test_piped_it_is_fetched_and_its_checksum_compared(box, shell, site, released):
    box.env["MEMHOOK_BASE_URL"] = site
    done = run(box, piped(shell, released / "install.sh", *CONSENT, "--no-mcp"))
    is_on(box)
    assert "%s/memhook.py (SHA-256 as expected)" % site in done.stderr


def test_offline_from_a_file(box, shell, released):
    box.env["MEMHOOK_FROM"] = str(PROGRAM)
    box.env["MEMHOOK_BASE_URL"] = "http://127.0.0.1:9"  # nobody is there
    done = run(box, piped(shell, released / "install.sh", *CONSENT, "--no-mcp"))
    is_on(box)
    assert "%s (SHA-256 as expected)" % PROGRAM in done.stderr


@pytest.mark.parametrize("keys, status", [(b"I CONSENT\n", 0), (b"yes\n", 1), (b"i consent\n", 1), (b"\n", 1), (b"\x04", 1), (b"\x03", 130)])
def test_piped_at_a_terminal_the_words_are_asked_for_there(box, site, keys, status):
    box.env["MEMHOOK_BASE_URL"] = site
    before = tree(box.root)
    by_python = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen(sys.argv[1]).read().decode())"
    fetch = "curl -fsSL %s/install.sh" % site if shutil.which("curl") else shlex.join([sys.executable, "-c", by_python, site + "/install.sh"])
    ended, shown = at_terminal(["/bin/sh", "-c", fetch + " | sh -s -- --no-mcp"], box.env, box.project, keys)
    assert ended == status, shown
    if status:
        assert {path: value[::2] for path, value in tree(box.root).items()} == {path: value[::2] for path, value in before.items()}
    else:
        is_on(box)


@pytest.mark.parametrize("fetcher", ["curl", "wget", "python3"])
def test_each_tool_that_can_fetch(box, site, released, fetcher):
    only(box, *{fetcher, "python3"}, "sha256sum")
    box.env["MEMHOOK_BASE_URL"] = site
    run(box, [shutil.which("sh"), "-c", 'cat "$1" | sh -s -- --dry-run', "sh", released / "install.sh"])
    box.env["MEMHOOK_BASE_URL"] = site + "/nowhere"
    done = run(box, piped("sh", released / "install.sh", "--dry-run"), check=False)
    assert done.returncode == 1 and "cannot fetch %s/nowhere/memhook.py" % site in done.stderr and "MEMHOOK_FROM" in done.stderr


@pytest.mark.parametrize("tool", ["sha256sum", "shasum", "python3"])
def test_each_tool_that_can_compare(box, released, tool):
    folder = only(box, *{tool, "python3"}, *(["perl"] if tool == "shasum" else []))
    if tool == "python3":  # one that is there and does not work
        (folder / "sha256sum").write_text("#!/bin/sh\nexit 1\n")
        (folder / "sha256sum").chmod(0o755)
    box.env["MEMHOOK_FROM"] = str(PROGRAM)
    assert "SHA-256 as expected" in run(box, piped("sh", released / "install.sh", "--dry-run")).stderr
    other = box.root / "memhook.py"
    other.write_bytes(PROGRAM.read_bytes() + b"#")
    box.env["MEMHOOK_FROM"] = str(other)
    before = tree(box.root)
    done = run(box, piped("sh", released / "install.sh", *CONSENT), check=False)
    assert done.returncode == 1 and "differs" in done.stderr and "expected)" not in done.stderr
    assert {path: value[::2] for path, value in tree(box.root).items()} == {path: value[::2] for path, value in before.items()}


def test_a_checksum_that_was_not_compared_is_not_claimed(box, released):
    box.env.update(MEMHOOK_FROM=str(PROGRAM), MEMHOOK_SHA256="")
    said = run(box, piped("sh", released / "install.sh", "--dry-run")).stderr
    assert "no checksum was compared" in said and "as expected" not in said


@pytest.mark.parametrize("share", [0, 0.3, 0.999])
def test_a_memhook_py_that_was_cut_is_not_installed(box, site, released, share):
    data = PROGRAM.read_bytes()
    (released / "memhook.py").write_bytes(data[:int(len(data) * share)])
    box.env["MEMHOOK_BASE_URL"] = site
    done = run(box, piped("sh", released / "install.sh", *CONSENT), check=False)
    assert done.returncode == 1 and "differs" in done.stderr
    assert os.listdir(box.config) == ["settings.json"] and os.listdir(box.env["TMPDIR"]) == []


# ---- what does nothing


def test_a_download_of_the_script_that_was_cut_does_nothing(box, shell):
    """At every 40th byte, and at each of the last 60: no command is run, no file written."""
    folder = only(box)
    for name in (*TOOLS, "python3", "curl", "wget", "sha256sum", "shasum"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text("#!/bin/sh\necho %s >>%s\nexit 1\n" % (name, shlex.quote(str(box.root / "was-run"))))
        (folder / name).chmod(0o755)
    data = SCRIPT.read_bytes()
    box.env["MEMHOOK_BASE_URL"] = "http://127.0.0.1:9"
    before = tree(box.root)
    for cut in sorted({*range(0, len(data), 40), *range(len(data) - 60, len(data.rstrip()))}):
        subprocess.run([shell, "-s", "--", *CONSENT], input=data[:cut], env=box.env, cwd=box.project, capture_output=True, timeout=60)
        assert tree(box.root) == before, cut
    subprocess.run([shell, "-s", "--", *CONSENT], input=data, env=box.env, cwd=box.project, capture_output=True, timeout=60)
    assert (box.root / "was-run").exists()  # the whole one does run something here


def test_a_dry_run_says_what_would_be_done_and_does_nothing(box, shell):
    before = tree(box.root)
    done = run(box, [shell, SCRIPT, "--dry-run"])
    assert all(spec.event in done.stderr for spec in memhook.HOOK_SPECS) and "Would" in done.stderr
    assert {path: value[::2] for path, value in tree(box.root).items()} == {path: value[::2] for path, value in before.items()}


def test_help_needs_nothing(box, shell):
    said = run(box, [shell, SCRIPT, "--help"]).stderr
    text = SCRIPT.read_text("utf-8")
    assert {"--dry-run", "--consent", "--no-mcp", "--uninstall", "--purge"} <= set(said.split())
    for name in re.findall(r"\$\{((?:MEMHOOK|CLAUDE)_\w+|PYTHON)", text):
        assert "\n  %s " % name in said, name


@pytest.mark.parametrize("args, fault", [
    ("--bogus", "there is no option --bogus to install"), ("extra", "there is no option extra to install"),
    ("--consent words --purge", "there is no option --purge to install"), ("--dry-run --consent", "--consent needs a PHRASE after it"),
    ("--uninstall --dry-run", "there is no option --dry-run to uninstall")])
def test_an_option_that_it_has_not_is_answered_with_its_own_usage_and_does_nothing(box, shell, args, fault):
    before = tree(box.root)
    done = run(box, [shell, SCRIPT, *args.split()], check=False)
    assert (done.returncode, done.stdout) == (2, "") and tree(box.root) == before
    assert done.stderr.startswith("usage: sh install.sh [--dry-run]") and done.stderr.endswith("\ninstall.sh: %s\n" % fault)


def test_a_folder_in_place_of_the_file_is_called_one(box, shell, released):
    box.env["MEMHOOK_FROM"] = "%s/" % released
    done = run(box, [shell, SCRIPT, "--dry-run"], check=False)
    assert done.returncode == 1 and "%s/ is a folder\n            name the file in it: MEMHOOK_FROM=%s/memhook.py\n" % (released, released) in done.stderr


@pytest.mark.parametrize("old", ["", "#!/bin/sh\nexit 9\n", '#!/bin/sh\ncase "$*" in *version_info*) exit 1;; esac\n'])
def test_without_a_python_of_3_9_it_says_so(box, old):
    folder = only(box)
    if old:  # the stub of a shop, or an older one
        for name in ("python3", "python"):
            (folder / name).write_text(old)
            (folder / name).chmod(0o755)
    before = tree(box.root)
    done = run(box, ["sh", SCRIPT, *CONSENT], check=False)
    assert done.returncode == 1 and "no Python 3.9 or newer" in done.stderr and "PYTHON=" in done.stderr
    assert tree(box.root) == before


@pytest.mark.parametrize("named", ["/nope/python3", "a stub"])
def test_a_python_that_was_named_and_cannot_be_used_is_not_replaced_by_another(box, shell, named):
    if named == "a stub":
        named = box.root / "python of old"
        named.write_text("#!/bin/sh\nexit 1\n")
        named.chmod(0o755)
    box.env["PYTHON"] = str(named)
    before = tree(box.root)
    done = run(box, [shell, SCRIPT, *CONSENT], check=False)
    assert done.returncode == 1 and "PYTHON=%s is no Python 3.9" % named in done.stderr and "leave PYTHON out" in done.stderr
    assert tree(box.root) == before


def test_a_python_that_only_a_version_names_is_found(box):
    folder = only(box)
    (folder / "python3").write_text("#!/bin/sh\nexit 9\n")
    (folder / "python3").chmod(0o755)
    (folder / "python3.12").symlink_to(os.path.realpath(sys.executable))
    assert "Would" in run(box, ["sh", SCRIPT, "--dry-run"]).stderr


# ---- out again


def test_uninstall_brings_everything_back(box, shell):
    run(box, [shell, SCRIPT, *CONSENT, "--no-mcp"])
    done = run(box, [shell, SCRIPT, "--uninstall"])
    assert (box.config / "settings.json").read_bytes() == SETTINGS and sorted(os.listdir(box.config)) == ["settings.json"]
    assert "memhook is off" in done.stderr


def test_uninstall_by_a_piped_script_and_where_there_is_nothing(box, shell):
    run(box, [shell, SCRIPT, *CONSENT, "--no-mcp"])
    run(box, piped(shell, SCRIPT, "--uninstall"))
    assert (box.config / "settings.json").read_bytes() == SETTINGS
    done = run(box, piped(shell, SCRIPT, "--uninstall"), check=False)
    assert done.returncode == 1 and "not installed" in done.stderr and "no memories" in done.stderr


def test_a_purge_by_a_piped_script_without_a_program_says_how_to_erase_what_is_left(box, shell):
    box.env["MEMHOOK_HOME"] = str(box.root / "it's mine")
    os.mkdir(box.env["MEMHOOK_HOME"])
    done = run(box, piped(shell, SCRIPT, "--uninstall", "--purge"), check=False)
    assert done.returncode == 1 and shlex.split(done.stderr.split("to erase them: ")[1]) == ["rm", "-r", box.env["MEMHOOK_HOME"]]
    assert "            memories stay in " in done.stderr
    (box.root / "it's mine" / "hub.db").write_text("the team's")
    assert "memories, and the hub's database (hub.db), stay in " in run(box, piped(shell, SCRIPT, "--uninstall"), check=False).stderr


def test_a_purge_by_the_script_asks_at_the_terminal(box):
    run(box, ["sh", SCRIPT, *CONSENT, "--no-mcp"])
    command = piped("sh", SCRIPT, "--uninstall", "--purge")
    assert at_terminal(command, box.env, box.project, b"no\n")[0] == 2 and box.home.exists()
    status, shown = at_terminal(command, box.env, box.project, b"PURGE\n")
    assert status == 0 and os.listdir(box.config) == ["settings.json"], shown


def test_folders_with_spaces_and_quotes(tmp_path, shell):
    root = tmp_path / "J D'oe & \"co\" $HOME"
    root.mkdir()
    box = Box(root)
    shutil.copy(PROGRAM, root)
    shutil.copy(SCRIPT, root)
    (root / "tmp dir").mkdir()
    box.env.update(TMPDIR=str(root / "tmp dir"), PYTHON=sys.executable, CLAUDE_CONFIG_DIR=str(root / "config folder"))
    run(box, [shell, root / "install.sh", *CONSENT, "--no-mcp"])
    assert set(box.status()["hooks"].values()) == {"installed"} and os.listdir(box.config) == []
    run(box, [shell, root / "install.sh", "--uninstall"])
    assert os.listdir(root / "config folder") == []


# ---- the script itself


def test_shellcheck_finds_nothing():
    command = shutil.which("shellcheck")
    if not command or subprocess.run([command, "--version"], capture_output=True).returncode:
        pytest.skip("there is no shellcheck that runs")
    for path in (SCRIPT, ROOT / "tests" / "run.sh", ROOT / "tests" / "checksum.sh"):
        done = subprocess.run([command, "--shell=sh", "--severity=style", str(path)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_main_comes_last_and_nothing_needs_root():
    text = SCRIPT.read_text("utf-8")
    assert text.rstrip().split("\n")[-1] == '{ main "$@"; }' and not re.search(r"\bsudo\b", text)


def test_the_embedded_checksum_is_that_of_memhook_py():
    embedded, = EMBEDDED.findall(SCRIPT.read_text("utf-8"))
    if embedded == "0" * 64:
        pytest.skip("no checksum is embedded yet: sh tests/checksum.sh")
    assert embedded == DIGEST, "memhook.py has changed: sh tests/checksum.sh"
