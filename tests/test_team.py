"""A team's member: consent, what a candidate holds, an outbox that outlives any hub, and memories that come back."""
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from email.utils import formatdate
import uuid

import pytest

import memhook
from conftest import PROGRAM, Box, heeding_modes, wait_until
from hubs import RunningHub, Wire
from standins import cut, drip, hang


class Member(Box):
    """A machine that has joined a team, unless told otherwise."""

    def __init__(self, root, hub=None, name="ann", tenant="team", url=None):
        super().__init__(root)
        self.consent()
        if hub:
            memhook.join(self.api, url or hub.url, hub.token(name, tenant=tenant), "flag")

    def save(self, text, *args, **options):
        return self.run("save", text, *args, **options)

    def note(self, text, title=""):
        return memhook.save_note(self.api, text, title, str(self.project))["id"]

    def suggest(self, text):
        """Save a note and propose it, in this process; -> (ids, what was sent)."""
        return memhook.propose(self.api, [memhook.find_memory(self.api, self.note(text))])

    def propose(self, *ids, **options):
        return self.run("team", "propose", *ids, **options)

    def learned(self, *lines, session="session-0001"):
        """A session of prompts and answers, by turns, captured and drained; -> the id of its memory."""
        script = self.script(session)
        for number, line in enumerate(lines):
            script.answer(line) if number % 2 else script.prompt(line)
        self.end(script)
        self.drain()
        return next(memory.front["id"] for memory in self.memories() if memory.front.get("session") == session)

    def end(self, script):
        return self.run("session-end", input=json.dumps(self.payload("SessionEnd", script)), stdin=None)

    def start(self, *args):
        """Start a command and go on."""
        command = [sys.executable, str(PROGRAM), *map(str, args)]
        return subprocess.Popen(command, env=self.env, cwd=self.project, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def outbox(self):
        return json.loads(self.run("team", "outbox", "--json").stdout)["outbox"]

    def queued(self):
        """The texts of what waits."""
        folder = self.home / "outbox" / "new"
        return [json.loads((folder / name).read_bytes()) for name in sorted(os.listdir(folder))] if folder.is_dir() else []

    def team(self):
        return json.loads(self.run("team", "status", "--json").stdout)

    def found(self, query, *args):
        return json.loads(self.run("search", query, "--json", *args).stdout)["results"]


@pytest.fixture
def member(tmp_path, hub, tenant):
    return Member(tmp_path / "ann", hub, tenant=tenant)


@pytest.fixture
def wired(tmp_path, hub, tenant):
    """(member, the wire between it and the hub)."""
    wire = Wire(hub)
    yield Member(tmp_path / "ann", hub, tenant=tenant, url=wire.url), wire
    wire.close()


SESSION = ("The checkout test fails with ERR_ROUNDING on CI. Find out why.",
           "The cause was rounding in {cwd}/src/price.ts: prices are floats. I fixed it in /etc/acme/shop.conf and \"/home/ann/My Files/x y.txt\" too. "
           "We decided to use integer cents instead of floats.",
           "From now on never use floats for money. <private>my salary is 5 pelicans</private>",
           "Understood. We decided to keep C:\\Users\\ann\\notes.txt and ~/secret/plan.md out of git. The password is hunter22hunter22.")


# ---- consent


def test_joining_shows_what_it_means_and_asks_for_the_words_first(tmp_path, hub, tenant):
    box = Member(tmp_path)
    (tmp_path / "token").write_text(hub.token("ann", tenant=tenant) + "\n")
    before = sorted(box.home.rglob("*"))
    done = box.run("team", "join", hub.url, "--token-file", tmp_path / "token", check=False, start_new_session=True)
    assert done.returncode == 1 and "I CONSENT" in done.stderr and hub.url in done.stderr and "What is never sent" in done.stderr
    done = box.run("team", "join", hub.url, "--token-file", tmp_path / "token", "--consent", "yes", check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-2].startswith("memhook: nothing was joined")
    assert [path for path in sorted(box.home.rglob("*")) if path.name != "memhook.log"] == [path for path in before if path.name != "memhook.log"]
    assert box.status()["consent"]["team"] is False
    done = box.run("team", "join", hub.url, "--token-file", tmp_path / "token", "--consent", "I CONSENT")
    assert "What is sent" in done.stderr and box.status()["consent"]["team"] is True
    assert box.team() == {**box.team(), "joined": True, "url": hub.url, "tenant": tenant, "name": "ann", "role": "member", "propose": "explicit", "pulled": 0}
    assert json.loads((box.home / "consent.json").read_text())["team"]["url"] == hub.url
    assert stat.S_IMODE((box.home / "team-token").stat().st_mode) == 0o600
    told = box.run("team", "status").stdout + box.run("status", "--json").stdout + box.run("config", "list").stdout + (box.home / "consent.json").read_text()
    assert hub.token("ann", tenant=tenant)[20:] not in told


def test_joining_says_whether_everything_goes_by_itself_from_then_on(tmp_path, hub, tenant):
    box = Member(tmp_path)
    (tmp_path / "token").write_text(hub.token("ann", tenant=tenant) + "\n")
    join = ("team", "join", hub.url, "--token-file", tmp_path / "token", "--consent", "I CONSENT")
    done = box.run(*join)
    assert "Nothing is proposed by itself" in done.stderr and "memhook team propose ID" in done.stderr
    box.run("team", "leave")
    box.run("config", "set", "team_propose", "auto")
    done = box.run(*join)
    assert "EVERY new memory" in done.stderr and "Nothing is proposed by itself" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("Every new memory is proposed by itself.")


def test_leaving_says_what_stays_and_takes_the_token_that_an_uninstall_left(wired):
    member, wire = wired
    wire.plan = [(503, {})]
    member.save("Waiting.", "--propose")
    assert "1 candidate stays in the outbox" in member.run("team", "leave").stderr
    (member.home / "team-token").write_text("mhk_of_before")
    done = member.run("team", "leave", "--purge")
    assert "Left." in done.stderr and "1 waiting candidate was erased" in done.stderr and "stays in" not in done.stderr
    assert not (member.home / "team-token").exists() and member.run("team", "leave").stderr == "No team was joined.\n"


def test_a_join_that_fails_leaves_nothing(tmp_path, hub):
    box = Member(tmp_path)
    (tmp_path / "token").write_text("mhk_wrong_token")
    for url in (hub.url, "http://127.0.0.1:9"):
        done = box.run("team", "join", url, "--token-file", tmp_path / "token", "--consent", "I CONSENT", check=False)
        assert done.returncode == 1 and "nothing was joined" in done.stderr
    for url, proxy in (("https://hub..example", ""), ("https://hub.example", "http://proxy:abc")):
        box.env["https_proxy"] = proxy
        done = box.run("team", "join", url, "--token-file", tmp_path / "token", "--consent", "I CONSENT", check=False)
        assert done.returncode == 1 and "nothing was joined: the hub cannot be reached" in done.stderr, url
    for url in ("ftp://127.0.0.1", "127.0.0.1:8377", "http://hub.example.org", "https://ann:password1234@hub.example.org", "https://hub.example.org/?token=1", ""):
        done = box.run("team", "join", url, "--token-file", tmp_path / "token", "--consent", "I CONSENT", check=False)
        assert done.returncode == 2 and "password1234" not in done.stderr, url
    assert box.run("team", "join", hub.url, "--token-file", tmp_path / "missing", "--consent", "I CONSENT", check=False).returncode == 2
    assert not (box.home / "team.json").exists() and not (box.home / "team-token").exists()
    assert "team" not in json.loads((box.home / "consent.json").read_text())


def test_until_a_team_is_joined_nothing_is_queued_whatever_the_settings(tmp_path):
    box = Member(tmp_path)
    box.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    id = box.learned(*SESSION)
    assert box.propose(id, check=False).returncode == 1
    assert box.save("Use cents.", "--propose", check=False).returncode == 1
    for command in (["pull"], ["outbox", "--retry"]):
        assert box.run("team", *command, check=False).returncode == 1
    assert not (box.home / "outbox").exists() and len(box.memories()) == 1


def test_a_consent_to_one_hub_is_none_to_another(member):
    path = member.home / "team.json"
    path.write_text(path.read_text().replace("http://127", "http://128"))
    assert member.propose(member.note("Use cents."), check=False).returncode == 1
    assert member.team()["joined"] is False and member.queued() == []


def test_what_waits_for_one_hub_goes_to_no_other(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})]
    member.save("Use cents.", "--propose")
    member.run("team", "leave")
    (member.root / "token").write_text(hub.token("ann", tenant=tenant))
    join = ["team", "join", "--token-file", member.root / "token", "--consent", "I CONSENT"]
    done = member.run(*join, hub.url, check=False)
    assert done.returncode == 1 and "1 candidate waits for another hub" in done.stderr and member.team()["joined"] is False
    assert hub.statuses(tenant) == {}
    member.run(*join, wire.url)  # the one they were meant for
    assert list(hub.statuses(tenant)) == ["Use cents."]


