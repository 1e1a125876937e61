"""A token proves who gave it out, for one thing and one purpose."""

import pytest

from services.chassis.identity.named_tokens import NamedTokens, name_in

SECRET = b"s" * 32
TOKENS = NamedTokens(SECRET, "fetch")


def test_a_token_names_its_thing_and_is_genuine() -> None:
    token = TOKENS.of("shoe.7")
    assert name_in(token) == "shoe.7"
    assert TOKENS.is_genuine(token)
    assert NamedTokens(SECRET, "fetch").of("shoe.7") == token, "nothing is stored"


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "shoe.7",
        "shoe.7.",
        TOKENS.of("shoe.8").replace("shoe.8", "shoe.7"),
        NamedTokens(SECRET, "return").of("shoe.7"),
        NamedTokens(b"x" * 32, "fetch").of("shoe.7"),
        TOKENS.of("shoe.7") + "0",
        TOKENS.of("shoe.7").upper(),
        "shoe.7.\ud800",
    ],
)
def test_anything_else_is_not_genuine(forged: str) -> None:
    assert not TOKENS.is_genuine(forged)
