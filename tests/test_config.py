"""Settings: list, get, set, unset; which wins; what is refused; and the consent that a setting asks for where it sends text away."""
import contextlib
import io
import json
import os
import re
import sys

import pytest

import memhook
from conftest import PROGRAM, Box
from standins import Claude
from terminal import at_terminal

PHRASE = ("--consent", "I CONSENT")
NAMES = list(memhook.SETTINGS)


@pytest.fixture
def box(tmp_path):
    return Box(tmp_path).consent()


def config(box, *args, code=0, asks=False):
    """`memhook config ARGS`; -> (stdout, stderr). Where it `asks` it is a process of its own, without a terminal that could answer."""
    if asks:
        done = box.run("config", *args, check=False, start_new_session=True)
        assert done.returncode == code, done.stderr
        return done.stdout, done.stderr
    before, stdin, out, err = dict(os.environ), sys.stdin, io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    sys.stdin = io.TextIOWrapper(io.BytesIO(), "utf-8")  # pytest's own is none that could be set to UTF-8
    os.environ.clear()
    os.environ.update(box.env)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = memhook.main(["config", *args])
    except SystemExit as error:
        ended = error.code
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(before)
    said = [(stream.flush(), stream.buffer.getvalue().decode("utf-8"))[1] for stream in (out, err)]
    assert ended == code and "bug" not in said[1], said
    return said[0], said[1]


def stored(box):
    path = box.home / "config.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def agreed(box):
    """Role -> place -> when, as consent.json has it; None where no model was ever agreed to."""
    return json.loads((box.home / "consent.json").read_text()).get("model", {}).get("agreed")


def places(box):
    """[role, place] of each consent to a model."""
    found = agreed(box)
    return found if found is None else [[role, place] for role, given in found.items() for place in given]


# ---- list, get, set, unset

def test_list_shows_every_setting_with_its_value_and_where_that_comes_from(box):
    (box.home / "config.json").write_text('{"max_results": 9, "recall": "off"}')
    box.env["MEMHOOK_RECALL"] = "on"
    lines = [" ".join(line.split()) for line in config(box, "list")[0].splitlines()]
    assert [line.split()[0] for line in lines] == NAMES
    assert "max_results 9 file results of a search" in lines and "quota_max 60 default segments that hooks may queue in a window" in lines
    assert any(line.startswith("recall on environment on, or off: ") for line in lines)
    assert config(box) == config(box, "list")
    found = json.loads(config(box, "list", "--json")[0])
    assert list(found) == NAMES and found["max_results"] == {"value": 9, "source": "file", "default": 6}


LONG_URL = "https://a-rather-long-name-of-a-machine.europe-west.example.com:8443/tenants/0001/openai/v1"


def at_width(box, columns):
    """`config list` at a terminal of so many columns; -> its lines."""
    status, shown = at_terminal([sys.executable, PROGRAM, "config", "list"], {**box.env, "COLUMNS": str(columns)}, box.root, None)
    assert status == 0
    return shown.splitlines()


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 200])
def test_at_a_terminal_the_list_keeps_to_its_width_and_its_columns(box, columns):
    box.env["MEMHOOK_EMBEDDER_URL"] = LONG_URL
    lines = at_width(box, columns)
    assert max(map(len, lines)) <= max(columns, 80)
    heads = [line for line in lines if not line.startswith(" ")]
    assert [line.split()[0] for line in heads] == NAMES
    assert {re.search(r" (?:default|environment)(?: |$)", line).start() for line in heads} == {24 + 32}
    first = next(number for number, line in enumerate(lines) if line.startswith("embedder_url"))
    assert "".join(line[24:56].strip() for line in lines[first:first + 3]) == LONG_URL
    assert (len(lines) < 2 * len(NAMES)) == (columns >= 120), "the meaning stands beside the values where there is room"


def test_elsewhere_a_setting_is_one_line_and_the_columns_stand_below_each_other(box):
    box.env["MEMHOOK_EMBEDDER_URL"] = LONG_URL
    lines = config(box, "list")[0].splitlines()
    assert len(lines) == len(NAMES) and any(LONG_URL in line for line in lines)
    assert len({re.search(r" (?:default|environment)  *", line).start() for line in lines}) == 1


