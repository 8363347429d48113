"""The offline digest: what it takes from what was said, in which section, and what it leaves out."""
import json
import random
import re
import time

import memhook
import pytest
from conftest import DATA

KINDS = {"P": "prompt", "A": "answer", "T": "tool", "E": "error", "R": "reply", "X": "rewind", "I": "interrupt", "S": "shell"}


def turns_of(*said):
    """Turns from texts that begin with a letter of KINDS."""
    return [memhook.Turn("u%d/0" % number, KINDS[text[0]], text[2:], number, number + 1) for number, text in enumerate(said)]


def digest(*said):
    return memhook.distil(turns_of(*said), "title")


def has(items, *words):
    """Whether one item holds all of the words."""
    return any(all(word in item for word in words) for item in items)


def whole(found):
    return memhook.render_digest(found)


OFFER = "There are two ways:\n\n1. Keep the **cache** in memory, per process\n2. Put it into `redis`, shared\n\nWhich one?"


# ---- defects that were seen

@pytest.mark.parametrize("command,around", [
    ("cd /src", True), ("cd", True), ("ls -la", True), ("git status", True), ("cat a.txt | head", True),
    ("cd /src && make", False), ("make test", False), ("git commit -m x", False), ("lsof -i", False), ("cdrecord x", False),
])
def test_only_a_bare_cd_and_what_reads_is_looking_around(command, around):
    assert bool(memhook.re.match(memhook._LOOKS_AROUND, command)) == around


def test_what_follows_a_cd_is_what_was_run():
    found = digest("P build it", "T Bash: cd /src/thing && make all", "A Built.")
    assert found.commands == ["`make all` → ok"]


HEREDOC = "python - <<'E'\nimport pathlib\nprint(pathlib.Path('%s').read_text())\nE" % ("long/" * 60)


@pytest.mark.parametrize("command", ["make test", HEREDOC, "echo " + "x" * 400, "make  # a comment of its own\ntrue"])
def test_a_command_that_failed_is_never_told_to_have_gone_well(command):
    line = memhook._tool_line("Bash", {"command": command, "description": "Try it"})
    failure = "%s\nTraceback\nValueError: it broke" % line[:memhook.COMMAND_CHARS]  # as a transcript's failure is captured
    found = digest("P try it", "T " + line, "E " + failure, "A It broke.")
    assert len(found.commands) == 1 and found.commands[0].endswith("→ failed: ValueError: it broke")
    assert found.errors == ["ValueError: it broke"]


def test_the_rest_of_a_heredoc_is_no_error():
    line = memhook._tool_line("Bash", {"command": "cat <<'E'\nraise Error(1)\nE"})
    found = digest("P x", "T " + line, "E %s\nboom: failed" % line)
    assert "raise" not in "".join(found.errors + found.problems)


@pytest.mark.parametrize("name", ["`__init__`", "__init__", "`a**b`", "snake__case", "`*.py`", "_private_"])
def test_names_with_underscores_and_stars_stay_as_they_are(name):
    found = digest("P why", "A The fix is in %s, **not** in the caller." % name)
    assert has([found.summary], "The fix is in %s, not in the caller." % name)


@pytest.mark.parametrize("prompt", ["2. makes sense", "1) the first thing\n2) the second thing"])
def test_a_prompt_that_answers_by_number_keeps_its_numbers(prompt):
    assert has(digest("P hello there, please help", "A What now?", "P " + prompt, "A Done with all of it, as you said.").exchanges, prompt[:8])


def test_only_the_last_sentence_before_a_list_is_its_heading():
    found = (memhook.statements("We use cents. The old file is gone. What is left:\n- the docs"))
    assert found == [("", "We use cents."), ("", "The old file is gone."), ("open", "the docs")]


def test_a_blank_line_between_a_heading_line_and_its_list_changes_nothing():
    assert (memhook.statements("What remains:\n\n- the docs\n- the tests\n\nBye now.")) == [("open", "the docs"), ("open", "the tests"), ("", "Bye now.")]


