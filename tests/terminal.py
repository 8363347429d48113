"""Run a command at a terminal of its own, and type when it asks."""
import os
import select
import subprocess
import sys
import time

ASKED = b"to go on: "
TAKE = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"


def at_terminal(command, env, cwd, typed, asked=ASKED, seconds=60):
    """Type `typed` once `asked` has been shown; -> (exit status, all that was shown). A status of None: it did not end.

    The terminal is the controlling one, so ^C and ^D mean what they mean to a person. (pty.fork would do it, but forks a process
    that may have threads.)
    """
    terminal, theirs = os.openpty()
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", TAKE, *map(str, command)], env=env, cwd=cwd,
                               stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown, deadline, ended = b"", time.monotonic() + seconds, False
    while not ended and time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            block = os.read(terminal, 4096)
        except OSError:  # Linux: the other side has closed it
            block = b""
        ended = not block
        shown += block
        if typed is not None and asked in shown:
            os.write(terminal, typed)
            typed = None
    if not ended:
        process.kill()
    status = process.wait()
    os.close(terminal)
    status = 128 - status if status < 0 else status  # as a shell says it
    return (status if ended else None), shown.decode("utf-8", "replace").replace("\r\n", "\n")
