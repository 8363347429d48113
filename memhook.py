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
    12. Index
    13. Search
    14. Drain
    15. Recall
    16. Hooks
    17. MCP
    18. Install
    19. Checkup
    20. Commands

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

PROGRAM = os.path.abspath(globals().get("__file__") or sys.argv[1])  # this file; the second where BOOT runs it
TYPE_CHECKING = False
if TYPE_CHECKING:  # the typing module costs a hook 6 ms; annotations are strings and need none of it
    from typing import Any, Callable, Iterator, Optional

# ==== 1. Constants ==============================================================
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
CUT_CHARS = 4_000  # how much past a cut is looked at for secrets that begin before it: a private key is no longer
SUMMARY_CHARS = 4_000  # of a compaction summary, kept only where the history before it is missing

BLOCK_BYTES = 1 << 20  # how much of a transcript is in memory at once
LINE_BYTES = 64 << 20  # a longer line is skipped and counted: no prompt is this long, pasted images included
LEAN_BYTES = 1 << 20  # above this a line's base64 is cut out before it is decoded
HOOK_BYTES = 16 << 20  # a hook reads no more than this, and leaves the rest to the drain
HOOK_SEGMENTS = 16  # a hook queues no more than this
HOOK_SECONDS = 0.08  # a hook stops reading after this: three stay below the 200 ms a person notices
EVENT_SECONDS = 0.8  # how long a hook waits for the next piece of its event: the pipe may never be closed
EVENT_MOST_SECONDS = 3.0  # and for all of them
SESSION_END_SECONDS = 0.3  # how long SessionEnd waits for another capture of the same transcript

HEAD_BYTES = 1_024  # compared at each capture, to notice that a file was replaced
FOOT_BYTES = 256  # the bytes before the offset, for the same reason
DEAD_SECONDS = 2 * 3600  # a session whose process is unknown is dead after no growth for this long
CLEANUP_MARGIN_SECONDS = 2 * 86_400  # a transcript this close to Claude's own deletion is captured as it is
FORGET_CHECKPOINT_SECONDS = 90 * 86_400  # after its transcript is gone
TEMP_SECONDS = 3_600  # a temp file this old belongs to a process that was killed
ATTEMPTS = 6  # a segment that failed this often is put where a person can look
BACKOFF_SECONDS = 60  # doubled at each attempt
TELLING_CHARS = 64  # a text this long is not said twice by chance
LOG_BYTES = 1 << 20  # then memhook.log becomes memhook.log.1

EXIT_OK, EXIT_FAILED, EXIT_USAGE, EXIT_BUG = 0, 1, 2, 3
EXIT_FOUND, EXIT_BUSY, EXIT_INTERRUPTED = 4, 75, 130

DNS_NAMESPACE = "6ba7b8109dad11d180b400c04fd430c8"  # RFC 4122, appendix C
CHILD_MARK = "[memhook: write the digest of this session segment]"  # heads the prompt of our own model calls
SPOKEN = frozenset(("prompt", "command", "shell", "answer", "plan", "reply"))  # kinds of turn that people or Claude said
BOOT = (  # an import is cached as bytecode, a script is compiled anew at every start; and nothing is ever put on sys.path
    'import os,sys;sys.excepthook=lambda*e:os._exit("MEMHOOK_CHECK"in os.environ)\n'  # a damaged program is silent, but for our own check
    'from importlib.machinery import SourceFileLoader as L;l=L("m",sys.argv[1])\n'
    'try:c=l.get_code("m")\n'
    'except(EOFError,TypeError,ValueError):c=l.source_to_code(l.get_data(l.path),l.path)\n'  # bytecode cut by power loss
    'exec(c)'
)

# ==== 2. Errors =================================================================
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


# ==== 3. Disk ===================================================================
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
    return "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ" % (*time.gmtime(seconds)[:6], milliseconds)  # strftime writes the year 1 as 1


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


def sync_folder(path: str) -> None:
    """Make the renames in a folder survive power loss."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: str) -> None:
    """Make `path` and its parents, durably, each 0700 whatever the umask."""
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
    else:
        sync_folder(parent)  # else what is synced in it is lost with it


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


def append_line(path: str, line: bytes) -> None:
    """Append a line, durably; after one that a full disk or a power loss cut short, on a line of its own."""
    fd = open_private(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        size = os.lseek(fd, 0, os.SEEK_END)
        if size:
            os.lseek(fd, size - 1, os.SEEK_SET)
            line = line if os.read(fd, 1) == b"\n" else b"\n" + line
        write_all(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)
    if not size:
        sync_folder(os.path.dirname(path))


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
        try:
            if name.endswith(".tmp") and os.path.getmtime(path) < now() - TEMP_SECONDS:
                os.unlink(path)
                swept += 1
        except OSError:
            continue  # its writer has renamed it, or it is none of ours
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


# ==== 4. Home ===================================================================
# Job:      where things are, what a person agreed to, what they set.
# Promise:  one home per Claude config folder; nothing is created here but by install.
# On error: StateError where consent.json or config.json cannot be read as what they are.

SETTINGS: dict[str, Any] = {  # name -> default; config.json or MEMHOOK_<NAME> overrides
    "quota_max": 60,  # segments that hooks may queue in a window
    "quota_window": 60,  # seconds
    "max_results": 6,  # of a search
    "recall_units": 4_000,  # UTF-16 units that a session is told at its start; at most 9,000, for the client cuts at 10,000
    "recall": "on",  # or "off": a session is told nothing at its start
    "worktrees": "shared",  # or "separate": each worktree is a project of its own
}


class Home:
    """The folders of one installation."""

    __slots__ = ("root", "config", "environ")

    def __init__(self, environ: dict[str, str]) -> None:
        self.environ = environ
        user = os.path.expanduser("~") if os.name == "nt" else environ.get("HOME") or os.path.expanduser("~")
        self.config = os.path.abspath(environ.get("CLAUDE_CONFIG_DIR") or os.path.join(user, ".claude"))  # Claude's folder
        root = environ.get("MEMHOOK_HOME")
        self.root = os.path.abspath(re.sub("^~(?=/|$)", lambda match: user, root)) if root else os.path.join(self.config, "memhook-data")

    def path(self, *parts: str) -> str:
        return os.path.join(self.root, *parts)

    def create(self) -> None:
        """Make the home. A .gitignore keeps it out of published dotfiles."""
        make_folder(self.root)
        os.chmod(self.root, 0o700)  # it may have been there before
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
        except (TypeError, ValueError, OverflowError):
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


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12  # NaN is not


def read_consent(home: Home) -> Optional[Consent]:
    """The consent to capture, or None: then nothing may be captured. Anything unreadable counts as none."""
    try:
        stored = read_json(home.path("consent.json"))
    except OSError:
        return None
    if not isinstance(stored, dict) or stored.get("format") != CONSENT_FORMAT:
        return None
    given, pauses = stored.get("capture"), stored.get("pauses", [])
    if not isinstance(given, dict) or not _is_time(given.get("at")) or not isinstance(pauses, list):
        return None
    for pause in pauses:  # one that is not understood may have been meant to last
        if not isinstance(pause, list) or len(pause) != 2 or not _is_time(pause[0]) or not (pause[1] is None or _is_time(pause[1])):
            return None
    return Consent(given["at"], pauses)


# ==== 5. Log ====================================================================
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


# ==== 6. Redact =================================================================
# Job:      take secrets out of text before anything of ours is written.
# Promise:  redact(redact(x)) == redact(x); time linear in the text, whatever it holds.
# Not:      a person's words about secrets, git SHAs, UUIDs, IP addresses, references such as $TOKEN or process.env.API_KEY.
# Calls:    redact(text), after JSON decoding and before clipping, so that no half of a key is left.

# What a rule finds is replaced by [redacted:KIND]; of a pattern with a group `v`, that group only.
# A rule is compiled when one of its hints (lower case) occurs: compiling all of them costs a hook 3 ms.
# Every repeat is bounded or starts at a token's first character: hostile text must not make them quadratic.
_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # a token begins here, also after an escaped line end
_QUOTE = r"\\{0,3}[\"']?"  # perhaps a quote, perhaps escaped
_VALUE = r"(?:[^\s\"'\\,;&<>(){}\[\]`$%%*|](?:[^\s\"'\\,;&<>(){}\[\]`$*|]|;(?!\s|\w+ ?=|$)){%s})"  # a bare value: it begins with no sign of a reference
_KEYWORD = (
    r"(?:secret|token|passw(?:or)?d|passwort|passphrase|passcode|pwd|_pass|api[_-]?key|secret[ _-]?access[ _-]?key|access[_-]?key(?:[_-]?id)?|secret[_-]?key(?:[_-]?base)?"
    r"|private[_-]?key|signing[_-]?key|encryption[_-]?key|account[_-]?key|shared[_-]?access[_-]?key|auth[_-]?key|master[_-]?key|credentials?|auth)(?:[_-]?\d{1,2}|_?b64)?"
)
_NAMED = ("secret", "token", "passw", "passphrase", "passcode", "pwd", "_pass", "api_key", "apikey", "api-key", "access_key", "accesskey", "access-key",
          "private_key", "privatekey", "private-key", "signing", "encryption", "accountkey", "account_key", "auth", "master", "credential")
_SEED_GAP = r"(?:[\s,]{1,3}|\\n|\\{0,3}[\"'],\s{0,8}\\{0,3}[\"']|(?:\s|\\n){1,8}\d{1,2}[.):]\s{0,3})"  # between two words of a seed phrase: a space, a list, an array
REDACTIONS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (  # kind, hints, pattern, why it is here
    ("private-key", ("private key",), r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)",
     "PEM, OpenSSH, PGP; unclosed: to the end"),
    ("private-key", ("private-lines", "private-mac"), r"Private-Lines: ?\d+\s+(?P<v>(?:[A-Za-z0-9+/=]{16,}\s*)+)", "PuTTY"),
    ("private-key", ("age-secret-key-",), r"AGE-SECRET-KEY-1[A-Z0-9]{20,}", "age"),
    ("ssh-key", ("aaaa",), r"(?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-nistp\d{3}|sk-ssh-ed25519@openssh\.com) (?P<v>AAAA[A-Za-z0-9+/=]{20,})",
     "a public key names a person and a machine"),
    ("anthropic-key", ("sk-ant-",), _START + r"sk-ant-[A-Za-z0-9_-]{8,}", "Anthropic"),
    ("api-key", ("sk-",), r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))sk-(?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{20,}", "OpenAI and others; the digit spares CSS class names"),
    ("stripe-key", ("k_live_", "k_test_", "whsec_"), _START + r"(?:[srp]k_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{8,}", "Stripe"),
    ("aws-key", ("akia", "asia", "abia", "acca"), _START + r"(?:AKIA|ASIA|ABIA|ACCA)(?!IOSFODNN7EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])",
     "Amazon; its documentation's example stays"),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), _START + r"(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})", "GitHub"),
    ("gitlab-token", ("glpat-", "gldt-", "glrt-", "glptt-", "glcbt-", "glft-", "glsoat-", "glagent-"),
     _START + r"gl(?:pat|dt|rt|ptt|cbt|ft|soat|agent)-[A-Za-z0-9_.-]{12,}", "GitLab"),
    ("slack-token", ("xox", "xapp-"), _START + r"(?:xox[abeoprs]-[A-Za-z0-9.-]{8,}|xapp-[A-Za-z0-9-]{8,})", "Slack"),
    ("webhook", ("hooks.slack.com", "discord.com/api/webhooks", "discordapp.com/api/webhooks"),
     r"(?:hooks\.slack\.com/(?:services|workflows)|discord(?:app)?\.com/api/webhooks)/(?P<v>[A-Za-z0-9_/-]{10,})", "whoever has the address may post"),
    ("google-key", ("aiza", "ya29.", "gocspx-"), _START + r"(?:AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{16,}|GOCSPX-[A-Za-z0-9_-]{16,})", "Google"),
    ("npm-token", ("npm_",), _START + r"npm_[A-Za-z0-9]{24,}", "npm"),
    ("pypi-token", ("pypi-",), _START + r"pypi-[A-Za-z0-9_-]{32,}", "PyPI"),
    ("huggingface-token", ("hf_",), _START + r"hf_[A-Za-z0-9]{16,}", "Hugging Face"),
    ("sendgrid-key", ("sg.",), _START + r"SG\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}", "SendGrid"),
    ("vendor-token", ("dop_v1_", "shpat_", "shpss_", "glsa_", "lin_api_", "hvs.", "dapi", "dckr_pat_", "figd_", "ntn_", "pscale_", "pmak-", "nrak-",
                      "atlasv1.", "sq0", "xkeysib-", "sntrys_", "rubygems_", "gsk_", "r8_", "tskey-"),
     _START + r"(?:dop_v1_|shpat_|shpss_|glsa_|lin_api_|hvs\.|dapi(?=[0-9a-f]{32})|dckr_pat_|figd_|ntn_|pscale_(?:tkn|pw)_|PMAK-|NRAK-"
     r"|atlasv1\.|sq0(?:atp|csp)-|xkeysib-|sntrys_|rubygems_|gsk_|r8_|tskey-(?:auth|api)-)[A-Za-z0-9_.=-]{16,}", "prefixes that vendors chose so that leaks are found"),
    ("twilio-key", ("sk",), _START + r"SK[0-9a-f]{32}(?![A-Za-z0-9])", "Twilio"),
    ("jwt", ("eyj",), r"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt]))eyJ[A-Za-z0-9_-]{5,}\.eyJ[A-Za-z0-9_-]{3,}(?:\.[A-Za-z0-9_-]*)?", "JSON Web Tokens"),
    ("telegram-token", (":aa",), r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=bot))\d{8,10}:AA[A-Za-z0-9_-]{30,}", "Telegram bots"),
    ("authorization", ("authorization",), r"(?i)(?:proxy-)?authorization" + _QUOTE + r"\s{0,3}[:=]\s{0,3}" + _QUOTE + r"\s{0,3}(?:(?:bearer|basic|token|digest|apikey|negotiate|bot)\s+"
     r"(?P<v>(?!\[redacted)" + _VALUE % "5," + r")|(?P<w>(?!\[redacted|bearer\b|basic\b|token\b)(?=\S*\d|\S{20})" + _VALUE % "5," + r"))", "HTTP headers"),
    ("bearer", ("bearer",), r"(?i)\bbearer\s+(?P<v>(?=\S*\d)[A-Za-z0-9._~+/=-]{8,}|[A-Za-z0-9._~+/=-]{24,})", "HTTP headers, quoted alone"),
    ("basic", ("basic ",), r"(?i)\bbasic\s+(?P<v>(?=[A-Za-z0-9+/]*[0-9+/=])[A-Za-z0-9+/]{8,}={0,2})(?![A-Za-z0-9-])", "HTTP basic credentials in base64"),
    ("cookie", ("cookie",), r"(?i)" + _START + r"(?:set-)?cookie" + _QUOTE + r"\s{0,3}[:,]\s{0,3}" + _QUOTE + r"(?P<v>[^\s=;\"'\\<]{1,128}=(?!<)[^\r\n\"'\\]{4,4096})", "a session is a password"),
    ("cookie", ("--cookie", "-b "), r"(?:--cookie[ =]|\s-b )" + _QUOTE + r"(?P<v>[^\s=;\"'\\<]{1,128}=(?!<)[^\r\n\"'\\]{4,4096})", "curl"),
    ("password", ("://",), r"://[^\s/:@\"'<>]{0,128}:(?P<v>(?![$<{%]|\[redacted)[^\s/\"'<>]{1,256})@", "connection strings and URLs"),
    ("token", ("://",), r"://(?P<v>(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,256})(?::x-oauth-basic)?@", "a token as the user of a URL"),
    ("signature", ("sig", "token=", "key=", "code=", "secret="), r"(?i)(?:[?&]|\b|(?<=\\u0026))(?:x-amz-(?:signature|security-token|credential)|x-goog-signature|x-goog-credential"
     r"|(?:(?<=[?&])|(?<=\\u0026))(?:sig|signature|token|access_token|refresh_token|id_token|api_?key|key|secret|code|sas))=(?P<v>(?![$<{]|\[redacted)[^\s&\"'\\<>]{6,})", "signed addresses"),
    ("password", ("login ", "login\t", "login\n"), r"login\s{1,8}[^\s\\]{1,128}(?:\s|\\[nrt]){1,8}(?:account\s{1,8}[^\s\\]{1,128}(?:\s|\\[nrt]){1,8})?password\s{1,8}(?P<v>(?!\[redacted)\S{1,256})", ".netrc"),
    ("password", ("--pass", "--token", "--api", "--secret", "--access", "--auth", "--client-secret", "--key"),
     r"--(?:password|passwd|pass|token|api-key|apikey|api-token|secret|secret-key|access-token|access-key|auth-token|client-secret|auth)(?:=|\s+)" + _QUOTE +
     r"(?P<v>(?![$<{-]|\[redacted)[^\s\"'\\]{4,})", "command lines"),
    ("password", ("-u ", "--user "), r"(?:\s|^)(?:-u|--user)\s+" + _QUOTE + r"[^\s:\"'\\]{1,128}:(?P<v>(?![$<{\d]|\[redacted)[^\s\"'\\]{3,}|\d(?=\S*[A-Za-z])[^\s\"'\\]{3,})", "curl; uid:gid stays"),
    ("password", ("mysql", "mariadb", "sshpass", "redis-cli", "docker login"), r"\b(?:(?:mysql\w*|mariadb\S*|sshpass)\b[^\r\n|;]{0,128}?\s-p|redis-cli\b[^\r\n|;]{0,128}?\s-a\s+"
     r"|(?:sshpass|docker login)\b[^\r\n|;]{0,128}?\s-p\s+)" + _QUOTE + r"(?P<v>(?![$\s]|\[redacted)[^\s\"'\\]{3,})", "clients that take it as an argument"),
    ("organization-id", ("organization-id", "organizationuuid", "accountuuid", "organization_id", "openai-organization"),
     r"(?i)(?:anthropic-organization-id|(?:owner)?(?:account|organization)uuid|openai-organization|organization_id)" + _QUOTE + r"\s{0,3}[:=]\s{0,3}" + _QUOTE + r"(?P<v>[A-Za-z0-9-]{8,})",
     "ids of accounts in headers and client state"),
    ("seed-phrase", ("mnemonic", "seed", "phrase", "recovery words"),
     r"(?i)(?:mnemonic|(?:seed|recovery|backup|secret)[ _]?(?:phrase|words)|fromphrase|\bseed\s{0,3}[:=])(?:\W{1,8}\w{1,12}){0,4}?\W{1,8}(?:1[.):]\s{0,3})?"
     r"(?P<v>(?-i:[a-z]{3,8})(?:" + _SEED_GAP + r"(?-i:[a-z]{3,8})){11,23})(?![A-Za-z])", "BIP 39"),
    ("seed-phrase", (" ",), r"(?m)^[^\S\n]{0,8}(?P<v>(?!(?:[a-z]+ ){0,23}(?:the|and|for|was|are|not|from|have|has|with|but|its|our|were|had|been|you|your)\b)"
     r"(?:[a-z]{3,8} ){11}(?:(?:[a-z]{3,8} ){3}){0,4}[a-z]{3,8})[^\S\n]{0,8}$", "BIP 39, alone on a line: 12, 15, … 24 words and no word that prose cannot do without"),
    # a name and its value in two fields, as in HTTP archives and Kubernetes manifests
    ("secret", _NAMED + ("organization", "cookie"), r"(?i)\bname" + _QUOTE + r"\s{0,3}:\s{0,3}" + _QUOTE + r"[\w-]{0,64}(?:" + _KEYWORD + r"|organization-id|cookie)" + _QUOTE +
     r",?(?:\s|\\[nrt]){1,40}" + _QUOTE + r"value" + _QUOTE + r"\s{0,3}:\s{0,3}" + _QUOTE + r"(?P<v>(?!\[redacted)" + _VALUE % "3," + r")", "HTTP archives, Kubernetes manifests"),
    # a value in quotes after a telling name; a reference, a placeholder or the name itself is none
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"\\{0,3}[\"']?\]?\s{0,3}(?:[:=]|:=|=>)\s{0,3}[rbuf]?(?P<q>[\"'`])(?P<v>(?!\[redacted)(?:\\.|(?!(?P=q))[^\\\r\n]){4,1024})(?=(?P=q))", "JSON, YAML and code"),
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"\\{0,3}[\"']?\]?\s{0,3}(?:[:=]|:=|=>)\s{0,3}\\{1,3}[\"'](?P<v>(?!\[redacted)(?:\\{3}[\"']|[^\"'\\\r\n]){4,1024})(?=\\)", "the same, escaped"),
    # NAME=value as in a shell or .env: no space around the sign
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"=(?P<v>(?!\[redacted)" + _VALUE % "2," + r")", ".env, export, query strings, ADO connection strings"),
    # name: value and name = value, bare: only where the value looks made up
    ("secret", _NAMED, r"(?i)" + _KEYWORD + r"(?: \[None\])?\s{0,3}(?:[:=]|\bis\b|\bis:)\s{1,3}(?P<v>(?=[^\s]{0,64}\d)(?=[^\s]{0,64}[A-Za-z!@#^+=/_~-])(?!\[redacted)" + _VALUE % "7," + r")", "YAML, INI, prose"),
    ("email", ("@", "%40"), r"(?:(?<![A-Za-z0-9._%+$-])|(?<=\\[nrt]))(?!(?:git|noreply|no-reply)@)[A-Za-z0-9][A-Za-z0-9._+-]{0,63}(?:@|%40)(?!example\.|users\.noreply|\dx\.)(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,24}"
     r"(?![A-Za-z0-9:]|\.[A-Za-z0-9])", "people"),
    ("home", ("/home/", "/users/", "users\\", "-home-", "-users-"), r"(?:(?:(?<![\w./~-])|(?<=\\[nrt])|(?<=://))(?:/(?:mnt/)?[a-z])?/(?:home|Users)/(?!Shared\b|Public\b)[^\s/\\:\"'<>|*?]{1,64}"
     r"|\b[A-Za-z]:(?:\\{1,4}|/)Users(?:\\{1,4}|/)(?!Shared\b|Public\b)(?:[^\\/:\"'<>|*?\r\n]{1,64}(?=[\\/])|[^\s/\\:\"'<>|*?]{1,64})|(?<=/)-(?:home|Users)-[A-Za-z0-9]{1,64})",
     "user names; what follows still opens"),
)


def _hints_by_sign() -> list[tuple[str, list[tuple[str, list[int]]]]]:
    """(sign, [(hint, the rules it calls for)]): most texts lack most signs, and then need not be searched for the hints that have them."""
    rules: dict[str, list[int]] = {}
    for rule, (_, hints, _, _) in enumerate(REDACTIONS):
        for hint in hints:
            rules.setdefault(hint, []).append(rule)
    signs: dict[str, list[tuple[str, list[int]]]] = {}
    for hint in rules:
        sign = next((sign for sign in "_@%=:./\\-" if sign in hint), "")
        signs.setdefault(sign, []).append((hint, rules[hint]))
    return list(signs.items())


_HINTS_BY_SIGN = _hints_by_sign()
_PLACEHOLDER = (  # what stands where a secret would: a reference to it, its type, a version, or a hint for the reader
    r"(?i)(?:\$|<|%|\{\{|\.\.\.|x{3,}|\*{3,}|your[_ -]|my[_ -]|the[_ -]|some[_ -]|example|placeholder|change[_-]?me$|dummy|redacted|none$|null$|undefined$|true$|false$|nil$|string$|str$|text$"
    r"|number$|int$|bytes$|object$|password$|secret$|token$|required$|optional$|import\.meta|process\.env|os\.|env\.|env\[|getenv|config\.|settings\.|self\.|this\.|secrets\.|vault:|ref:)"
    r"|.*(?:\.\.\.|…|EXAMPLE|EXAMPLEKEY)$|[\^~>=<v ]{0,3}\d+(?:\.\d+){1,3}$|(?-i:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$)|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+$"
)
_PRIVATE = r"(?is)<private>.*?(?:</private>|\Z)"


def _replace(match: re.Match[str], kind: str) -> str:
    whole = match.group(0)
    if kind == "home":
        return "~"
    if "v" not in match.re.groupindex:
        return "[redacted:%s]" % kind
    group = "v" if match.group("v") is not None else "w"
    value = match.group(group)
    if kind == "secret" and re.match(_PLACEHOLDER, value):
        return whole
    start = match.start(group) - match.start()
    return whole[:start] + "[redacted:%s]" % kind + whole[start + len(value):]


def redact(text: str, keep: tuple[str, ...] = ()) -> str:
    """The text without secrets and without what stands between <private> and </private> (unclosed: to the end); `keep`: kinds that may stay."""
    lowered = text.lower()
    if "<private>" in lowered:
        text = re.sub(_PRIVATE, "[private]", text)
        lowered = text.lower()
    found = {rule for sign, hints in _HINTS_BY_SIGN if sign in lowered for hint, rules in hints if hint in lowered for rule in rules}
    for rule in sorted(found):
        kind, _, pattern, _ = REDACTIONS[rule]
        if kind not in keep:
            text = re.sub(pattern, lambda match: _replace(match, kind), text)
    return text


def redact_path(path: str) -> str:
    """A path without secrets in it; unlike in text, the user's name stays: the path must still lead to its file."""
    return path if not path else redact(path, keep=("home",))


