"""Vectors: both protocols, batched, cached, retried, of one model and length; what they add to a ranking, and what is left without them."""
import json
import math
import os
import re
import subprocess
import sys
import time

import pytest

import memhook
from conftest import PROGRAM, Box, wait_until
from standins import agree, cut, drip, flood, hang, send, snapshot, status

# what a person may call one thing: the stand-in's vectors know, the words do not
MEANINGS = (("car", "automobile", "vehicle"), ("rain", "weather", "storm"), ("money", "cents", "price"), ("garden", "tomatoes", "plants"))


def meaning(text, dimensions=8):
    """A vector with one dimension a meaning, and a little of the text's own."""
    vector = [0.0] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        for number, words in enumerate(MEANINGS):
            vector[number] += word in words
    vector[4 + len(text) % (dimensions - 4)] += 0.1
    return vector


def vectors(given, dimensions=8):
    """The answer of /v1/embeddings, in an order of its own."""
    rows = [{"object": "embedding", "index": number, "embedding": meaning(text, dimensions)} for number, text in enumerate(given["input"])]
    return {"object": "list", "data": rows[::-1], "model": given["model"]}


@pytest.fixture
def box(tmp_path, serve):
    """A box with an embedder on this machine, agreed to."""
    box = Box(tmp_path).consent()
    box.server = serve(vectors)
    agree(box, "embedder", embedder="http", embedder_url=box.server.url, embedder_model="m1")
    return box


NOTES = ("The automobile is parked behind the house.", "It will rain on the roof all day.", "All amounts are cents.", "The tomatoes need water.", "Nothing of the kind.")


def write(box, name, *lines):
    path = box.home / "memories" / "p" / (name + ".md")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("# %s\n\n%s\n" % (name, "\n".join(lines)), "utf-8")
    return path


def notes(box, texts=NOTES):
    for number, text in enumerate(texts):
        write(box, "note%d" % number, text)


def drain(box):
    return memhook.drain(box.api, memhook.read_consent(box.api))


def find(box, query, limit=5, **scope):
    return memhook.search_all_ways(box.api, query, memhook.Scope(**scope), limit)


def rows(box, query="SELECT count(*), count(DISTINCT model), min(length(vector)), max(length(vector)) FROM chunks JOIN embedding_cache USING (hash)"):
    with memhook.open_index(box.api) as index:
        return index.db.execute(query).fetchall()


def texts(box):
    return [text for request in box.server.requests for text in request["json"]["input"]]


def usage(box):
    return memhook.read_usage(box.api, "embedder")


# ---- an answer

