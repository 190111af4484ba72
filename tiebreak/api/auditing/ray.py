"""Ray as an executor of audits.

Ray itself unpickles what the machines of a cluster send: they must all be the auditor's own.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from typing import Any

from tiebreak.protocol.errors import ConfigurationError


class RayExecutor:
    """Runs functions as tasks of a Ray cluster, each with some of its cores."""

    def __init__(self, address: str, threads: int) -> None:
        """address: empty for the cluster that RAY_ADDRESS names, or else one that is started on this machine.

        threads: the cores of a task. Raises `ConfigurationError` if there is no such cluster.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # an auditor tells nobody else what it does
        self._ray: Any = import_module("ray")  # which is not imported before it is needed
        try:
            self._ray.init(address=address or None, log_to_driver=False, logging_level="error")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigurationError(
                f"expected a Ray cluster at {address or 'its default address'}: {error}"
            ) from error
        self._options = {"num_cpus": threads, "max_retries": 0, "scheduling_strategy": "SPREAD"}
        self.most = max(1, int(self._ray.cluster_resources().get("CPU", 0)) // threads)
        """The number of tasks that it can run at once."""

    def submit(self, fn: Callable[..., bytes], /, *given: bytes) -> "Future[bytes]":
        found: Future[bytes] = self._ray.remote(fn).options(**self._options).remote(*given).future()
        return found

    def close(self) -> None:
        self._ray.shutdown()
