"""Guards of looking at pollers: whether an index leads to due rows, what is printed, and what commands say."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CHECK = "tests/pollers/test_poller_check.py"
TALLY = "tests/pollers/test_tally.py"
COMMANDS = "tests/cli/test_poller_commands.py"

MUTANTS = [
    Mutant(
        "a condition that no index may have",
        "pollers/index.py",
        "    if not refused:",
        "    if True:",
        CHECK,
    ),
    Mutant(
        "an index that is made beside others on partitions",
        "pollers/index.py",
        '"create index" if partitioned else "create index concurrently"',
        '"create index concurrently"',
        CHECK,
    ),
    Mutant(
        "a walk through the whole index",
        "pollers/check.py",
        'bounded = bool(walks) and (partial or all("Index Cond" in walk for walk in walks))',
        "bounded = bool(walks)",
        CHECK,
    ),
    Mutant(
        "an index that leads elsewhere",
        "pollers/check.py",
        "read.bounded and (read.in_order or _sorts(plan)) for",
        "read.bounded for",
        CHECK,
    ),
    Mutant(
        "a verdict by the size of the table",
        "pollers/check.py",
        'unwanted = ["enable_seqscan"]',
        "unwanted = []",
        CHECK,
    ),
    Mutant(
        "a trigger that fires for our stamps",
        "pollers/ddl.py",
        "column.name not in stamped and not column.generated",
        "not column.generated",
        CHECK,
    ),
    Mutant(
        "a quote in a poller's name",
        "pollers/ddl.py",
        'text.replace("\'", "\'\'")',
        "text",
        CHECK,
    ),
    Mutant(
        "a check that never fails",
        "cli/pollers.py",
        "else 0 if all(each.is_fit for each in checks) else 1)",
        "else 0)",
        COMMANDS,
    ),
    Mutant(
        "a row that someone else polls",
        "cli/pollers.py",
        "1 if stats.errors or stats.held_by is not None else 0",
        "1 if stats.errors else 0",
        COMMANDS,
    ),
    Mutant(
        "a release of all that nobody asked for",
        "cli/pollers.py",
        "if bool(keys) == everything:",
        "if False:",
        COMMANDS,
    ),
]
