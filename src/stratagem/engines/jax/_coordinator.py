# SPDX-License-Identifier: Apache-2.0
"""jax's coordination service in a process of its own, so that it outlives the first process of the job for a while.

Were it part of that process, as jax has it, the others would be ended by SIGABRT the moment that one dies, and could
not say whom they lost. Run as a program, this file is that process; it knows jaxlib alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

_LINGER_SECONDS = 4.0  # after the first process is gone, for the others to end in good order
_END_SECONDS = 10.0
_READY = b"ready\n"


class Coordinator:
    """The service, as jax holds it: started by the first process of a job.

    Args:
        address: Where it listens.
        num_nodes: How many processes the job has.
        options: More arguments of jax's service.

    Raises:
        RuntimeError: it can't listen there.
    """

    def __init__(self, address: str, num_nodes: int, **options: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, json.dumps([address, num_nodes, options])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A launcher ends what is left of the first process, and Ctrl-C is meant for the program.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != _READY:
            raise RuntimeError(f"jax's coordination service could not listen at {address}")

    def shutdown(self) -> None:
        """End it, once all processes of the job have left."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"end\n")
        self._process.stdin.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _serve(address: str, num_nodes: int, options: dict[str, Any]) -> None:
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue] - a binary module

    service: Any = _jax.get_distributed_runtime_service(address, num_nodes, **options)
    sys.stdout.buffer.write(_READY)
    sys.stdout.buffer.flush()
    # The first process says so, or it is gone and the pipe with it.
    if not sys.stdin.buffer.readline():
        time.sleep(_LINGER_SECONDS)
    service.shutdown()


if __name__ == "__main__":
    _serve(*json.loads(sys.argv[1]))
