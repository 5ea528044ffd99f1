"""HDFS by WebHDFS, its web interface: a namenode for names, datanodes for bytes.

    get           GET     op=OPEN       the namenode names a datanode, which has the bytes
    get_end       as head, and then as get
    head          GET     op=GETFILESTATUS
    put           PUT     op=CREATE     of a file aside, by way of a datanode, and then
                  PUT     op=RENAME     to its name
    list_page     GET     op=LISTSTATUS_BATCH, for each directory
    delete        DELETE  op=DELETE
    copy          get and put: HDFS has none
    uploads       each part is a file aside;  POST op=CONCAT makes them one, RENAME gives the name

What makes creating once atomic is RENAME with renameoptions=NONE: the namenode holds its lock, and
answers FileAlreadyExistsException where the name is taken; 16 processes in 200 rounds had one
winner in each (docs/notes/022). CREATE with overwrite=false would not do: the namenode gives the
name away before a datanode has the bytes, so that readers meet half a file, and a writer that dies
leaves it. Nor would pyarrow's HadoopFileSystem: its move deletes the file that is in the way.

Through HttpFS, which knows no renameoptions, creating once holds as well: its RENAME says false
where the name is taken. Replacing a file fails there.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from lance_stream.storage.hdfs.options import WebHdfsSettings
from lance_stream.storage.http_client import Answer, HttpClient
from lance_stream.storage.object_requests import (
    Data,
    MissingError,
    ObjectInfo,
    Page,
    RefusedError,
    TryAgainError,
    Upload,
)

PART_UNIT_BYTES: Final = 64 << 20
"""Each part becomes a block of its own, and a namenode keeps all blocks in memory."""

_LATER = frozenset({"StandbyException", "RetriableException", "SafeModeException",
                    "ObserverRetryOnActiveException", "NotReplicatedYetException"})  # fmt: skip
_TAKEN = "FileAlreadyExistsException"
_MISSING = "FileNotFoundException"
_BYTES = {"Content-Type": "application/octet-stream"}


class WebHdfsRequests:
    """The requests that one namenode answers; see `ObjectRequests`.

    Args:
        settings: How it is reached.
        namenode: Its host and port.
    """

    def __init__(self, settings: WebHdfsSettings, namenode: str) -> None:
        scheme = "https" if settings.scheme == "swebhdfs" else "http"
        self._files = f"{scheme}://{namenode}/webhdfs/v1/"
        self._proof = (
            {"delegation": settings.token} if settings.token else {"user.name": settings.user or ""}
        )
        self._http = HttpClient(
            settings.patience,
            any_certificate=settings.any_certificate,
            proxy_url=settings.proxy_url,
        )

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of a range; see `ObjectRequests.get`."""
        query = {"offset": str(start)}
        if stop is not None:
            query["length"] = str(stop - start)
        answer = await self._ask("GET", key, "OPEN", query)
        if answer.status == 307:
            answer = await self._http.send("GET", answer.headers["Location"], {})
        if answer.status == 403 and "out of the range" in _text(answer):
            return b""
        return self._good(answer).body[: None if stop is None else stop - start]

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of a file, and its size; see `ObjectRequests.get_end`."""
        size = (await self.head(key)).size_bytes
        start = max(size - num_bytes, 0)
        data = await self.get(key, start, size) if start < size else b""
        if len(data) != size - start:
            raise TryAgainError(f"{len(data):,} bytes of {size - start:,}")
        return data, size

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of a file; see `ObjectRequests.head`."""
        said = self._good(await self._ask("GET", key, "GETFILESTATUS")).json()["FileStatus"]
        if said["type"] != "FILE":
            raise MissingError(f"{key} is a directory")
        return _info(key, said)

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write a file; see `ObjectRequests.put`."""
        aside = name_aside(key)
        try:
            await self.create(aside, data)
            return await self.rename(aside, key, once=once)
        except BaseException:
            await self.drop(aside)
            raise

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        """Return files below a directory; see `ObjectRequests.list_page`.

        A page is what the namenode gives at once, 1,000 names as it is set up; with all below the
        directory it is all of them.
        """
        del limit  # a namenode's pages have their own size
        directory = prefix.removesuffix("/")
        found, left, children = await self._names(directory, token)
        if only_here:
            return Page(found, children if left else None)
        folders = [directory]
        found = []
        while folders:
            directory, after = folders.pop(), None
            while True:
                here, left, after = await self._names(directory, after, folders)
                found += here
                if not left:
                    break
        return Page(sorted(found), None)

    async def delete(self, key: str) -> None:
        """Delete a file; see `ObjectRequests.delete`."""
        self._good(await self._ask("DELETE", key, "DELETE", {"recursive": "false"}))

    async def copy(self, source: str, target: str) -> None:
        """Copy a file; see `ObjectRequests.copy`."""
        await self.put(target, await self.get(source, 0, None), once=False)

    async def start_upload(self, key: str, *, once: bool) -> Upload:
        """Begin to send a large file in parts; see `ObjectRequests.start_upload`."""
        return WebHdfsUpload(self, key, once=once)

    async def close(self) -> None:
        """Let connections go."""
        await self._http.close()

    async def create(self, key: str, data: Data) -> None:
        """Write a file that nobody else writes or reads, its directory with it."""
        named = await self._ask("PUT", key, "CREATE", {"overwrite": "true"})
        if named.status != 307:
            raise self._error(named)
        url = named.headers["Location"]
        self._good(await self._http.send("PUT", url, {}, data=data, headers=_BYTES))

    async def rename(self, source: str, target: str, *, once: bool) -> bool:
        """Give a file another name; return False if it is to be taken once, and is taken."""
        query = {"destination": f"/{target}", "renameoptions": "NONE" if once else "OVERWRITE"}
        answer = await self._ask("PUT", source, "RENAME", query)
        if once and _exception(answer) == _TAKEN:
            await self.drop(source)
            return False
        if self._good(answer).json().get("boolean", True):
            return True
        # HttpFS does not say why not
        await self.head(target)
        if not once:
            raise RefusedError(
                f"{target} is there, and this service (HttpFS?) cannot replace a file in one step: "
                "ask the namenode itself"
            )
        await self.drop(source)
        return False

    async def join(self, keys: list[str]) -> None:
        """Append files to the first of them; the others are gone then."""
        sources = ",".join(f"/{key}" for key in keys[1:])
        self._good(await self._ask("POST", keys[0], "CONCAT", {"sources": sources}))

    async def drop(self, key: str) -> None:
        """Delete a file aside, if that can be done."""
        try:
            await self.delete(key)
        except (MissingError, TryAgainError, RefusedError):
            return

    async def _names(
        self, directory: str, after: str | None, folders: list[str] | None = None
    ) -> tuple[list[ObjectInfo], bool, str | None]:
        """Return files of a directory, whether more are left, and the last name that was given."""
        query = {} if after is None else {"startAfter": after}
        answer = await self._ask("GET", directory, "LISTSTATUS_BATCH", query)
        if _exception(answer) == _MISSING:
            return [], False, None
        said = self._good(answer).checked_json("a listing").get("DirectoryListing")
        if not isinstance(said, dict):
            raise TryAgainError(f"a listing without names: {answer.body[:80]!r}")
        found: list[ObjectInfo] = []
        for each in said["partialListing"]["FileStatuses"]["FileStatus"]:
            after = str(each["pathSuffix"])
            path = f"{directory}/{after}" if directory else after
            if each["type"] == "FILE" and after:
                found.append(_info(path, each))
            elif after and folders is not None:
                folders.append(path)
        return found, int(said["remainingEntries"]) > 0, after

    async def _ask(
        self, method: str, key: str, operation: str, query: Mapping[str, str] | None = None
    ) -> Answer:
        return await self._http.send(
            method,
            self._files + quote(key),
            {"op": operation, **self._proof, **(query or {})},
            headers=_BYTES,
        )

    def _good(self, answer: Answer) -> Answer:
        if answer.status not in (200, 201, 206):
            raise self._error(answer)
        return answer

    def _error(self, answer: Answer) -> Exception:
        exception, text = _exception(answer), _text(answer)
        if exception == _MISSING:
            return MissingError(text)
        if exception in _LATER or answer.status in (408, 429) or answer.status >= 500:
            return TryAgainError(text)
        if answer.status in (401, 403):
            return RefusedError(
                f"{text}. If this is for want of permission: name the user in the storage option "
                "user, or, where the cluster wants proof, a delegation token in token"
            )
        return RefusedError(text)


class WebHdfsUpload:
    """Parts as files aside; see `Upload`.

    Args:
        requests: The namenode's.
        key: The file that is to be.
        once: Whether it is not to replace another.
    """

    part_bytes = PART_UNIT_BYTES
    max_parts_at_once = 2

    def __init__(self, requests: WebHdfsRequests, key: str, *, once: bool) -> None:
        self._requests = requests
        self._key = key
        self._once = once
        self._aside = name_aside(key)
        self._begun: set[int] = set()
        self._sizes: dict[int, int] = {}

    async def put_part(self, number: int, data: Data) -> None:
        """Send a part; see `Upload.put_part`."""
        self._begun.add(number)
        await self._requests.create(self._part(number), data)
        self._sizes[number] = len(data)

    async def finish(self, number: int, data: Data) -> bool:
        """Send the last part, and make the file visible; see `Upload.finish`."""
        whole = self._part(0)
        total = len(data) + sum(size for part, size in self._sizes.items() if part < number)
        has_been_joined = (
            number in self._sizes and (await self._requests.head(whole)).size_bytes == total
        )
        if not has_been_joined:
            if data:
                await self.put_part(number, data)
            parts = [self._part(each) for each in sorted(self._sizes)]
            if len(parts) > 1:
                await self._requests.join(parts)
        return await self._requests.rename(whole, self._key, once=self._once)

    async def abort(self) -> None:
        """Leave nothing behind."""
        for number in sorted(self._begun):
            await self._requests.drop(self._part(number))

    def _part(self, number: int) -> str:
        return f"{self._aside}.{number}"


def name_aside(key: str) -> str:
    """Return a name in the directory of a file that nobody else uses."""
    directory, _, name = key.rpartition("/")
    aside = f".{name}.{secrets.token_hex(8)}.tmp"
    return f"{directory}/{aside}" if directory else aside


def _info(key: str, said: Mapping[str, Any]) -> ObjectInfo:
    etag = f"{said['fileId']}-{said['modificationTime']}-{said['length']}"
    return ObjectInfo(key, int(said["length"]), said["modificationTime"] / 1000, etag)


def _exception(answer: Answer) -> str:
    said = answer.json().get("RemoteException")
    return str(said.get("exception")) if isinstance(said, dict) else ""


def _text(answer: Answer) -> str:
    """Return what an answer says, on one line, without Java's stack."""
    said = answer.json().get("RemoteException")
    text = (
        f"{said.get('exception')}: {said.get('message')}"
        if isinstance(said, dict)
        else answer.body[:300].decode("utf-8", "replace")
    )
    return f"{answer.status} {' '.join(text.partition(chr(10) + chr(9) + 'at ')[0].split())[:300]}"