def test_what_waits_for_one_tenant_of_a_hub_goes_to_no_other(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})]
    member.save("Use cents.", "--propose")
    member.run("team", "leave")
    (member.root / "token").write_text(hub.token("ann", tenant=tenant + "-2"))
    join = ["team", "join", wire.url, "--token-file", member.root / "token", "--consent", "I CONSENT"]
    done = member.run(*join, check=False)
    assert done.returncode == 1 and "1 candidate waits for another hub or tenant" in done.stderr
    assert hub.statuses(tenant + "-2") == {} and member.team()["joined"] is False and len(member.queued()) == 1


def test_what_is_queued_for_a_team_that_was_just_left_does_not_go_to_the_next(hub, wired, tenant):
    member, _ = wired
    path = memhook.find_memory(member.api, member.note("Use cents."))
    late = memhook.make_candidate(memhook.parse_memory(memhook.read_file(path)), path, tenant, "https://hub.example.org")
    memhook.enqueue(member.api, late)  # by a process that read which team was joined before somebody joined this one
    member.drain()
    (entry,) = member.outbox()
    assert (entry["state"], entry["reason"]) == ("refused", "for another hub or tenant") and hub.statuses(tenant) == {}


def test_a_join_that_ends_half_way_shows_no_hub_the_token_of_another(hub, wired, tenant):
    member, wire = wired
    token = hub.token("new", tenant=tenant)
    code = ("import resource, sys; sys.path.insert(0, %r); import memhook\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"  # the token can be written, team.json cannot
            "memhook.join(memhook.Home(%r), %r, %r, 'flag')" % (str(PROGRAM.parent), member.env, hub.url, token))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert "File too large" in done.stderr and (member.home / "team-token").read_text().strip() == token
    wire.seen.clear()
    assert memhook.read_team(member.api) is None
    member.drain()
    assert wire.seen == []


def hold(wire, status):
    """Keep the next proposals waiting for an answer, which is `status`; -> (what was asked, what lets them go)."""
    asked, go_on = [], threading.Event()

    def serve(handler):
        asked.append(handler)
        go_on.wait(30)
        wire.answer(handler, status, b"{}")

    wire.serve = serve
    return asked, go_on


