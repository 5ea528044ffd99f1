"""Storage options from several sources: the first that says who asks, or whom, is heard.

Settings are of two kinds. Credentials, endpoints, regions and accounts belong together: half of
them from one source and half from another would send a key to a place that it is not for. All else
(time-outs, retries, proxies, a manifest store) stands for itself.
"""

from collections.abc import Mapping
from typing import Any, Final

from lance_stream.spark.hadoop_settings import store_of
from lance_stream.storage.options.names import LOCAL, MANIFEST_STORES, REQUESTS, STORES, TRUST

_BY_THEMSELVES: Final = {*REQUESTS, *LOCAL, *MANIFEST_STORES, *TRUST}


def layer_options(location: str, *layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the storage options of a location out of several sources.

    Args:
        location: A path or URI: names that mean nothing there do not make a source heard.
        layers: The first one goes before the others.
    """
    known = _settings_of(location)
    chosen: dict[str, Any] = {}
    taken: set[str] = set()
    is_said = False
    for layer in layers:
        settings = {name: known.get(name.lower(), "") for name in layer}
        says = any(each and each not in _BY_THEMSELVES for each in settings.values())
        for name, setting in settings.items():
            stands_alone = not setting or setting in _BY_THEMSELVES
            if (stands_alone or not is_said) and (setting or name) not in taken:
                chosen[name] = layer[name]
        taken.update(setting or name for name, setting in settings.items())
        is_said = is_said or says
    return chosen


def _settings_of(location: str) -> dict[str, str]:
    """Return the setting that each option's name means at a location."""
    tables = (STORES[store_of(location)], MANIFEST_STORES, TRUST)
    return {name: each for table in tables for each, names in table.items() for name in names}
