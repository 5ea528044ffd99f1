"""DynamoDB as a manifest store, byte for byte as the reference uses it: both can share a table.

    key           base_uri   S   HASH     the table's key in its bucket: "dir/t.lance"
                  version    N   RANGE
    attributes    path       S            the manifest's key in the bucket
                  size       N            its bytes; older writers left it out
                  committer  S            "lancedb"

    put_if_not_exists   PutItem   attribute_not_exists(base_uri) AND attribute_not_exists(version)
    put_if_exists       PutItem   attribute_exists(base_uri) AND attribute_exists(version)
    get                 GetItem   consistent
    latest              Query     base_uri = :base_uri, backwards, one item, consistent

The table is not created here, because its billing mode is the user's choice:

    aws dynamodb create-table --table-name T --billing-mode PAY_PER_REQUEST \
        --attribute-definitions AttributeName=base_uri,AttributeType=S \
                                AttributeName=version,AttributeType=N \
        --key-schema AttributeName=base_uri,KeyType=HASH AttributeName=version,KeyType=RANGE

Requests are sent by botocore, from the extra "s3", with its own retries off. A client belongs to a
process, and a forked child drops it; the clients of a few settings are kept.

Source:  requests of the reference, recorded; see docs/notes/021-external-manifest-stores.md.
Differs: The types of the keys are checked, too. An `e_tag`, from old writers, is not read.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from lance_stream.commit.manifest_stores import asking
from lance_stream.commit.manifest_stores.kept import Kept
from lance_stream.commit.manifest_stores.protocol import ManifestItem
from lance_stream.errors import CorruptDataError, InvalidInputError, StoreRefusedError
from lance_stream.storage.extras import brought_by
from lance_stream.storage.object_requests import TryAgainError

T = TypeVar("T")

COMMITTER: Final = "lancedb"

_KEYS: Final = {"HASH": ("base_uri", "S"), "RANGE": ("version", "N")}
_AGAIN: Final = {
    "InternalServerError",
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestTimeout",
    "RequestTimeoutException",
    "ServiceUnavailable",
    "ThrottlingException",
    "TransactionInProgressException",
}
_NOT_ACCEPTED: Final = {
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidSignatureException",
    "UnrecognizedClientException",
}
_BATCH: Final = 25


@dataclass(frozen=True)
class DynamoDBManifests:
    """The items in a table of DynamoDB.

    Args:
        table: Its name.
        region: Where it is; None for the environment's.
        endpoint: The service's URL; None for the region's.
        key: The access key's id; None for botocore's own chain of credentials.
        secret: The secret key.
        token: The session's token.
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
        """What kind of store it is."""
        return "dynamodb"

    @property
    def where(self) -> str:
        """Return the store's name for errors."""
        place = self.endpoint or self.region
        return f"the DynamoDB table {self.table!r}" + (f" at {place}" if place else "")

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one; see `ManifestStore.put_if_not_exists`."""
        return self._put(
            f"putting version {item.version}",
            base_uri,
            item,
            "attribute_not_exists(base_uri) AND attribute_not_exists(version)",
        )

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Replace the item of a version; see `ManifestStore.put_if_exists`."""
        return self._put(
            f"putting the final path of version {item.version}",
            base_uri,
            item,
            "attribute_exists(base_uri) AND attribute_exists(version)",
        )

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version; see `ManifestStore.get`."""
        answer = self._ask(
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

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        return [self._item(each) for page in self._pages(base_uri) for each in page]

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions; see `ManifestStore.delete`."""
        for start in range(0, len(versions), _BATCH):
            left: Any = [
                {"DeleteRequest": {"Key": _key(base_uri, version)}}
                for version in versions[start : start + _BATCH]
            ]

            def send() -> None:
                nonlocal left
                answer = self._send("batch_write_item", RequestItems={self.table: left})
                left = answer.get("UnprocessedItems", {}).get(self.table, [])
                if left:
                    raise TryAgainError(f"{len(left)} items were not deleted yet")

            asking.ask_patiently(send, f"the deletion of {len(left)} items", self.where)

    def _put(self, what: str, base_uri: str, item: ManifestItem, condition: str) -> bool:
        attributes = {
            **_key(base_uri, item.version),
            "path": {"S": item.path},
            "committer": {"S": COMMITTER},
        }
        if item.size_bytes is not None:
            attributes["size"] = {"N": str(item.size_bytes)}
        answer = self._ask(what, "put_item", Item=attributes, ConditionExpression=condition)
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
        return self._ask(
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
                f"an item of {self.where} is damaged: it should have a number 'version', a text "
                f"'path' and a number 'size', and is {dict(attributes)!r:.500}"
            ) from error

    def _ask(self, what: str, operation: str, **parameters: Any) -> Any:
        def once() -> Any:
            return self._send(operation, TableName=self.table, **parameters)

        return asking.ask_patiently(once, what, self.where)

    def _send(self, operation: str, **parameters: Any) -> Any:
        client = _checked_client(self)
        try:
            answer = _answer(self, lambda: getattr(client, operation)(**parameters))
            _check_is_whole(operation, answer)
            return answer
        except _NotAcceptedError as error:
            if self.key is not None:
                raise
            # botocore may find others; the first request of the next client finds that out
            _drop(self, client)
            raise TryAgainError(str(error)) from error