def test_a_setting_is_set_read_and_unset(box):
    assert config(box, "get", "max_results") == ("6\n", "")
    assert config(box, "set", "max_results", "12") == ("", "max_results is 12\n")
    assert stored(box) == {"max_results": 12} and config(box, "get", "max_results")[0] == "12\n"
    assert json.loads(config(box, "get", "max_results", "--json")[0]) == {"key": "max_results", "value": 12, "source": "file"}
    config(box, "set", "recall", "off")
    config(box, "unset", "max_results")
    assert stored(box) == {"recall": "off"} and config(box, "get", "max_results")[0] == "6\n"
    assert config(box, "unset", "max_results") == ("", "max_results is 6\n")
    assert os.stat(box.home / "config.json").st_mode & 0o777 == 0o600


def test_the_environment_wins_over_the_file_and_set_says_so(box):
    box.env["MEMHOOK_MAX_RESULTS"] = "3"
    assert config(box, "set", "max_results", "12")[1] == "max_results is 3, but MEMHOOK_MAX_RESULTS in the environment wins over it\n"
    assert config(box, "get", "max_results")[0] == "3\n" and stored(box) == {"max_results": 12}
    del box.env["MEMHOOK_MAX_RESULTS"]
    assert config(box, "get", "max_results")[0] == "12\n"


@pytest.mark.parametrize("key", ["MAX_RESULTS", "max-results", "memhook_max_results", "MEMHOOK_MAX_RESULTS"])
def test_a_key_may_be_spelt_as_in_the_environment_or_with_hyphens(box, key):
    config(box, "set", key, "4")
    assert stored(box) == {"max_results": 4}


def test_values_of_another_kind_in_the_file_are_kept(box):
    (box.home / "config.json").write_text('{"x-mine": [1, "é"], "recall": "off"}', "utf-8")
    config(box, "set", "min_score", ".35")
    assert stored(box) == {"x-mine": [1, "é"], "recall": "off", "min_score": 0.35}


SPELLINGS = [("on", "1 on ON true True TRUE yes Yes"), ("off", "0 off Off OFF false False FALSE no NO")]


@pytest.mark.parametrize("word, spelt", [(word, spelt) for word, all_of_it in SPELLINGS for spelt in all_of_it.split()])
def test_a_switch_takes_every_usual_spelling_wherever_it_is_written(box, word, spelt):
    other = {"on": "off", "off": "on"}[word]
    config(box, "set", "recall", other)
    config(box, "set", "recall", spelt)
    assert stored(box) == {"recall": word}
    config(box, "set", "recall", other)
    box.env["MEMHOOK_RECALL"] = spelt
    assert config(box, "get", "recall") == (word + "\n", "")
    assert json.loads(config(box, "get", "recall", "--json")[0]) == {"key": "recall", "value": word, "source": "environment"}


def test_a_switch_in_the_file_may_be_a_boolean_and_a_word_in_any_case(box):
    (box.home / "config.json").write_text('{"recall": false, "worktrees": "Separate"}')
    assert config(box, "get", "recall") == ("off\n", "") and config(box, "get", "worktrees") == ("separate\n", "")


@pytest.mark.parametrize("key, value, counts", [("recall", "none", "off"), ("max_results", "many", "9"), ("embedder", "yes", "none")])
def test_a_variable_that_is_no_value_is_an_error_and_what_counts_is_shown_with_its_source(box, key, value, counts):
    (box.home / "config.json").write_text('{"recall": "off", "max_results": 9}')
    source = "default" if key == "embedder" else "file"
    box.env["MEMHOOK_" + key.upper()] = value
    variable = "MEMHOOK_%s in the environment has no effect: %s is " % (key.upper(), key)
    out, err = config(box, "get", key, code=1)
    assert out == counts + "\n" and err.startswith("memhook: " + variable) and "not %s\n" % value in err
    out, err = config(box, "list", "--json", code=1)
    assert json.loads(out)[key]["source"] == source and variable in err
    assert config(box, "get", "quota_max") == ("60\n", "")
    assert variable in config(box, "set", "quota_max", "50")[1]
    done = box.run("search", "anything")  # every command says it, on stderr
    assert "memhook: " + variable in done.stderr and variable not in done.stdout


