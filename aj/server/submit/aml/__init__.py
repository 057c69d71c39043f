"""The daemon's half of `aml`: which effects and which jobs there are."""

from __future__ import annotations

from aj.server.submit import Execution
from aj.server.submit.aml.facts import known_workspaces
from aj.server.submit.aml.jobs import AmlJobs
from aj.server.submit.aml.submit import AmlEffects

EXECUTION = Execution(effects=AmlEffects, jobs=AmlJobs, configured=lambda home: bool(known_workspaces(home)))
