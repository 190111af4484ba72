"""Exchanges one party's files and statements with a hub, once, by hand. Parties that run do this by themselves.

A statement posted twice counts once: publishing again after a break goes on where it stopped.
"""

from pathlib import Path
from typing import Final

from tiebreak.api.agreement import offers, sealing
from tiebreak.engine.run.directory import JOB, RunDirectory
from tiebreak.node.hub_client import HubClient, VerifiedPost
from tiebreak.node.hub_connection import HubAway
from tiebreak.node.library import Fetched, Fetcher, publish, secret_of
from tiebreak.node.parts import parts
from tiebreak.protocol.commitments.eip712 import Domain
from tiebreak.protocol.commitments.job import Job
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError, StateError
from tiebreak.protocol.parties.posts import AnswerBody, Body, HeadBody, LibraryBody, OfferBody, Post, SignedPost
from tiebreak.protocol.tags import Digest

HUB_SECONDS: Final = 20.0
"""The time that a hub has for its first answer before a person hears of it."""


def open_hub(url: str, domain: Domain) -> HubClient:
    """A hub that answers. Raises `ConfigurationError` if none does, or if it serves another chain."""
    try:
        hub = HubClient(url, domain, seconds=HUB_SECONDS, patience=HUB_SECONDS).hub
    except HubAway as error:
        raise ConfigurationError(f"expected a hub at {url}, got no answer in {HUB_SECONDS:.0f} seconds") from error
    return HubClient(url, domain, hub=hub)


def read_posts(hub_client: HubClient, *jobs: Digest) -> list[VerifiedPost]:
    """The posts of a hub, all or those about some jobs, oldest first, with the signatures checked."""
    found: list[VerifiedPost] = []
    after = 0
    while True:
        page, last = hub_client.page(after, jobs=jobs)
        found += page
        if last == after:
            return found
        after = last


# ---------------------------------------------------------------- publishing


class Publisher:
    """Makes those posts of a party about one job that it has not made yet."""

    def __init__(self, hub_client: HubClient, job: Job, domain: Domain, key: PrivateKey) -> None:
        self._hub_client, self._job, self._domain, self._key = hub_client, job, domain, key
        own = [verified for verified in read_posts(hub_client, job.id) if verified.post.sender == key.address]
        self._said = {(verified.post.kind, verified.post.body) for verified in own}
        self._next = 1 + max((verified.post.number for verified in own), default=-1)

    def say(self, body: Body) -> bool:
        """Post a body unless the hub has it from this party already. Returns whether it was posted."""
        if (int(body.KIND), body.encode()) in self._said:
            return False
        post = Post.of(body, job_id=self._job.id, number=self._next, sender=self._key.address)
        self._hub_client.post(SignedPost.sign(post, self._domain, self._key).encode())
        self._next += 1
        return True


def publish_to(
    hub_client: HubClient, run: RunDirectory, key: PrivateKey, count: int, *, states: bool = False
) -> tuple[LibraryBody, int]:
    """Brings a hub the files of a run for others, as client or trainer. Returns the list and the number of posts.

    The client's offer and the trainer's answer and heads are posted before the list of files, and that before the
    files, because a hub takes only what it was told about by somebody whom it knows.
    """
    job, agreement = run.job, run.agreement
    if key.address not in (job.client, job.trainer):
        raise ConfigurationError(f"expected the key of the job's client or trainer, got 0x{key.address.hex()}")
    listed, sealed = parts(run, count, states=states), secret_of(run, sealing.opened_by(key))
    listing = publish(run, listed, None, count, sealed)
    publisher, said = Publisher(hub_client, job, agreement.domain, key), 0
    if key.address == job.client:
        said += publisher.say(OfferBody(job=job))
    if key.address == job.trainer and agreement.trainer_signature:
        said += publisher.say(AnswerBody(job=job, signature=agreement.trainer_signature))
        for head in run.heads():
            said += publisher.say(HeadBody(head=head)) if head.head.count <= count else 0
    said += publisher.say(listing)
    publish(run, listed, hub_client, count, sealed)
    return listing, said


# ---------------------------------------------------------------- fetching


def fetch_from(
    hub_client: HubClient, job_id: Digest, domain: Domain, folder: Path, *, count: int | None = None,
    states: bool = False, key: PrivateKey | None = None, most: int | None = None,
) -> tuple[int, Fetched]:  # fmt: skip
    """Fetches the published files of a job into its folder, and returns the checkpoint up to which it did.

    See `tiebreak.node.library.Fetcher`. count: up to this checkpoint [default: the last that the trainer published].
    Raises `StateError` if the hub knows no such job.
    """
    found = read_posts(hub_client, job_id)
    job = next((verified.body.job for verified in found if isinstance(verified.body, OfferBody | AnswerBody)), None)
    if job is None or job.id != job_id:
        raise StateError(f"expected an offer of job {job_id.hex()} on the hub, got none; its client posts it first")
    bodies = [(verified.post.sender, verified.body) for verified in found if isinstance(verified.body, LibraryBody)]
    trusted = [body for sender, body in bodies if sender in (job.client, job.trainer)]
    published = max((body.count for sender, body in bodies if sender == job.trainer), default=0)
    wanted = published if count is None else count
    # The longest list comes first; among equals, the one that was posted last.
    trusted.reverse()
    listings = sorted(trusted, key=lambda body: -body.count)
    limit = {} if most is None else {"most": most}
    unseal = None if key is None else sealing.opened_by(key)
    fetched = Fetcher(folder, hub_client, job, domain, listings, unseal=unseal, **limit).fetch(wanted, states=states)
    own = [verified.body for verified in found if verified.post.sender == job.trainer]
    answer = next((body for body in own if isinstance(body, AnswerBody) and body.signature), None)
    if answer is not None and JOB in fetched.missing and "offer.bin" not in fetched.missing:
        offers.complete(folder, answer.signature)
    return wanted, fetched
