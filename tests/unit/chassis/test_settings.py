"""Settings come from the environment, and are checked before anything is opened."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.chassis.config import ProcessSettings


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sixteen characters and more\n")
    monkeypatch.setenv("WINDLASS_REPLICA", "3")
    monkeypatch.setenv("WINDLASS_LEASE_SCALE", "0.1")
    monkeypatch.setenv("WINDLASS_SERVICE_SECRET_FILE", str(secret))
    settings = ProcessSettings()
    assert settings.replica == "3"
    assert settings.lease_scale == 0.1
    credential = settings.credential("api")
    assert credential is not None
    assert credential.verify(dict(credential.metadata)["x-windlass-service"]) == "api"
    assert settings.tls is None


def test_the_database_url_may_stand_in_a_file_and_is_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://u:hidden@h/db\n")
    settings = ProcessSettings(database_url_file=file)
    assert settings.database_url == "postgresql://u:hidden@h/db"
    assert "hidden" not in repr(settings)


def test_half_a_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="come together"):
        ProcessSettings(tls_key_file=tmp_path / "key")


def test_a_lease_scale_of_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        ProcessSettings(lease_scale=0)


def test_without_a_secret_there_is_no_credential() -> None:
    assert ProcessSettings().credential("api") is None