def test_an_answer_that_opens_a_segment_is_told():
    found = digest("A The migration ran through, all 40 tables are moved.", "P great", "A You are welcome, it was a pleasure.")
    assert found.exchanges[0] == "**(continued)** → The migration ran through, all 40 tables are moved."


# ---- what was agreed to

@pytest.mark.parametrize("prompt,expected", [
    ("2", "redis"), ("2. makes sense", "redis"), ("option 2 please", "redis"), ("ok, 1. but quickly", "cache"), ("the second one", "redis"), ("first one", "cache"),
    ("die zweite", "redis"), ("nimm die erste", "cache"), ("la deuxième", "redis"), ("la segunda, por favor", "redis"), ("второй вариант", "redis"),
    ("第二个", "redis"), ("方案2", "redis"), ("二つ目で", "redis"), ("두 번째", "redis"), ("let's take redis", "redis"), ("memory is fine", "cache"),
])
def test_a_choice_is_told_with_what_was_chosen(prompt, expected):
    found = digest("P where to keep it", "A " + OFFER, "P " + prompt, "A OK.").decisions
    assert found[0].startswith('"%s" → ' % prompt) and expected in found[0]
    assert ({"redis", "cache"} - {expected}).pop() not in found[0]


@pytest.mark.parametrize("offer,prompt", [
    ("Two ways.\n\n- Option A: per line\n- Option B: per rate", "A, please"), ("## Option A: per line\n\nSlow.\n\n## Option B: per rate\n\nFast.", "ok, A."),
    ("Deux façons :\n\n- Option A : per line\n- Option B : per rate", "ok pour A."), ("a) per line\nb) per rate", "option a"),
])
def test_a_letter_chooses_what_it_names(offer, prompt):
    found = digest("P how", "A " + offer, "P " + prompt, "A Fine.").decisions
    assert has(found, '"%s" → per line' % prompt) and not has(found[:1], "per rate")


@pytest.mark.parametrize("prompt", [
    "yes", "ok do it", "sure, go ahead", "ja, mach", "oui, vas-y", "sí, dale", "sim", "va bene", "да, давай", "好的", "行", "はい", "네", "haha nice, yes", "sounds good",
])
def test_a_yes_is_told_with_what_was_offered(prompt):
    found = digest("P how", "A The index is missing.\n\nI suggest a partial index on `run_after`. Shall I?", "P " + prompt, "A Done.").decisions
    assert found[0].startswith('"%s" → ' % prompt) and "a partial index on `run_after`" in found[0] and "Shall I" not in found[0]


@pytest.mark.parametrize("prompt", ["no", "nein, lass", "non", "нет", "不要", "いいえ", "not now, later", "why? is that safe", "yes? what else", "hm, what does the second one cost"])
def test_a_no_or_a_question_takes_nothing(prompt):
    said = digest("P how", "A I suggest a partial index on the table. Shall I?", "P " + prompt, "A Well, I see what you mean.").decisions
    assert not has(said, '"%s" →' % prompt)


def test_a_yes_to_a_mere_report_takes_nothing():
    assert not has(digest("P run it", "A All 40 tests pass now.", "P ok", "A Bye.").decisions, '"ok"')


def test_an_option_of_an_earlier_answer_can_be_chosen():
    found = digest("P where", "A " + OFFER, "P what does redis cost", "A About 20 a month.", "P ok, 2", "A Fine.").decisions
    assert has(found, '"ok, 2" → Put it into `redis`, shared')


def test_a_number_that_nothing_goes_by_takes_nothing():
    assert not has(digest("P where", "A " + OFFER, "P 9", "A There is no such thing here.").decisions, '"9"')


def test_a_refused_letter_is_not_chosen():
    offer = "A. Schemas\nB. Databases\nC. Row level security"
    assert digest("P how", "A " + offer, "P B no. C then", "A OK.").decisions[0] == '"B no. C then" → Row level security'


