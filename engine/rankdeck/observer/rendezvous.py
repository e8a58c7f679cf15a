"""Lets ranks that a script starts itself (mp.spawn) use a rendezvous address of their own.

In torchrun's environment the launcher hosts the store, so torch does not start one. If a script's processes
then rendezvous at another port, they wait forever; this also happens under torchrun. The store at the run's
own port belongs to the run. At any other port the script's rank 0 hosts the store, as it would without
Rankdeck. An agent that the script starts (torchrun, accelerate) hosts the store for its own ranks, and gives
each of them an error file.
"""

from __future__ import annotations

import functools
import os

from .frames import drop_own_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_AGENT_STORE_ENV = "TORCHELASTIC_USE_AGENT_STORE"
_ERROR_FILE_ENV = "TORCHELASTIC_ERROR_FILE"


def install(rendezvous: Any, session: RankSession) -> None:
    """Let the script's rank 0 host the stores that the script creates on ports other than the run's own."""
    ours = os.environ.get("RANKDECK_MASTER_PORT")
    make = rendezvous._create_c10d_store

    @functools.wraps(make)
    def observed(hostname: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        is_own = ours is not None and str(port) != ours and not _has_own_agent(session.run)
        hosted = os.environ.get(_AGENT_STORE_ENV) if is_own else None
        if hosted is not None:
            # torch reads this variable while it creates the store; without it, rank 0 hosts the store.
            del os.environ[_AGENT_STORE_ENV]
        try:
            return make(hostname, port, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            if hosted is not None:
                os.environ[_AGENT_STORE_ENV] = hosted

    rendezvous._create_c10d_store = observed


def _has_own_agent(run: str) -> bool:
    """Return whether this process was launched by an agent that the script started; the process's error file
    is then outside the run directory."""
    error_file = os.environ.get(_ERROR_FILE_ENV)
    return error_file is not None and not error_file.startswith(os.path.join(run, ""))
