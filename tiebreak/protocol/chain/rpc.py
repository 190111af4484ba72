"""JSON-RPC over HTTP in front of an embedded EVM: a node for development where no anvil is installed.

It listens on this machine only. Requests are one JSON object or a list of up to `MAX_BATCH`, in a body of at most
`MAX_BODY_BYTES`; everything else is answered with the error codes of JSON-RPC 2.0 (EIP-1474), a revert with code 3 and
its data, as Ethereum's nodes do. Time is the machine's clock, plus what `evm_increaseTime` added.
"""

import json
import re
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Final, cast

from eth_hash.auto import keccak
from eth_tester import EthereumTester
from eth_tester.exceptions import TransactionFailed
from eth_utils.exceptions import ValidationError
from web3 import EthereumTesterProvider, Web3
from web3.datastructures import NamedElementOnion
from web3.exceptions import ContractLogicError, Web3Exception
from web3.types import RPCEndpoint

from tiebreak.protocol.chain.errors import NodeError
from tiebreak.protocol.chain.node import embedded_revert_data

HOST: Final = "127.0.0.1"
MAX_BODY_BYTES: Final = 1 << 20
MAX_BATCH: Final = 100
MAX_DEPTH: Final = 32
NAMESPACES: Final = ("eth_", "net_", "web3_", "evm_")
SOCKET_SECONDS: Final = 30
BLOOM_BYTES: Final = 256

PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, REFUSED = -32700, -32600, -32601, -32602, -32000
REVERTED: Final = 3

Json = dict[str, Any] | list[Any] | str | int | float | bool | None


class RpcError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str, data: str | None = None) -> None:
        self.body: dict[str, Json] = {"code": code, "message": message}
        if data is not None:
            self.body["data"] = data
        super().__init__(message)