def test_answers_by_number_are_told_with_each_thing():
    found = digest("P rename", "A I need to know:\n\n1. Columns of the database\n2. Names in the API\n3. File names", "P 1 leave, db stays. 2 leave. 3 yes", "A OK.").decisions
    assert has(found[:1], "1 leave, db stays. 2 leave. 3 yes", "Columns of the database", "Names in the API", "File names")


def test_a_number_that_is_refused_in_passing_is_not_chosen():
    offer = "Ways:\n\n1. Drop repeats by their id\n2. Register the handler once\n3. Take another library"
    found = digest("P why twice", "A " + offer, "P 2. 1 would just hide it and 3 is a new dependency", "A OK.").decisions
    assert found[0] == '"2. 1 would just hide it and 3 is a new dependency" → Register the handler once'


# ---- decisions

@pytest.mark.parametrize("sentence", [
    "We'll use Postgres instead of Redis here.", "I recommend polling every second.", "So the sub-select form becomes mandatory.", "Wir nehmen Postgres statt Redis.", "Ich empfehle ein Polling.",
    "On garde la table, plutôt que le fichier.", "Je recommande un index partiel.", "Usaremos Postgres en vez de Redis.", "Recomiendo un índice parcial.", "Useremo Postgres invece di Redis.",
    "Решено: используем Postgres вместо Redis.", "建议先做方案二，以后再做异步。", "インデックスの使用を推奨します。", "인덱스를 사용하기로 했습니다.",
])
def test_a_decision_is_found_in_any_language_of_the_table(sentence):
    assert sentence in digest("P how", "A Hello.\n\n%s\n\nBye." % sentence).decisions


@pytest.mark.parametrize("sentence", ["Should we go with Postgres?", "Let me decide after I looked at it.", "I'll look at it first instead of guessing.", "Options I would recommend to you now and here:"])
def test_what_only_asks_or_announces_is_no_decision(sentence):
    assert digest("P how", "A The table has four columns.\n\n" + sentence).decisions == []


@pytest.mark.parametrize("said,taken_back", [
    (("P let's use redis for the cache", "A Moved.", "P redis is down all the time. go back to the in-memory cache"), "let's use redis for the cache"),
    (("P speed it up", "A " + OFFER, "P 2", "A Moved.", "P revert redis, it is too slow"), "Put it into `redis`, shared"),
    (("P go", "A I'll use SQLAlchemy for the models.", "P too much", "A Reverted SQLAlchemy; it is plain sqlite3."), "I'll use SQLAlchemy for the models."),
    (("P wir nehmen Redis für den Cache", "A Gut.", "P doch lieber kein Redis"), "wir nehmen Redis für den Cache"),
])
def test_a_decision_that_was_taken_back_is_told_as_dropped(said, taken_back):
    found = digest(*said)
    assert taken_back in found.dropped and not has(found.decisions, taken_back)


@pytest.mark.parametrize("later", ["P should we go back to files instead of redis?", "P back to redis", "A Rolled back the deployment of the webhook.", "P revert the last commit"])
def test_a_decision_stands_where_nothing_takes_it_back(later):
    found = digest("P let's use redis for the cache", "A Moved.", later)
    assert has(found.decisions, "let's use redis for the cache") and found.dropped == []


# ---- commands

def test_failed_commands_come_first_with_the_telling_line_then_what_changed_something():
    found = digest("P go", "T Bash: pytest -q", "E Bash: pytest -q\nExit code 1\n....F\nE   ValueError: bad\n3 failed in 2s", "T Bash: git status", "T Bash: python tool.py",
                   "T Bash: npm install", "T Bash: git commit -m x  # Commit", "T Bash: ./deploy.sh staging", "T Bash: git push", "A Done.").commands
    assert found == ["`pytest -q` → failed: E ValueError: bad", "`git commit -m x` → ok", "`./deploy.sh staging` → ok", "`git push` → ok"]


def test_at_most_five_failures_and_three_changes_are_told():
    said = [line for number in range(9) for line in ("T Bash: make %d" % number, "E Bash: make %d\nError: no" % number)]
    found = digest("P go", *said, *["T Bash: git push %d" % number for number in range(9)]).commands
    assert len(found) == 8 and found[0].startswith("`make 4`") and found[-1] == "`git push 8` → ok"


