"""The key is plain HMAC-SHA256, so that others can check it, and depends on the work alone."""

import hmac

import pytest

from services.coordinator.core.compiling import compile_definition
from services.coordinator.core.effect_keys import EffectKeys
from services.coordinator.core.state import Run, Work
from services.coordinator.core.values import RunState, WorkKey

NODE = compile_definition({"name": "w", "nodes": [{"id": "pay", "module": "noop@1"}], "edges": []}).nodes["pay"]


def run(number: int, generation: int = 1) -> Run:
    return Run(number, Work(WorkKey("pay", 0, generation), NODE, 0), RunState.LEASED, 1, 0, 1)


@pytest.mark.parametrize("secret", [b"", b"short", b"x" * 64, b"longer than a block" * 10])
def test_it_is_the_hmac_of_the_work(secret: bytes) -> None:
    expected = hmac.new(secret, b"e1/pay/0/1", "sha256").hexdigest()
    assert EffectKeys(secret).of("e1", run(1)) == expected


def test_attempts_share_it_and_generations_do_not() -> None:
    keys = EffectKeys(b"secret")
    assert keys.of("e1", run(1)) == keys.of("e1", run(2))
    assert keys.of("e1", run(1)) != keys.of("e1", run(2, generation=2))
    assert keys.of("e1", run(1)) != keys.of("e2", run(1))
