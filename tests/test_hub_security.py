"""What a hub does with clients that mean harm: each gets an answer or is hung up on, and the others are served meanwhile."""
import http.client
import json
import pathlib
import random
import socket
import sqlite3
import time

import pytest

import memhook
from hubs import RunningHub

PROBLEM = "application/problem+json"


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with RunningHub(tmp_path_factory.mktemp("hub"), "--quota-max", "0", "--allow-host", "hub.example.org") as hub:
        hub.token("ann")
        hub.admin()
        yield hub
        assert hub.run("audit").returncode == 0


@pytest.fixture(autouse=True)
def still_serves(hub):
    """Whatever a test did: the hub has no bug logged, and takes in and gives out as before."""
    yield
    assert hub.process.poll() is None
    assert hub.ask("GET", "/healthz").status == 200
    assert hub.propose(hub.token("ann"), "Use cents.", id="stays").status == 201
    assert "hub-bug" not in hub.log()


def head(hub, method="GET", path="/healthz", *lines, host="127.0.0.1", token=""):
    """The bytes of a request's head."""
    lines = ["%s %s HTTP/1.1" % (method, path), *(["Host: " + host] if host else []), *(["Authorization: Bearer " + token] if token else []), *lines]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


def code(answer):
    """The status of a raw answer, 0 where the hub just hung up."""
    return int(answer.split(b" ", 2)[1]) if answer else 0


# ---- who asks


def test_without_a_valid_token_everything_but_health_is_401_in_the_same_words(hub):
    hub.run("token", "add", "gone")
    valid, id = hub.token("ann"), hub.token("ann").split("_")[1]
    wrong = {"none": "", "garbage": "x", "another secret": "mhk_%s_%s" % (id, "A" * 43), "cut": valid[:-1], "longer": valid + "A", "no id": "mhk_%s_%s" % ("0" * 12, valid[-43:]),
             "SQL": "mhk_' OR 1=1 --_", "not ASCII": "mhk_%s_%s\xff" % (id, "A" * 42)}
    answers = set()
    for name, token in wrong.items():
        for method, path in (("GET", "/api/candidates"), ("POST", "/api/candidates"), ("GET", "/api/memories?q=x"), ("GET", "/api/receipts"), ("GET", "/api/me"),
                             ("POST", "/api/candidates/stays/promote"), ("POST", "/api/candidates/stays/reject")):
            reply = hub.ask(method, path, token, b"{}" if method == "POST" else None)
            assert (reply.status, reply.headers["WWW-Authenticate"], reply.headers["Content-Type"]) == (401, "Bearer", PROBLEM), name
            answers.add(reply.body)
    assert len(answers) == 1
    for scheme in ("Basic " + valid, valid, "Bearer", "Bearer " + valid + " x"):
        assert hub.ask("GET", "/api/me", Authorization=scheme).status == 401
    assert hub.ask("GET", "/api/me", Authorization="bearer " + valid).status == 200


def test_a_revoked_token_is_refused_from_the_next_request_on(hub):
    token = hub.run("token", "add", "eve").stdout.strip()
    link = http.client.HTTPConnection("127.0.0.1", hub.port)
    link.connect()
    said = []
    for _ in range(2):
        link.request("GET", "/api/me", headers={"Authorization": "Bearer " + token})
        response = link.getresponse()
        response.read()
        said.append(response.status)
        hub.run("token", "revoke", "eve", check=not said[1:])
    link.close()
    assert said == [200, 401]


def test_a_revoked_token_takes_nothing_in_though_it_just_did(hub):
    token = hub.run("token", "add", "mallory").stdout.strip()
    assert hub.propose(token, "Before.").status == 201
    hub.run("token", "revoke", "mallory")
    for content in ("After.", "Before."):
        reply = hub.propose(token, content)
        assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
    again = hub.run("token", "add", "mallory").stdout.strip()
    assert (hub.propose(again, "Again.").status, hub.propose(token, "After.").status) == (201, 401)
    assert {"Before.", "Again."} <= set(hub.statuses()) and "After." not in hub.statuses()
    assert hub.ask("POST", "/api/candidates", token, b"{").status == 401  # known by now, and said before the body is read