@pytest.mark.parametrize("status", [201, 503])
def test_leaving_ends_a_sending_that_goes_on(wired, status):
    member, wire = wired
    wire.plan = [(503, {})] * 3
    for number in range(3):
        member.suggest("Number %d." % number)
    seen, whole = [], wire.serve

    def serve(handler):
        seen.append(handler)
        processes.append(member.start("team", "leave"))
        wait_until(lambda: not memhook.team_consent(member.api), "the end of the consent")
        wire.answer(handler, status, b'{"status": "inbox"}')

    wire.serve, processes = serve, []
    member.drain()
    assert [process.wait(60) for process in processes] == [0] and len(seen) == 1
    assert len(member.queued()) == (2 if status == 201 else 3) and not (member.home / "team-token").exists()
    wire.serve = whole


def test_who_waited_to_send_while_the_team_was_left_sends_nothing(wired):
    member, wire = wired
    wire.seen.clear()
    id = member.note("Use cents.")
    with memhook.team_lock(member.api, 0.0):
        sender = member.start("team", "propose", id)
        wait_until(member.queued, "the candidate")
        leaver = member.start("team", "leave")
        wait_until(lambda: not memhook.team_consent(member.api), "the end of the consent")
    assert (sender.wait(60), leaver.wait(60)) == (0, 0)
    assert wire.seen == [] and len(member.queued()) == 1


def test_a_pause_while_a_drain_runs_holds_what_it_would_send(wired):
    member, wire = wired
    wire.plan = [(503, {})]
    member.suggest("Use cents.")
    with memhook.Lock(member.api.path("drain.lock")) as lock:
        assert lock.acquire()
        drain = member.start("drain")
        time.sleep(1.0)  # it has read the consent by now
        member.run("pause")
    assert drain.wait(60) == 0 and len(wire.posts()) == 1 and len(member.queued()) == 1


def test_leaving_makes_no_home(bare):
    done = bare.run("team", "leave", "--purge")
    assert (done.stdout, done.stderr) == ("", "No team was joined.\n") and not bare.home.exists()


def test_leaving_stops_it_and_purge_removes_what_waits(hub, wired, tenant):
    member, wire = wired
    wire.plan = ["before"] * 9
    assert "queued" in member.save("Use cents.", "--propose").stdout
    member.run("team", "leave")
    wire.plan = []
    assert member.status()["consent"]["team"] is False and member.status()["consent"]["capture"] is True
    member.drain()
    assert member.save("More.", "--propose", check=False).returncode == 1
    assert hub.statuses(tenant) == {} and len(member.queued()) == 1
    assert not (member.home / "team-token").exists()
    member.run("team", "leave", "--purge")
    assert member.queued() == [] and b"Use cents" not in b"".join(path.read_bytes() for path in (member.home / "outbox").rglob("*") if path.is_file())


# ---- what is proposed


def test_a_candidate_is_title_decisions_problems_and_patterns_and_nothing_else(hub, member, tenant):
    id = member.learned(*[line.format(cwd=member.project) for line in SESSION])
    member.propose(id)
    ((title, content, stored),) = hub.sql("SELECT title, content, id FROM candidates WHERE tenant = ?", tenant)
    assert title == SESSION[0]
    assert [line for line in content.split("\n") if line.startswith("## ")] == ["## Decisions", "## Problems solved", "## Patterns"]
    assert "We decided to use integer cents instead of floats." in content and "never use floats for money" in content
    assert stored == str(uuid.uuid5(uuid.NAMESPACE_DNS, "%s\n%s\n%s" % (tenant, title, content)))


def test_no_transcript_cwd_path_private_text_or_secret_enters_the_outbox_or_the_hub(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})]
    member.propose(member.learned(*[line.format(cwd=member.project) for line in SESSION]))
    wire.plan = [(503, {})]
    member.save("Deploy from %s with <private>my salary</private> on \\\\server\\share\\x and file:///srv/secret/y; never on Mondays, "
                "and never by ./tools/ship or ops/prod/main.tf" % member.project, "--propose")
    waiting = "".join(path.read_text() for path in (member.home / "outbox").rglob("*.json"))
    assert waiting.count('"content"') == 2
    member.run("team", "outbox", "--retry")
    stored = "".join("%s\n%s" % row for row in hub.sql("SELECT title, content FROM candidates WHERE tenant = ?", tenant))
    assert "integer cents" in stored and "never on Mondays" in stored
    for text in (waiting, stored, json.dumps(wire.posts(), ensure_ascii=False)):
        for word in (str(member.project), str(member.root), "## Transcript", "<!-- turn", "pelicans", "salary", "hunter22", "/etc/acme", "/home/ann", "My Files", "Users\\", "~/secret", "/srv/secret",
                     "src/price", "tools/ship", "ops/prod", "server\\share", "session-0001", ".jsonl"):
            assert word not in text.replace("\\\\", "\\"), word


