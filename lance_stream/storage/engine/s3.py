"""S3 and compatible services: storage options, error codes and settings.

Options have the names of s3fs and of Lance; `options.names` has all of them. Other settings come
from where botocore looks: environment variables, profiles and configuration files, the role of an
instance or a container.

An endpoint that begins with http:// is accepted: s3fs only needs the URL; Lance also needs
`allow_http`, but a URL with http:// is explicit enough. Only `allow_http="false"` forbids it.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.connection import ObstoreService, connection_options
from lance_stream.storage.engine.credentials import Credentials, FixedCredentials
from lance_stream.storage.engine.responses import Dialect
from lance_stream.storage.extras import requires_extra
from lance_stream.storage.namespaces.vended_credentials import VendedCredentials
from lance_stream.storage.objects.object_requests import RequestPolicy
from lance_stream.storage.options.names import (
    as_flag,
    as_text,
    connection_of,
    retry_policy_of,
    take_settings,
)

_REQUESTS_AT_ONCE = 64
_DEFAULT_REGION = "us-east-1"


_KEYS: Final = (
    "check the storage options aws_access_key_id, aws_secret_access_key and aws_session_token "
    "(key, secret, token), or the credentials of the environment"
)
_RIGHTS: Final = (
    "the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and "
    "s3:ListBucket there (without the last, missing objects also cause this error)"
)
_REGION: Final = "set the storage option aws_region to the bucket's region"
_NO_BUCKET: Final = "create the bucket, or correct its name in the table's URI"
_EXPIRED: Final = (
    "the session token has expired: set a new one, or use a profile or role that renews it"
)
_DIALECT: Final = Dialect(
    later=frozenset(
        {
            "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestTimeout",
            "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "SlowDownRead",
            "SlowDownWrite", "Throttling", "ThrottlingException", "TooManyRequests",
            "XAmzContentSHA256Mismatch", "XMinioServerNotInitialized",
        }
    ),
    no_bucket=frozenset({"NoSuchBucket"}),
    not_accepted=frozenset(
        {
            "ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidSecurity",
            "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired",
        }
    ),
    remedies={
        **dict.fromkeys(("404", "NoSuchBucket"), _NO_BUCKET),
        **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "AccountProblem", "403"), _RIGHTS),
        **dict.fromkeys(
            (
                "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity",
                "401",
            ),
            _KEYS,
        ),
        **dict.fromkeys(
            ("ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException"), _EXPIRED
        ),
        "RequestTimeTooSkewed": "set the clock of this machine",
        **dict.fromkeys(
            (
                "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301",
                "307", "IllegalLocationConstraintException",
            ),
            _REGION,
        ),
        "501": "the service does not support this request",
    },
)  # fmt: skip


@dataclass(frozen=True)
class S3Settings(ObstoreService):
    """The settings of S3 or a compatible service.

    Attributes:
        endpoint: The URL; None for the environment's, or AWS.
        region: The region; None for the environment's.
        profile: A profile of botocore's configuration files.
        anonymous: Whether requests are unsigned.
        requester_pays: Whether we pay for requests to other owners' buckets.
        virtual_hosted: Whether the bucket is part of the host name.
        unsigned_payload: Whether signatures omit the data.
        encryption: The service's name for the encryption; None for the bucket's default.
        encryption_key_id: The KMS key to use.
        encryption_bucket_key: Whether to use one key per bucket.
        creates_once: Whether the service supports conditional puts; None to test it. Without them,
            versions are published in an external manifest store.
        retry_policy: The limits of a request.
        max_requests_at_once: Maximum number of concurrent requests.
        any_certificate: Whether to accept any certificate without verification.
        certificates: A file with the certificates of a private authority.
        proxy_url: A proxy; None for the environment's.
        key: The id of the access key.
        secret: The secret key.
        token: A session token.
        namespace_table: The table whose namespace vends the keys; see `storage.namespaces`.
        customer_key: The key with which the service encrypts, but which it does not store (base64).
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    virtual_hosted: bool = False
    unsigned_payload: bool = False
    encryption: str | None = None
    encryption_key_id: str | None = None
    encryption_bucket_key: bool | None = None
    creates_once: bool | None = None
    retry_policy: RequestPolicy = field(default_factory=RequestPolicy)
    max_requests_at_once: int = _REQUESTS_AT_ONCE
    any_certificate: bool = False
    certificates: str | None = None
    proxy_url: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    customer_key: str | None = field(default=None, repr=False)
    namespace_table: str | None = field(default=None, repr=False)

    scheme = "s3"
    dialect = _DIALECT
    extra = "s3"
    purpose = "tables on S3"

    def where(self, container: str) -> str:
        """Return the bucket's name for errors."""
        if self.endpoint is None:
            return f"the bucket {container!r} of S3" + (f" in {self.region}" if self.region else "")
        return f"the bucket {container!r} of S3 at {self.endpoint}"

    def is_sure_to_create_once(self) -> bool | None:
        """Return whether the service supports conditional puts; None if this must be tested."""
        host = urlsplit(self._endpoint() or "").hostname
        is_aws = host is None or host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
        return True if self.creates_once is None and is_aws else self.creates_once

    @property
    def service(self) -> tuple[str | None, ...]:
        """The service and its endpoint."""
        return "s3", self.endpoint

    def shared_uri(self, container: str) -> str:
        """Return the URI of a bucket."""
        return f"s3://{container}"

    def lance_credentials(self) -> Mapping[str, str]:
        """Return the keys, including those of a profile, by pylance's names."""
        if self.anonymous or not (self.key or self.profile or self.namespace_table):
            return {}
        credentials = self.credentials()
        asyncio.run(credentials.ready())
        keys = credentials()
        names = ("access_key_id", "secret_access_key", "token")
        return {name: keys[name] for name in names if keys.get(name)}

    def client_options(self) -> Mapping[str, Any]:
        """Return the options of the HTTP client, by obstore's names."""
        certificates = self.certificates or os.environ.get("AWS_CA_BUNDLE") or None
        return connection_options(
            self._endpoint(), self.any_certificate, self.proxy_url, certificates
        )

    def credentials(self) -> Credentials:
        """Return the credentials of requests."""
        if self.anonymous:
            return FixedCredentials({"access_key_id": "", "secret_access_key": "", "token": None})
        if self.key is not None:
            return FixedCredentials(
                {
                    "access_key_id": self.key,
                    "secret_access_key": self.secret,
                    "token": self.token,
                }
            )
        if self.namespace_table is not None:
            return VendedCredentials(
                self.namespace_table, lambda options: s3_settings(options).credentials()
            )
        with requires_extra("s3", "credentials of AWS"):
            from lance_stream.storage.engine.aws import AwsCredentials
        return AwsCredentials(self.profile, _KEYS)

    def open(self, container: str, **how: Any) -> Any:
        """Return obstore's store of a bucket."""
        from obstore.store import S3Store

        config: Any = self.config(container)
        return S3Store(container, config=config, **how)

    def config(self, container: str) -> dict[str, Any]:
        """Return the configuration of a bucket, by obstore's names."""
        region, endpoint = self.region or self._from_aws("region"), self._endpoint()
        config: dict[str, Any] = {
            "region": region or _DEFAULT_REGION,
            "skip_signature": self.anonymous,
            "request_payer": self.requester_pays,
            "unsigned_payload": self.unsigned_payload,
            "virtual_hosted_style_request": self.virtual_hosted,
            "conditional_put": "etag",
            "s3_express": container.endswith(_EXPRESS),
            "disable_bulk_delete": True,
            "disable_tagging": True,
        }
        if endpoint is not None:
            url = _with_bucket(endpoint, container) if self.virtual_hosted else endpoint
            # The second name has precedence. Without it, obstore would read the environment.
            config |= {"endpoint": url, "aws_endpoint_url_s3": url}
        if self.encryption is not None:
            config["server_side_encryption"] = self.encryption
        if self.encryption_key_id is not None:
            config["sse_kms_key_id"] = self.encryption_key_id
        if self.encryption_bucket_key is not None:
            config["sse_bucket_key_enabled"] = self.encryption_bucket_key
        if self.customer_key is not None:
            config |= {
                "server_side_encryption": "sse-c",
                "sse_customer_key_base64": self.customer_key,
            }
        return config

    def _endpoint(self) -> str | None:
        if self.endpoint is not None:
            return self.endpoint
        return self._from_aws("endpoint")

    def _from_aws(self, name: str) -> str | None:
        try:
            from lance_stream.storage.engine import aws
        except ImportError:
            return None  # obstore alone suffices if keys, region and endpoint are set
        return {"region": aws.region_of, "endpoint": aws.endpoint_of}[name](self.profile)