@pytest.mark.parametrize("body, more", [(b"{", {}), (b'{"title": 1}', {}), ({"title": "T", "content": "<private>x</private>"}, {}), (b"", {"Content-Length": "999999"})],
                         ids=["no JSON", "no title", "private", "too long"])
def test_a_revoked_token_learns_nothing_of_a_bad_body(hub, body, more):
    token = hub.run("token", "add", "oscar").stdout.strip()
    told = hub.ask("POST", "/api/candidates", token, body, **more).status  # and the hub remembers whose token it is
    hub.run("token", "revoke", "oscar")
    reply = hub.ask("POST", "/api/candidates", token, body, **more)
    assert told in (400, 413, 422) and (reply.status, reply.body) == (401, hub.ask("GET", "/api/me").body)


def test_a_revoked_token_learns_nothing_of_its_quota(tmp_path):
    with RunningHub(tmp_path, "--quota-max", "1") as hub:
        said = [hub.propose(hub.token("ann"), "Number %d." % number).status for number in range(2)]
        hub.run("token", "revoke", "ann")
        assert [*said, hub.propose(hub.token("ann"), "Number 2.").status] == [201, 429, 401]


@pytest.mark.parametrize("verb", ["promote", "reject"])
def test_an_admins_token_that_is_revoked_while_its_request_comes_decides_nothing(hub, verb):
    token = hub.run("token", "add", "trudy", "--role", "admin").stdout.strip()
    id = hub.propose(hub.token("ann"), "Not for Trudy to %s." % verb).json["id"]
    with socket.create_connection(("127.0.0.1", hub.port), timeout=30) as link:
        link.sendall(head(hub, "POST", "/api/candidates/%s/%s" % (id, verb), "Content-Length: 2", "Expect: 100-continue", token=token) + b"{")
        assert code(link.recv(65_536)) == 100  # the token was looked at
        hub.run("token", "revoke", "trudy")
        link.sendall(b"}")
        assert code(link.recv(65_536)) == 401
    assert hub.statuses()["Not for Trudy to %s." % verb] == "inbox"


def test_a_token_is_shown_once_and_kept_only_as_its_hash(hub):
    token = hub.run("token", "add", "once").stdout.strip()
    assert hub.ask("GET", "/api/me", token).json == {"name": "once", "tenant": "team", "role": "member"}
    for path in hub.home.rglob("*"):
        assert path.is_dir() or token[-20:].encode() not in path.read_bytes(), path
    assert memhook.file_hash(token.encode()) in {value for (value,) in hub.sql("SELECT hash FROM tokens")}
    assert token[-20:] not in hub.run("token", "list").stdout + hub.run("token", "list", "--json").stdout
    assert hub.run("token", "add", "once", check=False).returncode == 1


def test_a_member_can_only_propose(hub):
    ann = hub.token("ann")
    id = hub.propose(ann, "To be decided by others.").json["id"]
    for verb in ("promote", "reject"):
        for name in (id, "nothing"):  # nor does it learn what there is
            reply = hub.ask("POST", "/api/candidates/%s/%s" % (name, verb), ann)
            assert (reply.status, reply.json["detail"]) == (403, "an admin's token is needed")
    assert hub.statuses()["To be decided by others."] == "inbox"


def test_ids_of_another_tenant_are_404_as_if_there_were_none(hub):
    id = hub.propose(hub.token("ann"), "Of the first tenant.").json["id"]
    for verb in ("promote", "reject"):
        reply = hub.ask("POST", "/api/candidates/%s/%s" % (id, verb), hub.admin("others"))
        assert (reply.status, reply.body) == (404, hub.ask("POST", "/api/candidates/nothing/" + verb, hub.admin("others")).body)
    assert hub.statuses()["Of the first tenant."] == "inbox"