# ==== 7. Transcript =============================================================
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
                 cwd: str = "", branch: str = "", project: str = "", whole: tuple[str, ...] = ()) -> None:
        self.key = key  # "<uuid of the line>/<number of the turn in it>": the identity of the turn
        self.kind = kind
        self.text = text  # redacted
        self.start, self.end = start, end  # bytes of the transcript; turns of one line share it in proportion
        self.at = at  # when it was said; that of an earlier line where its own has none
        self.cwd, self.branch = cwd, branch
        self.project = project  # set by capture
        self.whole = whole  # of an answer: message_hash of the whole of it, and of all answers of its line; not stored

    @property
    def line(self) -> str:
        """The uuid of the line this came from."""
        return self.key.rsplit("/", 1)[0]

    @property
    def is_spoken(self) -> bool:
        """Whether a person or Claude said it: what may not be lost. A bare slash command is no speech (some clients write /exit after the SessionEnd)."""
        return self.kind in SPOKEN and bool(self.text.strip()) and (self.kind != "command" or len(self.text.split()) > 1)

    def to_json(self) -> list[Any]:
        return [self.key, self.kind, self.text, self.start, self.end, self.at, self.cwd, self.branch, self.project]

    @classmethod
    def from_json(cls, stored: list[Any]) -> Turn:
        return cls(*stored[:9])


class Context:
    """What the lines read so far mean for the next: {"at", "cwd", "branch", "old", "spoken", "queue", "tools", "parents"}."""

    __slots__ = ("said_at", "stamp", "version", "cwd", "branch", "old", "spoken", "queue", "tools", "parents", "skipped", "source", "withheld")

    def __init__(self, stored: Optional[dict[str, Any]] = None) -> None:
        stored = stored or {}
        self.said_at: Optional[float] = stored.get("at")  # of the last line whose time was looked at
        self.stamp = ""  # the time of a later line as it stands there: most lines say nothing, and reading it costs as much as the rest
        self.version = ""  # that `old` was found for
        self.cwd: str = stored.get("cwd", "")
        self.branch: str = stored.get("branch", "")
        self.old: bool = stored.get("old", False)  # written by a client before 2.1.97, which kept typed-ahead prompts nowhere else
        self.spoken: bool = stored.get("spoken", False)  # a prompt or an answer was seen: a compaction summary tells nothing new
        self.queue: list[list[Any]] = stored.get("queue", [])  # [key, text, start, end, at, came as a line]: typed while Claude was busy
        self.tools: dict[str, str] = stored.get("tools", {})  # tool_use id -> what was called, until its result comes
        self.parents: dict[str, list[str]] = stored.get("parents", {})  # parent of a prompt -> its uuid, its first words: another one is a rewind
        self.skipped = 0  # lines that are no JSON, or too long
        self.source = ""  # the key of the line that a prompt was typed in, where another line tells that it was used
        self.withheld: Optional[Callable[[Optional[float], str], Any]] = None  # (at, cwd) -> whether what is said then and there may be remembered; not stored

    @property
    def at(self) -> Optional[float]:
        """When the last line that had a time was written."""
        if self.stamp:
            at = parse_time(self.stamp)
            self.said_at, self.stamp = self.said_at if at is None else at, ""
        return self.said_at

    @property
    def silent(self) -> bool:
        """Whether the line being read is withheld: none of its words may stay here."""
        return bool(self.withheld and self.withheld(self.at, self.cwd))

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


def message_hash(text: str) -> str:
    """Stands for an answer as it is told by a hook and as it is written: redacted already, space aside, which the two join differently."""
    return text_hash("".join(text.split()))


def shorten(text: str, limit: int) -> str:
    """The beginning of a text, cleaned, at most `limit` characters, and how many are left out.

    What comes long after the cut is not redacted, for it is not kept; what comes just after it is, so that no half of a key is left.
    """
    text = text.strip()
    near = clean(text[:limit + CUT_CHARS]).strip()
    if len(near) <= limit and len(text) <= limit + CUT_CHARS:
        return near
    return "%s [… %d characters left out]" % (near[:limit], max(len(near), len(text)) - limit)


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
_INSERTED = ("system-reminder", "memhook-recall", "ide_opened_file", "ide_selection", "ide_diagnostics")  # put around or into a prompt by programs


def _by_person(record: dict[str, Any]) -> bool:
    origin = record.get("origin")
    return not (isinstance(origin, dict) and origin.get("kind") not in (None, "human")) and record.get("rowSource") not in ("hook", "harness")


def _cut_tag(text: str, tag: str) -> tuple[str, list[str]]:
    """The text without <tag>...</tag>, and what stood in them. In linear time: a pattern would try each opening to the end."""
    outside, inside, at = [], [], 0
    while True:
        start = text.find("<%s>" % tag, at)
        stop = text.find("</%s>" % tag, start) if start >= 0 else -1
        if stop < 0:
            return "".join(outside) + text[at:], inside
        outside.append(text[at:start])
        inside.append(text[start + len(tag) + 2:stop])
        at = stop + len(tag) + 3


def _tagged(text: str, tag: str) -> str:
    inside = _cut_tag(text, tag)[1]
    return inside[0].strip() if inside else ""


def _report_said(text: str) -> list[tuple[str, str]]:
    """A subagent's report that came after its turn: agents run in the background since about 2.1.2xx."""
    report = _tagged(text, "result")
    return [("result", "%s\n%s" % (_tagged(text, "summary") or "Agent", shorten(report, RESULT_CHARS)))] if report else []


def _prompt_said(record: dict[str, Any], text: str) -> list[tuple[str, str]]:
    """What a person typed, as the kind it is."""
    for tag in _INSERTED:
        text = _cut_tag(text, tag)[0]
    start = text.lstrip()
    if start.startswith("[Request interrupted by user"):
        return [("interrupt", "[user interrupted]")]
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
    if not isinstance(parent, str) or not prompt.strip() or context.silent:
        return []  # a tool result hangs where no prompt ever did
    uuid, first = context.parents.get(parent, ["", ""])
    context.parents[parent] = [str(record.get("uuid")), prompt.strip()[:60]]
    while len(context.parents) > 64:  # nobody rewinds past so many prompts, and the checkpoint stays small
        del context.parents[next(iter(context.parents))]
    again = not uuid or uuid == str(record.get("uuid"))  # the same line once more is history that came again
    return [] if again else [("rewind", "[the person went back to before: %s]" % first)]