def test_what_is_no_value_in_the_file_is_an_error_of_the_config_command(box):
    (box.home / "config.json").write_text('{"recall": "never", "max_results": []}')
    out, err = config(box, "get", "recall", code=1)
    assert out == "on\n" and "config.json has no effect: recall is on or off, not never" in err and "max_results" not in err
    assert "max_results is a whole number" in config(box, "list", code=1)[1]


def test_null_in_the_file_is_as_if_it_were_not_set(box):
    (box.home / "config.json").write_text('{"distiller_model": null, "max_results": null}')
    assert config(box, "get", "distiller_model") == ("\n", "") and config(box, "get", "max_results") == ("6\n", "")
    config(box, "unset", "max_results")
    assert json.loads((box.home / "config.json").read_text()) == {"distiller_model": None}


def test_an_empty_variable_is_as_if_it_were_not_set(box):
    config(box, "set", "recall", "off")
    box.env["MEMHOOK_RECALL"] = ""
    assert config(box, "get", "recall") == ("off\n", "") and json.loads(config(box, "list", "--json")[0])["recall"]["source"] == "file"


# ---- refused

@pytest.mark.parametrize("key,near", [("distiler", "distiller"), ("max_result", "max_results"), ("embeder_url", "embedder_url"), ("vectorweight", "vector_weight"), ("quotamax", "quota_max")])
def test_an_unknown_key_is_refused_with_the_nearest(box, key, near):
    for args in (("get", key), ("set", key, "1"), ("unset", key)):
        out, err = config(box, *args, code=2)
        assert out == "" and "no setting %s" % key in err and "the nearest is %s;" % near in err
    assert stored(box) is None


def test_a_key_that_is_like_no_other_is_refused_too(box):
    for key in ("zzzzqqqq", "nope"):
        assert config(box, "get", key, code=2)[1] == "memhook: no setting %s\n         memhook config list shows all\n" % key


def test_a_value_that_is_none_of_the_words_is_answered_with_the_command_that_is_right(box):
    assert config(box, "set", "recall", "maybe", code=2)[1] == "memhook: recall is on or off, not maybe\n         memhook config set recall on|off\n"
    assert "such as: memhook config set max_results 6" in config(box, "set", "max_results", "many", code=2)[1]


def test_an_empty_value_is_told_with_what_it_stands_for(box):
    config(box, "set", "distiller_model", "llama3.2")
    assert config(box, "unset", "distiller_model") == ("", "distiller_model is empty (its model; empty: haiku for claude, gpt-4o-mini for http)\n")


@pytest.mark.parametrize("key,value", [
    ("max_results", "many"), ("max_results", "0"), ("max_results", "51"), ("max_results", "1.5"), ("max_results", ""), ("max_results", "1e9"), ("quota_max", "-1"),
    ("recall", "maybe"), ("recall", ""), ("worktrees", "on"), ("worktrees", "1"), ("distiller", "openai"), ("embedder", "yes"), ("worktrees", "x"), ("team_propose", "maybe"), ("claude_credential", "both"),
    ("vector_weight", "2"), ("vector_weight", "nan"), ("min_score", "inf"), ("min_score", "-0.1"), ("recall_units", "9001"), ("distiller_seconds", "0"),
    ("distiller_url", "not an address"), ("embedder_url", "ftp://x"), ("distiller_key_env", "sk-1 2"), ("distiller_key_env", "A=B"), ("distiller_model", "a\nb"),
])
def test_a_value_that_makes_no_sense_is_refused_and_nothing_is_written(box, key, value):
    config(box, "set", key, "--", value, code=2) if value.startswith("-") else config(box, "set", key, value, code=2)
    assert stored(box) is None


