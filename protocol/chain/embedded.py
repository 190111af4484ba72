"""The embedded chain: an EVM in this process, for tests, demos and disputes without a node. Its time is ours to set."""

import warnings
from typing import Final

from eth_tester import EthereumTester
from eth_tester.backends.pyevm import PyEVMBackend
from web3 import EthereumTesterProvider, Web3

from protocol.chain.client import Chain
from protocol.chain.node import Node, node_errors
from protocol.eip712 import Address

GAS_LIMIT: Final = 15_000_000
"""Of every transaction here: half of a block. Estimates would cost more time than they tell."""
DEFAULT_FUNDS: Final = 100 * 10**18


class EmbeddedChain(Chain):
    """A new chain of its own. Each transaction is mined at once, in a block of its own, at least a second later."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # py-evm announces that its maintenance ends; the version is pinned and the contracts do not need more.
            warnings.simplefilter("ignore")
            self._tester = EthereumTester(PyEVMBackend())
        super().__init__(Node(Web3(EthereumTesterProvider(self._tester)), GAS_LIMIT))

    def fund(self, account: Address, wei: int = DEFAULT_FUNDS) -> None:
        """Give an account wei, from those that the chain starts with."""
        eth = self._node.web3.eth
        with node_errors():
            source = max(eth.accounts, key=eth.get_balance)
            eth.send_transaction(
                {"from": source, "to": Web3.to_checksum_address(account), "value": Web3.to_wei(wei, "wei")}
            )

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