class _NotAcceptedError(StoreRefusedError):
    """The credentials are unknown, or have ended."""


_CONDITION_FAILED: Final[Mapping[str, Any]] = {}


def _key(base_uri: str, version: int) -> dict[str, Any]:
    return {"base_uri": {"S": base_uri}, "version": {"N": str(version)}}


def _answer(manifests: DynamoDBManifests, request: Callable[[], Any]) -> Any:
    """Return an answer or `_CONDITION_FAILED`, or raise the error that it contains.

    Raises:
        TryAgainError: The same request may succeed later.
        StoreRefusedError: It will not.
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
        said = error.response.get("Error", {})
        code, message = str(said.get("Code", "?")), str(said.get("Message", ""))
        if code == "ConditionalCheckFailedException":
            return _CONDITION_FAILED
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _AGAIN or status >= 500 or status == 429:
            raise TryAgainError(f"{status} {code}: {message}") from error
        hint = (
            ". Create the table as docs/stores.md describes"
            if code == "ResourceNotFoundException"
            else ""
        )
        kind = _NotAcceptedError if code in _NOT_ACCEPTED else StoreRefusedError
        raise kind(
            f"{manifests.where} refused a request: {status} {code}: {message}{hint}"
        ) from error
    except (HTTPClientError, ChecksumError, IncompleteReadError, ResponseParserError) as error:
        # No connection, or it broke; or the answer is damaged.
        raise TryAgainError(f"{type(error).__name__}: {error}") from error
    except BotoCoreError as error:  # no credentials, no region, a parameter of a wrong kind
        raise StoreRefusedError(f"{manifests.where} cannot be asked: {error}") from error


def _check_is_whole(operation: str, answer: Mapping[str, Any]) -> None:
    """Check that an answer without content was sent without.

    botocore takes a body of no bytes for an empty object, as the answers to a PutItem and to a
    GetItem of an item that does not exist are; to a Query there is always a list, if an empty one.

    Raises:
        TryAgainError: Its body was lost on the way, or the request was never answered.
    """
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    is_empty_object = headers.get("content-length", _EMPTY_OBJECT) == _EMPTY_OBJECT
    has_content = bool(answer.keys() - {"ResponseMetadata"})
    if not (has_content or is_empty_object) or (operation == "query" and "Items" not in answer):
        raise TryAgainError(f"the answer to {operation} has no content")


_EMPTY_OBJECT: Final = str(len("{}"))


# --- clients: one per process and set of settings

_clients: Kept[DynamoDBManifests, Any] = Kept(lambda client: client.close())
_lock = threading.Lock()


def _checked_client(manifests: DynamoDBManifests) -> Any:
    """Return a client, once the table's keys have been checked."""
    with _lock:
        client = _clients.get(manifests)
        if client is None:
            client = _new_client(manifests)
            answer = _answer(manifests, lambda: client.describe_table(TableName=manifests.table))
            _check_is_whole("describe_table", answer)
            _check_keys(manifests, answer["Table"])
            _clients[manifests] = client
        return client


def _drop(manifests: DynamoDBManifests, client: Any) -> None:
    """Forget a client, unless another thread has done so."""
    with _lock:
        if _clients.get(manifests) is client:
            del _clients[manifests]


def _new_client(manifests: DynamoDBManifests) -> Any:
    with brought_by("s3", manifests.where):
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
                connect_timeout=asking.PATIENCE.connect_seconds,
                read_timeout=asking.PATIENCE.request_seconds,
            ),
        )
    except (BotoCoreError, ValueError) as error:
        raise InvalidInputError(f"{manifests.where} cannot be asked: {error}") from error


def _check_keys(manifests: DynamoDBManifests, table: Mapping[str, Any]) -> None:
    keys = {each["KeyType"]: each["AttributeName"] for each in table.get("KeySchema", ())}
    types = {
        each["AttributeName"]: each["AttributeType"]
        for each in table.get("AttributeDefinitions", ())
    }
    found = {key: (name, types.get(name, "?")) for key, name in keys.items()}
    if found != _KEYS:
        raise InvalidInputError(
            f"{manifests.where} must have the HASH key 'base_uri' of type S and the RANGE key "
            "'version' of type N to hold manifests; it has "
            + ", ".join(f"{key} {name!r} of type {kind}" for key, (name, kind) in found.items())
        )


def _forget_all() -> None:
    global _lock, _clients  # the parent may have held the lock at the moment of the fork
    _of_parents.append(_clients)  # not closed here: the parent still uses them
    _lock, _clients = threading.Lock(), Kept(lambda client: client.close())


_of_parents: list[Any] = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