@pytest.mark.parametrize("key", ["distiller_key_file", "distiller_key_env", "embedder_key_file", "distiller_model", "distiller_url", "plain_http_hosts", "recall", "max_results"])
def test_a_key_given_as_a_value_is_refused_and_repeated_nowhere(box, key):
    secret = "sk-proj-" + "a1B2" * 10
    out, err = config(box, "set", key, secret if key != "distiller_url" else "https://x.example/v1?key=" + secret, code=2)
    assert secret not in out + err and stored(box) is None


def test_a_key_that_stands_in_the_environment_is_shown_nowhere(box):
    box.env["MEMHOOK_EMBEDDER_URL"] = "https://me:sesame-17@elsewhere.test/v1"
    said = [config(box, *args) for args in (("list",), ("list", "--json"), ("get", "embedder_url"), ("get", "embedder_url", "--json"),
                                            ("set", "embedder_url", "https://elsewhere.test/v1"), ("unset", "embedder_url"))]
    assert "sesame" not in str(said) and all("elsewhere.test" in out + err for out, err in said)


@pytest.mark.parametrize("args", [("list", "x"), ("get",), ("get", "recall", "on"), ("set", "recall"), ("unset",), ("unset", "recall", "on"), ("nonsense",)])
def test_a_wrong_number_of_words_is_a_usage_error(box, args):
    config(box, *args, code=2)


@pytest.mark.parametrize("content", ["", "{", "[]", "7", '{"a": 1,}', "// mine\n{}"])
def test_a_file_that_is_no_json_object_is_not_overwritten(box, content):
    (box.home / "config.json").write_text(content)
    told = "memhook: %s is not a JSON object\n" % (box.home / "config.json")
    assert told in config(box, "set", "recall", "off", code=1)[1]
    assert (box.home / "config.json").read_text() == content
    assert config(box, "get", "recall", code=1)[0] == "on\n"
    out, err = config(box, "list", code=1)
    assert "recall" in out and told in err
    row, = (line for line in box.run("status").stdout.splitlines() if line.startswith("settings "))
    assert "config.json is not a JSON object" in row
    (box.home / "config.json").write_text("{}")
    assert "\nsettings " not in box.run("status").stdout and config(box, "list")[1] == ""


def test_what_was_set_or_unset_is_printed_as_json(box):
    for args, value, source in ((("set", "recall", "off"), "off", "file"), (("unset", "recall"), "on", "default")):
        out, err = config(box, *args, "--json")
        assert json.loads(out) == {"key": "recall", "value": value, "source": source} and "recall is" in err
    assert config(box, "set", "recall", "off")[0] == ""


def test_nothing_is_set_on_a_machine_without_memhook(tmp_path):
    bare = Box(tmp_path)
    assert "install" in config(bare, "set", "recall", "off", code=1)[1] and not bare.home.exists()
    assert config(bare, "get", "recall")[0] == "on\n" and not bare.home.exists()


# ---- consent

def test_switching_a_model_on_says_what_is_sent_where_and_asks(box):
    out, err = config(box, "set", "distiller", "claude", code=1, asks=True)
    for words in ("What is sent", "claude -p", "Anthropic", "8,000 characters", "100 calls", "the login of Claude Code", "config set distiller offline", "nothing was changed"):
        assert words in err, words
    assert stored(box) is None and places(box) is None and box.status()["consent"]["model"] is False
    config(box, "set", "distiller", "claude", "--consent", "i consent", code=1)
    assert stored(box) is None
    config(box, "set", "distiller", "claude", *PHRASE)
    assert stored(box) == {"distiller": "claude"} and places(box) == [["distiller", "claude"]]
    assert box.status()["consent"] == {"capture": True, "model": True, "team": False, "paused": False}


def test_the_consent_to_capture_and_its_pauses_stay_as_they_are(box):
    memhook.set_pause(box.api, True)
    before = json.loads((box.home / "consent.json").read_text())
    config(box, "set", "distiller", "claude", *PHRASE)
    after = json.loads((box.home / "consent.json").read_text())
    assert after.pop("model") and after == before
    memhook.set_pause(box.api, False)
    assert places(box) == [["distiller", "claude"]]


