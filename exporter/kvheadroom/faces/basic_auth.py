"""Check the password of HTTP basic authentication against bcrypt hashes."""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Literal

from kvheadroom.errors import ConfigError

Verdict = Literal["granted", "denied", "busy"]

_HASH: Final = re.compile(r"\$2[aby]\$\d\d\$[./A-Za-z0-9]{53}")

# bcrypt itself reads no further; newer libraries refuse a longer password instead.
_PASSWORD_BYTES: Final = 72
_MAX_WAITING: Final = 8
_MAX_DENIED: Final = 1024


class PasswordCheck:
    """Answers whether an ``Authorization`` header names a known user with the right password.

    One bcrypt runs at a time, in a thread, so guesses can take neither the event loop nor more
    than one core. Answers are remembered under a key of this process: a scraper that was let in
    once never waits behind somebody's guesses. A name nobody has costs what a known one costs.

    Args:
        users: User name → bcrypt hash.

    Raises:
        ConfigError: bcrypt is not installed, or a hash is none.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        try:
            import bcrypt  # noqa: PLC0415 (an optional dependency)
        except ImportError as error:
            raise ConfigError(
                "basic_auth_users needs bcrypt: pip install 'kvheadroom[web-auth]'"
            ) from error
        self._matches = bcrypt.checkpw
        for name, text in users.items():
            _check_user(name, text, bcrypt.hashpw)
        self._hashes = {name.encode(): text.encode() for name, text in users.items()}
        self._decoy = max(self._hashes.values(), key=_cost)
        self._secret = secrets.token_bytes(32)
        self._granted: dict[bytes, bytes] = {}
        self._denied: dict[bytes, None] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="basic-auth")

    async def verdict(self, authorization: str | None) -> Verdict:
        """Return the verdict on one header; ``busy`` when too many wait for theirs."""
        credentials = _credentials(authorization)
        if credentials is None:
            return "denied"
        remembered = self._remembered(credentials)
        if remembered is not None:
            return remembered
        if self._waiting >= _MAX_WAITING:
            return "busy"
        self._waiting += 1
        try:
            async with self._turn:
                # Whoever held the turn may have brought the same credentials.
                return self._remembered(credentials) or await self._compute(credentials)
        finally:
            self._waiting -= 1

    def _remembered(self, credentials: bytes) -> Verdict | None:
        digest = self._digest(credentials)
        user = credentials.partition(b":")[0]
        if hmac.compare_digest(self._granted.get(user, b""), digest):
            return "granted"
        return "denied" if digest in self._denied else None

    async def _compute(self, credentials: bytes) -> Verdict:
        user, _, password = credentials.partition(b":")
        loop = asyncio.get_running_loop()
        matches = await loop.run_in_executor(self._thread, self._compare, user, password)
        if matches and user in self._hashes:
            self._granted[user] = self._digest(credentials)
            return "granted"
        self._denied[self._digest(credentials)] = None
        if len(self._denied) > _MAX_DENIED:
            del self._denied[next(iter(self._denied))]
        return "denied"

    def _compare(self, user: bytes, password: bytes) -> bool:
        stored = self._hashes.get(user, self._decoy)
        try:
            return self._matches(password[:_PASSWORD_BYTES], stored)
        except ValueError:  # a NUL inside, in some versions
            return False

    def _digest(self, credentials: bytes) -> bytes:
        return hashlib.blake2b(credentials, key=self._secret, digest_size=32).digest()


def _credentials(authorization: str | None) -> bytes | None:
    scheme, _, encoded = (authorization or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        credentials = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    return credentials if b":" in credentials else None


def _check_user(name: str, text: str, hash_password: Callable[[bytes, bytes], bytes]) -> None:
    if not name or ":" in name:
        raise ConfigError(f"basic_auth_users: a user name is not empty and has no colon: {name!r}")
    try:
        # Whether a salt is sound only the library can tell; at the lowest cost it does so at once.
        is_hash = _HASH.fullmatch(text) and hash_password(b"", f"$2b$04${text[7:29]}".encode())
    except ValueError:
        is_hash = None
    if not is_hash:
        raise ConfigError(f"basic_auth_users: the password of {name!r} is no bcrypt hash ($2y$…)")


def _cost(stored: bytes) -> int:
    return int(stored[4:6])