def _attachment_said(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Prompts typed while Claude was busy, as clients from 2.1.97 on keep them. Every other attachment is injected text."""
    attachment = record.get("attachment")
    if not isinstance(attachment, dict) or attachment.get("type") != "queued_command" or attachment.get("isMeta"):
        return []
    if attachment.get("commandMode") == "task-notification":
        return _report_said(clean(_text(attachment.get("prompt"))))
    if attachment.get("commandMode") not in (None, "prompt") or not _by_person(attachment):
        return []
    return _prompt_said({}, clean(_text(attachment.get("prompt"))))


def _is_typed(text: str) -> bool:
    """Whether a queued text is a person's prompt: notifications and slash commands wait in the same queue; a path is no command."""
    start = text.lstrip()
    return bool(start) and not start.startswith(("<", '{"task_id')) and not re.match(r"/[\w:.-]+(?:\s|$)", start)


def _queue_said(record: dict[str, Any], key: str, where: tuple[int, int], context: Context) -> list[tuple[str, str]]:
    """Keep the queue of what was typed while Claude was busy. What clients before 2.1.97 removed from it was used, and stands nowhere else."""
    operation, text = record.get("operation"), clean(_text(record.get("content")))
    if operation == "enqueue":
        context.queue.append([key, "" if context.silent else text, where[0], where[1], context.at, False])
    elif operation == "popAll":
        context.queue.clear()  # the person took them back into the input line
    elif operation in ("dequeue", "remove") and context.queue:
        taken = next((item for item in context.queue if item[1] == text), context.queue[0])
        context.queue.remove(taken)
        if operation == "remove" and context.old and _is_typed(taken[1]):
            context.source = taken[0]
            return [("prompt", taken[1])]
    return []


def _note_typed(said: list[tuple[str, str]], context: Context) -> None:
    """A queued text that came as a line is not kept again at the end, should the line that takes it off the queue be lost."""
    for kind, text in said:
        item = next((item for item in context.queue if kind == "prompt" and item[1].strip() == text.strip() and not item[5]), None)
        if item:
            item[5] = True


# ---- what came back from tools

def _refusal_said(text: str) -> list[tuple[str, str]]:
    """A person's refusal of a tool call, with their reason in full: it is theirs, not the tool's."""
    if not text.lstrip().startswith(("The user doesn't want to", "The agent proposed a plan that was rejected by the user")):
        return []  # servers reject things too
    reason = re.search(r"(?s)(?:the user said|user provided the following reason for the rejection)[^:]{0,80}:\s*(.+)", text)
    return [("reply", "[refused] " + clean(reason.group(1)))] if reason else [("interrupt", "[the user refused a tool call]")]


def _answers(details: dict[str, Any]) -> str:
    answers = details.get("answers")
    if not isinstance(answers, dict):
        return ""
    return clean("\n".join("%s: %s" % (question, _text(answer) or json.dumps(answer, ensure_ascii=False)) for question, answer in answers.items()))


def _unwrap(text: str) -> str:
    return re.sub(r"</?tool_use_error>", "", text)


_TOLD_RESULTS = ("AskUserQuestion", "ExitPlanMode", "Task:", "Agent:")  # tools whose result is kept: a person's answer, a subagent's report


def _result_said(block: dict[str, Any], record: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    """What a tool result tells: a person's answer or refusal, a failure, a subagent's report. Output is not kept."""
    called = context.tools.pop(str(block.get("tool_use_id")), "")
    details = record.get("toolUseResult")
    details = details if isinstance(details, dict) else {}
    stderr = details.get("stderr")
    asked = called.startswith("AskUserQuestion") or ("answers" in details and "questions" in details)
    if not (block.get("is_error") or asked or called.startswith(_TOLD_RESULTS)):
        if isinstance(stderr, str) and re.search(r"(?i)error|fail|traceback", stderr):
            return [("error", "%s\n%s" % (called or "Bash", shorten(stderr, COMMAND_CHARS)))]
        return []  # redacting what is not kept would cost more than all the rest
    text = _text(block.get("content"))
    if block.get("is_error"):
        return _refusal_said(text) or [("error", "%s\n%s" % (called or "tool", shorten(_unwrap(text), ERROR_CHARS)))]
    if asked:
        return [("reply", _answers(details) or clean(text))]
    if called.startswith("ExitPlanMode"):
        return [("reply", shorten(text, COMMAND_CHARS))]
    if details.get("status") == "async_launched":
        return []  # its report comes as a <task-notification>
    return [("result", "%s\n%s" % (called, shorten(text, RESULT_CHARS)))]


def _user_said(record: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    """What a user line says. The order of the tests is that in which the client's own kinds exclude each other."""
    blocks = _blocks(record)
    said = [pair for block in blocks if block.get("type") == "tool_result" for pair in _result_said(block, record, context)]
    text = "\n\n".join(_text(block.get("text")) for block in blocks if block.get("type") == "text")
    if record.get("isCompactSummary") or record.get("isVisibleInTranscriptOnly") or text.startswith(_SUMMARY_START):
        return said if context.spoken else said + [("summary", shorten(text, SUMMARY_CHARS))]
    if text.startswith("<task-notification>"):
        return said + _report_said(clean(text))
    if record.get("isMeta") or not _by_person(record):
        return said
    said += _prompt_said(record, clean(text)) if text.strip() else []
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
    "Read", "Grep", "Glob", "LS", "TodoWrite", "TodoRead", "NotebookRead", "ToolSearch", "BashOutput", "TaskOutput", "TaskStop", "TaskCreate", "TaskUpdate", "TaskList", "TaskGet", "KillShell", "EnterPlanMode",
))
_TOLD_BY = {  # tool -> the argument that tells what it did
    "Edit": "file_path", "Write": "file_path", "MultiEdit": "file_path", "NotebookEdit": "notebook_path", "Task": "description", "Agent": "description",
    "WebFetch": "url", "WebSearch": "query", "Skill": "skill", "SlashCommand": "command",
}


def _tool_line(name: str, given: dict[str, Any]) -> str:
    """One line: the tool and what it was asked to do."""
    if name == "Bash":
        command = shorten(_text(given.get("command")), COMMAND_CHARS)
        reason = shorten(_text(given.get("description")), INPUT_CHARS)
        return "Bash: " + command + ("  # " + reason if reason else "")
    if name in _TOLD_BY:
        return "%s: %s" % (name, shorten(_text(given.get(_TOLD_BY[name])), COMMAND_CHARS))
    return "%s: %s" % (name, shorten(json.dumps(given, ensure_ascii=False), INPUT_CHARS))


def _questions(given: dict[str, Any]) -> str:
    asked = given.get("questions")
    texts = [_text(question.get("question")) for question in asked if isinstance(question, dict)] if isinstance(asked, list) else [_text(given.get("question"))]
    return clean("\n".join(texts))


def _tool_said(block: dict[str, Any], context: Context) -> list[tuple[str, str]]:
    name = str(block.get("name") or "tool")
    name = name if name.isascii() and name.isidentifier() and len(name) < 32 else clean(name)
    given = block.get("input")
    given = given if isinstance(given, dict) else {}
    line = _tool_line(name, given)
    if not context.silent:
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
    synthetic = isinstance(message, dict) and message.get("model") == "<synthetic>"
    if record.get("isApiErrorMessage") or (synthetic and record.get("isApiErrorMessage") is not False):
        return []  # 2.1.197 keeps what had been said of an interrupted answer as "<synthetic>", no API error
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
    said = [pair for pair in said if pair[1].strip()]
    if not said:
        return said
    if context.queue and record.get("type") != "queue-operation":
        _note_typed(said, context)
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
    return [record for record in found if isinstance(record, dict) and "sessionId" in record]  # others are parts of a cut one: a subagent's messages


def parse_records(line: bytes, context: Context) -> list[dict[str, Any]]:
    """The JSON objects on one physical line: one as a rule, more where a foreign write came between, none if it is broken."""
    if len(line) > LEAN_BYTES:
        line = re.sub(rb'("(?:data|base64|signature)": ?)"[A-Za-z0-9+/=]{2000,}"', rb'\1""', line)  # pasted images
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
    stamp = record.get("timestamp")
    if isinstance(stamp, str) and stamp[10:11] in ("T", " "):
        context.stamp = stamp
    cwd, branch = record.get("cwd"), record.get("gitBranch")
    if isinstance(cwd, str) and cwd and cwd != context.cwd:
        context.cwd = redact_path(_whole_text(cwd))
    if isinstance(branch, str) and branch and branch != context.branch:
        context.branch = clean(branch)
    version = record.get("version")
    if isinstance(version, str) and version != context.version:
        context.version = version
        numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", version)[:3]]
        context.old = numbers < [2, 1, 97]


def _share_bytes(turns: list[Turn], start: int, end: int) -> None:
    for number, turn in enumerate(turns):
        turn.start = start + (end - start) * number // len(turns)
        turn.end = start + (end - start) * (number + 1) // len(turns)


def _is_plain_result(line: bytes, context: Context) -> bool:
    """Whether nothing is kept of a line: one tool's output, no failure, no answer, no report. Half of a transcript's bytes are such.

    Only of the client's own spelling of JSON; whatever looks otherwise is parsed. Quotes within strings are escaped, so none of these can stand in one.
    """
    at = line.find(b'"tool_use_id":"')
    if at < 0 or line.count(b'"tool_use_id"') > 1 or b'"is_error":true' in line or b'"is_error": true' in line or b'"type":"text"' in line or b'"answers"' in line:
        return False
    if b'"stderr"' in line and b'"stderr":""' not in line:
        return False
    tool = line[at + 15:line.find(b'"', at + 15)].decode("utf-8", "replace")
    if "\\" in tool or context.tools.get(tool, "").startswith(_TOLD_RESULTS):
        return False
    context.tools.pop(tool, None)
    return True


def parse_line(line: bytes, start: int, end: int, context: Context) -> list[Turn]:
    """The turns of one line, whose bytes they share in proportion."""
    if not (b'"user"' in line or b'"assistant"' in line or b"queue" in line) or _is_plain_result(line, context):
        return []  # a few searches are cheaper than parsing it
    turns: list[Turn] = []
    for record in parse_records(line, context):
        key = _record_key(record, line)
        if key == record.get("uuid") and any(turn.line == key for turn in turns):
            continue  # the same record twice on one line
        _note_place(record, context)
        said = _said(record, key, (start, end), context)
        if not said:
            continue
        key, context.source = context.source or key, ""
        number = sum(turn.line == key for turn in turns)
        answers = [text for kind, text in said if kind == "answer"]
        for kind, text in said:
            whole = tuple(dict.fromkeys((message_hash(text), message_hash("".join(answers))))) if kind == "answer" else ()
            for part in split_text(text) if kind in SPOKEN else [text]:
                turns.append(Turn("%s/%d" % (key, number), kind, part, start, end, context.at, context.cwd, context.branch, "", whole))
                number += 1
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


# ==== 8. Spool ==================================================================
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
        self.attempts = int(attempts) if attempts.isdecimal() else 0
        self.not_before = int(not_before) if not_before.isdecimal() else 0  # seconds since the epoch

    def renamed(self, attempts: int, not_before: int) -> str:
        return "%s%s.json" % (self.stem, ",a%d,t%d" % (attempts, not_before) if attempts or not_before else "")


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

    def claim_all(self, tried: Optional[set[str]] = None) -> Iterator[Item]:
        """Claim one item after the other, oldest name first, until none is left that may be tried now. Names go into `tried`, and are not tried again."""
        tried = set() if tried is None else tried
        while True:
            ready = [item for item in self.items("new") if item.not_before <= now() and item.name not in tried]
            if not ready:
                return
            for item in ready:
                tried.add(item.name)
                try:
                    claimed = self._move(item, "new", "claimed", item.name)
                except PermissionError:  # a folder that may not be written: it stays, and delays nobody
                    continue
                if claimed:
                    yield item

    def read(self, item: Item) -> bytes:
        with open(os.path.join(self.root, "claimed", item.name), "rb") as stream:
            return stream.read()

    def holds(self, item: Item) -> bool:
        """Whether a claimed item is still there, be it a link to nothing."""
        return os.path.lexists(os.path.join(self.root, "claimed", item.name))

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
    append_line(home.path("receipts.jsonl"), line + b"\n")


def last_segment(home: Home, key: str) -> int:
    """The highest segment number that was ever queued of a transcript, -1 if none was."""
    spool = Spool(home.path("spool"))
    stems = [item.stem.split("-") for state in ("new", "claimed", "dead") for item in spool.items(state)]
    waiting = [int(parts[2]) for parts in stems if len(parts) == 4 and parts[1] == key and parts[2].isdecimal()]
    done = [receipt.get("segment") for receipt in read_receipts(home, key)]
    return max([number for number in done if isinstance(number, int)] + waiting, default=-1)


# ==== 9. Capture ================================================================
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


def _worktree(folder: str, marker: str) -> str:
    """The name of a worktree in its repository, where it is unique; "" for a repository or a submodule."""
    link = (read_file(marker) or b"").decode("utf-8", "replace").strip() if os.path.isfile(marker) else ""
    git = os.path.normpath(os.path.join(folder, link[len("gitdir:"):].strip()))
    return os.path.basename(git) if link and os.path.exists(os.path.join(git, "commondir")) else ""


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
            return key + "#" + _worktree(folder, marker) if separate_worktrees and _worktree(folder, marker) else key
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
        "told",  # size of the file when Stop told of it; -1 where not even its prompt was there
        "answered",  # hashes of the last answer since the last prompt, as Turn.whole, joined by spaces
        "early",  # [hash, told] of messages that became turns before their line came: the line is skipped then
        "state",  # open, closed (SessionEnd came, or the session was found dead)
        "client",  # [pid, start time] of the session's process; [0, ""] where it is not known
        "own",  # True for a session of our own summariser, which is never captured; None while undecided
        "off",  # MEMHOOK_OFF was set for the session
        "off_folders",  # working folders found switched off: what was said there stays out, also when the drain reads it later
        "off_until",  # bytes written while MEMHOOK_OFF was set, when the session went on without it
        "ended",  # SessionEnd came, and had to leave something to the drain
        "born_at",  # lines older than this may be copies from other transcripts
        "newest_at",  # of the turns taken; a line not newer than this may be here for the second time
        "projects",  # cwd -> project key
        "deferred",  # a hook left bytes for the drain
        "cutting",  # the tail was being queued: its numbers may be used up, though `segment` does not say so
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
        self.told = -1
        self.answered = ""
        self.early: list[list[Any]] = []
        self.state = "open"
        self.client: list[Any] = [0, ""]
        self.own: Optional[bool] = None
        self.off = self.deferred = self.ended = self.cutting = False
        self.off_folders: list[str] = []
        self.off_until = 0
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
        numbers = (int, float)
        for name in cls.__slots__:
            default, value = getattr(checkpoint, name), stored[name]
            wanted = dict if name == "context" else numbers if isinstance(default, numbers) else type(default)
            if default is not None and not isinstance(value, wanted):
                raise TypeError(name)
            if isinstance(default, list) and default and [type(part) for part in value] != [type(part) for part in default]:
                raise TypeError(name)
            setattr(checkpoint, name, value)
        if checkpoint.pending is not None and [type(part) for part in checkpoint.pending] != [str, str]:
            raise TypeError("pending")
        checkpoint.turns = [Turn.from_json(turn) for turn in stored["turns"]]
        checkpoint.context = Context(stored["context"])
        if not all(isinstance(turn.key, str) and isinstance(turn.text, str) for turn in checkpoint.turns):
            raise TypeError("turns")
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
    version = stored.get("format")
    if isinstance(version, int) and version > CHECKPOINT_FORMAT:
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
        checkpoint.cutting = os.path.getsize(home.path("seen", key)) > 0
    if checkpoint.cutting:
        checkpoint.segment, checkpoint.cutting = max(checkpoint.segment, last_segment(home, key) + 1), False
    return checkpoint


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

    def __init__(self, home: Home, consent: Consent, request: Request, key: str, seen: dict[str, set[bytes]]) -> None:
        self.home, self.consent, self.request, self.key = home, consent, request, key
        self.done = Captured()
        self.message = clean(request.message)
        self.checkpoint = find_checkpoint(home, key, request)
        self.spool = Spool(home.path("spool"))
        self.changed = False  # the checkpoint on disk is out of date
        self.taken: list[bytes] = []  # hashes of lines whose last turn was queued by this capture
        self.answers: list[str] = []  # hashes of the answers read by it
        self.seen = seen  # key prefix -> what read_seen gave for it, read when first needed
        self.off: dict[str, bool] = {}  # cwd -> whether it is switched off
        self.deadline = time.monotonic() + HOOK_SECONDS

    # the run

    def run(self, lock: Lock) -> None:
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
            self._finish(lock)
        self.done.deferred = self.checkpoint.deferred

    def commit(self, lock: Lock) -> None:
        """`seen` first, then the checkpoint: a line must not count as taken before it is in the spool, nor be taken twice."""
        if self.taken:
            torn = os.fstat(lock.fd).st_size % 8  # a full disk took only part of a hash
            write_all(lock.fd, b"\0" * (-torn % 8) + b"".join(self.taken))
            for prefix in (self.key, self.key[:8]):
                self.seen.get(prefix, set()).update(self.taken)
            self.taken = []
        if self.changed:
            write_checkpoint(self.home, self.key, self.checkpoint)

    def _note_session(self) -> None:
        """What a hook knows of its session: its process, and whether MEMHOOK_OFF is set for it."""
        checkpoint, request = self.checkpoint, self.request
        client = request.client or [0, ""]
        if request.live and (client, request.off) != (checkpoint.client, checkpoint.off):
            checkpoint.client, checkpoint.off = client, request.off
            self.changed = True
        if checkpoint.own is None and not checkpoint.parsed and self._is_inside(request.cwd):
            checkpoint.own = self.changed = True  # before anything is read: there may never be a file

    def _is_new(self, status: Optional[os.stat_result]) -> bool:
        """The stat gate: new bytes, a new last message, an end not noted yet, or something that was put off."""
        checkpoint, request = self.checkpoint, self.request
        if checkpoint.deferred or (request.past and self._has_past()) or (request.final and (checkpoint.state == "open" or checkpoint.turns)):
            return True
        if self.message and message_hash(self.message) not in checkpoint.answered.split():
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
        checkpoint.context, checkpoint.withheld, checkpoint.off_until = Context(), [], 0
        checkpoint.early = [[digest, -1] for digest, _ in checkpoint.early]
        checkpoint.born_at = now()

    def _read(self, stream: Any) -> None:
        """Take line after line, to the end or to the limits of a hook. The checkpoint always stands at the end of a line."""
        checkpoint, live = self.checkpoint, self.request.live
        checkpoint.context.withheld = self._why_not
        stop = checkpoint.parsed + HOOK_BYTES if live else None
        for line, start, end in read_lines(stream, checkpoint.parsed, stop, self.request.final) if self._cut() else ():
            turns = parse_line(line, start, end, checkpoint.context)
            checkpoint.context.skipped += end - start > LINE_BYTES and not line
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
        fresh = [turn for turn in turns if not self._is_repeat(turn)]  # of two records on one line either may be old
        self.done.repeats += not fresh
        self._note_answers(turns, fresh)
        for turn in self._not_early([turn for turn in fresh if not self._withhold(turn)]):
            self._place(turn)
            checkpoint.turns.append(turn)
            checkpoint.newest_at = max(checkpoint.newest_at, turn.at or 0.0)
            self.done.turns += 1
        return True

    def _is_inside(self, cwd: str) -> bool:
        """Whether a folder is in our home, where only our own summariser runs."""
        root = os.path.join(os.path.realpath(self.home.root), "")
        return bool(cwd) and os.path.join(os.path.realpath(_whole_text(cwd)), "").startswith(root)

    def _is_own(self, turns: list[Turn]) -> bool:
        """Whether this is a session of our own summariser: its first prompt carries our mark, or it runs in our home."""
        for turn in turns:
            if turn.kind == "prompt":
                self.checkpoint.own = False
            if (turn.kind == "prompt" and turn.text.startswith(CHILD_MARK)) or self._is_inside(turn.cwd or self.request.cwd):
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

    def _why_not(self, at: Optional[float], cwd: str) -> str:
        """Why what was said then and there is not ours to take; "" if it is."""
        return "off" if self._is_off(cwd or self.request.cwd) else "" if self.request.past else self.consent.covers(at)

    def _withhold(self, turn: Turn) -> bool:
        """Record the turn as withheld if it is not ours to take; -> whether it is."""
        reason = "off" if turn.start < self.checkpoint.off_until else self._why_not(turn.at, turn.cwd)
        if reason:
            self._record_withheld(turn, reason)
        if reason == "off":
            self.taken.append(line_hash(turn.line))  # it stays out wherever the line comes again, and whether or not the switch is still there
        return bool(reason)

    def _is_off(self, cwd: str) -> bool:
        checkpoint = self.checkpoint
        if cwd not in self.off:
            self.off[cwd] = checkpoint.off or cwd in checkpoint.off_folders or (bool(cwd) and switched_off(cwd))
            if self.off[cwd] and not checkpoint.off and cwd not in checkpoint.off_folders:
                checkpoint.off_folders.append(cwd)
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

    def _note_answers(self, turns: list[Turn], fresh: list[Turn]) -> None:
        """Note what was answered, be it taken, withheld or old; a new line with the pending message is what that waited for."""
        checkpoint = self.checkpoint
        for turn in turns:
            if turn.kind == "prompt":
                checkpoint.answered = ""
            elif turn.whole:
                checkpoint.answered = " ".join(turn.whole)
                self.answers += turn.whole
        if checkpoint.pending and any(checkpoint.pending[0] in turn.whole for turn in fresh):
            checkpoint.pending = None
        for start in [turn.start for turn in fresh if turn.kind == "prompt"][:1]:  # lines keep their order: what did not come before this will not come
            checkpoint.early = [[digest, max(told, 0)] for digest, told in checkpoint.early if told < 0 or start < told]

    def _not_early(self, turns: list[Turn]) -> list[Turn]:
        """The turns of a line without an answer that became a turn before its line came."""
        checkpoint = self.checkpoint
        early = [item for item in checkpoint.early if any(item[0] in turn.whole for turn in turns)][:1]
        for item in early:
            checkpoint.early.remove(item)
        kept = [turn for turn in turns if not any(item[0] in turn.whole for item in early)]
        self.taken += [line_hash(line) for line in dict.fromkeys(turn.line for turn in turns if turn not in kept)]  # it may come again
        return kept

    def _settle_message(self) -> None:
        """Keep Stop's last message until its line comes: the hook may run before the client has written it."""
        checkpoint, message = self.checkpoint, self.message
        digest = message_hash(message)
        checkpoint.context.cwd = checkpoint.context.cwd or redact_path(_whole_text(self.request.cwd))  # no line may ever come to tell it
        if message.strip() in ("",) + _EMPTY_ANSWERS or digest in checkpoint.answered.split() or self._is_off(self.request.cwd) or self._is_off(checkpoint.context.cwd):
            return
        if digest not in self.answers:
            self._keep_pending()  # an older one: its line did not come before a newer message, so it will not
            checkpoint.pending, checkpoint.told = [digest, message], checkpoint.size if checkpoint.context.spoken and not checkpoint.answered else -1
        checkpoint.answered = digest

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
        checkpoint.early.append([digest, checkpoint.told])
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
        checkpoint.turns, checkpoint.queued = rest, max(checkpoint.queued, chunk.end_byte)  # a prompt typed ahead may lie before
        checkpoint.segment += 1
        self.done.segments += 1

    def _finish(self, lock: Lock) -> None:
        """At the end of a session: the message that never came, prompts that never ran, the tail."""
        checkpoint = self.checkpoint
        if self.request.live:
            checkpoint.state, checkpoint.ended = "open", self.request.final
        if not self.request.final or checkpoint.deferred:
            return
        self._keep_pending()
        self._keep_queued()
        chunks = plan_tail_segments(checkpoint.turns)
        if chunks:
            # A tail is cut otherwise once more was said. Killed between spool and checkpoint, we could not know that its number
            # is used, nor that the last message became a turn before its line came: so both are noted before.
            checkpoint.cutting, checkpoint.state = True, "open"
            self.commit(lock)
        checkpoint.cutting = False
        for chunk in chunks:
            if self.request.live and not self._may_queue():
                checkpoint.deferred = True
                return
            self._queue(chunk)
        checkpoint.state = "closed"

    def _keep_queued(self) -> None:
        """Prompts that were typed ahead and never came to their turn: they were said."""
        checkpoint = self.checkpoint
        for key, text, start, end, at, came in checkpoint.context.queue:
            for number, part in enumerate(split_text(text) if _is_typed(text) and not came else ()):
                turn = Turn("%s/%d" % (key, number), "prompt", part, start, end, at, checkpoint.context.cwd, checkpoint.context.branch)
                if not self._withhold(turn):
                    self._place(turn)
                    checkpoint.turns.append(turn)
        checkpoint.context.queue = []
        checkpoint.turns.sort(key=lambda turn: turn.start)


def capture(home: Home, consent: Consent, request: Request, seen: Optional[dict[str, set[bytes]]] = None) -> Captured:
    """Queue what is new in a transcript. Safe to call again, and from several processes: one at a time gets the lock.

    `seen`: what read_seen gave to earlier calls, kept by a caller that captures many transcripts.
    """
    key = transcript_key(request.path)
    with Lock(home.path("seen", key)) as lock:
        if not lock.acquire(request.wait_seconds):
            return Captured(busy=True)
        taking = Taking(home, consent, request, key, {} if seen is None else seen)
        taking.run(lock)
        taking.commit(lock)
    return taking.done


# ==== 10. Memory ================================================================
# Job:      a segment and its digest as one Markdown file, and back; the folder of these files.
# Promise:  parse_memory(render_memory(...)) has the same turns, whatever they hold; write() replaces nothing a person changed.
# Not:      an index. Markdown is the truth; what a person edits or deletes stays edited or deleted.
# Format:   front matter whose values are JSON (so it is YAML too), "# Title", digest sections, "## Transcript": each turn is
#           a line <!-- turn KEY KIND TIME START-END --> and its text; a text line that looks like one gets a backslash.

_TRANSCRIPT = "## Transcript"
_MARKER = r"<!-- turn (\S+) (\S+) (\S+) ([0-9]{1,18})-([0-9]{1,18}) -->"


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


def _yaml(value: Any) -> str:
    """JSON that is YAML too: what YAML forbids or takes for a line end is escaped (YAML 1.2, 5.1 and 5.4; 1.1, 4.2)."""
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda match: "\\u%04x" % ord(match.group()), json.dumps(value, ensure_ascii=False))


def render_memory(front: dict[str, Any], digest: str, turns: list[Turn]) -> bytes:
    """The file's bytes: deterministic, UTF-8, lines ended by newlines only."""
    head = "".join("%s: %s\n" % (name, _yaml(value)) for name, value in front.items())
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
            except (ValueError, RecursionError):
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
    text = data.decode("utf-8-sig", "replace")
    if text.startswith("---\r\n"):  # an editor or git has converted the line ends; ours are newlines
        text = text.replace("\r\n", "\n")
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


class Graves:
    """What was forgotten on purpose: uuids of lines and hashes of turns."""

    __slots__ = ("names",)

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def holds(self, turn: Turn) -> bool:
        """By the line it came from; by its text only where the text tells one turn from all others: "yes" was said before and will be again."""
        return turn.line in self.names or (len(turn.text) >= TELLING_CHARS and text_hash(turn.text) in self.names)


def read_graves(home: Home) -> Graves:
    """tombstones.jsonl: {"at", "memory": id, "turns": [text hash], "lines": [uuid]} a line."""
    names: set[str] = set()
    for line in (read_file(home.path("tombstones.jsonl")) or b"").split(b"\n"):
        try:
            stored = json.loads(line) if line else {}
        except ValueError:
            continue
        if isinstance(stored, dict):
            names.update(str(name) for listed in (stored.get("turns"), stored.get("lines")) if isinstance(listed, list) for name in listed)
    return Graves(names)


# ==== 11. Distil ================================================================
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
    "pattern": r"\b(?:from now on|going forward|in (?:the )?future|conventions?|rule of thumb|(?:the|new|our|a|your) rule|as a rule|remember (?:to|that)|in this (?:repo\w*|project|codebase)|(?:don'?t|do not) ever|CLAUDE\.md)\b"
    r"|\b(?:künftig|ab jetzt|ab sofort|in zukunft|konvention|(?:die|neue|als) regel)\b|\b(?:désormais|à partir de maintenant|à l'avenir|règle)\b|\b(?:a partir de ahora|en adelante|a partir de agora|daqui em diante|convención|regla|regra)\b|\b(?:d'ora in poi|regola)\b"
    r"|(?:правило|отныне|впредь)|(?:以后|以後|今后|今後|一律|约定|約定|规则|規則)|(?:今後は|これからは|ルール|規約)|(?:앞으로|규칙)",
    "order": r"\b(?:always|never|every time|make sure|must(?: not|n'?t)?|only ever|no \w+ in this)\b|\b(?:immer|niemals|nie|nur noch)\b|\b(?:toujours|jamais)\b|\b(?:siempre|nunca|sempre)\b|(?:всегда|никогда)|(?:总是|總是|永远|必须|必須|千万|绝不|別|别再)|(?:必ず|常に|決して|絶対)|(?:항상|절대|반드시)",
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


def _find(exchanges: list[Exchange], kind: str, asked: str = "") -> list[str]:
    """Sentences of a kind, of prompts, answers, plans and replies; `asked`: a kind that counts only where a person said it."""
    found = []
    for exchange in exchanges:
        texts = [(exchange.prompt, True)] + [(turn.text, turn.kind == "reply") for turn in exchange.turns if turn.kind in ("answer", "plan", "reply")]
        for text, by_person in texts:
            cues = "(?i)" + _CUES[kind] + ("|" + _CUES[asked] if asked and by_person else "")
            found += [one_line(sentence) for heading, sentence in statements(text) if heading == kind or (not heading and re.search(cues, sentence))]
    return _unique([item for item in found if len(item) > 8], _ITEMS)


def _open_threads(exchanges: list[Exchange]) -> list[str]:
    """What was said to be left, of the last exchanges first of all, and a prompt that got no answer."""
    found = _find(exchanges[-3:], "open") or _find(exchanges, "open")
    if exchanges and exchanges[-1].prompt and not exchanges[-1].answers:
        found.append("Unanswered: " + one_line(exchanges[-1].prompt))
    return found[-_ITEMS:]


