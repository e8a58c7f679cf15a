#!/usr/bin/env python3
"""Stands for the engine where a test needs a planner that is slow, dies or stalls on purpose: a program that
takes the engine's arguments and tells the lines that it is given.

FAKE_LINES is a file of JSON lines; FAKE_THEN is how it ends: "" well, "die" by a signal, "hang" not at all,
"refuse" with the engine's words for a problem. Each start adds its arguments to FAKE_LOG.
"""

import json
import os
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    with Path(os.environ["FAKE_LOG"]).open("a") as log:
        log.write(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:]}) + "\n")
    then = os.environ.get("FAKE_THEN", "")
    if then == "refuse":
        print(
            json.dumps(
                {"problems": [{"code": "no-gpu", "message": "There is no GPU 7.", "advice": "Use 0."}]}
            )
        )
        sys.exit(2)
    sys.stdout.buffer.write(Path(os.environ["FAKE_LINES"]).read_bytes())
    sys.stdout.flush()
    if then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    while then == "hang":
        signal.pause()
