"""Guards of what becomes of rows that were taken: tokens, pauses, parking, and answers that never came."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SETTLING = "tests/pollers/test_settling.py"
ATTEMPTS = "tests/pollers/test_attempts.py"
POLLING = "tests/pollers/test_polling.py"
SOURCE = "tests/pollers/test_poll_source.py"
SEEDS = "tests/pollers/test_seed_tests.py"
CONSUME = "tests/service/test_consume.py"
ROUNDS = "tests/pollers/test_rounds.py"
BY_HAND = "tests/pollers/test_kept_by_hand.py"
HANDLERS = "tests/pollers/test_handlers.py"

MUTANTS = [
    Mutant(
        "a stamp under a void token",
        "pollers/settle.py",
        """              and claim.key = rota_row.rota_key
              and claim.token = rota_row.rota_token
""",
        """              and claim.key = rota_row.rota_key
""",
        SETTLING,
    ),
    Mutant(
        "a failure under a void token",
        "pollers/settle.py",
        """            where claim.poller = %(poller)s
              and claim.key = given.key
              and claim.token = given.token
            for update
        ) as claim
    )
    update""",
        """            where claim.poller = %(poller)s
              and claim.key = given.key
            for update
        ) as claim
    )
    update""",
        SETTLING,
    ),
    Mutant(
        "a hand-back of a row under a void token",
        "pollers/settle.py",
        """            where claim.poller = %(poller)s
              and claim.key = given.key
              and claim.token = given.token
            for update
        ) as claim
    ), kept""",
        """            where claim.poller = %(poller)s
              and claim.key = given.key
            for update
        ) as claim
    ), kept""",
        SETTLING,
    ),
    Mutant(
        "a release of what others took",
        "pollers/settle.py",
        """          and claim.poller = %(poller)s
          and claim.token = %(token)s
        order by claim.key
""",
        """          and claim.poller = %(poller)s
        order by claim.key
""",
        SOURCE,
    ),
    Mutant(
        "parked rows among those that are taken",
        "pollers/look.py",
        """                  or rota_claim.parked_at is not null
""",
        "",
        ATTEMPTS,
    ),
    Mutant(
        "waiting rows among those that are taken",
        "pollers/look.py",
        """                  or rota_claim.retry_at > (select rota_clock.rota_now from rota_clock)
""",
        "",
        SEEDS,
    ),
    Mutant(
        "suspects beside each other",
        "pollers/look.py",
        """                  or rota_claim.losses > 0
""",
        "",
        POLLING,
    ),
    Mutant(
        "a stamp that waits for the application",
        "pollers/settle.py",
        """for no key update {skip}
""",
        """for no key update
""",
        SETTLING,
    ),
    Mutant(
        "a claim on a row that is gone",
        "pollers/settle.py",
        """            select rota_held.rota_place from rota_held where rota_held.rota_gone
            union all
""",
        "",
        SETTLING,
    ),
    Mutant(
        "a failure without a pause",
        "pollers/settle.py",
        "retry_at = {schema}.now() + held.pause * interval '1 second',",
        "retry_at = {schema}.now(),",
        ATTEMPTS,
    ),
    Mutant(
        "a row that is never parked",
        "pollers/settle.py",
        "parked_at = case when held.pause is null then {schema}.now() end,",
        "parked_at = null,",
        ATTEMPTS,
    ),
    Mutant(
        "a poison row that is never parked",
        "pollers/rescue.py",
        "parked_at = case when claim.losses + 1 >= %(lost_limit)s then {schema}.now() end,",
        "parked_at = null,",
        POLLING,
    ),
    Mutant(
        "a row that keeps its state",
        "pollers/settle.py",
        '"undone": plan.parts["where"] if definition.form == "state" else "false",',
        '"undone": "false",',
        SETTLING,
    ),
    Mutant(
        "a claim that was cut off",
        "pollers/source.py",
        """            self._owed.add((member, token))
            raise
""",
        """            raise
""",
        SOURCE,
    ),
    Mutant(
        "a claim that came too late",
        "pollers/source.py",
        """            self._owed.add((member, token))  # too late to start anything
""",
        """            pass
""",
        SOURCE,
    ),
    Mutant(
        "a claim that is on its way",
        "pollers/source.py",
        " - self._under_way",
        "",
        SOURCE,
    ),
    Mutant(
        "a stamp whose answer was lost",
        "pollers/settler.py",
        'fate == "lost" and id(outcome) in asked_before and self._still_us(outcome)',
        "False",
        SETTLING,
    ),
    Mutant(
        "an outcome told twice",
        "pollers/settler.py",
        "fresh = [outcome for outcome in outcomes if id(outcome) not in self._told]",
        "fresh = list(outcomes)",
        SETTLING,
    ),
    Mutant(
        "a pace read before another polled the row",
        "pollers/look.py",
        """            -- read anew where someone has polled it meanwhile: the user's row does not tell that it is not due any more
            {lock}