def _telling_line(text: str) -> str:
    """Of an error message, the line that names the error: the last one that looks like it, else the first that is not a status."""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    named = [line for line in lines if re.search(_ERROR_LINE, line) and not re.match(r"(?i)exit code|=+ ", line)]
    plain = [line for line in lines if not re.match(r"(?i)exit code", line)] or lines or [""]
    return one_line(named[-1] if named else plain[0], 200)


def _resolution(answers: list[str]) -> str:
    """What the answers after a problem say of its cause and cure; else what was said next."""
    said = [pair for answer in answers for pair in statements(answer)]
    fixes = [sentence for heading, sentence in said if heading == "fix" or re.search("(?i)" + _CUES["fix"], sentence)]
    return one_line(" ".join(dict.fromkeys(fixes[:1] + fixes[-1:]))) if fixes else one_line(gist(answers[0], 200)) if answers else "nothing was said of it"


def _problems(exchanges: list[Exchange]) -> list[str]:
    """Problem → resolution: each problem that a person reported or a tool ran into, with what the next answers say of it."""
    found: list[tuple[str, int]] = []  # (problem, how many answers came before it)
    answers: list[str] = []
    for exchange in exchanges:
        reported = [sentence for _, sentence in statements(exchange.prompt) if re.search("(?i)" + _CUES["problem"], sentence)]
        found += [(one_line(reported[0], 200), len(answers))] if reported else []
        for turn in exchange.turns:
            if turn.kind == "error":
                found = [pair for pair in found if pair[1] < len(answers)] + [(_telling_line(turn.text.partition("\n")[2]), len(answers))]
            elif turn.kind in ("answer", "plan"):
                answers.append(turn.text)
    return _unique(["%s → %s" % (problem, _resolution(answers[at:at + 3])) for problem, at in found if problem], _ITEMS)


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
        found += [one_line(turn.text.partition("\n")[2]) for turn in exchange.turns if turn.kind == "error"]
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
    digest.patterns = _find(exchanges, "pattern", asked="order")
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


# ==== 12. Index =================================================================
# Job:      a SQLite copy of the store that can be searched; as the Markdown is now, not as it was.
# Promise:  derived: delete it and it comes back. Nothing is only here but the embedding cache, which costs time to rebuild.
# Not:      ranking (Search). A store without an index can still be read, only slower.
# Calls:    open_index() -> sync() -> the tables; drop() and forget with it when a memory goes
# On error: IndexUnavailable where another process holds the database too long; a damaged or newer file is rebuilt.

INDEX_FORMAT = 1
BUSY_SECONDS = 8.0  # how long a search waits for another process that writes
CHUNK_TOKENS = 400  # of digests, notes and long turns
OVERLAP_TOKENS = 80  # between two chunks of digests and notes, so that no sentence is cut off from its context
SHORT_CHARS = 600  # turns below this are found by their neighbours' words too; longer ones speak for themselves
NEIGHBOURS = 2  # before and after
EVERYWHERE = "zzallq"  # a word that every unit has: it lets a query select by some words and score by others