def test_where_nothing_failed_or_changed_the_last_commands_are_told():
    assert digest("P go", "T Bash: ls", "T Bash: make a", "T Bash: make a", "S ! make b", "A Done.").commands == ["`make a` → ok (2 times)", "`make b` → run by the person"]


def test_a_command_that_failed_and_then_went_well_went_well():
    assert digest("P go", "T Bash: make", "E Bash: make\nError: no", "T Bash: make", "A Done.").commands == ["`make` → ok (2 times)"]


def test_reading_logs_changes_nothing():
    assert not memhook.re.search(memhook._CHANGES, "kubectl logs job/lager-migrate") and memhook.re.search(memhook._CHANGES, "bin/console doctrine:migrations:migrate -n")


# ---- guesses

@pytest.mark.parametrize("guess", [
    "My guess is the timezone.", "My working hypothesis: the cache is stale.", "I was wrong about the driver.", "That log rules out my theory.", "Meine erste Vermutung ist die Zeitzone.",
    "Da war ich zu schnell.", "Ma première hypothèse : un problème de flottants.", "Mi hipótesis es la zona horaria.", "La mia ipotesi è il fuso orario.", "Я ошибся с драйвером.",
    "我猜是时区的问题。", "这一点我没考虑到。", "タイムゾーンという仮説です。", "시간대라고 추측합니다.",
])
def test_a_guess_is_told_with_the_sentence_after_it(guess):
    found = digest("P why", "A Hello there.\n\n%s\n\nThe clock says otherwise." % guess)
    assert found.dropped == [guess + " The clock says otherwise."]
    assert "## Tried and dropped\n\n- " + guess in whole(found)


def test_what_became_of_a_guess_is_looked_for_in_the_next_answer():
    found = digest("P why", "A My guess is lock contention. Let me look.", "T Bash: make", "A Nobody waits for a lock. It is the plan.")
    assert found.dropped == ["My guess is lock contention. Nobody waits for a lock."]


def test_dropped_guesses_stand_below_the_sections_of_the_format():
    text = whole(digest("P why is it an error", "A My guess was wrong. Error: x", "T Bash: make", "E Bash: make\nError: boom", "A Hm."))
    headings = [line for line in text.split("\n") if line.startswith("## ")]
    assert headings[-1] == "## Tried and dropped" and "## Commands" in headings


# ---- problems

def test_a_problem_is_told_with_its_cause_and_its_cure():
    found = digest("P the total is wrong", "A I'll look.", "A The cause was a float. %s" % "Some more words here. " * 20, "A I fixed it with integer cents.")
    assert found.problems == ["the total is wrong → The cause was a float. I fixed it with integer cents."]


@pytest.mark.parametrize("prompt", ["why is it so slow", "warum ist das so langsam", "pourquoi c'est si lent", "¿por qué es lento?", "почему так медленно", "为什么这么慢", "なぜ遅いの", "왜 느려"])
def test_a_why_is_a_problem(prompt):
    assert digest("P " + prompt, "A It reads the whole file. Each time.").problems == [prompt + " → It reads the whole file. Each time."]


def test_the_answers_to_the_next_problem_are_not_a_cure_of_this_one():
    found = digest("P login fails", "A The cause was the clock.", "P and why is search slow", "A The cause was a missing index.").problems
    assert found == ["login fails → The cause was the clock.", "and why is search slow → The cause was a missing index."]


def test_where_the_cause_is_only_announced_the_next_sentence_is_told_too():
    found = digest("P login fails", "A I'll look.", "A Fine so far. The problem was simple. The clock of the server is an hour late. All is well.").problems
    assert found == ["login fails → The problem was simple. The clock of the server is an hour late."]


def test_a_problem_of_which_nothing_was_said_is_not_called_solved():
    assert digest("P login fails", "A Let me look.").problems == [] and digest("P login fails").problems == []


