"""Becomes another program that ends when the process that started it ends, however that ends.

    python leash.py PARENT USER PROGRAM ARGUMENT...

PARENT is the process id of the starter. USER is whom the program runs as, empty for the same user:
PostgreSQL refuses to run as root. Only Linux can tell a program of its parent's death; elsewhere a
starter that is killed leaves its programs behind.
"""

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, user: str, command: list[str]) -> None:
    """Give up root, ask to be killed with the parent, and become the program."""
    if user:
        account = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(account.pw_gid)
        os.setuid(account.pw_uid)
    if sys.platform == "linux":  # a change of user forgets the request, so this comes after it
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
