"""The embedded chain: an EVM in this process, for tests, demos and disputes without a node. Its time is ours to set."""

import warnings
from typing import TYPE_CHECKING, Final, cast

from eth_utils.address import to_checksum_address

from tiebreak.protocol.chain.client import Chain
from tiebreak.protocol.chain.node import Node, node_errors
from tiebreak.protocol.commitments.eip712 import Address

if TYPE_CHECKING:
    from eth_tester import EthereumTester
    from web3.types import Wei

GAS_LIMIT: Final = 15_000_000
"""Of every transaction here: half of a block. Estimates would cost more time than they tell."""
ACCOUNTS_PATH: Final = "m/44'/60'/0'/0"
"""BIP-44: where wallets and anvil look for the accounts of a mnemonic, by their number."""
DEFAULT_FUNDS: Final = 100 * 10**18


def new_tester(
    mnemonic: str | None = None, accounts: int | None = None, balance: int | None = None
) -> "EthereumTester":
    """An EVM with a genesis block; with accounts of a mnemonic and a balance in wei, or its own ten."""
    from eth_tester import EthereumTester  # noqa: PLC0415  # takes seconds
    from eth_tester.backends.pyevm import PyEVMBackend  # noqa: PLC0415

    with warnings.catch_warnings():
        # py-evm announces that its maintenance ends; the version is pinned and the contracts do not need more.
        warnings.simplefilter("ignore")
        if mnemonic is None:
            return EthereumTester(PyEVMBackend())
        overrides = {} if balance is None else {"balance": balance}
        backend = PyEVMBackend.from_mnemonic(mnemonic, overrides, num_accounts=accounts, hd_path=ACCOUNTS_PATH)
        return EthereumTester(backend)


class EmbeddedChain(Chain):
    """A new chain of its own. Each transaction is mined at once, in a block of its own, at least a second later."""

    def __init__(self) -> None:
        from web3 import EthereumTesterProvider, Web3  # noqa: PLC0415

        self._tester = new_tester()
        super().__init__(Node(Web3(EthereumTesterProvider(self._tester)), GAS_LIMIT))

    def fund(self, account: Address, wei: int = DEFAULT_FUNDS) -> None:
        """Give an account wei, from those that the chain starts with."""
        eth = self._node.web3.eth
        with node_errors():
            source = max(eth.accounts, key=eth.get_balance)
            eth.send_transaction({"from": source, "to": to_checksum_address(account), "value": cast("Wei", wei)})

    def travel_to(self, timestamp: int) -> None:
        """The next transaction is mined at exactly this time, which must be after the newest block's."""
        if timestamp <= self.now():
            raise ValueError(f"expected a time after {self.now()}, got {timestamp}")
        if timestamp > self.now() + 1:
            with node_errors():
                self._tester.time_travel(timestamp)

    def advance(self, seconds: int) -> None:
        """The next transaction is mined this many seconds after the newest block."""
        self.travel_to(self.now() + seconds)
