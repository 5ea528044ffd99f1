"""HDFS: a namenode and a datanode in one Java, on a disk of their own."""

from pathlib import Path

from scripts.check_java import find_java, find_problem
from tests.servers.buckets import new_name
from tests.servers.server import FOLDER, HOST, Server, ask, installation_problem

_LIBRARIES = FOLDER / "hdfs"
_LOGGING = Path(__file__).parent / "hdfs" / "log4j.properties"


class HdfsCluster(Server):
    """HDFS, with WebHDFS on `port`."""

    name = "hdfs"

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why HDFS cannot be started, or None."""
        return installation_problem(cls.name, _LIBRARIES / ".installed") or find_problem()

    def command(self) -> list[str]:
        """Return how HDFS is started."""
        java, _ = find_java()
        assert java is not None
        options = ["-Xmx512m", "-XX:+UseSerialGC", f"-Dlog4j.configuration=file:{_LOGGING}"]
        options.append(f"-Dtest.build.data={self.folder}")
        arguments = ["-format", "-datanodes", "1", "-httpport", str(self.port)]
        arguments += ["-D", "dfs.permissions.enabled=false"]
        manager = "org.apache.hadoop.test.MiniDFSClusterManager"
        return [java, *options, "-cp", f"{_LIBRARIES}/*", manager, *arguments]

    def answers(self) -> bool:
        """Whether files can be written: there is a datanode, and it is no longer too soon."""
        url = f"{self.endpoint}/webhdfs/v1/ready?op=CREATE&overwrite=true&noredirect=true"
        return ask("PUT", url) == 200

    def new_uri(self) -> str:
        """Return the URI of a directory that is not there yet."""
        return f"webhdfs://{HOST}:{self.port}/{new_name()}"