PATHS = {  # what is written -> what of it is shared
    "/work/acme/src/price.ts": "…/price.ts", "/work/acme": "…", "/work/acme.": "….", "/work/acme-other/x": "…/x", "/mnt/work/acme/y": "…/y", "/etc/hosts": "…/hosts", "/data/acme/notes": "…/notes", "cwd:/opt/a/b": "cwd:…/b", "/home/{user}/x": "…/x",
    "~/x/y": "…/y", "~ann/x": "…/x", "./run.sh": "…/run.sh", "./configure": "…/configure", "../lib/x": "…/x", "C:\\a\\b.txt": "…/b.txt", "C:/a/b": "…/b",
    "\\\\host\\share\\x": "…/x", "file:///srv/a/b": "…/b", "sqlite:////srv/a.db": "…/a.db", "\"/home/ann/My Files/x y.txt\"": "\"…/x y.txt\"",
    "src/retry/backoff.py:42.": "…/backoff.py:42.", "`src/a.py`": "`…/a.py`", "**src/a.py**": "**…/a.py**", "--out=src/x.py": "--out=…/x.py",
    "[the plan](docs/plan.md)": "[the plan](…/plan.md)", "app/[id]/page.tsx": "…/page.tsx", "src/{a,b}.py": "…/{a,b}.py", "src/**/*.py": "…/*.py",
    ".github/workflows/ci.yml": "…/ci.yml", "config/.env": "…/.env", "src\\app\\main.cs": "…/main.cs", "/api/server/main.py": "…/main.py",
    "[docs/plan.md]": "[…/plan.md]", "lib/main.py-based": "…/main.py-based", "$HOME/acme/x": "…/x", "${HOME}/acme/x": "…/x", "%USERPROFILE%\\x": "…/x",
    "tools/Makefile": "…/Makefile", "bin/run": "…/run", "tools/gen/": "…/gen/", "DELETE /var/lib/x": "DELETE …/x",
}
NO_PATHS = (
    "https://example.org/a/b.html?x=/opt/a/b.py", "example.org/a/b.html", "localhost:8377/api/x.json", "git@github.com:acme/shop.git", "s3://bucket/key.json",
    "2026/01/31", "31/01/2026.", "and/or", "input/output. Then", "origin/main", "TCP/IP, I/O, 1/2, 24/7", "v1.2/v1.3, 3.9/3.x, Python/3.x", "text/plain",
    "/api/candidates", "/api/v1/users/{id}/posts", "/v2/items?page=2", "/orgs/{id}/users", "/users/:id", "/users/<id>/x", "GET /users/login", "`POST /a/b.json`",
    "re.match/re.search", "</div>/<p>", "s/foo/bar/g", "\\d+\\.\\d+", "@types/node", "tools/other",
)


def test_a_path_is_down_to_its_last_name_and_what_only_looks_like_one_stays():
    listed = ["/work/acme/tools/Makefile", "bin/run", "tools/gen/x"]
    for text, shared in PATHS.items():
        assert memhook.without_paths("see %s now" % text, ["/work/acme"], listed) == "see %s now" % shared
    for text in NO_PATHS:
        assert memhook.without_paths("see %s now" % text, ["/work/acme"], listed) == "see %s now" % text


def test_a_file_that_the_session_touched_is_known_as_a_path_though_its_name_has_no_ending():
    digest = "# T\n\n## Decisions\n\n- We keep build/Rules as it is.\n\n## Files\n\n- `build/Rules`\n"
    memory = memhook.Memory({"id": "1", "session": "s", "cwd": "/work/acme", "project": "/work/acme"}, digest, [])
    assert memhook.make_candidate(memory, "t.md", "team", "http://hub")["content"] == "## Decisions\n\n- We keep …/Rules as it is."


def test_proposing_is_explicit_and_by_itself_only_where_that_was_chosen(hub, member, tenant):
    member.learned("One.", "We decided to use the first.", session="session-0001")
    assert hub.statuses(tenant) == {} and not member.queued()
    assert "go to the team" in member.run("config", "set", "team_propose", "auto").stderr
    member.drain()
    assert hub.statuses(tenant) == {}  # what was before the choice stays
    with open(member.home / "receipts.jsonl", "ab") as receipts:
        receipts.write(b"{\n" + b"[" * 100_000 + b"\n")  # what is damaged is passed over
    member.learned("Two.", "We decided to use the second.", session="session-0002")
    assert ["the second" in content for content in hub.statuses(tenant)] == [True]
    member.run("pause")
    member.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    member.save("A note in the pause.")
    member.drain()
    assert len(hub.statuses(tenant)) == 1


def test_propose_shows_what_it_sends(hub, member, tenant):
    member.env["MEMHOOK_TEAM_PROPOSE"] = "explicit"
    shown = member.run("team", "propose", member.learned("Why does Monday fail?", "We decided to use the first.")).stderr
    (sent,) = hub.statuses(tenant)
    assert sent in shown and "Why does Monday fail?" in shown


def test_a_project_that_is_switched_off_is_never_proposed(hub, member, tenant):
    member.env["MEMHOOK_TEAM_PROPOSE"] = "explicit"
    id = member.learned("One.", "We decided to use the first.")
    (member.project / ".memhook-off").write_text("")
    done = member.propose(id, check=False)
    assert done.returncode == 1 and "switched off" in done.stderr
    assert member.save("Use cents.", "--propose", check=False).returncode == 1
    (member.project / ".memhook-off").unlink()
    member.env["MEMHOOK_OFF"] = "1"
    assert member.propose(id, check=False).returncode == 1
    del member.env["MEMHOOK_OFF"]
    assert member.queued() == [] and hub.statuses(tenant) == {}
    member.propose(id)
    assert len(hub.statuses(tenant)) == 1  # it was the switch


def test_automatic_proposing_passes_over_a_project_that_is_switched_off_since(hub, member, tenant):
    member.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    script = member.script()
    script.prompt("One.")
    script.answer("We decided to use the first.")
    member.end(script)
    (member.project / ".memhook-off").write_text("")
    member.drain()
    assert len(member.memories()) == 1 and hub.statuses(tenant) == {} and member.queued() == []


def test_what_was_withheld_is_in_no_candidate(hub, member, tenant):
    script = member.script()
    script.prompt("One.")
    script.answer("We decided to use the first.")
    member.run("stop", input=json.dumps(member.payload("Stop", script)), stdin=None)
    member.run("pause")
    time.sleep(0.05)
    script.clock = time.time()
    script.prompt("Between us: from now on never tell about the flamingo.", timestamp=memhook.iso(time.time()))
    script.answer("We decided to hide the flamingo.", timestamp=memhook.iso(time.time()))
    time.sleep(0.05)
    member.run("resume")
    script.prompt("Two.", timestamp=memhook.iso(time.time()))
    script.answer("We decided to use the second.", timestamp=memhook.iso(time.time()))
    member.end(script)
    member.drain()
    member.propose(*[memory.front["id"] for memory in member.memories()])
    told = "".join(hub.statuses(tenant))
    assert "the first" in told and "the second" in told and "flamingo" not in told


