"""Becomes a program on a machine of its own, as far as one kernel can give it one (Linux only).

    python isolated.py PARENT ROOT FOLDER PROGRAM ARGUMENT...

The program sees nothing of ROOT but FOLDER, FOLDER/tmp as /tmp, FOLDER/hosts as /etc/hosts, and no
process but its own. All of them end when this process or the one with the id PARENT ends, however
that ends. No privileges are needed where the kernel lets its users make namespaces.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_NEW_USER, _NEW_MOUNTS, _NEW_PROCESSES = 0x10000000, 0x00020000, 0x20000000
_BIND, _RECURSIVE, _PRIVATE = 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def main(parent: int, root: str, folder: str, command: list[str]) -> None:
    """Run the program as the only one of its machine, and end as it does."""
    end_with_parent(parent)
    leave_namespaces()
    folder_fd, temporary = (os.open(path, os.O_PATH) for path in (folder, f"{folder}/tmp"))
    init = os.fork()
    if init:
        signal.signal(signal.SIGTERM, lambda *_: os.kill(init, signal.SIGKILL))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(init, 0)[1]) % 256)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    mount(f"/proc/self/fd/{temporary}", "/tmp", None, _BIND)
    Path(root).mkdir(parents=True, exist_ok=True)  # it may have been in the /tmp now out of sight
    mount("none", root, "tmpfs", 0)
    Path(folder).mkdir(parents=True)
    mount(f"/proc/self/fd/{folder_fd}", folder, None, _BIND)
    mount(f"{folder}/hosts", "/etc/hosts", None, _BIND)
    mount("none", "/proc", "proc", 0)
    os.chdir(folder)
    be_init(command)


def end_with_parent(parent: int) -> None:
    """Ask to be killed with the parent, unless it is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that wanted this machine is gone")


def leave_namespaces() -> None:
    """Let the next child have mounts and processes of its own, and this user's name there."""
    user, group = os.getuid(), os.getgid()
    check("unshare", _libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_PROCESSES))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        Path(f"/proc/self/{name}").write_text(text)


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    """Mount, or say what could not be mounted."""
    encoded = (None if text is None else text.encode() for text in (source, target, kind))
    check(f"mount {target}", _libc.mount(*encoded, flags, None))


def check(what: str, status: int) -> None:
    """Raise if a call of the system has failed."""
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def be_init(command: list[str]) -> None:
    """Run the program, take care of processes without a parent, and end with the program."""
    program = os.fork()
    if not program:
        os.execvp(command[0], command)
    while True:
        process, status = os.wait()
        if process == program:
            os._exit(os.waitstatus_to_exitcode(status) % 256)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:])