class RpcNode:
    """Answers requests about one EVM, one at a time. `block_seconds`: 0 mines each transaction at once."""

    def __init__(self, tester: EthereumTester, block_seconds: int = 0) -> None:
        self._tester = tester
        self._lock = Lock()
        self._offset = 0
        provider = EthereumTesterProvider(tester)
        # Only the translation between JSON-RPC's names and the tester's, not what web3 does on a client's behalf.
        self._request = provider.request_func(Web3(provider), NamedElementOnion([]))
        self.block_seconds = block_seconds
        if block_seconds:
            tester.disable_auto_mine_transactions()

    def answer(self, body: bytes) -> Json:
        """The response to a request's body; None if nothing in it wants one."""
        try:
            _require_flat(body)
            request = json.loads(body)
        except ValueError as error:
            return _response(None, RpcError(PARSE_ERROR, f"expected JSON, got something else: {error}"))
        if not isinstance(request, list):
            return self._one(request)
        if not 1 <= len(request) <= MAX_BATCH:
            message = f"expected a batch of 1 to {MAX_BATCH} requests, got {len(request)}"
            return _response(None, RpcError(INVALID_REQUEST, message))
        answers = [answer for answer in map(self._one, request) if answer is not None]
        return answers or None

    def mine(self) -> None:
        """A block with what is waiting."""
        with self._lock:
            self._catch_up()
            self._tester.mine_block()

    # ------------------------------------------------------------------ one request

    def _one(self, request: Json) -> Json:
        """A response; None for a notification."""
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return _response(None, RpcError(INVALID_REQUEST, "expected an object with a method, got something else"))
        try:
            with self._lock:
                answer = _response(request.get("id"), self._call(request["method"], request.get("params", [])))
        except RpcError as error:
            answer = _response(request.get("id"), error)
        return answer if "id" in request else None

    def _call(self, method: str, params: Json) -> Json:
        if not method.startswith(NAMESPACES):
            raise RpcError(NO_METHOD, f"expected a method of {', '.join(NAMESPACES)}, got {method}")
        if not isinstance(params, list):
            raise RpcError(INVALID_PARAMS, "expected the parameters as a list, got something else")
        own = self._own(method)
        try:
            if own is not None:
                return own(*params)
            if method in ("eth_call", "eth_estimateGas", "eth_sendTransaction", "eth_sendRawTransaction"):
                self._catch_up()
            response = self._request(cast("RPCEndpoint", method), _tester_params(method, params))
        except (TransactionFailed, ContractLogicError) as error:
            raise _revert(error) from error
        except (ValidationError, Web3Exception) as error:
            raise RpcError(REFUSED, str(error)) from error
        except RpcError:
            raise
        except Exception as error:
            # Parameters that are not what a method takes trip the tester up in as many ways as it has parsers.
            raise RpcError(INVALID_PARAMS, f"{method} does not take these parameters: {error!r}") from error
        if "error" in response:
            raise RpcError(NO_METHOD, f"{method} is not known here: {response['error']}")
        return _json(_completed(method, response.get("result")))

    def _own(self, method: str) -> Callable[..., Json] | None:
        known: dict[str, Callable[..., Json]] = {
            "net_version": self._net_version,
            "evm_mine": self._evm_mine,
            "evm_increaseTime": self._increase_time,
            "evm_setNextBlockTimestamp": self._set_next_timestamp,
        }
        return known.get(method)

    def _net_version(self) -> str:
        return str(self._request(cast("RPCEndpoint", "eth_chainId"), [])["result"])

    def _evm_mine(self) -> str:
        self._catch_up()
        self._tester.mine_block()
        return "0x0"

    def _increase_time(self, seconds: int | str) -> str:
        added = _integer(seconds)
        if not 0 <= added < 1 << 40:
            raise RpcError(INVALID_PARAMS, f"expected seconds from 0 to 2^40, got {added}")
        self._offset += added
        return hex(self._offset)

    def _set_next_timestamp(self, timestamp: int | str) -> None:
        wanted, pending = _integer(timestamp), self._pending_time()
        if not pending <= wanted < 1 << 40:
            raise RpcError(INVALID_PARAMS, f"expected a time from {pending} to 2^40, got {wanted}")
        self._tester.time_travel(wanted)
        self._offset = wanted - int(time.time())

    def _pending_time(self) -> int:
        return int(self._tester.get_block_by_number("pending")["timestamp"])

    def _catch_up(self) -> None:
        """The pending block's time follows the clock; the tester fixes it when the block before is mined."""
        now = int(time.time()) + self._offset
        if now > self._pending_time():
            self._tester.time_travel(now)


def _tester_params(method: str, params: list[Any]) -> list[Any]:
    """Parameters as the tester takes them: calldata is `data`, the block of a call may be left out."""
    if method not in ("eth_call", "eth_estimateGas", "eth_sendTransaction"):
        return params
    if not params or not isinstance(params[0], dict):
        raise RpcError(INVALID_PARAMS, f"{method}: expected a transaction, got something else")
    if len(params) > 2:
        raise RpcError(INVALID_PARAMS, f"{method}: expected at most a transaction and a block; overrides are not known")
    given = params[0]
    tx = {key: value for key, value in given.items() if key not in ("input", "type") and value is not None}
    if given.get("input") is not None:
        tx["data"] = given["input"]
    # The tester runs calls on the pending block, as `latest` would be on a chain that mines at once.
    return [tx] if method != "eth_call" else [tx, *(params[1:] or ["pending"])]


def _require_flat(body: bytes) -> None:
    """Refuse deep nesting: the EVM raises Python's limit of recursion, so the parser would run out of stack instead."""
    depth = 0
    for character in re.findall(rb"[\[\]{}]", body):
        depth += 1 if character in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"expected at most {MAX_DEPTH} levels, got more")


