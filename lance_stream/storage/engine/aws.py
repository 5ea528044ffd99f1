"""Credentials, region and endpoint from AWS's files and environment, read by botocore.

A botocore session reads a megabyte of JSON that describes services, in a quarter of a second of CPU
time. The descriptions are the same for all sessions, so a process reads them once.
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from botocore import exceptions as botocore_errors
from botocore.loaders import Loader, create_loader
from botocore.session import Session

from lance_stream.storage.engine.credentials import RenewedCredentials
from lance_stream.storage.objects.object_requests import RefusedError, TryAgainError

_RENEWED_BEFORE_SECONDS: Final = 600
_PASSING: Final = (
    botocore_errors.CredentialRetrievalError,
    botocore_errors.MetadataRetrievalError,
    botocore_errors.HTTPClientError,
    botocore_errors.ConnectionError,
)


class SharingSession(Session):  # type: ignore[misc]  # the library has no types
    """A session that shares the descriptions of services with all others of the process."""

    def _register_data_loader(self) -> None:
        self._components.lazy_register_component(
            "data_loader", lambda: _loader(self.get_config_variable("data_path"))
        )


class AwsCredentials(RenewedCredentials):
    """The credentials that botocore finds, in its order: environment, profiles, roles.

    Args:
        profile: The profile of the shared configuration; None for the default profile.
        remedy: The remedy if there are no credentials, for errors.
    """

    def __init__(self, profile: str | None, remedy: str) -> None:
        super().__init__()
        self._profile = profile
        self._remedy = remedy
        self._credentials: Any = None

    def is_valid(self) -> bool:
        """Return whether the credentials stay valid long enough, according to botocore."""
        needs_refresh = getattr(self._credentials, "refresh_needed", None)
        return needs_refresh is None or not needs_refresh(_RENEWED_BEFORE_SECONDS)

    def fetch(self) -> Mapping[str, Any]:
        """Return the current keys."""
        try:
            if self._credentials is None or self._is_rejected:
                self._credentials = SharingSession(profile=self._profile).get_credentials()
            if self._credentials is None:
                raise RefusedError(f"botocore finds no credentials: {self._remedy}")
            keys = self._credentials.get_frozen_credentials()
        except _PASSING as error:
            raise TryAgainError(
                f"botocore could not fetch credentials: {str(error)[:300]}"
            ) from error
        except botocore_errors.BotoCoreError as error:
            raise RefusedError(f"{str(error)[:300]}: {self._remedy}") from error
        return {
            "access_key_id": keys.access_key,
            "secret_access_key": keys.secret_key,
            "token": keys.token,
        }


def region_of(profile: str | None) -> str | None:
    """Return the region that the environment or a profile names.

    Raises:
        RefusedError: There is no such profile.
    """
    return _variable(profile, "region")


def endpoint_of(profile: str | None) -> str | None:
    """Return the endpoint that the environment or a profile names.

    Raises:
        RefusedError: There is no such profile.
    """
    if str(_variable(profile, "ignore_configured_endpoint_urls") or "").lower() in ("1", "true"):
        return None
    named = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return named or _configured(profile).get("endpoint_url")


def _variable(profile: str | None, name: str) -> str | None:
    try:
        value = SharingSession(profile=profile).get_config_variable(name)
    except botocore_errors.BotoCoreError as error:
        raise RefusedError(str(error)[:300]) from error
    return None if value is None else str(value)


def _configured(profile: str | None) -> Mapping[str, Any]:
    """Return the settings of a profile; settings for S3 take precedence."""
    session = SharingSession(profile=profile)
    try:
        settings = session.get_scoped_config()
        services = session.full_config.get("services", {}).get(settings.get("services"), {})
    except botocore_errors.BotoCoreError as error:
        raise RefusedError(str(error)[:300]) from error
    s3_settings = services.get("s3", {})
    return {**settings, **s3_settings} if isinstance(s3_settings, dict) else dict(settings)


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)