def test_vectors_come_in_the_order_of_the_texts_and_have_length_1():
    answer = {"data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4.0]}]}
    assert [list(vector) for vector in memhook.parse_vectors(answer, 2)] == [pytest.approx([0.6, 0.8]), [0, 1]]
    assert [list(vector) for vector in memhook.parse_vectors({"embeddings": [[0, 0]]}, 1)] == [[0, 0]]
    assert memhook.parse_vectors(answer, 2)[0].typecode == "f"


@pytest.mark.parametrize("answer", [
    {"data": []}, {"data": [{"index": 0, "embedding": [1]}] * 3}, {"embeddings": [[1]]}, {"embeddings": [[1], [1], [1]]}, {}, [], None, 7, "x", {"data": None},
    {"data": [{"embedding": [1]}] * 2}, {"data": [{"index": 0}, {"index": 1}]}, {"embeddings": [[1, 2], [1]]}, {"embeddings": [[], []]}, {"embeddings": [["1"], ["2"]]},
    {"embeddings": [[float("nan")], [1]]}, {"embeddings": [[float("inf")], [1]]}, {"embeddings": [[1e308], [1e308 * 10]]}, {"embeddings": [[True], [1]]}, {"embeddings": "ab"},
    {"embeddings": {"0": [1], "1": [2]}}, {"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]}, {"data": [{"index": "a", "embedding": [1]}, {"index": 1, "embedding": [1]}]},
], ids=repr)
def test_what_is_not_exactly_the_vectors_asked_for_is_refused(answer):
    with pytest.raises(memhook.ModelFailed):
        memhook.parse_vectors(answer, 2)


# ---- making

def test_a_drain_makes_a_vector_for_each_unit_and_a_search_none_but_its_own(box):
    notes(box)
    drain(box)
    assert rows(box) == [(5, 1, 32, 32)] and len(texts(box)) == 5
    assert box.server.requests[0]["path"] == "/v1/embeddings" and set(box.server.requests[0]["json"]) == {"model", "input"}
    drain(box)
    assert len(box.server.requests) == 1, "nothing is asked for twice"
    write(box, "new", "A storm.")
    find(box, "storm")
    assert texts(box)[5:] == ["storm"]


def test_ollama_is_asked_as_it_wants(box, serve):
    ollama = serve(lambda given: {"model": given["model"], "embeddings": [meaning(text) for text in given["input"]]})
    agree(box, "embedder", embedder_url=ollama.url + "/api/embed")
    notes(box)
    drain(box)
    assert ollama.requests[0]["path"] == "/api/embed" and rows(box) == [(5, 1, 32, 32)]
    assert find(box, "vehicle")["results"][0]["text"].endswith(NOTES[0])


def test_texts_go_in_batches_and_each_text_once(box):
    write(box, "many", *["## Part %d\n\nUnit number %d.\n" % (number, number) for number in range(150)])
    for copy in range(3):
        write(box, "copy%d" % copy).write_text("# Same\n\nThe same words.\n")
    drain(box)
    assert [len(request["json"]["input"]) for request in box.server.requests] == [64, 64, 23]
    assert len(set(texts(box))) == 151 and rows(box)[0][0] == 153


def test_texts_are_clipped_and_redacted_before_they_are_sent(box):
    secret = "ghp_" + "a1B2" * 9
    write(box, "by hand", "my token is %s" % secret)
    write(box, "long", "x" * 9_000)
    drain(box)
    assert secret not in json.dumps(box.server.requests) and max(map(len, texts(box))) <= memhook.EMBED_CHARS


def test_what_had_a_vector_before_gets_it_from_the_cache(box):
    notes(box)
    drain(box)
    os.rename(box.home / "memories/p/note0.md", box.home / "memories/p/renamed.md")  # the heading in it stays
    write(box, "note1", NOTES[1], "", "## More", "", "A storm comes.")
    drain(box)
    assert texts(box)[5:] == ["## More\n\nA storm comes."] and rows(box)[0][0] == 6


def test_another_model_gets_vectors_of_its_own_and_those_of_the_old_are_not_used(box):
    notes(box)
    drain(box)
    box.env["MEMHOOK_EMBEDDER_MODEL"] = "m2"
    found = find(box, "vehicle")
    assert found["mode"] == "text" and "no vectors of m2 yet" in found["notice"]
    drain(box)
    assert len(texts(box)) == 11 and rows(box, "SELECT DISTINCT model FROM embedding_cache") == [("m2",)]
    assert find(box, "vehicle")["mode"] == "vector"


def test_a_model_that_changes_its_length_under_the_same_name_is_noticed_and_all_is_made_anew(box):
    notes(box)
    drain(box)
    box.server.does = lambda given: vectors(given, 12)
    found = find(box, "vehicle")
    assert found["mode"] == "text" and "no vectors" in found["notice"]
    write(box, "new", "A storm.")
    drain(box)
    assert rows(box) == [(6, 1, 48, 48)] and rows(box, "SELECT DISTINCT length(vector) FROM embedding_cache") == [(48,)]
    assert find(box, "vehicle")["results"][0]["text"].endswith(NOTES[0])


def test_reindex_keeps_the_vectors_but_not_those_of_another_length(box):
    notes(box)
    drain(box)
    assert "Indexed 5 memories." in box.run("reindex").stderr
    assert rows(box) == [(5, 1, 32, 32)] and len(texts(box)) == 6, "one request tells how long vectors are now"
    box.server.does = lambda given: vectors(given, 12)
    box.run("reindex")
    assert rows(box) == [(5, 1, 48, 48)] and len(texts(box)) == 12
    assert not [name for name in os.listdir(box.home) if "cache" in name]


def test_reindex_on_a_damaged_index_makes_everything_anew(box):
    notes(box)
    drain(box)
    (box.home / "index.db").write_bytes(b"SQLite format 3\0" + b"x" * 9_000)
    assert "Indexed 5 memories.\n" in box.run("reindex").stderr
    assert rows(box) == [(5, 1, 32, 32)]


def test_reindex_says_so_where_there_are_no_vectors(box):
    notes(box)
    box.server.does = lambda given: status(401)
    assert "no vectors for some units: HTTP status 401" in box.run("reindex").stderr
    assert find(box, "tomatoes")["results"]


def test_a_drain_that_is_killed_keeps_the_batches_it_had(box):
    write(box, "many", *["## Part %d\n\nUnit number %d.\n" % (number, number) for number in range(150)])
    box.server.does = lambda given: vectors(given) if len(box.server.requests) < 3 else hang
    process = subprocess.Popen([sys.executable, str(PROGRAM), "drain"], env=box.env, cwd=box.project, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: len(box.server.requests) >= 3, "the third batch")
    process.kill()
    process.wait()
    assert rows(box)[0][0] == 128
    box.server.does = vectors
    drain(box)
    assert rows(box)[0][0] == 150 and len(box.server.requests[-1]["json"]["input"]) == 22


def test_forget_takes_the_vectors_too(box):
    note = memhook.save_note(box.api, "The automobile of my neighbour.", "Secret", "p")
    notes(box)
    drain(box)
    assert rows(box)[0][0] == 6
    memhook.forget(box.api, [note["id"]])
    assert rows(box) == [(5, 1, 32, 32)] and rows(box, "SELECT count(*) FROM embedding_cache") == [(5,)]


def test_what_is_forgotten_while_the_embedder_thinks_gets_no_vector(box):
    note = memhook.save_note(box.api, "The automobile of my neighbour.", "Secret", "p")
    notes(box)

    def think(given):
        if len(box.server.requests) == 1:
            memhook.forget(box.api, [note["id"]])
        return vectors(given)
    box.server.does = think
    drain(box)
    assert any("neighbour" in text for text in texts(box))
    assert rows(box) == [(5, 1, 32, 32)] and rows(box, "SELECT count(*) FROM embedding_cache") == [(5,)]


def test_the_cap_of_the_day_ends_it_without_a_failure(box):
    notes(box)
    box.env["MEMHOOK_EMBEDDER_CHARS_PER_DAY"] = "60"
    drain(box)
    assert box.server.requests == [] and usage(box)["failures"] == 0
    box.env["MEMHOOK_EMBEDDER_CHARS_PER_DAY"] = "6000"
    drain(box)
    assert usage(box)["calls"] == 1 and usage(box)["chars"] == len("".join(texts(box))) == box.status()["model"]["embedder_chars_today"]


def test_nothing_is_sent_without_a_consent(tmp_path, serve):
    box = Box(tmp_path)
    box.api.create()
    memhook.grant_consent(box.api, "flag")
    server = serve(vectors)
    box.env.update(MEMHOOK_EMBEDDER="http", MEMHOOK_EMBEDDER_URL=server.url)
    notes(box)
    drain(box)
    found = find(box, "tomatoes")
    assert server.requests == [] and found["mode"] == "text" and "not agreed to" in found["notice"] and len(found["results"]) == 1
    box.run("reindex")
    assert server.requests == []


def test_without_an_embedder_nothing_changes(box):
    notes(box)
    del box.env["MEMHOOK_EMBEDDER"]
    drain(box)
    found = find(box, "tomatoes")
    assert box.server.requests == [] and found["mode"] == "text" and "notice" not in found and found["results"][0]["vector_score"] is None


# ---- failures while making

FAILURES = {
    "401": status(401), "html": status(200, "<html>"), "cut": cut, "flood": flood, "redirect": status(308, "", Location="http://127.0.0.1:9/"),
    "few": lambda handler: send(handler, 200, json.dumps({"data": [{"index": 0, "embedding": [1.0]}]})), "none": status(200, '{"data": []}'),
    "nan": status(200, '{"data": [{"index": 0, "embedding": [NaN]}]}'), "error": status(200, '{"error": {"message": "no"}}'),
}


@pytest.mark.parametrize("name", FAILURES)
def test_an_endpoint_that_fails_stores_nothing_and_is_left_alone_for_a_minute(box, name):
    notes(box)
    box.server.does = lambda given: FAILURES[name]
    started = time.monotonic()
    drain(box)
    assert time.monotonic() - started < 20
    row = usage(box)
    assert rows(box)[0][0] == 0 and len(box.server.requests) == 1 and row["failures"] == 1 and 50 < row["not_before"] - time.time() < 61
    drain(box)
    assert len(box.server.requests) == 1
    assert find(box, "tomatoes")["results"], "the words are still there"


def test_what_has_its_vector_keeps_it_when_a_later_batch_fails(box):
    write(box, "many", *["## Part %d\n\nUnit number %d.\n" % (number, number) for number in range(100)])
    box.server.does = lambda given: vectors(given) if len(box.server.requests) < 2 else {"data": []}
    drain(box)
    assert rows(box)[0][0] == 64 and "wrong number of vectors" in usage(box)["why"]


def test_a_busy_endpoint_is_asked_again_after_1_2_and_4_seconds_and_no_more(box):
    notes(box)
    times = []

    def busy(given):
        times.append(time.monotonic())
        return status((429, 500, 503, 502)[len(times) - 1])
    box.server.does = busy
    drain(box)
    assert [round(after - before) for before, after in zip(times, times[1:])] == [1, 2, 4] and len(times) == 4
    assert usage(box)["failures"] == 1 and usage(box)["calls"] == 4 and rows(box)[0][0] == 0


def test_a_busy_endpoint_that_recovers_is_no_failure(box):
    notes(box)
    box.server.does = lambda given: status(429) if len(box.server.requests) == 1 else vectors(given)
    drain(box)
    assert len(box.server.requests) == 2 and usage(box)["failures"] == 0 and rows(box)[0][0] == 5


# ---- ranking

def test_what_the_words_cannot_find_the_vectors_do(box):
    notes(box)
    drain(box)
    found = find(box, "vehicle")
    assert found["mode"] == "vector" and "meaning only" in found["notice"]
    best = found["results"][0]
    assert best["text"].endswith(NOTES[0]) and best["vector_score"] == 1.0 and best["text_score"] == 0.0 and best["confidence"] == "low"
    assert len(found["results"]) == 1, "what has nothing to do with it is not found"
    assert find(box, "xyz")["results"] == []


def test_words_and_vectors_together_put_the_better_one_first(box):
    write(box, "a", "The price of the ticket was high.")
    write(box, "b", "The price of rain, said the poet in the storm, is weather.")
    drain(box)
    found = find(box, "price weather")
    assert found["mode"] == "hybrid" and "notice" not in found
    for result in found["results"]:
        assert result["score"] == pytest.approx(0.5 * result["text_score"] + 0.5 * result["vector_score"], abs=2e-4)
    assert [result["path"] for result in found["results"]] == ["p/b.md", "p/a.md"]


@pytest.mark.parametrize("vector,text", [(0.7, 0.3), (0.3, 0.7), (1.0, 0.0), (0.0, 1.0), (0.5, 0.9)])
def test_the_weights_are_settings(box, vector, text):
    notes(box, NOTES + ("Rain and cents.", "Cents, cents and rain."))
    drain(box)
    box.env.update(MEMHOOK_VECTOR_WEIGHT=str(vector), MEMHOOK_TEXT_WEIGHT=str(text))
    found = find(box, "cents of the weather")
    assert len(found["results"]) >= 3
    for result in found["results"]:
        assert result["score"] == pytest.approx(vector * result["vector_score"] + text * result["text_score"], abs=2e-4)
    assert [result["score"] for result in found["results"]] == sorted((result["score"] for result in found["results"]), reverse=True)


def test_the_setting_of_the_origin_is_one_setting(box):
    """0.7 of the vector, 0.3 of the words, nothing below .35: applied after the two were combined."""
    notes(box, NOTES + ("Rain and cents.", "Cents, cents and rain."))
    drain(box)
    box.env.update(MEMHOOK_VECTOR_WEIGHT="0.7", MEMHOOK_TEXT_WEIGHT="0.3")
    whole = find(box, "cents of the weather", 50)["results"]
    box.env["MEMHOOK_MIN_SCORE"] = "0.35"
    kept = find(box, "cents of the weather", 50)["results"]
    assert 0 < len(kept) < len(whole) and kept == [result for result in whole if result["score"] >= 0.35]
    assert all(result["score"] == pytest.approx(0.7 * result["vector_score"] + 0.3 * result["text_score"], abs=2e-4) for result in kept)
    assert memhook.hybrid_weights(box.api, "session") == memhook.hybrid_weights(box.api, "memory") == (0.7, 0.3)


def test_the_measured_weights_are_the_default(box):
    assert memhook.hybrid_weights(box.api, "session") == (0.3, 0.7) and memhook.hybrid_weights(box.api, "memory") == (0.5, 0.5)
    box.env["MEMHOOK_TEXT_WEIGHT"] = "0.2"
    assert memhook.hybrid_weights(box.api, "session") == pytest.approx((0.8, 0.2))


def test_a_min_score_counts_for_words_alone_too(box):
    notes(box)
    del box.env["MEMHOOK_EMBEDDER"]
    assert find(box, "tomatoes")["results"]
    box.env["MEMHOOK_MIN_SCORE"] = "0.99"
    assert find(box, "tomatoes")["results"] == []


def test_scores_stay_between_0_and_1_and_the_order_is_that_of_the_score(box):
    notes(box, ["Rain %d and money %d in the garden." % (number, number % 7) for number in range(60)])
    drain(box)
    results = find(box, "garden weather money 3", 50)["results"]
    assert results and all(0 <= result[name] <= 1 for result in results for name in ("score", "text_score", "vector_score"))
    assert [result["score"] for result in results] == sorted((result["score"] for result in results), reverse=True)


def test_the_scope_holds_for_what_vectors_find(box):
    for project in ("one", "two"):
        memhook.save_note(box.api, "The automobile of project %s." % project, "Note " + project, project)
    drain(box)
    assert [result["project"] for result in find(box, "vehicle", project="two")["results"]] == ["two"]
    assert find(box, "vehicle", source="session")["results"] == [] and len(find(box, "vehicle", source="memory")["results"]) == 2
    assert find(box, "vehicle", since=time.time() + 99)["results"] == []


def test_a_memory_of_the_team_is_found_by_meaning_from_every_project(box):
    path = box.home / "memories" / "team" / "note.md"
    path.parent.mkdir(parents=True)
    path.write_text('---\nproject: "team"\n---\n# Parking\n\nThe automobile is behind the house.\n', "utf-8")
    drain(box)
    assert [result["project"] for result in find(box, "vehicle", project="/home/ann/shop")["results"]] == ["team"]


def test_a_unit_too_new_to_have_a_vector_is_ranked_by_its_words(box):
    notes(box)
    drain(box)
    write(box, "new", "The tomatoes, the tomatoes!")
    found = find(box, "tomatoes")
    assert {result["path"] for result in found["results"]} == {"p/new.md", "p/note3.md"} and found["mode"] == "hybrid"
    new, = [result for result in found["results"] if result["path"] == "p/new.md"]
    assert new["vector_score"] is None and new["score"] == new["text_score"] and "1 of" in found["notice"] and "memhook drain" in found["notice"]


def test_without_fts5_vectors_still_count(box):
    notes(box)
    drain(box)
    with memhook.open_index(box.api) as index:
        index.db.execute("UPDATE meta SET value = '0' WHERE key = 'full_text'")
    found = find(box, "rain")
    assert found["mode"] == "hybrid" and "no FTS5" in found["notice"] and found["results"][0]["vector_score"] == 1.0
    assert find(box, "vehicle")["mode"] == "vector"


def test_the_command_and_the_mcp_tool_say_the_mode(box):
    notes(box)
    drain(box)
    found = json.loads(box.run("search", "--all", "--json", "rain").stdout)
    assert found["mode"] == "hybrid" and found["results"][0]["text"].endswith(NOTES[1])
    server = memhook.McpServer(box.api, str(box.project))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "memory_search", "arguments": {"query": "vehicle", "project": "all"}}}
    result = server.answer(json.dumps(call).encode())["result"]["structuredContent"]
    assert result["mode"] == "vector" and result["results"][0]["text"].endswith(NOTES[0])