def s3_settings(options: Mapping[str, Any]) -> S3Settings:
    """Return the settings of S3 from storage options.

    Raises:
        InvalidInputError: A name is unknown, a value is invalid, or two options contradict each
            other.
    """
    _refuse_arguments_of_botocore(options)
    values = take_settings(options, "s3")
    _refuse_what_workers_cannot_have(values)
    endpoint = values.get("endpoint")
    if isinstance(endpoint, str) and "://" not in endpoint and "use_ssl" in values:
        is_open = not as_flag("use_ssl", values["use_ssl"])
        values["endpoint"] = f"{'http' if is_open else 'https'}://{endpoint}"
    texts: dict[str, Any] = {
        name: as_text(name, values[name])
        for name in (
            "endpoint", "region", "profile", "key", "secret", "token", "encryption_key_id",
            "customer_key", "certificates", "namespace_table",
        )
        if name in values
    }  # fmt: skip
    flags: dict[str, Any] = {
        name: as_flag(name, values[name])
        for name in ("anonymous", "virtual_hosted", "unsigned_payload", "encryption_bucket_key")
        if name in values
    }
    if "encryption" in values:
        mode = as_text("aws_server_side_encryption", values["encryption"])
        texts["encryption"] = _ENCRYPTIONS.get(mode.lower(), mode)
    settings = S3Settings(
        **texts,
        **flags,
        requester_pays=_requester_pays(values.get("requester_pays", False)),
        creates_once=_creates_once(values.get("conditional_put")),
        retry_policy=retry_policy_of(values),
        **{"max_requests_at_once": _REQUESTS_AT_ONCE, **connection_of(values)},
    )
    _refuse_contradictions(settings, values)
    return settings


