import asyncio
import base64
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import bcrypt
import pytest

from kvheadroom.errors import ConfigError
from kvheadroom.faces.basic_auth import PasswordCheck

T = TypeVar("T")

# A test vector of Openwall's crypt_blowfish 1.3 (wrapper.c): the hash of "U*U".
VECTOR = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
VECTOR_PASSWORD = "U*U"


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(coroutine, 10))


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def hashed(password: str, cost: int = 4) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost)).decode()


class Recorded:
    """A check whose comparisons are recorded, and take *seconds* each."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, users: dict[str, str], seconds: float = 0.0
    ) -> None:
        self.check = PasswordCheck(users)
        self.hashes: list[bytes] = []
        self.most_at_once = 0
        self._at_once = 0
        self._seconds = seconds
        self._lock = threading.Lock()
        monkeypatch.setattr(self.check, "_matches", self._compare)

    def _compare(self, password: bytes, stored: bytes) -> bool:
        with self._lock:
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            self.hashes.append(stored)
        time.sleep(self._seconds)
        with self._lock:
            self._at_once -= 1
        return bcrypt.checkpw(password, stored)


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_a_published_hash_lets_its_password_in(prefix: str) -> None:
    """The three names of one algorithm are read alike; htpasswd writes the last."""
    check = PasswordCheck({"alice": prefix + VECTOR[4:]})

    assert run(check.verdict(basic("alice", VECTOR_PASSWORD))) == "granted"
    assert run(check.verdict(basic("alice", "U*V"))) == "denied"


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic " + base64.b64encode(b"no colon").decode(),
        "Bearer " + base64.b64encode(f"alice:{VECTOR_PASSWORD}".encode()).decode(),
    ],
)
def test_a_header_that_is_none_is_denied_without_work(
    authorization: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No bcrypt runs for a request that brings no credentials."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR})

    assert run(recorded.check.verdict(authorization)) == "denied"
    assert recorded.hashes == []


def test_an_unknown_name_costs_what_a_known_one_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name nobody has is checked against the dearest hash there is, once, and denied."""
    dearest = hashed("b", cost=6)
    recorded = Recorded(monkeypatch, {"alice": hashed("a", cost=4), "bob": dearest})

    # Even with that hash's own password.
    assert run(recorded.check.verdict(basic("nobody", "b"))) == "denied"
    assert recorded.hashes == [dearest.encode()]


def test_an_answer_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scraper pays for bcrypt once, and so does a guess that is repeated."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR})

    async def twice() -> list[str]:
        attempts = [basic("alice", VECTOR_PASSWORD), basic("alice", "guess")] * 2
        return [await recorded.check.verdict(attempt) for attempt in attempts]

    assert run(twice()) == ["granted", "denied"] * 2
    assert len(recorded.hashes) == 2


def test_the_same_credentials_at_once_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapers that start together wait for one another's bcrypt instead of adding their own."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR}, seconds=0.02)

    async def together() -> list[str]:
        header = basic("alice", VECTOR_PASSWORD)
        return await asyncio.gather(*(recorded.check.verdict(header) for _ in range(5)))

    assert run(together()) == ["granted"] * 5
    assert len(recorded.hashes) == 1


def test_many_guesses_do_not_push_a_known_scraper_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered of failures is bounded, and apart from what is remembered of users."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR})
    monkeypatch.setattr("kvheadroom.faces.basic_auth._MAX_DENIED", 2)

    async def guess() -> str:
        await recorded.check.verdict(basic("alice", VECTOR_PASSWORD))
        for number in range(4):
            await recorded.check.verdict(basic("alice", str(number)))
        recorded.hashes.clear()
        return await recorded.check.verdict(basic("alice", VECTOR_PASSWORD))

    assert run(guess()) == "granted"
    assert recorded.hashes == []
    assert len(recorded.check._denied) == 2


def test_one_bcrypt_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses cannot take more than one core."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR}, seconds=0.02)

    async def guess() -> None:
        await asyncio.gather(
            *(recorded.check.verdict(basic("alice", str(number))) for number in range(5))
        )

    run(guess())
    assert len(recorded.hashes) == 5
    assert recorded.most_at_once == 1


def test_guesses_do_not_stop_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a bcrypt runs, other requests are served."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR}, seconds=0.3)

    async def longest_pause() -> float:
        guess = asyncio.create_task(recorded.check.verdict(basic("alice", "guess")))
        pauses = []
        while not guess.done():
            start = time.monotonic()
            await asyncio.sleep(0.005)
            pauses.append(time.monotonic() - start)
        return max(pauses)

    assert run(longest_pause()) < 0.2


def test_a_crowd_of_guesses_is_turned_away_and_a_known_scraper_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight may wait, the ninth is told to come back; who was let in before waits for nobody."""
    recorded = Recorded(monkeypatch, {"alice": VECTOR}, seconds=0.02)

    async def crowd() -> tuple[list[str], str]:
        await recorded.check.verdict(basic("alice", VECTOR_PASSWORD))
        guesses = [
            asyncio.create_task(recorded.check.verdict(basic("alice", str(number))))
            for number in range(9)
        ]
        await asyncio.sleep(0)
        known = await recorded.check.verdict(basic("alice", VECTOR_PASSWORD))
        waiting = [guess for guess in guesses if not guess.done()]
        assert len(waiting) == 8
        return [await guess for guess in guesses], known

    verdicts, known = run(crowd())
    assert verdicts.count("busy") == 1
    assert known == "granted"


def test_only_72_bytes_of_a_password_count() -> None:
    """bcrypt reads no more, and a longer one is neither refused nor an error."""
    check = PasswordCheck({"alice": hashed("p" * 72)})

    assert run(check.verdict(basic("alice", "p" * 100))) == "granted"
    assert run(check.verdict(basic("alice", "q" * 100))) == "denied"


def test_a_name_may_be_in_any_script() -> None:
    """User names are UTF-8, as the challenge says."""
    check = PasswordCheck({"müller": VECTOR})

    assert run(check.verdict(basic("müller", VECTOR_PASSWORD))) == "granted"


@pytest.mark.parametrize(
    "secret", ["hunter2", "$2y$10$tooshort", "$1$abc$def", VECTOR + "x", "$2y$10$" + "C" * 53]
)
def test_what_is_no_hash_is_refused_and_not_repeated(secret: str) -> None:
    """A plain password in the file stops the start, and does not reach the log."""
    with pytest.raises(ConfigError, match="alice") as refused:
        PasswordCheck({"alice": secret})

    assert secret not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a:b"])
def test_a_name_nobody_could_send_is_refused(name: str) -> None:
    """A colon ends the name in the header (RFC 7617), so such a user could never get in."""
    with pytest.raises(ConfigError, match="user name"):
        PasswordCheck({name: VECTOR})


def test_without_bcrypt_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Users without the optional library are a configuration error, not an open door."""
    monkeypatch.setitem(sys.modules, "bcrypt", None)

    with pytest.raises(ConfigError, match="web-auth"):
        PasswordCheck({"alice": VECTOR})