def test_a_foreign_host_or_origin_is_403(hub):
    for host, status in (("evil.example", 403), ("127.0.0.1.evil.example", 403), ("127.0.0.1@evil.example", 403), ("", 400), ("localhost:1", 200), ("[::1]:8377", 200),
                         ("hub.example.org", 200), ("HUB.example.org:443", 200), ("hub.example.org.evil", 403), ("0.0.0.0", 403), ("169.254.169.254", 403)):
        assert code(hub.raw(head(hub, host=host))) == status, host
    assert hub.ask("POST", "/api/candidates", hub.token("ann"), {"title": "T", "content": "From a page."}, Origin="https://evil.example").status == 403
    assert "From a page." not in hub.statuses()
    reply = hub.ask("OPTIONS", "/api/candidates", **{"Origin": "http://localhost", "Access-Control-Request-Method": "POST"})
    assert reply.status == 405 and not [name for name in reply.headers if name.lower().startswith("access-control")]


def test_a_name_to_answer_to_that_is_none_is_refused_and_so_is_a_quota(bare):
    """It must not become the name of every Host and Origin that cannot be read."""
    for name in ("https://hub.example.org/", "", "a b"):
        done = bare.run("hub", "serve", "--port", "0", "--allow-host", name, check=False, timeout=20)
        assert done.returncode == 2 and "no host name" in done.stderr, name
    for quota in (["--quota-max", "-1"], ["--quota-window", "0"], ["--quota-window", "nan"]):
        assert bare.run("hub", "serve", "--port", "0", *quota, check=False, timeout=20).returncode == 2, quota
    assert not bare.home.exists()


# ---- bodies


def memory_kb(hub):
    """The most memory the hub ever had."""
    return int(next(line.split()[1] for line in pathlib.Path("/proc/%d/status" % hub.process.pid).read_text().splitlines() if line.startswith("VmHWM")))


def test_a_body_of_100_mb_is_413_and_never_in_memory(hub):
    before = memory_kb(hub)
    with socket.create_connection(("127.0.0.1", hub.port), timeout=30) as link:
        link.sendall(head(hub, "POST", "/api/candidates", "Content-Length: 100000000", token=hub.token("ann")))
        try:
            for _ in range(100):
                link.sendall(b" " * 1_000_000)
        except OSError:
            pass  # it hung up, as it may
        try:
            answer = link.recv(65_536)
        except OSError:
            answer = b""
    assert code(answer) in (413, 0)
    assert hub.ask("POST", "/api/candidates", hub.token("ann"), b" " * 1_000_000).status == 413
    assert memory_kb(hub) - before < 20_000
    for length, status in (("262145", 413), ("9" * 18, 413), ("9" * 40, 400), ("-1", 400), ("+5", 400), ("0x10", 400), ("5, 5", 400), ("", 411), ("\xb2", 400)):
        assert code(hub.raw(head(hub, "POST", "/api/candidates", "Content-Length: " + length, token=hub.token("ann")))) == status, length


def test_a_chunked_body_or_one_without_a_length_is_411(hub):
    for lines in (["Transfer-Encoding: chunked"], ["Transfer-Encoding: gzip, chunked"], ["Transfer-Encoding: identity"], ["X-Nothing: 1"], ["Transfer-Encoding: chunked", "Content-Length: 5"]):
        assert code(hub.raw(head(hub, "POST", "/api/candidates", *lines, token=hub.token("ann")) + b"5\r\n{\"a\":\r\n0\r\n\r\n")) == 411, lines


def drip(link):
    """Send one more byte; -> the status where the hub answers already, 0 where it has hung up, None where it waits."""
    try:
        link.sendall(b"x")
        link.setblocking(False)
        return code(link.recv(65_536))
    except BlockingIOError:
        return None
    except OSError:
        return 0
    finally:
        link.setblocking(True)