def test_the_disclosure_names_the_endpoint_the_model_and_who_pays(box):
    config(box, "set", "distiller_url", "https://api.groq.com/openai/v1")
    config(box, "set", "distiller_model", "llama-3")
    config(box, "set", "distiller_key_env", "GROQ_KEY")
    err = config(box, "set", "distiller", "http", code=1, asks=True)[1]
    assert "https://api.groq.com:443, model llama-3" in err and "the key in the variable GROQ_KEY" in err and "may be billed" in err
    assert "at each search" not in err
    err = config(box, "set", "embedder", "http", code=1, asks=True)[1]
    assert "https://api.openai.com:443, model text-embedding-3-small" in err and "every turn, digest and note" in err and "what you search for" in err
    assert "at each search, which waits at most 2 seconds" in err and "nothing: no key is sent" in err


def test_another_place_is_asked_for_again_and_the_same_one_is_not(box):
    config(box, "set", "distiller", "http", *PHRASE)
    assert places(box) == [["distiller", "https://api.openai.com:443"]]
    config(box, "set", "distiller_model", "other")
    config(box, "set", "distiller_url", "https://api.openai.com/v2")
    config(box, "set", "distiller_url", "https://elsewhere.example/v1", code=1, asks=True)
    assert stored(box)["distiller_url"] == "https://api.openai.com/v2"
    config(box, "set", "distiller_url", "https://elsewhere.example/v1", *PHRASE)
    assert places(box) == [["distiller", "https://elsewhere.example:443"]]
    config(box, "set", "embedder_url", "https://third.example/v1")
    config(box, "set", "embedder", "http", code=1, asks=True)


def test_a_consent_to_the_distiller_is_none_to_the_embedder_at_the_same_place(box):
    config(box, "set", "distiller_url", "http://localhost:11434")
    config(box, "set", "distiller", "http", *PHRASE)
    config(box, "set", "embedder_url", "http://localhost:11434/api/embed")
    err = config(box, "set", "embedder", "http", code=1, asks=True)[1]
    assert "every turn, digest and note" in err and "nothing was changed" in err and "embedder" not in stored(box)
    box.env["MEMHOOK_EMBEDDER"] = "http"
    assert memhook.may_ask(box.api, "distiller") and not memhook.may_ask(box.api, "embedder")
    del box.env["MEMHOOK_EMBEDDER"]
    config(box, "set", "embedder", "http", *PHRASE)
    assert places(box) == [["distiller", "http://localhost:11434"], ["embedder", "http://localhost:11434"]]
    config(box, "set", "distiller", "offline")
    assert places(box) == [["embedder", "http://localhost:11434"]]
    config(box, "set", "distiller", "http", code=1, asks=True)


@pytest.mark.parametrize("other", ["http://127.0.0.1:8472/v1", "http://localhost:8471/v1", "https://127.0.0.1:8471/v1", "http://127.0.0.1/v1"])
def test_on_this_machine_too_another_scheme_host_or_port_is_another_place(box, other):
    config(box, "set", "distiller_url", "http://127.0.0.1:8471")
    config(box, "set", "distiller", "http", code=1, asks=True)
    config(box, "set", "distiller", "http", *PHRASE)
    config(box, "set", "distiller_url", other, code=1, asks=True)
    box.env["MEMHOOK_DISTILLER_URL"] = other
    assert not memhook.may_ask(box.api, "distiller")


def earlier(box, *places):
    """Write a consent to models as memhook stored it before it told the roles apart."""
    path = box.home / "consent.json"
    text = json.loads(path.read_text())
    path.write_text(json.dumps({**text, "model": {"by": "typed", "text": "0", "places": {place: 1_700_000_000.5 for place in places}}}))


