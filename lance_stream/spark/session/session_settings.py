"""Storage options for a session's tables: the user's own, or else Spark's settings.

    1  storage options of the load, of the writer, or of `lance_sink`
    2  storage options given to `register`: for the format, and for lance_changes
    3  Spark's settings: spark.hadoop.fs.s3a.access.key, ... (`spark.session.hadoop_settings`)
    4  settings that the store's library finds: environment, profile, instance

The first level that sets credentials or an endpoint applies, and the levels below it are ignored:
credentials of one level never go to an endpoint of another. All other options (timeouts, retries, a
manifest store) are combined.

A sink reads the settings of its batch's session, on the driver. The code of a format runs in
processes without a session: `register` reads the settings once and pickles them with the format's
class. Spark shows that nowhere: not in plans, the UI or event logs.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.column_names import SETTING
from lance_stream.spark.session.hadoop_settings import (
    HADOOP_NAMES,
    SECRET_NAMES,
    storage_options_of,
    store_of,
)
from lance_stream.spark.session.option_layers import layer_options
from lance_stream.storage.namespaces.locating import TableId, locate

_OF_SPARK: Final = "spark.hadoop."
_NAMESPACE: Final = "spark.lance_stream.namespace."
_SECRET_FILES: Final = "hadoop.security.credential.provider.path"


def read_hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """Return a session's settings of object stores, under Hadoop's names.

    Through Spark Connect only the session's own settings are visible; Hadoop's files of settings
    and secrets stay on the server.
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
    with suppress(Exception):  # without access to the server's settings, assume that it has none
        every = spark.conf.getAll
    settings: dict[str, str] = {}
    for name in sorted(every, key=lambda name: not name.startswith(_OF_SPARK)):
        plain = name.removeprefix(_OF_SPARK)
        if re.fullmatch(HADOOP_NAMES, plain):
            settings[plain] = every[name]  # without the prefix is newer: it was set in the session
    return settings


def options_in_session(
    spark: SparkSession, uri: str, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the storage options of a location in a session.

    Args:
        spark: Its settings are read only if the location is in an object store.
        uri: The location.
        options: The user's options.
    """
    if store_of(uri) == "local":
        return options
    return layer_options(uri, options, storage_options_of(read_hadoop_settings(spark), uri))


def read_namespace(spark: SparkSession) -> dict[str, str]:
    """Return the namespace that a session's settings name; empty for none."""
    settings = getattr(spark.conf, "getAll", None)
    if settings is None:  # PySpark 3.5 lists only the settings with which a session was started
        settings = dict(spark.sparkContext.getConf().getAll())
    return {
        name.removeprefix(_NAMESPACE): value
        for name, value in settings.items()
        if name.startswith(_NAMESPACE)
    }


def check_session(spark: object, call: str) -> None:
    """Raise unless the first argument of a call is a Spark session.

    Args:
        spark: The argument.
        call: The call as it should be, for the message.
    """
    if not hasattr(spark, "range"):
        raise InvalidInputError(
            f"the first argument of {call} is the Spark session, not {spark!r:.200}"
        )


def locate_in_session(
    spark: SparkSession | None,
    uri: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    table_id: TableId | None,
    namespace: Mapping[str, Any] | None,
    *,
    creates: bool = False,
) -> tuple[str | os.PathLike[str], Mapping[str, Any] | None]:
    """Return the location and options of a table, by default in the namespace of a session.

    Args:
        spark: The session; None for none.
        uri: As in `locate`, and so are the others.
        storage_options: The user's options.
        table_id: The table's name.
        namespace: The namespace; None for that of the session's settings.
        creates: Whether the table is declared if it does not exist.

    Raises:
        LanceStreamError: See `locate`.
    """
    if table_id is not None and namespace is None and spark is not None:
        namespace = read_namespace(spark) or None
    return locate(uri, storage_options, table_id, namespace, creates=creates)


def locate_written(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a sink with the location and options of its table.

    Args:
        parameters: Values by name, among them those of `locate`; a table that does not exist is
            declared in its namespace.

    Raises:
        LanceStreamError: See `locate`.
    """
    names = ("uri", "storage_options", "table_id", "namespace")
    spark = None if is_remote() else SparkSession.getActiveSession()
    uri, options = locate_in_session(spark, *(parameters[name] for name in names), creates=True)
    return {**parameters, "uri": uri, "storage_options": options}


def is_cluster(spark: SparkSession) -> bool:
    """Return whether a session's tasks run on other machines than its driver."""
    return str(spark.conf.get("spark.master", "local")).split("[")[0] != "local"


def is_case_sensitive(spark: SparkSession) -> bool:
    """Return whether a session distinguishes the columns `v` and `V`."""
    return str(spark.conf.get(SETTING, "false")).strip().lower() == "true"