def test_a_note_is_saved_and_proposed_at_once(hub, member, tenant):
    done = member.save("Deploys only on Tuesdays.", "--title", "Deploys", "--propose")
    assert done.stdout.splitlines()[1].endswith("proposed")
    assert hub.sql("SELECT title, content, actor FROM candidates WHERE tenant = ?", tenant) == [("Deploys", "Deploys only on Tuesdays.", "ann")]
    assert member.save("Deploys only on Tuesdays.", "--title", "Deploys", "--propose").stdout.splitlines()[1].endswith("duplicate")
    assert hub.kinds(tenant) == ["proposed"]


def test_what_says_nothing_is_not_proposed_and_nothing_of_the_call_is_queued(hub, member, tenant):
    empty, note = member.learned("Hello.", "Hello, how are you today?"), member.note("Use cents.")
    done = member.propose(note, empty, check=False)
    assert done.returncode == 1 and "no decisions" in done.stderr
    assert member.queued() == [] and hub.statuses(tenant) == {}


# ---- the outbox


def test_what_waits_of_a_file_that_a_person_added_goes_when_it_is_forgotten(wired):
    member, wire = wired
    path = member.home / "memories" / "p" / "own.md"
    path.parent.mkdir(parents=True)
    path.write_text("# Own\n\nDeploys only on Tuesdays.\n")
    wire.plan = ["before"]
    member.propose("p/own.md")
    assert len(os.listdir(member.home / "outbox" / "new")) == 1
    shown = member.run("forget", "p/own.md").stdout
    assert "outbox 1" in shown and "if you proposed it" in shown and os.listdir(member.home / "outbox" / "new") == []


@pytest.mark.parametrize("step", ["before", "after", (500, {}), (503, {}), (408, {}), (425, {}), (429, {})], ids=str)
def test_what_could_not_be_sent_is_queued_and_the_next_success_drains_it_oldest_first(hub, wired, tenant, step):
    member, wire = wired
    wire.plan = [step]
    done = member.save("Number 0.", "--propose")
    assert done.returncode == 0 and done.stdout.splitlines()[1].endswith("queued") and "1 candidate waits in the outbox" in done.stderr
    for number in (1, 2):
        wire.plan = [step]
        _, sent = member.suggest("Number %d." % number)
        assert (sent.outcomes, sent.left) == ({}, number + 1) and sent.why
    told = {(entry["state"], entry["reason"]) for entry in json.loads(member.run("team", "outbox", "--json").stdout)["outbox"]}
    assert told == {("waiting", sent.why)} and "(%s)" % sent.why in member.run("team", "outbox").stdout
    assert [post["content"] for post in wire.posts()] == ["Number 0."] * 3  # it stops at the first
    assert {stat.S_IMODE(path.stat().st_mode) for path in (member.home / "outbox").rglob("*") if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (member.home / "outbox").rglob("*") if path.is_file()} == {0o600}
    wire.seen = []
    assert set(member.suggest("Number 3.")[1].outcomes.values()) <= {"proposed", "duplicate"}
    assert [post["content"] for post in wire.posts()] == ["Number %d." % number for number in range(4)]
    assert member.queued() == [] and len(hub.statuses(tenant)) == 4
    assert hub.kinds(tenant) == ["proposed"] * 4


def test_a_drain_sends_what_waits_once_the_hub_is_there_again(tmp_path):
    with RunningHub(tmp_path / "hub") as hub:
        member = Member(tmp_path / "ann", hub)
        hub.stop()
        for number in range(3):
            assert member.save("Number %d." % number, "--propose").returncode == 0
        member.drain()
        assert len(member.queued()) == 3 and "cannot be reached" in member.team()["trouble"]
        hub.start()
        member.drain()
        assert member.queued() == [] and member.team()["trouble"] == ""
        assert len(hub.statuses()) == 3


def test_an_acknowledgement_lost_after_the_commit_three_times_makes_one_candidate_and_one_receipt(hub, wired, tenant):
    member, wire = wired
    wire.plan = ["after"] * 3
    member.save("Use cents.", "--propose")
    for _ in range(3):
        assert len(member.queued()) == 1
        member.drain()
    assert len(wire.posts()) == 4 and len({post["id"] for post in wire.posts()}) == 1
    assert list(hub.statuses(tenant)) == ["Use cents."] and hub.kinds(tenant) == ["proposed"] and member.outbox() == []


def test_retry_after_is_kept_to_and_can_be_overruled(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(429, {"Retry_After": "3000"})]
    member.save("Use cents.", "--propose")
    member.drain()
    assert "queued" in member.save("More.", "--propose").stdout
    assert len(wire.posts()) == 1 and memhook.parse_time(member.team()["wait_until"]) - time.time() > 2000
    wire.plan = [(503, {"Retry_After": "1"})]
    member.run("team", "outbox", "--retry")
    assert len(wire.posts()) == 2
    time.sleep(1.2)
    member.drain()
    assert member.outbox() == [] and len(hub.statuses(tenant)) == 2


def test_retry_after_may_be_a_date_and_nonsense_asks_for_nothing(wired):
    member, wire = wired
    for header, least, most in ((formatdate(time.time() + 3000, usegmt=True), 2900, 3000), (formatdate(time.time() + 1e6, usegmt=True), 3500, 3600),
                                (formatdate(1e9, usegmt=True), 0, 0), ("Xxx, 99 Yyy 2026 99:99:99 GMT", 0, 0), ("Mon, 99 Jan 0000 99:99:99 GMT", 0, 0), ("soon", 0, 0), ("-5", 0, 0)):
        wire.plan = [(429, {"Retry_After": header})]
        member.suggest("Use cents.")
        wait = (memhook.parse_time(member.team()["wait_until"]) or time.time()) - time.time()
        assert least - 1 <= wait <= most + 1, header
        (member.home / "team-state.json").unlink()


