"""JSON-RPC over HTTP in front of the embedded EVM: a development node for machines without anvil.

web3's provider for eth-tester answers the requests; this module carries them over HTTP. It listens on this machine only
and handles one request at a time, with a body of at most `MAX_BODY_BYTES`. A revert is answered with code 3 and its
data, as Ethereum nodes do. Block times follow the machine's clock.
"""

import json
import sys
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, Final, cast

from tiebreak.protocol.chain.errors import NodeError, Reverted
from tiebreak.protocol.chain.node import embedded_revert_data, node_errors
from tiebreak.protocol.strict_json import parse_json

if TYPE_CHECKING:
    from eth_tester import EthereumTester
    from web3.types import RPCEndpoint

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
NAMESPACES: Final = ("eth_", "net_", "web3_")
SOCKET_SECONDS: Final = 30
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, REFUSED, REVERTED = -32700, -32600, -32601, -32000, 3
ANY_BLOOM: Final = "0x" + 256 * "ff"
"""The Bloom filter of receipts, which matches everything, because eth-tester's receipts have none."""

Json = dict[str, Any] | list[Any] | str | int | float | bool | None


class RpcServer(ThreadingHTTPServer):
    """Serves an EVM on a local port (0: a free one) for the duration of the context. Transactions are mined at once."""

    daemon_threads = True
    # A port in use by another server must raise an error, not add a second listener.
    allow_reuse_port = False

    def __init__(self, tester: "EthereumTester", port: int) -> None:
        from web3 import EthereumTesterProvider, Web3  # noqa: PLC0415  # takes seconds
        from web3.datastructures import NamedElementOnion  # noqa: PLC0415

        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise NodeError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port") from error
        self._tester, self._lock, self._stopped = tester, Lock(), Event()
        self._problem = ""
        """The reason why no more blocks are made."""
        provider = EthereumTesterProvider(tester)
        # Use only the translation between JSON-RPC's names and the tester's, not what web3 does on a client's behalf.
        self._request = provider.request_func(Web3(provider), NamedElementOnion([]))

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"

    def __enter__(self) -> "RpcServer":
        Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Show what went wrong, but not that somebody hung up."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def mine_every(self, seconds: int) -> None:
        """Begins to mine a block each time this many seconds pass, and only then."""
        with self._lock:
            self._tester.disable_auto_mine_transactions()
        Thread(target=self._mine, args=(seconds,), daemon=True).start()

    def _mine(self, seconds: int) -> None:
        try:
            while not self._stopped.wait(seconds):
                with self._lock:
                    self._catch_up()
                    self._tester.mine_block()
        except Exception as error:  # a client that waits for a block that never comes should hear why
            self._problem = f"the chain makes no more blocks: {error!r}"

    def check(self) -> None:
        """Raise `NodeError` if no more blocks are made."""
        if self._problem:
            raise NodeError(self._problem)

    def _catch_up(self) -> None:
        """Move the pending block's time to the machine's clock; the tester fixes it when it mines the block before."""
        if (now := int(time.time())) > int(self._tester.get_block_by_number("pending")["timestamp"]):
            self._tester.time_travel(now)

    def answer(self, body: bytes) -> Json:
        """The response to a request, given its body."""
        try:
            request = parse_json(body, MAX_DEPTH)
        except ValueError as error:
            return _failed(None, PARSE_ERROR, f"expected JSON, got something else: {error}")
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return _failed(None, INVALID_REQUEST, "expected an object with a method, got something else")
        method, number = request["method"], request.get("id")
        if not method.startswith(NAMESPACES):
            return _failed(number, NO_METHOD, f"expected a method of {', '.join(NAMESPACES)}, got {method}")
        if self._problem:
            return _failed(number, REFUSED, self._problem)
        try:
            with self._lock, node_errors():
                if method in ("eth_call", "eth_estimateGas", "eth_sendTransaction", "eth_sendRawTransaction"):
                    self._catch_up()
                response = self._request(cast("RPCEndpoint", method), _tester_params(method, request.get("params", [])))
        except Reverted as error:
            data = embedded_revert_data(str(error.__cause__)) or b""
            return _failed(number, REVERTED, "execution reverted", "0x" + data.hex())
        except Exception as error:  # the tester trips over wrong parameters in many ways
            return _failed(number, REFUSED, f"{method} was refused: {error}")
        if "error" in response:
            return _failed(number, NO_METHOD, f"{method} is not known here: {response['error']}")
        return {"jsonrpc": "2.0", "id": number, "result": _json(response.get("result"))}


def _failed(number: Json, code: int, message: str, data: str | None = None) -> Json:
    error = {"code": code, "message": message} | ({} if data is None else {"data": data})
    return {"jsonrpc": "2.0", "id": number, "error": error}


def _tester_params(method: str, params: Any) -> list[Any]:
    """The parameters in the tester's form: calldata is called `data`, and a call names its block."""
    if not isinstance(params, list):
        raise TypeError("expected the parameters as a list, got something else")
    if method not in ("eth_call", "eth_estimateGas", "eth_sendTransaction"):
        return params
    transaction, *block = params
    tx = {key: value for key, value in transaction.items() if key not in ("input", "type") and value is not None}
    if transaction.get("input") is not None:
        tx["data"] = transaction["input"]
    return [tx, *(block or ["latest"])] if method == "eth_call" else [tx]


def _json(value: Any) -> Json:
    """The value with numbers and bytes in JSON-RPC's hexadecimal form."""
    match value:
        case bool() | None | str() | float():
            return value
        case int():
            return hex(value)
        case bytes():
            return "0x" + value.hex()
        case list() | tuple():
            return [_json(item) for item in value]
    named = {str(key): _json(item) for key, item in value.items() if key != "state_root"}
    if isinstance(bloom := named.get("logsBloom"), str):  # of a block, without the zeros that it begins with
        named["logsBloom"] = "0x" + bloom.removeprefix("0x").rjust(len(ANY_BLOOM) - 2, "0")
    return named | ({"logsBloom": ANY_BLOOM} if "logs" in named else {})


class _Handler(BaseHTTPRequestHandler):
    """Answers a POST of a JSON body, using the server's EVM."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS
    disable_nagle_algorithm = True  # head and body are two packets: the second would wait 40 ms for the first's receipt

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.headers.get("Transfer-Encoding") is not None or not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length, got none")
        elif len(length) > 9 or int(length) > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY_BYTES} bytes, got {length}")
        # Reject other host names: somebody may have pointed one at this machine (DNS rebinding).
        elif self.headers.get("Host", "").split(":")[0] not in (HOST, "localhost"):
            self._refuse(HTTPStatus.FORBIDDEN, f"expected the Host {HOST} or localhost, got another")
        else:
            self._send(HTTPStatus.OK, cast("RpcServer", self.server).answer(self.rfile.read(int(length))))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the base class
        """Log nothing: the terminal belongs to the command."""

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The body was not read, so the connection cannot be used for another request.
        self.close_connection = True
        self._send(status, _failed(None, INVALID_REQUEST, message))

    def _send(self, status: HTTPStatus, answer: Json) -> None:
        body = json.dumps(answer).encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
