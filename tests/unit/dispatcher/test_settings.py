"""Settings that do not go together are refused at the start."""

import pytest

from services.chassis.process.config import InvalidSettings
from services.dispatcher.config import DispatcherSettings


def test_a_dead_letter_lives_as_long_as_the_request_id_that_names_it() -> None:
    url = "postgresql://nowhere"
    assert DispatcherSettings(database_url=url, dead_letter_seconds=9.0, request_key_seconds=9.0)
    with pytest.raises(InvalidSettings, match="WINDLASS_DEAD_LETTER_SECONDS must not be less than WINDLASS_REQUEST"):
        DispatcherSettings(database_url=url, dead_letter_seconds=8.0, request_key_seconds=9.0)
