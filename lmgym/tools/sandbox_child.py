"""Runs the Python code on its standard input after giving up what that code must not do; the standard library only.

    limits of the process      seconds of CPU, bytes of memory, size of a file, open files     Linux, macOS
    Landlock                   reads only Python and the system's libraries, writes only here  Linux 5.13 and later
    seccomp                    no sockets, processes, signals, changes of modes or limits      Linux on x86-64, arm64

What the system does not have is left out; `PythonTool.protections` tries out what holds.
"""

import contextlib
import ctypes
import os
import platform
import resource
import struct
import sys

DENIED = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 42, 53),  # sockets
            *(56, 57, 58, 59, 322, 435),  # processes
            *(62, 200, 234),  # signals
            *(101, 298, 310, 311, 321, 323, 425),  # tracing
            *(161, 165, 272, 304, 308),  # namespaces and mounts
            *(
                76,
                90,
                91,
                92,
                93,
                94,
                132,
                188,
                189,
                190,
                197,
                198,
                199,
                235,
                260,
                261,
                268,
                280,
                452,
            ),  # modes, owners, times, attributes
            *(105, 106, 141, 160, 164, 169, 170, 203, 227, 250, 302),  # limits, users, clock, keys
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 203),  # sockets
            *(220, 221, 281, 435),  # processes
            *(129, 130, 131),  # signals
            *(117, 241, 270, 271, 280, 282, 425),  # tracing
            *(40, 51, 97, 265, 268),  # namespaces and mounts
            *(5, 6, 7, 14, 15, 16, 45, 52, 53, 54, 55, 88, 452),  # modes, owners, times, attributes
            *(112, 122, 140, 142, 144, 146, 161, 164, 170, 219, 261),  # limits, users, clock, keys
        ),
    ),
}
"""By machine, its number in seccomp, and the numbers of the system calls that fail."""

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
EVERY_ACCESS = (1 << 13) - 1
READING = 0b1101
"""Execute, read files, read folders."""
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_FILTER = 38, 22, 2


def limit_resources(seconds: int, memory: int) -> None:
    """Bounds time, memory, files and core dumps; a limit that the system refuses is left out."""
    for kind, value in (
        ("RLIMIT_CPU", seconds),
        ("RLIMIT_AS", memory),
        ("RLIMIT_FSIZE", 1 << 20),
        ("RLIMIT_NOFILE", 64),
        ("RLIMIT_CORE", 0),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(getattr(resource, kind), (value, value))


def limit_files(libc: ctypes.CDLL) -> None:
    """With Landlock: read below Python and the system's libraries, write below the working directory."""
    attributes = struct.pack("Q", EVERY_ACCESS)
    rules = libc.syscall(LANDLOCK_CREATE, attributes, len(attributes), 0)
    if rules < 0:
        return
    readable = {sys.prefix, sys.base_prefix, sys.exec_prefix, "/usr", "/lib", "/lib64", "/dev/null", "/dev/urandom"}
    for path, access in [*((each, READING) for each in readable), (os.getcwd(), EVERY_ACCESS)]:
        try:
            folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        allowed = access if os.path.isdir(path) else access & 0b111
        libc.syscall(LANDLOCK_ADD, rules, 1, struct.pack("=Qi", allowed, folder), 0)
        os.close(folder)
    libc.syscall(LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)


def limit_calls(libc: ctypes.CDLL) -> None:
    """With seccomp: the denied system calls fail with EPERM."""
    if platform.machine() not in DENIED:
        return
    architecture, denied = DENIED[platform.machine()]
    load, equal, at_least, end = 0x20, 0x15, 0x35, 0x06
    program = [(load, 0, 0, 4), (equal, 1, 0, architecture), (end, 0, 0, 0), (load, 0, 0, 0)]
    program.append((at_least, len(denied) + 1, 0, 0x40000000))
    program += [(equal, len(denied) - place, 0, number) for place, number in enumerate(denied)]
    program += [(end, 0, 0, 0x7FFF0000), (end, 0, 0, 0x00050001)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filters = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(code)))
    libc.prctl(PR_SET_SECCOMP, SECCOMP_FILTER, filters, 0, 0)


def main() -> None:
    """`sandbox_child.py SECONDS BYTES`"""
    seconds, memory = map(int, sys.argv[1:3])
    code = sys.stdin.read()
    limit_resources(seconds, memory)
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        limit_files(libc)
        limit_calls(libc)
    sys.argv = ["code"]
    exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    main()
