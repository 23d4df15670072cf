"""Tools of a server that speaks the Model Context Protocol; needs the `mcp` package."""

import asyncio
import json
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from grpo_gym.errors import UsageError
from grpo_gym.tools.deadline import Caller
from grpo_gym.tools.function import NOTHING, read_texts


@dataclass(frozen=True, eq=False)
class RemoteTool:
    """A tool that runs in an MCP server; for `ToolEnv(tools=...)`.

    Attributes:
        name: as the server has it.
        description: as the server has it.
        schema: the JSON schema of the tool, in the form that chat APIs use.
        server: where it runs.
        hidden: nothing: a server sees what the model writes.
    """

    name: str
    description: str
    schema: dict[str, Any]
    server: "MCPTools"
    hidden: Mapping[str, bool] = field(default_factory=dict)

    def run(
        self,
        arguments: Mapping[str, Any],
        *,
        hidden: Mapping[str, Any] = NOTHING,
        seconds: float | None = None,
        untyped: bool = False,
        caller: Caller | None = None,
    ) -> tuple[str, bool]:
        """Have the server run the tool; it validates the arguments. See `Tool.run`."""
        values = read_texts(arguments, self.schema) if untyped else dict(arguments)
        try:
            json.dumps(values).encode("utf-8")
            return self.server.call(self.name, values, seconds)
        except TimeoutError:
            return f"Error: no result in {seconds:g} s", False
        except Exception as error:  # a server that is gone, an answer that is none
            return f"Error: {self.name}: {str(error) or type(error).__name__}", False


class MCPTools:
    """A connection to an MCP server, and its tools.

    ```
    with MCPTools(mcp.StdioServerParameters(command="python", args=["server.py"])) as server:
        env = MyEnv(tools=server.tools)
    ```

    All environments that are given these tools share the server and what it remembers; where the
    tools have state, make a connection for each environment. A server's answers are no pure
    function of the seed unless the server makes them so.

    Args:
        server: what `mcp.Client` takes: `mcp.StdioServerParameters` for a program, a URL, or a
            server in this process.
        start_seconds: how long the server may take to list its tools.

    Attributes:
        tools: the server's tools, in its order.

    Raises:
        UsageError: `mcp` is not installed, or the server does not answer.
    """

    def __init__(self, server: Any, start_seconds: float = 30.0) -> None:
        try:
            mcp = import_module("mcp")
        except ImportError as error:
            raise UsageError(
                "MCP tools need the mcp package: pip install 'grpo-gym[mcp]'"
            ) from error
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._client: Any = None
        listed: Future[list[Any]] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(mcp.Client(server), listed), daemon=True, name="mcp"
        )
        self._thread.start()
        try:
            found = listed.result(start_seconds)
        except Exception as error:  # TimeoutError, or whatever connecting raised
            self.close()
            reason = " ".join(f"{type(error).__name__} {error}".split())
            raise UsageError(f"the MCP server cannot be used: {reason}") from error
        self.tools = tuple(
            RemoteTool(tool.name, _line(tool.description), _schema(tool), self) for tool in found
        )

    def call(self, name: str, arguments: dict[str, Any], seconds: float | None) -> tuple[str, bool]:
        """The text that a tool brings, and whether all went well.

        Raises:
            TimeoutError: It took longer than `seconds`.
        """
        result = self._ask(self._client.call_tool(name, arguments), seconds)
        text = "\n".join(getattr(part, "text", None) or f"[{part.type}]" for part in result.content)
        return (f"Error: {text}", False) if result.is_error else (text, True)

    def close(self) -> None:
        """End the connection; a program that was started for it is stopped."""
        if self._loop is not None and self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has just ended by itself
                self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5.0)

    def __enter__(self) -> "MCPTools":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _ask(self, request: Coroutine[Any, Any, Any], seconds: float | None) -> Any:
        if self._loop is None or not self._thread.is_alive():
            request.close()
            raise ConnectionError("the connection is closed")
        future = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise

    def _run(self, client: Any, listed: "Future[list[Any]]") -> None:
        """The thread: whatever ends the connection, requests that wait for it are cancelled."""
        with suppress(BaseException):
            asyncio.run(self._serve(client, listed))

    async def _serve(self, client: Any, listed: "Future[list[Any]]") -> None:
        """Hold the connection until `close`; it must be opened and closed in one task."""
        self._loop = asyncio.get_running_loop()
        try:
            async with client:
                self._client = client
                page = await client.list_tools()
                tools = list(page.tools)
                while page.next_cursor is not None:
                    page = await client.list_tools(cursor=page.next_cursor)
                    tools += page.tools
                listed.set_result(tools)
                await self._stop.wait()
        except BaseException as error:
            if not listed.done():
                listed.set_exception(error)
            raise


def _schema(tool: Any) -> dict[str, Any]:
    parameters = {"properties": {}, **tool.input_schema}
    function = {"name": tool.name, "description": _line(tool.description), "parameters": parameters}
    return {"type": "function", "function": function}


def _line(description: str | None) -> str:
    return " ".join((description or "").split("\n\n")[0].split())
