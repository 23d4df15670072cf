"""Hostile programs, and what has to become of each."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grpo_gym.sandbox import Limits, Result

QUICK = Limits(wall_s=10.0, cpu_s=2.0, memory_mb=256, file_mb=2, disk_mb=8, output_bytes=50_000)
SHORT = Limits(wall_s=0.7, cpu_s=2.0, memory_mb=256, file_mb=2, disk_mb=8, output_bytes=50_000)


@dataclass(frozen=True)
class Attack:
    """A program, and the outcome that is right.

    Attributes:
        name: what it tries.
        source: the program; `{outside}` is a writable folder that is not its own, `{secret}` a file in it
            that anybody may read, `{parent}` the id of the process that runs the tests.
        right: whether this result is right.
        limits: what the program may use.
    """

    name: str
    source: str
    right: Callable[[Result], bool]
    limits: Limits = field(default=QUICK)


def prepared(source: str, secret: Path) -> str:
    """The source with the places and ids of this test put in."""
    values = {
        "{{": "{",
        "}}": "}",
        "{secret!r}": repr(str(secret)),
        "{outside!r}": repr(str(secret.parent)),
        "{parent}": str(os.getpid()),
    }
    for name, value in values.items():
        source = source.replace(name, value)
    return source


def status(*allowed: str) -> Callable[[Result], bool]:
    return lambda result: result.status in allowed


def says(text: str) -> Callable[[Result], bool]:
    return lambda result: result.stdout.strip() == text


def attempt(statement: str, setup: str = "") -> str:
    """A program that says whether a statement raised an exception of the operating system."""
    return (
        f"{setup}\ntry:\n    {statement}\nexcept (OSError, RuntimeError) as e:\n"
        "    print('denied')\nelse:\n    print('done')\n"
    )


def denied(name: str, statement: str, setup: str = "import os, socket, ctypes") -> Attack:
    return Attack(name, attempt(statement, setup), says("denied"))


SYSCALL = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(*a):
    if libc.syscall(*a) < 0:
        raise OSError(ctypes.get_errno(), "denied")
"""

