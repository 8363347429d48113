"""The real Claude Code client, where it is installed: a few sessions of tests/live/client_sessions.py, which has them all; and the client as the model."""
import os
import subprocess
import sys

import pytest

from conftest import ROOT

PLAYED = ("p_resume", "clear", "kill_first")  # under a minute
SCRIPTS = os.environ.get("MEMHOOK_CLIENT_SCRIPTS", "")  # read here: within a test these variables are gone


def play(name, *args):
    """Run a program of tests/live; its report is shown where it fails."""
    done = subprocess.run([sys.executable, str(ROOT / "tests" / "live" / name), *args], env={**os.environ, "MEMHOOK_CLIENT_SCRIPTS": SCRIPTS},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, encoding="utf-8", timeout=240)
    print(done.stdout)
    if done.returncode == 77:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr


def test_real_sessions_become_memories():
    play("client_sessions.py", *[word for name in PLAYED for word in ("--only", name)])


def test_the_real_client_writes_a_digest_and_its_own_session_is_never_captured():
    play("model_client.py")


def test_a_new_user_installs_and_uninstalls_by_the_readme_and_everything_is_as_before():
    play("new_user.py")


def test_the_sdk_and_the_real_client_use_the_server_and_a_session_is_told_of_the_last():
    play("mcp_client.py")
