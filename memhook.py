#!/usr/bin/env python3
"""memhook gives Claude Code a memory: every session, whole, as Markdown, on this machine.

The life of a memory

    Stop, PreCompact   new bytes of the transcript -> turns -> segments of ~8,000 characters -> spool
    SessionEnd         the tail -> spool; a detached drain starts
    SessionStart       a drain starts, which also captures what hooks could not
    drain              segment -> digest -> Markdown -> receipt; the spool item is removed last

Hooks do no model work, print nothing on Stop and SessionEnd, exit 0 whatever happens, and cost milliseconds.
Every step may be killed and run again: turns have identities, and each step changes nothing the second time.

Sections (grep -n '^# ====' memhook.py)

    1. Constants
    2. Errors
    3. Disk
    4. Home
    5. Log
    6. Redact
    7. Transcript
    8. Spool
    9. Capture
    10. Memory
    11. Distil
    12. Drain
    13. Hooks
    14. Install
    15. Checkup
    16. Commands

On disk, under MEMHOOK_HOME (default: memhook-data in Claude's config folder)

    consent.json              what a person agreed to, and when
    checkpoints/<key>.json    how far each transcript has been captured
    seen/<key>                which lines of it were taken; also its lock
    spool/new|claimed|dead/   segments that are not memories yet
    memories/                 the truth: Markdown, one file a segment
    receipts.jsonl            what became of every segment
    memhook.log               JSON lines; never transcript text

Why one file: it is copied, piped and read as a whole, and it works where nothing may be installed.
"""
from __future__ import annotations

import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # the typing module costs a hook 6 ms; annotations are strings and need none of it
    from typing import Any, Callable, Iterator, Optional

# ==== 1. Constants ================================================================
# Job:      every number that a reader may want to question, with its unit and its reason.
# Not:      settings; those a person may change are in Home.

VERSION = "0.1.0"
CHECKPOINT_FORMAT = 1
SEGMENT_FORMAT = 1
CONSENT_FORMAT = 1
PARSER_VERSION = 1  # goes up when parse_turns would read a turn differently; receipts carry it

SEGMENT_CHARS = 8_000  # a segment is cut at the first turn end past this
TURN_CHARS = 4_000  # a longer text becomes several turns, so that no segment is much longer than the limit
COMMAND_CHARS = 200  # of a tool call
INPUT_CHARS = 120  # of the arguments of a tool we know nothing about
ERROR_CHARS = 300  # of a failed tool's output
RESULT_CHARS = 1_500  # of a subagent's report
SUMMARY_CHARS = 4_000  # of a compaction summary, kept only where the history before it is missing

BLOCK_BYTES = 1 << 20  # how much of a transcript is in memory at once
LINE_BYTES = 64 << 20  # a longer line is skipped and counted: no prompt is this long, pasted images included
LEAN_BYTES = 1 << 20  # above this a line's base64 is cut out before it is decoded
HOOK_BYTES = 16 << 20  # a hook reads no more than this, and leaves the rest to the drain
HOOK_SEGMENTS = 16  # a hook queues no more than this
HOOK_SECONDS = 0.08  # a hook stops reading after this: three stay below the 200 ms a person notices
EVENT_SECONDS = 0.8  # how long a hook waits for the rest of its event: the pipe may never be closed
SESSION_END_SECONDS = 0.3  # how long SessionEnd waits for another capture of the same transcript

HEAD_BYTES = 1_024  # compared at each capture, to notice that a file was replaced
FOOT_BYTES = 256  # the bytes before the offset, for the same reason
DEAD_SECONDS = 2 * 3600  # a session whose process is unknown is dead after no growth for this long
CLEANUP_MARGIN_SECONDS = 2 * 86_400  # a transcript this close to Claude's own deletion is captured as it is
FORGET_CHECKPOINT_SECONDS = 90 * 86_400  # after its transcript is gone
TEMP_SECONDS = 3_600  # a temp file this old belongs to a process that was killed
ATTEMPTS = 6  # a segment that failed this often is put where a person can look
BACKOFF_SECONDS = 60  # doubled at each attempt
LOG_BYTES = 1 << 20  # then memhook.log becomes memhook.log.1

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_BUG = 0, 1, 2, 3
EXIT_BUSY, EXIT_INTERRUPTED = 75, 130

DNS_NAMESPACE = "6ba7b8109dad11d180b400c04fd430c8"  # RFC 4122, appendix C
CHILD_MARK = "[memhook: write the digest of this session segment]"  # heads the prompt of our own model calls
SPOKEN = frozenset(("prompt", "command", "shell", "answer", "plan", "reply"))  # kinds of turn that people or Claude said
BOOT = (  # imports are cached as bytecode, scripts are not; and nothing is ever put on sys.path
    "import sys;from importlib.machinery import SourceFileLoader as L;"
    "m={'__name__':'memhook','__file__':sys.argv[1]};exec(L('memhook',sys.argv[1]).get_code('memhook'),m);m['launch'](sys.argv[2:])"
)

# ==== 2. Errors ===================================================================
# Job:      two families: what a person is told, and what the drain decides by.
# Promise:  a MemhookError's text is one line a person understands; `hint` says what to do next.


class MemhookError(Exception):
    """Expected failure: printed as one line, exit status `status`."""

    status = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(MemhookError):
    """The command line makes no sense."""

    status = EXIT_USAGE


class StateError(MemhookError):
    """Something of ours on disk cannot be used as it is."""


class InstallError(MemhookError):
    """Claude's settings could not be changed; they are as they were."""


class BusyError(MemhookError):
    """Another process of ours is doing this."""

    status = EXIT_BUSY


class Transient(Exception):
    """The drain tries this segment again later."""


class Poison(Exception):
    """The drain will never be able to use this spool item: it is buried."""


# ==== 3. Disk =====================================================================
# Job:      files that are whole or absent, private, and locks that die with their process.
# Promise:  when write_file(durable=True) returns, the new content survives power loss; the commit is the rename.
# Not:      Windows cannot sync a folder: there the rename is atomic but may be undone by power loss.
# On error: OSError; the temp file is gone, or sweep_temp removes it later.


def now() -> float:
    """The one clock: seconds since the epoch."""
    return time.time()


def iso(at: Optional[float]) -> str:
    """-> "2026-01-31T12:00:00.000Z", or "-" where the time is unknown."""
    if at is None:
        return "-"
    seconds, milliseconds = divmod(int(round(at * 1000)), 1000)
    return "%s.%03dZ" % (time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)), milliseconds)


def parse_time(text: Any) -> Optional[float]:
    """Seconds since the epoch of an ISO 8601 time in UTC; None where there is none.

    Civil date to days: Howard Hinnant, "chrono-compatible low-level date algorithms", days_from_civil.
    """
    if not isinstance(text, str) or len(text) < 19 or text[10] not in "T ":
        return None
    try:
        year, month, day = int(text[0:4]), int(text[5:7]), int(text[8:10])
        seconds = int(text[11:13]) * 3600 + int(text[14:16]) * 60 + int(text[17:19])
        rest = text[19:].rstrip("Zz")
        fraction = float("0" + rest) if rest.startswith(".") and rest[1:].isdigit() else 0.0
    except ValueError:
        return None
    year -= month <= 2
    era = year // 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    year_of_era = year - era * 400
    days = era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
    return round(days * 86400 + seconds + fraction, 3)


def sha1_hex(data: bytes) -> str:
    """SHA-1 in hexadecimal: names and comparisons, never secrecy."""
    try:  # hashlib loads OpenSSL, 3 ms that a hook does not have
        from _sha1 import sha1
    except ImportError:
        from hashlib import sha1
    return sha1(data).hexdigest()


def text_hash(text: str) -> str:
    """16 hexadecimal digits that stand for a redacted text."""
    return sha1_hex(text.encode("utf-8", "replace"))[:16]


def content_id(tenant: str, title: str, content: str) -> str:
    """UUID version 5 (RFC 4122, 4.3, SHA-1) in the DNS namespace over the three, joined by newlines."""
    name = "\n".join((tenant, title, content)).encode("utf-8", "replace")
    raw = bytearray.fromhex(sha1_hex(bytes.fromhex(DNS_NAMESPACE) + name)[:32])
    raw[6] = raw[6] & 0x0F | 0x50
    raw[8] = raw[8] & 0x3F | 0x80
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def make_folder(path: str) -> None:
    """Make `path` and its parents, each 0700 whatever the umask."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def sync_folder(path: str) -> None:
    """Make the renames in a folder survive power loss."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: os.write may take only some."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view):]


def open_private(path: str, flags: int) -> int:
    """Open for writing with mode 0600, making the folder if it is missing."""
    flags |= getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        make_folder(os.path.dirname(path))
        return os.open(path, flags, 0o600)


def remove_file(path: str) -> None:
    """Remove a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def write_temp(temp: str, data: bytes, durable: bool) -> None:
    """Write a temp file, synced if `durable`; on error it is removed again."""
    fd = open_private(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(fd, data)
        if durable:
            os.fsync(fd)
    except OSError:
        remove_file(temp)
        raise
    finally:
        os.close(fd)


def write_file(path: str, data: bytes, durable: bool = True) -> None:
    """Replace `path` by `data` as a whole: temp file in the same folder, sync, rename, sync of the folder."""
    temp = "%s.%d.tmp" % (path, os.getpid())
    write_temp(temp, data, durable)
    try:
        os.replace(temp, path)
    except OSError:
        remove_file(temp)
        raise
    if durable:
        sync_folder(os.path.dirname(path))


def append_file(path: str, data: bytes, durable: bool = False) -> None:
    """Append `data` in one write, so that lines of two processes never mix."""
    fd = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        write_all(fd, data)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


def read_file(path: str) -> Optional[bytes]:
    """The bytes of a file; None where there is no such file."""
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: str) -> Any:
    """The object in a JSON file; None where the file is absent or is not one whole JSON value."""
    data = read_file(path)
    try:
        return None if data is None else json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def write_json(path: str, value: Any, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON."""
    write_file(path, json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace") + b"\n", durable)


def list_folder(path: str) -> list[str]:
    """The names in a folder, sorted; none where there is no such folder."""
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def sweep_temp(folder: str) -> int:
    """Remove what killed writers left in `folder`; -> how many."""
    swept = 0
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if name.endswith(".tmp") and os.path.getmtime(path) < now() - TEMP_SECONDS:
            remove_file(path)
            swept += 1
    return swept


def _lock_fd(fd: int) -> bool:
    if os.name == "nt":
        import msvcrt
        os.lseek(fd, 1 << 40, 0)  # a byte past any content, so that readers are not locked out
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            return True
        except OSError:
            return False
    import fcntl
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


class Lock:
    """An exclusive lock on a file, held by a process and gone with it: never a pid file, never a folder."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1  # the open lock file while the lock is held

    def acquire(self, seconds: float = 0.0) -> bool:
        """Try for `seconds`; -> whether the lock is held now."""
        deadline = time.monotonic() + seconds
        while not self._try():
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.01)
        return True

    def release(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _try(self) -> bool:
        fd = open_private(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            # a file that was removed while we waited is nobody's lock: the next process would make a new one
            if _lock_fd(fd) and os.path.exists(self.path) and os.path.samestat(os.fstat(fd), os.stat(self.path)):
                self.fd = fd
                return True
        except FileNotFoundError:
            pass
        os.close(fd)
        return False

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


# ==== 4. Home =====================================================================
# Job:      where things are, what a person agreed to, what they set.
# Promise:  one home per Claude config folder; nothing is created here but by install.
# On error: StateError where consent.json or config.json cannot be read as what they are.

SETTINGS: dict[str, Any] = {  # name -> default; config.json or MEMHOOK_<NAME> overrides
    "quota_max": 60,  # segments that hooks may queue in a window
    "quota_window": 60,  # seconds
    "worktrees": "shared",  # or "separate": each worktree is a project of its own
}


class Home:
    """The folders of one installation."""

    __slots__ = ("root", "config", "environ")

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        self.config = os.path.abspath(environ.get("CLAUDE_CONFIG_DIR") or os.path.join(os.path.expanduser("~"), ".claude"))  # Claude's folder
        root = environ.get("MEMHOOK_HOME")
        self.root = os.path.abspath(os.path.expanduser(root)) if root else os.path.join(self.config, "memhook-data")

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def create(self) -> None:
        """Make the home. A .gitignore keeps it out of published dotfiles."""
        make_folder(self.root)
        write_file(self.path(".gitignore"), b"*\n")

    def setting(self, name: str) -> Any:
        """The environment, else config.json, else the default; of the default's type."""
        default = SETTINGS[name]
        value = self.environ.get("MEMHOOK_" + name.upper())
        if value is None:
            stored = read_json(self.path("config.json"))
            value = stored.get(name, default) if isinstance(stored, dict) else default
        try:
            return type(default)(value)
        except (TypeError, ValueError):
            return default


class Consent:
    """What a person agreed to: {"format": 1, "capture": {"at": s, "by": str}, "pauses": [[from, to or null]]}."""

    __slots__ = ("capture_at", "pauses")

    def __init__(self, capture_at: float, pauses: list[list[Optional[float]]]) -> None:
        self.capture_at = capture_at  # turns from before this are not ours to take
        self.pauses = pauses  # turns said in these are not either; the last one may be open (to is None)

    @property
    def paused(self) -> bool:
        return bool(self.pauses) and self.pauses[-1][1] is None

    def covers(self, at: Optional[float]) -> str:
        """Why a turn said at `at` may not be taken: "before", "paused", or "" when it may."""
        if at is None:
            return ""
        if at < self.capture_at:
            return "before"
        for start, end in self.pauses:
            if start is not None and start <= at and (end is None or at < end):
                return "paused"
        return ""


def read_consent(home: Home) -> Optional[Consent]:
    """The consent to capture, or None: then nothing may be captured. Anything unreadable counts as none."""
    stored = read_json(home.path("consent.json"))
    if not isinstance(stored, dict) or stored.get("format") != CONSENT_FORMAT:
        return None
    given = stored.get("capture")
    if not isinstance(given, dict) or not isinstance(given.get("at"), (int, float)):
        return None
    pauses = [pause for pause in stored.get("pauses") or [] if isinstance(pause, list) and len(pause) == 2]
    return Consent(given["at"], pauses)


# ==== 5. Log ======================================================================
# Job:      one JSON line per event that a person may want to look up.
# Promise:  never raises, never holds transcript text, a path's content or the environment.


def log(home: Home, event: str, **fields: Any) -> None:
    """Append {"at": iso, "pid": n, "event": str, ...} to memhook.log."""
    line = json.dumps({"at": iso(now()), "pid": os.getpid(), "event": event, **fields}, ensure_ascii=False, default=str)
    path = home.path("memhook.log")
    try:
        if os.path.exists(path) and os.path.getsize(path) > LOG_BYTES:
            os.replace(path, path + ".1")
        if os.path.isdir(home.root):
            append_file(path, line.encode("utf-8", "replace") + b"\n")
    except OSError:
        pass  # a log that cannot be written must not stop a capture


def debug(home: Home, event: str, **fields: Any) -> None:
    """Log only when MEMHOOK_DEBUG is set."""
    if home.environ.get("MEMHOOK_DEBUG"):
        log(home, event, **fields)


# ==== 6. Redact ===================================================================
# Job:      take secrets out of text before anything of ours is written.
# Promise:  redact(redact(x)) == redact(x); time linear in the text, whatever it holds.
# Not:      a person's words about secrets, git SHAs, UUIDs, IP addresses, references such as $TOKEN or process.env.API_KEY.
# Calls:    redact(text), after JSON decoding and before clipping, so that no half of a key is left.

# What a rule finds is replaced by [redacted:KIND]; of a pattern with a group `v`, that group only.
# A rule is compiled when one of its hints (lower case) occurs: compiling all of them costs a hook 3 ms.
# Every repeat is bounded or starts at a token's first character: hostile text must not make them quadratic.
_VALUE = r"""[^\s"'\\,;&<>(){}\[\]`$%*|]"""  # a character of a bare value; $ and % start references to a secret, which are no secret
_KEYWORD = (
    r"""(?:secret|token|passw(?:or)?d|passwort|passphrase|passcode|pwd|_pass|api[_-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key(?:[_-]?base)?"""
    r"""|private[_-]?key|signing[_-]?key|encryption[_-]?key|account[_-]?key|shared[_-]?access[_-]?key|auth[_-]?key|master[_-]?key|credentials?|auth)"""
)
_NAMED = ("secret", "token", "passw", "passphrase", "passcode", "pwd", "_pass", "api_key", "apikey", "api-key", "access_key", "accesskey",
          "access-key", "private_key", "privatekey", "private-key", "signing", "encryption", "accountkey", "account_key", "auth", "master", "credential")
REDACTIONS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (  # kind, hints, pattern, why it is here
    ("private-key", ("private key",), r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
     "PEM, OpenSSH, PGP; unclosed: to the end"),
    ("private-key", ("private-lines", "private-mac"), r"Private-Lines: ?\d+\s+(?P<v>(?:[A-Za-z0-9+/=]{16,}\s*)+)", "PuTTY"),
    ("private-key", ("age-secret-key-",), r"AGE-SECRET-KEY-1[A-Z0-9]{20,}", "age"),
    ("ssh-key", ("aaaa",), r"\b(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp\d{3}|sk-ssh-ed25519@openssh\.com) (?P<v>AAAA[A-Za-z0-9+/=]{20,})",
     "a public key names a person and a machine"),
    ("anthropic-key", ("sk-ant-",), r"(?<![A-Za-z0-9])sk-ant-[A-Za-z0-9_-]{8,}", "Anthropic"),
    ("api-key", ("sk-",), r"(?<![A-Za-z0-9_-])sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,}", "OpenAI and others; the digit spares CSS class names"),
    ("stripe-key", ("k_live_", "k_test_", "whsec_"), r"(?<![A-Za-z0-9])(?:[srp]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{8,}", "Stripe"),
    ("aws-key", ("akia", "asia", "abia", "acca"), r"(?<![A-Za-z0-9])(?:AKIA|ASIA|ABIA|ACCA)(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])",
     "Amazon; its documentation's example stays"),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})", "GitHub"),
    ("gitlab-token", ("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "glagent-"),
     r"(?<![A-Za-z0-9])gl(?:pat|dt|rt|ptt|cbt|ft|soat|agent)-[A-Za-z0-9_.-]{12,}", "GitLab"),
    ("slack-token", ("xox", "xapp-"), r"(?<![A-Za-z0-9])(?:xox[abeoprs]-[A-Za-z0-9.-]{8,}|xapp-[A-Za-z0-9-]{8,})", "Slack"),
    ("webhook", ("hooks.slack.com", "discord.com/api/webhooks", "discordapp.com/api/webhooks"),
     r"(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks)/(?P<v>[A-Za-z0-9_/-]{10,})", "whoever has the address may post"),
    ("google-key", ("aiza", "ya29.", "gocspx-"), r"(?<![A-Za-z0-9])(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|GOCSPX-[A-Za-z0-9_-]{16,})", "Google"),
    ("npm-token", ("npm_",), r"(?<![A-Za-z0-9])npm_[A-Za-z0-9]{24,}", "npm"),
    ("pypi-token", ("pypi-",), r"(?<![A-Za-z0-9])pypi-[A-Za-z0-9_-]{32,}", "PyPI"),
    ("huggingface-token", ("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}", "Hugging Face"),
    ("sendgrid-key", ("sg.",), r"(?<![A-Za-z0-9])SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}", "SendGrid"),
    ("vendor-token", ("dop_v1_", "shpat_", "shpss_", "glsa_", "lin_api_", "hvs.", "dapi", "dckr_pat_", "figd_", "ntn_", "pscale_", "pmak-", "nrak-",
                      "atlasv1.", "sq0", "xkeysib-", "sntrys_", "rubygems_", "gsk_", "r8_", "tskey-"),
     r"(?<![A-Za-z0-9])(?:dop_v1_|shpat_|shpss_|glsa_|lin_api_|hvs\.|dapi(?=[0-9a-f]{32})|dckr_pat_|figd_|ntn_|pscale_(?:tkn|pw)_|PMAK-|NRAK-"
     r"|atlasv1\.|sq0(?:atp|csp)-|xkeysib-|sntrys_|rubygems_|gsk_|r8_|tskey-(?:auth|api)-)[A-Za-z0-9_.=-]{16,}", "prefixes that vendors chose so that leaks are found"),
    ("twilio-key", ("sk",), r"(?<![A-Za-z0-9])SK[0-9a-f]{32}(?![A-Za-z0-9])", "Twilio"),
    ("jwt", ("eyj",), r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{5,}\.eyJ[A-Za-z0-9_-]{3,}(?:\.[A-Za-z0-9_-]*)?", "JSON Web Tokens"),
    ("telegram-token", (":aa",), r"(?<![A-Za-z0-9])\d{8,10}:AA[A-Za-z0-9_-]{30,}", "Telegram bots"),
    ("authorization", ("authorization",), r"(?i)\b(?:proxy-)?authorization\\*[\"']?\s*[:=]\s*\\*[\"']?\s*(?:(?:bearer|basic|token|digest|apikey|negotiate|bot)\s+)?"
     r"(?P<v>(?!\[redacted|bearer\b|basic\b|token\b)" + _VALUE + r"{6,})", "HTTP headers"),
    ("bearer", ("bearer",), r"(?i)\bbearer\s+(?P<v>(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{24,})", "HTTP headers, quoted alone"),
    ("basic", ("basic ",), r"(?i)\bbasic\s+(?P<v>(?=[A-Za-z0-9+/]*[0-9+/=])[A-Za-z0-9+/]{8,}={0,2})(?![A-Za-z0-9-])", "HTTP basic credentials in base64"),
    ("cookie", ("cookie",), r"(?i)\b(?:set-)?cookie\\*[\"']?\s*:\s*\\*[\"']?(?P<v>[^\s=;\"'\\]{1,128}=[^\r\n\"'\\]{4,4096})", "a session is a password"),
    ("cookie", ("--cookie", "-b "), r"(?:--cookie[ =]|\s-b )\\*[\"']?(?P<v>[^\s=;\"'\\]{1,128}=[^\r\n\"'\\]{4,4096})", "curl"),
    ("password", ("://",), r"://[^\s/:@\"'<>]{0,128}:(?P<v>(?![$<{%]|\[redacted)[^\s/\"'<>]{1,256})@", "connection strings and URLs"),
    ("token", ("://",), r"://(?P<v>(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,256})(?::x-oauth-basic)?@", "a token as the user of a URL"),
    ("signature", ("sig", "token=", "key=", "code=", "secret="), r"(?i)(?:[?&]|\b)(?:x-amz-(?:signature|security-token|credential)|x-goog-signature|x-goog-credential"
     r"|(?<=[?&])(?:sig|signature|token|access_token|refresh_token|id_token|api_?key|key|secret|code|sas))=(?P<v>(?![$<{]|\[redacted)[^\s&\"'\\<>]{6,})", "signed addresses"),
    ("password", ("login ", "login\t", "login\n"), r"\blogin\s+\S{1,128}\s+password\s+(?P<v>(?!\[redacted)\S{1,256})", ".netrc"),
    ("password", ("--pass", "--token", "--api", "--secret", "--access", "--auth", "--client-secret", "--key"),
     r"--(?:password|passwd|pass|token|api-key|apikey|api-token|secret|secret-key|access-token|access-key|auth-token|client-secret|auth)(?:=|\s+)\\*[\"']?"
     r"(?P<v>(?![$<{-]|\[redacted)[^\s\"'\\]{4,})", "command lines"),
    ("password", ("-u ", "--user "), r"(?:\s|^)(?:-u|--user)\s+\\*[\"']?[^\s:\"'\\]{1,128}:(?P<v>(?![$<{\d]|\[redacted)[^\s\"'\\]{3,}|\d(?=\S*[A-Za-z])[^\s\"'\\]{3,})", "curl; uid:gid stays"),
    ("password", ("mysql", "mariadb", "sshpass"), r"\b(?:mysql\w*|mariadb\S*|sshpass)\b[^\r\n|;]{0,128}?\s-p\\*[\"']?(?P<v>(?![$\s]|\[redacted)[^\s\"'\\]{3,})", "clients that take it glued to -p"),
    ("organization-id", ("organization-id", "organizationuuid", "accountuuid", "organization_id", "org-"),
     r"(?i)(?:anthropic-organization-id|(?:owner)?(?:account|organization)uuid|openai-organization|organization_id)\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<v>[A-Za-z0-9-]{8,})",
     "ids of accounts in headers and client state"),
    ("seed-phrase", ("mnemonic", "seed phrase", "recovery phrase", "seed words", "backup phrase", "secret phrase", "seed_phrase", "seedphrase", "recovery words"),
     r"(?i)(?:mnemonic|(?:seed|recovery|backup|secret)[ _]?(?:phrase|words))\b(?:\W{1,8}\w{1,12}){0,4}?\W{1,8}(?P<v>(?-i:[a-z]{3,8}(?:[\s,]{1,3}|\\n)){11,23}(?-i:[a-z]{3,8}))\b", "BIP 39"),
    # a value in quotes after a telling name; a reference, a placeholder or the name itself is none
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"(?:[_-]?\d{1,2}|_?b64)?\\*[\"']?\]?\s{0,3}(?:[:=]|:=|=>)\s{0,3}(?:[rbuf]?)\\*(?P<q>[\"'`])(?P<v>(?!\[redacted)[^\"'`\\\r\n]{4,1024})(?=\\*(?P=q))",
     "JSON, YAML and code"),
    # NAME=value as in a shell or .env: no space around the sign
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"(?:[_-]?\d{1,2}|_?b64)?=(?P<v>(?!\[redacted)" + _VALUE + r"{3,})", ".env, export, query strings, ADO connection strings"),
    # name: value and name = value, bare: only where the value looks made up
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"(?:[_-]?\d{1,2})?\s{0,3}(?:[:=]|\bis\b|\bis:)\s{1,3}(?P<v>(?=[^\s]{0,64}\d)(?=[^\s]{0,64}[A-Za-z!@#^+=/_~-])(?!\[redacted)" + _VALUE + r"{8,})", "YAML, INI, prose"),
    ("email", ("@",), r"(?<![A-Za-z0-9._%+/:-])(?!git@|noreply@|no-reply@)[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@(?!example\.|users\.noreply)(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}(?![A-Za-z0-9:/]|\.[A-Za-z0-9])",
     "people"),
    ("home", ("/home/", "/users/", "\\users\\"), r"(?:(?<![\w./~-])/(?:home|Users)/|\b[A-Za-z]:\\{1,2}Users\\{1,2}|\b[A-Za-z]:/Users/)(?!Shared\b|Public\b)[^\s/\\:\"'<>|*?]{1,64}", "user names; what follows still opens"),
)
_PLACEHOLDER = (  # what stands where a secret would: a reference to it, its type, or a hint for the reader
    r"(?i)(?:\$|<|%|\{\{|\.\.\.|x{3,}|\*{3,}|your[_ -]|my[_ -]|the[_ -]|some[_ -]|example|placeholder|change[_-]?me$|dummy|redacted|none$|null$|undefined$|true$|false$|nil$|string$|str$|text$"
    r"|number$|int$|bytes$|object$|password$|secret$|token$|required$|optional$|import\.meta|process\.env|os\.|env\.|env\[|getenv|config\.|settings\.|self\.|this\.|secrets\.|vault:|ref:)"
    r"|^[A-Za-z_][\w]*(?:\.[A-Za-z_]\w*)+$|^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$"
)
_PRIVATE = r"(?is)<private>.*?(?:</private>|\Z)"


