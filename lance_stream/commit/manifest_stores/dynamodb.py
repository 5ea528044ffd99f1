"""DynamoDB as a manifest store, compatible with the reference: both can share a table.

    key           base_uri   S   HASH     the table's key in its bucket: "dir/t.lance"
                  version    N   RANGE
    attributes    path       S            the manifest's key in the bucket
                  size       N            its size in bytes; older writers omitted it
                  committer  S            "lancedb"

    put_if_not_exists   PutItem   attribute_not_exists(base_uri) AND attribute_not_exists(version)
    put_if_exists       PutItem   attribute_exists(base_uri) AND attribute_exists(version)
    get                 GetItem   consistent
    latest              Query     base_uri = :base_uri, backwards, one item, consistent

For several tables at once, which the reference cannot do:

    put_all_if_not_exist   TransactWriteItems   a Put as in put_if_not_exists, per table
    latest_of_all          Query                per table; confirmed by
                           TransactGetItems     the item exists, the next version's does not

The table is not created here, because its billing mode is the user's choice:

    aws dynamodb create-table --table-name T --billing-mode PAY_PER_REQUEST \
        --attribute-definitions AttributeName=base_uri,AttributeType=S \
                                AttributeName=version,AttributeType=N \
        --key-schema AttributeName=base_uri,KeyType=HASH AttributeName=version,KeyType=RANGE

Requests are sent by botocore, from the extra "s3", without its retries. Clients are cached for a
few settings, and not used in forked processes.

Source:  requests of the reference, recorded; see docs/decisions/021-external-manifest-stores.md.
Differs: The types of the keys are checked, too. The attribute `e_tag` of old writers is not read.
"""

import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.connection_cache import ConnectionCache
from lance_stream.commit.manifest_stores.protocol import ManifestItem
from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage.extras import requires_extra
from lance_stream.storage.objects.object_requests import TryAgainError

T = TypeVar("T")

COMMITTER: Final = "lancedb"

_KEYS: Final = {"HASH": ("base_uri", "S"), "RANGE": ("version", "N")}
_RETRYABLE: Final = {
    "InternalServerError",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ThrottlingException",
    "TransactionConflictException",
    "TransactionInProgressException",
}
_REJECTED_CREDENTIALS: Final = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidSignatureException",
    "UnrecognizedClientException",
}
_BATCH: Final = 25
_MAX_IN_TRANSACTION: Final = 100
_MAX_SNAPSHOTS: Final = 100
_IS_NEW: Final = "attribute_not_exists(base_uri) AND attribute_not_exists(version)"


