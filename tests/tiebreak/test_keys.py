"""New keys, and the files that hold them."""

from pathlib import Path

import pytest

from tiebreak.api.keys import load_key, new_key, save_key
from tiebreak.protocol.commitments.keys import PrivateKey
from tiebreak.protocol.errors import ConfigurationError

KEY = PrivateKey.from_int(0xC0FFEE)
DIGEST = bytes(range(32))
PASSPHRASE = "correct horse"


def test_new_keys_are_random() -> None:
    assert new_key().address != new_key().address


def test_a_saved_key_is_encrypted_private_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    save_key(KEY, path, PASSPHRASE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")
    assert load_key(path, PASSPHRASE).sign(DIGEST) == KEY.sign(DIGEST)
    assert list(tmp_path.iterdir()) == [path]


def test_a_key_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    save_key(KEY, path, PASSPHRASE)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="already exists"):
        save_key(new_key(), path, PASSPHRASE)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_key_file_that_others_can_reach_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key.pem"
    save_key(KEY, path, PASSPHRASE)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match=f"expected mode 0600, got {mode:04o}"):
        load_key(path, PASSPHRASE)


def test_a_key_file_that_is_not_there_or_does_not_open_is_named(tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    with pytest.raises(ConfigurationError, match="cannot read key file"):
        load_key(path, PASSPHRASE)
    save_key(KEY, path, PASSPHRASE)
    with pytest.raises(ConfigurationError, match="wrong passphrase"):
        load_key(path, "wrong horse")