# ---- degraded searches

@pytest.mark.parametrize("does", [status(429), status(500), status(200, "<html>"), status(200, '{"data": []}'), hang, drip, cut], ids=["429", "500", "html", "few", "hang", "drip", "cut"])
def test_a_search_whose_embedder_fails_goes_by_words_says_so_and_the_next_does_not_wait(box, does):
    notes(box)
    drain(box)
    before = len(box.server.requests)
    box.server.does = lambda given: does
    started = time.monotonic()
    found = find(box, "tomatoes")
    assert time.monotonic() - started < memhook.QUERY_SECONDS + 2
    assert found["mode"] == "text" and "by words only: the embedder does not answer" in found["notice"] and found["results"][0]["text"].endswith(NOTES[3])
    assert "failed a moment ago" in find(box, "tomatoes")["notice"] and len(box.server.requests) == before + 1
    box.server.does = vectors
    memhook.change_usage(box.api, "embedder", lambda row: row.update(failed_at=time.time() - 61))
    assert find(box, "tomatoes")["mode"] == "hybrid" and usage(box)["failed_at"] == 0.0 and usage(box)["why"] == ""


def test_a_search_does_not_wait_for_an_embedder_that_is_not_there(box):
    notes(box)
    drain(box)
    box.server.close()
    found = find(box, "tomatoes")
    assert found["mode"] == "text" and found["results"] and "by words only" in found["notice"]


