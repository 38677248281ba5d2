"""What is compared: when to fold, what to prune, where to put markers. As Python values, or as small YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from midfold.cache.schedule import CHEAP_FROM, LANDING, PATIENCE
from midfold.errors import ConfigError
from midfold.fold.budget import LANDING_RATIO

Share = Annotated[float, Meta(gt=0.0, le=1.0)]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run a session. The defaults are midfold's scheduler."""

    name: str
    markers: Literal["planned", "system_and_3", "none"] = "planned"
    ttl: Literal["5m", "1h"] = "5m"
    fold: Literal["never", "threshold", "scheduled"] = "scheduled"
    engine: Literal["midfold", "documented"] = "midfold"
    prune: Literal["digest", "placeholder", "off"] = "digest"
    prune_every_turn: bool = False
    threshold: Share = 0.85
    """Of the window: HARD pressure."""
    soft: Share = CHEAP_FROM
    """Of the threshold: SOFT pressure."""
    landing: Share = LANDING
    """Of the threshold: the size a fold aims at."""
    dense: bool = True
    """Whether a fold fills that size with verbatim lines of what it folds, instead of a long tail."""
    target_ratio: Share = 0.2
    protect_last_n: Annotated[int, Meta(ge=1)] = 20
    patience: Annotated[float, Meta(gt=0.0)] = PATIENCE
    summary: Literal["model", "limit", "local"] = "local"
    """Whether a summary is paid for: the fold as input, the summary as output; or only at the threshold (`limit`). Its
    text is made locally either way."""


NO_COMPACTION = Policy(name="no compaction", fold="never")
DOCUMENTED = Policy(
    name="documented",
    markers="system_and_3",
    fold="threshold",
    engine="documented",
    prune="placeholder",
    threshold=0.5,
    landing=LANDING_RATIO,
    dense=False,
    summary="model",
)
"""The specification's: `system_and_3`, a summary by a model at half of the window, 20 % or 20 messages as the tail."""
PRUNE_EVERY_TURN = msgspec.structs.replace(
    DOCUMENTED, name="prune every turn", markers="planned", prune_every_turn=True
)
SCHEDULED = Policy(name="scheduled")
BUILT_IN: dict[str, Policy] = {
    policy.name: policy for policy in (DOCUMENTED, NO_COMPACTION, PRUNE_EVERY_TURN, SCHEDULED)
}


def load_policy(place: str) -> Policy:
    """A built-in policy by its name, or one from a YAML file."""
    named = place.replace("-", " ").replace("_", " ")
    if named in BUILT_IN:
        return BUILT_IN[named]
    import yaml

    path = Path(place)
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(name.replace(" ", "-") for name in BUILT_IN)
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"policy {place}: {why}; expected a YAML file, or one of {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy {place} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"policy {place}: expected a mapping of settings such as fold: scheduled")
    try:
        return msgspec.convert({"name": path.stem, **value, **_words(value)}, Policy)
    except msgspec.ValidationError as error:
        fields = ", ".join(Policy.__struct_fields__)
        raise ConfigError(f"policy {place}: {error} (settings: {fields})") from None


def _words(value: dict[str, Any]) -> dict[str, Any]:
    """YAML 1.1 reads a bare `off` as false."""
    return {"prune": "off"} if value.get("prune") is False else {}
