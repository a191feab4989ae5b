"""What is said about the file with the cluster's secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from barnabas.broker.controller_secret import read_secret
from barnabas.controller.config_validators import ConfigError


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        (0o600, ""),
        (0o400, ""),
        (0o640, ""),  # a group's, as a container's mounted secret is
        (0o644, "can be read by others (mode 0644); run: chmod 600 "),
        (0o604, "can be read by others (mode 0604)"),
        (0o620, "can be changed by others (mode 0620)"),
        (0o666, "can be read by others (mode 0666)"),
    ],
)
def test_a_secret_that_others_can_read_is_warned_about(
    mode: int, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "secret"
    file.write_text("0123456789abcdef0123456789abcdef\n")
    file.chmod(mode)
    assert read_secret(str(file)) == b"0123456789abcdef0123456789abcdef"
    said = [record.getMessage() for record in caplog.records]
    assert [says in text and str(file) in text for text in said] == ([True] if says else [])
    assert "0123456789abcdef" not in caplog.text


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "does not exist"), (b"", "is empty"), (b"\n", "is empty"), (b"short\n", "holds 5 bytes")],
)
def test_a_secret_that_is_none_is_refused(content: bytes | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"barnabas\.controller\.secret\.file: {file} {says}.*openssl rand"
    ):
        read_secret(str(file))


def test_other_ways_to_have_no_secret(tmp_path: Path) -> None:
    assert read_secret(None) is None
    with pytest.raises(ConfigError, match="is set to nothing"):
        read_secret("")
    with pytest.raises(ConfigError, match="can't be read"):
        read_secret(str(tmp_path))
