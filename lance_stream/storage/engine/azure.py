"""The endpoints of Azure Blob Storage accounts, and the meaning of their responses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lance_stream.storage.engine.azure_login import Anonymous, Login
from lance_stream.storage.engine.connection import ObstoreService, connection_options
from lance_stream.storage.engine.credentials import Credentials
from lance_stream.storage.engine.responses import Dialect
from lance_stream.storage.objects.object_requests import ObjectRequests, RequestPolicy

MAX_AT_ONCE: Final = 64


_LEASED: Final = "another program holds a lease on the blob: wait for it to end, or break it"
_DIALECT: Final = Dialect(
    taken=frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"}),
    conflicts_pass=False,
    later=frozenset(
        {"PendingCopyOperation", "Md5Mismatch", "Crc64Mismatch", "OperationTimedOut", "ServerBusy"}
    ),
    no_bucket=frozenset(
        {
            "ContainerNotFound",
            "FilesystemNotFound",
            "ContainerBeingDeleted",
            "ContainerDisabled",
            "ResourceNotFound",
        }
    ),
    remedies={
        "404": "there is no such container. Create it, or correct the URI",
        "ResourceNotFound": (
            "there is no such container, or it cannot be read without credentials"
        ),
        "AuthenticationFailed": (
            "the credentials are wrong or expired, or this machine's clock is wrong. Correct "
            "account_key or sas_token"
        ),
        "KeyBasedAuthenticationNotPermitted": (
            "the account does not accept account keys. Set tenant_id, client_id and client_secret, "
            "or none of them to use the identity of this machine"
        ),
        "AuthorizationPermissionMismatch": (
            "the identity is not allowed to do this. Assign it the role Storage Blob Data "
            "Contributor"
        ),
        "AuthorizationFailure": (
            "the credentials are wrong, or the account's network rules exclude this machine"
        ),
        "NoAuthenticationInformation": (
            "this requires credentials. Set account_key, sas_token or an identity"
        ),
        "PublicAccessNotPermitted": (
            "the account requires credentials. Set account_key, sas_token or an identity"
        ),
        "BlobImmutableDueToPolicy": "a policy of the container forbids changing or deleting blobs",
        "InvalidResourceName": (
            "the name is invalid. A container name has 3 to 63 lower-case letters, digits and "
            "hyphens"
        ),
        "409": (
            "a lease, a snapshot or a policy protects the blob: end the lease, or delete the "
            "snapshots"
        ),
        "InvalidBlobType": "a page or append blob of that name exists: delete it",
        "InvalidBlobOrBlock": (
            "another program left uncommitted blocks under this name, whose ids have another "
            "length: they expire after a week, or when a small blob is written under this name"
        ),
        **dict.fromkeys(
            ("LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseLost"), _LEASED
        ),
        **dict.fromkeys(
            ("401", "403"),
            "the credentials do not allow this. Check account_key, sas_token or the identity",
        ),
        "301": "correct the storage option endpoint",
    },
)


@dataclass(frozen=True)
class AzureSettings(ObstoreService):
    """The settings of a storage account.

    Attributes:
        scheme: The scheme of its URIs.
        account: Its name.
        endpoint: The service's URL, without a trailing "/".
        login: The credentials.
        retry_policy: The limits of a request.
        max_requests_at_once: Maximum number of concurrent requests of a process.
        any_certificate: Whether to accept any certificate without verification.
        proxy_url: A proxy; None for the environment's.
    """

    scheme: str
    account: str
    endpoint: str
    login: Login
    retry_policy: RequestPolicy = field(default_factory=RequestPolicy)
    max_requests_at_once: int = MAX_AT_ONCE
    any_certificate: bool = False
    proxy_url: str | None = field(default=None, repr=False)

    knows_suffixes = False

    dialect = _DIALECT
    resumes_listings = False  # older versions of the service cannot
    extra = "azure"
    purpose = "tables on Azure"

    def connect(self, container: str) -> ObjectRequests:
        """Return a driver for a container; see `ServiceSettings.connect`."""
        return super().connect(_name_of(container))

    def is_sure_to_create_once(self) -> bool | None:
        """Return True: the service supports conditional creates."""
        return True

    @property
    def service(self) -> tuple[str | None, ...]:
        """The account and its endpoint."""
        return "azure", self.account, self.endpoint

    def shared_uri(self, container: str) -> str:
        """Return the URI of a container with the account instead of the host."""
        return f"az://{self.account}/{_name_of(container)}"

    def lance_credentials(self) -> Mapping[str, str]:
        """Return the credentials by pylance's names."""
        return self.login.lance_options()

    def client_options(self) -> Mapping[str, Any]:
        """Return the options of the HTTP client, by obstore's names."""
        return connection_options(self.endpoint, self.any_certificate, self.proxy_url)

    def credentials(self) -> Credentials:
        """Return the credentials of requests."""
        return self.login.connect()

    def open(self, container: str, **how: Any) -> Any:
        """Return obstore's store of a container."""
        from obstore.store import AzureStore

        config: Any = self.config(container)
        return AzureStore(container, config=config, **how)

    def config(self, container: str) -> dict[str, Any]:  # noqa: ARG002  # the same for all
        """Return the configuration of a container, by obstore's names."""
        return {
            "account_name": self.account,
            "endpoint": self.endpoint,
            "use_emulator": False,
            "use_fabric_endpoint": False,
            "skip_signature": self.login == Anonymous(),
            "disable_tagging": True,
        }

    def where(self, container: str) -> str:
        """Return the container's name for errors."""
        return f"the container {_name_of(container)!r} of Azure Blob Storage at {self.endpoint}"


def _name_of(container: str) -> str:
    """Return the name of a container that a URI spells container@host."""
    return container.partition("@")[0]