def test_a_consent_of_the_earlier_form_holds_for_the_distiller_there_and_for_no_embedder(box):
    earlier(box, "http://localhost:11434")
    box.env.update(MEMHOOK_DISTILLER="http", MEMHOOK_DISTILLER_URL="http://localhost:11434",
                   MEMHOOK_EMBEDDER="http", MEMHOOK_EMBEDDER_URL="http://localhost:11434/api/embed")
    assert memhook.may_ask(box.api, "distiller") and not memhook.may_ask(box.api, "embedder")
    assert box.status()["consent"]["model"] is True and "the embedder is set to http, to which nobody agreed" in box.run("doctor", check=False).stdout
    config(box, "set", "embedder", "http", code=1, asks=True)
    assert places(box) is None, "a refusal leaves the earlier form as it is"
    config(box, "set", "embedder", "http", *PHRASE)
    assert agreed(box)["distiller"] == {"http://localhost:11434": 1_700_000_000.5} and memhook.may_ask(box.api, "embedder")
    box.env["MEMHOOK_DISTILLER_URL"] = "http://localhost:8080"
    assert not memhook.may_ask(box.api, "distiller")


@pytest.mark.parametrize("model", [7, [], {}, {"places": []}, {"agreed": 7}, {"agreed": {"distiller": 7}}, {"agreed": {"distiller": {"claude": "x"}}}, {"agreed": None, "places": None}])
def test_a_damaged_consent_to_a_model_is_none(box, model):
    path = box.home / "consent.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model": model}))
    box.env["MEMHOOK_DISTILLER"] = "claude"
    assert not memhook.may_ask(box.api, "distiller") and box.status()["consent"]["model"] is False
    config(box, "set", "distiller", "claude", *PHRASE)
    assert memhook.may_ask(box.api, "distiller")


def test_what_was_switched_off_is_asked_for_again(box):
    config(box, "set", "distiller", "claude", *PHRASE)
    config(box, "set", "distiller", "offline")
    assert places(box) == [] and box.status()["consent"]["model"] is False
    config(box, "set", "distiller", "claude", code=1, asks=True)
    config(box, "set", "distiller", "claude", *PHRASE)
    config(box, "unset", "distiller")
    assert places(box) == [] and stored(box) == {}


def test_the_time_of_a_consent_stays_when_another_is_added(box):
    config(box, "set", "distiller", "claude", *PHRASE)
    before = agreed(box)["distiller"]
    config(box, "set", "embedder", "http", *PHRASE)
    assert agreed(box)["distiller"] == before and len(agreed(box)) == 2


def test_plain_http_to_another_machine_needs_its_name(box):
    config(box, "set", "distiller_url", "http://gpu.lan:8000/v1")
    err = config(box, "set", "distiller", "http", *PHRASE, code=2)[1]
    assert "plain http to gpu.lan" in err and "config set plain_http_hosts gpu.lan" in err and places(box) is None
    config(box, "set", "plain_http_hosts", "gpu.lan")
    config(box, "set", "distiller", "http", *PHRASE)
    assert places(box) == [["distiller", "http://gpu.lan:8000"]]


def test_a_broken_address_of_another_role_does_not_stand_in_the_way(box):
    box.env.update(MEMHOOK_EMBEDDER="http", MEMHOOK_EMBEDDER_URL="nonsense")
    config(box, "set", "distiller", "claude", *PHRASE)
    assert places(box) == [["distiller", "claude"]]


def test_uninstall_takes_the_consent_away(tmp_path):
    box = Box(tmp_path)
    Claude(box, "sys.exit(1)")
    box.install()
    config(box, "set", "distiller", "claude", *PHRASE)
    box.run("uninstall")
    box.install()
    assert places(box) is None and not memhook.may_ask(box.api, "distiller") and stored(box) == {"distiller": "claude"}


# ---- the table

def test_every_setting_has_a_value_of_its_kind_and_every_choice_is_one():
    for name, default in memhook.SETTINGS.items():
        assert type(default) in (int, float, str), name
        assert memhook.parse_setting(name, str(default)) == default, name
    assert set(memhook.CHOICES) | set(memhook.RANGES) <= set(NAMES)


@pytest.mark.parametrize("value", ["claud", "", "https", "none", "on", "yes", "1"])
def test_a_distiller_that_does_not_exist_is_offline(box, value):
    box.env["MEMHOOK_DISTILLER"] = value
    assert box.api.setting("distiller") == "offline"
