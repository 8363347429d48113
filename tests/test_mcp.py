"""The MCP server, in raw JSON-RPC: what is answered, what is an error, and that it lives on."""
import json
import subprocess
import sys

import pytest
from conftest import PROGRAM, Box, memhook
from test_index import write
from test_search import KEYS, RESULT


class Client:
    """One server process; send bytes, read the next line."""

    def __init__(self, box):
        self.process = subprocess.Popen([sys.executable, "-I", "-S", "-B", "-c", memhook.BOOT, str(PROGRAM), "mcp"], env=box.env, cwd=box.project,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.number = 0

    def send(self, data):
        self.process.stdin.write(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")
        self.process.stdin.flush()

    def read(self):
        return json.loads(self.process.stdout.readline())

    def ask(self, method, **params):
        self.number += 1
        self.send({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        answer = self.read()
        assert answer["id"] == self.number and answer["jsonrpc"] == "2.0"
        return answer

    def call(self, tool, **arguments):
        return self.ask("tools/call", name=tool, arguments=arguments)

    def lives(self):
        return self.ask("ping")["result"] == {}

    def end(self):
        out, err = self.process.communicate(timeout=30)
        return self.process.returncode, out, err


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    box = Box(tmp_path_factory.mktemp("mcp"))
    box.install()
    key = memhook.this_project(box.api, str(box.project))
    write(box, "p/zebra.md", '---\nid: "aaaaaaaa-0000-5000-8000-000000000000"\nproject: %s\n---\n# Zebra\n\nThe zebra is striped.\nline two\n' % json.dumps(key))
    write(box, "q/lion.md", '---\nproject: "/else"\n---\n# Lion\n\nThe zebra fears the lion.\n')
    client = Client(box)
    client.box = box
    yield client
    assert client.end() == (0, b"", b"")


@pytest.mark.parametrize("asked, given", [(version, version) for version in memhook.PROTOCOLS] + [("1999-01-01", "2025-11-25"), (7, "2025-11-25")])
def test_the_handshake_takes_the_version_that_was_asked_for(server, asked, given):
    result = server.ask("initialize", protocolVersion=asked, capabilities={}, clientInfo={"name": "t", "version": "0"})["result"]
    assert result["protocolVersion"] == given and result["serverInfo"]["name"] == "memhook" and "tools" in result["capabilities"]
    server.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert server.lives()


def test_three_tools_with_schemas_and_annotations(server):
    tools = {tool["name"]: tool for tool in server.ask("tools/list")["result"]["tools"]}
    assert set(tools) == {"memory_search", "memory_get", "memory_save"}
    assert set(tools["memory_search"]["inputSchema"]["properties"]) == {"query", "limit", "project", "source", "since"}
    assert set(tools["memory_get"]["inputSchema"]["properties"]) == {"id", "path", "from", "lines"}
    assert set(tools["memory_save"]["inputSchema"]["properties"]) == {"text", "title"}
    assert [tools[name]["annotations"]["readOnlyHint"] for name in ("memory_search", "memory_get", "memory_save")] == [True, True, False]


def test_search_gives_what_the_command_gives_of_this_project(server):
    result = server.call("memory_search", query="zebra")["result"]
    found = result["structuredContent"]
    assert list(found) == KEYS and [hit["title"] for hit in found["results"]] == ["Zebra"] and set(found["results"][0]) == RESULT
    assert json.loads(result["content"][0]["text"]) == found == json.loads(server.box.run("search", "zebra", "--json").stdout)
    everywhere = server.call("memory_search", query="zebra", project="all", limit=1)["result"]["structuredContent"]["results"]
    assert len(everywhere) == 1
    assert server.call("memory_search", query="lion", project="/else")["result"]["structuredContent"]["results"][0]["title"] == "Lion"


def test_a_search_that_finds_nothing_says_why(server):
    result = server.call("memory_search", query="qqqqwwww")["result"]
    found = result["structuredContent"]
    assert list(found) == KEYS + ["doubt"] and found["results"] == [] and json.loads(result["content"][0]["text"]) == found
    assert found["doubt"].startswith('Nothing found in this project (project "all" searches everywhere): ')
    told = json.loads(server.box.run("search", "qqqqwwww", "--json").stdout)["doubt"]
    assert told == found["doubt"].replace('project "all"', "--all")


def test_the_project_is_that_of_claude_project_dir(server):
    elsewhere = server.box.root / "elsewhere"
    elsewhere.mkdir(exist_ok=True)
    done = subprocess.run([sys.executable, str(PROGRAM), "mcp"], cwd=elsewhere, env={**server.box.env, "CLAUDE_PROJECT_DIR": str(server.box.project)}, capture_output=True,
                          input=b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"memory_search","arguments":{"query":"striped"}}}\n')
    assert json.loads(done.stdout)["result"]["structuredContent"]["results"][0]["title"] == "Zebra"


def test_get_reads_lines_of_a_memory_and_nothing_outside(server):
    result = server.call("memory_get", id="aaaaaaaa", **{"from": 8, "lines": 1})["result"]
    assert result["structuredContent"]["text"] == "line two" and result["isError"] is False
    assert server.call("memory_get", path="q/lion.md")["result"]["structuredContent"]["path"] == "q/lion.md"
    for path in ("../../etc/passwd", "/etc/passwd", "../consent.json"):
        result = server.call("memory_get", path=path)["result"]
        assert result["isError"] is True and "structuredContent" not in result and "no memory" in result["content"][0]["text"]


def test_save_keeps_a_note_of_this_project(server):
    saved = server.call("memory_save", text="Giraffes are tall", title="Giraffes")["result"]["structuredContent"]
    assert server.call("memory_search", query="giraffes")["result"]["structuredContent"]["results"][0]["id"] == saved["id"]


CALL = {"jsonrpc": "2.0", "id": 9, "method": "tools/call"}
WRONG = {
    "not JSON": (b"{nonsense\n", -32700, None), "not UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff"}\n', -32700, None), "nested too deep": (b"[" * 100_000 + b"\n", -32700, None),
    "a list": (b"[]\n", -32600, None), "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]\n', -32600, None), "a number": (b"7\n", -32600, None),
    "no version": (b'{"id":1,"method":"ping"}\n', -32600, None), "no method": (b'{"jsonrpc":"2.0","id":9}\n', -32600, 9), "a method that is no string": (b'{"jsonrpc":"2.0","id":9,"method":7}\n', -32600, 9),
    "a null id": (b'{"jsonrpc":"2.0","id":null,"method":"ping"}\n', -32600, None), "an id that is a list": (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}\n', -32600, None),
    "an unknown method": ({"jsonrpc": "2.0", "id": 9, "method": "server/discover"}, -32601, 9), "params that are a list": ({**CALL, "params": [1]}, -32602, 9),
    "params that are null": ({**CALL, "params": None}, -32602, 9),
    "an unknown tool": ({**CALL, "params": {"name": "rm", "arguments": {}}}, -32602, 9), "no tool": ({**CALL, "params": {}}, -32602, 9),
    "arguments that are a string": ({**CALL, "params": {"name": "memory_search", "arguments": "x"}}, -32602, 9),
    "no query": ({**CALL, "params": {"name": "memory_search", "arguments": {}}}, -32602, 9), "a query that is a number": ({**CALL, "params": {"name": "memory_search", "arguments": {"query": 7}}}, -32602, 9),
    "a limit that is a string": ({**CALL, "params": {"name": "memory_search", "arguments": {"query": "x", "limit": "7"}}}, -32602, 9),
    "neither id nor path": ({**CALL, "params": {"name": "memory_get", "arguments": {}}}, -32602, 9), "no text": ({**CALL, "params": {"name": "memory_save", "arguments": {}}}, -32602, 9),
    "too long": (b'{"jsonrpc":"2.0","id":9,"method":"ping","params":{"x":"' + b"x" * (5 << 20) + b'"}}\n', -32600, None),
}


@pytest.mark.parametrize("message, code, id", WRONG.values(), ids=WRONG)
def test_what_is_wrong_gets_its_error_and_the_server_lives_on(server, message, code, id):
    server.send(message)
    answer = server.read()
    assert (answer["error"]["code"], answer["id"]) == (code, id) and isinstance(answer["error"]["message"], str) and "result" not in answer
    assert server.lives()


@pytest.mark.parametrize("arguments", [{"query": "zebra", "since": "yesterday"}, {"query": "zebra", "source": "dreams"}])
def test_a_tools_failure_is_a_result_that_claude_sees(server, arguments):
    result = server.call("memory_search", **arguments)["result"]
    assert result["isError"] is True and result["content"][0]["text"]


def test_a_tool_that_fails_unexpectedly_is_a_failure_that_claude_sees_and_the_server_lives_on(tmp_path):
    box = Box(tmp_path).consent()
    code = ("import sys; sys.dont_write_bytecode = True; sys.path.insert(0, %r); import memhook\n"
            "def broken(*given): return {}['a secret of a transcript']\n"
            "memhook.search_all_ways = broken\n"
            "sys.exit(memhook.main(['mcp']))" % str(PROGRAM.parent))
    asked = [{"method": "tools/call", "params": {"name": "memory_search", "arguments": {"query": "zebra"}}}, {"method": "ping"}]
    lines = "".join(json.dumps({"jsonrpc": "2.0", "id": id, **message}) + "\n" for id, message in enumerate(asked))
    done = subprocess.run([sys.executable, "-c", code], env=box.env, cwd=box.project, input=lines, capture_output=True, text=True, timeout=60)
    failed, pong = map(json.loads, done.stdout.splitlines())
    assert failed["result"]["isError"] is True and "KeyError" in failed["result"]["content"][0]["text"]
    assert (pong["result"], done.returncode, done.stderr) == ({}, 0, "")
    line = json.loads((box.home / "memhook.log").read_text().splitlines()[-1])
    assert (line["event"], line["tool"], line["error"]) == ("mcp-bug", "memory_search", "KeyError") and line["where"].startswith("broken:")
    assert "secret" not in done.stdout + json.dumps(line)


@pytest.mark.parametrize("arguments", [{"query": ""}, {"query": "zebra", "limit": 0}, {"query": "zebra", "limit": 10 ** 30}, {"query": "zebra", "since": "9999-12-31"}, {"query": "\ud800"},
                                       {"query": "x" * 100_000}, {"query": "zebra", "project": "\ud800"}, {"query": "zebra", "since": "99999y"}, {"query": "zebra", "unknown": 1}])
def test_odd_arguments_are_answered(server, arguments):
    assert "result" in server.call("memory_search", **arguments)
    assert server.lives()


@pytest.mark.parametrize("arguments", [{"id": "aaaaaaaa", "from": 10 ** 30}, {"id": "aaaaaaaa", "from": -1, "lines": -1}, {"path": "p\0x.md"}, {"path": "x" * 10_000}, {"path": "\ud800"}])
def test_odd_places_are_answered(server, arguments):
    assert "result" in server.call("memory_get", **arguments)
    assert server.lives()


@pytest.mark.parametrize("message", [b"\n", b"  \r\n", b'{"jsonrpc":"2.0","method":"notifications/cancelled"}\n', b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b'{"jsonrpc":"2.0","method":"unknown"}\n'])
def test_what_asks_for_nothing_gets_nothing(server, message):
    server.send(message)
    assert server.lives()


def test_requests_in_one_piece_are_answered_in_order(server):
    server.send(b"".join(b'{"jsonrpc":"2.0","id":"r%d","method":"ping"}\r\n' % number for number in range(50)))
    assert [server.read()["id"] for _ in range(50)] == ["r%d" % number for number in range(50)]


def test_a_damaged_index_is_made_anew_under_a_running_server(server):
    (server.box.home / "index.db").write_bytes(b"garbage" * 5_000)
    assert server.call("memory_search", query="zebra")["result"]["structuredContent"]["results"][0]["title"] == "Zebra"


def test_an_unfinished_last_line_ends_the_server_quietly(shelf):
    client = Client(shelf)
    client.send(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    status, out, err = client.end()
    assert (status, err) == (0, b"") and json.loads(out)["id"] == 1


def test_a_client_that_goes_away_ends_the_server(shelf):
    client = Client(shelf)
    client.process.stdout.close()
    client.send({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    client.process.stdin.close()
    assert client.process.wait(30) in (0, 1) and b"Traceback" not in client.process.stderr.read()
    client.process.stderr.close()
