"""Runs anvil, Foundry's development node, as a child process."""

import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from web3 import HTTPProvider, Web3

from tiebreak.protocol.chain.errors import NodeError
from tiebreak.protocol.errors import ConfigurationError

HOST: Final = "127.0.0.1"
INSTALLED: Final = Path(__file__).resolve().parents[3] / "contracts" / "node_modules" / ".bin" / "anvil"
"""Where `make contracts` installs anvil."""
START_SECONDS: Final = 30
STOP_SECONDS: Final = 5
HARDFORK: Final = "prague"
"""The hardfork that the contracts are built for (contracts/foundry.toml) and that the embedded chain uses."""


def find_anvil() -> Path | None:
    """The anvil on PATH, or the one installed with the contracts' packages; None if there is neither."""
    found = shutil.which("anvil") or (str(INSTALLED) if INSTALLED.exists() else None)
    return None if found is None else Path(found)


class Anvil:
    """A context manager that runs anvil. With `block_seconds` 0, each transaction is mined at once."""

    def __init__(self, binary: Path, *, port: int, mnemonic: str, accounts: int, block_seconds: int = 0) -> None:
        self._command = [str(binary), "--host", HOST, "--port", str(port), "--hardfork", HARDFORK]
        self._command += ["--mnemonic", mnemonic, "--accounts", str(accounts), "--silent"]
        self._command += ["--block-time", str(block_seconds)] if block_seconds else []
        self.url = f"http://{HOST}:{port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process is stopped

    def __enter__(self) -> "Anvil":
        if Web3(HTTPProvider(self.url, request_kwargs={"timeout": 1})).is_connected():
            self._errors.close()
            raise NodeError(f"expected no node at {self.url}, got one; choose another --port")
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self._errors
            )
        except OSError as error:
            self._errors.close()
            raise ConfigurationError(f"cannot run {self._command[0]}: {error.strerror}; use --embedded") from error
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._errors.close()

    def check(self) -> None:
        """Raise `NodeError` if anvil has exited."""
        if self._process is not None and (code := self._process.poll()) is not None:
            self._errors.seek(0)
            lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
            raise NodeError(f"expected a running anvil, got one that ended with code {code}: {' '.join(lines[-3:])}")

    def _wait_until_ready(self) -> None:
        web3 = Web3(HTTPProvider(self.url, request_kwargs={"timeout": 1}, exception_retry_configuration=None))
        for _ in range(START_SECONDS * 20):
            self.check()
            if web3.is_connected():
                return
            time.sleep(0.05)
        raise NodeError(f"expected anvil to answer at {self.url} within {START_SECONDS} s, got nothing")
