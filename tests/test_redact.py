"""No secret survives redaction, what is no secret comes back byte for byte, and redaction takes linear time."""
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import memhook
from conftest import DATA, ROOT, Box

TABLE = json.loads((DATA / "secrets.json").read_text("utf-8"))
RECALL, PRECISION = TABLE["recall"], TABLE["precision"]
HARMLESS = "\0".join(entry["text"].replace(entry["secret"], "\0") for entry in RECALL)  # what stands around the secrets


def named(entries, key):
    return [pytest.param(entry, id="%s-%03d" % (entry[key].replace(" ", "_"), number)) for number, entry in enumerate(entries)]


# ---- what counts as surviving

def escaped(text):
    return json.dumps(text)[1:-1]


def core(entry):
    """The part of the secret that must vanish in full: the header of a JWT says only how it was signed."""
    return re.sub(r"^eyJ[\w-]+\.(?=eyJ)", "", entry["secret"])


def pieces(entry):
    """Strings no one may find afterwards: each line of the secret, and each stretch of half of it (16 characters at most)."""
    found = set()
    for line in re.split(r"\n|\\n", core(entry)):
        size = min(16, max(5, len(line) // 2 + 1))
        found.update(line[at:at + size] for at in range(len(line) - size + 1))
        if 0 < len(line) < size:
            found.add(line)
    return {piece for piece in found if piece not in HARMLESS}


def forms(pieces_):
    """Each piece as it may be written: plain, in JSON, in JSON that keeps its letters."""
    return {form for piece in pieces_ for form in (piece, escaped(piece), json.dumps(piece, ensure_ascii=False)[1:-1])}


def surviving(entry, text):
    """The longest stretch of the entry's secret that is still in `text`, or None."""
    for whole in (entry["secret"], escaped(entry["secret"])):
        if whole in text:
            return whole
    return max((piece for piece in forms(pieces(entry)) if piece in text), key=len, default=None)


# ---- the table

def test_the_table_is_large_enough():
    kinds = {}
    for entry in RECALL:
        assert entry["secret"] in entry["text"] and entry["secret"] not in HARMLESS, entry
        assert pieces(entry), entry
        kinds.setdefault(entry["kind"], []).append(entry)
    assert {kind: len(entries) for kind, entries in kinds.items() if len(entries) < 3} == {}
    long = [entry for entry in PRECISION if 5 <= entry["text"].count("\n") + 1 <= 15]
    assert len(long) >= 25 and len(PRECISION) - len(long) >= 100


@pytest.mark.parametrize("entry", named(RECALL, "kind"))
def test_a_secret_vanishes(entry):
    done = memhook.redact(entry["text"])
    assert surviving(entry, done) is None, done


@pytest.mark.parametrize("entry", named(RECALL, "kind"))
def test_a_secret_vanishes_from_json(entry):
    done = memhook.redact(escaped(entry["text"]))
    assert surviving(entry, done) is None, done


def test_redacting_twice_changes_nothing_more():
    wrong = []
    for entry in RECALL + PRECISION:
        for text in (entry["text"], escaped(entry["text"])):
            once = memhook.redact(text)
            if memhook.redact(once) != once:
                wrong.append((text, once, memhook.redact(once)))
    assert wrong == []


@pytest.mark.parametrize("entry", named(PRECISION, "why"))
def test_what_is_no_secret_is_left_alone(entry):
    assert memhook.redact(entry["text"]) == entry["text"]


def test_secrets_vanish_from_one_long_text():
    """All at once, between harmless lines; what is open to the end of its message stays out."""
    entries = [entry for entry in RECALL if entry["kind"] not in ("private:unclosed", "pem:truncated")]
    text = "\n\n".join(entry["text"] + "\n\n" + PRECISION[number % len(PRECISION)]["text"] for number, entry in enumerate(entries))
    done = memhook.redact(text)
    assert [(entry["kind"], entry["text"]) for entry in entries if entry["secret"] in done] == []
    assert memhook.redact(done) == done


# ---- time

HOSTILE = {  # of 1 MB
    "a": "a", "eyJ": "eyJ", "sk": "sk-", "scheme": "://", "password": "password=", "pem": "-----BEGIN PRIVATE KEY-----", "user-at": "user@", "at": "@", "mnemonic": "mnemonic abandon ", "digits": "0123456789",
    "space": " ", "double-quote": '"', "single-quote": "'",
}
OTHER = {  # of a fifth of that
    "capital": "A", "newline": "\n", "tab": "\t", "backslash": "\\", "dash": "-", "dot": ".", "underscore": "_", "slash": "/", "equals": "=", "colon": ":", "angle": "<", "eyJ-dot": "eyJa.", "scheme-user": "a://b:",
    "pem-lines": "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n", "mail": "a.b@c.d", "abandon": "abandon ", "private": "<private>", "home": "/home/", "users": "C:\\Users\\", "bearer": "Bearer ", "cookie": "Cookie: a=b; ",
    "json": '"password":"', "json-escaped": '\\"token\\":\\"', "name": "A_SECRET_TOKEN", "netrc": "machine a login b ", "sig": "?sig=%", "xox": "xoxb-1-", "telegram": "12345678:", "ssh": "ssh-rsa AAAA",
    "org": "anthropic-organization-id: ", "base64": "QUJD+/", "uuid": "0f8fad5b-d9cb-",
}
PROBE = """
import sys, time
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import memhook
unit, full = sys.argv[2], int(sys.argv[3])
def took(size):
    given = (unit * (size // len(unit) + 1))[:size]
    start = time.process_time()
    memhook.redact(given)
    return time.process_time() - start
spent = took(25000)
if spent > 0.5:
    sys.exit("25,000 characters took %.2f s" % spent)
print(took(full // 2), took(full))
"""


def probe(name):
    """(exit code, output) of redacting hostile text in a process of its own, which can be ended if it hangs."""
    unit, size = (HOSTILE[name], 1000000) if name in HOSTILE else (OTHER[name], 200000)
    try:
        done = subprocess.run([sys.executable, "-I", "-S", "-c", PROBE, str(ROOT), unit, str(size)], capture_output=True, text=True, timeout=25)
    except subprocess.TimeoutExpired:
        return 1, "%d characters of %r do not end within 25 s" % (size, unit)
    return done.returncode, done.stdout or done.stderr


@pytest.fixture(scope="module")
def probed():
    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        return dict(zip([*HOSTILE, *OTHER], pool.map(probe, [*HOSTILE, *OTHER])))


@pytest.mark.parametrize("name", [*HOSTILE, *OTHER])
def test_time_is_linear(probed, name):
    code, output = probed[name]
    assert code == 0, output
    half, whole = map(float, output.split())
    assert whole < (5 if name in HOSTILE else 1), (half, whole)
    assert whole < 3 * half + 0.25, (half, whole)


# ---- end to end, through the hooks as installed

# How a secret of a kind stands in a path, and whether git allows that for a branch. "/" in front: the whole path. No folder is called "://".
# Not here: kinds of several lines or with a "/" in the secret, and <private>, which no name holds.
NAMES = {
    "home": ("/home/%s/code", False), "email": ("%s", True), "assignment:SECRET": ("APP_SECRET=%s", True), "assignment:TOKEN": ("DEPLOY_TOKEN=%s", True),
    "assignment:PASSWORD": ("DB_PASSWORD=%s", True), "assignment:API_KEY": ("WEATHER_API_KEY=%s", True), "connection:postgres": ("postgres://app:%s@db", False),
    "connection:mysql": ("mysql://app:%s@db", False), "connection:mongodb": ("mongodb+srv://app:%s@db.mongodb.net", False), "connection:redis": ("redis://:%s@cache", False),
    "connection:amqp": ("amqp://app:%s@mq", False), "json:password": ('{"password": "%s"}', False), "json:secret": ('{"secret": "%s"}', False), "json:token": ('{"token": "%s"}', False),
    "json:access_token": ('{"access_token": "%s"}', False), "url_userinfo": ("https://deploy:%s@git.lan", False), "org_header": ("anthropic-organization-id: %s", False),
    "mnemonic:12": ("mnemonic %s", False), "mnemonic:24": ("seed phrase %s", False), "cookie": ("Cookie: sessionid=%s", False), "set_cookie": ("Set-Cookie: sid=%s", False),
    "aws_secret": ("aws_secret_access_key=%s", True), "jwt": ("%s", True), "telegram": ("%s", False), "bearer": ("Bearer %s", False), "basic": ("Authorization: Basic %s", False),
    "signed:s3": ("a.png?X-Amz-Signature=%s", False), "signed:azure": ("sv=2022-11-02&sig=%s", True), "signed:gcs": ("X-Goog-Signature=%s", True),
    "netrc": ("machine git.lan login ci password %s", False), "ssh_public": ("ssh-rsa %s", False), "account_id": ('{"organizationUuid": "%s"}', False),
}
TOKENS = ("stripe:live", "stripe:test", "anthropic", "openai", "openai:proj", "aws_id:AKIA", "aws_id:ASIA", "github:ghp", "github:gho", "github:ghu", "github:ghs", "github:ghr", "github_pat",
          "gitlab", "slack:xoxa", "slack:xoxb", "slack:xoxp", "slack:xoxr", "slack:xoxs", "google", "npm", "huggingface", "sendgrid")
NAMES.update((kind, ("%s", True)) for kind in TOKENS)
NAMELESS = {"pem:rsa", "pem:ec", "pem:openssh", "pem:pkcs8", "pem:encrypted", "pem:pgp", "pem:truncated", "private:closed", "private:unclosed"}
LONGEST_NAME = 255


def in_names(branch=False, folder=False):
    """(entry, its name) for one secret of each kind that a path, a folder (then the kind's last secret) or a branch can be called after."""
    chosen = {}
    for entry in RECALL:
        form, legal = NAMES.get(entry["kind"], (None, False))
        if form is None or (branch and not legal) or (folder and "://" in form) or re.search(r"[/\n\\]", entry["secret"]):
            continue
        name = form % entry["secret"]
        if len(name.encode()) > LONGEST_NAME or (branch and re.search(r"[\s~^:?*\[]|\.\.|@\{|\.lock$", name)):
            continue
        if folder or entry["kind"] not in chosen:
            chosen[entry["kind"]] = ({**entry, "text": name}, name)
    return list(chosen.values())


def place(name):
    return name if name.startswith("/") else "/srv/app/" + name


def finish(box, script, **fields):
    """Stop and SessionEnd; `fields` are more of Stop's payload. A hook out of time leaves the rest to the next, so SessionEnd may come again."""
    for event in ("Stop",) + 20 * ("SessionEnd",):
        done = box.hook(event, script, **(fields if event == "Stop" else {"reason": "exit", **{key: fields[key] for key in fields if key == "cwd"}}))
        assert done.returncode == 0, done.stderr
        state = box.checkpoint(script)
        if event == "SessionEnd" and state["queued"] == script.path.stat().st_size and not state["turns"]:
            return
    pytest.fail("20 hooks did not reach the end of the transcript")


def kept(box):
    """The bytes of every file in memhook's folder, by path in it."""
    return {str(path.relative_to(box.home)): path.read_bytes() for path in sorted(box.home.rglob("*")) if path.is_file()}


def leaks(box, entries):
    """(kind, files, what survived) for each secret that any file of memhook's folder holds, in its bytes or in its name."""
    found, held = [], kept(box)
    assert any(name.startswith("memories") for name in held)
    everything, names = b"\0".join(held.values()), "\0".join(held)
    for entry in entries:
        for form in sorted(forms({entry["secret"]} | pieces(entry)), key=len, reverse=True):
            if form.encode() in everything:
                found.append((entry["kind"], sorted(name for name in held if form.encode() in held[name]), form))
                break
        slug = re.sub(r"[^a-z0-9]+", "-", core(entry).lower()).strip("-")[:16]
        if entry["secret"] in names or (len(slug) > 4 and slug in names.lower()):
            found.append((entry["kind"], "a file name", slug))
    return found


def spoken(box, kind):
    return sum(1 for said, _ in box.said() if said == kind)


def test_every_kind_can_be_named_or_is_known_not_to():
    assert set(NAMES) | NAMELESS == {entry["kind"] for entry in RECALL} and not set(NAMES) & NAMELESS
    assert {entry["kind"] for entry, _ in in_names()} == set(NAMES)


def test_no_secret_of_a_prompt_is_kept(box):
    script = box.script()
    for entry in RECALL:
        script.prompt("Look:\n" + entry["text"])
        script.answer("Seen.")
    finish(box, script)
    box.drain()
    assert leaks(box, RECALL) == []
    assert spoken(box, "prompt") == len(RECALL)


def test_no_secret_of_an_answer_is_kept(box):
    script = box.script()
    for entry in RECALL:
        script.prompt("Go on.")
        script.answer("I found this:\n" + entry["text"])
    finish(box, script)
    box.drain()
    assert leaks(box, RECALL) == []
    assert spoken(box, "answer") == len(RECALL)


def test_no_secret_of_a_command_is_kept(box):
    script = box.script()
    script.prompt("Run them.")
    for number, entry in enumerate(RECALL):
        script.tool("Bash", command=entry["text"] if number % 2 else "cat <<'EOF'\n%s\nEOF" % entry["text"], description="Run number %d" % number)
        script.result("done")
    script.answer("Ran.")
    finish(box, script)
    box.drain()
    assert leaks(box, RECALL) == []
    assert spoken(box, "answer") == 1


def test_no_secret_of_a_file_name_is_kept(box):
    script = box.script()
    script.prompt("Write them.")
    chosen = in_names()
    for _, name in chosen:
        script.tool("Write", file_path=place(name) + "/notes.md", content="x")
        script.result("File created")
        script.tool("Write", file_path=place(name), content="x")
        script.result("File created")
    script.answer("Written.")
    finish(box, script)
    box.drain()
    assert leaks(box, [entry for entry, _ in chosen]) == []
    assert spoken(box, "answer") == 1


def test_no_secret_of_an_error_is_kept(box):
    script = box.script()
    script.prompt("Run them.")
    for number, entry in enumerate(RECALL):
        script.tool("Bash", command="make step-%d" % number)
        script.result("Exit code 1\n" + entry["text"], error=True)
    script.answer("All failed.")
    finish(box, script)
    box.drain()
    assert leaks(box, RECALL) == []
    assert spoken(box, "answer") == 1


class Sessions:
    """Each kind has a session of its own: a first prompt (title and file name come from it), a last message, and for those that can be a
    name also the folder and the branch, each with another secret of that kind as far as there are enough."""

    def __init__(self, factory):
        self.kinds = {}
        for entry in RECALL:
            self.kinds.setdefault(entry["kind"], []).append(entry)
        self.first = [entries[0] for entries in self.kinds.values()]
        self.last = [entries[1] for entries in self.kinds.values()]
        self.folders, self.branches = in_names(folder=True), in_names(branch=True)
        self.boxes = []
        kinds = list(self.kinds)
        for half in (kinds[::2], kinds[1::2]):  # fewer sessions on a machine than an hour's quota
            self.boxes.append(Box(factory.mktemp("sessions")))
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HOME", str(self.boxes[-1].user))  # for the box's calls in this process
                self.fill(self.boxes[-1], half)

    def fill(self, box, kinds):
        box.install()
        folders, branches = ({entry["kind"]: name for entry, name in pairs} for pairs in (self.folders, self.branches))
        for number, kind in enumerate(kinds):
            script = box.script("session-%04d" % number)
            fields = {}
            if kind in folders:
                script.cwd = fields["cwd"] = folders[kind] if folders[kind].startswith("/") else str(box.root / "code" / folders[kind])
                if not folders[kind].startswith("/"):
                    os.makedirs(script.cwd, exist_ok=True)
            branch = {"gitBranch": ("fix/" if number % 2 else "") + branches[kind]} if kind in branches else {}
            script.prompt(self.kinds[kind][0]["text"], uuid="prompt-%04d" % number, **branch)
            script.tool("Read", file_path="/srv/app/main.py")
            script.result("x = 1")
            finish(box, script, last_assistant_message="I found this:\n" + self.kinds[kind][1]["text"], **fields)
        box.drain()
        turns = [turn.kind for memory in box.memories() for turn in memory.turns]
        assert turns.count("prompt") == turns.count("answer") == len(kinds)

    def leaks(self, entries):
        return [leak for box in self.boxes for leak in leaks(box, entries)]


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    return Sessions(tmp_path_factory)


def test_no_secret_that_opens_a_session_is_kept(sessions):
    assert sessions.leaks(sessions.first) == []


def test_no_secret_of_the_last_message_is_kept(sessions):
    assert sessions.leaks(sessions.last) == []


def test_no_secret_of_a_working_folder_is_kept(sessions):
    """But for the user's name in the path itself: it must still lead to the files."""
    assert sessions.leaks([entry for entry, _ in sessions.folders if entry["kind"] != "home"]) == []


def test_no_secret_of_a_branch_is_kept(sessions):
    assert len(sessions.branches) >= 25
    assert sessions.leaks([entry for entry, _ in sessions.branches]) == []


# ---- a secret that lies across the boundary of a turn's part (4,000) or of a segment (8,000)

FILLER = "The parser reads each line once and keeps the place where it stopped so that nothing is read again. "
CROSSING = ("anthropic", "openai:proj", "github_pat", "aws_secret", "jwt", "stripe:live", "sendgrid", "pem:rsa", "pem:openssh", "mnemonic:24", "assignment:PASSWORD", "connection:mongodb", "json:access_token",
            "cookie", "bearer", "netrc", "signed:s3", "private:closed", "home", "email")


def fill(size):
    return (FILLER * (size // len(FILLER) + 1))[:size - 1] + "\n" if size else ""


def crossing(limit, each):
    """(entry, text): the secret of each kind begun at `each` different distances before `limit`, down to its last character."""
    for number, kind in enumerate(CROSSING):
        entry = next(entry for entry in RECALL if entry["kind"] == kind and entry["text"] != entry["secret"])
        at = entry["text"].index(entry["secret"])
        size = len(entry["secret"])
        reaches = (size // 2, size - 1, 1, size // 4, size, size + 8)
        for turn in range(each):
            yield entry, fill(limit - reaches[(number + turn) % len(reaches)] - at) + entry["text"] + "\n" + fill(300)


def distinct(texts):
    return list({entry["text"]: entry for entry, _ in texts}.values())


@pytest.mark.parametrize("limit, each", [(4000, 2), (8000, 2)])
def test_no_secret_across_a_boundary_is_kept(box, limit, each):
    """Within one prompt or answer: the boundary counted from its beginning."""
    script = box.script()
    texts = list(crossing(limit, each))
    for number, (_, text) in enumerate(texts):
        script.prompt("Go on." if number % 2 else text)
        script.answer(text if number % 2 else "Seen.")
    finish(box, script)
    box.drain()
    assert leaks(box, distinct(texts)) == []
    assert spoken(box, "prompt") == spoken(box, "answer") == len(texts)


def test_no_secret_across_a_segment_is_kept(box):
    """Over several turns: the boundary counted from the session's beginning; a session for each secret."""
    texts = list(crossing(8000, 1))
    for number, (_, text) in enumerate(texts):
        script = box.script("across-%04d" % number)
        script.prompt(text[:3000])
        script.answer(text[3000:6000])
        script.prompt(text[6000:])
        script.answer("Seen.")
        finish(box, script)
    box.drain()
    assert leaks(box, distinct(texts)) == []
    assert spoken(box, "prompt") == spoken(box, "answer") == 2 * len(texts)


def test_a_private_text_longer_than_a_segment_is_not_kept(box):
    words = {speaker: ["%s%04dquartz" % (speaker, number) for number in range(900)] for speaker in ("zebrafish", "kingfisher")}
    shapes = ("Begin. <private>%s</private> End.", fill(3990) + "<private>%s", fill(7995) + "<private>\n%s\n</private>\nEnd.")
    for number, shape in enumerate(shapes):
        script = box.script("private-%04d" % number)
        script.prompt(shape % " ".join(words["zebrafish"]))
        script.answer(shape % "\n".join(words["kingfisher"]))
        finish(box, script)
    box.drain()
    assert re.findall(rb"(?:zebrafish|kingfisher)\d*|\d\d\d\dquartz", b"\0".join(kept(box).values())) == []
    assert spoken(box, "prompt") == spoken(box, "answer") == 3


@pytest.mark.parametrize("text,kept", [
    ("password: Tr0ub4dor&3xyz", "password: "), ("password=Tr0ub4dor&3xyz", "password="), ("password: aaaBBB111,ccc222", "password: "),
    ("the password is correct-horse&battery9", "the password is "), ("password: Tr0ub4dor$3xyz!", "password: "), ("pw: Tr0ub4dor#3xyz", "pw: "),
])
def test_the_signs_within_a_password_do_not_end_it(text, kept):
    assert memhook.redact(text) == kept + "[redacted:secret]" and memhook.redact(text + ", user=bob") == kept + "[redacted:secret], user=bob"


def test_the_next_name_after_a_password_stays():
    assert memhook.redact("Server=a;Password=abc123;Database=x") == "Server=a;Password=[redacted:secret];Database=x"
    assert memhook.redact("https://x.test/?token=abcdef123456&user=bob") == "https://x.test/?token=[redacted:signature]&user=bob"
