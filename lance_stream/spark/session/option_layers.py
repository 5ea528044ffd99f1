"""Combines storage options from several sources: the first with credentials or an endpoint applies.

There are two kinds of settings. Credentials, endpoints, regions and accounts belong together: a
mixture of two sources would send a key to an endpoint that it does not belong to.
All others (time-outs, retries, proxies, a manifest store) are independent.
"""

from collections.abc import Mapping
from typing import Any, Final

from lance_stream.spark.session.hadoop_settings import store_of
from lance_stream.storage.options.names import LOCAL, MANIFEST_STORES, REQUESTS, STORES, TRUST

_INDEPENDENT: Final = {*REQUESTS, *LOCAL, *MANIFEST_STORES, *TRUST}


def layer_options(location: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the storage options of a location, combined from several sources.

    Args:
        location: A path or URI; options without a meaning there are ignored.
        layers: The sources; earlier ones take precedence.
    """
    setting_of = _settings_of(location)
    chosen: dict[str, Any] = {}
    seen: set[str] = set()
    is_set = False
    for layer in layers:
        settings = {name: setting_of.get(name.lower(), "") for name in layer}
        sets_any = any(setting and setting not in _INDEPENDENT for setting in settings.values())
        for name, setting in settings.items():
            is_independent = not setting or setting in _INDEPENDENT
            if (is_independent or not is_set) and (setting or name) not in seen:
                chosen[name] = layer[name]
        seen.update(setting or name for name, setting in settings.items())
        is_set = is_set or sets_any
    return chosen


def _settings_of(location: str) -> dict[str, str]:
    """Return the setting that each option's name means at a location."""
    tables = (STORES[store_of(location)], MANIFEST_STORES, TRUST)
    return {name: setting for table in tables for setting, names in table.items() for name in names}
