#!/usr/bin/env python3
"""What a new user does: the README's commands on a fresh HOME, the real client between them, and everything as it was afterwards.

    new_user.py [--version 2.1.197] [--keep]

The commands are read from the README: the first of its Install section and the first of its Uninstall section, run from a copy of this
checkout at a terminal, where I CONSENT is typed. Another tool's hooks stand on our events, in a settings.json of odd spacing.
Needed: what client_sessions.py needs. Exit: 0 all as it should be, 1 something is wrong, 77 nothing could be run.
"""
import argparse
import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "live")]
sys.dont_write_bytecode = True
from client_sessions import CLIENTS, DRAIN_SECONDS, NOTHING_RUN, VERSIONS, enter, installed_versions, wait_for  # noqa: E402
from terminal import at_terminal  # noqa: E402

# "model": "opus" would not do here: client 2.1.197 takes it out at its start, and writes the whole file anew
OTHER_HOOKS = "Stop", "SessionStart", "SessionEnd", "PreCompact"
SETTINGS = """{
\t"cleanupPeriodDays" : 365,   "x-other-tool": {"keep": [1.0, 2E3, "\\u00e9"]},
\t"permissions": {"allow": ["Bash", "Read", "mcp__memhook__*"]},
\t"hooks": {
%s
\t}
}"""
OTHER = '\t\t"%s": [ { "hooks": [ {"type": "command", "command": "cat >/dev/null; echo %s >>\\"$HOME/other-tool.log\\""} ] } ]'


CLIENTS_OWN = re.compile(
    r"\.claude/(projects|memhook-data|backups|sessions|session-env|shell-snapshots|todos|statsig|debug|history\.jsonl|cache|plugins|telemetry)"
    r"|\.claude\.json|\.cache|\.local/(share|state)/claude")


def readme_command(section):
    """The first command of a section of the README."""
    text = (ROOT / "README.md").read_text("utf-8")
    part = re.search(r"(?ms)^## %s\n(.*?)^## " % section, text).group(1)
    return re.search(r"(?m)^    (\S.*?)(?:\s{2,}#.*)?$", part).group(1)


def files(home):
    """Path -> bytes of what lies in a home, without what the client writes for itself."""
    found = {}
    for path in sorted(pathlib.Path(home).rglob("*")):
        name = str(path.relative_to(home))
        if path.is_file() and not CLIENTS_OWN.match(name):
            found[name] = path.read_bytes()
    return found


