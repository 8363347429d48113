#!/usr/bin/env python3
"""memhook's MCP server with the clients it is for: the official Python SDK, and Claude Code itself; and what a session's start tells the model.

    mcp_client.py                       all of it; --only sdk | client
    mcp_client.py --client 2.1.332      one client version

The SDK (the package `mcp`, Python 3.10 or newer) goes into a virtual environment in a temporary folder, which is removed again. For the client, what is needed is
that of client_sessions.py, beside this. What is missing is printed; the exit status is 77 where nothing could be run.

Checked with the SDK: the handshake, the tools with their schemas, search, get and save (it checks structured content), a failing tool, wrong
arguments, an unknown tool, and that all goes on after each. With the client: `claude mcp list` says that the server is connected; a tool call of
the model gets the memory; and a second session's first request answers by itself what is open here and what was done last.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import client_sessions as live

SDK = '''
import asyncio, json, sys
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

def plain(value):
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)

async def tell(session, name, arguments):
    """What a call gives: its result, or {"error"}."""
    try:
        return plain(await session.call_tool(name, arguments))
    except Exception as error:
        return {"error": "%s: %s" % (type(error).__name__, error)}

async def main(command):
    async with stdio_client(StdioServerParameters(command=command[0], args=command[1:], env=ENV, cwd=CWD)) as (read, write):
        async with ClientSession(read, write) as session:
            out = {"initialize": plain(await session.initialize()), "tools": plain(await session.list_tools())["tools"]}
            calls = [("save", "memory_save", {"text": "Deploys only on Tuesdays", "title": "Deploys"}), ("search", "memory_search", {"query": "when do we deploy"}),
                     ("nobody", "memory_search", {"query": "zzzz", "source": "dreams"}), ("outside", "memory_get", {"path": "../../etc/passwd"}),
                     ("wrong", "memory_search", {"query": 7}), ("unknown", "rm", {}), ("odd", "memory_search", {"query": 'NEAR( " 测试'})]
            for name, tool, arguments in calls:
                out[name] = await tell(session, tool, arguments)
            out["get"] = await tell(session, "memory_get", {"id": out["save"]["structuredContent"]["id"][:8], "from": 1, "lines": 30})
            print(json.dumps(out))

ENV, CWD = json.loads(sys.argv[1]), sys.argv[2]
asyncio.run(main(sys.argv[3:]))
'''


def sdk(root, program):
    """-> (what is wrong, which SDK), or (None, why it could not be tried)."""
    python = os.path.join(root, "venv", "bin", "python")
    if sys.version_info < (3, 10):
        return None, "the SDK needs Python 3.10"
    for command in ([sys.executable, "-m", "venv", os.path.join(root, "venv")], [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "mcp"]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return None, "the SDK cannot be installed: %s" % (done.stderr.strip().split("\n")[-1])
    version = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('mcp'))"], capture_output=True, text=True).stdout.strip()
    project = os.path.join(root, "project")
    os.makedirs(project)
    env = {"HOME": root, "PATH": os.environ["PATH"], "MEMHOOK_AUTODRAIN": "0"}
    subprocess.run([sys.executable, program, "install", "--consent", "I CONSENT", "--no-mcp"], env=env, cwd=project, check=True, capture_output=True)
    done = subprocess.run([python, "-c", SDK, json.dumps(env), project, sys.executable, program, "mcp"], capture_output=True, text=True, timeout=120)
    if done.returncode:
        return ["the SDK's client failed: %s" % done.stderr[-1500:]], version
    out = json.loads(done.stdout)
    found = out["search"].get("structuredContent", {}).get("results", [])
    checks = {
        "the server's name": out["initialize"]["serverInfo"]["name"] == "memhook",
        "three tools with schemas": sorted(tool["name"] for tool in out["tools"] if tool["inputSchema"]["type"] == "object") == ["memory_get", "memory_save", "memory_search"],
        "annotations": all("readOnlyHint" in tool["annotations"] for tool in out["tools"]),
        "save": out["save"].get("structuredContent", {}).get("saved") is True,
        "search": bool(found) and found[0]["title"] == "Deploys" and json.loads(out["search"]["content"][0]["text"]) == out["search"]["structuredContent"],
        "get": "Tuesdays" in out["get"].get("structuredContent", {}).get("text", ""),
        "a failing tool is a result": out["nobody"].get("isError") is True and out["outside"].get("isError") is True,
        "wrong arguments are an error": "query must be a string" in out["wrong"].get("error", ""),
        "an unknown tool is an error": "no tool" in out["unknown"].get("error", ""),
        "any text is a query": isinstance(out["odd"].get("structuredContent", {}).get("results"), list),
    }
    return ["%s: %s" % (name, json.dumps(out)[:3000]) for name, right in checks.items() if not right], version


def bodies(box):
    """The body of every request that the model would have seen."""
    return [pathlib.Path(path).read_text("utf-8") for path in sorted(pathlib.Path(box.env.api).glob("req_*.json"))]


def said_to_model(body):
    """All text of a request's messages and system prompt, as the model reads it."""
    stored = json.loads(body)
    stored = stored.get("body", stored)
    found = []

    def collect(value):
        if isinstance(value, dict):
            [collect(inner) for inner in value.values()]
        elif isinstance(value, list):
            [collect(inner) for inner in value]
        elif isinstance(value, str):
            found.append(value)
    collect([stored.get("system"), stored.get("messages")])
    return "\n".join(found)


