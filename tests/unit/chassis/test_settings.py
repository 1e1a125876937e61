"""Settings come from the environment, and are checked before anything is opened."""

from pathlib import Path

import pytest

from services.chassis.process.config import Field, InvalidSettings, ProcessSettings, StoringSettings, read_or_exit
from tests.support.probe import some


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("sixteen characters and more\n")
    monkeypatch.setenv("WINDLASS_REPLICA", "3")
    monkeypatch.setenv("WINDLASS_LEASE_SCALE", "0.1")
    monkeypatch.setenv("WINDLASS_SERVICE_SECRET_FILE", str(secret))
    settings = ProcessSettings.from_environment()
    assert settings.replica == "3"
    assert settings.lease_scale == 0.1
    credential = some(settings.credential("api"))
    assert credential.verify(dict(credential.metadata)["x-windlass-service"]) == "api"
    assert settings.tls is None


def test_the_database_url_may_stand_in_a_file_and_is_never_printed(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("postgresql://u:hidden@h/db\n")
    settings = StoringSettings(database_url_file=file)
    assert settings.database_url == "postgresql://u:hidden@h/db"
    assert "hidden" not in repr(settings)


def test_a_service_with_tables_says_which_settings_it_misses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WINDLASS_TLS_KEY_FILE", "/a/key")
    with pytest.raises(SystemExit) as ended:
        read_or_exit(StoringSettings)
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "one of WINDLASS_DATABASE_URL and WINDLASS_DATABASE_URL_FILE is needed",
        "tls_certificate_file and tls_key_file must be given together",
    ]


def test_a_file_that_cannot_be_read_hides_no_other_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WINDLASS_DATABASE_URL", raising=False)
    monkeypatch.setenv("WINDLASS_DATABASE_URL_FILE", str(tmp_path / "nowhere"))
    monkeypatch.setenv("WINDLASS_LEASE_SCALE", "x")
    with pytest.raises(InvalidSettings) as caught:
        StoringSettings.from_environment()
    assert caught.value.faults == [
        "WINDLASS_DATABASE_URL_FILE cannot be read: No such file or directory",
        "WINDLASS_LEASE_SCALE must be a number",
    ]


class ShopSettings(ProcessSettings):
    grpc_address: str = "127.0.0.1:80"
    tills: int = Field(default=2, ge=1, le=9)
    is_open: bool = False
    sign: Path | None = None


def test_a_process_adds_its_own_and_changes_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_TILLS", "3")
    monkeypatch.setenv("WINDLASS_IS_OPEN", "True")
    monkeypatch.setenv("WINDLASS_SIGN", "/a/b")
    monkeypatch.setenv("WINDLASS_LOG_LEVEL", "")
    settings = ShopSettings.from_environment()
    assert (settings.grpc_address, settings.replica, settings.log_level) == ("127.0.0.1:80", "0", "INFO")
    assert (settings.tills, settings.is_open, settings.sign) == (3, True, Path("/a/b"))
    assert ShopSettings().tills == 2
    assert ProcessSettings().grpc_address == "127.0.0.1:0"
    assert ProcessSettings().credential("api") is None


def test_all_faults_are_told_at_once_without_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_TILLS", "many-secrets")
    monkeypatch.setenv("WINDLASS_IS_OPEN", "perhaps")
    monkeypatch.setenv("WINDLASS_LEASE_SCALE", "0")
    with pytest.raises(InvalidSettings) as caught:
        ShopSettings.from_environment()
    assert caught.value.faults == [
        "WINDLASS_IS_OPEN must be true or false",
        "WINDLASS_LEASE_SCALE must be more than 0",
        "WINDLASS_TILLS must be a whole number",
    ]


@pytest.mark.parametrize("tills", [0, 10])
def test_bounds_hold_for_keywords_too(tills: int) -> None:
    with pytest.raises(InvalidSettings, match="WINDLASS_TILLS must be at"):
        ShopSettings(tills=tills)


class SettingsOfNoType(ProcessSettings):
    shoes: frozenset[str] = frozenset()


def test_a_setting_of_a_type_that_no_text_gives_is_refused_before_any_is_read() -> None:
    with pytest.raises(TypeError, match="cannot be"):
        SettingsOfNoType.from_environment()
