"""Run a command at a terminal of its own, and type when it asks."""
import os
import pty
import select
import signal
import time

ASKED = b"to go on: "


def at_terminal(command, env, cwd, typed, asked=ASKED, seconds=60):
    """Type `typed` once `asked` has been shown; -> (exit status, all that was shown). A status of None: it did not end.

    pty.fork makes the terminal the controlling one, so ^C and ^D mean what they mean to a person.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.chdir(cwd)
            os.execvpe(command[0], list(map(str, command)), env)
        finally:
            os._exit(127)
    shown, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            block = os.read(terminal, 4096)
        except OSError:  # Linux: the other side has closed it
            block = b""
        if not block:
            break
        shown += block
        if typed is not None and asked in shown:
            os.write(terminal, typed)
            typed = None
    else:
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(terminal)
    ended = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    return (None if time.monotonic() >= deadline else ended), shown.decode("utf-8", "replace").replace("\r\n", "\n")