def client(harness, version, options):
    """-> what is wrong."""
    wrong, box = [], live.Box(harness, live.Scenario("mcp", lambda box: None), version, options.program, options.keep)
    try:
        box.p(box.turn("Move the prices to integer cents.", "say Prices are integer cents now; all 41 tests pass. Still open: the invoices table needs a migration."))
        live.wait_for(box.memories, live.DRAIN_SECONDS, "a memory")
        live.wait_for(lambda: not box.processes(b"memhook.py"), 60, "the end of the drain")

        def claude(*args):
            done = subprocess.run([box.env.bin, *args], cwd=box.project, env=box.env.env(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
            return done.stdout + done.stderr
        claude("mcp", "add", "--scope", "user", "memhook", "--", sys.executable, box.installed, "mcp")
        listed = claude("mcp", "list")
        if "memhook" not in listed or "Connected" not in listed:
            wrong.append("claude mcp list: %s" % listed)
        before = len(bodies(box))
        call = 'tool mcp__memhook__memory_search %s' % json.dumps({"query": "integer cents"})
        box.p(box.turn("What is left open here, and what did we do last?", call, "say Thanks."), "--allowedTools=mcp__memhook__memory_search")
        told = [said_to_model(body) for body in bodies(box)[before:]]
        first = next((text for text in told if "What is left open here" in text), "")
        recall = first[first.find("<memhook-recall>"):first.find("</memhook-recall>")] if "<memhook-recall>" in first else ""
        left, _, last = recall.partition("Last sessions, newest first:")
        if "Left open:" not in left or "the invoices table needs a migration" not in left:
            wrong.append("what is left open is not in the first request: %s" % recall[:2000])
        if "integer cents" not in last:
            wrong.append("what was done last is not in the first request: %s" % recall[:2000])
        if not any('\\"results\\"' in body or '"results"' in text for text, body in zip(told, bodies(box)[before:]) if "content_hash" in text):
            wrong.append("the tool's result did not reach the model: %s" % [text[-600:] for text in told])
    except (live.Failed, OSError, ValueError, LookupError, subprocess.TimeoutExpired) as error:
        wrong.append("%s: %s" % (type(error).__name__, error))
    finally:
        box.close()
    return wrong


def report(name, wrong):
    print("%-24s %s%s" % (name, "FAIL" if wrong else "ok", "".join("\n  " + line for line in wrong)), flush=True)
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("sdk", "client"), help="one part")
    parser.add_argument("--client", action="append", help="this client version; may be given again (default: %s)" % ", ".join(live.VERSIONS))
    parser.add_argument("--program", default=str(live.ROOT / "memhook.py"), help="the memhook.py to try")
    parser.add_argument("--keep", action="store_true", help="leave the homes where they are")
    options = parser.parse_args()
    if not options.only:  # each part in a process of its own: the client's goes into a namespace with loopback only, where nothing can be installed
        parts = [subprocess.run([sys.executable, __file__, *sys.argv[1:], "--only", part]).returncode for part in ("sdk", "client")]
        return max(parts, key=(live.NOTHING_RUN, 0, 1).index)
    if options.only == "sdk":
        with tempfile.TemporaryDirectory() as root:
            wrong, which = sdk(root, os.path.abspath(options.program))
        if wrong is None:
            print("not run: " + which)
            return live.NOTHING_RUN
        return int(report("SDK %s" % which, wrong))
    wanted, failed = options.client or list(live.VERSIONS), 0
    harness = live.enter(__file__, wanted)
    if not harness:
        return live.NOTHING_RUN
    for version in live.installed_versions(wanted):
        failed += report("client %s" % version, client(harness, version, options))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
