"""The daemon's half of `aml` and of `sing`: which effects and which jobs there are."""

from __future__ import annotations

from functools import partial

from aj.server.submit import Execution
from aj.server.submit.aml.facts import known_workspaces
from aj.server.submit.aml.jobs import AmlJobs
from aj.server.submit.aml.sing import SingEffects
from aj.server.submit.aml.submit import AmlEffects

EXECUTION = Execution(effects=AmlEffects, jobs=AmlJobs, configured=lambda home: bool(known_workspaces(home)))
SING = Execution(effects=SingEffects, jobs=partial(AmlJobs, service="sing"))