@pytest.mark.parametrize("wait_until", ["%d" % (time.time() + 86_400), "1e400", "-1", "[]"])
def test_a_clock_that_was_set_back_and_nonsense_in_the_state_keep_nothing_back(hub, wired, tenant, wait_until):
    member, wire = wired
    wire.plan = [(503, {})]
    member.suggest("Use cents.")
    (member.home / "team-state.json").write_text('{"wait_until": %s, "paused": 5, "cursor": "x"}' % wait_until)
    member.drain()
    assert list(hub.statuses(tenant)) == ["Use cents."] and member.team()["wait_until"] == ""


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_pauses_the_whole_outbox_and_buries_nothing(hub, wired, tenant, status):
    member, wire = wired
    wire.plan = [(status, {})]
    assert "queued" in member.save("Use cents.", "--propose").stdout
    done = member.save("More.", "--propose")
    assert "queued" in done.stdout and "paused" in done.stderr
    member.drain()
    assert len(wire.posts()) == 1
    assert [entry["state"] for entry in member.outbox()] == ["waiting"] * 2 and member.team()["paused"].startswith(str(status))
    doctor = member.run("doctor", check=False)
    assert doctor.returncode == memhook.EXIT_FOUND and "outbox is paused" in doctor.stdout
    (member.root / "token").write_text(hub.token("ann", tenant=tenant))
    member.run("team", "join", wire.url, "--token-file", member.root / "token")  # the consent is there already
    assert member.outbox() == [] and len(hub.statuses(tenant)) == 2 and member.team()["paused"] == ""


def test_a_revoked_token_pauses_and_retry_lifts_it(tmp_path):
    with RunningHub(tmp_path / "hub") as hub:
        member = Member(tmp_path / "ann", hub)
        hub.run("token", "revoke", "ann")
        assert "queued" in member.save("Use cents.", "--propose").stdout
        assert member.team()["paused"].startswith("401")
        hub.sql("UPDATE tokens SET revoked = ''")
        member.drain()
        assert len(member.queued()) == 1
        member.run("team", "outbox", "--retry")
        assert member.queued() == [] and len(hub.statuses()) == 1


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
def test_what_is_refused_for_good_is_shown_put_aside_and_never_in_the_way(hub, wired, tenant, status):
    member, wire = wired
    wire.plan = [(status, {})]
    done = member.save("Use cents.", "--propose", check=False)
    assert done.returncode == 1 and "refused: %d" % status in done.stdout
    assert list(member.suggest("More.")[1].outcomes.values()) == ["proposed"]
    member.drain()
    assert len(wire.posts()) == 2
    (entry,) = member.outbox()
    assert (entry["state"], entry["reason"][:3]) == ("refused", str(status))
    assert str(status) in member.run("team", "outbox").stdout and "1 candidate was refused for good" in member.run("doctor", check=False).stdout
    member.run("team", "outbox", "--retry")
    assert member.outbox() == [] and len(hub.statuses(tenant)) == 2


def test_purging_the_outbox_erases_what_waits_and_what_was_refused(wired):
    member, wire = wired
    wire.plan = [(422, {}), (503, {})]
    member.save("Refused.", "--propose", check=False)
    member.save("Waiting.", "--propose")
    assert sorted(entry["state"] for entry in member.outbox()) == ["refused", "waiting"]
    member.run("team", "outbox", "--purge")
    assert member.outbox() == [] and not list((member.home / "outbox").rglob("*.json"))


@pytest.mark.parametrize("status", [422, 503])
@pytest.mark.parametrize("command", [("team", "outbox", "--purge"), ("team", "leave", "--purge"), ("forget",)], ids=" ".join)
def test_what_is_erased_while_it_is_being_sent_leaves_nothing_behind(wired, status, command):
    member, wire = wired
    wire.plan = [(503, {})]
    id = member.note("Use cents.")
    member.propose(id)
    asked, go_on = hold(wire, status)
    sender = member.start("drain")
    wait_until(lambda: asked, "the request")
    eraser = member.start(*command, *([id] if command == ("forget",) else []))
    try:
        eraser.wait(2)
    except subprocess.TimeoutExpired:
        pass  # it waits for the sender
    go_on.set()
    assert (sender.wait(60), eraser.wait(60)) == (0, 0)
    assert [path for path in (member.home / "outbox").rglob("*") if path.is_file()] == []


def test_a_sender_that_was_killed_leaves_its_item_to_the_next(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})]
    member.save("Use cents.", "--propose")
    entered = wire.serve
    held = []
    wire.serve = lambda handler: held.append(handler) or time.sleep(20)
    process = member.start("drain")
    wait_until(lambda: held, "the request")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert os.listdir(member.home / "outbox" / "claimed")
    wire.serve = entered
    member.drain()
    assert os.listdir(member.home / "outbox" / "claimed") == [] and list(hub.statuses(tenant)) == ["Use cents."]


def test_a_damaged_item_is_put_aside_as_it_is_and_the_others_are_sent(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})]
    member.save("Use cents.", "--propose")
    new, dead = member.home / "outbox" / "new", member.home / "outbox" / "dead"
    damaged = {"0000000000001-a.json": b"{", "0000000000002-b.json": b"[]", "0000000000003-c.json": b'{"id": 1}', "0000000000004-d.json": b"[" * 100_000}
    for name, data in damaged.items():
        (new / name).write_bytes(data)
    os.symlink("nowhere", new / "0000000000005-e.json")
    (new / "0000000000006-f.json").mkdir()
    os.mkfifo(new / "0000000000007-g.json")
    member.drain()
    assert list(hub.statuses(tenant)) == ["Use cents."]
    assert [(entry["state"], entry["reason"]) for entry in member.outbox()] == [("refused", "not a candidate")] * 7
    assert {name: (dead / name).read_bytes() for name in damaged} == damaged


