"""Storage options for a session's tables: what the user gave, else what Spark's own settings say.

    1  storage options of the load, of the writer, or of `lance_sink`
    2  storage options given to `register`: for the format, and for lance_changes
    3  Spark's settings: spark.hadoop.fs.s3a.access.key, ... (`storage.options.hadoop`)
    4  what the store's library finds: environment, profile, instance

The first that says who asks, or whom, is heard, and none below it: credentials of one never go to
an endpoint of another. What says neither (time-outs, retries, a manifest store) is added up.

A sink reads the settings of its batch's session, on the driver. The code of a format runs in
processes that have no session: `register` reads them once, and they go along with the format's
class, as its pickle. Spark shows that nowhere: not in plans, the UI or event logs.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import SparkSession

from lance_stream.spark.column_names import SETTING
from lance_stream.spark.hadoop_settings import (
    HADOOP_NAMES,
    SECRET_NAMES,
    storage_options_of,
    store_of,
)
from lance_stream.spark.option_layers import layer_options

_OF_SPARK: Final = "spark.hadoop."
_SECRET_FILES: Final = "hadoop.security.credential.provider.path"


def read_hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """Return what a session's settings say of object stores, by Hadoop's names.

    Through Spark Connect that is what the session's own settings hold; Hadoop's files of settings
    and of secrets are the server's.
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return _settings_of_connect(spark)
    conf = session.sessionState().newHadoopConf()
    settings = dict(conf.getValByRegex(f"^({HADOOP_NAMES})$"))
    if conf.get(_SECRET_FILES):
        for name in SECRET_NAMES:
            secret = conf.getPassword(name)
            if secret is not None:
                settings[name] = "".join(secret)
    return settings


def _settings_of_connect(spark: SparkSession) -> dict[str, str]:
    every: Mapping[str, str] = {}
    with suppress(Exception):  # a server that does not tell its settings is one without any
        every = spark.conf.getAll
    found: dict[str, str] = {}
    for name in sorted(every, key=lambda each: not each.startswith(_OF_SPARK)):
        plain = name.removeprefix(_OF_SPARK)
        if re.fullmatch(HADOOP_NAMES, plain):
            found[plain] = every[name]  # without the prefix is newer: it was set in the session
    return found


def options_in_session(
    spark: SparkSession, uri: str, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the storage options of a location in a session.

    Args:
        spark: Asked for its settings only if the location lies in an object store.
        uri: The location.
        given: What the user gave.
    """
    if store_of(uri) == "local":
        return given
    return layer_options(uri, given, storage_options_of(read_hadoop_settings(spark), uri))


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether a session tells the columns `v` and `V` apart."""
    return str(spark.conf.get(SETTING, "false")).strip().lower() == "true"


@dataclass(frozen=True)
class SessionOptions:
    """What a session says of storage, for processes that have none.

    Attributes:
        storage_options: What `register` was given.
        hadoop_settings: What the session's settings said when it was called.
        case_sensitive: Whether Spark told `v` from `V` then.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    hadoop_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    case_sensitive: bool = False

    def options_for(self, uri: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the storage options of a location, for which the user gave some or none."""
        if store_of(uri) == "local":
            return {**self.storage_options, **given}
        of_spark = storage_options_of(self.hadoop_settings, uri)
        return layer_options(uri, given, self.storage_options, of_spark)