def _completed(method: str, result: Any) -> Any:
    """What the tester leaves out of a receipt, or gives as a number though it is none."""
    if method == "eth_getTransactionReceipt" and isinstance(result, dict):
        bloom = 0
        for log in result["logs"]:
            for item in (log["address"], *log["topics"]):
                bloom |= _bloom_bits(_raw(item))
        kept = {key: value for key, value in result.items() if key != "state_root"}
        return {**kept, "logsBloom": bloom.to_bytes(BLOOM_BYTES, "big")}
    if method in ("eth_getBlockByNumber", "eth_getBlockByHash") and isinstance(result, dict):
        return {**result, "logsBloom": int(result["logsBloom"]).to_bytes(BLOOM_BYTES, "big")}
    return result


def _revert(error: Exception) -> RpcError:
    data = getattr(error, "data", None)
    if not isinstance(data, str):
        data = "0x" + embedded_revert_data(str(error)).hex()
    if data == "0x":
        return RpcError(REVERTED, f"execution failed: {error}", data)
    return RpcError(REVERTED, "execution reverted", data)


def _response(request_id: Json, result: Json | RpcError) -> dict[str, Json]:
    outcome = {"error": result.body} if isinstance(result, RpcError) else {"result": result}
    return {"jsonrpc": "2.0", "id": request_id, **outcome}


def _bloom_bits(item: bytes) -> int:
    """Three bits of 2048, from the item's hash (Yellow Paper, 4.3.1)."""
    digest = keccak(item)
    return sum(1 << number for number in {int.from_bytes(digest[k : k + 2], "big") % 2048 for k in (0, 2, 4)})


def _raw(item: str | bytes) -> bytes:
    return bytes.fromhex(item.removeprefix("0x")) if isinstance(item, str) else item


def _integer(value: object) -> int:
    if isinstance(value, str):
        return int(value, 16)
    if isinstance(value, bool) or not isinstance(value, int):
        raise RpcError(INVALID_PARAMS, f"expected a number, got {value!r}")
    return value


def _json(value: Any) -> Json:
    """Numbers and bytes in JSON-RPC's hexadecimal form."""
    if isinstance(value, bool) or value is None or isinstance(value, str | float):
        return value
    if isinstance(value, int):
        return hex(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    raise TypeError(f"expected a JSON-RPC value, got {type(value).__name__}")


class _Handler(BaseHTTPRequestHandler):
    """POST of a JSON body; the node is the server's."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS

    def do_POST(self) -> None:
        """Answer one HTTP request."""
        if self.headers.get("Transfer-Encoding") is not None:
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length, got a chunked body")
            return
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            self._refuse(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length, got none")
            return
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY_BYTES} bytes, got {length}")
            return
        # A name that somebody pointed at this machine (DNS rebinding) is no way in.
        if self.headers.get("Host", "").split(":")[0] not in (HOST, "localhost"):
            self._refuse(HTTPStatus.FORBIDDEN, f"expected the Host {HOST} or localhost, got another")
            return
        answer = self._node().answer(self.rfile.read(int(length)))
        self._send(HTTPStatus.OK, b"" if answer is None else json.dumps(answer).encode("utf-8"))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the base class
        """Nothing: the terminal is the command's."""

    def _node(self) -> RpcNode:
        return cast("RpcServer", self.server).node

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        # The body was not read, so nothing else can be read from this connection.
        self.close_connection = True
        body = json.dumps(_response(None, RpcError(INVALID_REQUEST, message))).encode("utf-8")
        self._send(status, body)

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class RpcServer(ThreadingHTTPServer):
    """Serves a node on a port of this machine (0: a free one), from entering the context to leaving it."""

    daemon_threads = True
    # Another server's port must be an error, not a second listener.
    allow_reuse_port = False

    def __init__(self, node: RpcNode, port: int) -> None:
        self.node = node
        self._stopped = Event()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise NodeError(f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port") from error

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{HOST}:{self.server_address[1]}"

    def __enter__(self) -> "RpcServer":
        Thread(target=self.serve_forever, daemon=True).start()
        if self.node.block_seconds:
            Thread(target=self._mine, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.shutdown()
        self.server_close()

    def _mine(self) -> None:
        while not self._stopped.wait(self.node.block_seconds):
            self.node.mine()
