"""Claude's settings.json: our hooks in and out again, and every other byte as it was.

tests/data/settings holds the table: NAME.json is a person's file. Where hooks of ours stand in it already, NAME.after.json is what an
uninstall must leave; in all others it is NAME.json itself. "@FORM SUBCOMMAND PROGRAM [HOME]@" stands for a command line of ours: as it is
written `now`, or by the `first` or the `second` version of memhook (tests/data/earlier_boots.json has what was different in them).
"""
import copy
import json
import os
import re
import shlex
import shutil
import stat
import subprocess

import pytest

import memhook
from conftest import DATA, ROOT, Box, heeding_modes, memory_folder, tree

pytestmark = pytest.mark.skipif(os.name == "nt", reason="modes, links and /bin/sh")

TABLE = sorted(path.name[:-5] for path in (DATA / "settings").glob("*.json") if not path.name.endswith(".after.json"))
BOOTS = {"now": memhook.BOOT, **json.loads((DATA / "earlier_boots.json").read_text("utf-8"))}
INSTALL = ("install", "--consent", memhook.CONSENT_PHRASE, "--no-mcp")
WHOLE = ("bom-crlf", "empty-object-space", "escapes", "others-on-our-events", "ours-of-the-first-version", "ours-session-end-on-stop")  # through each command
HOOKS = {spec.event for spec in memhook.HOOK_SPECS}


def our_line(form, subcommand, program, home=""):
    """A command line as each version wrote it."""
    parts = "/usr/bin/python3", shlex.quote(program), shlex.quote(BOOTS[form]), subcommand
    line = "test ! -x {0} || test ! -f {1} || exec {0} -I -S -c {2} {1} {3}".format(*parts)
    return line + (" " + shlex.quote(home) if home else "")


def fill(data):
    """The bytes of a file of the table, its tokens replaced."""
    def line(match):
        form, subcommand, program, home = re.fullmatch(rb"(\w+) ([\w-]+) (/.*?memhook\.py)(?: (.+))?", match.group(1)).groups(b"")
        return json.dumps(our_line(form.decode(), subcommand.decode(), program.decode(), home.decode())).encode()
    return re.sub(rb'"@([^"@]+)@"', line, data)


def before(name):
    return fill((DATA / "settings" / (name + ".json")).read_bytes())


def after(name):
    """What an uninstall must leave of it."""
    path = DATA / "settings" / (name + ".after.json")
    return path.read_bytes() if path.exists() else before(name)


def value(data):
    return json.loads(data.decode("utf-8-sig"))


def commands(data, event):
    return [hook.get("command") for group in value(data).get("hooks", {}).get(event, []) for hook in group.get("hooks", [])]


class Desk:
    """A machine whose settings.json goes through the steps of install and uninstall that touch it; no process is started."""

    def __init__(self, root):
        self.box = Box(root)
        self.home = self.box.api
        self.path = self.box.config / "settings.json"
        self.home.create()

    @property
    def data(self):
        return self.path.read_bytes()

    def install(self):
        memhook.merge_hooks(self.home)
        return self.data

    def uninstall(self):
        memhook.take_hooks_out(self.home)
        return self.data if self.path.exists() else None


@pytest.fixture
def tmp_path():
    with memory_folder() as root:
        yield root


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


@pytest.fixture(scope="module")
def machine():
    """One on which memhook lies already, so that nothing is compiled again for each file."""
    with memory_folder() as root:
        box = Box(root)
        box.install()
        yield box


