"""Golden values: two releases that disagree on a key would not exclude each other."""

from __future__ import annotations

import pytest

from rota.postgres.keys import channel, lock_key

# 32-bit hashes of these pairs collide in PostgreSQL's hashtext
COLLIDING = [
    ("projector-23992", "projector-33349"),
    ("projector-31097", "projector-182238"),
    ("projector-60220", "projector-190521"),
]


@pytest.mark.parametrize(
    ("schema", "kind", "name", "key"),
    [
        ("rota", "member", "a", 2551346918346613245),
        ("rota", "lock", "migrate", 8215667266846866922),
        ("other", "lock", "migrate", 8173652076075924656),
        ("rota", "lock", "grüße 🎉", 1827657802951890335),
        ("rota", "lock", "projector-23992", -7388837950976389487),
        ("rota", "lock", "9223372036854775807", -2716794252447946491),
        ("rota", "term", "indexer/1767225600000", -6142374932687000234),
        ("rota", "upkeep", "history", -2173759804739645684),
    ],
)
def test_lock_keys_never_change(schema: str, kind: str, name: str, key: int) -> None:
    assert lock_key(schema, kind, name) == key


def test_channels_never_change_and_fit_any_schema() -> None:
    assert channel("rota", "wake") == "rota_f7f4b58759d34012"
    assert len(channel("x" * 63, "wake")) <= 63


@pytest.mark.parametrize(("one", "other"), COLLIDING)
def test_names_that_collide_in_32_bits_do_not_collide_here(one: str, other: str) -> None:
    assert lock_key("rota", "lock", one) != lock_key("rota", "lock", other)


def test_schemas_and_kinds_have_keys_of_their_own() -> None:
    kinds = ("lock", "member", "term", "upkeep")
    keys = {lock_key(schema, kind, "x") for schema in ("rota", "b") for kind in kinds}

    assert len(keys) == 8
    assert all(-(2**63) <= key < 2**63 for key in keys)


def test_numbers_beyond_32_bits_have_keys_of_their_own() -> None:
    """As names; the two-number form of a lock would refuse them."""
    numbers = [0, 1, 2**31 - 1, 2**31, 2**32, 2**32 + 1, 2**63 - 1, -1]

    assert len({lock_key("rota", "lock", str(number)) for number in numbers}) == len(numbers)