""",
        "",
        ROUNDS,
    ),
    Mutant(
        "a lost row that is not due",
        "pollers/look.py",
        '              and {due}\n            {lock}\n        ) as rota_row\n        limit %(limit)s\n    )""")',
        '            {lock}\n        ) as rota_row\n        limit %(limit)s\n    )""")',
        ROUNDS,
    ),
    Mutant(
        "a round that gives up where others were first",
        "pollers/poller.py",
        """            if not self._source.found_more:
                break""",
        "            break",
        ROUNDS,
    ),
    Mutant(
        "a round that hides what hinders it",
        "pollers/poller.py",
        """            self._check_look()
""",
        "",
        ROUNDS,
    ),
    Mutant(
        "a round that is ended with its rows",
        "pollers/aside.py",
        "            signal.signal(signal.SIGTERM, end)",
        "            pass",
        ROUNDS,
    ),
    Mutant(
        "few rows for each slow look",
        "pollers/source.py",
        "limit + int(rate * self._look_seconds) if self._look_seconds > _SLOW_SECONDS else limit",
        "limit",
        ROUNDS,
    ),
    Mutant(
        "a row given back while its thread runs",
        "pollers/execute.py",
        "if self._occupied is not None or future.cancel():",
        "if True:",
        HANDLERS,
    ),
    Mutant(
        "rows kept though nobody has begun them",
        "pollers/poller.py",
        "unbegun = self._source.hand_back(self._waiting)",
        "unbegun = self._source.hand_back([])",
        HANDLERS,
    ),
    Mutant(
        "a cancelled round that waits for a thread beyond its timeout",
        "pollers/execute.py",
        "return await self._within(until, ended)",
        "return await ended",
        HANDLERS,
    ),
    Mutant(
        "a drain that hides what hinders a poller",
        "jobs/worker.py",
        "        if hindered:\n",
        "        if False:\n",
        "tests/cli/test_commands.py",
    ),
    Mutant(
        "a stamp that waits for a lock for as long as it takes",
        "pollers/sessions.py",
        "settings=_SETTLING, everywhere=_STAMPING_LIMITS",
        "settings=_SETTLING",
        "tests/pollers/test_hindered_stamps.py",
    ),
    Mutant(
        "a worker that waits for a poller's thread",
        "runtime/process.py",
        '("rota-task", "rota-poll", "rota-project")',
        '("rota-task", "rota-project")',
        POLLING,
    ),
    Mutant(
        "a plan kept for a table that has changed",
        "pollers/by_hand.py",
        "if digest == mark.digest and plan.definition is definition:",
        "if plan.definition is definition:",
        BY_HAND,
    ),
    Mutant(
        "connections closed under a round",
        "pollers/by_hand.py",
        "            while self._users:\n",
        "            while False:\n",
        BY_HAND,
    ),
    Mutant(
        "a script that leaves its membership to the others",
        "pollers/by_hand.py",
        "weakref.finalize(self, self._aside.end)",
        'weakref.finalize(self, print, end="")',
        BY_HAND,
    ),
    Mutant(
        "connections kept for a poll a day",
        "pollers/by_hand.py",
        "                self.over = self._users == 0",
        "                pass",
        BY_HAND,
    ),
    Mutant(
        "a worker that is shown after its end",
        "leases/membership.py",
        "member.worker = member.work = None",
        "pass",
        BY_HAND,
    ),
    Mutant("a cancellation that costs an attempt", "pollers/poller.py", "self._is_cancelled() or ", "", BY_HAND),
    Mutant(
        "a poller forgotten while it polls",
        "pollers/operate.py",
        "    if polling:\n",
        "    if False:\n",
        "tests/cli/test_poller_commands.py",
    ),
    Mutant(
        "a long key that stops all others",
        "pollers/source.py",
        "if self._leave_out_long_keys(error):",
        "if False:",
        "tests/pollers/test_long_keys.py",
    ),
    Mutant(
        "pollers that nobody chose",
        "workers.py",
        "choose_pollers(app.pollers, pollers)",
        "app.pollers.definitions",
        POLLING,
    ),
    Mutant(
        "a schema with a dot taken for two names",
        "pollers/definition.py",
        '[schema, table] if "." in schema else ',
        "",
        "tests/pollers/test_typed_keys.py",
    ),
    Mutant(
        "forgetting that never catches up",
        "pollers/polling.py",
        "_TIDY_MORE_SECONDS if more else",
        "_TIDY_MORE_SECONDS if False else",
        POLLING,
    ),
    Mutant(
        "a poll that ended cancelled with its round",
        "pollers/poller.py",
        "task not in self._polled and ",
        "",
        ROUNDS,
    ),
    Mutant(
        "a cancelled round that waits for a lock",
        "pollers/poller.py",
        "patience.left <= 0 or self._ending",
        "patience.left <= 0",
        ROUNDS,
    ),
    Mutant(
        "a pool that could not be opened and is closed",
        "postgres/pool.py",
        "None if _failed(opening) else opening.result()",
        "opening.result()",
        BY_HAND,
    ),
]