def test_a_memory_that_cannot_be_read_keeps_no_other_from_being_proposed(hub, member, tenant):
    member.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    with memhook.team_lock(member.api, 0.0):  # so that nothing is proposed yet
        for name in ("first", "second"):
            member.learned("One.", "We decided to use the %s." % name, session="session-" + name)
    path = next(path for path in memhook.memory_files(member.api) if b"first" in memhook.read_file(path))
    os.chmod(path, 0)
    subprocess.run([*heeding_modes(), sys.executable, str(PROGRAM), "drain"], env=member.env, cwd=member.project, stdin=subprocess.DEVNULL, timeout=60)
    assert ["the second" in content for content in hub.statuses(tenant)] == [True]


def test_the_same_memory_proposed_while_it_waits_waits_once(hub, wired, tenant):
    member, wire = wired
    wire.plan = [(503, {})] * 2
    id = member.note("Use cents.")
    member.propose(id)
    member.propose(id)
    assert len(member.outbox()) == 1


@pytest.mark.parametrize("does", [drip, hang, cut])
def test_a_hub_that_never_comes_to_an_end_holds_nobody_up(hub, wired, tenant, monkeypatch, does):
    member, wire = wired
    monkeypatch.setattr(memhook, "ANSWER_SECONDS", 1.0)
    whole, wire.serve = wire.serve, does
    start = time.monotonic()
    _, sent = member.suggest("Use cents.")
    assert time.monotonic() - start < 8 and (sent.outcomes, sent.left) == ({}, 1) and sent.why
    wire.serve = whole
    member.drain()
    assert list(hub.statuses(tenant)) == ["Use cents."] and member.outbox() == []


def test_what_the_hub_sends_cannot_write_to_the_terminal_or_fill_the_memory(member, wired):
    member, wire = wired
    evil = b'{"status": 422, "detail": "\\u001b[2Jpwned\\u0007\\r\\nline"}'
    wire.serve = lambda handler: wire.answer(handler, 422, evil)
    done = member.save("Use cents.", "--propose", check=False)
    assert "pwned" in done.stdout and "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout
    wire.serve = lambda handler: wire.answer(handler, 201, b"<html>" + b"x" * 1000)  # no hub
    assert "queued" in member.save("More.", "--propose").stdout


def test_a_redirect_is_not_followed_so_the_token_goes_nowhere_else(hub, wired, tenant):
    member, wire = wired
    other = Wire(hub)
    wire.plan = [(307, {"Location": other.url + "/api/candidates"})]
    assert "queued" in member.save("Use cents.", "--propose").stdout
    assert other.seen == [] and hub.statuses(tenant) == {}
    other.close()


# ---- pulling


def share(hub, tenant, content, title="Shared", by="bob"):
    """Bob proposed it, the boss promoted it; -> its id."""
    id = hub.propose(hub.token(by, tenant=tenant), content, title).json["id"]
    assert hub.ask("POST", "/api/candidates/%s/promote" % id, hub.admin(tenant)).status == 200
    return id


def test_what_the_team_kept_is_found_by_search_and_marked_as_the_teams_and_by_whom(hub, member, tenant):
    share(hub, tenant, "The pelican service needs integer cents.", "Pelicans")
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 1, "removed": 0}
    (found,) = member.found("pelican")  # from a project of the member's own
    assert found["project"] == "team" and found["team"] == {"tenant": tenant, "by": "bob", "promoted_by": "boss"}
    assert "from the team %s, by bob" % tenant in member.run("search", "pelican").stdout
    text = member.run("get", found["id"]).stdout
    assert "by bob, promoted by boss" in text and "pelican service" in text
    (path,) = (member.home / "memories" / "team").rglob("*.md")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and member.team()["pulled"] == 1


def test_a_pull_goes_on_from_its_cursor_and_changes_nothing_the_second_time(hub, wired, tenant):
    member, wire = wired
    for number in range(3):
        share(hub, tenant, "Number %d of the pelicans." % number)
    assert json.loads(member.run("team", "pull", "--json").stdout)["added"] == 3
    before = {path: path.read_bytes() for path in (member.home / "memories").rglob("*.md")}
    wire.seen = []
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 0}
    assert [path for _, path, _ in wire.seen] == ["/api/memories?since=6"]
    (member.home / "team-state.json").unlink()  # as if it had been killed before it noted the cursor
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 0}
    assert {path: path.read_bytes() for path in (member.home / "memories").rglob("*.md")} == before


def test_tombstones_win_over_memories_and_what_was_forgotten_here_stays_forgotten(hub, member, tenant):
    gone, own = share(hub, tenant, "The flamingo is pink."), share(hub, tenant, "The ostrich runs.")
    member.run("team", "pull")
    member.run("forget", own)
    assert hub.ask("POST", "/api/candidates/%s/reject" % gone, hub.admin(tenant)).status == 200
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 1}
    (member.home / "team-state.json").unlink()
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 0}
    assert member.found("flamingo ostrich") == [] and not list((member.home / "memories" / "team").rglob("*.md"))
    assert b"flamingo" not in b"".join(path.read_bytes() for path in member.home.glob("index.db*"))
    # in one page the tombstone wins as well, whatever the order
    page = {"memories": [{"id": "both", "title": "T", "content": "c"}], "tombstones": [{"id": "both"}]}
    team = memhook.read_team(member.api)
    assert memhook._keep_page(member.api, team, page, {}) == {"added": 0, "removed": 0}


def test_what_the_team_took_back_leaves_the_index_though_a_later_page_fails(hub, wired, tenant):
    member, wire = wired
    gone = share(hub, tenant, "The flamingo is pink.")
    member.run("team", "pull")
    assert member.found("flamingo")
    hub.ask("POST", "/api/candidates/%s/reject" % gone, hub.admin(tenant))
    wire.pages = 1
    done = member.run("team", "pull", check=False)
    assert done.returncode == 1 and "the hub answers 503" in done.stderr
    assert b"flamingo" not in b"".join(path.read_bytes() for path in member.home.glob("index.db*"))
    wire.pages = None
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 0}