class User:
    """A fresh HOME, a client on its PATH, a checkout of memhook."""

    def __init__(self, harness, version):
        self.wrong = []
        self.env = harness.Env("new-user-%d-%s" % (os.getpid(), version.replace(".", "_")), version, hooks={}, watch=False, minutes=5)
        self.home = pathlib.Path(self.env.home)
        self.settings = self.home / ".claude" / "settings.json"
        self.settings.write_text(SETTINGS % ",\n".join(OTHER % (event, event) for event in OTHER_HOOKS), "utf-8")
        commands = self.home / ".local" / "bin"
        tools = pathlib.Path(self.env.root, "tools")
        self.checkout = pathlib.Path(self.env.root, "memhook")
        for folder in (commands, tools, self.checkout):
            folder.mkdir(parents=True)
        (tools / "claude").symlink_to(self.env.bin)
        self.env.extra_env["PATH"] = "%s:%s:/usr/local/bin:/usr/bin:/bin" % (commands, tools)
        if not shutil.which("python3", path=self.env.extra_env["PATH"]) or subprocess.run(["python3", "-c", "import sys; sys.exit(sys.version_info < (3, 9))"], env=self.env.env()).returncode:
            self.env.extra_env["PYTHON"] = sys.executable
        for name in ("memhook.py", "install.sh", "README.md"):
            shutil.copy(ROOT / name, self.checkout)

    def expect(self, condition, what):
        if not condition:
            self.wrong.append(what)

    def memories(self):
        return [path.read_text("utf-8") for path in (self.home / ".claude" / "memhook-data").glob("memories/**/*.md")]

    def heard(self):
        """How often each event reached the other tool."""
        log = self.home / "other-tool.log"
        words = log.read_text().split() if log.exists() else []
        return {event: words.count(event) for event in OTHER_HOOKS}

    def server(self):
        return json.loads((self.home / ".claude.json").read_text("utf-8")).get("mcpServers", {}).get("memhook")

    def ask(self, prompt, answer):
        done = self.env.p("%s @@ say %s" % (prompt, answer), timeout=90)
        self.expect(done.returncode == 0, "claude -p: exit %d %s" % (done.returncode, done.stderr[-300:]))

    def install(self):
        command = readme_command("Install")
        status, shown = at_terminal(["/bin/sh", "-c", command], self.env.env(), str(self.checkout), b"I CONSENT\n", seconds=120)
        self.expect(status == 0 and "memhook is on" in shown, "%s: exit %s\n%s" % (command, status, shown[-1500:]))
        self.expect("Claude can search your memories" in shown and self.server(), "the MCP server was not registered:\n%s" % shown[-800:])
        return command

    def uninstall(self):
        command = readme_command("Uninstall")
        status, shown = at_terminal(["/bin/sh", "-c", command], self.env.env(), str(self.home), None, seconds=120)
        self.expect(status == 0 and "memhook is off" in shown, "%s: exit %s\n%s" % (command, status, shown[-1500:]))
        return command

    def compare(self, before):
        """After the uninstall: every file of before, byte for byte, and no other."""
        after = files(self.home)
        after.pop("other-tool.log", None)
        for name in sorted(set(before) | set(after)):
            if before.get(name) != after.get(name):
                old, new = ((data or b"").decode("utf-8", "replace").splitlines() for data in (before.get(name), after.get(name)))
                self.expect(False, "%s is not as it was:\n%s" % (name, "\n".join(list(difflib.unified_diff(old, new, lineterm=""))[:20])))
        self.expect(self.server() is None, "the MCP server is still registered")

    def play(self):
        before = files(self.home)
        commands = [self.install()]
        self.expect(self.settings.read_bytes() != before[".claude/settings.json"], "no hooks were added")
        self.ask("Why did we choose integer cents?", "Because 19.99 * 100 is not 1999 in floats.")
        wait_for(lambda: len(self.memories()) == 1, DRAIN_SECONDS, "a memory")
        self.expect("Because 19.99 * 100 is not 1999" in self.memories()[0], "the answer is not in the memory")
        heard = self.heard()
        self.expect(all(heard[event] == 1 for event in ("Stop", "SessionStart", "SessionEnd")), "the other tool's hooks ran %s times" % heard)
        found = self.env.p('Look it up @@ tool mcp__memhook__memory_search {"query": "integer cents"} @@ say Found it.', timeout=90)
        told = "".join(pathlib.Path(path).read_text("utf-8") for path in self.env.transcripts())
        self.expect(found.returncode == 0 and re.search(r'"tool_result".{0,4000}19\.99 \* 100', told), "the MCP search found nothing")
        wait_for(lambda: len(self.memories()) == 2, DRAIN_SECONDS, "the second memory")
        commands.append(self.uninstall())
        self.compare(before)
        self.ask("And now?", "Nobody listens.")
        self.expect(self.heard()["Stop"] == 3, "the other tool's Stop hook ran %s times" % self.heard())
        self.expect(len(self.memories()) == 2, "a session after the uninstall was captured")
        self.compare(before)
        return commands


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--version", action="append", help="this client; may be given again (default: %s)" % ", ".join(VERSIONS))
    parser.add_argument("--keep", action="store_true", help="leave the homes where they are")
    options = parser.parse_args()
    wanted = options.version or list(VERSIONS)
    harness = enter(__file__, wanted)
    if not harness:
        return NOTHING_RUN
    failed = False
    for version in installed_versions(wanted):
        user = User(harness, version)
        try:
            commands = user.play()
        except Exception as error:  # the report must come, and the processes must go
            user.wrong.append("%s: %s" % (type(error).__name__, error))
            commands = []
        finally:
            user.env.close()
        print("client %s: %s" % (version, "; ".join(user.wrong) or "ok: %s; settings.json and every other file as before" % "; ".join(commands)))
        failed = failed or bool(user.wrong)
        if not options.keep:
            shutil.rmtree(user.env.root, ignore_errors=True)
    for version in set(wanted) - set(installed_versions(wanted)):
        print("not run: no client %s in %s" % (version, CLIENTS))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
