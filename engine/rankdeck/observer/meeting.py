"""Where ranks that a script starts itself (mp.spawn) meet, if it is a place of the script's own.

torchrun's environment says that whoever started the ranks hosts the store, so that torch lets nobody else
host one: processes that meet at another port wait for ever, under torchrun too. The store at the run's own
port is the run's; at any other it is left to the script's rank 0, as without us.
"""

from __future__ import annotations

import functools
import os

from .frames import leave_out

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_HOSTED = "TORCHELASTIC_USE_AGENT_STORE"


def install(rendezvous: Any, session: RankSession) -> None:
    """Let stores at other ports than the run's be hosted by who makes them."""
    ours = os.environ.get("RANKDECK_MASTER_PORT")
    make = rendezvous._create_c10d_store

    @functools.wraps(make)
    def observed(hostname: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        hosted = os.environ.get(_HOSTED) if ours is not None and str(port) != ours else None
        if hosted is not None:
            del os.environ[_HOSTED]
        try:
            return make(hostname, port, *args, **kwargs)
        except BaseException as error:
            leave_out(error)
            raise
        finally:
            if hosted is not None:
                os.environ[_HOSTED] = hosted

    rendezvous._create_c10d_store = observed
