"""The policy: what stands under `node.metadata.forebay` in the Envoy bootstrap, or alone in a file.

The only package that reads files. Every mistake is a ConfigError whose lines begin with the path of
the offending key, for example `forebay.pools.small.slots: must be above 0`.
"""

from extproc.config.caching import (
    CacheConfig,
    CacheScope,
    CacheWanted,
    EmbedderConfig,
    ExactCacheConfig,
    RedisConfig,
    SemanticCacheConfig,
    TenantCacheConfig,
)
from extproc.config.difficulty import DifficultyConfig, JudgeConfig, LearningConfig
from extproc.config.files import Stamp, content_of, read_bytes, stamp
from extproc.config.limiting import (
    BudgetConfig,
    LimitsConfig,
    LimitsRedisConfig,
    TenantLimitsConfig,
    WhenAway,
)
from extproc.config.lines import Lines
from extproc.config.load import Loaded, from_document, load, parse_yaml, read_text, read_yaml
from extproc.config.policy import (
    HOLD_MARGIN_S,
    AdmissionConfig,
    BatchConfig,
    Config,
    ConfigError,
    CostsConfig,
    Expiry,
    PoolConfig,
    PriceConfig,
    ResponseConfig,
    RoutingConfig,
    TenantConfig,
)
from extproc.config.secrets import Credentials, credentials, limits_credentials, shared_secret
from extproc.config.tree import walk

__all__ = [
    "HOLD_MARGIN_S",
    "AdmissionConfig",
    "BatchConfig",
    "BudgetConfig",
    "CacheConfig",
    "CacheScope",
    "CacheWanted",
    "Config",
    "ConfigError",
    "CostsConfig",
    "Credentials",
    "DifficultyConfig",
    "EmbedderConfig",
    "ExactCacheConfig",
    "Expiry",
    "JudgeConfig",
    "LearningConfig",
    "LimitsConfig",
    "LimitsRedisConfig",
    "Lines",
    "Loaded",
    "PoolConfig",
    "PriceConfig",
    "RedisConfig",
    "ResponseConfig",
    "RoutingConfig",
    "SemanticCacheConfig",
    "Stamp",
    "TenantCacheConfig",
    "TenantConfig",
    "TenantLimitsConfig",
    "WhenAway",
    "content_of",
    "credentials",
    "from_document",
    "limits_credentials",
    "load",
    "parse_yaml",
    "read_bytes",
    "read_text",
    "read_yaml",
    "shared_secret",
    "stamp",
    "walk",
]