WHY = "P Why does the invoice export time out in production?"
CURE = "A The cause was a missing index on invoices.tenant. I added it, and the export takes 2 s."
CURED = [WHY[2:] + " → The cause was a missing index on invoices.tenant. I added it, and the export takes 2 s."]


@pytest.mark.parametrize("intention", [
    "I will look at the export code.", "I'll trace the request.", "I’ll fix it.", "Okay, I'm going to fix it.", "Let me dig into it.", "Let's profile the export.", "Looking into the export code.",
    "Ich schaue mir den Export an.", "Ich werde den Fehler beheben.", "Je vais corriger l'export.", "Voy a revisar la causa.", "Vou ver o export.", "Сейчас исправлю.", "我先看看导出代码。", "让我看一下原因。", "まず原因を調べます。", "먼저 원인을 보겠습니다.",
    "I will look at the export code. It lives in billing/export.py.",
])
def test_what_claude_will_do_is_no_solution(intention):
    assert digest(WHY, "A " + intention).problems == []
    assert digest(WHY, "A " + intention, CURE).problems == CURED
    assert digest("P go", "T Bash: make", "E Bash: make\nError: boom", "A " + intention).problems == []


def test_a_cause_that_comes_some_turns_later_is_the_solution():
    said = [WHY, "A I will look at the export code.", "T Read: a.py", "A Nothing odd here.", "T Bash: make", "E Bash: make\nError: boom", "A I'll run it another way.", "A It runs now."]
    assert digest(*said, CURE).problems[0] == CURED[0]
    assert digest(*said, "P ok, go on", CURE).problems[0] == CURED[0]
    assert digest(*said, "P could it be the database that the export reads?", CURE).problems[0] == CURED[0]


def test_an_error_on_the_way_is_not_taken_for_what_was_reported():
    found = digest(WHY, "T Bash: make", "E Bash: make\nError: boom", "A make is not installed here.", "A Nothing odd in the code.", "T Bash: x", "A Hm.", CURE).problems
    assert CURED[0] in found and not has(found, "invoice export", "make is not")


def test_what_solves_another_matter_is_not_the_solution():
    said = [WHY, "A I will look at the export code."]
    assert digest(*said, "P now add a --verbose flag", "A Fixed: the flag is there.").problems == []
    assert digest(*said, "P ok. now add a --verbose flag", "A Fixed: the flag is there.").problems == []
    assert digest(WHY, "T Read: a.py", "P now add a --verbose flag", "A Fixed: the flag is there.").problems == []


def test_a_cause_is_told_with_what_claude_will_do_about_it():
    assert digest("P login fails", "A The clock is an hour late. I'll set it.").problems == ["login fails → The clock is an hour late. I'll set it."]


def test_a_question_or_an_announcement_is_no_cure():
    found = digest("P login fails", "A The token has expired. Let me check the clock. Shall I renew it?").problems
    assert found == ["login fails → The token has expired."]


@pytest.mark.parametrize("text,line", [
    ("Exit code 1\ncollecting\npsycopg.errors.UniqueViolation: duplicate key\n1 failed in 2s", "psycopg.errors.UniqueViolation: duplicate key"),
    ("src/bus.ts(17,44): error TS2345: no overlap\n  Types differ", "src/bus.ts(17,44): error TS2345: no overlap"), ("one\ntwo\nthree", "three"),
    ("== FAILURES ==\nE   AssertionError: 1 != 2\n Test Files  1 failed (1)", "E AssertionError: 1 != 2"), ("  12→    raise Error(1)\nboom", "boom"), ("", ""),
    ("fatal: cut off here [… 120 characters left out]", "fatal: cut off here …"),
])
def test_the_line_of_an_error_that_tells_most(text, line):
    assert memhook._telling_line(text) == line


@pytest.mark.parametrize("line", ["42", "discovering all tests...", "cat: .gitattributes: No such file or directory", "3 failed, 4 passed in 2s"])
def test_status_lines_and_figures_are_no_problem(line):
    assert digest("P go", "T Bash: make", "E Bash: make\n" + line, "A Hm.").problems == []