def _replace(match: re.Match[str], kind: str) -> str:
    whole = match.group(0)
    if kind == "home":
        return "~"
    if "v" not in match.re.groupindex:
        return "[redacted:%s]" % kind
    value = match.group("v")
    if kind == "secret" and re.match(_PLACEHOLDER, value):
        return whole
    start = match.start("v") - match.start()
    return whole[:start] + "[redacted:%s]" % kind + whole[start + len(value):]


def redact(text: str, keep: tuple[str, ...] = ()) -> str:
    """The text without secrets and without what stands between <private> and </private> (unclosed: to the end); `keep`: kinds that may stay."""
    lowered = text.lower()
    if "<private>" in lowered:
        text = re.sub(_PRIVATE, "[private]", text)
        lowered = text.lower()
    for kind, hints, pattern, _ in REDACTIONS:
        if kind not in keep and any(hint in lowered for hint in hints):
            text = re.sub(pattern, lambda match: _replace(match, kind), text)
    return text


def redact_path(path: str) -> str:
    """A path without secrets in it; unlike in text, the user's name stays: the path must still lead to its file."""
    return path if not path else redact(path, keep=("home", "email"))


# ==== 7. Transcript ===============================================================
# Job:      Claude Code's JSONL into turns: what a person or Claude said, and a line for each thing Claude did.
# Promise:  pure and tolerant: any bytes give turns, never an exception; prompts and answers are never shortened.
# Not:      tool output, thinking, images, subagents' transcripts, what hooks injected (ours above all).
# Calls:    parse_turns(data, start, context) for whole lines; parse_line for one.
# Format:   internal to Claude Code and changing; the shapes met in the wild are in tests/data/transcript/.


class Turn:
    """One kept piece of a transcript.

    As stored: [key, kind, text, start, end, at, cwd, branch, project]. Kinds: prompt, command (a slash command), shell
    (a command the person ran with "!"), answer, plan, reply (a person's answer to a question or their reason for a refusal),
    question, tool, error, result (a subagent's report), summary (of a compaction), interrupt, rewind.
    """

    __slots__ = ("key", "kind", "text", "start", "end", "at", "cwd", "branch", "project", "whole")

    def __init__(self, key: str, kind: str, text: str, start: int, end: int, at: Optional[float] = None,
                 cwd: str = "", branch: str = "", project: str = "", whole: str = "") -> None:
        self.key = key  # "<uuid of the line>/<number of the turn in it>": the identity of the turn
        self.kind = kind
        self.text = text  # redacted
        self.start, self.end = start, end  # bytes of the transcript; turns of one line share it in proportion
        self.at = at  # when it was said; that of an earlier line where its own has none
        self.cwd, self.branch = cwd, branch
        self.project = project  # set by capture
        self.whole = whole  # of an answer: text_hash of the whole of it, of which this turn may be a part; not stored

    @property
    def line(self) -> str:
        """The uuid of the line this came from."""
        return self.key.rsplit("/", 1)[0]

    def to_json(self) -> list[Any]:
        return [self.key, self.kind, self.text, self.start, self.end, self.at, self.cwd, self.branch, self.project]

    @classmethod
    def from_json(cls, stored: list[Any]) -> Turn:
        return cls(*stored[:9])


class Context:
    """What the lines read so far mean for the next: {"at", "cwd", "branch", "old", "spoken", "queue", "tools", "parents"}."""

    __slots__ = ("at", "cwd", "branch", "old", "spoken", "queue", "tools", "parents", "skipped")

    def __init__(self, stored: Optional[dict[str, Any]] = None) -> None:
        stored = stored or {}
        self.at: Optional[float] = stored.get("at")  # of the last line that had a time
        self.cwd: str = stored.get("cwd", "")
        self.branch: str = stored.get("branch", "")
        self.old: bool = stored.get("old", False)  # written by a client before 2.1.97, which kept typed-ahead prompts nowhere else
        self.spoken: bool = stored.get("spoken", False)  # a prompt or an answer was seen: a compaction summary tells nothing new
        self.queue: list[list[Any]] = stored.get("queue", [])  # [key, text, start, end, at]: typed while Claude was busy
        self.tools: dict[str, str] = stored.get("tools", {})  # tool_use id -> what was called, until its result comes
        self.parents: dict[str, str] = stored.get("parents", {})  # parent of a prompt -> its first words: seen twice, it is a rewind
        self.skipped = 0  # lines that are no JSON, or too long

    def to_json(self) -> dict[str, Any]:
        return {"at": self.at, "cwd": self.cwd, "branch": self.branch, "old": self.old, "spoken": self.spoken,
                "queue": self.queue, "tools": self.tools, "parents": self.parents}


# ---- text

def _whole_text(text: str) -> str:
    """Without what UTF-8 cannot hold: lone surrogates become U+FFFD, NULs go."""
    return (text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)).replace("\0", "")


def clean(text: str) -> str:
    """The text as it may be written: redacted, encodable."""
    return redact(_whole_text(text))


def clip(text: str, limit: int) -> str:
    """At most `limit` characters, and how many are left out."""
    text = text.strip()
    return text if len(text) <= limit else "%s [… %d characters left out]" % (text[:limit], len(text) - limit)


