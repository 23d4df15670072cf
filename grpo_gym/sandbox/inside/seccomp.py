"""A seccomp filter, written as BPF: no sockets, no tracing, no namespaces, no new kernel interfaces.

Landlock guards what a path or a TCP port names; this guards the rest. What is denied fails with EPERM, as
if the program lacked the privilege. A system call newer than the table does not exist (ENOSYS), so that a
newer kernel opens nothing.
"""

import ctypes
import errno
import os
import struct

from . import kernel

MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
NEWEST = 450
"""Last system call of the table (set_mempolicy_home_node); later ones do not exist for the program."""

CLONE_THREAD = 0x00010000
CLONE_NAMESPACES = 0x7E020080
"""Every CLONE_NEW* flag."""

DENIED = {
    # Numbers on x86_64 and on aarch64; None where the architecture has no such call.
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "personality": (135, 92),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    # Memory that RLIMIT_AS does not count, or that outlives the program.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    # Landlock does not guard the attributes of files, and truncate only since ABI 3.
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "lchown": (94, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    # The scheduling of others, the supervisor's too.
    "setpriority": (141, 140),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setattr": (314, 274),
    "sched_setaffinity": (203, 122),
    "ioprio_set": (251, 30),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
}
CLONE, CLONE3, FORK, VFORK = (56, 220), (435, 435), (57, None), (58, None)
KILL, TKILL, TGKILL = (62, 129), (200, 130), (234, 131)
QUEUE, QUEUE_THREAD, PRLIMIT = (129, 138), (297, 240), (302, 261)

LOAD, JUMP_EQUAL, JUMP_MORE, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, KILL_PROCESS, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16

Instruction = tuple[int, int, int, int]
"""Operation, jump if true, jump if false, operand."""

INSTRUCTION = "=HBBI"


class Program(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def supported() -> bool:
    """Whether the table has this machine's numbers."""
    return os.uname().machine in MACHINES


def instructions(*, forks: bool, signal_only: int | None) -> list[Instruction]:
    """The filter.

    Args:
        forks: whether new processes are allowed; threads always are.
        signal_only: the one process that may be signalled; None where something else keeps signals in.
    """
    machine, column = MACHINES[os.uname().machine]
    code: list[Instruction] = [
        (LOAD, 0, 0, MACHINE),
        (JUMP_EQUAL, 1, 0, machine),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER),
        (JUMP_MORE, 0, 1, NEWEST),  # the x32 calls too: they begin at 0x40000000
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
    ]

    def deny(numbers: tuple[int | None, ...], error: int) -> None:
        number = numbers[column]
        if number is not None:
            code.extend([(JUMP_EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error)])

    def allow_if_first(numbers: tuple[int | None, ...], test: Instruction, error: int) -> None:
        """Where the number is the call's: load its first argument, allow if `test` jumps by 0."""
        number = numbers[column]
        if number is not None:
            code.extend(
                [
                    (JUMP_EQUAL, 0, 4, number),
                    (LOAD, 0, 0, FIRST_ARGUMENT),
                    test,
                    (RETURN, 0, 0, ALLOW),
                    (RETURN, 0, 0, FAIL | error),
                ]
            )

    # glibc falls back to clone, whose flags the filter can read.
    deny(CLONE3, errno.ENOSYS)
    if forks:
        allow_if_first(CLONE, (JUMP_ANY_BIT, 1, 0, CLONE_NAMESPACES), errno.EPERM)
    else:
        allow_if_first(CLONE, (JUMP_ANY_BIT, 0, 1, CLONE_THREAD), errno.EAGAIN)
        deny(FORK, errno.EAGAIN)
        deny(VFORK, errno.EAGAIN)
    allow_if_first(PRLIMIT, (JUMP_EQUAL, 0, 1, 0), errno.EPERM)
    if signal_only is not None:
        for call in (KILL, TGKILL):
            allow_if_first(call, (JUMP_EQUAL, 0, 1, signal_only), errno.EPERM)
        for call in (TKILL, QUEUE, QUEUE_THREAD):
            deny(call, errno.EPERM)
    for numbers in DENIED.values():
        deny(numbers, errno.EPERM)
    code.append((RETURN, 0, 0, ALLOW))
    return code


def compiled(*, forks: bool, signal_only: int | None) -> bytes:
    """The filter as the kernel takes it; see `instructions`."""
    code = instructions(forks=forks, signal_only=signal_only)
    return b"".join(struct.pack(INSTRUCTION, *instruction) for instruction in code)


def install(code: bytes) -> None:
    """Put a filter on this process and all that it starts; there is no way back.

    Raises:
        OSError: The kernel refused.
    """
    buffer = ctypes.create_string_buffer(code, len(code))
    program = Program(len(code) // struct.calcsize(INSTRUCTION), ctypes.addressof(buffer))
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.addressof(program))