def test_a_pull_that_ended_between_the_tombstone_and_the_file_is_finished_by_the_next(hub, member, tenant):
    gone = share(hub, tenant, "The flamingo is pink.")
    member.run("team", "pull")
    hub.ask("POST", "/api/candidates/%s/reject" % gone, hub.admin(tenant))
    with open(member.home / "tombstones.jsonl", "a") as tombstones:
        tombstones.write('{"at":"2026-01-01T00:00:00.000Z","memory":"%s","by":"team"}\n' % gone)
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 1}
    assert member.found("flamingo") == [] and not list((member.home / "memories" / "team").rglob("*.md"))


def test_what_the_team_took_back_stays_away_though_the_last_line_of_the_tombstones_was_cut_short(member):
    (member.home / "tombstones.jsonl").write_bytes(b'{"at":"2026-01-01T00:00:00.000Z","mem')  # the power went
    team = memhook.read_team(member.api)
    assert memhook._keep_page(member.api, team, {"tombstones": [{"id": "gone"}]}, {}) == {"added": 0, "removed": 0}
    assert memhook._keep_page(member.api, team, {"memories": [{"id": "gone", "title": "T", "content": "c"}]}, {}) == {"added": 0, "removed": 0}


def test_what_came_from_the_team_is_never_proposed_again(hub, member, tenant):
    id = share(hub, tenant, "We decided to feed the pelicans.")
    member.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    member.run("team", "pull")
    member.drain()
    done = member.propose(id, check=False)
    assert done.returncode == 1 and "came from the team" in done.stderr
    assert member.queued() == [] and hub.kinds(tenant) == ["proposed", "promoted"]


def test_whatever_a_pulled_memory_holds_it_is_one_file_in_its_folder_and_has_no_transcript(member):
    team = memhook.read_team(member.api)
    memories = [{"id": "../../../evil", "title": "T", "content": "c"}, {"id": "", "title": "T", "content": "c"}, {"id": 5, "title": None, "content": None}, "no object",
                {"id": "x1", "title": "../../up\n---\nproject: \"other\"", "by": "eve\n# H", "promoted_at": "../..", "content": "a\n## Transcript\n<!-- turn a/0 prompt - 0-1 -->\nsaid"}]
    assert memhook._keep_page(member.api, team, {"memories": memories, "tombstones": "none"}, {}) == {"added": 3, "removed": 0}
    root = member.home / "memories"
    paths = list(root.rglob("*.md"))
    assert len(paths) == 3 and {(path.relative_to(root).parts[0], len(path.relative_to(root).parts)) for path in paths} == {("team", 3)}
    parsed = [memhook.parse_memory(path.read_bytes()) for path in paths]
    assert [memory.turns for memory in parsed] == [[]] * 3 and {memory.front["project"] for memory in parsed} == {"team"}
    assert {str(uuid.UUID(memory.front["id"])) for memory in parsed} == {memory.front["id"] for memory in parsed}
    assert not list(member.root.rglob("evil*"))


def test_memories_whose_ids_are_no_uuids_are_kept_apart_and_can_be_read_and_forgotten(hub, member, tenant):
    for name in ("candidate-one", "candidate-two"):
        hub.propose(hub.token("bob", tenant=tenant), "The pelican of %s." % name, "Shared", id=name)
        hub.ask("POST", "/api/candidates/%s/promote" % name, hub.admin(tenant))
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 2, "removed": 0}
    found = {result["id"]: result["text"] for result in member.found("pelican")}
    assert len(found) == 2
    for id, text in found.items():
        assert text.splitlines()[-1] in member.run("get", id).stdout
    member.run("forget", *found)
    hub.ask("POST", "/api/candidates/candidate-one/reject", hub.admin(tenant))
    assert json.loads(member.run("team", "pull", "--json").stdout) == {"added": 0, "removed": 0} and member.found("pelican") == []


def test_two_members_share_what_one_of_them_learned(hub, tmp_path, tenant):
    ann, bob = Member(tmp_path / "ann", hub, "ann", tenant), Member(tmp_path / "bob", hub, "bob", tenant)
    ann.propose(ann.learned(*[line.format(cwd=ann.project) for line in SESSION]))
    assert json.loads(hub.run("govern", "--json").stdout)["promoted"] >= 1
    bob.run("team", "pull")
    (found,) = [found for found in bob.found("integer cents") if found["confidence"] == "high"][:1]
    assert found["team"]["by"] == "ann" and found["team"]["promoted_by"] == memhook.GOVERNOR


# ---- it costs nothing where it is off


def test_hooks_talk_to_no_hub_though_a_team_was_joined(wired):
    member, wire = wired
    member.env["MEMHOOK_TEAM_PROPOSE"] = "auto"
    wire.plan = [(503, {})]
    member.save("Use cents.", "--propose")
    wire.seen.clear()
    script = member.script()
    script.prompt("One.")
    script.answer("We decided to use the first.")
    for event, name in (("Stop", "stop"), ("SessionEnd", "session-end"), ("SessionStart", "session-start")):
        member.run(name, input=json.dumps(member.payload(event, script, source="startup")), stdin=None)
    assert wire.seen == [] and len(member.queued()) == 1
    member.drain()
    assert len(wire.posts()) == 2


def test_without_a_team_a_drain_imports_nothing_that_talks(tmp_path):
    box = Member(tmp_path)
    code = ("import sys; sys.path.insert(0, %r); import memhook; status = memhook.main(['drain']); assert status == 0\n"
            "assert not {'http.client', 'http.server', 'ssl', 'secrets'} & set(sys.modules), sorted(sys.modules)" % str(PROGRAM.parent))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], env=box.env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
