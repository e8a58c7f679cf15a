"""A sampler over the simulated NVML in a process of its own, begun anew for each line on its stdin: a number
of ticks. What it writes comes back, then an empty line. An error that the sampler does not expect ends it,
which is what the tests look for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from types import TracebackType

from rankdeck.base.errors import MachineError
from rankdeck.telemetry.nvml import NvmlProvider
from rankdeck.telemetry.readings import AnySamplerLine, NoticeLine, SamplerLine, decode, encode
from rankdeck.telemetry.sampler import Sampler
from tests.helpers.checkout import PRODUCT_AND_TESTS
from tests.helpers.nvmlsim import SimulatedGpus


class SamplerDiedError(AssertionError):
    """With the last that it said."""


class FuzzedSampler:
    """Begun again where it has ended."""

    def __init__(self, gpus: SimulatedGpus) -> None:
        self._env = {**os.environ, **gpus.driver_environment, "PYTHONPATH": PRODUCT_AND_TESTS}
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, ticks: int) -> list[AnySamplerLine]:
        """Raises: SamplerDiedError."""
        if self._process is None:
            command = [sys.executable, "-m", "tests.helpers.fuzzed_nvml"]
            self._process = subprocess.Popen(
                command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(f"{ticks}\n".encode())
        process.stdin.flush()
        lines = []
        for line in process.stdout:
            if line == b"\n":
                return lines
            fact = decode(line)
            assert fact is not None, line
            lines.append(fact)
        stderr = process.stderr.read().decode(errors="replace")
        self.close()
        raise SamplerDiedError(f"exit code {process.returncode}: {stderr[-2000:]}")

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._process = None

    def __enter__(self) -> FuzzedSampler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _sample(ticks: int) -> list[SamplerLine]:
    lines: list[SamplerLine] = []
    try:
        provider = NvmlProvider()
    except MachineError as error:
        return [NoticeLine(code=error.code, message=error.message)]
    try:
        sampler = Sampler(provider, lines.append)
        sampler.start()
        hears = provider.listen()
        for tick in range(ticks):
            sampler.tick(tick)
            provider.signature()
            if hears:
                provider.wait_for_event(0.0)
        lines += provider.notices(at_end=True)
    except MachineError as error:
        lines.append(NoticeLine(code=error.code, message=error.message))
    finally:
        provider.close()
    return lines


def main() -> None:
    for line in sys.stdin:
        sys.stdout.buffer.write(b"".join(map(encode, _sample(int(line)))) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
