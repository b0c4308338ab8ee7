"""What is wrong with this database, this app and this machine, and what mends it: `rota doctor`.

A check is a function from the `Patient` to a `Finding`; its name is that of the check. Each asks little and writes nothing,
so that it can be made at any time on a server that is in trouble.
"""

from rota.runtime.doctor.budgets import Budgets
from rota.runtime.doctor.examine import Diagnosis, examine
from rota.runtime.doctor.finding import Finding
from rota.runtime.doctor.patient import Patient

__all__ = ["Budgets", "Diagnosis", "Finding", "Patient", "examine"]