def install_sh(box, *args):
    done = subprocess.run(["/bin/sh", str(ROOT / "install.sh"), *args, *INSTALL[1:]], env={**box.env, "PYTHON": box.python}, cwd=box.project,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# ---- the table


def test_the_table_is_long_enough_and_says_what_it_is():
    assert len(TABLE) >= 45
    assert all(name.startswith("ours-") == (before(name) != after(name)) for name in TABLE)
    assert before("crlf").count(b"\r\n") == before("crlf").count(b"\n") > 3 and before("bom").startswith(b"\xef\xbb\xbf")


@pytest.mark.parametrize("name", TABLE)
def test_hooks_go_in_once_and_out_again_and_no_other_byte_changes(desk, name):
    desk.path.write_bytes(before(name))
    installed = desk.install()
    for spec, command in memhook.wanted_hooks(desk.home):
        assert commands(installed, spec.event).count(command) == 1
    assert sum(memhook.parse_hook(command) is not None for event in value(installed)["hooks"] for command in commands(installed, event)) == len(memhook.HOOK_SPECS)
    assert without_ours(value(installed)) == without_ours(value(before(name)))
    assert desk.install() == installed
    assert desk.uninstall() == after(name)
    assert desk.uninstall() == after(name)


def without_ours(settings):
    """The settings as a value, without our hooks and what their going leaves empty."""
    settings = copy.deepcopy(settings)
    for event, groups in list(settings.get("hooks", {}).items()):
        for group in groups:
            group["hooks"] = [hook for hook in group.get("hooks", []) if memhook.parse_hook(hook.get("command")) is None]
        settings["hooks"][event] = [group for group in groups if group["hooks"]]
    settings["hooks"] = {event: groups for event, groups in settings.get("hooks", {}).items() if groups}
    return settings


@pytest.mark.parametrize("name", TABLE)
def test_bytes_are_only_added_in_the_style_of_the_file(desk, name):
    """White space inside of containers that were empty apart."""
    original = re.sub(rb"(?<=[{\[])[ \r\n]+(?=[}\]])", b"", after(name))
    desk.path.write_bytes(after(name))
    installed = desk.install()
    rest = iter(installed)
    assert all(byte in rest for byte in original)
    if b"\n" in original.strip() and "mixed" not in name:
        assert (b"\r\n" in installed) == (b"\r\n" in original) and installed.count(b"\r\n") in (0, installed.count(b"\n"))
    assert installed.startswith(b"\xef\xbb\xbf") == original.startswith(b"\xef\xbb\xbf")
    assert installed.endswith(b"\n") == original.endswith(b"\n") and (b"\n" in installed.strip()) == (b"\n" in after(name).strip())


@pytest.mark.parametrize("name", TABLE)
def test_without_a_record_our_entries_are_spliced_out(desk, name):
    """install.json is gone: only containers that were empty before may be missing then."""
    desk.path.write_bytes(after(name))
    desk.install()
    (desk.box.home / "install.json").unlink()
    left = desk.uninstall()
    if re.search(r"empty|key-order|one-line-spaced|on-an-event", name):
        assert without_ours(value(left)) == without_ours(value(after(name)))
    else:
        assert left == after(name)


ADDED = b'"added by a person": [ 1.50,"\\u00e9" ], '


@pytest.mark.parametrize("name", TABLE)
def test_what_a_person_adds_in_between_stays_byte_for_byte(desk, name):
    desk.path.write_bytes(before(name))
    desk.path.write_bytes(desk.install().replace(b"{", b"{" + ADDED, 1))
    left = desk.uninstall()
    if value(after(name)):
        assert left == after(name).replace(b"{", b"{" + ADDED, 1)
    else:
        assert value(left) == {"added by a person": [1.5, "é"]} and ADDED.rstrip(b" ,") in left


@pytest.mark.parametrize("name", TABLE)
def test_a_file_that_the_client_wrote_anew_keeps_its_values(desk, name):
    desk.path.write_bytes(before(name))
    desk.path.write_text(json.dumps(value(desk.install()), indent=2).replace("Infinity", "1e400"), "utf-8")
    assert value(desk.uninstall()) == value(after(name))


@pytest.mark.parametrize("name", TABLE)
def test_install_sh_writes_the_same_bytes(machine, desk, name):
    (machine.home / "install.json").unlink(missing_ok=True)
    (machine.config / "settings.json").write_bytes(before(name))
    install_sh(machine)
    desk.path.write_bytes(before(name))
    assert (machine.config / "settings.json").read_bytes() == desk.install().replace(str(desk.box.root).encode(), str(machine.root).encode())


@pytest.mark.parametrize("name", WHOLE)
def test_the_commands_install_twice_and_uninstall(tmp_path, machine, name):
    box = Box(tmp_path / "box")
    shutil.copy2(machine.config / "memhook.py", box.config)
    path = box.config / "settings.json"
    path.write_bytes(before(name))
    box.run(*INSTALL, script=True)
    installed = path.read_bytes()
    assert (box.config / "settings.json.memhook-backup").read_bytes() == before(name)
    assert set(box.status()["hooks"].values()) == {"installed"}
    install_sh(box)
    assert path.read_bytes() == installed
    box.run("uninstall", program=box.config / "memhook.py")
    assert path.read_bytes() == after(name)
    assert sorted(os.listdir(box.config)) == ["settings.json"]


# ---- what is written, in full


@pytest.mark.parametrize("original, installed", [
    ("{}", '{"hooks": {"Stop": [{"hooks": [%s]}]}}'),
    ('{"a":1}\n', '{"a":1, "hooks": {"Stop": [{"hooks": [%s]}]}}\n'),
    ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n  "hooks": {\n    "Stop": [\n      {\n        "hooks": [\n          {%s}\n        ]\n      }\n    ]\n  }\n}\n'),
    ('{\n\t"a": 1}', '{\n\t"a": 1,\n\t"hooks": {\n\t\t"Stop": [\n\t\t\t{\n\t\t\t\t"hooks": [\n\t\t\t\t\t{%s}\n\t\t\t\t]\n\t\t\t}\n\t\t]\n\t}}'),
    ('{\n    "hooks": {"Stop": [1]}\n}', None),
    ('{\n    "hooks": {"Stop": [{}]}\n}', '{\n    "hooks": {"Stop": [{}, {"hooks": [%s]}]}\n}'),
])
def test_an_entry_is_written_in_the_style_of_the_file(original, installed):
    def written():
        settings = memhook.Settings("settings.json", original.encode())
        memhook.add_hooks(settings, [(memhook.HookSpec("Stop", "stop", 10), "C")])
        return settings.text
    if installed is None:
        with pytest.raises(memhook.InstallError):
            written()
        return
    entry = '{"type": "command", "command": "C", "timeout": 10}'
    if "{%s}" in installed:  # one member a line, a step deeper than the brace
        step = re.search(r"(?m)^[ \t]+", original).group()
        depth = re.search(r"(?m)^([ \t]+)\{%s\}", installed).group(1)
        entry = "{" + ",".join("\n" + depth + step + part for part in ('"type": "command"', '"command": "C"', '"timeout": 10')) + "\n" + depth + "}"
        installed = installed.replace("{%s}", "%s")
    assert written() == installed % entry


