"""A hostile job: `hydra.py MARKS KIND…` starts one process of each kind; each writes its pid to MARKS/<kind>.

Ready when MARKS/ready exists; it talks until MARKS/quiet does, and ends with exit code 3 when MARKS/leave does. The hopper forks every millisecond and
leaves, so that its pid never stays; of the storm there are four, and none of them waits.
"""

import os
import signal
import sys
import time

MARKS = sys.argv[1]
END = time.monotonic() + 60.0  # of what never rests: a test that does not get it must not leave it to the machine


def note(kind, draft=""):
    with open(f"{MARKS}/.{kind}{draft}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{MARKS}/.{kind}{draft}", f"{MARKS}/{kind}")


def forever():
    while True:
        time.sleep(3600)


def plain():
    note("plain")
    forever()


def setsid():
    os.setsid()
    note("setsid")
    forever()


def ignores_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("ignores_term")
    forever()


def twice_forked_daemon():
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    note("twice_forked_daemon")
    forever()


def daemon_that_ignores_term():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setsid()
    if os.fork():
        os._exit(0)
    note("daemon_that_ignores_term")
    forever()


def daemon_with_empty_environment():
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    note("daemon_with_empty_environment")
    os.execve("/bin/sleep", ["sleep", "3600"], {})


def hopper():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while time.monotonic() < END:
        if os.fork():
            os._exit(0)
        os.setsid()
        note("hopper")
        time.sleep(0.001)


def storm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            break
    while time.monotonic() < END:
        if os.fork():
            os._exit(0)
        note("storm", str(os.getpid()))


def halted():
    note("halted")
    os.kill(os.getpid(), signal.SIGSTOP)
    forever()


for kind in sys.argv[2:]:
    if os.fork() == 0:
        try:
            globals()[kind]()
        finally:
            os._exit(1)
while not all(os.path.exists(f"{MARKS}/{kind}") for kind in sys.argv[2:]):
    time.sleep(0.005)
note("ready")
while not os.path.exists(f"{MARKS}/leave"):
    if not os.path.exists(f"{MARKS}/quiet"):
        print("here", flush=True)
    time.sleep(0.02)
sys.exit(3)
