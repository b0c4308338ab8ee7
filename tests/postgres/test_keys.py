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
    keys = {lock_key(schema, kind, "x") for schema in ("rota", "b") for kind in ("lock", "member")}

    assert len(keys) == 4
    assert all(-(2**63) <= key < 2**63 for key in keys)
