"""Storage options of S3, by s3fs's names and by Lance's, as one picklable settings object.

What is not given comes from where botocore looks for it: environment variables, profiles and
configuration files, the role of an instance or a container. `options.names` has the names.

An endpoint that begins with http:// is taken as it is: with s3fs the URL alone says so, with Lance
`allow_http` has to be given, too, and whoever spelt the URL out meant it. `allow_http="false"`
beside it is a contradiction, and refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.extras import brought_by
from lance_stream.storage.object_requests import Patience
from lance_stream.storage.options.names import (
    Frozen,
    as_count,
    as_flag,
    as_mapping,
    as_text,
    freeze,
    patience_of,
    take_settings,
)

if TYPE_CHECKING:  # the driver's library is imported when it is used
    from lance_stream.storage.s3.requests import S3Requests

_PUT_BYTES = 64 << 20
_REQUESTS_AT_ONCE = 64


@dataclass(frozen=True)
class S3Settings:
    """How S3, or a service that speaks its protocol, is reached.

    Attributes:
        endpoint: Its URL; None for AWS, or for what the environment says.
        region: Its region; None for what the environment says.
        profile: Of botocore's configuration files.
        anonymous: Whether requests are not signed.
        requester_pays: Whether we pay for requests to other people's buckets.
        creates_once: Whether the service has conditional puts; None if that is to be found out.
            Where it has none, versions are kept in an external manifest store.
        patience: How long and how often it is asked.
        max_put_bytes: Larger objects are sent in parts.
        max_requests_at_once: So many requests may be under way at once.
        key: The access key's id.
        secret: The secret key.
        token: A session's token.
        client: More arguments of botocore's client.
        config: Arguments of botocore's `Config`.
        additional: What is sent along with each request that knows it: encryption, ...
    """

    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    creates_once: bool | None = None
    patience: Patience = field(default_factory=Patience)
    max_put_bytes: int = _PUT_BYTES
    max_requests_at_once: int = _REQUESTS_AT_ONCE
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    client: Frozen = field(default=(), repr=False)
    config: Frozen = field(default=(), repr=False)
    additional: Frozen = field(default=(), repr=False)

    @property
    def scheme(self) -> str:
        """What URIs of the service begin with."""
        return "s3"

    def connect(self, container: str) -> "S3Requests":
        """Return a driver for a bucket; see `ServiceSettings.connect`."""
        with brought_by("s3", "tables on S3"):
            from lance_stream.storage.s3.requests import S3Requests
        return S3Requests(self, container)

    def where(self, container: str) -> str:
        """Return in words who is asked."""
        if self.endpoint is None:
            return f"the bucket {container!r} of S3" + (f" in {self.region}" if self.region else "")
        return f"the bucket {container!r} of S3 at {self.endpoint}"


def s3_settings(options: Mapping[str, Any]) -> S3Settings:
    """Return what storage options say of S3.

    Raises:
        InvalidInputError: A name is unknown, a value is none of its kind, or two contradict.
    """
    given = take_settings(options, "s3")
    _refuse_what_workers_cannot_have(given)
    client = as_mapping("client_kwargs", given.pop("client_kwargs", {}))
    config = as_mapping("config_kwargs", given.pop("config_kwargs", {}))
    additional = as_mapping("s3_additional_kwargs", given.pop("s3_additional_kwargs", {}))
    for setting, name in _OF_CLIENT.items():
        _merge(given, setting, client.pop(name, None), f"client_kwargs[{name!r}]")
    _merge(given, "region", config.pop("region_name", None), "config_kwargs['region_name']")
    _take_limits(given, config)
    _take_connection(given, client, config)
    _take_encryption(given, additional)
    texts: dict[str, Any] = {
        name: as_text(name, given[name])
        for name in ("endpoint", "region", "profile", "key", "secret", "token")
        if name in given
    }
    settings = S3Settings(
        **texts,
        anonymous=as_flag("anon", given.get("anonymous", False)),
        requester_pays=_requester_pays(given.get("requester_pays", False)),
        creates_once=_creates_once(given.get("conditional_put")),
        patience=patience_of(given),
        max_requests_at_once=as_count(
            "max_concurrency", given.get("max_concurrency", _REQUESTS_AT_ONCE), at_least=1
        ),
        client=freeze(client),
        config=freeze(config),
        additional=freeze(additional),
    )
    _refuse_contradictions(settings, given)
    return settings


_OF_CLIENT: Mapping[str, str] = {
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
    "region": "region_name",
    "endpoint": "endpoint_url",
    "use_ssl": "use_ssl",
}
"""Settings that `client_kwargs` may hold as well, and botocore's names for them."""