def test_without_a_file_one_is_made_and_removed(desk):
    assert value(desk.install()).keys() == {"hooks"} and stat.S_IMODE(desk.path.stat().st_mode) == 0o600
    assert desk.uninstall() is None
    assert not (desk.box.config / "settings.json.memhook-backup").exists()


def test_a_file_that_came_with_us_and_that_the_client_wrote_anew_is_removed_if_nothing_else_is_in_it(desk):
    desk.path.write_text(json.dumps(value(desk.install())), "utf-8")
    assert desk.uninstall() is None
    desk.path.write_text(json.dumps({**value(desk_again(desk)), "model": "opus"}), "utf-8")
    assert value(desk.uninstall()) == {"model": "opus"}


def desk_again(desk):
    (desk.box.home / "install.json").unlink()
    return desk.install()


# ---- what a person changes in between


def test_a_hook_that_was_added_to_our_group_and_one_after_it_stay(desk):
    desk.path.write_bytes(before("others-on-our-events"))
    settings = value(desk.install())
    settings["hooks"]["Stop"][-1]["hooks"].append({"type": "command", "command": "added to ours"})
    settings["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "added after ours"}]})
    desk.path.write_text(json.dumps(settings, indent=4), "utf-8")
    assert commands(desk.uninstall(), "Stop") == ["terminal-notifier -title Claude -message 'done'", "added to ours", "added after ours"]


def test_a_change_before_the_second_install_is_kept_by_the_uninstall(desk):
    desk.path.write_bytes(before("indent-2"))
    changed = desk.install().replace(b'"opus"', b'"haiku"')
    desk.path.write_bytes(changed.replace(b'"PreCompact"', b'"Notification"'))  # so that the second install has to write
    assert set(value(desk.install())["hooks"]) == HOOKS
    assert desk.uninstall() == before("indent-2").replace(b'"opus"', b'"haiku"')


def test_a_file_that_was_put_back_by_a_person_is_the_new_original(desk):
    desk.path.write_bytes(before("indent-2"))
    desk.install()
    desk.path.write_bytes(before("crlf"))
    desk.install()
    assert desk.uninstall() == before("crlf")


def test_a_hook_that_a_person_took_out_does_not_keep_the_others_in(desk):
    desk.path.write_bytes(before("indent-2"))
    settings = value(desk.install())
    del settings["hooks"]["Stop"]
    desk.path.write_text(json.dumps(settings), "utf-8")
    assert value(desk.uninstall()) == value(before("indent-2"))


def test_a_file_that_is_gone_at_the_uninstall_stays_gone(desk):
    desk.path.write_bytes(before("indent-2"))
    desk.install()
    desk.path.unlink()
    assert desk.uninstall() is None


def test_a_file_that_another_program_writes_in_this_moment_is_left_alone(desk):
    desk.path.write_bytes(b'{"a": 1}')
    settings = memhook.read_settings(desk.home)
    desk.path.write_bytes(b'{"a": 2}')
    with pytest.raises(memhook.InstallError, match="another program"):
        memhook.write_settings(settings, b'{"a": 3}')
    assert desk.data == b'{"a": 2}' and sorted(os.listdir(desk.box.config)) == ["memhook-data", "settings.json"]


# ---- modes and links


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o640])
def test_the_mode_stays_and_the_backup_is_private(desk, mode):
    desk.path.write_bytes(b"{}")
    desk.path.chmod(mode)
    desk.install()
    assert stat.S_IMODE(desk.path.stat().st_mode) == mode
    assert stat.S_IMODE((desk.box.config / "settings.json.memhook-backup").stat().st_mode) == 0o600
    desk.uninstall()
    assert stat.S_IMODE(desk.path.stat().st_mode) == mode