@pytest.mark.parametrize("heading", ["## Cause", "**Root cause**", "### Ursache", "## 原因", "What caused it, the cause:"])
def test_what_stands_under_a_cause_heading_is_a_solved_problem(heading):
    body = "- The thread was never stopped." if heading.endswith(":") else "The thread was never stopped."
    assert digest("P report please", "A %s\n\n%s" % (heading, body)).problems == ["The thread was never stopped."]


def test_causes_that_are_only_possible_are_none():
    assert digest("P report please", "A Possible causes:\n\n- The file is not there.\n- The path is another.").problems == []


# ---- errors

@pytest.mark.parametrize("line", [
    "bash: x: No such file or directory", "Permission denied (publickey).", "curl: (7) connection refused", "FATAL: password authentication failed for user", "make: nproc: command not found",
    "Address already in use", "error[E0382]: borrow of moved value", "panicked at 'boom'", "shop.errors.StaleRateError: rates are old", "npm ERR! code 1: ERR_MODULE",
])
def test_an_error_line_is_known(line):
    assert line in digest("P I get this\n" + line, "A Hm.").errors + digest("P I get this\n" + line, "A Hm.").problems


def test_of_an_answer_only_what_stands_in_a_code_span_is_an_error():
    found = digest("P go on", "A The `x` server says `error: connection refused`, an Error: it seems, so I `wait`.").errors
    assert found == ["error: connection refused"]


def test_source_lines_are_no_errors():
    assert digest("P look\n    12→    raise ValueError(x)\n  raise ValueError(x)\nexcept ValueError: pass", "A OK.").errors == []


def test_an_error_that_stands_under_the_problems_is_not_said_twice():
    text = whole(digest("P go", "T Bash: make", "E Bash: make\nValueError: bad", "A It was a typo."))
    assert text.count("- ValueError: bad") == 1 and "## Errors" not in text


# ---- open threads

@pytest.mark.parametrize("sentence", ["The docs are still missing.", "Die Doku ist noch offen.", "Il reste à écrire la doc.", "La documentación está pendiente.", "Осталось дописать документацию.", "文档还没写完，之后再写。", "ドキュメントはまだです。", "문서는 아직입니다."])
def test_what_is_left_is_an_open_thread(sentence):
    assert digest("P go", "A " + sentence).open_threads == [sentence]


@pytest.mark.parametrize("sentence", ["Helm hing in `pending`, gelöst durch ein Rollback.", "The remaining leak is fixed."])
def test_what_is_said_to_be_finished_is_not_open(sentence):
    assert digest("P go", "A " + sentence).open_threads == []


def test_what_is_not_fixed_yet_is_open():
    assert digest("P go", "A The remaining leak is not fixed yet.").open_threads == ["The remaining leak is not fixed yet."]


@pytest.mark.parametrize("left,later", [
    ("The invoices table still needs a migration from floats.", "Done: the invoices table is migrated, no floats are left."),
    ("The retry test for the export still fails.", "The retry test of the export passes now."),
    ("Next step: add a regression test for the empty header.", "Added the regression test for the empty header; all 14 tests pass."),
    ("Noch offen: die Migration der Rechnungstabelle.", "Die Migration der Rechnungstabelle ist erledigt."),
])
def test_what_was_left_and_then_done_is_not_open(left, later):
    assert digest("P go", "A " + left, "P go on", "A " + later).open_threads == []
    assert digest("P go", "A " + later, "P go on", "A " + left).open_threads == [left]


@pytest.mark.parametrize("left,later", [
    ("Still open: InventoryPoller leaks its thread.", "The RateRefresher leak is fixed."),
    ("Tests for export are still missing.", "Tests for import were added."),
    ("The docs are still missing.", "Fixed the typo in the docs."),
    ("The migration on staging is still open.", "The migration on staging will be done by Ana."),
])
def test_what_was_left_stays_open_where_another_thing_was_done(left, later):
    assert left in digest("P go", "A " + left, "P go on", "A " + later).open_threads


