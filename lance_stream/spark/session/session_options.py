"""A session's settings of stores, as they are pickled with the class of the format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SessionOptions:
    """A session's settings of stores, for processes without a session.

    Attributes:
        storage_options: The options passed to `register`.
        hadoop_settings: The session's settings when it was called.
        namespace: The namespace that the session's settings name; empty for none.
        case_sensitive: Whether Spark distinguished `v` from `V` then.
        is_cluster: Whether tasks run on other machines than the driver's.
    """

    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    hadoop_settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    namespace: Mapping[str, str] = field(default_factory=dict, repr=False)
    case_sensitive: bool = False
    is_cluster: bool = False

    def options_for(self, uri: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the storage options of a location, given the user's own."""
        # Tasks unpickle this class, and never ask.
        from lance_stream.spark.session.hadoop_settings import storage_options_of, store_of
        from lance_stream.spark.session.option_layers import layer_options

        if store_of(uri) == "local":
            return {**self.storage_options, **options}
        of_spark = storage_options_of(self.hadoop_settings, uri)
        return layer_options(uri, options, self.storage_options, of_spark)
