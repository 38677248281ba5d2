"""Where sessions are kept when nobody says where: one database for every face, each sees what the others keep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from midfold.config.schema import Config
from midfold.errors import ConfigError


def store_url(config: Config, environment: Mapping[str, str]) -> str:
    """Where sessions are kept: `store.url`, else a database of the user's own. Its folder is made."""
    if config.store.url is not None:
        return config.store.url
    home = environment.get("HOME") or environment.get("USERPROFILE")
    base = environment.get("XDG_DATA_HOME") or ""
    data = Path(base) if Path(base).is_absolute() else Path(home, ".local", "share") if home else None
    if data is None:
        raise ConfigError("where to keep sessions? Set store.url in config.yaml")
    folder = data / "midfold"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"sessions cannot be kept in {folder}: {error.strerror}; set store.url in config.yaml"
        ) from None
    return f"sqlite:///{folder / 'sessions.db'}"