ATTACKS = [
    # Resources.
    Attack("endless loop", "while True: pass", status("timeout"), SHORT),
    Attack("endless sleep", "import time; time.sleep(60)", status("timeout"), SHORT),
    Attack(
        "signals ignored",
        "import signal\nfor s in (15, 2, 1, 24): signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
        status("timeout"),
        SHORT,
    ),
    Attack("fork", attempt("os.fork()", "import os"), says("denied")),
    Attack(
        "fork bomb",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        status("timeout"),
        SHORT,
    ),
    Attack("memory bomb", "x = 'a' * (1 << 40)", status("memory")),
    Attack(
        "memory bomb, slowly", "x = []\nwhile True: x.append(bytearray(1 << 20))", status("memory")
    ),
    Attack("endless output", "while True: print('x' * 1000)", status("output")),
    Attack(
        "endless output on stderr",
        "import sys\nwhile True: sys.stderr.write('x' * 1000)",
        status("output"),
    ),
    Attack(
        "a large file",
        attempt("open('f', 'wb').write(bytes(3 << 20))"),
        says("denied"),
    ),
    Attack(
        "many files",
        "for i in range(10**6): open(f'f{i}', 'wb').write(bytes(1 << 20))",
        status("disk"),
    ),
    Attack(
        "deep folders",
        "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
        status("disk"),
    ),
    Attack("huge integer", "print(len(bin(9 ** (9 ** 9))))", status("timeout", "memory"), SHORT),
    Attack(
        "catastrophic regex", "import re; re.match('(a+)+b', 'a' * 40)", status("timeout"), SHORT
    ),
    Attack("deep recursion", "def f(): f()\nf()", status("exit")),
    Attack(
        "deep recursion without a limit",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(): [f() for _ in '1']\nf()",
        status("signal", "memory", "exit", "timeout"),
    ),
    Attack(
        "threads that never end",
        "import threading, time\nfor _ in range(3): threading.Thread(target=time.sleep, args=(99,)).start()",
        status("timeout"),
        SHORT,
    ),
    Attack(
        "a thousand threads",
        "import threading, time\nthreading.stack_size(1 << 16)\n"
        "try:\n    for n in range(1000):\n"
        "        threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "except RuntimeError: print('denied')",
        says("denied"),
    ),
    Attack(
        "more open files than allowed",
        attempt("[os.dup(0) for _ in range(10**5)]", "import os"),
        says("denied"),
    ),
    Attack("crash", "import ctypes; ctypes.string_at(0)", status("signal")),
    # Files.
    denied("read a file of another user", "open({secret!r})"),
    denied("read /etc/shadow", "open('/etc/shadow')"),
    denied("read /etc/passwd", "open('/etc/passwd')"),
    denied("list /root", "os.listdir('/root')"),
    denied("list the folders of other runs", "os.listdir('..')"),
    denied("list the root", "os.listdir('/')"),
    denied("write outside", "open({outside!r} + '/new', 'w')"),
    denied("delete outside", "os.remove({secret!r})"),
    denied("rename outside", "os.rename({secret!r}, 'mine')"),
    denied("truncate outside", "os.truncate({secret!r}, 0)"),
    denied("change the mode of a file outside", "os.chmod({secret!r}, 0)"),
    denied("touch a file outside", "os.utime({secret!r})"),
    denied("hard link to a file outside", "os.link({secret!r}, 'mine')"),
    denied("symbolic link to a file outside", "os.symlink({secret!r}, 'l'); open('l')"),
    denied("dot dot", "open('../' * 20 + {secret!r}[1:])"),
    denied("write to the standard library", "open(os.__file__, 'a')"),
    denied("device file", "os.mknod('d', 0o60666, os.makedev(8, 0))"),
    denied("mount", "call(165, b'none', b'/tmp', b'tmpfs', 0, None)", SYSCALL),
    denied("chroot", "os.chroot('.')"),
    denied("own namespaces", "call(272, 0x10000000)", SYSCALL),
    # Other processes.
    denied("environment of the parent", "open(f'/proc/{{os.getppid()}}/environ')"),
    denied("memory of the parent", "open(f'/proc/{{os.getppid()}}/mem', 'r+b')"),
    denied("its own memory through /proc", "open('/proc/self/mem', 'r+b')"),
    denied("root through /proc", "open('/proc/1/root/etc/passwd')"),
    denied("descriptors of the parent", "os.listdir(f'/proc/{{os.getppid()}}/fd')"),
    denied("signal to its supervisor", "os.kill(os.getppid(), 9)"),
    denied("signal to the tests", "os.kill({parent}, 9)"),
    denied("ptrace", "call(101, 16, os.getppid(), 0, 0)", SYSCALL),
    denied("read the parent's memory", "call(310, os.getppid(), 0, 0, 0, 0, 0)", SYSCALL),
    denied("limits of the parent", "import resource; resource.prlimit(os.getppid(), 7, (0, 0))"),
    denied("become root", "os.setuid(0)"),
    # Network.
    denied("TCP", "socket.create_connection(('127.0.0.1', 22), 1)"),
    denied("UDP", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"),
    denied("Unix socket", "socket.socket(socket.AF_UNIX)"),
    denied("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    denied("io_uring", "call(425, 8, ctypes.create_string_buffer(200))", SYSCALL),
    Attack(
        "x32 system calls",
        attempt("call(0x40000000 + 41, 2, 1, 0)", SYSCALL),
        lambda result: result.status == "signal" or says("denied")(result),
    ),
    denied("anonymous executable memory file", "os.memfd_create('x')"),
    # What it is told.
    Attack("secrets in the environment", "import os; print('SECRET' in os.environ)", says("False")),
    Attack(
        "open descriptors",
        "import os\nfound = []\nfor fd in range(3, 300):\n"
        "    try: os.fstat(fd); found.append(fd)\n    except OSError: pass\nprint(found)",
        says("[]"),
    ),
    Attack(
        "installed packages",
        "try: import grpo_gym\nexcept ImportError: print('absent')",
        says("absent"),
    ),
    Attack(
        "output that is no UTF-8",
        "import sys; sys.stdout.buffer.write(bytes([0xff, 0x41, 0xfe]))",
        says("�A�"),
    ),
    Attack("exit status", "import sys; sys.exit(3)", lambda result: result.exit_code == 3),
    Attack("os._exit", "import os; os._exit(0)", status("ok")),
]