_ENCRYPTIONS = {
    "aes256": "AES256",
    "sse-s3": "AES256",
    "sse-kms": "aws:kms",
    "dsse": "aws:kms:dsse",
}


def _requester_pays(value: Any) -> bool:
    return str(value).lower() == "requester" or as_flag("requester_pays", value)


def _refuse_what_workers_cannot_have(settings: Mapping[str, Any]) -> None:
    if "from the environment" in settings:
        raise InvalidInputError(
            "an AWS session or role cannot be sent to workers as a storage option. Configure it "
            "where botocore looks on each machine: AWS_PROFILE (or the storage option profile), "
            "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE, or the role of the instance"
        )


_OPTIONS_INSTEAD: Final = {
    "client_kwargs": "endpoint_url, aws_region, aws_access_key_id, allow_invalid_certificates",
    "config_kwargs": "connect_timeout, request_timeout, client_max_retries, proxy_url",
    "s3_additional_kwargs": "aws_server_side_encryption, aws_sse_kms_key_id, requester_pays",
}
"""Examples of options to use instead of s3fs's options with arguments of botocore."""


def _refuse_arguments_of_botocore(options: Mapping[str, Any]) -> None:
    for option in options:
        instead = _OPTIONS_INSTEAD.get(option.lower())
        if instead is not None and options[option] is not None:
            raise InvalidInputError(
                f"{option} has arguments of botocore, which does not send the requests here: set "
                f"each of them as a storage option, such as {instead}"
            )


def _creates_once(value: Any) -> bool | None:
    if value is None:
        return None
    mode = str(value).lower()
    if mode not in ("etag", "disabled"):
        raise InvalidInputError(
            f"the storage option aws_conditional_put must be 'etag' or 'disabled', not "
            f"{mode[:80]!r}; "
            "to publish versions in DynamoDB, open s3+ddb://bucket/path?ddbTableName=..."
        )
    return mode == "etag"


def _refuse_contradictions(settings: S3Settings, options: Mapping[str, Any]) -> None:
    if (settings.key is None) != (settings.secret is None):
        raise InvalidInputError(
            "one half of S3's access key is missing: set both aws_access_key_id and "
            "aws_secret_access_key (or key and secret)"
        )
    if settings.anonymous and (settings.key or settings.token):
        raise InvalidInputError(
            "the storage options request anonymous access to S3 (anon, aws_skip_signature), but "
            "also contain a key: omit one of them"
        )
    if settings.endpoint is None:
        return
    parts = urlsplit(settings.endpoint)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https") or "@" in parts.netloc or parts.query:
        raise InvalidInputError(
            "the endpoint of S3 must be a URL that begins with http:// or https:// and contains no "
            "password, such as http://127.0.0.1:9000"
        )
    if scheme == "http" and not as_flag("allow_http", options.get("allow_http", True)):
        raise InvalidInputError(
            "the endpoint of S3 begins with http://, which the storage option allow_http forbids: "
            "use https://, or omit allow_http"
        )


_EXPRESS: Final = "--x-s3"


def _with_bucket(endpoint: str, bucket: str) -> str:
    """Return an endpoint with the bucket before its host."""
    parts = urlsplit(endpoint)
    has_bucket = parts.netloc.startswith(f"{bucket}.")
    return endpoint if has_bucket else parts._replace(netloc=f"{bucket}.{parts.netloc}").geturl()
