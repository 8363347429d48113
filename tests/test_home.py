"""Where things are, what a person agreed to, and which of their settings wins."""
import json
import os
import stat
import subprocess
import sys

import pytest

import memhook
from conftest import PROGRAM, Box


def home(tmp_path, **environ):
    return memhook.Home({"MEMHOOK_HOME": str(tmp_path / "home"), **environ})


def configure(tmp_path, text):
    (tmp_path / "home").mkdir(exist_ok=True)
    (tmp_path / "home" / "config.json").write_text(text, "utf-8")


def consent(tmp_path, **stored):
    (tmp_path / "home").mkdir(exist_ok=True)
    given = {"format": 1, "capture": {"at": 100.0, "by": "flag"}, "pauses": [], **stored}
    (tmp_path / "home" / "consent.json").write_text(json.dumps(given))
    return memhook.read_consent(home(tmp_path))


# ---- folders

def test_the_home_lies_in_the_folder_of_claude(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = memhook.Home({"HOME": str(tmp_path)})
    assert place.config == str(tmp_path / ".claude") and place.root == str(tmp_path / ".claude" / "memhook-data")
    assert place.path("a", "b") == str(tmp_path / ".claude" / "memhook-data" / "a" / "b")


def test_the_home_folder_is_that_of_the_environment_that_was_given(tmp_path):
    assert memhook.Home({"HOME": str(tmp_path / "another")}).config == str(tmp_path / "another" / ".claude")


def test_claude_config_dir_moves_the_folder_of_claude_and_the_home_in_it(tmp_path):
    place = memhook.Home({"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "work account")})
    assert place.config == str(tmp_path / "work account") and place.root == str(tmp_path / "work account" / "memhook-data")


def test_memhook_home_moves_the_home_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = memhook.Home({"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "c"), "MEMHOOK_HOME": "~/memories of mine"})
    assert place.config == str(tmp_path / "c") and place.root == str(tmp_path / "memories of mine")


def test_empty_variables_are_none(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = memhook.Home({"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": "", "MEMHOOK_HOME": ""})
    assert place.root == str(tmp_path / ".claude" / "memhook-data")


def test_relative_folders_are_those_of_the_working_folder_and_absolute_from_then_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = memhook.Home({"CLAUDE_CONFIG_DIR": "c", "MEMHOOK_HOME": "x/../h"})
    assert (place.config, place.root) == (str(tmp_path / "c"), str(tmp_path / "h"))


def test_a_tilde_in_claude_config_dir_is_a_name_as_it_is_to_claude(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert memhook.Home({"CLAUDE_CONFIG_DIR": "~/c"}).config == str(tmp_path / "~" / "c")


def test_making_a_home_makes_private_folders_and_keeps_it_out_of_published_dotfiles(tmp_path):
    before = os.umask(0)
    try:
        home(tmp_path, MEMHOOK_HOME=str(tmp_path / "a" / "b")).create()
    finally:
        os.umask(before)
    assert (tmp_path / "a" / "b" / ".gitignore").read_text() == "*\n"
    assert [stat.S_IMODE(os.stat(tmp_path / path).st_mode) for path in ("a", "a/b", "a/b/.gitignore")] == [0o700, 0o700, 0o600]


def test_looking_at_a_machine_without_memhook_makes_nothing(tmp_path):
    bare = Box(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status = bare.status()
    assert status["consent"] == {"capture": False, "model": False, "team": False, "paused": False}
    assert set(status["hooks"].values()) == {"missing"}
    bare.run("pause", check=False)
    bare.run("resume", check=False)
    bare.run("install", "--dry-run")
    bare.run("uninstall", check=False)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_drain_on_a_machine_without_memhook_makes_nothing(tmp_path):
    bare = Box(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    bare.run("drain", check=False)
    assert sorted(tmp_path.rglob("*")) == before


# ---- settings

def test_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path):
    default = memhook.SETTINGS["quota_max"]
    assert home(tmp_path).setting("quota_max") == default
    configure(tmp_path, '{"quota_max": 7, "worktrees": "separate"}')
    assert home(tmp_path).setting("quota_max") == 7
    assert home(tmp_path).setting("worktrees") == "separate"
    assert home(tmp_path, MEMHOOK_QUOTA_MAX="3").setting("quota_max") == 3
    assert home(tmp_path, MEMHOOK_WORKTREES="shared").setting("worktrees") == "shared"
    assert home(tmp_path).setting("quota_window") == memhook.SETTINGS["quota_window"]


def test_a_setting_has_the_type_of_its_default(tmp_path):
    configure(tmp_path, '{"quota_max": "12", "quota_window": 5.0}')
    assert home(tmp_path).setting("quota_max") == 12 and type(home(tmp_path).setting("quota_window")) is int


@pytest.mark.parametrize("value", ['"many"', "null", "[]", "{}", '"1e3"', "1e999", "-1e999", "NaN", '""', '"\\ud83d"', "1" + "0" * 5_000])
def test_a_setting_that_makes_no_sense_is_the_default(tmp_path, value):
    configure(tmp_path, '{"quota_max": %s}' % value)
    assert home(tmp_path).setting("quota_max") == memhook.SETTINGS["quota_max"]


@pytest.mark.parametrize("name, value", [
    ("max_results", 0), ("max_results", -3), ("max_results", 51), ("min_score", "inf"), ("min_score", -1), ("quota_max", 0), ("recall_units", 20_000),
    ("vector_weight", 2), ("distiller_seconds", 0), ("disk_low_mb", -1), ("embedder_chars_per_day", -1)])
def test_a_number_out_of_its_range_is_the_default_wherever_it_stands(tmp_path, name, value):
    assert home(tmp_path, **{"MEMHOOK_" + name.upper(): str(value)}).setting(name) == memhook.SETTINGS[name]
    configure(tmp_path, json.dumps({name: value}))
    assert home(tmp_path).setting(name) == memhook.SETTINGS[name]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '"x"', "\ufeff{}", "// no\n{}", "[" * 100_000])
def test_a_config_file_that_makes_no_sense_is_none(tmp_path, text):
    configure(tmp_path, text)
    assert home(tmp_path).setting("quota_max") == memhook.SETTINGS["quota_max"]


def test_nonsense_in_the_environment_is_the_default(tmp_path):
    for value in ("", "many", "1e3", "\ud83d", "9" * 5_000):
        assert home(tmp_path, MEMHOOK_QUOTA_MAX=value).setting("quota_max") == memhook.SETTINGS["quota_max"]


# ---- consent

def test_a_consent_covers_what_was_said_from_then_on(tmp_path):
    given = consent(tmp_path)
    assert [given.covers(at) for at in (99.999, 100.0, 1e12, None)] == ["before", "", "", ""]
    assert not given.paused


def test_a_pause_covers_its_first_moment_and_not_its_last(tmp_path):
    given = consent(tmp_path, pauses=[[200.0, 300.0], [400.0, 400.0], [500.0, 600.0]])
    assert [given.covers(at) for at in (199.9, 200.0, 299.9, 300.0, 400.0, 550.0, 600.0)] == ["", "paused", "paused", "", "", "paused", ""]
    assert not given.paused
    assert given.covers(50.0) == "before"


def test_an_open_pause_lasts(tmp_path):
    given = consent(tmp_path, pauses=[[200.0, 300.0], [400.0, None]])
    assert given.paused and given.covers(1e12) == "paused" and given.covers(399.0) == ""


def test_pausing_and_resuming_are_kept_in_the_consent(tmp_path, monkeypatch):
    consent(tmp_path)
    place = home(tmp_path)
    for at, paused in ((1_000.0, True), (2_000.0, True), (3_000.0, False), (4_000.0, False), (5_000.0, True)):
        monkeypatch.setattr(memhook, "now", lambda: at)
        assert memhook.set_pause(place, paused) is (at in (1_000.0, 3_000.0, 5_000.0))
    assert memhook.read_consent(place).pauses == [[1_000.0, 3_000.0], [5_000.0, None]]
    stored = json.loads((tmp_path / "home" / "consent.json").read_text())
    assert stored["capture"] == {"at": 100.0, "by": "flag"}


def test_without_consent_there_is_nothing_to_pause(tmp_path):
    assert memhook.read_consent(home(tmp_path)) is None
    with pytest.raises(memhook.StateError):
        memhook.set_pause(home(tmp_path), True)


def test_what_an_unknown_program_added_to_the_consent_stays(tmp_path):
    consent(tmp_path, model={"at": 5.0}, note="é")
    memhook.set_pause(home(tmp_path), True)
    stored = json.loads((tmp_path / "home" / "consent.json").read_text("utf-8"))
    assert stored["model"] == {"at": 5.0} and stored["note"] == "é"


def test_installing_again_keeps_the_first_consent_and_its_pauses(tmp_path):
    place = home(tmp_path)
    consent(tmp_path, pauses=[[200.0, 300.0]])
    memhook.grant_consent(place, "flag")
    assert memhook.read_consent(place).capture_at == 100.0 and memhook.read_consent(place).pauses == [[200.0, 300.0]]


def test_a_consent_that_cannot_be_opened_is_none(tmp_path):
    (tmp_path / "home" / "consent.json").mkdir(parents=True)
    assert memhook.read_consent(home(tmp_path)) is None


# ---- log

def test_the_log_holds_one_json_line_an_event(tmp_path):
    place = home(tmp_path)
    memhook.log(place, "before there is a home")
    assert not (tmp_path / "home").exists()
    place.create()
    memhook.log(place, "something", count=3, text="é\n\ud83d\u2028", error=ValueError("x"))
    memhook.debug(place, "not wanted")
    memhook.debug(home(tmp_path, MEMHOOK_DEBUG="1"), "wanted")
    lines = (tmp_path / "home" / "memhook.log").read_bytes().split(b"\n")
    assert [json.loads(line)["event"] for line in lines if line] == ["something", "wanted"]
    assert {"at", "pid", "event", "count", "text", "error"} == set(json.loads(lines[0]))
    assert stat.S_IMODE((tmp_path / "home" / "memhook.log").stat().st_mode) == 0o600


def test_the_log_is_rotated_and_never_grows_without_end(tmp_path):
    place = home(tmp_path)
    place.create()
    for number in range(12):
        memhook.log(place, "x" * 300_000, number=number)
    sizes = [(tmp_path / "home" / name).stat().st_size for name in ("memhook.log", "memhook.log.1")]
    assert max(sizes) < memhook.LOG_BYTES + 400_000
    assert json.loads((tmp_path / "home" / "memhook.log").read_text().splitlines()[-1])["number"] == 11


def test_a_log_that_cannot_be_written_stops_nobody(tmp_path):
    place = home(tmp_path)
    place.create()
    (tmp_path / "home" / "memhook.log").mkdir()
    memhook.log(place, "something")


# ---- the working folder


@pytest.mark.parametrize("shell", ["knows its name", "is none"])
def test_in_a_working_folder_that_was_deleted_every_command_goes_on(tmp_path, shell):
    box = Box(tmp_path)
    box.install()
    gone = box.project / "gone"
    gone.mkdir()
    box.run("save", "zebra one", cwd=gone)
    line = 'rmdir "$PWD"; %s; for command in "search zebra" "search --all zebra" list "save zebra two" doctor; do' % (
        ":" if shell == "knows its name" else "unset PWD")
    line += ' "$@" $command || echo "$command: $?"; done; echo \'{"jsonrpc":"2.0","id":1,"method":"ping"}\' | "$@" mcp'
    done = subprocess.run(["/bin/sh", "-c", line, "sh", sys.executable, str(PROGRAM)], env={**box.env, "PWD": str(gone)}, cwd=gone,
                          capture_output=True, text=True, timeout=60, start_new_session=True)
    assert "No such file" not in done.stderr and "Traceback" not in done.stderr
    assert done.stdout.splitlines()[-1] == '{"jsonrpc": "2.0", "id": 1, "result": {}}'
    assert ": 1\n" not in done.stdout and ": 3\n" not in done.stdout
    assert done.stdout.count("zebra one") == (3 if shell == "knows its name" else 1), "found in its project, by all, and in the list"


def test_a_home_that_is_named_from_a_working_folder_that_was_deleted_is_told_in_one_line(tmp_path):
    box = Box(tmp_path)
    done = subprocess.run(["/bin/sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@" status', "sh", sys.executable, str(PROGRAM)],
                          env={**box.env, "MEMHOOK_HOME": "home"}, cwd=box.project, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("memhook: the working folder is gone"), done.stderr
