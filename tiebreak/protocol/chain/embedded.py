"""The embedded chain: an EVM in this process whose clock we control, for tests, demos and disputes without a node."""

import warnings
from typing import TYPE_CHECKING, Any, Final, cast

from eth_utils.address import to_checksum_address

from tiebreak.protocol.chain.client import Chain
from tiebreak.protocol.chain.node import Node, node_errors
from tiebreak.protocol.commitments.eip712 import Address

if TYPE_CHECKING:
    from eth_tester import EthereumTester
    from web3.types import Wei

ACCOUNTS_PATH: Final = "m/44'/60'/0'/0"
"""The BIP-44 path where wallets and anvil look for the numbered accounts of a mnemonic."""
DEFAULT_FUNDS: Final = 100 * 10**18


def new_tester(
    mnemonic: str | None = None, accounts: int | None = None, balance: int | None = None
) -> "EthereumTester":
    """An EVM with a genesis block. Its accounts are those of the mnemonic, with a balance in wei, or ten defaults."""
    from eth_tester import EthereumTester  # noqa: PLC0415  # takes seconds
    from eth_tester.backends.pyevm import PyEVMBackend  # noqa: PLC0415

    with warnings.catch_warnings():
        # py-evm warns that it will no longer be maintained. The version is pinned, and the contracts need nothing
        # newer.
        warnings.simplefilter("ignore")
        overrides = {} if balance is None else {"balance": balance}
        known: dict[str, Any] = {"num_accounts": accounts, "hd_path": ACCOUNTS_PATH}
        backend = PyEVMBackend() if mnemonic is None else PyEVMBackend.from_mnemonic(mnemonic, overrides, **known)
    chain = backend.chain
    mine = chain.mine_block
    # A block keeps the `prevrandao` that its transactions saw. The backend would draw another one for its header, and
    # whenever it then executes the block again, as it does for each transaction that waits, refuse it as false. And it
    # shows 32 bytes of `extraData` in any case: they are there, so that its headers hash to what they say.
    chain.mine_block = lambda **given: mine(**given | {"mix_hash": chain.header.mix_hash, "extra_data": bytes(32)})
    return EthereumTester(backend)


class EmbeddedChain(Chain):
    """A fresh chain. Each transaction is mined at once in its own block, at least one second after the last."""

    def __init__(self) -> None:
        from web3 import EthereumTesterProvider, Web3  # noqa: PLC0415

        self._tester = new_tester()
        super().__init__(Node(Web3(EthereumTesterProvider(self._tester))))

    def fund(self, account: Address, wei: int = DEFAULT_FUNDS) -> None:
        """Give an account wei, taken from the richest of the chain's initial accounts."""
        eth = self.node.web3.eth
        with node_errors():
            source = max(eth.accounts, key=eth.get_balance)
            eth.send_transaction({"from": source, "to": to_checksum_address(account), "value": cast("Wei", wei)})

    def travel_to(self, timestamp: int) -> None:
        """Set the time of the next block. Raises `ValueError` unless it is after the newest block's."""
        if timestamp <= self.now():
            raise ValueError(f"expected a time after {self.now()}, got {timestamp}")
        if timestamp > self.now() + 1:
            with node_errors():
                self._tester.time_travel(timestamp)

    def pass_until(self, instant: int) -> None:
        if instant > self.now():
            self.travel_to(instant)

    def advance(self, seconds: int) -> None:
        """Let the next transaction be mined this many seconds after the newest block."""
        self.travel_to(self.now() + seconds)
