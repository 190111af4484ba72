"""A chain in simulated time: the caller chooses the transactions and the time of every block.

It is the embedded EVM without the layers in front of it (JSON-RPC, the tester's own mempool). Nothing depends on the
machine's clock or on random numbers: in any process, the same transactions at the same times give the same gas and the
same logs. A simulation deploys the contracts once and starts each of its games from that state (`begin`).

A block under construction (`Draft`) is what nodes call the pending state. Transactions are executed when they are
added, so finding out whether one would revert and putting it in the block are a single execution.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, Final

from eth import abc
from eth.db.atomic import AtomicDB
from eth.db.backends.memory import MemoryDB
from eth.vm.message import Message
from eth_typing import Address as EvmAddress
from eth_utils.exceptions import ValidationError

from tiebreak.protocol.chain.abi import decode_revert
from tiebreak.protocol.chain.calls import Call
from tiebreak.protocol.chain.embedded import EmbeddedChain
from tiebreak.protocol.chain.errors import InsufficientFunds, NodeError, Reverted
from tiebreak.protocol.chain.node import sign_transaction
from tiebreak.protocol.chain.records import Event, Receipt
from tiebreak.protocol.commitments.eip712 import Address
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import StateError

_NOBODY: Final = EvmAddress(bytes(20))
GAS_LIMIT: Final = 15_000_000
"""Gas limit of every transaction: half of a block."""
BASE_FEE: Final = 10**9
"""Wei per gas in every block, so that what a party pays depends only on the gas it uses."""
TRANSACTION_WEI: Final = GAS_LIMIT * BASE_FEE
"""The wei that an account must have in addition to the value of a transaction."""
_READ_GAS: Final = 10**8


class Draft:
    """A block under construction, at a fixed time, on top of the newest block."""

    def __init__(self, chain: "SimulatedChain", timestamp: int) -> None:
        self._chain = chain
        self._header: abc.BlockHeaderAPI = chain.evm.header.copy(timestamp=timestamp)
        self.vm: abc.VirtualMachineAPI = chain.evm.get_vm(self._header)
        self._transactions: list[abc.SignedTransactionAPI] = []
        self._receipts: list[abc.ReceiptAPI] = []
        self.timestamp = timestamp

    @property
    def number(self) -> int:
        return int(self._header.block_number)

    @property
    def room(self) -> int:
        """Gas left in the block."""
        return int(self._header.gas_limit - self._header.gas_used)

    def add(self, signer: PrivateKey, call: Call, *, even_if_it_reverts: bool = False) -> Receipt:
        """Execute a transaction, and add it to the block.

        Raises `InsufficientFunds`, `NodeError` for a transaction that no block accepts, and `Reverted` for one that the
        contract refuses. After an error the block is unchanged. With `even_if_it_reverts`, a refused transaction is
        added nevertheless, as if it had not been tried first.
        """
        state = self.vm.state
        needed, available = call.value + TRANSACTION_WEI, state.get_balance(EvmAddress(signer.address))
        if available < needed:
            raise InsufficientFunds(signer.address, needed, available)
        transaction = self._sign(signer, call)
        state.lock_changes()
        before = state.snapshot()
        try:
            self.vm.validate_transaction_against_header(self._header, transaction)
            computation = state.apply_transaction(transaction)
        except ValidationError as error:
            state.revert(before)
            raise NodeError(f"the chain refused the transaction: {error}") from error
        refusal = _refusal(computation)
        if refusal is not None and not even_if_it_reverts:
            state.revert(before)
            raise refusal
        state.commit(before)
        receipt = self.vm.make_receipt(self._header, transaction, computation, state)
        gas_used = int(receipt.gas_used - self._header.gas_used)
        self._header = self.vm.add_receipt_to_header(self._header, receipt)
        self._transactions.append(transaction)
        self._receipts.append(receipt)
        digest = bytes(transaction.hash)
        return Receipt(
            transaction=digest,
            block=self.number,
            timestamp=self.timestamp,
            gas_used=gas_used,
            calldata_bytes=len(transaction.data),
            events=() if refusal else self._chain.events_in(computation, self.number, digest),
            reverted=refusal,
        )

    def read(self, call: Call) -> Any:
        """The result of a call of the board, after the transactions added so far."""
        return self._chain.read_from(self.vm.state, call)

    def _sign(self, signer: PrivateKey, call: Call) -> abc.SignedTransactionAPI:
        fields: dict[str, Any] = {
            "chainId": self._chain.chain_id,
            "nonce": self.vm.state.get_nonce(EvmAddress(signer.address)),
            "to": self._chain.deployment.named()[call.contract],
            "value": call.value,
            "data": call.data,
            "gas": GAS_LIMIT,
            "maxFeePerGas": BASE_FEE,
            "maxPriorityFeePerGas": 0,
        }
        return self.vm.get_transaction_builder().decode(sign_transaction(signer, fields))

    def mine(self) -> None:
        vm = self.vm
        block = vm.set_block_transactions_and_withdrawals(
            vm.get_block(), self._header, self._transactions, self._receipts
        )
        self._chain.extend(vm.finalize_block(block).block)


def _refusal(computation: abc.ComputationAPI) -> Reverted | None:
    if computation.is_success:
        return None
    return decode_revert(bytes(computation.output), str(computation.error))


class SimulatedChain(EmbeddedChain):
    """An embedded chain with the contracts deployed. `begin` creates independent chains in simulated time from it."""

    def __init__(self, deployer: PrivateKey) -> None:
        super().__init__()
        self.fund(deployer.address)
        self.deploy(deployer)
        self._deployed: abc.MiningChainAPI = self._tester.backend.chain
        self._evm: abc.MiningChainAPI | None = None

    @property
    def evm(self) -> abc.MiningChainAPI:
        """The EVM with the chain's blocks. Raises `StateError` before `begin`."""
        if self._evm is None:
            raise StateError("expected a chain that has begun; call begin() first")
        return self._evm

    def begin(self, balances: Mapping[Address, int], timestamp: int) -> "SimulatedChain":
        """An independent chain that holds only the contracts. Its first block gives the accounts their wei."""
        head = self._deployed.header
        # Trie nodes are keyed by their content and never change, so a shallow copy is an independent chain.
        database = AtomicDB(MemoryDB(dict(self._deployed.chaindb.db.wrapped_db.kv_store)))  # type: ignore[attr-defined]
        begun = copy(self)
        begun._evm = type(self._deployed)(database, head.copy(timestamp=timestamp, base_fee_per_gas=BASE_FEE))
        draft = Draft(begun, timestamp)
        for account, wei in balances.items():
            draft.vm.state.set_balance(EvmAddress(account), wei)
        draft.mine()
        return begun

    def extend(self, block: abc.BlockAPI) -> None:
        """Append a block made by a `Draft`. It is not validated again, because blocks come from nowhere else."""
        evm = self.evm
        evm.chaindb.persist_block(block)
        header = evm.create_header_from_parent(block.header)
        self._evm = type(evm)(evm.chaindb.db, header.copy(base_fee_per_gas=BASE_FEE))

    def draft(self, timestamp: int) -> Draft:
        """Start the next block. Raises `ValueError` for a time that is not after the newest block's."""
        if timestamp <= self.now():
            raise ValueError(f"expected a time after {self.now()}, got {timestamp}")
        return Draft(self, timestamp)

    def rewind(self, evm: abc.MiningChainAPI) -> None:
        """Go back to what `evm` was. Blocks that were appended since are no longer of this chain."""
        self._evm = evm

    def now(self) -> int:
        return int(self.evm.get_block_header_by_hash(self.evm.header.parent_hash).timestamp)

    def balance(self, account: Address) -> int:
        return int(self._state().get_balance(EvmAddress(account)))

    def events_in(self, computation: abc.ComputationAPI, block: int, transaction: bytes) -> tuple[Event, ...]:
        """The events that the contracts logged in a transaction."""
        found, ours = [], self.deployment.named().values()
        for address, topics, data in computation.get_log_entries():
            if bytes(address) in ours:
                log = {"topics": [int(topic).to_bytes(32, "big") for topic in topics], "data": data}
                found.append(self.event_in({**log, "blockNumber": block, "transactionHash": transaction}))
        return tuple(event for event in found if event is not None)

    def _state(self) -> abc.StateAPI:
        return self.evm.get_vm().state

    def read_from(self, state: abc.StateAPI, call: Call, contract: Address | None = None) -> Any:
        """The result of a call on a state, which is left unchanged. Raises `Reverted`."""
        to = EvmAddress(self.deployment.named()[call.contract] if contract is None else contract)
        before = state.snapshot()
        message = Message(_READ_GAS, to, _NOBODY, 0, call.data, state.get_code(to), is_static=True)
        context = state.get_transaction_context_class()(gas_price=0, origin=_NOBODY)
        computation = state.computation_class.apply_message(state, message, context)
        state.revert(before)
        refusal = _refusal(computation)
        if refusal is not None:
            raise refusal
        return call.result(bytes(computation.output))

    def _read(self, call: Call, contract: Address | None = None) -> Any:
        return self.read_from(self._state(), call, contract)