def test_a_question_is_open_only_while_no_prompt_follows_it():
    assert digest("P go", "A The docs exist. Shall I add a test?").open_threads == ["Shall I add a test?"]
    assert digest("P go", "A The docs exist. Shall I add a test?", "P yes", "A Added, all 12 tests pass.").open_threads == []


@pytest.mark.parametrize("thanks", ["thx 👍", "danke dir", "merci !", "谢谢"])
def test_thanks_are_neither_unanswered_nor_an_open_thread(thanks):
    found = digest("P fix it", "A Fixed and committed as abc.", "P " + thanks)
    assert found.open_threads == [] and len(found.exchanges) == 1 and "no answer" not in whole(found)


def test_a_prompt_that_nothing_followed_is_told_as_said_last():
    assert digest("P fix it", "A Fixed.", "P i'll restart the server on monday and tell you").open_threads == ["Last said: i'll restart the server on monday and tell you"]


def test_a_prompt_that_was_answered_by_edits_tells_of_them():
    found = digest("P rename it everywhere please", "T Edit: /src/a.py", "T Bash: make  # Run the tests")
    assert found.exchanges == ["**rename it everywhere please** → (Edit: /src/a.py; Run the tests)"] and found.open_threads == []


# ---- patterns

@pytest.mark.parametrize("rule", ["always run make lint before you commit", "never touch the lockfile", "nie kubectl edit auf prod", "on ne touche jamais à une facture émise", "nunca toques el lockfile",
                                  "всегда запускай тесты", "以后提交信息都写中文", "必ずテストを実行して", "항상 테스트를 실행해"])
def test_a_rule_of_a_person_is_a_pattern(rule):
    assert digest("P go", "A Done.", "P " + rule, "A OK.").patterns == [rule]


def test_never_with_a_past_is_no_rule():
    assert digest("P haha, never looked closely", "A Well.").patterns == []


def test_claude_repeating_a_rule_is_no_second_one():
    assert digest("P always run lint", "A I created `CLAUDE.md` with this rule.").patterns == ["always run lint"]


# ---- lists and tables

def test_an_item_of_a_list_is_one_unit_up_to_its_limit():
    item = "The first half. The second half."
    assert (memhook.statements("- " + item)) == [("", item)]
    assert len((memhook.statements("- " + (item + " ") * 20))) == 40


def test_a_row_of_a_table_is_told_as_pairs_without_the_names_of_its_columns():
    assert (memhook.statements("| way | cost |\n|---|---|\n| stop | 4 minutes |\n| overlap | none |")) == [("", "stop: 4 minutes"), ("", "overlap: none")]


def test_items_of_a_list_do_not_run_together():
    assert memhook.gist("Left:\n- the docs\n- the tests\n\nBye.", 100) == "the docs; the tests; Bye."


def test_code_is_not_quoted():
    assert memhook.gist("Look:\n\n```\nwe decided(x)\n```\n\nThat was it.", 100) == "That was it."


def test_a_sentence_that_is_said_again_and_again_is_told_once():
    assert memhook.gist("It is mended. " + "Each caller was checked. " * 200 + "The tests pass.", 900) == "It is mended. Each caller was checked. The tests pass."


# ---- the whole

def test_the_first_prompt_is_not_said_again_in_the_summary():
    found = digest("P the export is slow, please make it faster", "A It opens the file for each row. Now it does so once.")
    assert found.summary == "It opens the file for each row. Now it does so once." and found.title == "the export is slow, please make it faster"


def test_the_summary_is_what_came_of_it_and_not_the_next_step():
    assert digest("P go", "A The cache is fixed and tested.", "A Let me look at the docs now, they may be old.").summary == "The cache is fixed and tested."


def test_a_branch_that_a_rewind_left_is_not_told():
    found = digest("P keep this one please", "A Kept it as it was.", "P use mongo instead of postgres", "A We'll use mongo.", "X [rewind to before: use mongo instead of postgres]", "P go on", "A Done with it.")
    assert "mongo" not in whole(found)