_SCHEMA = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT);
CREATE TABLE files(
  id INTEGER PRIMARY KEY, path TEXT UNIQUE NOT NULL, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, hash TEXT NOT NULL,
  memory TEXT NOT NULL, project TEXT NOT NULL, session TEXT NOT NULL, segment INTEGER NOT NULL, at REAL NOT NULL, title TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX files_project ON files(project, at);
CREATE INDEX files_memory ON files(memory);
CREATE TABLE chunks(
  id INTEGER PRIMARY KEY, file INTEGER NOT NULL REFERENCES files(id) ON DELETE CASCADE, source TEXT NOT NULL, session TEXT NOT NULL, place INTEGER NOT NULL,
  at REAL NOT NULL, start_line INTEGER NOT NULL, end_line INTEGER NOT NULL, text TEXT NOT NULL, head TEXT NOT NULL, hash TEXT NOT NULL, dated INTEGER NOT NULL);
CREATE INDEX chunks_file ON chunks(file);
CREATE INDEX chunks_session ON chunks(session, place) WHERE source = 'session';
CREATE TABLE chunks_vec(chunk INTEGER PRIMARY KEY REFERENCES chunks(id) ON DELETE CASCADE, model TEXT NOT NULL, vector BLOB NOT NULL);
CREATE TABLE embedding_cache(hash TEXT NOT NULL, model TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY(hash, model)) WITHOUT ROWID;
"""
_FULL_TEXT = """
CREATE VIRTUAL TABLE chunks_fts USING fts5(body, ctx, meta, content='', tokenize='porter unicode61 remove_diacritics 2');
CREATE VIRTUAL TABLE vocabulary USING fts5vocab('chunks_fts', 'row');
"""


class IndexUnavailable(MemhookError):
    """The index cannot be used now; the memories are not affected."""


# ---- words

_STOP_WORDS = frozenset("""
a about after again all also am an and any are aren as at be because been before being between both but by can cannot could couldn d did didn do does
doesn doing don during each few for from further get got had has hasn have haven having he her here hers herself him himself his how i if in into is isn it its
itself just let ll like m me more most my no nor not now of off on once only or other our ours out over own re s same she should shouldn so some such t than that the
their theirs them then there these they this those through to too under until up us ve very was wasn we were weren what when where which while who whom whose why will
with won would wouldn you your yours
""".split())

# scripts that do not separate words by spaces, and Korean, whose particles stick to the word: indexed by pairs of characters
_UNSPACED = r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\uff66-\uff9f\U00020000-\U0002fa1f]+"
_IDENTIFIER_PART = r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+"
_DATED = frozenset(  # words that place something in time; used only where the question asks when
    "yesterday today tonight tomorrow ago last next week weeks weekend weekends month months year years monday tuesday wednesday thursday friday saturday sunday "
    "january february march april may june july august september october november december".split()
)


def pair_words(run: str) -> list[str]:
    """Words for a run of unspaced script: each pair of characters, and the last one alone, spelt so that no tokenizer splits them."""
    codes = ["%06x" % ord(char) for char in run]
    return ["zc%s%sq" % pair for pair in zip(codes, codes[1:])] + ["zc%sq" % codes[-1]]


def searchable(text: str) -> str:
    """The text with unspaced script replaced by pair words, so that ASCII glued to it is a word of its own."""
    return text if text.isascii() else re.sub(_UNSPACED, lambda match: " %s " % " ".join(pair_words(match.group())), text)


def identifier_parts(text: str) -> list[str]:
    """The parts of camelCase, PascalCase and letter-digit identifiers (the tokenizer itself splits snake_case, paths and dots)."""
    found = []
    for word in re.findall(r"[A-Za-z0-9]{4,64}", text):
        if not (word.islower() or word.isdigit() or word.istitle() or word.isupper()):
            parts = re.findall(_IDENTIFIER_PART, word)
            found += parts if len(parts) > 1 else []
    return found


def is_dated(words: list[str]) -> bool:
    """Whether lower-case words name a day, a date or a span: also 2026, 1st, 22nd."""
    return any(word in _DATED or (word[0].isdigit() and re.fullmatch(r"\d{4}|\d{1,2}(?:st|nd|rd|th)", word)) for word in words)


def scope_word(project: str) -> str:
    """A word that only the units of a project have."""
    return "zzp%sq" % sha1_hex(project.encode("utf-8", "replace"))[:12]


def count_tokens(text: str) -> int:
    """An estimate: four ASCII characters, or one of another script."""
    plain = len(text.encode("ascii", "ignore"))
    return (plain + 3) // 4 + len(text) - plain


# ---- chunks


class Unit:
    """What is found: a turn, or a part of a digest or note. `head`: headings and the like that name it."""

    __slots__ = ("source", "session", "place", "at", "start_line", "end_line", "text", "head", "id", "project", "path", "body", "words")

    def __init__(self, source: str, session: str, place: int, at: float, start_line: int, end_line: int, text: str, head: str,
                 id: int = 0, project: str = "", path: str = "") -> None:
        self.source, self.session, self.at = source, session, at
        self.place = place  # its order in the session, over all its segments
        self.start_line, self.end_line, self.text, self.head = start_line, end_line, text, head
        self.id, self.project, self.path = id, project, path  # given by the index
        self.body = searchable(text)
        self.words = re.findall(r"\w+", self.body.lower())


def pack_lines(lines: list[str], first: int, overlap_tokens: int) -> Iterator[tuple[int, int, str]]:
    """(start line, end line, text) of runs of at most CHUNK_TOKENS, cut between lines (a longer line stays whole up to four times that)."""
    start = 0
    while start < len(lines):
        end, tokens = start, 0
        while end < len(lines) and (end == start or tokens + count_tokens(lines[end]) <= CHUNK_TOKENS):
            tokens += count_tokens(lines[end])
            end += 1
        text = "\n".join(lines[start:end]).strip("\n")
        if text.strip():
            yield first + start, first + end - 1, text
        if end >= len(lines):
            return
        back, tokens = end, 0
        while back - 1 > start and tokens + count_tokens(lines[back - 1]) <= overlap_tokens:
            back -= 1
            tokens += count_tokens(lines[back])
        start = back


def heading_sections(lines: list[str], first: int) -> Iterator[tuple[int, list[str], str]]:
    """(first line, lines, heading) of each part of a Markdown text that a heading opens."""
    start, heading, fenced = 0, "", False
    for number, line in enumerate(lines):
        if line.startswith(("```", "~~~")):
            fenced = not fenced
        if re.match(r"#{1,6} ", line) and not fenced:
            if number > start:
                yield first + start, lines[start:number], heading
            start, heading = number, line.lstrip("# ").strip()
    if start < len(lines):
        yield first + start, lines[start:], heading


def memory_units(text: str, front: dict[str, Any], at: float) -> list[Unit]:
    """The units of a memory file's text: its digest (or the whole of a note) by heading, its transcript by turn."""
    lines = text.split("\n")
    session, segment = str(front.get("session") or ""), front.get("segment")
    base = (segment if isinstance(segment, int) else 0) * 1_000_000
    opened = next((number for number, line in enumerate(lines) if line == "## Transcript"), len(lines))
    begin = lines.index("---", 1) + 1 if front and lines[0].strip() == "---" and "---" in lines[1:] else 0
    units = []
    for first, part, heading in heading_sections(lines[begin:opened], begin + 1):
        for start, end, body in pack_lines(part, first, OVERLAP_TOKENS):
            if body.strip("# \n") != heading:  # a heading alone names the next part, and is found with it
                units.append(Unit("memory", session, 0, at, start, end, body, heading))
    marks = [number for number in range(opened + 1, len(lines)) if lines[number].startswith("<!-- turn ") and re.fullmatch(_MARKER, lines[number])]
    for number, mark in enumerate(marks):
        stop = marks[number + 1] if number + 1 < len(marks) else len(lines)
        _, kind, said_at, _, _ = re.fullmatch(_MARKER, lines[mark]).groups()
        for start, end, body in pack_lines(lines[mark + 1:stop], mark + 2, 0):
            units.append(Unit("session", session, base + len(units), parse_time(said_at) or at, start, end, body, ""))
    return units


# ---- the database


def walk_memories(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """(path below root with /, status) of every Markdown file; links out of the store and hidden files are left out."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(os.path.join(root, folder)))
        except OSError:
            continue
        for entry in entries:
            path = folder + "/" + entry.name if folder else entry.name
            if entry.name.startswith("."):
                continue
            if entry.is_symlink() and not os.path.realpath(entry.path).startswith(os.path.realpath(root) + os.sep):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.name.endswith(".md") and entry.is_file():
                yield path, entry.stat()


class transaction:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK where an exception leaves it: the index is never half of a file."""

    def __init__(self, db: Any) -> None:
        self.db = db

    def __enter__(self) -> None:
        self.db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.db.execute("ROLLBACK" if kind else "COMMIT")


def memory_title(text: str, path: str) -> str:
    """The first heading of a Markdown text, else the file's name."""
    match = re.search(r"(?m)^# +(\S.*)$", text)
    return match.group(1).strip() if match else os.path.basename(path)[:-len(".md")]


class Index:
    """The open database. Use open_index(); close() or a with statement ends it."""

    def __init__(self, home: Home, db: Any, full_text: bool, read_only: bool) -> None:
        self.home = home
        self.db = db
        self.full_text = full_text  # False where SQLite was built without FTS5
        self.read_only = read_only  # on a disk that cannot be written: searched as it is
        self.root = home.path("memories")

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exc: object) -> None:
        self.db.close()

    def sync(self, tell: Callable[[int, int], None] = lambda done, total: None) -> int:
        """Bring the tables up to the folder: compares time and size, then the hash; -> how many files were read."""
        if self.read_only:
            return 0
        known = {path: (mtime, size) for path, mtime, size in self.db.execute("SELECT path, mtime_ns, size FROM files")}
        found = {path: (status.st_mtime_ns, status.st_size) for path, status in walk_memories(self.root)}
        gone = [path for path in known if path not in found]
        changed = [path for path in found if known.get(path) != found[path]]
        if gone or changed:
            with transaction(self.db):
                for path in gone:
                    self.remove(path)
                for number, path in enumerate(changed):
                    self._refresh(path, found[path])
                    tell(number + 1, len(changed))
        return len(changed)

    def refresh(self) -> str:
        """sync(), or the index as it is where it cannot be written now; -> what a person should know of that."""
        import sqlite3
        notices = [] if self.full_text else ["this SQLite has no FTS5: words are matched one by one, slower and without stems"]
        try:
            self.sync()
        except sqlite3.OperationalError as error:
            notices.append("the index is as it was before the last changes (%s)" % error)
        if self.read_only:
            notices.append("the index cannot be written: it is as it was")
        return "; ".join(notices)

    def _refresh(self, path: str, signature: tuple[int, int]) -> None:
        data = read_file(os.path.join(self.root, path))
        if data is None:
            return
        row = self.db.execute("SELECT id, hash FROM files WHERE path = ?", (path,)).fetchone()
        if row and row[1] == file_hash(data):
            self.db.execute("UPDATE files SET mtime_ns = ?, size = ? WHERE id = ?", (*signature, row[0]))
            return
        self.remove(path)
        self.add(path, data, signature)

    def add(self, path: str, data: bytes, signature: tuple[int, int]) -> None:
        """Index one file, and refresh its neighbours in the session. The path must not be there."""
        front, text = _parse_front(data.decode("utf-8", "replace"))
        at = parse_time(front.get("from")) or parse_time(front.get("at")) or signature[0] / 1e9
        project = str(front.get("project") or self._folder_project(path))
        title = memory_title(text, path)
        units = memory_units(data.decode("utf-8", "replace"), front, at)
        cursor = self.db.execute(
            "INSERT INTO files(path, mtime_ns, size, hash, memory, project, session, segment, at, title, digest) VALUES(?,?,?,?,?,?,?,?,?,?,?)",
            (path, *signature, file_hash(data), str(front.get("id") or content_id(project, path, "")), project, str(front.get("session") or ""),
             front.get("segment") if isinstance(front.get("segment"), int) else 0, at, title, text.partition("\n## Transcript\n")[0]))
        file = cursor.lastrowid
        next_id = self.db.execute("SELECT coalesce(max(id), 0) FROM chunks").fetchone()[0] + 1
        for number, unit in enumerate(units):
            unit.id, unit.project, unit.path = next_id + number, project, path
        spoken = [unit for unit in units if unit.source == "session"]
        before, after = self._around(spoken)
        self._unindex(before[-NEIGHBOURS:] + after[:NEIGHBOURS], before + after)
        self.db.executemany(
            "INSERT INTO chunks(id, file, source, session, place, at, start_line, end_line, text, head, hash, dated) VALUES(?,?,?,?,?,?,?,?,?,?,?,?)",
            [(unit.id, file, unit.source, unit.session, unit.place, unit.at, unit.start_line, unit.end_line, unit.text, unit.head,
              text_hash(unit.text), is_dated(unit.words)) for unit in units])
        self._index(before[-NEIGHBOURS:] + units + after[:NEIGHBOURS], before + spoken + after)

    def remove(self, path: str) -> None:
        """Take one file out, and refresh its neighbours in the session."""
        row = self.db.execute("SELECT id FROM files WHERE path = ?", (path,)).fetchone()
        if row is None:
            return
        units = self._units("file = ? ORDER BY chunks.id", row[0])
        spoken = [unit for unit in units if unit.source == "session"]
        before, after = self._around(spoken)
        touched = before[-NEIGHBOURS:] + after[:NEIGHBOURS]
        self._unindex(touched + units, before + spoken + after)
        self.db.execute("DELETE FROM files WHERE id = ?", (row[0],))
        self._index(touched, before + after)

    def _folder_project(self, path: str) -> str:
        """The project of a file that does not say: that of its neighbours in the folder."""
        folder = path.split("/")[0] + "/"
        row = self.db.execute("SELECT project FROM files WHERE substr(path, 1, ?) = ? LIMIT 1", (len(folder), folder)).fetchone()
        return row[0] if row else "unknown"

    # neighbours

    def _units(self, where: str, *values: Any) -> list[Unit]:
        columns = "source, chunks.session, place, chunks.at, start_line, end_line, text, head, chunks.id, project, path"
        rows = self.db.execute("SELECT %s FROM chunks JOIN files ON files.id = chunks.file WHERE %s" % (columns, where), values)
        return [Unit(*row) for row in rows]

    def _around(self, spoken: list[Unit]) -> tuple[list[Unit], list[Unit]]:
        """The units of the same session before and after these: twice as many as are refreshed, for those have neighbours too."""
        if not spoken or not spoken[0].session:
            return [], []
        session, reach = spoken[0].session, 2 * NEIGHBOURS
        before = self._units("source = 'session' AND chunks.session = ? AND place < ? ORDER BY place DESC LIMIT ?", session, spoken[0].place, reach)
        after = self._units("source = 'session' AND chunks.session = ? AND place > ? ORDER BY place LIMIT ?", session, spoken[-1].place, reach)
        return before[::-1], after

    def _rows(self, units: list[Unit], spoken: list[Unit]) -> list[tuple[int, str, str, str]]:
        """(id, body, ctx, meta) of units, as the full text holds them while `spoken` is the order of their session."""
        order = {unit.id: number for number, unit in enumerate(spoken)}
        rows = []
        for unit in units:
            here = order.get(unit.id)
            near: list[str] = []
            if here is not None and len(unit.text) < SHORT_CHARS:
                around = spoken[max(0, here - NEIGHBOURS):here] + spoken[here + 1:here + 1 + NEIGHBOURS]
                near = [word for other in around for word in other.words if word not in _STOP_WORDS]
            rows.append((unit.id, unit.body, " ".join(dict.fromkeys(near)), self._meta(unit)))
        return rows

    def _meta(self, unit: Unit) -> str:
        words = re.sub(r"[\W_]+", " ", unit.path) if unit.source == "memory" else ""
        day = time.strftime("%d %B %Y %A", time.gmtime(unit.at))
        return " ".join([EVERYWHERE, scope_word(unit.project), "zz%sq" % unit.source, day, searchable(unit.head), words] + identifier_parts(unit.text))

    def _index(self, units: list[Unit], spoken: list[Unit]) -> None:
        if self.full_text:
            self.db.executemany("INSERT INTO chunks_fts(rowid, body, ctx, meta) VALUES(?,?,?,?)", self._rows(units, spoken))

    def _unindex(self, units: list[Unit], spoken: list[Unit]) -> None:
        """Delete from the contentless full text: it wants the old text back, so this must come before any other change."""
        if self.full_text and units:
            self.db.executemany("INSERT INTO chunks_fts(chunks_fts, rowid, body, ctx, meta) VALUES('delete',?,?,?,?)", self._rows(units, spoken))



def _connect(path: str, read_only: bool) -> Any:
    """An open connection, as this program wants it. Raises sqlite3.Error."""
    import sqlite3
    from urllib.request import pathname2url
    db = sqlite3.connect("file:%s?mode=%s" % (pathname2url(path), "ro" if read_only else "rwc"), uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    db.execute("PRAGMA foreign_keys = ON")
    if not read_only:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")  # what power loss takes is read from the Markdown again
        db.execute("PRAGMA secure_delete = ON")
    return db


def _create(db: Any) -> None:
    import sqlite3
    with transaction(db):
        for statement in _SCHEMA.split(";\n"):
            if statement.strip():
                db.execute(statement)
        try:
            for statement in _FULL_TEXT.strip().split(";\n"):
                db.execute(statement.rstrip(";\n"))
            full_text = "1"
        except sqlite3.OperationalError:  # no such module: fts5
            full_text = "0"
        db.execute("INSERT INTO meta VALUES('format', ?), ('full_text', ?)", (str(INDEX_FORMAT), full_text))


def _usable(db: Any) -> Optional[bool]:
    """Whether the database has this program's tables, and with full text or not: True, False; None: it must be made anew."""
    import sqlite3
    try:
        stored = dict(db.execute("SELECT key, value FROM meta"))
        db.execute("SELECT count(*) FROM files").fetchone()
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise
        return None
    return stored.get("full_text") == "1" if stored.get("format") == str(INDEX_FORMAT) else None


def drop_index(home: Home) -> None:
    """Remove the database with its side files."""
    path = home.path("index.db")
    for suffix in ("", "-wal", "-shm", "-journal"):
        if os.path.isdir(path + suffix):
            import shutil
            shutil.rmtree(path + suffix)
        remove_file(path + suffix)


def open_index(home: Home, fresh: bool = False) -> Index:
    """The index, made if missing, made anew if damaged, of another format, or `fresh`; read-only on a disk that cannot be written.

    Raises IndexUnavailable where another process keeps it locked.
    """
    import sqlite3
    path = home.path("index.db")
    for attempt in range(2):
        try:
            if fresh or attempt:
                drop_index(home)
            read_only = os.path.exists(path) and not os.access(path, os.W_OK) or not os.access(home.root, os.W_OK)
            if not read_only and not os.path.exists(path):
                os.close(open_private(path, os.O_WRONLY | os.O_CREAT))  # 0600; SQLite gives its side files the same mode
            db = _connect(path, read_only)
            full_text = _usable(db)
            if full_text is None and not read_only:
                if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    db.close()
                    continue
                _create(db)
                full_text = _usable(db)
            if full_text is not None:
                return Index(home, db, full_text, read_only)
        except sqlite3.DatabaseError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise IndexUnavailable("the index is in use by another process", "try again in a moment")
            if attempt:
                raise IndexUnavailable("the index cannot be used: %s" % error, "memhook reindex makes it anew")
        except OSError as error:
            raise IndexUnavailable("the index cannot be used: %s" % error.strerror, "memhook status tells where it lies")
    raise IndexUnavailable("the index cannot be used", "memhook reindex makes it anew")


# ==== 13. Search ================================================================
# Job:      the right units for any text, best first, and how sure that is; one memory or a part of it by its id.
# Promise:  any text is a valid query. Results are ordered by score, then by age (the older first); explain tells each part of a score.
# Not:      no model. Meaning is found by words: stems, parts of identifiers, beginnings, one typo, pairs of unspaced characters.
# Source:   retrieval measured on LoCoMo (Maharana et al., ACL 2024); BM25 as SQLite's FTS5 computes it.

SCORED_POSTINGS = 12_000  # the rarest words select at most about so many rows; all words score them: bounds the time of a query
CANDIDATES = 200  # rows that are scored further
WEIGHT_BODY, WEIGHT_CONTEXT, WEIGHT_META = 1.0, 0.2, 0.5
SESSION_BONUS = 0.3  # times the sum of the session's best four scores, each worth half of the one before
DATED_BONUS = 0.1  # of the best score, for units with a word of time, where the question asks when
SURE_COVERAGE = 0.53  # of the query's weight in the best unit: at least this is "high" (true positives .87, false .10)
DIGEST_WEIGHT = 0.6  # of a session's digest: it repeats what turns say, and the turn is the shorter proof
MERGED_HITS = 100  # how many of the best rows may join a neighbour's result
MERGED_CHARS = 600  # of a result made of several turns
LEAST_COVERAGE = 0.04  # below this a unit has nothing to do with the query
SCORE_HALF = 6.0  # text_score = s / (s + SCORE_HALF): rises with the score s, from 0 to 1

_ASKS_WHEN = r"(?i)\b(?:when|how long|what (?:date|day|month|year|time)|which (?:month|year|day))\b"


def _early_edits(word: str) -> list[str]:
    """Words that differ from this one by one edit in the first two letters, which a search by beginning cannot reach."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    found = [word[1] + word[0] + word[2:], word[0] + word[2] + word[1] + word[3:], word[1:], word[0] + word[2:]]
    for at in (0, 1):
        found += [word[:at] + letter + word[at + 1:] for letter in letters] + [word[:at] + letter + word[at:] for letter in letters]
    return list(dict.fromkeys(edit for edit in found if edit != word))


class Term:
    """One word of a query: how it is asked for, how many units have it, what it weighs."""

    __slots__ = ("word", "phrase", "count", "weight")

    def __init__(self, word: str, phrase: str, count: int, weight: float) -> None:
        self.word = word  # as the person wrote it
        self.phrase = phrase  # FTS5 expression
        self.count = count  # units that have it, up to SCORED_POSTINGS
        self.weight = weight  # inverse document frequency


def _weights(terms: list[Term]) -> dict[str, float]:
    """What each word of the query weighs; of a word that was replaced by several, the most."""
    weights: dict[str, float] = {}
    for term in terms:
        weights[term.word] = max(term.weight, weights.get(term.word, 0.0))
    return weights


class Scope:
    """Which units may be found."""

    __slots__ = ("project", "source", "since")

    def __init__(self, project: str = "", source: str = "", since: float = 0.0) -> None:
        self.project = project  # key; "" for all
        self.source = source  # "memory", "session" or "" for both
        self.since = since  # seconds since the epoch

    def words(self) -> list[str]:
        found = [scope_word(self.project)] if self.project else []
        return found + (["zz%sq" % self.source] if self.source else [])

    def phrase(self) -> str:
        return "".join(" AND meta : %s" % word for word in self.words())


def query_words(text: str) -> list[str]:
    """The words of a query, each once, without stop words unless there are no others. Unspaced script gives pair words."""
    words: list[str] = []
    for run in re.findall(r"[^\W_]+", text):
        at = 0
        for match in re.finditer(_UNSPACED, run):
            words += [run[at:match.start()]] if match.start() > at else []
            pairs = pair_words(match.group())
            words += pairs[:-1] or [pairs[0][:-1] + "*"]  # a single character: whatever pair begins with it
            at = match.end()
        words += [run[at:]] if at < len(run) else []
    words = list(dict.fromkeys(words))
    return [word for word in words if word.lower() not in _STOP_WORDS] or words


def quoted(word: str) -> str:
    """A word as an FTS5 string; a trailing star asks for beginnings."""
    return '"%s"*' % word[:-1] if word.endswith("*") else '"%s"' % word.replace('"', '""')


class Row:
    """A candidate as the index gives it."""

    __slots__ = ("id", "bm25", "source", "session", "place", "dated", "hash", "file", "length")

    def __init__(self, *values: Any) -> None:
        for name, value in zip(self.__slots__, values):
            setattr(self, name, value)

    @property
    def weight(self) -> float:
        return DIGEST_WEIGHT if self.source == "memory" and self.session else 1.0

    @property
    def group(self) -> tuple[str, int]:
        """What it shares a bonus with: its session, or its file where there is none."""
        return (self.session, 0) if self.session else ("", self.file)


class Hit:
    """A result: a unit, or several that stand together, and the parts of its score."""

    __slots__ = ("row", "bm25", "session", "dated", "first", "last", "length", "coverage", "vector")

    def __init__(self, row: Row, session: float, dated: float) -> None:
        self.row = row  # the best of its units
        self.bm25 = row.weight * row.bm25
        self.session = row.weight * session  # for other good units of the session
        self.dated = dated  # for a word of time
        self.first = self.last = row.place  # the turns it spans
        self.length = row.length
        self.coverage = 0.0  # share of the query's weight that the best unit has
        self.vector: Optional[float] = None  # cosine, where embeddings are on

    @property
    def score(self) -> float:
        return self.bm25 + self.session + self.dated

    @property
    def text_score(self) -> float:
        return self.score / (self.score + SCORE_HALF) if self.score > 0 else 0.0

    @property
    def confidence(self) -> str:
        return "high" if self.coverage >= SURE_COVERAGE else "low"

    def joins(self, other: Row) -> bool:
        """Whether a later row is a neighbour that still fits; then the result spans it too."""
        row = self.row
        near = row.source == other.source == "session" and row.file == other.file and self.first - 1 <= other.place <= self.last + 1
        if not near or self.length + other.length > MERGED_CHARS:
            return False
        self.first, self.last, self.length = min(self.first, other.place), max(self.last, other.place), self.length + other.length
        return True


def session_bonus(rows: list[Row]) -> dict[tuple[str, int], float]:
    """For each session, what its several good units add to each of them."""
    scores: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        scores.setdefault(row.group, []).append(row.bm25)
    return {group: SESSION_BONUS * sum(score * 0.5 ** rank for rank, score in enumerate(found[:4])) for group, found in scores.items()}


def merge_neighbours(hits: list[Hit], limit: int) -> list[Hit]:
    """At most `limit` results: a turn next to a better one joins its result, so that a question stands with its answer; a text comes once."""
    best: list[Hit] = []
    known: set[str] = set()
    for hit in hits[:max(MERGED_HITS, limit)]:
        if hit.row.hash in known or any(other.joins(hit.row) for other in best):
            continue
        if len(best) < limit:
            known.add(hit.row.hash)
            best.append(hit)
    return best


class Searcher:
    """Plans and runs queries on one open index."""

    def __init__(self, index: Index, scope: Scope) -> None:
        self.db, self.scope = index.db, scope
        self.total = 0  # units, counted up to SCORED_POSTINGS

    # ---- the plan

    def count(self, phrase: str) -> int:
        """How many units match, counted up to SCORED_POSTINGS; of all projects: counting those of one is slower, and rare words are rare in both."""
        return self.db.execute("SELECT count(*) FROM (SELECT 1 FROM chunks_fts WHERE chunks_fts MATCH ? LIMIT ?)", (phrase, SCORED_POSTINGS)).fetchone()[0]

    def plan(self, text: str) -> list[Term]:
        """The terms of a query, the rarest first; a word that no unit has is replaced by what the store calls it."""
        import math
        self.total = max(1, self.count(EVERYWHERE))
        terms: dict[str, Term] = {}
        for word in query_words(text):
            for phrase in self._phrases(word):
                count = self.count(phrase)
                weight = math.log(1 + (self.total - min(count, self.total) + 0.5) / (count + 0.5))
                terms.setdefault(phrase, Term(word, phrase, count, weight))
        return sorted(terms.values(), key=lambda term: (term.count, term.phrase))

    def _phrases(self, word: str) -> list[str]:
        """How a word is asked for: itself; else its parts, the words it begins, or the closest ones that exist."""
        exact = quoted(word)
        if self.count(exact) or len(word) < 2 or word.startswith("zc"):
            return [exact]
        parts = [part for part in identifier_parts(word) if part.lower() not in _STOP_WORDS]
        if parts:
            return [quoted(part) for part in parts]
        longer = [exact + "*"] if len(word) > 2 and self.count(exact + "*") else []
        return longer or [quoted(near) for near in self._closest(word.lower())] or [exact]

    def _closest(self, word: str) -> list[str]:
        """At most two words of the vocabulary that a typo may have meant (the vocabulary holds stems, and so they are compared)."""
        from difflib import get_close_matches
        if len(word) < 4 or not word.isascii():
            return []
        near = [row[0] for row in self.db.execute("SELECT term FROM vocabulary WHERE term >= ? AND term < ? LIMIT 3000", (word[:2], word[:2] + "\U0010ffff"))]
        found = get_close_matches(word, near, 2, 0.75)
        return found or [edit for edit in _early_edits(word) if self.db.execute("SELECT 1 FROM vocabulary WHERE term = ?", (edit,)).fetchone()][:2]

    # ---- the rows

    def expression(self, terms: list[Term]) -> str:
        """(rare OR rare) AND (everywhere OR common …): the rarest terms select, all of them score."""
        rare: list[str] = []
        common: list[str] = []
        total = 0
        for term in terms:
            total += term.count
            (common if rare and total > SCORED_POSTINGS else rare).append(term.phrase)
        every = " AND (%s OR %s)" % (EVERYWHERE, " OR ".join(common)) if common else ""
        return "(%s)%s%s" % (" OR ".join(rare), every, self.scope.phrase())

    def candidates(self, expression: str) -> list[Row]:
        """The best rows by BM25, best first."""
        ranked = "SELECT chunks_fts.rowid AS id, bm25(chunks_fts, ?, ?, ?) AS rank FROM chunks_fts%s WHERE chunks_fts MATCH ?%s ORDER BY rank, id LIMIT ?"
        since = (" JOIN chunks ON chunks.id = chunks_fts.rowid", " AND chunks.at >= %r" % self.scope.since) if self.scope.since else ("", "")
        columns = "best.id, -best.rank, source, session, place, dated, hash, file, length(text)"
        rows = self.db.execute("SELECT %s FROM (%s) best JOIN chunks ON chunks.id = best.id ORDER BY best.rank, best.id" % (columns, ranked % since),
                               (WEIGHT_BODY, WEIGHT_CONTEXT, WEIGHT_META, expression, CANDIDATES))
        return [Row(*row) for row in rows]

    def coverage(self, terms: list[Term], ids: list[int]) -> dict[int, float]:
        """The share of the query's weight that each unit's own text and headings have."""
        whole = sum(_weights(terms).values()) or 1.0
        found: dict[int, dict[str, float]] = {id: {} for id in ids}
        marks = ",".join("?" * len(ids))
        for term in terms:
            if not term.count:
                continue
            for (id,) in self.db.execute("SELECT rowid FROM chunks_fts WHERE chunks_fts MATCH ? AND rowid IN (%s)" % marks, ("{body meta} : (%s)" % term.phrase, *ids)):
                found[id][term.word] = max(term.weight, found[id].get(term.word, 0.0))
        return {id: min(1.0, sum(weights.values()) / whole) for id, weights in found.items()}

    def ranked(self, text: str, limit: int) -> list[Hit]:
        """The best results, at most `limit`, no text twice."""
        terms = self.plan(text)
        rows = self.candidates(self.expression(terms)) if any(term.count for term in terms) else []
        if not rows:
            return []
        dated = DATED_BONUS * rows[0].bm25 if re.search(_ASKS_WHEN, text) else 0.0
        bonus = session_bonus(rows)
        hits = sorted((Hit(row, bonus[row.group], dated if row.dated else 0.0) for row in rows), key=lambda hit: (-hit.score, hit.row.id))
        best = merge_neighbours(hits, limit)
        covered = self.coverage(terms, [hit.row.id for hit in best])
        for hit in best:
            hit.coverage = covered[hit.row.id]
        return [hit for hit in best if hit.coverage >= LEAST_COVERAGE]


def search_plain(index: Index, text: str, scope: Scope, limit: int) -> list[Hit]:
    """Without FTS5: how many of the query's words a unit's text has, in plain Python over all of them."""
    words = [word.lower() for word in re.findall(r"\w+", text) if word.lower() not in _STOP_WORDS] or [text.lower()]
    query = ("SELECT chunks.id, 0.0, source, chunks.session, place, dated, chunks.hash, file, length(text), text FROM chunks JOIN files ON files.id = chunks.file "
             "WHERE chunks.at >= ? AND (? = '' OR project = ?) AND (? = '' OR source = ?)")
    hits = []
    for *row, body in index.db.execute(query, (scope.since, scope.project, scope.project, scope.source, scope.source)):
        found = sum(word in body.lower() for word in words)
        if found:
            row[1] = float(found)
            hits.append(Hit(Row(*row), 0.0, 0.0))
            hits[-1].coverage = found / len(words)
    return merge_neighbours(sorted(hits, key=lambda hit: (-hit.score, hit.row.id)), limit)


def render_hit(index: Index, hit: Hit, explain: bool) -> dict[str, Any]:
    """One of the results of `search --json`."""
    row = index.db.execute(
        "SELECT memory, path, start_line, end_line, title, text, project, chunks.session, segment, chunks.at, source, chunks.hash "
        "FROM chunks JOIN files ON files.id = chunks.file WHERE chunks.id = ?", (hit.row.id,)).fetchone()
    names = ("id", "path", "start_line", "end_line", "title", "text", "project", "session", "segment", "at", "source", "content_hash")
    result = dict(zip(names, row))
    if hit.first != hit.last:
        spanned = index.db.execute("SELECT text, start_line, end_line FROM chunks WHERE file = ? AND source = 'session' AND place BETWEEN ? AND ? ORDER BY place",
                                   (hit.row.file, hit.first, hit.last)).fetchall()
        result.update(text="\n".join(text for text, _, _ in spanned), start_line=spanned[0][1], end_line=spanned[-1][2])
    result.update(at=iso(result["at"]), score=round(hit.text_score, 4), text_score=round(hit.text_score, 4), vector_score=hit.vector, confidence=hit.confidence)
    if explain:
        result["explain"] = {"bm25": round(hit.bm25, 3), "session": round(hit.session, 3), "dated": round(hit.dated, 3), "coverage": round(hit.coverage, 3)}
    return result


def search(home: Home, query: str, scope: Scope, limit: int, explain: bool = False) -> dict[str, Any]:
    """-> {"query", "mode", "results": [...]} as `search --json` prints it; "notice" where something is not as usual. Raises IndexUnavailable."""
    query = _whole_text(query)
    with open_index(home) as index:
        notice = index.refresh()
        hits = Searcher(index, scope).ranked(query, limit) if index.full_text else search_plain(index, query, scope, limit)
        found = {"query": query, "mode": "text", "results": [render_hit(index, hit, explain) for hit in hits]}
    if notice:
        found["notice"] = notice
    return found


# ---- one memory, notes, forgetting


def parse_source(text: str) -> str:
    """"memory" or "session" (also in the plural), "" for both. Raises UsageError."""
    if text in ("", "memory", "session"):
        return text
    if text in ("memories", "sessions"):
        return {"memories": "memory", "sessions": "session"}[text]
    raise UsageError("no source %s" % text, "sources are memory (digests and notes) and session (what was said)")


def parse_since(text: str) -> float:
    """Seconds since the epoch of a date (2026-01-31, local midnight), a time in ISO 8601, or a span back from now (7d, 12h, 3w). Raises UsageError."""
    if not text:
        return 0.0
    span = re.fullmatch(r"(\d{1,5})([hdwmy])", text)
    if span:
        hours = {"h": 1, "d": 24, "w": 7 * 24, "m": 30 * 24, "y": 365 * 24}[span.group(2)]
        return now() - int(span.group(1)) * hours * 3600
    from datetime import datetime
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise UsageError("no date: %s" % text, "write a date (2026-01-31) or a span (7d, 12h, 3w)")


def this_project(home: Home, cwd: str) -> str:
    """The key of the project that the person, or the client, is in."""
    return redact_path(project_key(home.environ.get("CLAUDE_PROJECT_DIR") or cwd, home.setting("worktrees") == "separate"))


def find_memory(home: Home, name: str) -> str:
    """The path of a memory: by its id or the beginning of one, or a path in the store. Raises StateError where there is none, or more than one."""
    root = os.path.realpath(home.path("memories"))
    if re.fullmatch(r"[0-9a-f-]{6,36}", name):
        with open_index(home) as index:
            index.sync()
            paths = [row[0] for row in index.db.execute("SELECT path FROM files WHERE substr(memory, 1, ?) = ? ORDER BY path", (len(name), name))]
        if len(paths) == 1:
            return os.path.join(root, paths[0])
        if paths:
            raise StateError("%s stands for %d memories" % (name, len(paths)), "write more of the id")
    path = os.path.realpath(os.path.join(root, name))
    if path.startswith(root + os.sep) and path.endswith(".md") and os.path.isfile(path):
        return path
    raise StateError("no memory %s" % name, "memhook search finds ids; only files in the store can be read")


def get_memory(home: Home, name: str, first: int = 1, count: int = 0) -> dict[str, Any]:
    """-> {"id", "path", "start_line", "end_line", "text", …front matter}; `count` 0: to the end."""
    path = find_memory(home, name)
    text = (read_file(path) or b"").decode("utf-8", "replace")
    lines = text.split("\n")
    lines = lines[:-1] if lines and not lines[-1] else lines
    first = min(max(1, first), max(1, len(lines)))
    last = len(lines) if count <= 0 else min(len(lines), first + count - 1)
    front, _ = _parse_front(text)
    relative = os.path.relpath(path, os.path.realpath(home.path("memories"))).replace(os.sep, "/")
    identity = {"id": str(front.get("id") or ""), "path": relative, "start_line": first, "end_line": last, "text": "\n".join(lines[first - 1:last])}
    return {**front, **identity}


def save_note(home: Home, text: str, title: str, project: str) -> dict[str, Any]:
    """Keep a note of a person's, redacted; -> {"id", "path", "title", "saved": False where it was there already}. Raises UsageError, StateError."""
    text, title = clean(text).strip(), clean(" ".join(title.split()))
    if not text:
        raise UsageError("the note is empty", "memhook save TEXT")
    if read_consent(home) is None:
        raise StateError("memhook is not installed", "run: python3 memhook.py install")
    title = title or one_line(gist(text, 80), 90) or "Note"
    front = {"id": content_id(project, title, text), "project": project, "kind": "note", "from": iso(now()), "at": iso(now()), "tenant": project}
    path = memory_path(home, front, title)
    known = [found for found in memory_files(home) if found.endswith("-%s.md" % front["id"][:8])]
    if not known:
        head = "".join("%s: %s\n" % (name, json.dumps(value, ensure_ascii=False)) for name, value in front.items())
        write_file(path, ("---\n%s---\n# %s\n\n%s\n" % (head, title, text)).encode("utf-8", "replace"))
    saved = known[0] if known else path
    return {"id": front["id"], "path": os.path.relpath(saved, home.path("memories")).replace(os.sep, "/"), "title": title, "saved": not known}


# ==== 14. Drain =================================================================
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
    command = [sys.executable, "-I", "-S", "-c", BOOT, PROGRAM, "drain"]
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
            fields = stream.read().rpartition(b")")[2].split()
            return [pid, "" if fields[0] in (b"Z", b"X") else fields[19].decode()]  # proc(5): fields 3 and 22; a zombie has ended
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


ITEM_ERRORS = (Transient, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)  # what one item may cost itself, but no other


def _capture_late(home: Home, consent: Consent, request: Request) -> None:
    try:
        done = capture(home, consent, request)
    except (OSError, StateError, *ITEM_ERRORS) as error:  # one transcript must not keep the others out
        log(home, "capture-failed", transcript=transcript_key(request.path), error=type(error).__name__)
        if _is_disk_trouble(error):
            raise
    else:
        if done.segments:
            log(home, "caught-up", transcript=transcript_key(request.path), segments=done.segments, turns=done.turns)


def _catch_up_known(home: Home, consent: Consent, key: str) -> bool:
    """Capture what a known session left; False where its checkpoint is damaged, so that the transcript counts as unknown."""
    try:
        checkpoint = read_checkpoint(home, key)
    except StateError as error:
        log(home, "skipped", transcript=key, reason=str(error))
        return True
    if checkpoint is None or checkpoint.own:
        return checkpoint is not None
    status = regular_file(checkpoint.path)
    if status is None and _forget_checkpoint(home, key, checkpoint):
        return True
    grown = status is not None and status.st_size > checkpoint.parsed
    waiting = bool(checkpoint.turns or checkpoint.pending or checkpoint.context.queue)
    dead = checkpoint.state == "closed" or checkpoint.ended or _is_dead(checkpoint, status)
    expiring = status is not None and grown and status.st_mtime < now() - cleanup_seconds(home) + CLEANUP_MARGIN_SECONDS
    if checkpoint.deferred or expiring or (dead and (grown or waiting or checkpoint.state == "open")):
        _capture_late(home, consent, Request(checkpoint.path, checkpoint.session, final=dead))
    return True


def catch_up(home: Home, consent: Consent) -> None:
    """Capture what was put off, sessions that died without a SessionEnd, and transcripts about to be deleted."""
    known = set()
    for name in list_folder(home.path("checkpoints")):
        key, dot, _ = name.partition(".json")
        try:
            if dot and _catch_up_known(home, consent, key):
                known.add(key)
        except ITEM_ERRORS as error:  # a checkpoint with nonsense in it: the transcript counts as unknown
            log(home, "capture-failed", transcript=key, error=type(error).__name__)
    for path in transcripts(home):
        status = regular_file(path)
        if status and status.st_mtime >= consent.capture_at and status.st_mtime < now() - DEAD_SECONDS and transcript_key(path) not in known:
            _capture_late(home, consent, Request(path, final=True))


def find_transcripts(home: Home, paths: list[str]) -> list[tuple[str, os.stat_result]]:
    """(path, status) of the transcripts in files and folders, newest first; all of Claude's projects where none is named."""
    found: dict[str, os.stat_result] = {}
    for path in paths or [os.path.join(home.config, "projects")]:
        if not os.path.exists(path):
            raise StateError("no file or folder %s" % path, "name a transcript (.jsonl), a folder of them, or nothing for all")
        names = [path] if os.path.isfile(path) else [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
        for name in names:
            status = regular_file(name)
            inside = os.path.relpath(name, path).split(os.sep)
            if status and name.endswith(".jsonl") and not os.path.basename(name).startswith("agent-") and "subagents" not in inside:
                found.setdefault(os.path.realpath(name), status)
    return sorted(found.items(), key=lambda pair: (-pair[1].st_mtime, pair[0]))


def is_live(home: Home, path: str) -> bool:
    """Whether a session is known and not over: its tail must stay open."""
    checkpoint = read_checkpoint(home, transcript_key(path))
    return checkpoint is not None and checkpoint.state == "open" and not _is_dead(checkpoint, regular_file(path))


def import_transcripts(home: Home, consent: Consent, paths: list[str], past: bool, dry_run: bool, tell: Callable[[int, int], None]) -> dict[str, int]:
    """Capture past transcripts as hooks capture live ones; -> {"transcripts", "bytes", "segments", "turns", "withheld", "skipped"}."""
    found = find_transcripts(home, paths)
    report = dict.fromkeys(("transcripts", "bytes", "segments", "turns", "withheld", "skipped"), 0)
    seen: dict[str, set[bytes]] = {}
    for number, (path, status) in enumerate(found):
        report["transcripts"] += 1
        report["bytes"] += status.st_size
        if not dry_run:
            done = capture(home, consent, Request(path, final=not is_live(home, path), past=past, wait_seconds=5.0), seen)
            for name in ("segments", "turns", "withheld", "skipped"):
                report[name] += getattr(done, name)
        tell(number + 1, len(found))
    return report


# ---- one segment


_SEGMENT_TYPES = {"id": str, "title": str, "project": str, "session": str, "key": str, "transcript": str, "segment": int, "generation": int, "parser": int, "at": (int, float)}
_TURN_TYPES = (str, str, str, int, int, (int, float, type(None)), str, str, str)  # as Turn.to_json


def parse_segment(data: bytes) -> tuple[dict[str, Any], list[Turn]]:
    """A spool item taken apart. Raises Poison for what is no segment."""
    try:
        segment = json.loads(data.decode("utf-8"))
        if segment["format"] > SEGMENT_FORMAT:
            raise Transient("a newer memhook wrote it")
        turns = [Turn.from_json(turn) for turn in segment["turns"]]
        wrong = [name for name, kind in _SEGMENT_TYPES.items() if not isinstance(segment[name], kind)]
        wrong += ["turns" for turn in segment["turns"] if not isinstance(turn, list) or not all(map(isinstance, turn, _TURN_TYPES))]
        if wrong or not turns:
            raise Poison("not a segment: %s" % (wrong[0] if wrong else "no turns"))
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
        receipts = list(read_receipts(self.home, folder))  # before anything is noted: half a ledger would store things twice
        self.covered[folder], self.written[folder] = set(), {}
        for receipt in receipts:
            self._note(folder, receipt)

    def covers(self, key: str, turn: Turn) -> bool:
        return "%s %s" % (turn.key, text_hash(turn.text)) in self.covered[key[:8]]

    def write(self, key: str, receipt: dict[str, Any]) -> None:
        write_receipt(self.home, key, receipt)
        self._note(key[:8], receipt)

    def _note(self, folder: str, receipt: dict[str, Any]) -> None:
        turns = receipt.get("turns")
        if receipt.get("outcome") != "dead" and isinstance(turns, list):
            self.covered[folder].update("%s %s" % tuple(turn) for turn in turns if isinstance(turn, list) and len(turn) == 2)
        if receipt.get("file") and isinstance(receipt.get("id"), str):
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
    graves = read_graves(home)
    kept = [turn for turn in fresh if not graves.holds(turn)]
    written = ""
    if not fresh:
        outcome = "duplicate"
    elif not kept:
        outcome = "forgotten"
    elif not any(turn.is_spoken for turn in kept):
        outcome = "empty"
    else:
        outcome, written = "stored", store_segment(home, segment, kept)
    ledger.write(segment["key"], render_receipt(segment, fresh, outcome, written))
    return outcome


# ---- the loop


def bury_item(home: Home, spool: Spool, item: Item, reason: str) -> str:
    parts = item.stem.split("-")
    key, number = (parts[1], int(parts[2])) if len(parts) == 4 and parts[2].isdecimal() else ("", -1)
    write_receipt(home, key, {"segment": number, "id": parts[-1], "outcome": "dead", "reason": reason, "item": item.stem, "at": iso(now())})
    spool.bury(item)
    log(home, "buried", item=item.stem, reason=reason)
    return "dead"


def drain_item(home: Home, spool: Spool, ledger: Ledger, item: Item) -> str:
    """Settle one claimed item and say what became of it: an outcome of settle(), "retried" or "dead"."""
    try:
        data = spool.read(item)
    except OSError as error:
        if _is_disk_trouble(error):
            raise  # it stays claimed: the next drain gives it back
        if not spool.holds(item):
            return "retried"  # another process took it away
        return bury_item(home, spool, item, "cannot be read: %s" % type(error).__name__)
    try:
        outcome = settle(home, ledger, data)
    except Poison as error:
        return bury_item(home, spool, item, str(error))
    except OSError as error:  # a folder that may not be written, a disk that is full: the item can do nothing for it
        if _is_disk_trouble(error):
            spool.release(item, counts=False)
            raise
        spool.release(item, counts=False)
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


def drain_spool(home: Home, spool: Spool, done: Drained, tried: set[str]) -> None:
    ledger = Ledger(home)
    for item in spool.claim_all(tried):
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
    if not os.path.isdir(home.root):
        return done  # nothing is made here but by install
    lock = Lock(home.path("drain.lock"))
    wait = 0.0 if home.environ.get("MEMHOOK_BACKGROUND") else 30.0
    spool = Spool(home.path("spool"))
    tried: set[str] = set()  # each item once: one that failed without having to wait would keep us here for ever
    while True:
        with lock:
            if not lock.acquire(wait):
                raise BusyError("another drain is running", "wait for it, or look at: memhook status")
            if retry_dead:
                spool.revive()
            spool.recover()
            if consent and not consent.paused:
                catch_up(home, consent)
            drain_spool(home, spool, done, tried)
            sweep(home)
        retry_dead = False
        # an item may have come while we held the lock, and its hook's drain have given up on us
        if not any(item.not_before <= now() and item.name not in tried for item in spool.items("new")):
            break
    done.left = len(spool.items("new"))
    return done


# ---- forgetting


def _forget_indexed(home: Home) -> int:
    """Let the index notice, then overwrite what it held: deleted rows, merged words, the write-ahead log; -> how many units went."""
    with open_index(home) as index:
        before = index.db.execute("SELECT count(*) FROM chunks").fetchone()[0]
        index.sync()
        index.db.execute("DELETE FROM embedding_cache WHERE hash NOT IN (SELECT hash FROM chunks)")
        if index.full_text:
            index.db.execute("INSERT INTO chunks_fts(chunks_fts) VALUES('optimize')")
        index.db.execute("VACUUM")
        index.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return before - index.db.execute("SELECT count(*) FROM chunks").fetchone()[0]


def _forget_waiting(home: Home, name: str, grave: Graves) -> int:
    """Take the turns out of what waits, dead letters included; -> how many turns went."""
    spool, removed = Spool(home.path(name)), 0
    for state in ("new", "claimed", "dead"):
        for item in spool.items(state):
            path = os.path.join(spool.root, state, item.name)
            try:
                segment, turns = parse_segment(read_file(path) or b"")
            except (Poison, Transient):
                continue
            kept = [turn for turn in turns if not grave.holds(turn)]
            removed += len(turns) - len(kept)
            if len(kept) < len(turns):
                segment["turns"] = [turn.to_json() for turn in kept]
                write_json(path, segment) if kept else remove_file(path)
    return removed


def _forget_open(home: Home, grave: Graves) -> int:
    """Take the turns out of open checkpoints; -> how many went."""
    removed = 0
    for name in list_folder(home.path("checkpoints")):
        key, dot, _ = name.partition(".json")
        with Lock(home.path("seen", key)) as lock:
            checkpoint = read_checkpoint(home, key) if dot and lock.acquire(5.0) else None
            if checkpoint:
                kept = [turn for turn in checkpoint.turns if not grave.holds(turn)]
                removed += len(checkpoint.turns) - len(kept)
                if len(kept) < len(checkpoint.turns):
                    checkpoint.turns = kept
                    write_checkpoint(home, key, checkpoint)
    return removed


def _forget_one(home: Home, path: str) -> dict[str, Any]:
    memory = parse_memory(read_file(path) or b"")
    turns = sorted({text_hash(turn.text) for turn in memory.turns if len(turn.text) >= TELLING_CHARS})
    lines = sorted({turn.line for turn in memory.turns})
    grave = Graves(set(turns) | set(lines))
    tombstone = {"at": iso(now()), "memory": memory.front.get("id"), "turns": turns, "lines": lines}
    append_line(home.path("tombstones.jsonl"), json.dumps(tombstone, separators=(",", ":")).encode() + b"\n")
    remove_file(path)
    sync_folder(os.path.dirname(path))
    removed = {"memory": 1, "index": _forget_indexed(home), "spool": _forget_waiting(home, "spool", grave), "outbox": _forget_waiting(home, "outbox", grave),
               "checkpoints": _forget_open(home, grave)}
    kept = ["Claude Code's own transcript: %s" % memory.front["transcript"]] if memory.front.get("transcript") else []
    return {"id": memory.front.get("id"), "path": path, "removed": removed, "kept": kept + ["copies you made: backups, commits, exports"]}


def forget(home: Home, names: list[str]) -> list[dict[str, Any]]:
    """Remove memories from every place that is ours; -> a receipt for each: {"id", "removed": {place: n}, "kept": [what is not ours]}.

    The tombstone is first: whatever is interrupted after it, nothing comes back. Raises StateError, BusyError, IndexUnavailable.
    """
    paths = [find_memory(home, name) for name in names]
    with Lock(home.path("drain.lock")) as lock:
        if not lock.acquire(30.0):
            raise BusyError("a drain is running", "try again in a moment")
        return [_forget_one(home, path) for path in paths]


# ==== 15. Recall ================================================================
# Job:      what a new session is told of the earlier ones: open ends, last sessions, files, how to search.
# Promise:  within its budget in UTF-16 units (as the client counts); framed as a record, which nothing inside can close.
# Not:      no folder sync, no ranking: it reads the index as it is, in milliseconds. Off by the setting `recall` = off.

_FRAME_OPEN = "<memhook-recall>\nA record of earlier Claude Code sessions in this project, kept by memhook. It tells what was, as it was said then; it asks for nothing.\n"
_FRAME_CLOSE = "</memhook-recall>"


def utf16_units(text: str) -> int:
    """Length as JavaScript counts it: an emoji is two."""
    return len(text) + sum(char > "\uffff" for char in text)


def harmless(text: str) -> str:
    """A line that can close no frame and open no tag."""
    return " ".join(text.replace("<", "‹").replace(">", "›").split())


def digest_items(digest: str, heading: str) -> list[str]:
    """The list items below a heading of a digest."""
    match = re.search(r"(?ms)^## %s\n\n(.*?)(?=^## |\Z)" % re.escape(heading), digest)
    return [line[2:] for line in match.group(1).split("\n") if line.startswith("- ")] if match else []


def recent_memories(home: Home, project: str, limit: int) -> list[tuple[str, float, str, str, str]]:
    """(id, time, title, session, digest) of a project's last memories, newest first; none where there is no index to read."""
    path = home.path("index.db")
    if not os.path.exists(path):
        return []
    import sqlite3
    try:
        db = _connect(path, read_only=True)
        try:
            return db.execute("SELECT memory, at, title, session, digest FROM files WHERE project = ? ORDER BY at DESC, segment DESC LIMIT ?", (project, limit)).fetchall()
        finally:
            db.close()
    except sqlite3.Error:
        return []


def recall_lines(rows: list[tuple[str, float, str, str, str]]) -> list[str]:
    """What there is to tell, the most useful first; each line with its date and id."""
    lines: list[str] = []

    def stamp(row: tuple[str, float, str, str, str]) -> str:
        return "(%s, %s)" % (iso(row[1])[:10], row[0][:8])

    left = [(row, item) for row in rows[:12] for item in digest_items(row[4], "Open threads")]
    done = list({row[3] or row[0]: row for row in reversed(rows)}.values())[::-1]  # one memory a session: its last
    lines += ["", "Left open:"] + ["- %s %s" % (harmless(item), stamp(row)) for row, item in left[:8]] if left else []
    lines += ["", "Last sessions, newest first:"]
    for row in done[:6]:
        outcome = (digest_items(row[4], "What happened") or [row[4].split("\n\n")[1] if "\n\n" in row[4] else ""])[-1]
        lines.append("- %s: %s %s" % (harmless(row[2]), harmless(outcome), stamp(row)))
    decided = [(row, item) for row in rows[:12] for item in digest_items(row[4], "Decisions") + digest_items(row[4], "Patterns")]
    lines += ["", "Decided:"] + ["- %s %s" % (harmless(item), stamp(row)) for row, item in decided[:8]] if decided else []
    files = [item for row in rows for item in digest_items(row[4], "Files")]
    often = sorted(set(files), key=lambda path: (-files.count(path), path))[:8]
    lines += ["", "Files most worked on: " + ", ".join(harmless(path) for path in often)] if often else []
    return lines


def recall(home: Home, project: str, also: list[str] = []) -> str:
    """The context for a session of a project, "" where nothing is known. `also`: lines to tell first."""
    rows = recent_memories(home, project, 40)
    if not rows and not also:
        return ""
    budget = min(9_000, home.setting("recall_units"))
    closing = "\n\nTo look further: the memory_search tool, or `memhook search WORDS`; `memhook get ID` shows a memory whole.\n" + _FRAME_CLOSE
    text = _FRAME_OPEN
    for line in also + (recall_lines(rows) if rows else []):
        room = budget - utf16_units(text + closing) - 1
        if utf16_units(line) > room:
            line = line[:max(0, room // 2 - 2)] + " …" if room > 120 else ""
            text += "\n" + line if line else ""
            break
        text += "\n" + line
    return text + closing


def open_turn_lines(home: Home, path: str) -> list[str]:
    """What a compaction drops and no memory holds yet: decisions and commands of the turns that are still open."""
    checkpoint = read_checkpoint(home, transcript_key(path))
    if checkpoint is None or not checkpoint.turns:
        return []
    digest = distil(checkpoint.turns, "")
    items = ["- " + harmless(item) for item in digest.decisions + digest.commands]
    return ["", "Of this session, before it was compacted:"] + items if items else []


# ==== 16. Hooks =================================================================
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
    blocks: list[bytes] = []
    size, started = 0, time.monotonic()
    deadline = started + EVENT_SECONDS
    while size < LINE_BYTES and _readable(0, deadline - time.monotonic()):
        block = os.read(0, BLOCK_BYTES)
        blocks.append(block)
        size += len(block)
        # while more is there already this is not the end: trying each time would make a payload of braces quadratic
        if not block or ((block.rstrip() or b"}").endswith(b"}") and not _readable(0, 0.0)):
            event = _parse_event(b"".join(blocks))
            if event or not block:
                return event
        deadline = min(time.monotonic() + EVENT_SECONDS, started + EVENT_MOST_SECONDS)
    return _parse_event(b"".join(blocks))


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
    return Request(path, session, _whole_text(event_text(event, "cwd")), event_text(event, "last_assistant_message"), live=True,
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
            if checkpoint.off and not request.off:
                status = regular_file(request.path)
                checkpoint.off_until = status.st_size if status else 0
            checkpoint.client, checkpoint.off, checkpoint.state, checkpoint.ended = request.client or [0, ""], request.off, "open", False
            checkpoint.off_folders = [request.cwd] if request.cwd and switched_off(request.cwd) else []
            write_checkpoint(home, key, checkpoint)


def tell_session(home: Home, request: Request, source: str) -> None:
    """Print the recall as the one JSON object that the client takes as context. A resumed session has it already."""
    cwd = home.environ.get("CLAUDE_PROJECT_DIR") or request.cwd
    if source == "resume" or request.off or home.setting("recall") == "off" or not cwd or switched_off(cwd):
        return
    text = recall(home, this_project(home, cwd), open_turn_lines(home, request.path) if source == "compact" else [])
    if text:
        answer = {"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": text}}
        sys.stdout.buffer.write(json.dumps(answer).encode())
        sys.stdout.buffer.flush()


def hook_session_start(home: Home, consent: Consent, event: dict[str, Any]) -> None:
    """Note the session, so that a crash in its first turn is noticed; tell it of the earlier ones; start the drain, which catches up."""
    request = event_request(home, event)
    try:
        if request:
            begin_session(home, request)
            tell_session(home, request, event_text(event, "source"))
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
    home: Optional[Home] = None
    try:
        home = Home(dict(os.environ))
        event = read_event()
        consent = read_consent(home)
        if consent and not consent.paused and not home.environ.get("MEMHOOK_CHILD"):
            HOOKS[name](home, consent, event)
    except Exception as error:  # one of the two broad handlers: whatever goes wrong here must not reach the person's session
        if home:
            log(home, "hook-failed", hook=name, error=type(error).__name__, where=_where(error))
    return EXIT_OK


# ==== 17. MCP ===================================================================
# Job:      the same search, get and save as tools for Claude, over JSON-RPC 2.0 on stdin and stdout, one message a line.
# Promise:  nothing else goes to stdout; a bad message gets its error and the server lives on; it ends when stdin does.
# Not:      no server/discover (clients fall back to initialize on -32601), no resources, no prompts, no port.
# Format:   Model Context Protocol 2024-11-05 to 2025-11-25.

PROTOCOLS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MESSAGE_BYTES = 4 << 20  # a longer line is answered with an error and not read into memory


class RpcError(Exception):
    """A JSON-RPC error: code, message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _schema(required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TOOLS = (
    {"name": "memory_search", "title": "Search memory",
     "description": "Search what was said and done in earlier Claude Code sessions of this project: decisions, errors and their fixes, commands, files, "
     "open ends. Use it when the person refers to earlier work, or before solving what may have been solved. Any words will do; exact names and messages are best.",
     "inputSchema": _schema(["query"], query={"type": "string", "description": "words, a question, an error message, an identifier"},
                            limit={"type": "integer", "minimum": 1, "maximum": 50, "description": "how many results (6)"},
                            project={"type": "string", "description": 'a project key, or "all"; this project if left out'},
                            source={"type": "string", "enum": ["memory", "session"], "description": "digests and notes, or the words of sessions; both if left out"},
                            since={"type": "string", "description": "a date (2026-01-31) or a span (7d, 12h, 3w)"}),
     "annotations": {"readOnlyHint": True, "openWorldHint": False}},
    {"name": "memory_get", "title": "Read a memory",
     "description": "Read a memory found by memory_search, whole or some of its lines.",
     "inputSchema": _schema([], id={"type": "string"}, path={"type": "string"}, **{"from": {"type": "integer", "minimum": 1}}, lines={"type": "integer", "minimum": 1}),
     "annotations": {"readOnlyHint": True, "openWorldHint": False}},
    {"name": "memory_save", "title": "Save a note",
     "description": "Keep a note for later sessions of this project. Only when the person asks to remember something.",
     "inputSchema": _schema(["text"], text={"type": "string"}, title={"type": "string"}),
     "annotations": {"readOnlyHint": False, "destructiveHint": False, "idempotentHint": True, "openWorldHint": False}},
)


def _argument(arguments: dict[str, Any], name: str, kind: type, default: Any) -> Any:
    value = arguments.get(name, default)
    if name in arguments and (not isinstance(value, kind) or isinstance(value, bool)):
        raise RpcError(-32602, "%s must be %s" % (name, "a string" if kind is str else "an integer"))
    return value


class McpServer:
    """Answers one message after the other."""

    def __init__(self, home: Home, cwd: str) -> None:
        self.home = home
        self.project = this_project(home, cwd)
        self.tools: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "memory_search": self._search, "memory_get": self._get, "memory_save": self._save}

    def answer(self, line: bytes) -> Optional[dict[str, Any]]:
        """The answer to one line; None for notifications and answers, which get none."""
        request_id = None
        try:
            try:
                message = json.loads(line.decode("utf-8"))
            except (ValueError, RecursionError):
                raise RpcError(-32700, "not JSON")
            if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
                raise RpcError(-32600, "not a JSON-RPC 2.0 request")
            request_id = message.get("id")
            if "method" not in message and ("result" in message or "error" in message):
                return None
            if "id" in message and (isinstance(request_id, bool) or not isinstance(request_id, (str, int))):
                request_id = None
                raise RpcError(-32600, "id must be a string or an integer")
            if not isinstance(message.get("method"), str):
                raise RpcError(-32600, "method must be a string")
            if "id" not in message:
                return None
            return {"jsonrpc": "2.0", "id": request_id, "result": self._call(message["method"], message.get("params", {}))}
        except RpcError as error:
            return {"jsonrpc": "2.0", "id": request_id, "error": {"code": error.code, "message": str(error)}}

    def _call(self, method: str, params: Any) -> dict[str, Any]:
        if not isinstance(params, dict):
            raise RpcError(-32602, "params must be an object")
        if method == "initialize":
            asked = params.get("protocolVersion")
            return {"protocolVersion": asked if asked in PROTOCOLS else PROTOCOLS[-1], "capabilities": {"tools": {}},
                    "serverInfo": {"name": "memhook", "title": "memhook", "version": VERSION},
                    "instructions": "memhook remembers earlier Claude Code sessions. Search before asking the person what was decided or done earlier."}
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": list(TOOLS)}
        if method == "tools/call":
            return self._call_tool(params)
        raise RpcError(-32601, "no method %s" % method[:100])

    def _call_tool(self, params: dict[str, Any]) -> dict[str, Any]:
        """A tool's failure is a result, so that Claude sees it; wrong arguments are an error."""
        name, arguments = params.get("name"), params.get("arguments", {})
        if not isinstance(name, str) or name not in self.tools:
            raise RpcError(-32602, "no tool of this name")
        if not isinstance(arguments, dict):
            raise RpcError(-32602, "arguments must be an object")
        try:
            value = self.tools[name](arguments)
        except (MemhookError, OSError) as error:
            hint = getattr(error, "hint", "")
            return {"content": [{"type": "text", "text": "%s%s" % (error, ". " + hint if hint else "")}], "isError": True}
        return {"content": [{"type": "text", "text": json.dumps(value, ensure_ascii=False)}], "structuredContent": value, "isError": False}

    def _search(self, arguments: dict[str, Any]) -> dict[str, Any]:
        query = _argument(arguments, "query", str, None)
        if query is None:
            raise RpcError(-32602, "query is missing")
        project = _argument(arguments, "project", str, self.project)
        scope = Scope("" if project == "all" else project, parse_source(_argument(arguments, "source", str, "")), parse_since(_argument(arguments, "since", str, "")))
        return search(self.home, query, scope, max(1, min(50, _argument(arguments, "limit", int, self.home.setting("max_results")))))

    def _get(self, arguments: dict[str, Any]) -> dict[str, Any]:
        name = _argument(arguments, "id", str, "") or _argument(arguments, "path", str, "")
        if not name:
            raise RpcError(-32602, "id or path is missing")
        return get_memory(self.home, name, _argument(arguments, "from", int, 1), _argument(arguments, "lines", int, 0))

    def _save(self, arguments: dict[str, Any]) -> dict[str, Any]:
        text = _argument(arguments, "text", str, None)
        if text is None:
            raise RpcError(-32602, "text is missing")
        return save_note(self.home, text, _argument(arguments, "title", str, ""), self.project)


def serve_mcp(home: Home, cwd: str) -> int:
    """Answer until stdin ends."""
    server = McpServer(home, cwd)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        line = source.readline(MESSAGE_BYTES + 1)
        if not line:
            return EXIT_OK
        if len(line) > MESSAGE_BYTES:
            while line and not line.endswith(b"\n"):
                line = source.readline(MESSAGE_BYTES)
            answer: Optional[dict[str, Any]] = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": "the message is too long"}}
        elif not line.strip():
            continue
        else:
            answer = server.answer(line)
        if answer is not None:
            sink.write(json.dumps(answer, ensure_ascii=False).encode("utf-8", "replace") + b"\n")
            sink.flush()


# ==== 18. Install ===============================================================
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
  The program is {program}; {count} hooks are added to {settings}, of which a backup is kept.
  A command `memhook` is put into ~/.local/bin or ~/bin, if one of them is on your PATH.
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


class HookLine:
    """One of our command lines, taken apart."""

    __slots__ = ("interpreter", "program", "subcommand", "home", "current")

    def __init__(self, interpreter: str, program: str, subcommand: str, home: str, current: bool) -> None:
        self.interpreter, self.program, self.subcommand = interpreter, program, subcommand
        self.home = home  # "" for the default
        self.current = current  # of the form that hook_command writes now


def _forms(words: list[str]) -> Iterator[tuple[HookLine, list[str]]]:
    """Each form that this program writes or wrote, filled from the places where its parts would be: (parts, the words that makes)."""
    if len(words) in (18, 19):
        line = HookLine(words[3], words[8], words[17], words[18] if len(words) == 19 else "", True)
        yield line, ["test", "!", "-x", line.interpreter, "||", "test", "!", "-f", line.program, "||", "exec", line.interpreter, "-I", "-S", "-c", BOOT,
                     line.program, line.subcommand] + words[18:]
    if len(words) == 3:  # wired by hand, as a person would write it
        yield HookLine(words[0], words[1], words[2], "", False), words


def parse_hook(command: Any) -> Optional[HookLine]:
    """The parts of a command line that is ours, wherever it was installed from; None for any other. Never by a substring: a foreign hook may name us."""
    import shlex
    if not isinstance(command, str) or "memhook.py" not in command:
        return None
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    for line, form in _forms(words):
        if words == form and re.split(r"[\\/]", line.program)[-1] == "memhook.py" and line.subcommand in {spec.subcommand for spec in HOOK_SPECS}:
            return line
    return None


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
        data = b"{}\n" if original is None else original
        if not data.strip():
            raise InstallError("%s, line 1: the file is empty" % path, "write {} into it, or remove it, and try again")
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
    if os.path.isfile(path) and os.stat(path).st_mode & 0o600 != 0o600:  # the mode speaks, also for root, who could
        raise InstallError("%s may not be %s" % (path, "written" if os.stat(path).st_mode & 0o400 else "read"), "chmod u+rw it, if that is what you want, and try again")
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
    return [(event, hook["command"]) for event, groups in root.get("hooks", {}).items() for group in groups for hook in group.get("hooks", []) if parse_hook(hook.get("command"))]


def _prune(settings: Settings, event: str, before: Optional[Settings]) -> None:
    """Where our going has left the event's list, or "hooks", empty: as it was before us, gone or with the space that it held."""
    had = before.hooks() if before else None
    hooks = settings.hooks()
    list_now = settings.member(hooks, event)
    list_then = before.member(had, event) if before else None
    if list_now and list_now.value == []:
        if list_then and list_then.value == []:
            settings.splice(list_now.start, list_now.end, before.text[list_then.start:list_then.end])
        elif not list_then:
            _remove(settings, hooks, list(hooks.value).index(event))
    hooks = settings.hooks()
    if hooks and hooks.value == {}:
        if had:
            settings.splice(hooks.start, hooks.end, before.text[had.start:had.end] if had.value == {} else "{}")
        else:
            _remove(settings, settings.root, list(settings.root.value).index("hooks"))


def _remove_one(settings: Settings, keep: frozenset[tuple[str, str]], kept: set[tuple[str, str]], empty: Optional[Settings]) -> bool:
    hooks = settings.hooks()
    for event in scan(settings.text, hooks) if hooks else []:
        for number, group in enumerate(scan(settings.text, event)):
            listed = settings.member(group, "hooks")
            for place, hook in enumerate(scan(settings.text, listed) if listed else []):
                named = (event.key, hook.value.get("command"))
                if parse_hook(named[1]) is None:
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


def _planned(home: Home, settings: Settings) -> str:
    """What install would do, in words."""
    lines = ["Would copy memhook.py to %s" % program_path(home), "Would make %s" % home.root]
    if settings.to_bytes() == settings.original:
        return "\n".join(lines + ["settings.json is as it should be"])
    return "\n".join(lines + ["Would add to %s: %s -> memhook %s" % (settings.path, spec.event, spec.subcommand) for spec in HOOK_SPECS])


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


_LAUNCHER_MARK = "# written by memhook install, removed by memhook uninstall\n"


def launcher_path(home: Home) -> str:
    """Where a `memhook` command would be found: ~/.local/bin or ~/bin, if it is on PATH; else ""."""
    user = os.path.dirname(home.config) if not home.environ.get("CLAUDE_CONFIG_DIR") else home.environ.get("HOME") or os.path.expanduser("~")
    wanted = [os.path.join(user, ".local", "bin"), os.path.join(user, "bin")]
    found = [folder for folder in home.environ.get("PATH", "").split(os.pathsep) if folder in wanted and os.path.isdir(folder)]
    return os.path.join(found[0], "memhook") if found and os.name != "nt" else ""


def write_launcher(home: Home) -> str:
    """Make the command `memhook`, which starts from the cached bytecode; -> how a person calls us. A foreign file of that name stays."""
    import shlex
    path, plain = launcher_path(home), "python3 %s" % shlex.quote(program_path(home))
    there = read_file(path) if path else None
    if not path or (there is not None and _LAUNCHER_MARK.encode() not in there):
        return plain
    places = "".join('%s="${%s:-%s}" ' % (name, name, value) for name, value in (("CLAUDE_CONFIG_DIR", home.environ.get("CLAUDE_CONFIG_DIR")), ("MEMHOOK_HOME", home.environ.get("MEMHOOK_HOME")))
                     if value and re.fullmatch(r"[\w./ ~+:@-]+", value))
    line = "exec %s -I -S -c %s %s \"$@\"\n" % (shlex.quote(stable_interpreter()), shlex.quote(BOOT), shlex.quote(program_path(home)))
    text = "#!/bin/sh\n" + _LAUNCHER_MARK + ("export %s\n" % places.strip() if places else "") + line
    write_file(path, text.encode())
    os.chmod(path, 0o755)
    return "memhook"


def remove_launcher(home: Home) -> None:
    path = launcher_path(home)
    if path and _LAUNCHER_MARK.encode() in (read_file(path) or b""):
        remove_file(path)


def copy_program(home: Home) -> None:
    """Put this file where the hooks look for it, and its bytecode beside it: the first hook should not compile."""
    target, source = program_path(home), PROGRAM
    data = read_file(source)
    if os.path.realpath(source) != os.path.realpath(target) and data != read_file(target):
        write_file(target, data or b"")
    from importlib.machinery import SourceFileLoader
    SourceFileLoader("m", target).get_code("m")


def read_record(home: Home) -> dict[str, Any]:
    """install.json: {"created": bool, "original": the file's text before us, "left": SHA-256 of the file as we left it}."""
    record = read_json(home.path("install.json"))
    return record if isinstance(record, dict) else {}


def back_up(home: Home, settings: Settings) -> None:
    """Keep the bytes that stood there before us, beside the file and for the uninstall. An install on top of one of ours keeps the first."""
    original = settings.original
    if read_record(home) and original is not None and our_hooks(Settings(settings.path, original)):
        return
    if original is not None:
        write_file(settings.path + ".memhook-backup", original)
    record = {"created": original is None, "original": (original or b"").decode("utf-8", "surrogateescape"), "left": "", "fresh": True}
    write_file(home.path("install.json"), json.dumps(record).encode())


def note_left(home: Home, settings: Settings) -> None:
    """Remember the file as we left it: while it stays so, the uninstall brings its original bytes back.

    Not if a person changed it since the last time: then the original is no longer what they want back.
    """
    record = read_record(home)
    untouched = record.pop("fresh", False) or (settings.original is not None and record.get("left") == file_hash(settings.original))
    record["left"] = file_hash(settings.to_bytes()) if untouched else "changed"
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
        ran = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, env={**home.environ, "MEMHOOK_CHILD": "1", "MEMHOOK_CHECK": "1"})
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


def run_claude(home: Home, *arguments: str) -> bool:
    """Run the person's claude command, if there is one; -> whether it did what it should."""
    import shutil
    import subprocess
    claude = shutil.which("claude", path=home.environ.get("PATH"))
    if claude is None:
        return False
    try:
        done = subprocess.run([claude, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env={**home.environ, "MEMHOOK_CHILD": "1"})
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def mcp_command(home: Home) -> list[str]:
    """How Claude starts our MCP server."""
    return [stable_interpreter(), "-I", "-S", "-c", BOOT, program_path(home), "mcp"]


def register_mcp(home: Home, tell: Callable[[str], None]) -> None:
    """Offer memory_search and the others to Claude, by its own command: its file is not ours to edit."""
    import shlex
    if run_claude(home, "mcp", "get", "memhook") or run_claude(home, "mcp", "add", "--scope", "user", "memhook", "--", *mcp_command(home)):
        tell("Claude can search your memories (MCP server memhook).")
    else:
        tell("To let Claude search your memories, run:\n  claude mcp add --scope user memhook -- %s" % " ".join(map(shlex.quote, mcp_command(home))))


def merge_hooks(home: Home) -> None:
    """Make settings.json hold our hooks, each once; the bytes before us are kept first."""
    settings = read_settings(home)
    add_hooks(settings, wanted_hooks(home))
    if settings.original is None or settings.to_bytes() != settings.original:
        back_up(home, settings)
        write_settings(settings, settings.to_bytes())
        note_left(home, settings)


def install(home: Home, phrase: Optional[str], dry_run: bool, tell: Callable[[str], None], mcp: bool = False) -> None:
    """Ask, copy this file into Claude's folder, merge the hooks, write the consent. Twice is the same as once."""
    settings = read_settings(home)
    add_hooks(settings, wanted_hooks(home))
    if dry_run:
        tell(_planned(home, settings))
        return
    if read_consent(home) is None:
        tell(DISCLOSURE.format(home=home.root, program=program_path(home), settings=settings.path, count=len(HOOK_SPECS)))
        ask_consent(phrase)
    home.create()
    with Lock(home.path("install.lock")) as lock:
        if not lock.acquire(60.0):
            raise BusyError("another install is running", "try again in a moment")
        copy_program(home)
        merge_hooks(home)
        check_hooks(home)
        grant_consent(home, "flag" if phrase else "typed")
    if mcp:
        register_mcp(home, tell)
    tell("memhook is on. Your next Claude Code sessions become memories in %s" % home.path("memories"))
    called = write_launcher(home)
    tell("Look at it:  %s status\nUndo it:     %s uninstall" % (called, called))


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


def unregister_mcp(home: Home) -> None:
    if run_claude(home, "mcp", "get", "memhook"):
        run_claude(home, "mcp", "remove", "--scope", "user", "memhook")


def take_hooks_out(home: Home) -> str:
    """Settings.json without us: its original bytes if nobody changed it since, else our entries spliced out; -> what was done, in words."""
    settings = read_settings(home)
    record = read_record(home)
    if settings.original is None:
        return "settings.json is not there"
    if record.get("left") == file_hash(settings.original):
        if record["created"]:
            remove_file(os.path.realpath(settings.path))
        else:
            write_settings(settings, record["original"].encode("utf-8", "surrogateescape"))
        return "settings.json is what it was before"
    before = None
    if record.get("original"):
        before = Settings(settings.path, record["original"].encode("utf-8", "surrogateescape"))
    remove_hooks(settings, empty=before)
    if settings.to_bytes() == settings.original:
        return "settings.json held none of our hooks"
    write_settings(settings, settings.to_bytes())
    return "settings.json was changed since; our entries are out of it, the rest is as it is"


def remove_program(home: Home) -> None:
    """Remove the installed memhook.py and its bytecode."""
    folder = os.path.join(home.config, "__pycache__")
    for name in list_folder(folder):
        if re.fullmatch(r"memhook\.[\w.-]+\.pyc", name):
            remove_file(os.path.join(folder, name))
    if os.path.isdir(folder) and not os.listdir(folder):
        os.rmdir(folder)
    remove_file(program_path(home))


def uninstall(home: Home, tell: Callable[[str], None]) -> None:
    """Remove hooks, consent and program. Memories stay."""
    outcome = take_hooks_out(home)
    for path in (home.path("consent.json"), home.path("install.json"), settings_path(home) + ".memhook-backup"):
        remove_file(path)
    unregister_mcp(home)
    remove_launcher(home)
    remove_program(home)
    tell("memhook is off: %s." % outcome)


# ==== 19. Checkup ===============================================================
# Job:      facts about this installation, for a person and as JSON.
# Promise:  looks, changes nothing.


def count_memories(home: Home) -> dict[str, int]:
    sizes = [status.st_size for _, status in walk_memories(home.path("memories"))]
    return {"count": len(sizes), "bytes": sum(sizes)}


def count_sessions(home: Home) -> dict[str, int]:
    held = [read_file(home.path("checkpoints", name)) or b"" for name in list_folder(home.path("checkpoints")) if name.endswith(".json")]
    return {"open": sum(b'"state":"open"' in data for data in held), "closed": sum(b'"state":"closed"' in data for data in held)}


def hook_state(home: Home, spec: HookSpec, commands: list[str]) -> str:
    """installed, stale (another form, twice, or its interpreter or program gone) or missing."""
    lines = [line for line in map(parse_hook, commands) if line]
    if not lines:
        return "missing"
    line = lines[0]
    default = Home({**home.environ, "MEMHOOK_HOME": ""}).root
    right = line.current and line.subcommand == spec.subcommand and (line.home or default) == home.root
    runs = os.access(line.interpreter, os.X_OK) and os.path.isfile(line.program)
    return "installed" if len(lines) == 1 and right and runs else "stale"


def hook_states(home: Home) -> dict[str, str]:
    """The state of the hook for each event of HOOK_SPECS."""
    try:
        stands = our_hooks(read_settings(home))
    except InstallError:
        stands = []
    return {spec.event: hook_state(home, spec, [command for event, command in stands if event == spec.event]) for spec in HOOK_SPECS}


def check_status(home: Home) -> dict[str, Any]:
    """The facts of `status --json`."""
    consent = read_consent(home)
    return {
        "version": VERSION, "home": home.root,
        "consent": {"capture": consent is not None, "model": False, "team": False, "paused": bool(consent and consent.paused)},
        "hooks": hook_states(home), "spool": Spool(home.path("spool")).counts(), "outbox": Spool(home.path("outbox")).counts(),
        "memories": count_memories(home), "sessions": count_sessions(home),
    }


# ---- verify


class Evidence:
    """Where every turn is that can be found now, by its key; and what the receipts say of those that cannot."""

    def __init__(self, home: Home) -> None:
        self.stored: dict[str, list[tuple[str, str]]] = {}  # turn key -> [(text hash, session)] in memory files
        self.messages: dict[tuple[str, str], int] = {}  # (session, text hash) -> how many turns came from Stop before their line did
        self.waiting: set[tuple[str, str]] = set()  # (turn key, text hash) in the spool
        self.receipts: dict[str, list[tuple[str, str, int]]] = {}  # turn key -> [(text hash, memory id, parser)]
        self.of_transcript: dict[str, list[tuple[str, str, str]]] = {}  # transcript key -> [(turn key, text hash, memory id)]
        self.intact: set[str] = set()  # ids of memories whose file is as its receipt says
        self.graves = read_graves(home)
        written = self._read_receipts(home)
        for path in memory_files(home):
            data = read_file(path) or b""
            memory = parse_memory(data)
            if file_hash(data) in written:
                self.intact.add(str(memory.front.get("id")))
            for turn in memory.turns:
                self._note(turn, str(memory.front.get("session")))
        for state in ("new", "claimed", "dead"):
            spool = Spool(home.path("spool"))
            for item in spool.items(state):
                try:
                    _, turns = parse_segment(read_file(os.path.join(spool.root, state, item.name)) or b"")
                except (Poison, Transient):
                    continue
                self.waiting.update((turn.key, text_hash(turn.text)) for turn in turns)

    def _read_receipts(self, home: Home) -> set[str]:
        written = set()
        for receipt in read_receipts(home):
            written.add(receipt.get("file"))
            for key, digest in receipt.get("turns") or []:
                self.receipts.setdefault(key, []).append((digest, receipt["id"], receipt.get("parser", 0)))
                self.of_transcript.setdefault(receipt["key"], []).append((key, digest, receipt["id"]))
        return written

    def _note(self, turn: Turn, session: str) -> None:
        digest = text_hash(turn.text)
        self.stored.setdefault(turn.key, []).append((digest, session))
        if turn.key.startswith("m") and turn.start == turn.end:
            self.messages[session, digest] = self.messages.get((session, digest), 0) + 1


class Coverage:
    """What verify finds for one transcript."""

    __slots__ = ("path", "bytes", "turns", "gaps", "repeats", "state", "lost")

    def __init__(self, path: str) -> None:
        self.path = path
        self.bytes = 0
        self.turns = dict.fromkeys(("stored", "waiting", "open", "duplicate", "forgotten", "withheld", "missing", "repeated", "edited"), 0)
        self.gaps: list[list[int]] = []
        self.repeats: list[list[int]] = []
        self.state = "ok"  # ok, missing, source-gone, rewritten, edited, other-parser
        self.lost: list[Turn] = []  # the turns of the gaps: for a terminal, never for JSON or a log

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("path", "bytes", "turns", "gaps", "repeats", "state")}


def _check_gone(checkpoint: Checkpoint, evidence: Evidence, coverage: Coverage) -> Coverage:
    """A transcript that is gone: only receipts can speak of it."""
    coverage.state = "source-gone"
    coverage.turns["open"] = sum(turn.is_spoken for turn in checkpoint.turns)
    for key, digest, memory in evidence.of_transcript.get(transcript_key(coverage.path), []):
        if any(known == digest for known, _ in evidence.stored.get(key, [])):
            coverage.turns["stored"] += 1
        elif (key, digest) in evidence.waiting:
            coverage.turns["waiting"] += 1
        elif key.rsplit("/", 1)[0] in evidence.graves.names:
            coverage.turns["forgotten"] += 1
        else:
            coverage.turns["missing" if memory in evidence.intact else "edited"] += 1
    return coverage


def _find_turn(turn: Turn, checkpoint: Checkpoint, evidence: Evidence, consent: Optional[Consent]) -> str:
    """Where a turn is: the name of a count in Coverage.turns."""
    digest = text_hash(turn.text)
    copies = [session for known, session in evidence.stored.get(turn.key, []) if known == digest]
    if len(copies) > 1:
        return "repeated"
    if copies:
        return "stored" if copies[0] == checkpoint.session or not checkpoint.session else "duplicate"
    if (turn.key, digest) in evidence.waiting:
        return "waiting"
    if any(other.key == turn.key and other.text == turn.text for other in checkpoint.turns):
        return "open"
    if evidence.messages.get((checkpoint.session, digest), 0):
        evidence.messages[checkpoint.session, digest] -= 1
        return "stored"
    if evidence.graves.holds(turn):
        return "forgotten"
    if any(start <= turn.start < end for start, end, _ in checkpoint.withheld):
        return "withheld"
    if turn.start >= checkpoint.parsed and (consent is None or consent.covers(turn.at)):
        return "withheld"
    if turn.start >= checkpoint.parsed and checkpoint.path and checkpoint.state == "open":
        return "open"  # said since the last capture
    known = [memory for known, memory, _ in evidence.receipts.get(turn.key, []) if known == digest]
    return "edited" if known and not any(memory in evidence.intact for memory in known) else "missing"


def _add_range(ranges: list[list[int]], turn: Turn) -> None:
    if ranges and ranges[-1][1] == turn.start:
        ranges[-1][1] = turn.end
    else:
        ranges.append([turn.start, turn.end])


def _check_turn(turn: Turn, checkpoint: Checkpoint, evidence: Evidence, consent: Optional[Consent], coverage: Coverage) -> None:
    found = _find_turn(turn, checkpoint, evidence, consent)
    coverage.turns[found] += 1
    if found == "missing":
        _add_range(coverage.gaps, turn)
        coverage.lost.append(turn)
        coverage.state = "missing" if coverage.state != "other-parser" else coverage.state
        if any(parser != PARSER_VERSION for _, _, parser in evidence.receipts.get(turn.key, [])):
            coverage.state = "other-parser"
    elif found == "repeated":
        _add_range(coverage.repeats, turn)
    elif found == "edited" and coverage.state == "ok":
        coverage.state = "edited"


def check_transcript(home: Home, path: str, evidence: Evidence, consent: Optional[Consent]) -> Coverage:
    """Read one transcript again from its first byte and look for every prompt and answer. Trusts no offset."""
    coverage = Coverage(path)
    checkpoint = read_checkpoint(home, transcript_key(path)) or Checkpoint()
    status = regular_file(path)
    if status is None:
        return _check_gone(checkpoint, evidence, coverage)
    coverage.bytes = status.st_size
    context = Context()
    with open(path, "rb") as stream:
        for line, start, end in read_lines(stream, 0, None, checkpoint.state == "closed"):
            for turn in parse_line(line, start, end, context):
                if turn.is_spoken:
                    _check_turn(turn, checkpoint, evidence, consent, coverage)
    if coverage.state == "ok" and checkpoint.generation:
        coverage.state = "rewritten"
    return coverage


def verify_targets(home: Home, consent: Optional[Consent], paths: list[str]) -> list[str]:
    """The transcripts to verify: those named, else every one that was captured or that should have been."""
    if paths:
        return [path for path, _ in find_transcripts(home, paths)] + [os.path.realpath(path) for path in paths if not os.path.exists(path)]
    found: dict[str, None] = {}
    for name in list_folder(home.path("checkpoints")):
        stored = read_json(home.path("checkpoints", name)) if name.endswith(".json") else None
        if isinstance(stored, dict) and not stored.get("own") and (stored.get("parsed") or stored.get("segment")):
            found[str(stored.get("path"))] = None
    for path in transcripts(home):
        status = regular_file(path)
        if consent and status and status.st_mtime >= consent.capture_at:
            stored = read_json(checkpoint_path(home, transcript_key(path)))
            if not (isinstance(stored, dict) and stored.get("own")):
                found[os.path.realpath(path)] = None
    return list(found)


def verify(home: Home, paths: list[str], tell: Callable[[int, int], None]) -> list[Coverage]:
    """Check every target. Changes nothing."""
    consent = read_consent(home)
    targets = verify_targets(home, consent, paths)
    evidence = Evidence(home)
    found = []
    for number, path in enumerate(targets):
        found.append(check_transcript(home, path, evidence, consent))
        tell(number + 1, len(targets))
    return found


# ==== 20. Commands ==============================================================
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
    install(home, options.consent, options.dry_run, say, not options.no_mcp)
    return EXIT_OK


def ask_purge(home: Home) -> None:
    """Return if the person types PURGE; raises UsageError otherwise."""
    if sys.stdin is not None and sys.stdin.isatty():
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


def show_results(found: dict[str, Any], query: str, explain: bool) -> None:
    """For a person: title, date, project, the lines that match, the id to get."""
    bold, dim, end = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else ("", "", "")
    words = [re.escape(word) for word in re.findall(r"\w{2,}", query) if word.lower() not in _STOP_WORDS]
    for result in found["results"]:
        show("%s%s%s  %s%s  %s  %s%s" % (bold, one_line(result["title"], 100), end, dim, result["at"][:10], result["project"], result["confidence"], end))
        lines = [line for line in result["text"].split("\n") if line.strip()]
        best = sorted(range(len(lines)), key=lambda number: -len(re.findall("(?i)" + "|".join(words), lines[number]))) if words else range(len(lines))
        for number in sorted(list(best)[:3]):
            line = one_line(lines[number], 200)
            show("    " + (re.sub("(?i)(%s)" % "|".join(words), bold + r"\1" + end, line) if words and bold else line))
        show("    %smemhook get %s --from %d%s" % (dim, result["id"][:8], result["start_line"], end))
        if explain:
            show("    " + json.dumps(result.get("explain"), ensure_ascii=False))


def doubt(found: dict[str, Any], scope: Scope) -> str:
    """What a person should know about the results; "" where there is nothing to add."""
    results = found["results"]
    where = "in this project (--all searches everywhere)" if scope.project else "anywhere"
    if not results:
        return "Nothing found %s: no memory has these words." % where
    if not any(result["confidence"] == "high" for result in results):
        return "Nothing certain: no result has most of the query's telling words; these are the nearest %s." % where
    return ""


def cmd_search(home: Home, options: Any) -> int:
    query = " ".join(options.query)
    project = "" if options.all else options.project or this_project(home, os.getcwd())
    scope = Scope(project, parse_source(options.source or ""), parse_since(options.since or ""))
    found = search(home, query, scope, options.n or home.setting("max_results"), options.explain)
    if options.json:
        show_json(found)
        return EXIT_OK
    if "notice" in found:
        say(found["notice"])
    show_results(found, query, options.explain)
    say(doubt(found, scope))
    return EXIT_OK


def cmd_get(home: Home, options: Any) -> int:
    found = get_memory(home, options.name, options.first, options.lines)
    show_json(found) if options.json else show(found["text"])
    return EXIT_OK


def cmd_save(home: Home, options: Any) -> int:
    text = sys.stdin.read() if options.text == ["-"] else " ".join(options.text)
    note = save_note(home, text, options.title or "", this_project(home, os.getcwd()))
    say("Saved." if note["saved"] else "Known already.")
    show(note["id"])
    return EXIT_OK


def progress(word: str) -> Callable[[int, int], None]:
    """A line on stderr that counts, at a terminal only."""
    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty() and (done == total or done % 20 == 0):
            sys.stderr.write("\r%s %d of %d%s" % (word, done, total, "\n" if done == total else ""))
            sys.stderr.flush()
    return tell


def cmd_reindex(home: Home, options: Any) -> int:
    with open_index(home, fresh=True) as index:
        count = index.sync(progress("indexed"))
    say("Indexed %d memories." % count)
    return EXIT_OK


def cmd_import(home: Home, options: Any) -> int:
    consent = read_consent(home)
    if consent is None:
        raise StateError("memhook is not installed", "run: python3 memhook.py install")
    report = import_transcripts(home, consent, options.paths, options.yes, options.dry_run, progress("imported"))
    show_json(report) if options.json else show(", ".join("%s %s" % pair for pair in report.items()))
    return EXIT_OK


def cmd_verify(home: Home, options: Any) -> int:
    found = verify(home, options.paths, progress("verified"))
    totals = {name: sum(coverage.turns[name] for coverage in found) for name in Coverage("").turns}
    ok = not totals["missing"] and not totals["repeated"]
    if options.json:
        show_json({"ok": ok, "transcripts": [coverage.to_json() for coverage in found], "totals": {**totals, "bytes": sum(coverage.bytes for coverage in found)}})
        return EXIT_OK if ok else EXIT_FOUND
    for coverage in found:
        if coverage.state not in ("ok", "rewritten") or coverage.gaps or coverage.repeats:
            show("%s  %s" % (coverage.state, coverage.path))
        for turn in coverage.lost:
            show("    missing  bytes %d-%d  %s: %s" % (turn.start, turn.end, turn.kind, one_line(turn.text, 80)))
        for start, end in coverage.repeats:
            show("    repeated bytes %d-%d" % (start, end))
    show("%d transcripts, %d bytes read: %s" % (len(found), sum(coverage.bytes for coverage in found), ", ".join("%d %s" % (count, name) for name, count in totals.items() if count) or "no turns"))
    show("Nothing is lost and nothing is stored twice." if ok else "Something is wrong: see above.")
    return EXIT_OK if ok else EXIT_FOUND


def cmd_forget(home: Home, options: Any) -> int:
    receipts = forget(home, options.ids)
    if options.json:
        show_json({"forgotten": receipts})
        return EXIT_OK
    for receipt in receipts:
        show("Forgot %s (%s)" % (receipt["id"], receipt["path"]))
        show("    removed: " + ", ".join("%s %d" % pair for pair in receipt["removed"].items()))
        for place in receipt["kept"]:
            show("    not ours to erase: " + place)
    return EXIT_OK


def cmd_list(home: Home, options: Any) -> int:
    project = "" if options.all else options.project or this_project(home, os.getcwd())
    with open_index(home) as index:
        index.refresh()
        rows = index.db.execute("SELECT memory, at, title, project, path, session FROM files WHERE at >= ? AND (? = '' OR project = ?) ORDER BY at DESC, segment DESC",
                                (parse_since(options.since or ""), project, project)).fetchall()
    if options.json:
        show_json({"memories": [dict(zip(("id", "at", "title", "project", "path", "session"), (row[0], iso(row[1]), *row[2:]))) for row in rows]})
        return EXIT_OK
    day = ""
    for memory, at, title, key, _, _ in rows:
        if iso(at)[:10] != day:
            day = iso(at)[:10]
            show(day)
        show("    %s  %s%s" % (memory[:8], one_line(title, 100), "" if project else "  (%s)" % key))
    say("" if rows else "No memories%s." % (" in this project (--all lists everything)" if project else ""))
    return EXIT_OK


def cmd_mcp(home: Home, options: Any) -> int:
    return serve_mcp(home, os.getcwd())


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
    Command("import", cmd_import, "Take past transcripts into memory.", "memhook import --dry-run\nmemhook import --yes", Argument("paths", nargs="*", metavar="PATH"),
            flag("--dry-run", "count only"), flag("--yes", "also what was said before you consented"), _JSON),
    Command("search", cmd_search, "Find what was said and done.", "memhook search why integer cents\nmemhook search --all --since 7d ECONNREFUSED",
            Argument("query", nargs="+", metavar="QUERY"), Argument("-n", type=int, metavar="N", help="how many results (6)"), Argument("--project", metavar="KEY", help="another project"),
            flag("--all", "every project"), Argument("--since", metavar="DATE", help="a date, or a span such as 7d"), Argument("--source", metavar="memory|session", help="digests and notes, or what was said"),
            _JSON, flag("--explain", "print the parts of each score")),
    Command("get", cmd_get, "Show a memory, whole or some lines.", "memhook get 3781d159 --from 20 --lines 40", Argument("name", metavar="ID|PATH"),
            Argument("--from", dest="first", type=int, default=1, metavar="LINE", help="the first line (1)"), Argument("--lines", type=int, default=0, metavar="N", help="how many lines (to the end)"), _JSON),
    Command("save", cmd_save, "Keep a note in your own words.", 'memhook save "Deploys only on Tuesdays" --title Deploys\nmemhook save - < notes.md', Argument("text", nargs="+", metavar="TEXT"),
            Argument("--title", metavar="T", help="its title")),
    Command("list", cmd_list, "List memories by day.", "memhook list --since 7d\nmemhook list --all", Argument("--since", metavar="DATE", help="a date, or a span such as 7d"),
            Argument("--project", metavar="KEY", help="another project"), flag("--all", "every project"), _JSON),
    Command("forget", cmd_forget, "Erase memories from every place that is memhook's, for good.", "memhook forget 3781d159", Argument("ids", nargs="+", metavar="ID"), _JSON),
    Command("verify", cmd_verify, "Prove that nothing was lost and nothing stored twice, by reading the transcripts again.", "memhook verify\nmemhook verify ~/.claude/projects/x/y.jsonl",
            Argument("paths", nargs="*", metavar="PATH"), _JSON),
    Command("reindex", cmd_reindex, "Make the index anew from the Markdown.", "memhook reindex"),
    Command("mcp", cmd_mcp, "Serve memory_search, memory_get and memory_save to Claude on stdin and stdout.", "claude mcp add --scope user memhook -- python3 ~/.claude/memhook.py mcp"),
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


def run_command(home: Home, argv: list[str]) -> int:
    parser = build_parser()
    try:
        options = parser.parse_args(argv)
        if options.command is None:
            parser.print_help()
            return EXIT_OK
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()  # help is printed without
    return next(command for command in COMMANDS if command.name == options.command).run(home, options)


def drop_output() -> None:
    """Let what is still buffered go nowhere: at exit it would fail a second time, with exit status 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main(argv: list[str]) -> int:
    """Run one command; -> the exit status."""
    os.umask(0o077)
    if argv and argv[0] in HOOKS:
        if len(argv) > 1 and not os.environ.get("MEMHOOK_HOME"):
            os.environ["MEMHOOK_HOME"] = argv[1]
        return run_hook(argv[0])
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it may be closed
            stream.reconfigure(encoding="utf-8", errors="replace")  # whatever the locale says
    home = Home(dict(os.environ))
    try:
        return run_command(home, argv)
    except MemhookError as error:
        say("memhook: %s%s" % (error, "\n         " + error.hint if error.hint else ""))
        return error.status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        drop_output()  # the reader has gone, as head does
        return EXIT_OK
    except OSError as error:
        drop_output()  # it may be what cannot be written
        say("memhook: %s%s" % (error.strerror or error, ": %s" % error.filename if error.filename else ""))
        return EXIT_FAILED
    except Exception as error:  # the other broad handler: a bug, to be reported, not shown as a traceback
        log(home, "bug", command="".join(argv[:1]), error=type(error).__name__, where=_where(error))
        say("memhook: this is a bug (%s at %s). Details: %s" % (type(error).__name__, _where(error), home.path("memhook.log")))
        return EXIT_BUG


def launch() -> None:
    """The entry. A hook leaves at once: tearing the interpreter down costs a millisecond or two and frees what is freed anyway."""
    argv = sys.argv[2:] if sys.argv[0] == "-c" else sys.argv[1:]
    status = main(argv)
    if argv and argv[0] in HOOKS:
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    launch()
