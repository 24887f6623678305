"""A process that has the slow imports behind it, and runs each command line in a fork of itself.

A command then is what its user starts: a process of its own that runs the real script, with its own working
folder, environment, standard input and exit status. It only saves the seconds that importing torch and
Lightning takes. A job comes in as one line of JSON on standard input, its result goes out as another.
"""

import gc
import io
import json
import os
import runpy
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

SECONDS = 100  # after which a command that hangs is killed


def main() -> None:
    """Import what the commands import, then serve until standard input ends."""
    import minitrans.analysis.drawing
    import minitrans.evaluation.scorecard
    import minitrans.training.session  # noqa: F401
    from minitrans.cli.compose import compose
    from minitrans.config import TrainConfig

    compose("train", ["seed=1", "optimizer.betas=[0.9,0.98]"], TrainConfig)  # parsers build tables at first
    gc.freeze()  # forks need not copy what collecting would touch
    for line in sys.stdin:
        print(json.dumps(serve(json.loads(line))), flush=True)


def serve(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job: ``script``, ``words``, ``folder``, ``environment``, ``stdin`` (text, or None: closed)."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        if job["stdin"] is not None:
            stdin.write(job["stdin"].encode())
            stdin.seek(0)
        child = os.fork()
        if child == 0:
            _become(job, stdin.fileno(), out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        out.seek(0)
        err.seek(0)
        texts = {"out": out.read().decode(), "err": err.read().decode()}
    return {"status": os.waitstatus_to_exitcode(status), **texts}


def _no_network(*words: object) -> NoReturn:
    """A test that asks for the network fails, whatever the machine would have answered."""
    os.write(2, f"the network was asked for: {words}\n".encode())
    os._exit(99)


def _become(job: dict[str, Any], stdin: int, out: int, err: int) -> None:
    """In the child: run the script as if it had been started so, and end."""
    signal.alarm(SECONDS)
    for place, stream in enumerate((stdin, out, err)):
        os.dup2(stream, place)
    if job["stdin"] is None:
        os.close(0)
        sys.stdin = None  # what Python makes of a closed descriptor
    else:
        sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    os.environ.update(job["environment"])
    socket.socket.connect = _no_network  # type: ignore[method-assign]
    socket.getaddrinfo = _no_network
    os.chdir(job["folder"])
    sys.argv = [job["script"], *job["words"]]
    sys.path[0] = str(Path(job["script"]).parent)
    status = 70
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # as the interpreter would, before it ends
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