def segments_of(path):
    """The turns of a session of the data, cut as a capture cuts them."""
    said = []
    for turn in json.loads(path.read_text("utf-8"))["turns"]:
        for name, kind in (("prompt", "P"), ("answer", "A")):
            if name in turn:
                said.append("%s %s" % (kind, turn[name]))
        if "tool" in turn:
            line = memhook._tool_line(turn["tool"], turn.get("input", {}))
            said += ["T " + line] + (["E %s\n%s" % (line[:200], turn["result"][:300])] if turn.get("error") else [])
    return [chunk.turns for chunk in memhook.plan_tail_segments(turns_of(*said))]


def words(text):
    """Without the bars of tables and other signs."""
    return re.findall(r"\w+", text)


SESSIONS = sorted(path for path in (DATA / "sessions").glob("*.json") if not path.name.endswith(".questions.json"))


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_session_gives_the_same_digest_each_time_and_every_sentence_was_said(path):
    count = 0
    for turns in segments_of(path):
        found = memhook.distil(turns, "t")
        assert whole(found) == whole(memhook.distil([memhook.Turn.from_json(turn.to_json()) for turn in turns], "t"))
        said = words(" ".join(turn.text for turn in turns))
        items = found.patterns + found.dropped + [item.rpartition(" → ")[2] for item in found.decisions]
        assert [item for item in items if " ".join(words(item)[:4]) not in " ".join(said) or not set(words(item)) <= set(said)] == []
        count += len(items)
    assert count


HOSTILE = ["", " ", "```", "```\n", "|", "|-|\n|-|", "- ", "1.", "# ", "**", "** **", "`", "``` `", ":", "：", "?", "\x00", "\ud800".encode("utf-8", "replace").decode(), "a" * 300, "🎉", "2", "yes", "- - - 1. > # x",
           "## Transcript", "\n\n\n", "Bash: ", "Bash: x\n", "[… 1 characters left out]", "\u2028", "Error: ", "E   x.y: z", "0) x", "_", "\\", "%s %d", "(", "[", "{", "A. b\nB. c", "…"]


def test_any_turns_give_a_digest_whose_items_are_single_lines():
    chance = random.Random(7)
    for _ in range(400):
        said = ["%s %s" % (chance.choice("PPAAATERXIS"), chance.choice(("", "\n", " ")).join(chance.choice(HOSTILE) for _ in range(chance.randrange(4)))) for _ in range(chance.randrange(9))]
        found = digest(*said)
        lists = [getattr(found, name) for name in memhook.Digest.__slots__ if name not in ("title", "summary")]
        assert found.title and "\n" not in found.title + found.summary and isinstance(whole(found), str)
        assert all(isinstance(item, str) and "\n" not in item for items in lists for item in items), said


@pytest.mark.parametrize("piece", ["a", "a ", "The error was here. ", "- an item\n", "`", "**", "| a | b |\n", "1. x ", "? ", "- ", " ", "\n", "```\n", "a.b", "错误，", "( [ "], ids=repr)
def test_the_time_is_linear_in_what_was_said(piece):
    def seconds(size):
        turns = turns_of("P why does it fail", "A " + (piece * (size // len(piece) + 1))[:size], "P 2", "E x\n" + (piece * (size // len(piece) + 1))[:size], "A OK.")
        best = 9e9
        for _ in range(3):
            memhook.statements.cache_clear()
            memhook.cued.cache_clear()
            start = time.process_time()
            memhook.render_digest(memhook.distil(turns, "t"))
            best = min(best, time.process_time() - start)
        return best
    assert seconds(64_000) < 12 * max(seconds(16_000), 0.004)  # 4 times as much; quadratic would be 16


def test_an_answer_of_a_megabyte_gives_a_short_digest():
    text = whole(digest("P go", "A " + "The cause was a missing index, we decided to add it. " * 20_000))
    assert len(text) < 5_000


@pytest.mark.parametrize("first", ["ja", "2, go", "ok"])
def test_the_title_is_the_first_prompt_that_says_something(first):
    assert digest("P " + first, "A Done.", "P Why does the export take so long?", "A It reads each row twice.").title == "Why does the export take so long?"
    assert digest("P " + first, "A Done.").title == first