@dataclass(frozen=True)
class DynamoDBManifests:
    """The items in a table of DynamoDB.

    Args:
        table: The name of the table.
        region: The AWS region; None for the environment's.
        endpoint: The URL of the service; None for the region's.
        key: The access key's id; None for botocore's chain of credentials.
        secret: The secret key.
        token: The session token.
        profile: The profile of the shared configuration.
    """

    table: str
    region: str | None = None
    endpoint: str | None = None
    key: str | None = field(default=None, repr=False)
    secret: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    profile: str | None = None

    @property
    def kind(self) -> str:
        """The kind of store."""
        return "dynamodb"

    @property
    def where(self) -> str:
        """The store's name in errors."""
        location = self.endpoint or self.region
        return f"the DynamoDB table {self.table!r}" + (f" at {location}" if location else "")

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one; see `ManifestStore.put_if_not_exists`."""
        return self._put(
            f"putting version {item.version}",
            base_uri,
            item,
            _IS_NEW,
        )

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Replace the item of a version; see `ManifestStore.put_if_exists`."""
        return self._put(
            f"putting the final path of version {item.version}",
            base_uri,
            item,
            "attribute_exists(base_uri) AND attribute_exists(version)",
        )

    def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
        """Put items of several tables, or none; see `ManifestStore.put_all_if_not_exist`."""
        self._check_fits_transaction(len(items), _MAX_IN_TRANSACTION)
        names = sorted(items)
        answer = self._request_in_transaction(
            f"putting versions of {len(items)} tables",
            "transact_write_items",
            # Makes the request idempotent.
            ClientRequestToken=str(uuid.uuid4()),
            TransactItems=[
                {
                    "Put": {
                        "TableName": self.table,
                        "Item": _attributes(name, items[name]),
                        "ConditionExpression": _IS_NEW,
                    }
                }
                for name in names
            ],
        )
        reasons = answer.get(_REASONS, ())
        return frozenset(
            name
            for name, reason in zip(names, reasons, strict=False)
            if reason == _CONDITION_OF_ONE_FAILED
        )

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version; see `ManifestStore.get`."""
        answer = self._request(
            f"the item of version {version}",
            "get_item",
            Key=_key(base_uri, version),
            ConsistentRead=True,
        )
        return self._item(answer["Item"]) if "Item" in answer else None

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version; see `ManifestStore.latest`."""
        answer = self._query("the newest item", base_uri, ScanIndexForward=False, Limit=1)
        return self._item(answer["Items"][0]) if answer["Items"] else None

    def latest_of_all(self, base_uris: Sequence[str]) -> dict[str, ManifestItem]:
        """Return the newest items at one moment; see `ManifestStore.latest_of_all`."""
        self._check_fits_transaction(len(base_uris), _MAX_IN_TRANSACTION // 2)
        for _ in range(_MAX_SNAPSHOTS):
            newest = {name: self.latest(name) for name in base_uris}
            # Versions are consecutive, so one without a successor is the newest.
            versions = {name: item.version if item else 0 for name, item in newest.items()}
            keys = [(name, versions[name] + more) for name in base_uris for more in (0, 1)]
            answer = self._request_in_transaction(
                f"the newest items of {len(base_uris)} tables",
                "transact_get_items",
                TransactItems=[
                    {"Get": {"TableName": self.table, "Key": _key(name, version)}}
                    for name, version in keys
                ],
            )
            items = {
                key: self._item(response["Item"])
                for key, response in zip(keys, answer["Responses"], strict=True)
                if "Item" in response
            }
            if {key[0]: key[1] for key in items} == {k: v for k, v in versions.items() if v}:
                return {name: item for (name, _), item in items.items()}
        raise StoreUnavailableError(
            f"the newest versions of {len(base_uris)} tables changed in each of {_MAX_SNAPSHOTS} "
            f"attempts to read them from {self.where}: try again when fewer writers commit, or "
            "open fewer tables at once"
        )

    def _check_fits_transaction(self, num_tables: int, max_tables: int) -> None:
        if num_tables > max_tables:
            raise InvalidInputError(
                f"a transaction of DynamoDB can contain at most {max_tables} tables, not "
                f"{num_tables}: use fewer tables at once, or a manifest store in PostgreSQL"
            )

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        return [self._item(attributes) for page in self._pages(base_uri) for attributes in page]

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions; see `ManifestStore.delete`."""
        for start in range(0, len(versions), _BATCH):
            remaining: Any = [
                {"DeleteRequest": {"Key": _key(base_uri, version)}}
                for version in versions[start : start + _BATCH]
            ]

            def send() -> None:
                nonlocal remaining
                answer = self._send("batch_write_item", RequestItems={self.table: remaining})
                remaining = answer.get("UnprocessedItems", {}).get(self.table, [])
                if remaining:
                    raise TryAgainError(f"{len(remaining)} items are not deleted yet")

            retrying.with_retries(send, f"the deletion of {len(remaining)} items", self.where)

    def _put(self, what: str, base_uri: str, item: ManifestItem, condition: str) -> bool:
        answer = self._request(
            what,
            "put_item",
            Item=_attributes(base_uri, item),
            ConditionExpression=condition,
        )
        return answer is not _CONDITION_FAILED

    def _pages(self, base_uri: str) -> Iterator[list[Any]]:
        start: dict[str, Any] = {}
        while True:
            answer = self._query("all items", base_uri, **start)
            yield answer["Items"]
            if "LastEvaluatedKey" not in answer:
                return
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def _query(self, what: str, base_uri: str, **options: Any) -> Any:
        return self._request(
            what,
            "query",
            KeyConditionExpression="base_uri = :base_uri",
            ExpressionAttributeValues={":base_uri": {"S": base_uri}},
            ConsistentRead=True,
            **options,
        )

    def _item(self, attributes: Mapping[str, Any]) -> ManifestItem:
        try:
            size = attributes.get("size")
            return ManifestItem(
                int(attributes["version"]["N"]),
                str(attributes["path"]["S"]),
                None if size is None else int(size["N"]),
            )
        except (KeyError, ValueError) as error:
            raise CorruptDataError(
                f"an item of {self.where} is damaged: expected a number 'version', a string 'path' "
                f"and a number 'size', but it is {dict(attributes)!r:.500}"
            ) from error

    def _request(self, what: str, operation: str, **parameters: Any) -> Any:
        def once() -> Any:
            return self._send(operation, TableName=self.table, **parameters)

        return retrying.with_retries(once, what, self.where)

    def _request_in_transaction(self, what: str, operation: str, **parameters: Any) -> Any:
        return retrying.with_retries(lambda: self._send(operation, **parameters), what, self.where)

    def _send(self, operation: str, **parameters: Any) -> Any:
        client = _checked_client(self)
        try:
            answer = _answer(self, lambda: getattr(client, operation)(**parameters))
            _check_is_complete(operation, answer)
            return answer
        except _CredentialsRejectedError as error:
            if self.key is not None:
                raise
            # A new client lets botocore find new credentials.
            _drop(self, client)
            raise TryAgainError(str(error)) from error


class _CredentialsRejectedError(StoreRefusedError):
    """The credentials are unknown or expired."""


_CONDITION_FAILED: Final[Mapping[str, Any]] = {}


_REASONS: Final = "reasons"
_CONDITION_OF_ONE_FAILED: Final = "ConditionalCheckFailed"


def _key(base_uri: str, version: int) -> dict[str, Any]:
    return {"base_uri": {"S": base_uri}, "version": {"N": str(version)}}


def _attributes(base_uri: str, item: ManifestItem) -> dict[str, Any]:
    attributes = {
        **_key(base_uri, item.version),
        "path": {"S": item.path},
        "committer": {"S": COMMITTER},
    }
    if item.size_bytes is not None:
        attributes["size"] = {"N": str(item.size_bytes)}
    return attributes


def _answer(manifests: DynamoDBManifests, request: Callable[[], Any]) -> Any:
    """Send a request; return its answer or `_CONDITION_FAILED`, or raise the error in the answer.

    Raises:
        TryAgainError: The same request may succeed later.
        StoreRefusedError: The same request will not succeed.
    """
    from botocore.exceptions import (
        BotoCoreError,
        ChecksumError,
        ClientError,
        HTTPClientError,
        IncompleteReadError,
    )
    from botocore.parsers import ResponseParserError

    try:
        return request()
    except ClientError as error:
        problem = error.response.get("Error", {})
        code, message = str(problem.get("Code", "?")), str(problem.get("Message", ""))
        if code == "ConditionalCheckFailedException":
            return _CONDITION_FAILED
        if code == "TransactionCanceledException":
            reasons = _reasons_of(error.response)
            if _CONDITION_OF_ONE_FAILED in reasons:
                return {_REASONS: reasons}
            if any(reason in _RETRYABLE_IN_TRANSACTION for reason in reasons):
                raise TryAgainError(f"{code}: {message}") from error
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _RETRYABLE or status >= 500 or status == 429:
            raise TryAgainError(f"{status} {code}: {message}") from error
        hint = (
            ". Create the table as docs/operations/stores.md describes"
            if code == "ResourceNotFoundException"
            else ""
        )
        kind = _CredentialsRejectedError if code in _REJECTED_CREDENTIALS else StoreRefusedError
        raise kind(
            f"{manifests.where} refused a request: {status} {code}: {message}{hint}"
        ) from error
    except (HTTPClientError, ChecksumError, IncompleteReadError, ResponseParserError) as error:
        # There is no connection, it was interrupted, or the answer is damaged.
        raise TryAgainError(f"{type(error).__name__}: {error}") from error
    except BotoCoreError as error:  # no credentials, no region, or a parameter of the wrong type
        raise StoreRefusedError(f"no request can be sent to {manifests.where}: {error}") from error


_RETRYABLE_IN_TRANSACTION: Final = {
    "ProvisionedThroughputExceeded",
    "ThrottlingError",
    "TransactionConflict",
}


def _reasons_of(response: Mapping[str, Any]) -> list[str]:
    """Return the reason by which each item of a transaction canceled it, or "None"."""
    return [str(reason.get("Code", "None")) for reason in response.get("CancellationReasons", ())]


def _check_is_complete(operation: str, answer: Mapping[str, Any]) -> None:
    """Check that an answer without content is complete.

    botocore parses an empty body as an empty object, which is also the answer to a PutItem, and to
    a GetItem of an item that does not exist. The answers to a Query and a TransactGetItems always
    have a list.

    Raises:
        TryAgainError: The body was lost.
    """
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    is_empty_object = headers.get("content-length", _EMPTY_OBJECT) == _EMPTY_OBJECT
    has_content = bool(answer.keys() - {"ResponseMetadata"})
    expected = _CONTENT.get(operation)
    if not (has_content or is_empty_object) or (expected and expected not in answer):
        raise TryAgainError(f"the answer to {operation} is empty")


_EMPTY_OBJECT: Final = str(len("{}"))
_CONTENT: Final = {"query": "Items", "transact_get_items": "Responses"}


# --- clients: one per process and set of settings

_clients: ConnectionCache[DynamoDBManifests, Any] = ConnectionCache(lambda client: client.close())
_lock = threading.Lock()


def _checked_client(manifests: DynamoDBManifests) -> Any:
    """Return a client, after checking the table's keys."""
    with _lock:
        client = _clients.get(manifests)
        if client is None:
            client = _new_client(manifests)
            answer = _answer(manifests, lambda: client.describe_table(TableName=manifests.table))
            _check_is_complete("describe_table", answer)
            _check_keys(manifests, answer["Table"])
            _clients[manifests] = client
        return client


def _drop(manifests: DynamoDBManifests, client: Any) -> None:
    """Remove a client from the cache, unless another thread has done so."""
    with _lock:
        if _clients.get(manifests) is client:
            del _clients[manifests]


def _new_client(manifests: DynamoDBManifests) -> Any:
    with requires_extra("s3", manifests.where):
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        from lance_stream.storage.engine.aws import SharingSession
    try:
        return SharingSession(profile=manifests.profile).create_client(
            "dynamodb",
            region_name=manifests.region,
            endpoint_url=manifests.endpoint,
            aws_access_key_id=manifests.key,
            aws_secret_access_key=manifests.secret,
            aws_session_token=manifests.token,
            config=Config(
                retries={"total_max_attempts": 1},
                connect_timeout=retrying.POLICY.connect_seconds,
                read_timeout=retrying.POLICY.request_seconds,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidInputError(
            f"no client can be created for {manifests.where}: {error}"
        ) from error


def _check_keys(manifests: DynamoDBManifests, table: Mapping[str, Any]) -> None:
    keys = {entry["KeyType"]: entry["AttributeName"] for entry in table.get("KeySchema", ())}
    types = {
        entry["AttributeName"]: entry["AttributeType"]
        for entry in table.get("AttributeDefinitions", ())
    }
    actual = {key: (name, types.get(name, "?")) for key, name in keys.items()}
    if actual != _KEYS:
        raise InvalidInputError(
            f"{manifests.where} must have the HASH key 'base_uri' of type S and the RANGE key "
            "'version' of type N to store manifests; it has "
            + ", ".join(f"{key} {name!r} of type {kind}" for key, (name, kind) in actual.items())
        )


def _reset_after_fork() -> None:
    global _lock, _clients  # the parent may have held the lock when it forked
    _inherited.append(_clients)  # not closed here: the parent still uses them
    _lock, _clients = threading.Lock(), ConnectionCache(lambda client: client.close())


_inherited: list[Any] = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
