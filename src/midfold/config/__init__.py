"""Load config.yaml, the environment and flags into one frozen `Config`.

loaded = load()                      # defaults < file < environment < flags
loaded.config.compression.threshold  # 0.5
loaded.origins["compression.threshold"]  # "default"
"""

from __future__ import annotations

from midfold.config.fields import FIELDS, OLD, Field, json_schema, reference
from midfold.config.load import (
    Environment,
    FlagText,
    Loaded,
    is_missing,
    load,
    locate,
    parse,
    read_environment,
    read_text,
)
from midfold.config.rewrite import migrate, set_value, write_text
from midfold.config.schema import (
    KNOWN_PROVIDERS,
    Auxiliary,
    AuxiliaryTask,
    Compression,
    Config,
    Context,
    PromptCaching,
    Provider,
)
from midfold.models import ModelOverride

__all__ = [
    "FIELDS",
    "KNOWN_PROVIDERS",
    "OLD",
    "Auxiliary",
    "AuxiliaryTask",
    "Compression",
    "Config",
    "Context",
    "Environment",
    "Field",
    "FlagText",
    "Loaded",
    "ModelOverride",
    "PromptCaching",
    "Provider",
    "is_missing",
    "json_schema",
    "load",
    "locate",
    "migrate",
    "parse",
    "read_environment",
    "read_text",
    "reference",
    "set_value",
    "write_text",
]