def test_before_the_first_vector_a_search_goes_by_words_and_says_so(box):
    notes(box)
    found = find(box, "tomatoes")
    assert found["mode"] == "text" and "no vectors of m1 yet (memhook drain makes them)" in found["notice"] and found["results"]
    assert [result["score"] for result in found["results"]] == [result["text_score"] for result in found["results"]]


def test_a_home_that_cannot_be_written_is_searched_all_the_same(box):
    notes(box)
    drain(box)
    before = snapshot(box)
    for query in ("tomatoes", "vehicle"):
        find(box, query)
    after = snapshot(box)
    changed = [name for name in set(before) | set(after) if before.get(name) != after.get(name) and not name.startswith("index.db")]
    assert changed == [], "a search that goes well writes no count"


# ---- cost

def test_the_scan_beyond_the_words_is_bounded(box):
    write(box, "many", *["## Part %d\n\nUnit %d.\n" % (number, number) for number in range(2_600)])
    drain(box)
    with memhook.open_index(box.api) as index:
        class Counted:
            def __init__(self, db):
                self.db, self.read = db, 0

            def execute(self, *given):
                for row in self.db.execute(*given):
                    self.read += 1
                    yield row
        meaning_of = memhook.Meaning(box.api, "vehicle")
        counted = type("Opened", (), {"db": Counted(index.db)})()
        vector = meaning_of.query_vector()
        meaning_of._nearest(counted, memhook.Scope(), vector, set())
        assert memhook.SCANNED_VECTORS <= counted.db.read <= memhook.SCANNED_VECTORS + memhook.CANDIDATES


def test_cosines_are_those_of_the_vectors():
    from array import array
    left, right = memhook.unit_vector([1, 2, 3]), memhook.unit_vector([3, 2, 1])
    (_, cosine), = memhook.cosines(left, [(7, array("f", right).tobytes())])
    assert cosine == pytest.approx(10 / 14, abs=1e-6) and math.isclose(sum(number * number for number in left), 1, rel_tol=1e-6)
