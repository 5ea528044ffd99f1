"""What no test may see of the machine: its owner's credentials, endpoints and proxies."""

import os
from collections.abc import MutableMapping

_OWNERS = ("AWS_", "BOTO", "S3_", "AZURE_", "AZURITE_", "GOOGLE_", "GCS", "CLOUDSDK_", "STORAGE_")
_OWNERS += ("DYNAMODB_", "PG", "POSTGRES", "FSSPEC_")
_SETTINGS = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AZURE_CONFIG_DIR": os.devnull,
    "CLOUDSDK_CONFIG": os.devnull,
    "FSSPEC_CONFIG_DIR": os.devnull,
    "NO_GCE_CHECK": "true",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


def forget_credentials(environment: MutableMapping[str, str]) -> None:
    """Take all that names an account or a service out of an environment, in place.

    What is left keeps clients from asking files and instance metadata for credentials, and from
    sending requests to 127.0.0.1 through a proxy. Processes that are started later inherit it.
    """
    for name in [text for text in environment if text.upper().startswith(_OWNERS)]:
        del environment[name]
    environment.update(_SETTINGS)
