"""A child process that does not outlive its parent."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading

PR_SET_PDEATHSIG = 1
"""prctl(2)"""
LEAVE = signal.SIGUSR1
"""What the parent ends its children by, in order. Not SIGTERM: systemd sends that to every process of a service at once."""


def leave_with_parent(parent_fd: int, directory: str) -> None:
    """End this process when the parent's end of the pipe closes, however the parent ended. Its directory goes too."""
    if sys.platform == "linux":
        # A stopped process reads no pipe: let it go on when its parent dies.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGCONT)

    def wait() -> None:
        while os.read(parent_fd, 1):
            continue
        shutil.rmtree(directory, ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="quire-parent-watch", daemon=True).start()
