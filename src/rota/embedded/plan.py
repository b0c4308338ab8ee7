"""What a keeper is told when it is launched, and the way its modules are loaded."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rota.embedded.binaries import Binaries
from rota.embedded.home import Home

# The keeper outlives its launcher, so it must start fast and depend on nothing but the standard library. Bare
# packages stand in for `rota` and `rota.embedded`: their modules can be imported, their __init__ does not run.
BOOTSTRAP = """
import sys, types
root = sys.argv[2]
for name, path in (("rota", root), ("rota.embedded", root + "/embedded")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from rota.embedded.keeper import main
main(int(sys.argv[3]), sys.argv[4])
"""


@dataclass(frozen=True)
class Plan:
    home: str
    binaries: str
    version: str
    origin: str
    tcp: bool = False
    ephemeral: bool = False
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Home, binaries: Binaries, *, tcp: bool, ephemeral: bool, options: dict[str, str]) -> Plan:
        where, version, origin = str(binaries.directory), binaries.version, binaries.origin
        return cls(str(home.path), where, version, origin, tcp, ephemeral, options)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        return cls(**json.loads(text))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def to_home(self) -> Home:
        return Home(Path(self.home))

    def to_binaries(self) -> Binaries:
        return Binaries(Path(self.binaries), self.version, self.origin)