def _merge(given: dict[str, Any], setting: str, value: Any, name: str) -> None:
    if value is None:
        return
    if given.setdefault(setting, value) != value:
        raise InvalidInputError(
            f"{name} and another storage option say the same of S3, and have different values: "
            "leave one of them out"
        )


def _take_limits(given: dict[str, Any], config: dict[str, Any]) -> None:
    """Take what limits requests out of botocore's arguments: its own retries are off."""
    retries = as_mapping("config_kwargs['retries']", config.pop("retries", None) or {})
    attempts = retries.get("total_max_attempts")
    if attempts is not None:
        name = "config_kwargs['retries']['total_max_attempts']"
        retries["max_attempts"] = as_count(name, attempts, at_least=1) - 1
    _merge(given, "max_retries", retries.get("max_attempts"), "config_kwargs['retries']")
    connect, read = config.pop("connect_timeout", None), config.pop("read_timeout", None)
    _merge(given, "connect_timeout", connect, "config_kwargs['connect_timeout']")
    _merge(given, "request_timeout", read, "config_kwargs['read_timeout']")


def _take_connection(
    given: Mapping[str, Any], client: dict[str, Any], config: dict[str, Any]
) -> None:
    if "use_ssl" in given:
        client["use_ssl"] = as_flag("use_ssl", given["use_ssl"])
    if as_flag("allow_invalid_certificates", given.get("any_certificate", False)):
        client["verify"] = False
    if "proxy_url" in given:
        proxy = as_text("proxy_url", given["proxy_url"])
        config["proxies"] = {"http": proxy, "https": proxy}
    s3 = as_mapping("config_kwargs['s3']", config.pop("s3", None) or {})
    if "virtual_hosted" in given:
        by_host = as_flag("virtual_hosted_style_request", given["virtual_hosted"])
        s3["addressing_style"] = "virtual" if by_host else "path"
    if as_flag("aws_unsigned_payload", given.get("unsigned_payload", False)):
        s3["payload_signing_enabled"] = False
    if s3:
        config["s3"] = s3


def _take_encryption(given: Mapping[str, Any], additional: dict[str, Any]) -> None:
    if "encryption" in given:
        way = as_text("aws_server_side_encryption", given["encryption"])
        additional["ServerSideEncryption"] = _ENCRYPTIONS.get(way.lower(), way)
    if "encryption_key_id" in given:
        additional["SSEKMSKeyId"] = as_text("aws_sse_kms_key_id", given["encryption_key_id"])
    if "encryption_bucket_key" in given:
        additional["BucketKeyEnabled"] = as_flag(
            "aws_sse_bucket_key_enabled", given["encryption_bucket_key"]
        )


_ENCRYPTIONS = {
    "aes256": "AES256",
    "sse-s3": "AES256",
    "sse-kms": "aws:kms",
    "dsse": "aws:kms:dsse",
}


def _requester_pays(value: Any) -> bool:
    return str(value).lower() == "requester" or as_flag("requester_pays", value)


def _refuse_what_workers_cannot_have(given: Mapping[str, Any]) -> None:
    if "from the environment" in given:
        raise InvalidInputError(
            "a session or role of AWS is no storage option here: every worker gets its own from "
            "where botocore looks, such as AWS_PROFILE (or the storage option profile), "
            "AWS_ROLE_ARN with AWS_WEB_IDENTITY_TOKEN_FILE, or the role of its instance"
        )


def _creates_once(value: Any) -> bool | None:
    if value is None:
        return None
    way = str(value).lower()
    if way not in ("etag", "disabled"):
        raise InvalidInputError(
            f"the storage option aws_conditional_put is 'etag' or 'disabled', not {way[:80]!r}; "
            "versions in DynamoDB are asked for by s3+ddb://bucket/path?ddbTableName=..."
        )
    return way == "etag"


def _refuse_contradictions(settings: S3Settings, given: Mapping[str, Any]) -> None:
    if (settings.key is None) != (settings.secret is None):
        raise InvalidInputError(
            "of the storage options for S3's access key only one half is given: "
            "aws_access_key_id and aws_secret_access_key (or key and secret) belong together"
        )
    if settings.anonymous and (settings.key or settings.token):
        raise InvalidInputError(
            "the storage options ask for requests to S3 without a signature (anon, "
            "aws_skip_signature), and give a key to sign them with: leave one of them out"
        )
    if settings.endpoint is None:
        return
    parts = urlsplit(settings.endpoint)
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https") or "@" in parts.netloc or parts.query:
        raise InvalidInputError(
            "the endpoint of S3 is a URL that begins with http:// or https:// and holds no "
            "password, such as http://127.0.0.1:9000"
        )
    if scheme == "http" and not as_flag("allow_http", given.get("allow_http", True)):
        raise InvalidInputError(
            "the endpoint of S3 begins with http://, and the storage option allow_http forbids "
            "that: take https://, or leave allow_http out"
        )