def split_text(text: str, limit: int = TURN_CHARS) -> list[str]:
    """Parts of at most `limit` characters whose concatenation is the text, cut after a paragraph, a line or a word."""
    parts = []
    while len(text) > limit:
        cut = 0
        for mark in ("\n\n", "\n", ". ", " "):
            cut = text.rfind(mark, limit // 2, limit - len(mark) + 1) + len(mark)
            if cut >= len(mark):
                break
        else:
            cut = limit
        parts.append(text[:cut])
        text = text[cut:]
    return parts + [text] if text else parts


def _text(value: Any) -> str:
    """The text of a block's content: a string, or a list of text blocks."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    return "\n".join(part if isinstance(part, str) else str(part.get("text") or "") for part in value if isinstance(part, (str, dict)))


def _blocks(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The content blocks of a message; a bare string is one text block, and so is a string in a list."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    listed = content if isinstance(content, list) else [content]
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in listed]
    return [block for block in blocks if isinstance(block, dict)]


# ---- what a person said

_NOT_SAID = (  # a user line that starts so is written by the client
    "<local-command-", "<bash-stdout", "<bash-stderr", "<system-reminder", "<task-notification", "<teammate-message", "<cross-session-message",
    "<user-prompt-submit-hook", "<command-stdout", "<command-stderr", "Caveat: The messages below were generated", "<channel-", "<agent-message", "<post-tool-use-hook",
)
_SUMMARY_START = "This session is being continued from a previous conversation"
_INSERTED = r"(?s)<(system-reminder|memhook-recall|ide_opened_file|ide_selection|ide_diagnostics)>.*?</\1>"  # put around or into a prompt by programs


def _by_person(record: dict[str, Any]) -> bool:
    origin = record.get("origin")
    return not (isinstance(origin, dict) and origin.get("kind") not in (None, "human"))


def _tagged(text: str, tag: str) -> str:
    match = re.search("(?s)<%s>(.*?)</%s>" % (tag, tag), text)
    return match.group(1).strip() if match else ""


def _prompt_said(record: dict[str, Any], text: str) -> list[tuple[str, str]]:
    """What a person typed, as the kind it is."""
    text = re.sub(_INSERTED, "", text)
    start = text.lstrip()
    if start.startswith("[Request interrupted by user"):
        return [("interrupt", "[interrupted by the user]")]
    if start.startswith("<bash-input>"):
        return [("shell", "! " + _tagged(text, "bash-input"))]
    if start.startswith(("<command-name>", "<command-message>")):
        return [("command", (_tagged(text, "command-name") + " " + _tagged(text, "command-args")).strip())]
    if start.startswith(_NOT_SAID):
        return []
    if record.get("planContent") or start.startswith("Implement the following plan:"):
        return [("plan", text)]
    return [("prompt", text)]


def _rewind_said(record: dict[str, Any], prompt: str, context: Context) -> list[tuple[str, str]]:
    """A note that the conversation went back: a second prompt hangs where an earlier one hung."""
    parent = record.get("parentUuid")
    if not isinstance(parent, str):
        return []
    first = context.parents.get(parent)
    context.parents[parent] = prompt.strip()[:60]
    while len(context.parents) > 64:  # nobody rewinds past so many prompts, and the checkpoint stays small
        del context.parents[next(iter(context.parents))]
    return [] if first is None else [("rewind", "[the person went back to before: %s]" % first)]


def _attachment_said(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompts typed while Claude was busy, as clients from 2.1.97 on keep them. Every other attachment is injected text."""
    attachment = record.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command" or attachment.get("isMeta"):
        return []
    if attachment.get("commandMode") not in (None, "prompt") or not _by_person(attachment):
        return []
    return _prompt_said({}, clean(_text(attachment.get("prompt"))))


def _queue_said(record: dict[str, Any], key: str, where: tuple[int, int], context: Context) -> list[tuple[str, str]]:
    """Prompts typed while Claude was busy, as clients before 2.1.97 kept them: only a removal shows that one was used."""
    operation, text = record.get("operation"), clean(_text(record.get("content")))
    if operation == "enqueue" and text.strip() and not text.lstrip().startswith(("<", "/", '{"task_id')):
        context.queue.append([key, text, where[0], where[1], context.at])
    elif operation == "popAll":
        context.queue.clear()  # the person took them back into the input line
    elif operation in ("dequeue", "remove") and context.queue:
        taken = next((item for item in context.queue if item[1] == text), context.queue[0])
        context.queue.remove(taken)
        if operation == "remove" and context.old:
            return [("prompt", taken[1])]
    return []


# ---- what came back from tools

def _refusal_said(text: str) -> list[tuple[str, str]]:
    """A person's refusal of a tool call, with their reason in full: it is theirs, not the tool's."""
    if "doesn't want to" not in text and "was rejected" not in text:
        return []
    reason = re.search(r"(?s)(?:the user said|user provided the following reason for the rejection|reason)[^:]{0,80}:\s*(.+)", text)
    return [("reply", "[refused] " + reason.group(1))] if reason else [("interrupt", "[the user refused a tool call]")]


def _answers(details: dict[str, Any]) -> str:
    answers = details.get("answers")
    if not isinstance(answers, dict):
        return ""
    return clean("\n".join("%s: %s" % (question, _text(answer) or json.dumps(answer, ensure_ascii=False)) for question, answer in answers.items()))


def _unwrap(text: str) -> str:
    return re.sub(r"</?tool_use_error>", "", text)


def _result_said(block: dict[str, Any], record: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    """What a tool result tells: a person's answer or refusal, a failure, a subagent's report. Output is not kept."""
    called = context.tools.pop(str(block.get("tool_use_id")), "")
    text = clean(_text(block.get("content")))
    details = record.get("toolUseResult")
    details = details if isinstance(details, dict) else {}
    if block.get("is_error"):
        return _refusal_said(text) or [("error", "%s\n%s" % (called or "tool", clip(_unwrap(text), ERROR_CHARS)))]
    if called.startswith("AskUserQuestion") or ("answers" in details and "questions" in details):
        return [("reply", _answers(details) or text)]
    if called.startswith("ExitPlanMode"):
        return [("reply", clip(text, COMMAND_CHARS))]
    if called.startswith(("Task", "Agent")):
        return [("result", "%s\n%s" % (called, clip(text, RESULT_CHARS)))]
    stderr = details.get("stderr")
    if isinstance(stderr, str) and re.search(r"(?i)error|fail|traceback", stderr):
        return [("error", "%s\n%s" % (called or "Bash", clip(clean(stderr), COMMAND_CHARS)))]
    return []


def _user_said(record: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    """What a user line says. The order of the tests is that in which the client's own kinds exclude each other."""
    blocks = _blocks(record)
    said = [pair for block in blocks if block.get("type") == "tool_result" for pair in _result_said(block, record, context)]
    text = "\n\n".join(_text(block.get("text")) for block in blocks if block.get("type") == "text")
    if record.get("isCompactSummary") or record.get("isVisibleInTranscriptOnly") or text.startswith(_SUMMARY_START):
        return said if context.spoken else said + [("summary", clip(clean(text), SUMMARY_CHARS))]
    if record.get("isMeta") or not _by_person(record):
        return said
    said += _prompt_said(record, clean(text))
    if any(kind == "prompt" for kind, _ in said):
        said = _rewind_said(record, said[-1][1], context) + said
        images = sum(block.get("type") == "image" for block in blocks)
        said[-1] = (said[-1][0], said[-1][1] + "\n[image]" * images)
    elif not said and any(block.get("type") == "image" for block in blocks):
        said = [("prompt", "[image]")]
    return said


# ---- what Claude said and did

_EMPTY_ANSWERS = ("(no content)", "No response requested.")
_SILENT_TOOLS = frozenset((  # they look around or keep lists: what they found is in the answer that follows
    "Read", "Grep", "Glob", "LS", "TodoWrite", "TodoRead", "NotebookRead", "ToolSearch", "BashOutput", "TaskOutput", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "KillShell", "EnterPlanMode",
))
_TOLD_BY = {  # tool -> the argument that tells what it did
    "Edit": "file_path", "Write": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path", "Task": "description", "Agent": "description",
    "WebFetch": "url", "WebSearch": "query", "Skill": "skill", "SlashCommand": "command",
}


def _tool_line(name: str, given: dict[str, Any]) -> str:
    """One line: the tool and what it was asked to do."""
    if name == "Bash":
        command = clip(clean(_text(given.get("command"))), COMMAND_CHARS)
        reason = clip(clean(_text(given.get("description"))), INPUT_CHARS)
        return "Bash: " + command + ("  # " + reason if reason else "")
    if name in _TOLD_BY:
        return "%s: %s" % (name, clip(clean(_text(given.get(_TOLD_BY[name]))), COMMAND_CHARS))
    return "%s: %s" % (name, clip(clean(json.dumps(given, ensure_ascii=False)), INPUT_CHARS))


def _questions(given: dict[str, Any]) -> str:
    asked = given.get("questions")
    texts = [_text(question.get("question")) for question in asked if isinstance(question, dict)] if isinstance(asked, list) else [_text(given.get("question"))]
    return clean("\n".join(texts))


def _tool_said(block: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    name = clean(str(block.get("name") or "tool"))
    given = block.get("input")
    given = given if isinstance(given, dict) else {}
    line = _tool_line(name, given)
    context.tools[str(block.get("id"))] = line[:COMMAND_CHARS]
    while len(context.tools) > 64:  # results that never came: an interrupted session leaves them
        del context.tools[next(iter(context.tools))]
    if name == "ExitPlanMode":
        return [("plan", clean(_text(given.get("plan"))))]
    if name == "AskUserQuestion":
        return [("question", _questions(given))]
    return [] if name in _SILENT_TOOLS else [("tool", line)]


def _assistant_said(record: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    """Claude's text in full and one line for each tool it called."""
    message = record.get("message")
    if record.get("isApiErrorMessage") or (isinstance(message, dict) and message.get("model") == "<synthetic>"):
        return []
    said: list[tuple[str, str]] = []
    for block in _blocks(record):
        if block.get("type") == "text":
            text = clean(_text(block.get("text")))
            said += [("answer", text)] if text.strip() not in _EMPTY_ANSWERS else []
        elif block.get("type") == "tool_use":
            said += _tool_said(block, context)
    return said


# ---- records and lines

def _said(record: dict[str, Any], key: str, where: tuple[int, int], context: Context) -> list[tuple[str, str]]:
    """(kind, text) of each thing a record says, whole; empty ones left out."""
    kind = record.get("type")
    if record.get("isSidechain"):
        return []  # a subagent's own talk; its report comes back as a tool result
    if kind == "user":
        said = _user_said(record, context)
    elif kind == "assistant":
        said = _assistant_said(record, context)
    elif kind == "attachment":
        said = _attachment_said(record)
    elif kind == "queue-operation":
        said = _queue_said(record, key, where, context)
    else:
        return []
    said = [(kind, text) for kind, text in said if text.strip()]
    context.spoken = context.spoken or any(kind in SPOKEN for kind, _ in said)
    return said


def _recover_records(text: str) -> list[Any]:
    """Whole objects out of a damaged line: those that stand together, and those that begin after a cut one."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    at = text.find("{")
    for _ in range(1_000):  # each failed try may read to the end of the line: hostile lines must not make that quadratic
        if at < 0:
            break
        try:
            record, at = decoder.raw_decode(text, at)
            found.append(record)
        except (ValueError, RecursionError):
            at += 1
        start = re.compile(r'\s*\{').match(text, at) or re.compile(r'\{"(?:parentUuid|type|uuid|sessionId|isSidechain)"').search(text, at)
        at = start.end() - 1 if start and start.group().endswith("{") else start.start() if start else -1
    return found


def parse_records(line: bytes, context: Context) -> list[dict[str, Any]]:
    """The JSON objects on one physical line: one as a rule, more where a foreign write came between, none if it is broken."""
    if len(line) > LEAN_BYTES:
        line = re.sub(rb'"[A-Za-z0-9+/=]{2000,}"', b'""', line)  # pasted images; nothing anybody said is 2,000 such characters long
    text = line.decode("utf-8", "replace")
    try:
        records = [json.loads(text)]
    except (ValueError, RecursionError):
        records = _recover_records(text.replace("\0", "").lstrip("\ufeff"))
        context.skipped += not records
    return [record for record in records if isinstance(record, dict)]


def is_whole(line: bytes) -> bool:
    """Whether an unterminated last line is one complete object: then the writer is done with it."""
    try:
        return isinstance(json.loads(line.decode("utf-8", "replace")), dict)
    except (ValueError, RecursionError):
        return False


def _record_key(record: dict[str, Any], line: bytes) -> str:
    """The line's uuid, or a hash of the line where it has none that can stand in a file."""
    uuid = record.get("uuid")
    if isinstance(uuid, str) and re.fullmatch(r"[A-Za-z0-9_-]{1,64}", uuid):
        return uuid
    return "x" + sha1_hex(line)[:24]


def _note_place(record: dict[str, Any], context: Context) -> None:
    """Remember when and where this line was written; lines without a time or a place take those of the line before."""
    at = parse_time(record.get("timestamp"))
    if at is not None:
        context.at = at
    cwd, branch = record.get("cwd"), record.get("gitBranch")
    if isinstance(cwd, str) and cwd:
        context.cwd = redact_path(_whole_text(cwd))
    if isinstance(branch, str) and branch:
        context.branch = clean(branch)
    version = record.get("version")
    if isinstance(version, str):
        numbers = [int(number) for number in re.findall(r"\d+", version)[:3]]
        context.old = numbers < [2, 1, 97]


def _share_bytes(turns: list[Turn], start: int, end: int) -> None:
    for number, turn in enumerate(turns):
        turn.start = start + (end - start) * number // len(turns)
        turn.end = start + (end - start) * (number + 1) // len(turns)


def parse_line(line: bytes, start: int, end: int, context: Context) -> list[Turn]:
    """The turns of one line, whose bytes they share in proportion."""
    if not (b'"user"' in line or b'"assistant"' in line or b"queue" in line):
        return []  # a quarter of a transcript's bytes is neither: three searches are cheaper than parsing it
    turns: list[Turn] = []
    for record in parse_records(line, context):
        key = _record_key(record, line)
        _note_place(record, context)
        said = [(kind, part, text_hash(text.strip()) if kind == "answer" else "")
                for kind, text in _said(record, key, (start, end), context) for part in split_text(text)]
        for kind, part, whole in said:
            turns.append(Turn("%s/%d" % (key, len(turns)), kind, part, start, end, context.at, context.cwd, context.branch, "", whole))
    _share_bytes(turns, start, end)
    return turns


def parse_turns(data: bytes, start: int = 0, context: Optional[Context] = None, final: bool = False) -> list[Turn]:
    """The turns in the complete lines of `data`, which begins at byte `start` of the transcript.

    An unterminated last line counts only if `final` and it is one whole object. Passing the same `context` along, the
    turns of a transcript do not depend on where it was split. Lines end at b"\\n" only: JSON strings hold every other line end.
    """
    context = context if context is not None else Context()
    turns: list[Turn] = []
    lines = data.split(b"\n")
    last = lines.pop()
    for line in lines:
        end = start + len(line) + 1
        turns += parse_line(line, start, end, context)
        start = end
    if final and last and is_whole(last):
        turns += parse_line(last, start, start + len(last), context)
    return turns


# ==== 8. Spool ====================================================================
# Job:      hold items until someone has dealt with them (segments here; the same moves serve any other queue).
# Promise:  once put() returns, the item survives power loss; the commit is the rename into new/.
# Not:      no order between items; an item may be handed out twice (at-least-once).
# Calls:    put -> claim -> (ack | release | bury). Attempts and the time to wait are in the name, so each move is one rename.
# On error: OSError; a temp file is swept later. What cannot be used is buried, never thrown away.


class Item:
    """A claimed spool file: <stem>[,a<attempts>,t<not before>].json"""

    __slots__ = ("stem", "attempts", "not_before", "name")

    def __init__(self, name: str) -> None:
        self.name = name  # as it is called in its folder now
        stem, _, rest = name[:-len(".json")].partition(",a")
        attempts, _, not_before = rest.partition(",t")
        self.stem = stem
        self.attempts = int(attempts) if attempts.isdigit() else 0
        self.not_before = int(not_before) if not_before.isdigit() else 0  # seconds since the epoch

    def renamed(self, attempts: int, not_before: int) -> str:
        return "%s%s.json" % (self.stem, ",a%d,t%d" % (attempts, not_before) if attempts else "")


class Spool:
    """A maildir-like folder: tmp/ new/ claimed/ dead/."""

    def __init__(self, root: str) -> None:
        self.root = root

    def put(self, stem: str, data: bytes) -> None:
        """Add an item, durably. The same stem again replaces the item while it waits: stems are named after contents."""
        temp = os.path.join(self.root, "tmp", "%s.%d.tmp" % (stem, os.getpid()))
        write_temp(temp, data, durable=True)
        target = os.path.join(self.root, "new", stem + ".json")
        try:
            os.replace(temp, target)
        except FileNotFoundError:
            make_folder(os.path.dirname(target))
            os.replace(temp, target)
        sync_folder(os.path.dirname(target))

    def claim_all(self) -> Iterator[Item]:
        """Claim one item after the other, oldest name first, until none is left that may be tried now."""
        tried: set[str] = set()
        while True:
            ready = [item for item in self.items("new") if item.not_before <= now() and item.name not in tried]
            if not ready:
                return
            for item in ready:
                tried.add(item.name)
                if self._move(item, "new", "claimed", item.name):
                    yield item

    def read(self, item: Item) -> bytes:
        with open(os.path.join(self.root, "claimed", item.name), "rb") as stream:
            return stream.read()

    def ack(self, item: Item) -> None:
        """The item has become what it should: remove it."""
        remove_file(os.path.join(self.root, "claimed", item.name))

    def release(self, item: Item, wait_seconds: float = 0.0, counts: bool = True) -> None:
        """Give the item back, to be tried again after `wait_seconds`."""
        attempts = item.attempts + counts
        self._move(item, "claimed", "new", item.renamed(attempts, int(now() + wait_seconds) if wait_seconds else item.not_before))

    def bury(self, item: Item) -> None:
        """Put the item where a person can look; only revive() brings it back."""
        self._move(item, "claimed", "dead", item.stem + ".json")

    def recover(self) -> int:
        """Give back what a killed process had claimed. Only the holder of the drain's lock may call this; -> how many."""
        claimed = self.items("claimed")
        for item in claimed:
            self._move(item, "claimed", "new", item.name)
        return len(claimed)

    def revive(self) -> int:
        """Give back everything that was buried, as if new; -> how many."""
        dead = self.items("dead")
        for item in dead:
            self._move(item, "dead", "new", item.stem + ".json")
        return len(dead)

    def items(self, state: str) -> list[Item]:
        return [Item(name) for name in list_folder(os.path.join(self.root, state)) if name.endswith(".json")]

    def counts(self) -> dict[str, int]:
        """-> {"new": n, "claimed": n, "dead": n, "bytes": n}"""
        found: dict[str, int] = {}
        total = 0
        for state in ("new", "claimed", "dead"):
            folder = os.path.join(self.root, state)
            names = [item.name for item in self.items(state)]
            found[state] = len(names)
            for name in names:
                try:
                    total += os.path.getsize(os.path.join(folder, name))
                except FileNotFoundError:
                    pass  # it moved on while we counted
        found["bytes"] = total
        return found

    def _move(self, item: Item, source: str, target: str, name: str) -> bool:
        """Rename between two of the folders; False where another process was first."""
        make_folder(os.path.join(self.root, target))
        try:
            os.replace(os.path.join(self.root, source, item.name), os.path.join(self.root, target, name))
        except FileNotFoundError:
            return False
        sync_folder(os.path.join(self.root, target))
        item.name = name
        return True


# ---- receipts: the spool's ledger, {"key", "segment", "id", "outcome", ...} a line, without text


def read_receipts(home: Home, prefix: str = "") -> Iterator[dict[str, Any]]:
    """The receipts of the transcripts whose key starts with `prefix`. A damaged line is passed over."""
    wanted = b'{"key":"' + prefix.encode()
    try:
        with open(home.path("receipts.jsonl"), "rb") as stream:
            for line in stream:
                if line.startswith(wanted):
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue
    except FileNotFoundError:
        return


def write_receipt(home: Home, key: str, receipt: dict[str, Any]) -> None:
    """Append one receipt, durably. The key comes first: readers find theirs without parsing the others."""
    line = json.dumps({"key": key, **receipt}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    append_file(home.path("receipts.jsonl"), line + b"\n", durable=True)


def last_segment(home: Home, key: str) -> int:
    """The highest segment number that was ever queued of a transcript, -1 if none was."""
    spool = Spool(home.path("spool"))
    stems = [item.stem.split("-") for state in ("new", "claimed", "dead") for item in spool.items(state)]
    waiting = [int(parts[2]) for parts in stems if len(parts) == 4 and parts[1] == key and parts[2].isdigit()]
    return max([receipt["segment"] for receipt in read_receipts(home, key)] + waiting, default=-1)


# ==== 9. Capture ==================================================================
# Job:      what is new in a transcript into the spool, with a checkpoint of how far that went.
# Promise:  each turn reaches the spool at least once, and none is passed over: a segment is queued BEFORE the
#           checkpoint moves. That is deliberate. The other way round, a crash between the two loses the segment and
#           nothing can notice; this way it is queued again, under the same id, and the drain stores it once.
# Not:      no model, no network, no process. Cost: the bytes that are new, never those of the transcript.
# Calls:    capture(home, request): lock -> read -> spool -> seen -> checkpoint -> unlock
# On error: OSError before the checkpoint was written: nothing moved, the next capture does it again.


class Chunk:
    """A run of turns that makes one segment."""

    __slots__ = ("turns",)

    def __init__(self, turns: list[Turn]) -> None:
        self.turns = turns

    @property
    def end_byte(self) -> int:
        """Where the last turn ends: what is queued. Never the end of the file."""
        return self.turns[-1].end


def next_chunk(turns: list[Turn], limit: int = SEGMENT_CHARS) -> Optional[Chunk]:
    """The first segment that `turns` hold, or None while they are not enough for one.

    It ends with the first turn that brings it to `limit` characters (a prompt waits for its answer, up to twice that), or
    before the first turn of another project. It depends on nothing after the cut: however a transcript is
    split into Stops, the segments are the same.
    """
    total = 0
    for number, turn in enumerate(turns):
        if number and turn.project != turns[0].project:
            return Chunk(turns[:number])
        total += len(turn.text)
        if total >= limit and (turn.kind != "prompt" or total >= 2 * limit):
            return Chunk(turns[:number + 1])
    return None


def plan_tail_segments(turns: list[Turn], limit: int = SEGMENT_CHARS) -> list[Chunk]:
    """All the segments of a transcript that has ended: the rest, however short, is the last."""
    chunks = []
    while turns:
        chunk = next_chunk(turns, limit) or Chunk(turns)
        chunks.append(chunk)
        turns = turns[len(chunk.turns):]
    return chunks


# ---- project


def _origin(git: str) -> str:
    """The address of the remote "origin" as host/path, without user, port or .git; "" where there is none."""
    section, address = "", ""
    for line in (read_file(os.path.join(git, "config")) or b"").decode("utf-8", "replace").splitlines():
        line = line.strip()
        if line.startswith("["):
            section = line
        elif section.replace(" ", "") == '[remote"origin"]' and line.partition("=")[0].strip() == "url":
            address = line.partition("=")[2].strip().strip('"')
    match = re.match(r"(?:[a-z+]+://)?(?:[^@/]*@)?([^:/@\\]+)(?::\d+(?=/))?[:/]/*(.+?)/*(?:\.git)?/*$", address) if "://" in address else \
        re.match(r"(?:[^@/\\]+@)?([^:/@\\]{2,}):/*(.+?)/*(?:\.git)?/*$", address)
    if match and not address.startswith("file:"):
        return "%s/%s" % (match.group(1).lower(), match.group(2))
    path = address[len("file://"):] if address.startswith("file://") else address
    return re.sub(r"\.git$", "", os.path.realpath(os.path.join(os.path.dirname(git), path)).rstrip("/")) if path else ""


def _common_folder(folder: str, marker: str) -> str:
    """The repository's own folder; a worktree's .git file leads there through its commondir (gitrepository-layout(5))."""
    if os.path.isdir(marker):
        return marker
    link = (read_file(marker) or b"").decode("utf-8", "replace").strip()
    if not link.startswith("gitdir:"):
        return marker
    git = os.path.normpath(os.path.join(folder, link[len("gitdir:"):].strip()))
    common = (read_file(os.path.join(git, "commondir")) or b"").decode("utf-8", "replace").strip()
    return os.path.realpath(os.path.join(git, common) if common else git)


def project_key(cwd: str, separate_worktrees: bool = False) -> str:
    """What a folder belongs to: its repository's origin as host/path, else the repository's folder, else the folder.

    Reads .git files and config; starts no process.
    """
    folder = os.path.realpath(cwd)
    while True:
        marker = os.path.join(folder, ".git")
        if os.path.exists(marker):
            common = _common_folder(folder, marker)
            key = _origin(common) or (os.path.dirname(common) if os.path.basename(common) == ".git" else common)
            return key + "#" + os.path.basename(folder) if separate_worktrees and os.path.isfile(marker) else key
        parent = os.path.dirname(folder)
        if parent == folder:
            return os.path.realpath(cwd)
        folder = parent


def switched_off(cwd: str) -> bool:
    """Whether a .memhook-off file lies in the folder or above it."""
    folder = os.path.abspath(cwd)
    while not os.path.exists(os.path.join(folder, ".memhook-off")):
        parent = os.path.dirname(folder)
        if parent == folder:
            return False
        folder = parent
    return True


# ---- checkpoint


def transcript_key(path: str) -> str:
    """Names a transcript: 8 hexadecimal digits for its folder, 12 for itself."""
    real = os.path.realpath(path)
    folder = sha1_hex(os.fsencode(os.path.dirname(real)))[:8]
    return folder + sha1_hex(os.fsencode(real))[:12]


class Checkpoint:
    """How far one transcript has been captured. Stored as the JSON object of these fields, with "format"."""

    __slots__ = (
        "path",  # of the transcript
        "session",  # its id
        "inode", "head", "foot",  # of the file as last read: inode, [length, SHA-1] of its start, SHA-1 of what ends at `parsed`
        "size", "mtime_ns",  # of the file as last read: the stat gate
        "generation",  # how often the file was found replaced
        "parsed",  # bytes read and parsed: the end of a line
        "queued",  # bytes whose turns are in the spool or further: the end of a turn, never the end of the file
        "segment",  # the number of the next segment; goes up over Stops, SessionEnds, resumes
        "turns",  # parsed, not queued: open
        "context",  # what the parsed lines mean for the next
        "withheld",  # [start, end, reason] of turns that were not ours to take
        "pending",  # [hash, text] of a last message that Stop told of and the file does not hold yet; None
        "answered",  # hash of the last answer since the last prompt
        "early",  # hashes of messages that became turns before their line came: the line is skipped then
        "state",  # open, closed (SessionEnd came, or the session was found dead)
        "client",  # [pid, start time] of the session's process; [0, ""] where it is not known
        "own",  # True for a session of our own summariser, which is never captured; None while undecided
        "off",  # MEMHOOK_OFF was set for the session
        "born_at",  # lines older than this may be copies from other transcripts
        "newest_at",  # of the turns taken; a line not newer than this may be here for the second time
        "projects",  # cwd -> project key
        "deferred",  # a hook left bytes for the drain
        "updated_at",
    )

    def __init__(self, path: str = "", session: str = "") -> None:
        self.path, self.session = path, session
        self.inode, self.head, self.foot = 0, [0, ""], ""
        self.size, self.mtime_ns = -1, 0
        self.generation = self.parsed = self.queued = self.segment = 0
        self.turns: list[Turn] = []
        self.context = Context()
        self.withheld: list[list[Any]] = []
        self.pending: Optional[list[str]] = None
        self.answered = ""
        self.early: list[str] = []
        self.state = "open"
        self.client: list[Any] = [0, ""]
        self.own: Optional[bool] = None
        self.off = self.deferred = False
        self.born_at = self.updated_at = now()
        self.newest_at = 0.0
        self.projects: dict[str, str] = {}

    def to_json(self) -> dict[str, Any]:
        stored = {name: getattr(self, name) for name in self.__slots__}
        stored["turns"] = [turn.to_json() for turn in self.turns]
        stored["context"] = self.context.to_json()
        stored["format"] = CHECKPOINT_FORMAT
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Checkpoint:
        """Raises ValueError, TypeError, KeyError for what is not a checkpoint."""
        checkpoint = cls()
        for name in cls.__slots__:
            setattr(checkpoint, name, stored[name])
        checkpoint.turns = [Turn.from_json(turn) for turn in stored["turns"]]
        checkpoint.context = Context(stored["context"])
        return checkpoint


def checkpoint_path(home: Home, key: str) -> str:
    return home.path("checkpoints", key + ".json")


def read_checkpoint(home: Home, key: str) -> Optional[Checkpoint]:
    """The checkpoint, or None where there is none or it is damaged: it can be rebuilt from `seen` and the spool.

    Raises StateError for one of a newer program, which must not be overwritten.
    """
    stored = read_json(checkpoint_path(home, key))
    if not isinstance(stored, dict):
        return None
    if stored.get("format", 0) > CHECKPOINT_FORMAT:
        raise StateError("checkpoint %s was written by a newer memhook" % key, "update memhook.py")
    try:
        return Checkpoint.from_json(stored)
    except (KeyError, TypeError, ValueError):
        return None


def write_checkpoint(home: Home, key: str, checkpoint: Checkpoint) -> None:
    """Not synced: what power loss takes is read from the transcript again, and `seen` keeps it from being taken twice."""
    checkpoint.updated_at = now()
    write_json(checkpoint_path(home, key), checkpoint.to_json(), durable=False)


# ---- seen


def line_hash(uuid: str) -> bytes:
    return bytes.fromhex(sha1_hex(uuid.encode())[:16])


def read_seen(home: Home, prefix: str) -> set[bytes]:
    """Hashes of the lines taken from the transcripts whose key starts so: one transcript, or a whole folder."""
    found: set[bytes] = set()
    for name in list_folder(home.path("seen")):
        if name.startswith(prefix):
            data = read_file(home.path("seen", name)) or b""
            found.update(data[at:at + 8] for at in range(0, len(data) - 7, 8))
    return found


# ---- reading


def read_lines(stream: Any, start: int, stop: Optional[int], final: bool) -> Iterator[tuple[bytes, int, int]]:
    """(line, start, end) of each line from byte `start`, one block in memory, reading nothing past byte `stop`.

    A line longer than LINE_BYTES comes as b"". The unterminated last line comes only if `final` and it is one whole object.
    """
    stream.seek(start)
    rest: list[bytes] = []  # blocks of a line that is not finished
    dropped = 0  # bytes of it that were too many to keep
    at = start
    while stop is None or at < stop:
        block = stream.read(BLOCK_BYTES if stop is None else min(BLOCK_BYTES, stop - at))
        if not block:
            break
        at += len(block)
        *whole, last = block.split(b"\n")
        if whole:
            whole[0] = b"".join(rest) + whole[0]
            rest = []
        for line in whole:
            end = start + dropped + len(line) + 1
            yield (b"" if dropped else line), start, end
            start, dropped = end, 0
        rest.append(last)
        if len(rest) * BLOCK_BYTES > LINE_BYTES:
            dropped, rest = dropped + sum(map(len, rest)), []
    line = b"".join(rest)
    if final and line and not dropped and is_whole(line):
        yield line, start, start + len(line)


# ---- taking


class Request:
    """What one capture is asked for."""

    __slots__ = ("path", "session", "cwd", "message", "final", "live", "wait_seconds", "off", "past", "client")

    def __init__(self, path: str, session: str = "", cwd: str = "", message: str = "", final: bool = False, live: bool = False,
                 wait_seconds: float = 0.0, off: bool = False, past: bool = False, client: Optional[list[Any]] = None) -> None:
        self.path = path  # the transcript; it may be missing
        self.session = session or os.path.basename(path).rpartition(".")[0]
        self.cwd = cwd  # where the session is now, for a message that no line places
        self.message = message  # Stop's last_assistant_message
        self.final = final  # the session is over: the tail is flushed
        self.live = live  # a hook, which has limits; the drain and import have none
        self.wait_seconds = wait_seconds  # for another capture of the same transcript
        self.off = off  # MEMHOOK_OFF is set
        self.past = past  # import: take also what was said before the consent or in a pause
        self.client = client  # the session's process, where a hook knows it


class Captured:
    """What one capture did."""

    __slots__ = ("busy", "segments", "turns", "repeats", "withheld", "skipped", "deferred", "bytes")

    def __init__(self, busy: bool = False) -> None:
        self.busy = busy  # another process captures this transcript now
        self.deferred = False  # a hook left lines to the drain
        self.segments = self.turns = self.repeats = self.withheld = self.skipped = self.bytes = 0


def regular_file(path: str) -> Optional[os.stat_result]:
    """The status of a regular file; None for anything else: a missing file, a folder, a FIFO that would block."""
    import stat
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def find_checkpoint(home: Home, key: str, request: Request) -> Checkpoint:
    """The checkpoint, or a new one; segment numbers go on where one was lost."""
    checkpoint = read_checkpoint(home, key)
    if checkpoint is None:
        checkpoint = Checkpoint(os.path.realpath(request.path), request.session)
        if os.path.getsize(home.path("seen", key)):
            checkpoint.segment = last_segment(home, key) + 1
    return checkpoint


def message_hash(message: str) -> str:
    """As Turn.whole: the hash of an answer, redacted, without the space around it."""
    return text_hash(clean(message).strip())


def within_quota(home: Home) -> bool:
    """Count one more segment queued by a hook; False where this person's hooks have queued enough for now.

    quota.json: the times of the last segments. Two hooks at once may both take the last place; a limit that
    is passed by one does no harm, and a lock that a hook waits for does.
    """
    limit, window = home.setting("quota_max"), home.setting("quota_window")
    stored = read_json(home.path("quota.json"))
    times = [at for at in stored if isinstance(at, (int, float)) and now() - window < at <= now()] if isinstance(stored, list) else []
    if len(times) >= limit:
        return False
    write_json(home.path("quota.json"), times + [round(now(), 3)], durable=False)
    return True


def make_segment(key: str, checkpoint: Checkpoint, chunk: Chunk) -> dict[str, Any]:
    """A segment as the spool holds it.

    {"format", "id", "title", "project", "session", "segment": n, "key", "generation", "transcript", "parser", "at": captured, "turns"}
    The id is over what the turns are and say, so the same turns cut again have it again; it is never recomputed.
    """
    turns = chunk.turns
    first = next((turn for turn in turns if turn.kind == "prompt"), turns[0])
    title = (first.text.strip().splitlines() or [""])[0][:80]
    content = "\n".join("%s %s\n%s" % (turn.key, turn.kind, turn.text) for turn in turns)
    project = turns[0].project
    return {
        "format": SEGMENT_FORMAT, "id": content_id(project, title, content), "title": title, "project": project, "session": checkpoint.session,
        "segment": checkpoint.segment, "key": key, "generation": checkpoint.generation, "transcript": redact_path(checkpoint.path),
        "parser": PARSER_VERSION, "at": round(now(), 3), "turns": [turn.to_json() for turn in turns],
    }


def segment_stem(segment: dict[str, Any]) -> str:
    """<time of the last turn, ms>-<key>-<segment>-<id8>: the same segment cut again replaces itself while it waits."""
    said_at = segment["turns"][-1][5] or segment["at"]
    return "%013d-%s-%05d-%s" % (said_at * 1000, segment["key"], segment["segment"], segment["id"][:8])


class Taking:
    """One capture of one transcript, while its lock is held."""

    def __init__(self, home: Home, consent: Consent, request: Request, key: str) -> None:
        self.home, self.consent, self.request, self.key = home, consent, request, key
        self.done = Captured()
        self.checkpoint = find_checkpoint(home, key, request)
        self.spool = Spool(home.path("spool"))
        self.changed = False  # the checkpoint on disk is out of date
        self.taken: list[bytes] = []  # hashes of lines whose last turn was queued by this capture
        self.answers: list[str] = []  # hashes of the answers read by it
        self.seen: dict[str, set[bytes]] = {}  # key prefix -> what `seen` holds for it, read when first needed
        self.off: dict[str, bool] = {}  # cwd -> whether it is switched off
        self.deadline = time.monotonic() + HOOK_SECONDS

    # the run

    def run(self) -> None:
        """Read, place, cut, queue."""
        self._note_session()
        status = regular_file(self.request.path)
        if self.checkpoint.own or not self._is_new(status):
            return
        self.changed = True
        self.checkpoint.deferred = False
        if status is not None:
            with open(self.request.path, "rb") as stream:
                self._align(stream, status)
                self._read(stream)
        if not self.checkpoint.own:
            self._settle_message()
            self._finish()
        self.done.deferred = self.checkpoint.deferred

    def commit(self, lock: Lock) -> None:
        """`seen` first, then the checkpoint: a line must not count as taken before it is in the spool, nor be taken twice."""
        if self.taken:
            write_all(lock.fd, b"".join(self.taken))
        if self.changed:
            write_checkpoint(self.home, self.key, self.checkpoint)

    def _note_session(self) -> None:
        """What a hook knows of its session: its process, and whether MEMHOOK_OFF is set for it."""
        checkpoint, request = self.checkpoint, self.request
        if request.live and (request.client, request.off) != (checkpoint.client, checkpoint.off):
            checkpoint.client, checkpoint.off = request.client, request.off
            self.changed = True

    def _is_new(self, status: Optional[os.stat_result]) -> bool:
        """The stat gate: new bytes, a new last message, an end not noted yet, or something that was put off."""
        checkpoint, request = self.checkpoint, self.request
        if checkpoint.deferred or (request.past and self._has_past()) or (request.final and checkpoint.state == "open"):
            return True
        if request.message and message_hash(request.message) != checkpoint.answered:
            return True
        return status is not None and (status.st_size, status.st_mtime_ns, status.st_ino) != (checkpoint.size, checkpoint.mtime_ns, checkpoint.inode)

    def _has_past(self) -> bool:
        return any(reason != "off" for _, _, reason in self.checkpoint.withheld)

    # the file

    def _align(self, stream: Any, status: os.stat_result) -> None:
        """Find out whether this is the file that the checkpoint speaks of; if not, it is a new generation, read from 0."""
        checkpoint = self.checkpoint
        head = stream.read(HEAD_BYTES)
        length, digest = checkpoint.head
        same = (status.st_ino == checkpoint.inode and status.st_size >= checkpoint.parsed
                and sha1_hex(head[:length]) == digest and self._foot(stream) == checkpoint.foot)
        if checkpoint.inode and (not same or (self.request.past and self._has_past())):
            self._begin_generation()
        checkpoint.head = [len(head), sha1_hex(head)]
        checkpoint.inode, checkpoint.size, checkpoint.mtime_ns = status.st_ino, status.st_size, status.st_mtime_ns

    def _foot(self, stream: Any) -> str:
        """SHA-1 of the bytes before the offset."""
        start = max(0, self.checkpoint.parsed - FOOT_BYTES)
        stream.seek(start)
        return sha1_hex(stream.read(self.checkpoint.parsed - start))

    def _begin_generation(self) -> None:
        """Queue what is open, then start over; `seen` keeps what was taken from being taken again."""
        checkpoint = self.checkpoint
        for chunk in plan_tail_segments(checkpoint.turns):
            self._queue(chunk)
        checkpoint.generation += 1
        checkpoint.parsed = checkpoint.queued = 0
        checkpoint.context, checkpoint.withheld = Context(), []
        checkpoint.born_at = now()

    def _read(self, stream: Any) -> None:
        """Take line after line, to the end or to the limits of a hook. The checkpoint always stands at the end of a line."""
        checkpoint, live = self.checkpoint, self.request.live
        stop = checkpoint.parsed + HOOK_BYTES if live else None
        for line, start, end in read_lines(stream, checkpoint.parsed, stop, self.request.final) if self._cut() else ():
            turns = parse_line(line, start, end, checkpoint.context)
            checkpoint.parsed = end
            self.done.bytes += end - start
            if turns and not (self._admit(turns) and self._cut()):
                break
            if live and time.monotonic() > self.deadline:
                break
        if live and not checkpoint.own:
            checkpoint.deferred = checkpoint.deferred or self._leaves_lines(stream)
        checkpoint.foot = self._foot(stream)
        self.done.skipped = checkpoint.context.skipped

    def _leaves_lines(self, stream: Any) -> bool:
        """Whether whole lines stay unread; an unfinished last line is nobody's yet."""
        left = self.checkpoint.size - self.checkpoint.parsed
        if left <= 0 or left > BLOCK_BYTES:
            return left > 0
        stream.seek(self.checkpoint.parsed)
        return b"\n" in stream.read(left)

    # the turns

    def _admit(self, turns: list[Turn]) -> bool:
        """Make the turns of one line open ones, but for those that are here already or not ours to take; False: read no more."""
        checkpoint = self.checkpoint
        if checkpoint.own is None and self._is_own(turns):
            checkpoint.own, checkpoint.turns = True, []
            return False
        if self._is_repeat(turns[0]):
            self.done.repeats += 1
            return True
        turns = [turn for turn in turns if not self._withhold(turn)]
        for turn in self._not_early(turns):
            self._place(turn)
            checkpoint.turns.append(turn)
            checkpoint.newest_at = max(checkpoint.newest_at, turn.at or 0.0)
            self.done.turns += 1
        return True

    def _is_own(self, turns: list[Turn]) -> bool:
        """Whether this is a session of our own summariser: its first prompt carries our mark, or it runs in our home."""
        root = os.path.join(os.path.realpath(self.home.root), "")
        for turn in turns:
            if turn.kind == "prompt":
                self.checkpoint.own = False
            cwd = turn.cwd or self.request.cwd
            if (turn.kind == "prompt" and turn.text.startswith(CHILD_MARK)) or (cwd and os.path.join(os.path.realpath(cwd), "").startswith(root)):
                return True
        return False

    def _is_repeat(self, turn: Turn) -> bool:
        """Whether the line was taken before: copied history of a fork, history that a compaction appended again.

        A line newer than everything taken cannot have been; one older than this checkpoint may have come from any
        transcript of the folder.
        """
        checkpoint = self.checkpoint
        if turn.at is not None and turn.at > checkpoint.newest_at and turn.at > checkpoint.born_at:
            return False
        if any(turn.line == other.line for other in checkpoint.turns):
            return True
        prefix = self.key if turn.at is not None and turn.at > checkpoint.born_at else self.key[:8]
        if prefix not in self.seen:
            self.seen[prefix] = read_seen(self.home, prefix)
        digest = line_hash(turn.line)
        return digest in self.seen[prefix] or digest in self.taken

    def _withhold(self, turn: Turn) -> bool:
        """Record the turn as withheld if it is not ours to take; -> whether it is."""
        past = self.request.past
        reason = "off" if self._is_off(turn.cwd or self.request.cwd) else "" if past else self.consent.covers(turn.at)
        if reason:
            self._record_withheld(turn, reason)
        return bool(reason)

    def _is_off(self, cwd: str) -> bool:
        if cwd not in self.off:
            self.off[cwd] = self.checkpoint.off or (bool(cwd) and switched_off(cwd))
        return self.off[cwd]

    def _record_withheld(self, turn: Turn, reason: str) -> None:
        """Add [start, end, reason], or prolong the last range if nothing was taken since."""
        checkpoint = self.checkpoint
        taken_to = checkpoint.turns[-1].end if checkpoint.turns else checkpoint.queued
        last = checkpoint.withheld[-1] if checkpoint.withheld else None
        if last and last[2] == reason and taken_to <= last[0]:
            last[1] = turn.end
        else:
            checkpoint.withheld.append([turn.start, turn.end, reason])
        self.done.withheld += 1

    def _place(self, turn: Turn) -> None:
        """Give the turn its project, that of its own cwd."""
        turn.cwd = turn.cwd or redact_path(self.request.cwd)
        projects = self.checkpoint.projects
        if turn.cwd not in projects:
            separate = self.home.setting("worktrees") == "separate"
            projects[turn.cwd] = redact_path(project_key(turn.cwd, separate)) if turn.cwd else "unknown"
        turn.project = projects[turn.cwd]

    # the last message

    def _not_early(self, turns: list[Turn]) -> list[Turn]:
        """The turns of a line without an answer that became a turn before its line came; notes what was answered."""
        checkpoint = self.checkpoint
        early = [whole for whole in dict.fromkeys(turn.whole for turn in turns) if whole in checkpoint.early]
        for whole in early:
            checkpoint.early.remove(whole)
        for turn in turns:
            if turn.kind == "prompt":
                checkpoint.answered = ""
            elif turn.whole:
                checkpoint.answered = turn.whole
                self.answers.append(turn.whole)
            if checkpoint.pending and checkpoint.pending[0] == turn.whole:
                checkpoint.pending = None
        return [turn for turn in turns if turn.whole not in early]

    def _settle_message(self) -> None:
        """Keep Stop's last message until its line comes: the hook may run before the client has written it."""
        checkpoint, message = self.checkpoint, clean(self.request.message)
        digest = text_hash(message.strip())
        if not message.strip() or digest == checkpoint.answered or self._is_off(self.request.cwd):
            return
        checkpoint.answered = digest
        if digest not in self.answers:
            self._keep_pending()  # an older one: its line did not come before a newer message, so it will not
            checkpoint.pending = [digest, message]

    def _keep_pending(self) -> None:
        """Make the pending message a turn. Its hash stays, so that a line coming later still is not taken twice."""
        checkpoint = self.checkpoint
        if checkpoint.pending is None:
            return
        digest, message = checkpoint.pending
        for number, part in enumerate(split_text(message)):
            key = "m%s-%d/%d" % (digest, checkpoint.parsed, number)
            turn = Turn(key, "answer", part, checkpoint.parsed, checkpoint.parsed, checkpoint.context.at, checkpoint.context.cwd, checkpoint.context.branch)
            self._place(turn)
            checkpoint.turns.append(turn)
        checkpoint.early.append(digest)
        checkpoint.pending = None

    # the segments

    def _cut(self) -> bool:
        """Queue every full segment; False where a hook must leave the rest to the drain."""
        checkpoint = self.checkpoint
        while True:
            chunk = next_chunk(checkpoint.turns)
            if chunk is None:
                return True
            if self.request.live and not self._may_queue():
                checkpoint.deferred = True
                return False
            self._queue(chunk)

    def _may_queue(self) -> bool:
        """A hook's limits: so many segments at once, and so many in a minute over all sessions."""
        if self.done.segments >= HOOK_SEGMENTS:
            return False
        allowed = within_quota(self.home)
        if not allowed:
            log(self.home, "deferred", transcript=self.key, reason="quota")
        return allowed

    def _queue(self, chunk: Chunk) -> None:
        """Put one segment into the spool. When this returns it is durable, whatever becomes of us."""
        checkpoint = self.checkpoint
        segment = make_segment(self.key, checkpoint, chunk)
        data = json.dumps(segment, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        self.spool.put(segment_stem(segment), data)
        rest = checkpoint.turns[len(chunk.turns):]
        unfinished = rest[0].line if rest else ""
        self.taken += [line_hash(line) for line in dict.fromkeys(turn.line for turn in chunk.turns) if line != unfinished]
        checkpoint.turns, checkpoint.queued = rest, chunk.end_byte
        checkpoint.segment += 1
        self.done.segments += 1

    def _finish(self) -> None:
        """At the end of a session: the message that never came, prompts that never ran, the tail."""
        checkpoint = self.checkpoint
        if not self.request.final or checkpoint.deferred:
            checkpoint.state = "open" if self.request.live else checkpoint.state
            return
        self._keep_pending()
        self._keep_queued()
        for chunk in plan_tail_segments(checkpoint.turns):
            if self.request.live and not self._may_queue():
                checkpoint.deferred = True
                return
            self._queue(chunk)
        checkpoint.state = "closed"

    def _keep_queued(self) -> None:
        """Prompts that were typed ahead and never came to their turn: they were said."""
        checkpoint = self.checkpoint
        for key, text, start, end, at in checkpoint.context.queue:
            for number, part in enumerate(split_text(text)):
                turn = Turn("%s/%d" % (key, number), "prompt", part, start, end, at, checkpoint.context.cwd, checkpoint.context.branch)
                if not self._withhold(turn):
                    self._place(turn)
                    checkpoint.turns.append(turn)
        checkpoint.context.queue = []


def capture(home: Home, consent: Consent, request: Request) -> Captured:
    """Queue what is new in a transcript. Safe to call again, and from several processes: one at a time gets the lock."""
    key = transcript_key(request.path)
    with Lock(home.path("seen", key)) as lock:
        if not lock.acquire(request.wait_seconds):
            return Captured(busy=True)
        taking = Taking(home, consent, request, key)
        taking.run()
        taking.commit(lock)
    return taking.done


# ==== 10. Memory ==================================================================
# Job:      a segment and its digest as one Markdown file, and back; the folder of these files.
# Promise:  parse_memory(render_memory(...)) has the same turns, whatever they hold; write() replaces nothing a person changed.
# Not:      an index. Markdown is the truth; what a person edits or deletes stays edited or deleted.
# Format:   front matter whose values are JSON (so it is YAML too), "# Title", digest sections, "## Transcript": each turn is
#           a line <!-- turn KEY KIND TIME START-END --> and its text; a text line that looks like one gets a backslash.

_TRANSCRIPT = "## Transcript"
_MARKER = r"<!-- turn (\S+) (\S+) (\S+) (\d+)-(\d+) -->"


class Memory:
    """One memory file, taken apart."""

    __slots__ = ("front", "digest", "turns")

    def __init__(self, front: dict[str, Any], digest: str, turns: list[Turn]) -> None:
        self.front = front  # {"id", "project", "session", "segment", "from", "to", "branch", "cwd", "transcript", "bytes", ...}
        self.digest = digest  # Markdown between the front matter and the transcript
        self.turns = turns


def _render_turn(turn: Turn) -> str:
    body = re.sub(r"(?m)^(\\*<!-- turn )", r"\\\1", turn.text)
    return "<!-- turn %s %s %s %d-%d -->\n%s\n" % (turn.key, turn.kind, iso(turn.at), turn.start, turn.end, body)


def render_memory(front: dict[str, Any], digest: str, turns: list[Turn]) -> bytes:
    """The file's bytes: deterministic, UTF-8, lines ended by newlines only."""
    head = "".join("%s: %s\n" % (name, json.dumps(value, ensure_ascii=False)) for name, value in front.items())
    lines = ["\\" + line if line.rstrip() == _TRANSCRIPT else line for line in digest.strip("\n").split("\n")]
    text = "---\n%s---\n%s\n\n%s\n" % (head, "\n".join(lines), _TRANSCRIPT) + "".join(_render_turn(turn) for turn in turns)
    return text.encode("utf-8", "replace")


def _parse_front(text: str) -> tuple[dict[str, Any], str]:
    match = re.match(r"---\r?\n(.*?\n)---\r?\n", text, re.S)
    if not match:
        return {}, text
    front: dict[str, Any] = {}
    for line in match.group(1).split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            try:
                front[name.strip()] = json.loads(value)
            except ValueError:
                front[name.strip()] = value.strip()  # a person's YAML
    return front, text[match.end():]


def _parse_turns(text: str, front: dict[str, Any]) -> list[Turn]:
    turns = []
    marks = list(re.finditer("(?m)^%s\n" % _MARKER, text))
    for number, mark in enumerate(marks):
        stop = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        body = text[mark.end():stop]
        body = body[:-1] if body.endswith("\n") else body
        key, kind, said_at, start, end = mark.groups()
        turns.append(Turn(key, kind, re.sub(r"(?m)^\\(\\*<!-- turn )", r"\1", body), int(start), int(end), parse_time(said_at),
                          str(front.get("cwd", "")), str(front.get("branch", "")), str(front.get("project", ""))))
    return turns


def parse_memory(data: bytes) -> Memory:
    """Take a memory file, or any Markdown a person put into the store, apart. Never fails: what is not there is empty."""
    text = data.decode("utf-8", "replace")
    front, text = _parse_front(text)
    match = re.search(r"(?m)^## Transcript\n", text)
    if not match:
        return Memory(front, text, [])
    digest = re.sub(r"(?m)^\\(## Transcript[ \t]*)$", r"\1", text[:match.start()])
    return Memory(front, digest, _parse_turns(text[match.end():], front))


def touched_files(turns: list[Turn]) -> list[str]:
    """The files that were written or edited, in order."""
    found = [re.match(r"(?:Edit|Write|MultiEdit|NotebookEdit): (.+)", turn.text) for turn in turns if turn.kind == "tool"]
    return list(dict.fromkeys(match.group(1) for match in found if match))


def front_matter(segment: dict[str, Any], turns: list[Turn], distiller: str) -> dict[str, Any]:
    """The front matter of a segment's memory."""
    said = [turn.at for turn in turns if turn.at is not None]
    return {
        "id": segment["id"], "project": segment["project"], "session": segment["session"], "segment": segment["segment"],
        "from": iso(min(said) if said else None), "to": iso(max(said) if said else None), "branch": turns[0].branch, "cwd": turns[0].cwd,
        "transcript": segment["transcript"], "bytes": [turns[0].start, turns[-1].end], "distiller": distiller,
        "files": touched_files(turns), "at": iso(segment["at"]), "tenant": segment["project"],
    }


def slug(text: str, limit: int = 48) -> str:
    """Lower-case ASCII words and hyphens: safe in any file system."""
    import unicodedata
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    return "-".join(words)[:limit].strip("-") or "session"


def memory_path(home: Home, front: dict[str, Any], title: str) -> str:
    """memories/<project>/<YYYY-MM>/<date>-<slug>-<id8>.md; the project's folder is readable and unique."""
    project = front["project"]
    folder = "%s-%s" % (slug("-".join(re.split(r"[\\/]", project.rstrip("/"))[-2:]), 40), sha1_hex(project.encode("utf-8", "replace"))[:6])
    day = (front["from"] if front["from"] != "-" else front["at"])[:10]
    return home.path("memories", folder, day[:7], "%s-%s-%s.md" % (day, slug(title), front["id"][:8]))


def file_hash(data: bytes) -> str:
    """SHA-256 of a file's bytes, in hexadecimal: what a receipt says was written."""
    import hashlib
    return hashlib.sha256(data).hexdigest()


def memory_files(home: Home) -> Iterator[str]:
    """The path of every Markdown file in the store, in no order; links that lead out of it are left out."""
    root = home.path("memories")
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith(".md") and not name.startswith(".") and (not os.path.islink(path) or os.path.realpath(path).startswith(os.path.realpath(root) + os.sep)):
                yield path


def read_tombstones(home: Home) -> set[str]:
    """Hashes of turns and uuids of lines that a person had forgotten: {"turns": [...], "lines": [...]} a line."""
    found: set[str] = set()
    for line in (read_file(home.path("tombstones.jsonl")) or b"").split(b"\n"):
        try:
            stored = json.loads(line) if line else {}
        except ValueError:
            continue
        if isinstance(stored, dict):
            found.update(str(name) for name in list(stored.get("turns") or []) + list(stored.get("lines") or []))
    return found


# ==== 11. Distil ==================================================================
# Job:      say in a page what happened in a segment: asked, decided, tried, failed, mended, left open.
# Promise:  deterministic, offline; every sentence was said, or names a file or a command of a tool line.
# Not:      understanding. It finds sentences by what they contain, in the languages of the table.
# Calls:    distil(turns, title) -> Digest; render_digest(digest) -> Markdown

_ITEMS = 8  # of a list: what a person reads at a glance
_ITEM_CHARS = 280
_CUES = {  # what a sentence of each kind contains; one line a language: en, de, fr, es/pt, it, ru, zh, ja, ko
    "decision": r"\b(?:decided?|decision|(?:go|going|went) with|let'?s (?:use|go|keep|stick|leave|make|do)|instead of|rather than|chose|opted?|settled on|agreed|i'?ll use|we'?ll (?:use|keep|go)|will use|sticking|stick with|trade-?off|reject(?:ed)?|prefer(?:red)?)\b"
    r"|\b(?:entschieden|entscheid\w+|stattdessen|statt|wir (?:nehmen|bleiben|verwenden)|lieber)\b|\b(?:décid\w+|choisi\w*|plutôt que|au lieu de|on (?:garde|prend|utilise))\b"
    r"|\b(?:decid\w+|elegi\w+|escolh\w+|en (?:vez|lugar) de|em vez de|usaremos|vamos (?:a usar|usar))\b|\b(?:deciso|scelto|invece di|useremo)\b|(?:решил|решено|выбра|вместо|будем использовать)"
    r"|(?:决定|決定|选择|選擇|采用|採用|改用|而不是|就用)|(?:採用し|にしました|にします|に決め|の代わりに|することにし)|(?:결정|선택|대신|하기로|사용하겠)",
    "fix": r"\b(?:fix(?:ed|es)?|(?:cause|problem|issue|bug|culprit|reason|error) (?:was|is|were)|root cause|caused by|due to|turn(?:s|ed) out|resolved|solved|now (?:pass\w*|works?|green)|works now|corrected|mended|the fix)\b"
    r"|\b(?:behoben|ursache|lag daran|liegt daran|gelöst|korrigiert|repariert|wegen)\b|\b(?:corrigé\w*|résolu\w*|la cause|venait de|à cause)\b|\b(?:corregid\w+|corrigid\w+|solucion\w+|resolvid\w+|resuelt\w+|la causa|a causa|se debía|debido)\b"
    r"|\b(?:risolto|corretto|la causa|dovuto)\b|(?:исправ|причин|решен[оа]|из-за)|(?:修复|修復|原因|解决|解決|修正|由于|改好)|(?:直し|直り|修正し|原因|解決)|(?:수정|원인|해결|고쳤)",
    "open": r"\b(?:to-?do|next steps?|follow-?ups?|still (?:need\w*|open|missing|to do|fail\w*|unclear|left)|not (?:yet|done)|yet to|remain(?:s|ing)|left (?:to do|open|for)|haven'?t|hasn'?t|unresolved|open question|blocked|pending|for later|out of scope|deferred|tomorrow|want me to|should i|shall i|would you like)\b"
    r"|\b(?:noch (?:nicht|offen|zu)|offen|nächste[rsn]? schritt\w*|fehlt noch|später|soll ich)\b|\b(?:reste (?:à|encore)|il reste|pas encore|prochaine étape|à faire|plus tard)\b|\b(?:pendiente\w*|falta\w*|todavía no|aún no|ainda (?:não|falta)|próximo paso|próximos? passos?|más tarde)\b"
    r"|\b(?:da fare|manca ancora|non ancora|prossimo passo)\b|(?:осталось|ещё не|еще не|следующий шаг|потом|не сделано)|(?:还没|還沒|尚未|待办|待辦|下一步|剩下|未完成|之后再|以后再|後で)|(?:まだ|残って|次は|次の|未対応|あとで|今後)|(?:아직|남은|다음|나중에|미완)",
    "pattern": r"\b(?:always|never|from now on|convention|rule of thumb|make sure|remember (?:to|that)|must(?: not|n'?t)?|should (?:always|never)|in this (?:repo\w*|project|codebase)|do not ever|don'?t ever|by convention|every time)\b"
    r"|\b(?:immer|niemals|nie|künftig|ab jetzt|konvention|regel)\b|\b(?:toujours|jamais|désormais|convention|règle)\b|\b(?:siempre|nunca|sempre|a partir de ahora|a partir de agora|convención|regla|regra)\b|\b(?:mai|d'ora in poi|regola)\b"
    r"|(?:всегда|никогда|правило|отныне)|(?:总是|總是|永远|从不|必须|必須|约定|規則|规则|以后都|今后)|(?:必ず|常に|決して|今後は|ルール|規約)|(?:항상|절대|반드시|규칙|앞으로)",
    "problem": r"\b(?:error|exception|fail(?:s|ed|ing|ure|ures)?|crash\w*|broken|breaks?|bug|traceback|panic\w*|time(?:s|d)? ?out|wrong|doesn'?t work|not work\w*|leak\w*|deadlock\w*|race condition|flaky|regression|hangs?|segfault|refused|denied|missing|corrupt\w*)\b"
    r"|\b(?:fehler|schlägt fehl|kaputt|abgestürzt|funktioniert nicht|falsch)\b|\b(?:erreur|échou\w+|plante|cassé\w*|ne (?:marche|fonctionne) pas)\b|\b(?:fall[aoó]\w*|erro|rot[oa]|no funciona|não funciona|falha\w*)\b|\b(?:errore|fallit\w+|non funziona|rotto)\b"
    r"|(?:ошибк|падает|сломал|не работает|упал)|(?:报错|報錯|错误|錯誤|失败|失敗|崩溃|崩潰|异常|超时|不工作|坏了)|(?:エラー|失敗|壊れ|動かない|落ち|例外)|(?:오류|에러|실패|깨|안 ?되|예외)",
}
_HEADINGS = {  # what a heading or a line before a list contains for its items to be of a kind
    "decision": r"(?i)decision|decided|chosen|entscheid|décision|decision|решени|决定|決定|결정",
    "open": r"(?i)next step|remaining|to-?do|open|follow-?up|left|not done|later|offen|reste|pendiente|pendente|falta|да(?:льше|лее)|осталось|下一步|待办|未完成|残り|次|남은|다음",
    "fix": r"(?i)\bfix|solution|resolution|root cause|cause|lösung|ursache|solución|causa|причин|原因|解决|修复|해결|원인",
    "pattern": r"(?i)convention|rule|pattern|guideline|konvention|regel|règle|regla|правил|规则|约定|規約|규칙",
}
_ERROR_LINE = r"(?i)(?:\b\w*(?:error|exception)\b ?[:(\[]|\bpanicked at\b|\bfatal:|\bFAILED\b|\btraceback\b|\berrno\b|\berror\[?[A-Z]{1,4}\d{2,5}\b|\bERR[_!]\w*|\bsegmentation fault\b|\bcannot find\b|\bnot found: |\bexit (?:code|status) [1-9])"
_LOOKS_AROUND = r"(?:cd [^&;|]*&& *)?(?:ls|cat|head|tail|pwd|echo|cd|which|find|grep|rg|wc|tree|stat|file|git (?:status|log|diff|show|branch))\b"


class Digest:
    """What a memory says above its transcript. Every list holds single lines."""

    __slots__ = ("title", "summary", "exchanges", "decisions", "problems", "open_threads", "patterns", "files", "commands", "errors")

    def __init__(self, title: str) -> None:
        self.title = title
        self.summary = ""
        self.exchanges: list[str] = []  # what was asked, and what came of it
        self.decisions: list[str] = []
        self.problems: list[str] = []  # problem → resolution
        self.open_threads: list[str] = []
        self.patterns: list[str] = []  # rules stated for the future
        self.files: list[str] = []
        self.commands: list[str] = []  # with their outcome
        self.errors: list[str] = []  # verbatim


class Exchange:
    """A prompt and all that followed until the next one; the first of a segment may have no prompt."""

    __slots__ = ("prompt", "turns")

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.turns: list[Turn] = []

    @property
    def answers(self) -> list[str]:
        """What Claude said, each answer whole: the parts of a long one stand under one line's uuid."""
        whole: dict[str, str] = {}
        for turn in self.turns:
            if turn.kind in ("answer", "plan"):
                whole[turn.line] = whole.get(turn.line, "") + turn.text
        return list(whole.values())


def _before_rewind(exchanges: list[Exchange], note: str) -> list[Exchange]:
    for number in range(len(exchanges) - 1, -1, -1):
        if exchanges[number].prompt and note.endswith(exchanges[number].prompt.strip()[:60] + "]"):
            return exchanges[:number]
    return exchanges


def split_exchanges(turns: list[Turn]) -> list[Exchange]:
    """Group turns by the prompts that began them; what was said on a branch that a rewind left is not among them."""
    exchanges: list[Exchange] = []
    for turn in turns:
        if turn.kind == "rewind":
            exchanges = _before_rewind(exchanges, turn.text)
        elif turn.kind == "prompt" and (not exchanges or exchanges[-1].turns or not exchanges[-1].prompt):
            exchanges.append(Exchange(turn.text))
        elif turn.kind == "prompt":
            exchanges[-1].prompt += "\n" + turn.text  # a part of a long prompt, or said at once after it
        else:
            if not exchanges:
                exchanges.append(Exchange(""))
            exchanges[-1].turns.append(turn)
    return exchanges


def split_sentences(line: str) -> list[str]:
    """Sentences of one line: split after .!? before a space, and after their full-width forms."""
    parts = re.split(r"(?<=[.!?])\s+(?=[\"'“(\[]?[^\s\da-z])|(?<=[。！？])", line)
    return [part.strip() for part in parts if part.strip()]


def statements(text: str) -> Iterator[tuple[str, str]]:
    """(kind that a heading gives, sentence) for each sentence outside code; the kind is "" where no heading speaks."""
    kind, fenced = "", False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            continue
        plain = re.sub(r"[*_`]{2,}|^\s*(?:#{1,6}|>|[-*+•]|\d{1,2}[.)]|\[[ xX]\])\s+", "", line).strip()
        if fenced or not plain or plain.startswith("|"):
            kind = kind if fenced or plain else ""
            continue
        listed = re.match(r"\s*(?:[-*+•]|\d{1,2}[.)])\s", line)
        if re.match(r"\s*#{1,6}\s|\s*\*\*[^*]+\*\*:?\s*$", line) or plain.endswith((":", "：")):
            kind = next((name for name, pattern in _HEADINGS.items() if re.search(pattern, plain)), "")
            if not listed and len(plain) < 60:
                continue
        for sentence in split_sentences(plain):
            yield (kind if listed else ""), sentence


def gist(text: str, limit: int) -> str:
    """The first sentences of a text, at most `limit` characters, on one line, without code blocks and markup."""
    said = " ".join(sentence for _, sentence in statements(text)) or " ".join(text.split())
    if len(said) <= limit:
        return said
    cut = max(said.rfind(mark, 0, limit) for mark in (". ", "! ", "? ", "。", "; "))
    return said[:cut + 1] if cut > limit // 2 else said[:limit].rsplit(" ", 1)[0] + " …"


def one_line(text: str, limit: int = _ITEM_CHARS) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[:limit].rsplit(" ", 1)[0] + " …"


def _unique(items: list[str], limit: int) -> list[str]:
    """The first and the last of the items, without repeats: how it began and how it ended matter most."""
    kept = list({re.sub(r"\W+", " ", item).lower(): item for item in items}.values())
    return kept if len(kept) <= limit else kept[:limit // 2] + kept[-(limit - limit // 2):]


def _outcome(answers: list[str], limit: int) -> str:
    """The gist of the last answer that says something: what a series of steps came to."""
    for answer in reversed(answers):
        said = gist(answer, limit)
        if len(said) > 20 or answer is answers[0]:
            return said
    return ""


def _summary(prompts: list[str], answers: list[str]) -> str:
    asked = gist(prompts[0], 200) if prompts else ""
    ended = _outcome(answers, 320)
    return one_line(" → ".join(part for part in (asked, ended) if part), 560)


def _outline(exchange: Exchange) -> str:
    outcome = _outcome(exchange.answers, 240) or ("(interrupted)" if any(turn.kind == "interrupt" for turn in exchange.turns) else "(no answer)")
    return "**%s** → %s" % (one_line(gist(exchange.prompt, 160), 170), outcome)


def _find(exchanges: list[Exchange], kind: str) -> list[str]:
    """Sentences of a kind, of prompts, answers, plans and replies."""
    found = []
    for exchange in exchanges:
        texts = [exchange.prompt] + [turn.text for turn in exchange.turns if turn.kind in ("answer", "plan", "reply")]
        for heading, sentence in (pair for text in texts for pair in statements(text)):
            if heading == kind or (not heading and re.search("(?i)" + _CUES[kind], sentence)):
                found.append(one_line(sentence))
    return _unique([item for item in found if len(item) > 12], _ITEMS)


def _open_threads(exchanges: list[Exchange]) -> list[str]:
    """What was said to be left, of the last exchanges first of all, and a prompt that got no answer."""
    found = _find(exchanges[-3:], "open") or _find(exchanges, "open")
    if exchanges and exchanges[-1].prompt and not exchanges[-1].answers:
        found.append("Unanswered: " + one_line(exchanges[-1].prompt))
    return found[-_ITEMS:]


def _problems(exchanges: list[Exchange]) -> list[str]:
    """Problem → resolution: what was reported or failed, with the next sentence that tells of a cause or a fix."""
    found = []
    for number, exchange in enumerate(exchanges):
        reported = [sentence for _, sentence in statements(exchange.prompt) if re.search("(?i)" + _CUES["problem"], sentence)]
        failed = [turn.text.partition("\n")[2] for turn in exchange.turns if turn.kind == "error"]
        problem = reported[0] if reported else one_line(failed[0], 160) if failed else ""
        if not problem:
            continue
        later = [answer for other in exchanges[number:number + 2] for answer in other.answers]
        fixes = [sentence for answer in later for heading, sentence in statements(answer) if heading == "fix" or re.search("(?i)" + _CUES["fix"], sentence)]
        found.append("%s → %s" % (one_line(problem), one_line(" ".join(dict.fromkeys(fixes[:1] + fixes[-1:]))) if fixes else "no resolution was said"))
    return _unique(found, _ITEMS)


def _commands(turns: list[Turn]) -> list[str]:
    """Commands that were run, each once, with how it ended the last time and how often it ran."""
    runs: dict[str, list[str]] = {}
    for turn in turns:
        if turn.kind == "tool" and turn.text.startswith("Bash: "):
            runs.setdefault(turn.text[6:].split("  # ")[0], []).append("ok")
        elif turn.kind == "shell":
            runs.setdefault(turn.text[2:], []).append("run by the person")
        elif turn.kind == "error":
            label, _, text = turn.text.partition("\n")
            command = label[6:].split("  # ")[0]
            if command in runs:
                runs[command][-1] = "failed: " + one_line(text, 100)
    telling = {command: ends for command, ends in runs.items() if len(runs) <= 6 or not re.match(_LOOKS_AROUND, command)}
    return ["`%s` → %s%s" % (one_line(command, 160), ends[-1], " (%d times)" % len(ends) if len(ends) > 1 else "") for command, ends in list(telling.items())[-15:]]


def _errors(exchanges: list[Exchange]) -> list[str]:
    """Error messages as they stood: of tools that failed, and those that were quoted."""
    found = []
    for exchange in exchanges:
        for turn in exchange.turns:
            if turn.kind == "error":
                found.append(one_line(turn.text.partition("\n")[2]))
        for text in [exchange.prompt] + exchange.answers:
            found += [one_line(line.strip(" `*")) for line in text.split("\n") if len(line) < 400 and re.search(_ERROR_LINE, line)]
    return _unique([item for item in found if item], _ITEMS)


def distil(turns: list[Turn], title: str) -> Digest:
    """The offline digest. `title`: that of the segment, used where no prompt gives a better one."""
    exchanges = split_exchanges(turns)
    prompts = [exchange.prompt for exchange in exchanges if exchange.prompt]
    digest = Digest(one_line(gist(prompts[0], 80) if prompts else title, 90) or "Untitled")
    answers = [answer for exchange in exchanges for answer in exchange.answers]
    digest.summary = _summary(prompts, answers)
    digest.exchanges = _unique([_outline(exchange) for exchange in exchanges if exchange.prompt], 12)
    kept = [turn for exchange in exchanges for turn in exchange.turns]
    digest.decisions = _find(exchanges, "decision")
    digest.patterns = _find(exchanges, "pattern")
    digest.open_threads = _open_threads(exchanges)
    digest.problems = _problems(exchanges)
    digest.files = touched_files(kept)[:20]
    digest.commands = _commands(kept)
    digest.errors = _errors(exchanges)
    return digest


def render_digest(digest: Digest) -> str:
    """The Markdown of a digest; sections without content are left out."""
    parts = ["# " + digest.title, digest.summary]
    for heading, items in (
        ("What happened", digest.exchanges), ("Decisions", digest.decisions), ("Problems solved", digest.problems), ("Open threads", digest.open_threads),
        ("Patterns", digest.patterns), ("Files", ["`%s`" % path for path in digest.files]), ("Commands", digest.commands), ("Errors", digest.errors),
    ):
        if items:
            parts.append("## %s\n\n%s" % (heading, "\n".join("- " + item for item in items)))
    return "\n\n".join(part for part in parts if part)


# ==== 12. Drain ===================================================================
# Job:      the only loop: capture what hooks could not, then turn every waiting segment into a memory.
# Promise:  each step may be killed and run again; a segment leaves the spool only after its memory and its receipt are durable.
# Not:      never two at once, never a wait for a model; a bad item delays nobody.
# Calls:    start_drain() from hooks; drain() in the detached process, or at a terminal
# On error: Poison buries the item; a full or read-only disk ends the run and leaves everything where it is; else later again.


def _start_on_windows(command: list[str], environ: dict[str, str]) -> None:
    import subprocess
    flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP  # DETACHED_PROCESS would flash a console window
    subprocess.Popen(command, env=environ, creationflags=flags, close_fds=True,
                     stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_drain(home: Home) -> None:
    """Start `memhook drain` detached: it outlives this hook, its process group and the tree under it.

    Double fork: when a hook times out, the client kills its whole tree, children in new sessions included; a process whose
    parent is init is not in it. The streams go to the null device: a client waits while one of them is open.
    """
    if home.environ.get("MEMHOOK_AUTODRAIN") == "0":
        return
    command = [sys.executable, "-I", "-S", "-c", BOOT, os.path.abspath(__file__), "drain"]
    environ = {**home.environ, "MEMHOOK_HOME": home.root, "MEMHOOK_BACKGROUND": "1"}
    if os.name == "nt":
        _start_on_windows(command, environ)
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork() == 0:
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.chdir("/")
            os.execve(command[0], command, environ)
    finally:
        os._exit(0)


class Drained:
    """What one drain did."""

    __slots__ = ("stored", "duplicate", "empty", "forgotten", "retried", "dead", "left")

    def __init__(self) -> None:
        self.stored = self.duplicate = self.empty = self.forgotten = self.retried = self.dead = self.left = 0

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


# ---- what hooks could not capture


def client_process(pid: int) -> list[Any]:
    """[pid, start time]: the start time tells the process from a later one with the same number; "" where unknown."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            return [pid, stream.read().rpartition(b")")[2].split()[19].decode()]  # proc(5): field 22
    except (OSError, IndexError):
        return [pid, ""]


def client_gone(client: list[Any]) -> Optional[bool]:
    """Whether the session's process has ended; None where that cannot be known."""
    pid, started = client
    if not pid or os.name == "nt":
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return None
    return bool(started) and client_process(pid)[1] != started


def transcripts(home: Home) -> Iterator[str]:
    """Every session transcript under Claude's projects folder; subagents' are in folders below and are not among them."""
    root = os.path.join(home.config, "projects")
    for project in list_folder(root):
        for name in list_folder(os.path.join(root, project)):
            if name.endswith(".jsonl") and not name.startswith("agent-"):
                yield os.path.join(root, project, name)


def cleanup_seconds(home: Home) -> float:
    """How old a transcript gets before Claude deletes it: cleanupPeriodDays of settings.json, 30 days by default."""
    settings = read_json(os.path.join(home.config, "settings.json"))
    days = settings.get("cleanupPeriodDays", 30) if isinstance(settings, dict) else 30
    return 86_400.0 * (days if isinstance(days, (int, float)) and days > 0 else 30)


def _is_dead(checkpoint: Checkpoint, status: Optional[os.stat_result]) -> bool:
    """Whether a session without a SessionEnd is over: its process is gone, or is not known and nothing came for long."""
    gone = client_gone(checkpoint.client)
    if gone is not None:
        return gone
    latest = max(checkpoint.updated_at, status.st_mtime if status else 0.0)
    return latest < now() - DEAD_SECONDS


def _forget_checkpoint(home: Home, key: str, checkpoint: Checkpoint) -> bool:
    """Remove the checkpoint of a transcript that is gone, if nothing of it waits: at once if nothing was taken, else after long."""
    if checkpoint.turns or checkpoint.pending or not _is_dead(checkpoint, None):
        return False
    if (checkpoint.segment or checkpoint.parsed) and checkpoint.updated_at > now() - FORGET_CHECKPOINT_SECONDS:
        return False
    with Lock(home.path("seen", key)) as lock:
        if lock.acquire():
            remove_file(checkpoint_path(home, key))
            remove_file(lock.path)
    return True


def _is_disk_trouble(error: BaseException) -> bool:
    """Whether an error is the disk's, not an item's: nothing else would fare better now."""
    import errno
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


def _capture_late(home: Home, consent: Consent, request: Request) -> None:
    try:
        done = capture(home, consent, request)
    except (OSError, StateError) as error:
        log(home, "capture-failed", transcript=transcript_key(request.path), error=type(error).__name__)
        if _is_disk_trouble(error):
            raise
    else:
        if done.segments:
            log(home, "caught-up", transcript=transcript_key(request.path), segments=done.segments, turns=done.turns)


def _catch_up_known(home: Home, consent: Consent, key: str) -> None:
    try:
        checkpoint = read_checkpoint(home, key)
    except StateError as error:
        log(home, "skipped", transcript=key, reason=str(error))
        return
    if checkpoint is None or checkpoint.own:
        return
    status = regular_file(checkpoint.path)
    if status is None and _forget_checkpoint(home, key, checkpoint):
        return
    grown = status is not None and status.st_size > checkpoint.parsed
    waiting = bool(checkpoint.turns or checkpoint.pending or checkpoint.context.queue)
    dead = checkpoint.state == "closed" or _is_dead(checkpoint, status)
    expiring = status is not None and grown and status.st_mtime < now() - cleanup_seconds(home) + CLEANUP_MARGIN_SECONDS
    if checkpoint.deferred or expiring or (dead and (grown or waiting or checkpoint.state == "open")):
        _capture_late(home, consent, Request(checkpoint.path, checkpoint.session, final=dead))


def catch_up(home: Home, consent: Consent) -> None:
    """Capture what was put off, sessions that died without a SessionEnd, and transcripts about to be deleted."""
    known = set()
    for name in list_folder(home.path("checkpoints")):
        key, dot, _ = name.partition(".json")
        if dot:
            known.add(key)
            _catch_up_known(home, consent, key)
    for path in transcripts(home):
        status = regular_file(path)
        if status and status.st_mtime >= consent.capture_at and status.st_mtime < now() - DEAD_SECONDS and transcript_key(path) not in known:
            _capture_late(home, consent, Request(path, final=True))


# ---- one segment


def parse_segment(data: bytes) -> tuple[dict[str, Any], list[Turn]]:
    """A spool item taken apart. Raises Poison for what is no segment."""
    try:
        segment = json.loads(data.decode("utf-8"))
        if segment["format"] > SEGMENT_FORMAT:
            raise Transient("a newer memhook wrote it")
        turns = [Turn.from_json(turn) for turn in segment["turns"]]
        for name in ("id", "title", "project", "session", "key", "transcript"):
            if not isinstance(segment[name], str):
                raise Poison("%s is no string" % name)
        if not turns or not isinstance(segment["segment"], int) or not all(isinstance(turn.text, str) for turn in turns):
            raise Poison("no turns")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Poison("not a segment: %s" % type(error).__name__)
    return segment, turns


class Ledger:
    """Which turns the receipts of a transcript's folder cover; read once for each folder, kept up as receipts are written."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.covered: dict[str, set[str]] = {}  # folder part of the key -> "<turn key> <text hash>"
        self.written: dict[str, dict[str, str]] = {}  # folder part of the key -> memory id -> hash of the file as written

    def load(self, key: str) -> None:
        folder = key[:8]
        if folder in self.covered:
            return
        self.covered[folder], self.written[folder] = set(), {}
        for receipt in read_receipts(self.home, folder):
            self._note(folder, receipt)

    def covers(self, key: str, turn: Turn) -> bool:
        return "%s %s" % (turn.key, text_hash(turn.text)) in self.covered[key[:8]]

    def write(self, key: str, receipt: dict[str, Any]) -> None:
        write_receipt(self.home, key, receipt)
        self._note(key[:8], receipt)

    def _note(self, folder: str, receipt: dict[str, Any]) -> None:
        if receipt.get("outcome") != "dead":
            self.covered[folder].update("%s %s" % (turn_key, digest) for turn_key, digest in receipt.get("turns") or [])
        if receipt.get("file"):
            self.written[folder][receipt["id"]] = receipt["file"]


def render_receipt(segment: dict[str, Any], turns: list[Turn], outcome: str, written: str) -> dict[str, Any]:
    """{"segment", "id", "generation", "bytes", "parser", "outcome", "file": SHA-256, "at", "turns": [[key, hash], ...]}"""
    return {
        "segment": segment["segment"], "id": segment["id"], "generation": segment["generation"], "parser": segment["parser"], "outcome": outcome,
        "bytes": [turns[0].start, turns[-1].end] if turns else [], "file": written, "at": iso(now()),
        "turns": [[turn.key, text_hash(turn.text)] for turn in turns],
    }


def store_segment(home: Home, segment: dict[str, Any], turns: list[Turn]) -> str:
    """Write the memory, durably; -> SHA-256 of the file as written. A file that is there already and differs is a person's."""
    digest = distil(turns, segment["title"])
    front = front_matter(segment, turns, "offline")
    data = render_memory(front, render_digest(digest), turns)
    path = memory_path(home, front, segment["title"])
    if read_file(path) is None:
        write_file(path, data)
    return file_hash(data)


def settle(home: Home, ledger: Ledger, data: bytes) -> str:
    """Turn one segment into a memory and a receipt; -> the outcome: stored, duplicate, empty or forgotten.

    Turns that a receipt covers are cut out first: a tail that was queued, and queued again longer after a crash, is stored once.
    """
    segment, turns = parse_segment(data)
    ledger.load(segment["key"])
    fresh = [turn for turn in turns if not ledger.covers(segment["key"], turn)]
    tombstones = read_tombstones(home) if fresh else set()
    kept = [turn for turn in fresh if turn.line not in tombstones and text_hash(turn.text) not in tombstones]
    written = ""
    if not fresh:
        outcome = "duplicate"
    elif not kept:
        outcome = "forgotten"
    elif not any(turn.kind in SPOKEN and turn.text.strip() for turn in kept):
        outcome = "empty"
    else:
        outcome, written = "stored", store_segment(home, segment, kept)
    ledger.write(segment["key"], render_receipt(segment, fresh, outcome, written))
    return outcome


# ---- the loop

ITEM_ERRORS = (Transient, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # what one item may cost itself, but no other


def bury_item(home: Home, spool: Spool, item: Item, reason: str) -> str:
    parts = item.stem.split("-")
    key, number = (parts[1], int(parts[2])) if len(parts) == 4 and parts[2].isdigit() else ("", -1)
    write_receipt(home, key, {"segment": number, "id": parts[-1], "outcome": "dead", "reason": reason, "item": item.stem, "at": iso(now())})
    spool.bury(item)
    log(home, "buried", item=item.stem, reason=reason)
    return "dead"


def drain_item(home: Home, spool: Spool, ledger: Ledger, item: Item) -> str:
    """Settle one claimed item and say what became of it: an outcome of settle(), "retried" or "dead"."""
    try:
        outcome = settle(home, ledger, spool.read(item))
    except Poison as error:
        return bury_item(home, spool, item, str(error))
    except OSError as error:  # a folder that may not be written, a disk that is full: the item can do nothing for it
        spool.release(item, counts=False)
        if _is_disk_trouble(error):
            raise
        log(home, "retry", item=item.stem, error=type(error).__name__)
        return "retried"
    except ITEM_ERRORS as error:
        if item.attempts + 1 >= ATTEMPTS:
            return bury_item(home, spool, item, "failed %d times: %s" % (ATTEMPTS, type(error).__name__))
        spool.release(item, wait_seconds=BACKOFF_SECONDS * 2 ** item.attempts)
        log(home, "retry", item=item.stem, error=type(error).__name__)
        return "retried"
    spool.ack(item)
    return outcome


def drain_spool(home: Home, spool: Spool, done: Drained) -> None:
    ledger = Ledger(home)
    for item in spool.claim_all():
        outcome = drain_item(home, spool, ledger, item)
        setattr(done, outcome, getattr(done, outcome) + 1)


def sweep(home: Home) -> None:
    """Remove what killed processes left."""
    for folder in ("", "checkpoints", "spool/tmp"):
        sweep_temp(home.path(*folder.split("/")) if folder else home.root)
    for folder, _, names in os.walk(home.path("memories")):
        if any(name.endswith(".tmp") for name in names):
            sweep_temp(folder)


def drain(home: Home, consent: Optional[Consent], retry_dead: bool = False) -> Drained:
    """Empty the spool. Raises BusyError while another drain runs, OSError where the disk is full or read-only."""
    done = Drained()
    lock = Lock(home.path("drain.lock"))
    wait = 0.0 if home.environ.get("MEMHOOK_BACKGROUND") else 30.0
    spool = Spool(home.path("spool"))
    while True:
        with lock:
            if not lock.acquire(wait):
                raise BusyError("another drain is running", "wait for it, or look at: memhook status")
            if retry_dead:
                spool.revive()
            spool.recover()
            if consent and not consent.paused:
                catch_up(home, consent)
            drain_spool(home, spool, done)
            sweep(home)
        retry_dead = False
        # an item may have come while we held the lock, and its hook's drain have given up on us
        if not any(item.not_before <= now() for item in spool.items("new")):
            break
    done.left = len(spool.items("new"))
    return done


# ==== 13. Hooks ===================================================================
# Job:      one function for each event of Claude Code.
# Promise:  exit 0 whatever happens, nothing on stdout, milliseconds; no model, no network.
# Not:      a hook is no place to wait: what takes longer than a lock's 300 ms is the drain's.


def _readable(fd: int, seconds: float) -> bool:
    if os.name == "nt":
        return True  # select() takes only sockets there
    import select
    return bool(select.select([fd], [], [], max(0.0, seconds))[0])


def _parse_event(data: bytes) -> dict[str, Any]:
    try:
        event, _ = json.JSONDecoder().raw_decode(data.decode("utf-8", "replace").lstrip("\ufeff \r\n\t"))
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def read_event() -> dict[str, Any]:
    """The event on stdin; {} where none comes.

    The pipe may stay open for ever (and the client may write slowly), so this reads until one JSON object is whole.
    Bytes, decoded as UTF-8: the locale has no say.
    """
    data = b""
    deadline = time.monotonic() + EVENT_SECONDS
    while _readable(0, deadline - time.monotonic()):
        block = os.read(0, BLOCK_BYTES)
        data += block
        if not block or data.rstrip().endswith(b"}"):
            event = _parse_event(data)
            if event or not block:
                return event
    return _parse_event(data)


def event_text(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    return value if isinstance(value, str) else ""


def _elsewhere(home: Home, session: str) -> str:
    """A session's transcript under another project: the path in the event is wrong after a worktree was entered."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{8,64}", session):
        return ""
    root = os.path.join(home.config, "projects")
    found = (os.path.join(root, project, session + ".jsonl") for project in list_folder(root))
    return next((path for path in found if os.path.isfile(path)), "")


def event_request(home: Home, event: dict[str, Any]) -> Optional[Request]:
    """What to capture for an event; None where it names no transcript."""
    path, session = event_text(event, "transcript_path"), event_text(event, "session_id")
    if not path or "\0" in path:
        return None
    path = os.path.expanduser(path)
    if not os.path.exists(path):
        path = _elsewhere(home, session) or path
    return Request(path, session, event_text(event, "cwd"), event_text(event, "last_assistant_message"), live=True,
                   off=home.environ.get("MEMHOOK_OFF") == "1", client=client_process(os.getppid()))


def hook_stop(home: Home, consent: Consent, event: dict[str, Any]) -> None:
    """Stop and PreCompact: queue the segments that are full."""
    request = event_request(home, event)
    if request and capture(home, consent, request).deferred:
        start_drain(home)


def hook_session_end(home: Home, consent: Consent, event: dict[str, Any]) -> None:
    """Queue the tail, then start the drain if anything waits, also where this capture failed."""
    request = event_request(home, event)
    finished = False
    try:
        if request:
            request.final, request.wait_seconds = True, SESSION_END_SECONDS
            done = capture(home, consent, request)
            finished = not done.busy and not done.deferred
    finally:
        if not finished or list_folder(home.path("spool", "new")):
            start_drain(home)


def begin_session(home: Home, request: Request) -> None:
    """Write the checkpoint of a session that begins or goes on: its process, and whether it is switched off."""
    key = transcript_key(request.path)
    with Lock(home.path("seen", key)) as lock:
        if lock.acquire():
            checkpoint = find_checkpoint(home, key, request)
            checkpoint.client, checkpoint.off, checkpoint.state = request.client or [0, ""], request.off, "open"
            write_checkpoint(home, key, checkpoint)


def hook_session_start(home: Home, consent: Consent, event: dict[str, Any]) -> None:
    """Note the session, so that a crash in its first turn is noticed, and start the drain, which catches up."""
    request = event_request(home, event)
    try:
        if request:
            begin_session(home, request)
    finally:
        start_drain(home)


HOOKS: dict[str, Callable[[Home, Consent, dict[str, Any]], None]] = {
    "stop": hook_stop, "session-end": hook_session_end, "session-start": hook_session_start,
}


def _where(error: BaseException) -> str:
    """function:line of the innermost frame: enough to find a bug, and no text of anybody's."""
    trace = error.__traceback__
    while trace and trace.tb_next:
        trace = trace.tb_next
    return "%s:%d" % (trace.tb_frame.f_code.co_name, trace.tb_lineno) if trace else ""


def run_hook(name: str) -> int:
    """Run a hook of this name; always 0. Nothing happens without consent, in a pause, or for a child of ours."""
    home = Home(dict(os.environ))
    try:
        event = read_event()
        consent = read_consent(home)
        if consent and not consent.paused and not home.environ.get("MEMHOOK_CHILD"):
            HOOKS[name](home, consent, event)
    except Exception as error:  # one of the two broad handlers: whatever goes wrong here must not reach the person's session
        log(home, "hook-failed", hook=name, error=type(error).__name__, where=_where(error))
    return EXIT_OK


# ==== 14. Install =================================================================
# Job:      consent, then our hooks into Claude's settings.json; and out again.
# Promise:  nothing is written before the words are typed; foreign bytes of settings.json stay what they are: edits are splices.
# Not:      a file that is not strict JSON is refused, unchanged, with the line that is wrong.
# Calls:    install: read -> plan -> ask -> copy -> back up -> write -> check -> consent.json, last
# On error: InstallError; settings.json is the old file or the new one, never half.


class HookSpec:
    """One hook: Claude's event, our subcommand, the most seconds the client may give it."""

    __slots__ = ("event", "subcommand", "timeout_seconds")

    def __init__(self, event: str, subcommand: str, timeout_seconds: int) -> None:
        self.event, self.subcommand, self.timeout_seconds = event, subcommand, timeout_seconds


HOOK_SPECS = (  # the only list of our hooks: install, uninstall, status, README and tests derive from it
    HookSpec("SessionStart", "session-start", 10),
    HookSpec("Stop", "stop", 10),
    HookSpec("PreCompact", "stop", 10),
    HookSpec("SessionEnd", "session-end", 10),
)
CONSENT_PHRASE = "I CONSENT"
DISCLOSURE = """\
memhook gives Claude Code a memory. Before anything is captured, this is what you agree to.

What it does
  At the end of each turn and session it reads Claude Code's transcript and keeps, as Markdown files on this machine,
  everything you and Claude said, one line for each tool call, and error messages (shortened).
What it does not do
  It does not keep tool output, images or thinking. It sends nothing anywhere. It runs no model and asks no service.
  It does not look at sessions from before today, unless you import them.
Where
  Everything lies in {home} (readable by you alone).
  The program is {program}; four hooks are added to {settings}, of which a backup is kept.
Secrets
  Keys, tokens and passwords are replaced before anything is written; <private>…</private> is never kept.
  No filter finds everything: do not rely on it for what must never be on this disk.
How to pause, to stop, to erase
  memhook pause | resume; a file .memhook-off in a folder, or MEMHOOK_OFF=1, switches memhook off there;
  memhook uninstall removes the hooks; memhook uninstall --purge also erases all memories.
Why it asks
  Sessions hold what you think and what your colleagues wrote. Only you can decide that they are kept.
"""


# ---- our command lines


def hook_command(spec: HookSpec, program: str, interpreter: str, home: str = "") -> str:
    """The shell line of a hook. It is silent where the interpreter or memhook.py is gone, and has no process of its own.

    -I -S: nothing in the working folder, the environment or site-packages changes what runs. `home` only if it is not the default.
    """
    import shlex
    line = "test ! -x {0} || test ! -f {1} || exec {0} -I -S -c {2} {1} {3}".format(shlex.quote(interpreter), shlex.quote(program), shlex.quote(BOOT), spec.subcommand)
    return line + (" " + shlex.quote(home) if home else "")


def _forms(words: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    """(program, subcommand, the words it would be) for each form, filled from the places where its parts would be."""
    if len(words) >= 18:
        interpreter, program = words[3], words[8]
        yield program, words[17], ["test", "!", "-x", interpreter, "||", "test", "!", "-f", program, "||", "exec", interpreter, "-I", "-S", "-c", BOOT, program, words[17]]
    if len(words) in (3, 4):  # as a person would write it
        yield words[1], words[2], [words[0], words[1], words[2]]


def our_subcommand(command: Any) -> str:
    """The subcommand of a command line that is one of the forms this program writes or wrote, from wherever; else ""."""
    import shlex
    if not isinstance(command, str) or "memhook.py" not in command:
        return ""
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    known = {spec.subcommand for spec in HOOK_SPECS}
    for program, subcommand, form in _forms(words):
        if words[:len(form)] == form and len(words) <= len(form) + 1 and subcommand in known and re.split(r"[\\/]", program)[-1] == "memhook.py":
            return subcommand
    return ""


def stable_interpreter() -> str:
    """The absolute path of this Python by the name that upgrades keep, where there is one: 3.11.7 goes, python3 stays."""
    own = os.path.abspath(sys.executable)
    if sys.prefix != sys.base_prefix:
        return own  # a virtual environment's: its python is the one that was chosen
    for name in ("python3", "python"):
        for folder in (os.path.dirname(own), "/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
            path = os.path.join(folder, name)
            if os.path.exists(path) and os.path.realpath(path) == os.path.realpath(own):
                return path
    return own


# ---- settings.json as text


class Span:
    """A JSON value in a text: where it stands, what it is; of an object's member also its key and where that stands."""

    __slots__ = ("start", "end", "value", "key", "key_start")

    def __init__(self, start: int, end: int, value: Any, key: str = "", key_start: int = -1) -> None:
        self.start, self.end, self.value, self.key = start, end, value, key
        self.key_start = key_start if key_start >= 0 else start


def _skip_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def scan(text: str, container: Span) -> list[Span]:
    """The members of the object, or the elements of the array, that stands at `container`. The text is valid JSON."""
    decoder = json.JSONDecoder()
    found: list[Span] = []
    at = _skip_space(text, container.start + 1)
    while text[at] not in "]}":
        key_start, key = at, ""
        if isinstance(container.value, dict):
            key, at = decoder.raw_decode(text, at)
            at = _skip_space(text, _skip_space(text, at) + 1)
        value, end = decoder.raw_decode(text, at)
        found.append(Span(at, end, value, key, key_start))
        at = _skip_space(text, end)
        if text[at] == ",":
            at = _skip_space(text, at + 1)
    return found


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise ValueError("the key %s stands there twice" % json.dumps(twice[0]))
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError("%s is not JSON" % name)


def _is_group(group: Any) -> bool:
    return isinstance(group, dict) and isinstance(group.get("hooks", []), list) and all(isinstance(hook, dict) for hook in group.get("hooks", []))


class Settings:
    """Claude's settings.json as text that can be spliced."""

    __slots__ = ("path", "text", "mark", "original")

    def __init__(self, path: str, original: Optional[bytes]) -> None:
        self.path = path
        self.original = original  # None: there was no file
        data = original if original is not None and original.strip() else b"{}\n"
        self.mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""  # a byte order mark stays
        try:
            self.text = data[len(self.mark):].decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise InstallError("%s, line %d: this is not UTF-8" % (path, line), "save it as UTF-8 and try again")
        self._check()

    def to_bytes(self) -> bytes:
        return self.mark + self.text.encode("utf-8")

    @property
    def root(self) -> Span:
        start = _skip_space(self.text, 0)
        value, end = json.JSONDecoder().raw_decode(self.text, start)
        return Span(start, end, value)

    def member(self, container: Optional[Span], key: str) -> Optional[Span]:
        return next((span for span in scan(self.text, container) if span.key == key), None) if container else None

    def hooks(self) -> Optional[Span]:
        return self.member(self.root, "hooks")

    def splice(self, start: int, end: int, new: str) -> None:
        self.text = self.text[:start] + new + self.text[end:]

    def _check(self) -> None:
        """Strict JSON of the shape that hooks need, or InstallError naming the line."""
        hint = "mend it (Claude Code ignores all hooks in such a file) and try again; nothing was changed"
        try:
            root = json.loads(self.text, object_pairs_hook=_no_twice, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            raise InstallError("%s, line %d, column %d: %s" % (self.path, error.lineno, error.colno, error.msg), hint)
        except (ValueError, RecursionError) as error:
            raise InstallError("%s, line %d: %s" % (self.path, self._line_of(str(error)), str(error) or "nested too deeply"), hint)
        if not isinstance(root, dict):
            raise InstallError("%s, line 1: settings must be an object {…}" % self.path, hint)
        hooks = root.get("hooks", {})
        if not isinstance(hooks, dict) or not all(isinstance(groups, list) and all(_is_group(group) for group in groups) for groups in hooks.values()):
            raise InstallError('%s, line %d: "hooks" does not have the form that Claude Code expects' % (self.path, self._line_of('"hooks"')), hint)

    def _line_of(self, message: str) -> int:
        """The line of the last place where the quoted part of a message stands."""
        quoted = re.search(r'"(?:[^"\\]|\\.)*"|NaN|-?Infinity', message)
        at = self.text.rfind(quoted.group()) if quoted else 0
        return self.text.count("\n", 0, max(at, 0)) + 1


def settings_path(home: Home) -> str:
    return os.path.join(home.config, "settings.json")


def read_settings(home: Home) -> Settings:
    """Claude's settings. Raises InstallError for what cannot be edited safely."""
    path = settings_path(home)
    if os.path.islink(path) and not os.path.exists(path):
        raise InstallError("%s is a link that leads nowhere" % path, "mend the link and try again")
    try:
        return Settings(path, read_file(path))
    except OSError as error:
        raise InstallError("%s cannot be read: %s" % (path, error.strerror), "nothing was changed")


def _style(text: str) -> tuple[str, str]:
    """(line end, one step of indent) of a JSON text; ("", "") for one on a single line."""
    if "\n" not in text.strip():
        return "", ""
    indents = re.findall(r"(?m)^([ \t]+)\S", text)
    return ("\r\n" if "\r\n" in text else "\n"), min(indents, key=len, default="  ")


def _indent_at(text: str, at: int) -> str:
    """The white space that begins the line of a place."""
    start = text.rfind("\n", 0, at) + 1
    return text[start:start + len(text[start:]) - len(text[start:].lstrip(" \t"))]


def _insert(settings: Settings, container: Span, key: Optional[str], value: Any) -> None:
    """Add a member (with a key) or an element (without) as the last of a container, in the file's own style."""
    text = settings.text
    line_end, step = _style(text)
    inside = scan(text, container)
    spread = bool(line_end) and (not inside or "\n" in text[container.start:inside[0].key_start])
    base = _indent_at(text, inside[-1].key_start) if inside and spread else _indent_at(text, container.start) + step
    body = json.dumps(value, ensure_ascii=False, indent=step or None) if spread else json.dumps(value, ensure_ascii=False)
    new = (json.dumps(key) + ": " if key is not None else "") + (body.replace("\n", line_end + base) if spread else body)
    if inside:
        settings.splice(inside[-1].end, inside[-1].end, "," + (line_end + base if spread else " ") + new)
    elif spread:
        settings.splice(container.start + 1, container.end - 1, line_end + base + new + line_end + _indent_at(text, container.start))
    else:
        settings.splice(container.start + 1, container.end - 1, new)


def _remove(settings: Settings, container: Span, number: int) -> None:
    """Take the member or element with this number out, with the comma that belonged to it."""
    inside = scan(settings.text, container)
    if number:
        settings.splice(inside[number - 1].end, inside[number].end, "")
    elif len(inside) > 1:
        settings.splice(inside[0].key_start, inside[1].key_start, "")
    else:
        settings.splice(container.start + 1, container.end - 1, "")


def our_hooks(settings: Settings) -> list[tuple[str, str]]:
    """(event, command) of every hook in the settings that is ours."""
    root = settings.root.value
    return [(event, hook["command"]) for event, groups in root.get("hooks", {}).items() for group in groups for hook in group.get("hooks", []) if our_subcommand(hook.get("command"))]


def _prune(settings: Settings, event: str, before: Optional[Settings]) -> None:
    """Remove the event's list, and then "hooks", where our going has left them empty and they were not there before us."""
    had = before.root.value.get("hooks") if before else None
    hooks = settings.hooks()
    if hooks and hooks.value.get(event) == [] and not (isinstance(had, dict) and event in had):
        _remove(settings, hooks, list(hooks.value).index(event))
    if settings.root.value.get("hooks") == {} and had is None:
        _remove(settings, settings.root, list(settings.root.value).index("hooks"))


def _remove_one(settings: Settings, keep: frozenset[tuple[str, str]], kept: set[tuple[str, str]], empty: Optional[Settings]) -> bool:
    hooks = settings.hooks()
    for event in scan(settings.text, hooks) if hooks else []:
        for number, group in enumerate(scan(settings.text, event)):
            listed = settings.member(group, "hooks")
            for place, hook in enumerate(scan(settings.text, listed) if listed else []):
                named = (event.key, hook.value.get("command"))
                if not our_subcommand(named[1]):
                    continue
                if named in keep and named not in kept:
                    kept.add(named)
                    continue
                if len(listed.value) > 1:
                    _remove(settings, listed, place)
                else:
                    _remove(settings, event, number)
                    _prune(settings, event.key, empty)
                return True
    return False


def remove_hooks(settings: Settings, keep: frozenset[tuple[str, str]] = frozenset(), empty: Optional[Settings] = None) -> None:
    """Take our hooks out, but for the first of each (event, command) in `keep`; foreign ones stay, also those in our group.

    `empty`: the settings before we came: a container that was empty there already stays.
    """
    kept: set[tuple[str, str]] = set()
    while _remove_one(settings, keep, kept, empty):
        kept = set()


def add_hooks(settings: Settings, wanted: list[tuple[HookSpec, str]]) -> None:
    """Make each wanted (spec, command) stand exactly once; ours of any other form go."""
    remove_hooks(settings, frozenset((spec.event, command) for spec, command in wanted))
    present = set(our_hooks(settings))
    for spec, command in wanted:
        if (spec.event, command) in present:
            continue
        if settings.hooks() is None:
            _insert(settings, settings.root, "hooks", {})
        hooks = settings.hooks()
        group = {"hooks": [{"type": "command", "command": command, "timeout": spec.timeout_seconds}]}
        event = settings.member(hooks, spec.event)
        if event is None:
            _insert(settings, hooks, spec.event, [group])
        else:
            _insert(settings, event, None, group)


def write_settings(settings: Settings, data: bytes) -> None:
    """Replace the file that settings.json is or leads to, keeping its mode; links stay links."""
    target = os.path.realpath(settings.path)
    mode = os.stat(target).st_mode & 0o7777 if os.path.exists(target) else 0o600
    temp = "%s.memhook-%d.tmp" % (target, os.getpid())
    try:
        write_temp(temp, data, durable=True)
        os.chmod(temp, mode)
        os.replace(temp, target)
        sync_folder(os.path.dirname(target))
    except OSError as error:
        remove_file(temp)
        raise InstallError("%s cannot be written: %s" % (settings.path, error.strerror), "nothing was changed")


# ---- install, uninstall


def program_path(home: Home) -> str:
    """Where the installed memhook.py lies."""
    return os.path.join(home.config, "memhook.py")


def wanted_hooks(home: Home) -> list[tuple[HookSpec, str]]:
    """The hooks as they should stand, with the interpreter that runs this."""
    default = Home({**home.environ, "MEMHOOK_HOME": ""}).root
    own_home = home.root if home.root != default else ""
    return [(spec, hook_command(spec, program_path(home), stable_interpreter(), own_home)) for spec in HOOK_SPECS]


def _planned(home: Home, settings: Settings, changed: bool) -> str:
    lines = ["Would copy memhook.py to %s" % program_path(home), "Would make %s" % home.root]
    lines += ["Would add to %s: %s -> %s" % (settings.path, spec.event, spec.subcommand) for spec in HOOK_SPECS] if changed else ["settings.json is as it should be"]
    return "\n".join(lines)


def ask_consent(phrase: Optional[str]) -> None:
    """Return if the phrase was given or is typed; raises InstallError otherwise. Reads the terminal even where stdin is a pipe."""
    refused = InstallError("nothing was installed: the words %s were not given" % CONSENT_PHRASE, 'run it again and type them, or pass --consent "%s"' % CONSENT_PHRASE)
    if phrase is not None:
        if phrase != CONSENT_PHRASE:
            raise refused
        return
    try:
        with open(os.devnull if os.name == "nt" and not sys.stdin.isatty() else "CON" if os.name == "nt" else "/dev/tty", "r+b", buffering=0) as terminal:
            terminal.write(("Type %s to go on: " % CONSENT_PHRASE).encode())
            answer = terminal.readline().decode("utf-8", "replace")
    except OSError:
        raise refused
    if answer.strip() != CONSENT_PHRASE:
        raise refused


def copy_program(home: Home) -> None:
    """Put this file where the hooks look for it, and its bytecode beside it: the first hook should not compile."""
    target, source = program_path(home), os.path.abspath(__file__)
    data = read_file(source)
    if os.path.realpath(source) != os.path.realpath(target) and data != read_file(target):
        write_file(target, data or b"")
    from importlib.machinery import SourceFileLoader
    SourceFileLoader("memhook", target).get_code("memhook")


def back_up(home: Home, settings: Settings) -> None:
    """Keep the bytes that stood there before us, beside the file and for the uninstall."""
    if read_json(home.path("install.json")) is not None:
        return  # an install on top of an install: the first original counts
    record = {"settings": settings.path, "created": settings.original is None, "original": (settings.original or b"").decode("utf-8", "surrogateescape")}
    if settings.original is not None:
        write_file(settings.path + ".memhook-backup", settings.original)
    write_file(home.path("install.json"), json.dumps(record).encode())


def note_left(home: Home, settings: Settings) -> None:
    """Remember the file as we left it: unchanged until the uninstall, its original bytes come back."""
    record = read_json(home.path("install.json")) or {}
    record["left"] = file_hash(settings.to_bytes())
    write_file(home.path("install.json"), json.dumps(record).encode())


def check_hooks(home: Home) -> None:
    """Each hook stands exactly once, and its command line, run with an empty stdin, exits 0. Raises InstallError naming those that fail."""
    import subprocess
    stands = our_hooks(read_settings(home))
    wrong = []
    for spec, command in wanted_hooks(home):
        if stands.count((spec.event, command)) != 1:
            wrong.append("%s: not there exactly once" % spec.event)
            continue
        ran = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env={**home.environ, "MEMHOOK_CHILD": "1"})
        if ran.returncode or ran.stdout:
            wrong.append("%s: exit status %d" % (spec.event, ran.returncode))
    if wrong:
        raise InstallError("hooks do not work: " + "; ".join(wrong), "nothing is captured; memhook uninstall removes them")


def write_consent(home: Home, stored: dict[str, Any]) -> None:
    write_json(home.path("consent.json"), stored)


def grant_consent(home: Home, how: str) -> None:
    """Write the marker, last of all. An earlier consent, and its pauses, stay."""
    if read_consent(home) is None:
        text = sha1_hex(DISCLOSURE.encode())
        write_consent(home, {"format": CONSENT_FORMAT, "capture": {"at": round(now(), 3), "by": how, "text": text}, "pauses": []})


def install(home: Home, phrase: Optional[str], dry_run: bool, tell: Callable[[str], None]) -> None:
    """Ask, copy this file into Claude's folder, merge the hooks, write the consent. Twice is the same as once."""
    settings = read_settings(home)
    original = settings.original
    add_hooks(settings, wanted_hooks(home))
    changed = original is None or settings.to_bytes() != original
    if dry_run:
        tell(_planned(home, settings, changed))
        return
    if read_consent(home) is None:
        tell(DISCLOSURE.format(home=home.root, program=program_path(home), settings=settings.path))
        ask_consent(phrase)
    home.create()
    copy_program(home)
    if changed:
        back_up(home, settings)
        write_settings(settings, settings.to_bytes())
        note_left(home, settings)
    check_hooks(home)
    grant_consent(home, "flag" if phrase else "typed")
    tell("memhook is on. Your next Claude Code sessions become memories in %s" % home.path("memories"))
    tell("Look at it:  python3 %s status\nUndo it:     python3 %s uninstall" % (program_path(home), program_path(home)))


def set_pause(home: Home, paused: bool) -> bool:
    """Begin or end a pause; -> whether that changed anything. Raises StateError without consent."""
    consent = read_consent(home)
    if consent is None:
        raise StateError("memhook is not installed", "run: python3 memhook.py install")
    if consent.paused == paused:
        return False
    stored = read_json(home.path("consent.json"))
    if paused:
        consent.pauses.append([round(now(), 3), None])
    else:
        consent.pauses[-1][1] = round(now(), 3)
    stored["pauses"] = consent.pauses
    write_consent(home, stored)
    return True


def uninstall(home: Home, tell: Callable[[str], None]) -> None:
    """Remove the hooks and the consent. Memories stay; the file is as it was, or without our entries if it was changed since."""
    settings = read_settings(home)
    record = read_json(home.path("install.json")) or {}
    restored = False
    if settings.original is not None and record.get("left") == file_hash(settings.original):
        restored = True
        if record.get("created"):
            remove_file(os.path.realpath(settings.path))
        else:
            write_settings(settings, record["original"].encode("utf-8", "surrogateescape"))
    elif settings.original is not None:
        before = Settings(settings.path, None if record.get("created") else record.get("original", "{}").encode("utf-8", "surrogateescape"))
        remove_hooks(settings, empty=before)
        if settings.to_bytes() != settings.original:
            write_settings(settings, settings.to_bytes())
    remove_file(home.path("consent.json"))
    remove_file(home.path("install.json"))
    remove_file(settings.path + ".memhook-backup")
    tell("Hooks removed; settings.json is %s." % ("what it was before" if restored else "without our entries"))


# ==== 15. Checkup =================================================================
# Job:      facts about this installation, for a person and as JSON.
# Promise:  looks, changes nothing.


def count_memories(home: Home) -> dict[str, int]:
    sizes = [os.path.getsize(path) for path in memory_files(home)]
    return {"count": len(sizes), "bytes": sum(sizes)}


def count_sessions(home: Home) -> dict[str, int]:
    states = [(read_json(home.path("checkpoints", name)) or {}).get("state") for name in list_folder(home.path("checkpoints")) if name.endswith(".json")]
    return {"open": states.count("open"), "closed": states.count("closed")}


def hook_states(home: Home) -> dict[str, str]:
    """Each event of HOOK_SPECS: installed, stale (ours, but another command or interpreter) or missing."""
    try:
        stands = our_hooks(read_settings(home))
    except InstallError:
        stands = []
    states = {}
    for spec, command in wanted_hooks(home):
        ours = [found for event, found in stands if event == spec.event]
        states[spec.event] = "installed" if ours == [command] and os.path.exists(program_path(home)) else "stale" if ours else "missing"
    return states


def check_status(home: Home) -> dict[str, Any]:
    """The facts of `status --json`."""
    consent = read_consent(home)
    return {
        "version": VERSION, "home": home.root,
        "consent": {"capture": consent is not None, "model": False, "team": False, "paused": bool(consent and consent.paused)},
        "hooks": hook_states(home), "spool": Spool(home.path("spool")).counts(), "outbox": Spool(home.path("outbox")).counts(),
        "memories": count_memories(home), "sessions": count_sessions(home),
    }


# ==== 16. Commands ================================================================
# Job:      read arguments, call, print. One table for parser, dispatch, help and tests.
# Promise:  results on stdout, everything else on stderr; the exit statuses of Constants.


def say(text: str) -> None:
    """To a person: stderr, so that stdout carries results only."""
    print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """A result."""
    print(text, flush=True)


def show_json(value: Any) -> None:
    show(json.dumps(value, ensure_ascii=False))


def cmd_drain(home: Home, options: Any) -> int:
    done = drain(home, read_consent(home), options.retry_dead)
    if options.json:
        show_json(done.to_json())
    else:
        show(", ".join("%s %d" % (name, count) for name, count in done.to_json().items()))
    return EXIT_OK


def cmd_status(home: Home, options: Any) -> int:
    status = check_status(home)
    if options.json:
        show_json(status)
        return EXIT_OK
    consent = status["consent"]
    show("memhook %s: capture is %s" % (VERSION, "paused" if consent["paused"] else "on" if consent["capture"] else "off"))
    show("hooks      " + ", ".join("%s %s" % pair for pair in status["hooks"].items()))
    show("spool      {new} waiting, {claimed} in work, {dead} dead, {bytes} bytes".format(**status["spool"]))
    show("memories   {count}, {bytes} bytes".format(**status["memories"]))
    show("sessions   {open} open, {closed} closed".format(**status["sessions"]))
    show("home       " + status["home"])
    return EXIT_OK


def cmd_pause(home: Home, options: Any) -> int:
    say("Paused: nothing is captured until memhook resume." if set_pause(home, True) else "Paused already.")
    return EXIT_OK


def cmd_install(home: Home, options: Any) -> int:
    if options.status:
        return cmd_status(home, options)
    if options.off:
        return cmd_pause(home, options)
    install(home, options.consent, options.dry_run, say)
    return EXIT_OK


def ask_purge(home: Home) -> None:
    """Return if the person types PURGE; raises UsageError otherwise."""
    if sys.stdin.isatty():
        say("This erases %s with %d memories. There is no way back." % (home.root, count_memories(home)["count"]))
        if input("Type PURGE to go on: ").strip() == "PURGE":
            return
    raise UsageError("nothing was erased: --purge asks at a terminal", "run it at a terminal and type PURGE")


def cmd_uninstall(home: Home, options: Any) -> int:
    if options.purge:
        ask_purge(home)
    uninstall(home, say)
    if options.purge:
        import shutil
        shutil.rmtree(home.root, ignore_errors=True)
        say("Erased %s" % home.root)
    elif os.path.isdir(home.root):
        say("Your memories stay in %s (memhook uninstall --purge erases them)" % home.root)
    return EXIT_OK


def cmd_resume(home: Home, options: Any) -> int:
    say("On again. What was said in the pause stays uncaptured." if set_pause(home, False) else "Not paused.")
    return EXIT_OK


# ---- demo


def demo_line(cwd: str, turn: int, place: int, role: str, content: Any) -> dict[str, Any]:
    return {
        "type": role, "uuid": "00000000-0000-4000-8000-%06d%06d" % (turn, place), "sessionId": "demo", "cwd": cwd, "gitBranch": "main", "version": "2.1.332",
        "timestamp": iso(now() + turn + place / 10), "isSidechain": False, "message": {"role": role, "content": content},
    }


def demo_lines(cwd: str) -> list[list[dict[str, Any]]]:
    """Three turns of a session about a bug, as Claude Code writes them; about enough text for two segments."""
    talk = [
        ("The checkout test fails on CI but passes here. Find out why.",
         [("Bash", {"command": "npm test -- checkout", "description": "Run the checkout tests"}, "Exit code 1\nError: expected 1999 but got 2000")],
         "The cause is rounding: prices are floats, and 19.99 * 100 is 1998.9999999999998. CI has another locale, so the total takes the other branch."),
        ("Then store cents as integers everywhere. Never floats for money again.",
         [("Edit", {"file_path": os.path.join(cwd, "src", "price.ts")}, ""), ("Bash", {"command": "npm test"}, "")],
         "Fixed: we decided to use integer cents instead of floats, in price.ts and the cart. All 48 tests pass now.\n\n" + "Each caller was checked one by one. " * 210),
        ("Good. What is left?", [], "Still open: the invoices table has float columns; the migration is the next step. My token is ghp_" + "a1B2" * 9 + ", do not keep it."),
    ]
    turns = []
    for number, (prompt, calls, answer) in enumerate(talk):
        lines = [demo_line(cwd, number, 0, "user", prompt)]
        for place, (name, given, failure) in enumerate(calls):
            use = {"type": "tool_use", "id": "toolu_%d_%d" % (number, place), "name": name, "input": given}
            lines.append(demo_line(cwd, number, 2 * place + 1, "assistant", [use]))
            result = {"type": "tool_result", "tool_use_id": use["id"], "content": failure or "ok", "is_error": bool(failure)}
            lines.append(demo_line(cwd, number, 2 * place + 2, "user", [result]))
        turns.append(lines + [demo_line(cwd, number, 9, "assistant", [{"type": "text", "text": answer}])])
    return turns


def run_demo(root: str) -> None:
    """Install, two Stops of which one is killed, SessionEnd, drain, and the memories. Nothing outside `root` is touched."""
    import subprocess
    config, project = os.path.join(root, "claude"), os.path.join(root, "shop")
    transcript = os.path.join(config, "projects", "shop", "4b1d0000-0000-4000-8000-000000000001.jsonl")
    for folder in (project, os.path.dirname(transcript)):
        make_folder(folder)
    environ = {**os.environ, "HOME": root, "CLAUDE_CONFIG_DIR": config, "MEMHOOK_HOME": "", "MEMHOOK_AUTODRAIN": "0", "MEMHOOK_CHILD": "", "MEMHOOK_OFF": ""}
    home = Home(environ)
    show("1. Install into %s (a person types the words; here a flag gives them)" % config)
    install(home, CONSENT_PHRASE, False, lambda text: None)
    commands = dict(reversed(our_hooks(read_settings(home))))

    def hook(event: str, kill: bool = False, **fields: Any) -> None:
        payload = {"session_id": "demo", "transcript_path": transcript, "cwd": project, "hook_event_name": event, **fields}
        process = subprocess.Popen(commands[event], shell=True, stdin=subprocess.PIPE, env=environ, cwd=project)
        if kill:
            process.kill()
        process.communicate(json.dumps(payload).encode())
        show("   %-13s exit status %s" % (event, process.returncode))

    show("2. A session, with the hooks that settings.json holds")
    for number, lines in enumerate(demo_lines(project)):
        with open(transcript, "ab") as stream:
            stream.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        hook("Stop", kill=number == 1)
    hook("SessionEnd", reason="prompt_input_exit")
    show("3. Drain: %s" % json.dumps(drain(home, read_consent(home)).to_json()))
    show("4. What became of it")
    for path in sorted(memory_files(home)):
        memory = parse_memory(read_file(path) or b"")
        show("   %s\n\n%s" % (path, "\n".join("   | " + line for line in memory.digest.strip().split("\n"))))
        show("   | … and below it all %d turns, word for word" % len(memory.turns))


def cmd_demo(home: Home, options: Any) -> int:
    """Everything, on a small session that it writes itself, in a temporary folder, by the real hook commands."""
    import tempfile
    root = tempfile.mkdtemp(prefix="memhook-demo-")
    run_demo(root)
    show("\nThe demo's files are in %s; remove them when you have looked: rm -r %s" % (root, root))
    return EXIT_OK


# ---- the table


class Argument:
    """One argument of a command, as argparse takes it."""

    __slots__ = ("name", "options")

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options


def flag(name: str, text: str) -> Argument:
    return Argument(name, action="store_true", help=text)


class Command:
    """One subcommand: a sentence, examples, arguments, the function."""

    __slots__ = ("name", "run", "summary", "examples", "arguments")

    def __init__(self, name: str, run: Callable[[Home, Any], int], summary: str, examples: str, *arguments: Argument) -> None:
        self.name, self.run, self.summary, self.examples, self.arguments = name, run, summary, examples, arguments


_JSON = flag("--json", "print JSON")
COMMANDS = (
    Command("demo", cmd_demo, "Show the whole way of a session into memory, in a temporary folder.", "memhook demo"),
    Command("install", cmd_install, "Ask for your consent and add the hooks to Claude Code's settings.", 'memhook install\nmemhook install --consent "I CONSENT"',
            Argument("--consent", metavar="PHRASE", help="the words I CONSENT, where nobody can type them"), flag("--dry-run", "say what would be done; do nothing"),
            flag("--no-mcp", "do not offer the MCP server"), flag("--status", "the same as: memhook status"), flag("--off", "the same as: memhook pause"), _JSON),
    Command("uninstall", cmd_uninstall, "Remove the hooks; memories stay.", "memhook uninstall\nmemhook uninstall --purge", flag("--purge", "also erase all memories (asks again)")),
    Command("pause", cmd_pause, "Capture nothing until resume.", "memhook pause"),
    Command("resume", cmd_resume, "Capture again; what was said in the pause stays out.", "memhook resume"),
    Command("status", cmd_status, "Show what is installed, waiting and stored.", "memhook status\nmemhook status --json", _JSON),
    Command("drain", cmd_drain, "Turn what was captured into memories. Hooks start this by themselves.", "memhook drain\nmemhook drain --retry-dead",
            _JSON, flag("--retry-dead", "try again what was buried")),
)


def build_parser() -> Any:
    import argparse
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="memhook", formatter_class=form, description="A memory for Claude Code: every session, whole, as Markdown, on this machine.",
        epilog="hooks, called by Claude Code: %s\nexamples:\n  memhook demo\n  memhook install\n  memhook status" % ", ".join(HOOKS))
    parser.add_argument("--version", action="version", version="memhook " + VERSION)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        examples = "examples:\n" + "\n".join("  " + line for line in command.examples.split("\n"))
        added = commands.add_parser(command.name, help=command.summary, description=command.summary, epilog=examples, formatter_class=form)
        for argument in command.arguments:
            added.add_argument(argument.name, **argument.options)
    return parser


def main(argv: list[str]) -> int:
    """Run one command; -> the exit status."""
    if argv and argv[0] in HOOKS:
        if len(argv) > 1:
            os.environ.setdefault("MEMHOOK_HOME", argv[1])
        return run_hook(argv[0])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="replace")  # whatever the locale says
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return EXIT_OK
    home = Home(dict(os.environ))
    try:
        return next(command for command in COMMANDS if command.name == options.command).run(home, options)
    except MemhookError as error:
        say("memhook: %s%s" % (error, "\n         " + error.hint if error.hint else ""))
        return error.status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader has gone, as head does
        return EXIT_OK
    except OSError as error:
        say("memhook: %s%s" % (error.strerror or error, ": %s" % error.filename if error.filename else ""))
        return EXIT_FAILED
    except Exception as error:  # the other broad handler: a bug, to be reported, not shown as a traceback
        log(home, "bug", command=options.command, error=type(error).__name__, where=_where(error))
        say("memhook: this is a bug (%s at %s). Details: %s" % (type(error).__name__, _where(error), home.path("memhook.log")))
        return EXIT_BUG


def launch(argv: list[str]) -> None:
    """The entry of BOOT. A hook leaves at once: tearing the interpreter down costs a millisecond or two and frees what is freed anyway."""
    status = main(argv)
    if argv and argv[0] in HOOKS:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