def test_slow_heads_and_bodies_make_room_for_others_the_oldest_first(hub):
    starts = [head(hub, "POST", "/api/candidates", "Content-Length: 5000", token=hub.token("ann")), b"GET /healthz HTTP/1.1\r\n"]
    links, ended = [], {}
    for number in range(2 * memhook.HUB_THREADS):
        links.append(socket.create_connection(("127.0.0.1", hub.port), timeout=30))
        links[-1].sendall(starts[number % 2])
    for _ in range(8):
        assert hub.ask("GET", "/healthz").status == 200
        for number in set(range(len(links))) - set(ended):
            status = drip(links[number])
            ended.update({} if status is None else {number: status})
        time.sleep(0.1)
    assert set(ended.values()) <= {0, 400} and set(ended) >= set(range(memhook.HUB_THREADS)) and len(ended) < len(links)
    for link in links:
        link.close()


def test_clients_that_do_not_take_their_answers_keep_nobody_out(hub):
    links = []
    for _ in range(memhook.HUB_THREADS):
        links.append(socket.socket())
        links[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        links[-1].connect(("127.0.0.1", hub.port))
        links[-1].setblocking(False)
    statuses, deadline = [], time.monotonic() + 8
    while time.monotonic() < deadline:
        for link in links:
            try:
                link.send(2_000 * head(hub))
            except OSError:
                pass  # nothing more goes in, or it was hung up on
        if time.monotonic() > deadline - 5:  # all that lies between is full of answers by now
            statuses.append(hub.ask("GET", "/healthz").status)
    assert set(statuses) == {200}
    for link in links:
        link.close()


def test_a_request_of_which_nothing_more_comes_is_hung_up_on(hub):
    with socket.create_connection(("127.0.0.1", hub.port), timeout=60) as link:
        link.sendall(b"GET /healthz HTTP/1.1\r\nHost: loc")
        begin = time.monotonic()
        assert link.recv(1) == b"" and time.monotonic() - begin > memhook.HUB_WAIT_SECONDS * 0.7  # a slow but honest client has its time


def test_where_every_thread_is_at_work_one_more_is_503_and_all_others_are_answered(hub):
    token = hub.token("ann")
    body = json.dumps({"title": "T", "content": "While another program writes."}).encode()
    writer = sqlite3.connect(str(hub.path), isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    links = [socket.create_connection(("127.0.0.1", hub.port), timeout=60) for _ in range(memhook.HUB_THREADS)]
    for link in links:
        link.sendall(head(hub, "POST", "/api/candidates", "Content-Length: %d" % len(body), "Connection: close", token=token) + body)
    begin = time.monotonic()
    while hub.ask("GET", "/healthz").status == 200 and time.monotonic() - begin < 5:
        time.sleep(0.05)  # until the last of them is read
    reply = hub.ask("GET", "/healthz")
    assert (reply.status, reply.headers["Content-Type"], reply.headers["Retry-After"]) == (503, PROBLEM, "1")
    writer.execute("ROLLBACK")
    writer.close()
    assert [code(link.recv(65_536)) for link in links] == [201] * len(links)
    for link in links:
        link.close()


def test_what_is_no_request_gets_a_problem_too(hub):
    for data, status in ((b"GET / HTTP/2.0\r\n\r\n", 400), (b"BREW /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", 501), (b"x" * 100_000, 431)):
        answer = hub.raw(data)
        assert code(answer) == status and b"Content-Type: application/problem+json\r\n" in answer and b"BREW" not in answer


def test_the_body_is_asked_for_only_where_it_is_wanted(hub):
    lines = ("POST", "/api/candidates", "Expect: 100-continue")
    with socket.create_connection(("127.0.0.1", hub.port), timeout=30) as link:
        link.sendall(head(hub, *lines, "Content-Length: 2", token=hub.token("ann")))
        assert link.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        link.sendall(b"{}")
        assert code(link.recv(65_536)) == 400
    assert code(hub.raw(head(hub, *lines, "Content-Length: 300000", token=hub.token("ann")))) == 413


def test_a_client_that_leaves_before_its_body_is_whole_stores_nothing(hub):
    body = json.dumps({"title": "T", "content": "Half of it."}).encode()
    answer = hub.raw(head(hub, "POST", "/api/candidates", "Content-Length: %d" % (len(body) + 1), token=hub.token("ann")) + body)
    assert code(answer) in (0, 400, 408) and "Half of it." not in hub.statuses()


BAD_BODIES = {
    "empty": b"", "no JSON": b"{", "no object": b"[1]", "null": b"null", "a number": b"1e999", "NaN": b"NaN", "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"a":' * 40_000 + b"1" + b"}" * 40_000, "deep inside": b'{"title": "T", "content": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "no UTF-8": b'{"title": "T", "content": "\xff\xfe"}', "UTF-16": '{"title": "T", "content": "c"}'.encode("utf-16"), "a list for a string": b'{"title": ["T"], "content": "c"}',
    "a long number": b'{"title": "T", "content": ' + b"9" * 100_000 + b"}", "no title": b'{"content": "c"}', "no content": b'{"title": "T"}', "only space": b'{"title": "T", "content": " \\n"}',
    "a long title": b'{"title": "' + b"T" * 500 + b'", "content": "c"}', "an id with a slash": b'{"title": "T", "content": "c", "id": "../x"}',
    "an id with a NUL": b'{"title": "T", "content": "c", "id": "a\\u0000"}', "an id of 65": b'{"title": "T", "content": "c", "id": "' + b"a" * 65 + b'"}',
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_is_400_and_stores_nothing(hub, name):
    before = hub.statuses()
    reply = hub.ask("POST", "/api/candidates", hub.token("ann"), BAD_BODIES[name])
    assert (reply.status, reply.headers["Content-Type"], reply.json["status"]) == (400, PROBLEM, 400)
    assert hub.statuses() == before


def test_nuls_and_lone_surrogates_in_a_text_do_no_harm(hub):
    reply = hub.ask("POST", "/api/candidates", hub.token("ann"), b'{"title": "a\\u0000b", "content": "before\\u0000after \\ud800 end"}')
    assert reply.status == 201
    (stored,) = [content for content in hub.statuses() if content.startswith("before")]
    assert stored == "beforeafter \ufffd end"


def test_a_candidate_with_a_secret_or_private_text_is_422(hub):
    for content in ("the key is ghp_" + "a1B2c3D4e5F6g7H8i9J0" + "k1L2m3N4o5P6q7R8", "this is <private>mine</private>"):
        reply = hub.propose(hub.token("ann"), content)
        assert reply.status == 422 and content not in hub.statuses() and content not in reply.body.decode()


# ---- targets and heads


def test_path_tricks_find_nothing(hub):
    token = hub.admin()
    for path in ("/", "/api", "/api/", "//api/me", "/api//me", "/api/me/", "/api/../api/me", "/api/%6de", "/api/me%00", "/api/me;x", "/API/ME", "/api/candidates/..%2f..%2fhub.db/promote",
                 "/api/candidates/stays/../stays/promote", "/api/candidates//promote", "/api/candidates/stays/promote/", "/api/candidates/%73tays/promote", "/hub.db", "/../../etc/passwd",
                 "/api/candidates/stays/delete", "/api/candidates/%s/promote" % ("a" * 65), "/.git/config", "/healthz/x"):
        for method in ("GET", "POST"):
            assert code(hub.raw(head(hub, method, path, "Content-Length: 0", token=token))) == 404, path
    for path in ("http://127.0.0.1/api/me", "*", "api/me", "/api/me x", "/api/\x00me", "/api/m\xe9", "/" + "a" * 8_001, "/api/me?\x7f"):
        assert code(hub.raw(head(hub, "GET", path, token=token))) in (400, 404, 431), path
    for method in ("DELETE", "PUT", "PATCH", "HEAD", "TRACE", "CONNECT"):
        assert code(hub.raw(head(hub, method, "/api/candidates", "Content-Length: 0", token=token))) in (405, 501), method
    assert hub.statuses()["Use cents."] == "inbox"


def test_a_head_that_two_programs_could_read_in_two_ways_is_refused(hub):
    body = b'{"title": "T", "content": "Smuggled."}'
    post = ("POST", "/api/candidates")
    length = "Content-Length: %d" % len(body)
    for lines in ((length, "Content-Length: 5"), (length, length), (length, "Transfer-Encoding: chunked"), (length, "Host: evil.example"), (length, " folded: 1"), (length, "Bad Name: 1"),
                  (length, "Content-Length : 5"), (length, ": empty"), (length, "X: a\x00b"), (length, "X: a\nContent-Length: 5"), (length, "X: a\rb"), ("X: a\r" + length,), ("Content-Length: 3 8",)):
        for _ in range(2):  # what came of a head is remembered: not that it was refused, and not as one that was let in
            answer = hub.raw(head(hub, *post, *lines, token=hub.token("ann")) + body)
            assert code(answer) in (400, 411) and answer.count(b"Content-Type:") == 1, lines
    assert "Smuggled." not in hub.statuses()
    for data in (b"\r\n\r\n", b"GET\r\n\r\n", b"GET /healthz HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\r\n\r\n", bytes(range(256)) + b"\r\n\r\n"):
        assert code(hub.raw(data)) in (0, 400, 505), data


def test_a_head_that_ends_before_its_end_decides_nothing(hub):
    id = hub.propose(hub.token("ann"), "Nobody has decided.").json["id"]
    whole = head(hub, "POST", "/api/candidates/%s/promote" % id, "Content-Length: 0", token=hub.admin())
    for length in (len(whole) - 1, len(whole) - 2, len(whole) - 4, len(whole) - 5, 40):
        assert code(hub.raw(whole[:length])) in (0, 400), length
    assert hub.statuses()["Nobody has decided."] == "inbox"


def test_a_head_that_comes_in_two_pieces_is_read_wherever_it_is_cut(hub):
    whole = head(hub, "GET", "/healthz", "Connection: close")
    for cut in [*range(1, 20), *range(len(whole) - 12, len(whole))]:
        with socket.create_connection(("127.0.0.1", hub.port), timeout=30) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.sendall(whole[:cut])
            time.sleep(0.005)
            link.sendall(whole[cut:])
            assert code(link.recv(65_536)) == 200, cut


def test_a_head_without_end_is_refused_and_never_in_memory(hub):
    before = memory_kb(hub)
    assert code(hub.raw(head(hub, "GET", "/healthz", *["X-%d: %s" % (number, "a" * 200) for number in range(60)]))) == 200
    with socket.create_connection(("127.0.0.1", hub.port), timeout=30) as link:
        try:
            link.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
            for _ in range(200):
                link.sendall(b"X-Flood: " + b"a" * 100_000 + b"\r\n")
            answer = link.recv(65_536)
        except OSError:
            answer = b""
    assert code(answer) in (400, 431, 0) and memory_kb(hub) - before < 20_000
    assert code(hub.raw(head(hub, "GET", "/healthz", *["X-%d: a" % number for number in range(300)]))) in (400, 431)


def test_requests_sent_at_once_on_one_connection_are_answered_in_order(hub):
    body = json.dumps({"title": "T", "content": "Pipelined."}).encode()
    token = hub.token("ann")
    data = head(hub, token=token) + head(hub, "POST", "/api/candidates", "Content-Length: %d" % len(body), token=token) + body + head(hub, "GET", "/api/me", "Connection: close", token=token)
    answers = hub.raw(data).split(b"HTTP/1.1 ")[1:]
    assert [answer[:3] for answer in answers] == [b"200", b"201", b"200"] and b'"ann"' in answers[2]


def test_a_connection_ends_where_close_is_one_of_its_options(hub):
    for options, count in (("close", 1), ("keep-alive, Close", 1), ("TE,close", 1), ("keep-alive", 2), ("closed", 2)):
        answers = hub.raw(head(hub, "GET", "/healthz", "Connection: " + options) + head(hub))
        assert answers.count(b" 200 OK\r\n") == count and answers.count(b"Connection: close\r\n") == count % 2, options


# ---- queries


QUERIES = ("'", '"', "';--", "' OR 1=1 --", "x'; DROP TABLE memories; --", '" OR content:*', "NEAR(a b, 2)", "a AND", "NOT", "OR OR OR", "title: cents", "^cents", "cents*", "*", "(((((", ")",
           "a-b", "a:b", "{title content} : cents", "-cents", "+", "%", "\\", "\x00", "cents\x00' OR 1", "\ud83d\ude00", "日本", "", " ", "a " * 2_000, "rank", "rowid:1", "words_1", "content = ''", "[cents]", "cents AND NOT cents")


def test_any_text_is_a_valid_query_and_none_reaches_sql_or_fts(hub):
    from urllib.parse import quote
    token, boss = hub.token("ann"), hub.admin()
    id = hub.propose(token, "About pelicans and cents.").json["id"]
    hub.ask("POST", "/api/candidates/%s/promote" % id, boss)
    tables = hub.sql("SELECT count(*) FROM sqlite_master")
    for query in QUERIES:
        reply = hub.ask("GET", "/api/memories?q=" + quote(query, errors="replace")[:7_900], token)
        assert reply.status == 200, query
        assert {row["id"] for row in reply.json["memories"]} <= {id}, query
    rng = random.Random(1)
    for _ in range(100):
        query = "".join(rng.choice("\"'()*:^-+{}~ANDORNOTNEAR pelicans,\\%_;\x01é") for _ in range(rng.randint(1, 30)))
        assert hub.ask("GET", "/api/memories?q=" + quote(query), token).status == 200, query
    assert hub.ask("GET", "/api/memories?q=pelicans", token).json["memories"][0]["id"] == id
    assert hub.sql("SELECT count(*) FROM sqlite_master") == tables


def test_bad_parameters_are_400(hub):
    token = hub.admin()
    for query in ("since=x", "since=-1", "since=1e3", "since=" + "9" * 30, "limit=x", "limit=-5"):
        assert hub.ask("GET", "/api/memories?" + query, token).status == 400, query
    for query in ("status=nothing", "status=inbox'", "status=", "&".join("a%d=1" % number for number in range(200))):
        assert hub.ask("GET", "/api/candidates?" + query, token).status == 400, query
    assert hub.ask("GET", "/api/candidates?after=%27%20OR%201%3D1&limit=0", token).status == 200
    for number in range(memhook.HUB_PAGE + 1):
        hub.propose(hub.token("ann"), "More than a page: %d." % number)
    assert len(hub.ask("GET", "/api/candidates?limit=1000000", token).json["candidates"]) == memhook.HUB_PAGE


# ---- many of them


def threads_of(hub):
    return int(next(line.split()[1] for line in pathlib.Path("/proc/%d/status" % hub.process.pid).read_text().splitlines() if line.startswith("Threads")))


def test_a_thousand_idle_connections_keep_nobody_out(hub):
    links = []
    try:
        for number in range(1_000):
            links.append(socket.create_connection(("127.0.0.1", hub.port), timeout=30))
            if number % 100 == 99:
                assert hub.ask("GET", "/healthz").status == 200
        for number in range(20):
            assert hub.propose(hub.token("ann"), "Through the crowd %d." % number).status == 201
        assert threads_of(hub) <= memhook.HUB_THREADS + 4
    finally:
        for link in links:
            link.close()