def test_links_stay_links_and_the_file_at_their_end_is_changed(desk):
    dotfiles = desk.box.root / "dot files"
    dotfiles.mkdir()
    (dotfiles / "real.json").write_bytes(before("indent-4"))
    (dotfiles / "middle.json").symlink_to("real.json")
    desk.path.symlink_to(dotfiles / "middle.json")
    desk.install()
    assert desk.path.is_symlink() and (dotfiles / "middle.json").is_symlink() and not (dotfiles / "real.json").is_symlink()
    assert set(value((dotfiles / "real.json").read_bytes())["hooks"]) == HOOKS
    assert sorted(os.listdir(dotfiles)) == ["middle.json", "real.json"]
    assert desk.uninstall() == before("indent-4")
    assert os.readlink(desk.path) == str(dotfiles / "middle.json") and os.readlink(dotfiles / "middle.json") == "real.json"


# ---- refusals


REFUSED = {  # name: (the file, the line that is named, a word of the reason)
    "empty": (b"", 1, "empty"),
    "white-space": (b"\n \n", 1, "empty"),
    "trailing-comma": (b'{\n  "a": 1,}\n', 2, "column"),  # since 3.13 Python says what it is
    "comment": (b'{\n  // mine\n  "a": 1\n}\n', 2, "property name"),
    "block-comment": (b'{\n  "a": 1\n  /* mine */\n}\n', 3, "delimiter"),
    "cut": (b'{\n  "a": [\n    1,\n', 4, "value"),
    "two-values": (b'{}\n{}\n', 2, "Extra"),
    "single-quotes": (b"{'a': 1}", 1, "property name"),
    "tab-in-a-string": (b'{\n"a": "b\tc"}', 2, "control"),
    "nul": (b'{"a": 1}\n\0', 2, "Extra"),
    "list": (b'\n[]\n', 2, "object"),
    "string": (b'"settings"', 1, "object"),
    "null": (b"null", 1, "object"),
    "nan": (b'{"b": "NaN",\n"a": NaN}\n', 2, "NaN"),
    "infinity": (b'{\n\n"a": [-Infinity]}\n', 3, "-Infinity"),
    "hooks-is-a-list": (b'{\n"hooks": []}', 2, "hooks"),
    "hooks-is-null": (b'{"hooks": null}', 1, "hooks"),
    "event-is-an-object": (b'{"hooks": {\n"Stop": {"hooks": []}}}', 2, "Stop"),
    "group-is-a-string": (b'{"hooks": {\n"Stop": [{"hooks": []},\n"say done"]}}', 3, "Stop"),
    "hooks-of-a-group-is-an-object": (b'{"hooks": {"Other": [\n{"hooks": {"command": "a"}}]}}', 2, "Other"),
    "hook-is-a-string": (b'{"hooks": {"Stop":\n [{"hooks": ["say done"]}]}}', 2, "Stop"),
    "duplicate-key": (b'{\n"a": 1,\n"b": "a",\n"a": 2,\n"c": "a"}\n', 4, '"a"'),
    "duplicate-hooks": (b'{"hooks": {},\n"x": {"y": [{"z": 1,\n"z": 2}]}}', 3, '"z"'),
    "duplicate-event": (b'{"hooks": {"Stop": [],\n"Stop": []}}', 2, "Stop"),
    "duplicate-by-an-escape": (b'{"hooks": {},\n"h\\u006foks": {}}', 2, "hooks"),
    "utf-16": ('{"a": 1}'.encode("utf-16"), 1, "UTF-8"),
    "utf-16-without-a-mark": ('{"a": 1}'.encode("utf-16-le"), 1, "property name"),
    "latin-1": ('{\n"a": "é"}'.encode("latin-1"), 2, "UTF-8"),
    "too-deep": (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 1, "deep"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_strict_json_of_the_right_shape_is_refused_unchanged_with_its_line(desk, name):
    data, line, word = REFUSED[name]
    desk.path.write_bytes(data)
    for step in (desk.install, desk.uninstall):
        with pytest.raises(memhook.InstallError) as refused:
            step()
        assert str(refused.value).startswith("%s, line %d" % (desk.path, line)) and word in str(refused.value) and refused.value.hint
    assert desk.data == data and sorted(os.listdir(desk.box.config)) == ["memhook-data", "settings.json"]


def _file(path, data, mode=0o644):
    path.write_bytes(data)
    path.chmod(mode)


PLACES = {
    "a folder": (lambda path: path.mkdir(), "not a file"),
    "a pipe": (lambda path: os.mkfifo(path), "not a file"),
    "a link that dangles": (lambda path: path.symlink_to("nowhere.json"), "leads nowhere"),
    "a link to itself": (lambda path: path.symlink_to("settings.json"), "leads nowhere"),
    "links in a circle": (lambda path: (path.symlink_to("other.json"), (path.parent / "other.json").symlink_to("settings.json")), "leads nowhere"),
    "a link to a folder": (lambda path: path.symlink_to("."), "not a file"),
    "unreadable": (lambda path: _file(path, b"{}", 0o200), "may not be read"),
    "read-only": (lambda path: _file(path, b"{}", 0o444), "may not be written"),
    "malformed": (lambda path: _file(path, b'{"a": 1,}'), "line 1"),
}


@pytest.mark.parametrize("place", PLACES)
def test_the_commands_refuse_what_cannot_be_edited_and_exit_1(bare, place):
    make, word = PLACES[place]
    make(bare.config / "settings.json")
    before_it = tree(bare.root)
    for done in (bare.run(*INSTALL, check=False), bare.run("install", "--dry-run", check=False), bare.run("uninstall", check=False)):
        assert (done.returncode, done.stdout) == (1, "") and "settings.json" in done.stderr and word in done.stderr, done
        assert "Traceback" not in done.stderr
    assert tree(bare.root) == before_it


@pytest.mark.parametrize("options", [["--consent", "I CONSENT"], ["--dry-run"]], ids=["install", "dry run"])
def test_a_folder_that_may_not_be_written_is_refused_by_name_before_anything_is_asked(bare, options):
    prefix = heeding_modes()
    (bare.config / "settings.json").write_bytes(b"{}")
    bare.config.chmod(0o500)
    done = bare.run("install", *options, check=False, prefix=prefix)
    assert done.returncode == 1 and "the folder %s is not writable" % bare.config in done.stderr and "chmod u+rwx " in done.stderr
    assert "Before anything is captured" not in done.stderr
    bare.config.chmod(0o700)
    assert os.listdir(bare.config) == ["settings.json"]


def test_an_install_that_has_nothing_to_write_there_needs_no_writable_folder(bare):
    prefix = heeding_modes()
    bare.run(*INSTALL)
    bare.config.chmod(0o500)
    assert bare.run(*INSTALL, prefix=prefix).returncode == 0
    bare.config.chmod(0o700)


# ---- whose a command line is


@pytest.mark.parametrize("command", [
    *(our_line(form, spec.subcommand, "/home/J D'oe/.claude/memhook.py", home) for form in BOOTS for spec in memhook.HOOK_SPECS for home in ("", "/data/my home")),
    "python3 /a/memhook.py stop", "/usr/bin/python3.12 '/a b/memhook.py' session-start", '"C:\\\\Program Files\\\\Python\\\\python.exe" "C:\\\\u\\\\memhook.py" session-end', "py memhook.py stop",
])
def test_each_form_that_was_ever_written_is_ours(command):
    line = memhook.parse_hook(command)
    assert line and line.subcommand in {spec.subcommand for spec in memhook.HOOK_SPECS}
    assert line.current == (memhook.BOOT in command)


@pytest.mark.parametrize("change", [
    lambda words: words + ["more", "words"], lambda words: words[:-1], lambda words: ["sudo", *words], lambda words: words[:-1] + ["drain"],
    lambda words: words[:11] + ["/usr/bin/other"] + words[12:], lambda words: words[:16] + ["/other/memhook.py"] + words[17:],
    lambda words: words[:15] + [words[15] + "\nprint(1)"] + words[16:], lambda words: words[:4] + ["&&"] + words[5:], lambda words: words[:13] + ["-s"] + words[14:],
])
@pytest.mark.parametrize("form", sorted(BOOTS))
def test_a_form_that_differs_in_one_word_is_not_ours(form, change):
    words = shlex.split(our_line(form, "stop", "/a/memhook.py"))
    assert memhook.parse_hook(shlex.join(words)) is not None or "||" in words  # quoted operators: the same words
    assert memhook.parse_hook(" ".join(map(shlex.quote, change(words)))) is None


@pytest.mark.parametrize("command", [None, 5, "", "memhook.py", "memhook.py stop", "sh memhook.py stop", "cat memhook.py stop", "mypython3x memhook.py stop", "python3 memhook.py 'stop '",
                                     "python3 xmemhook.py stop", "python3 memhook.py/x stop", "python3 -m memhook.py stop", "python3 'memhook.py stop", "python3 memhook.py stop &"])
def test_what_only_names_us_is_not_ours(command):
    assert memhook.parse_hook(command) is None


def test_a_change_of_the_start_line_must_note_the_one_before():
    """Hooks that an earlier version wrote must be recognised: whoever changes BOOT adds the SHA-1 of the old one to EARLIER_BOOTS,
    and its text to the data."""
    assert {memhook.sha1_hex(text.encode()) for name, text in BOOTS.items() if name != "now"} == memhook.EARLIER_BOOTS
    noted = "792e4fca885f5ae1a5054cc51029e111a35e96af"
    assert memhook.sha1_hex(memhook.BOOT.encode()) == noted, "BOOT has changed: note the old one, then its new hash here"
