"""The truth of plan: over random histories, what a run does is what plan had just said, and what a fresh clone would do.

`AJ_PLAN_STEPS` sets how many steps are played (200 at least), `AJ_PLAN_SEED` replays a history; both are printed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from aj.build.store import Store
from aj.server.submission import Frozen, Submissions
from aj.shared.job.build import Invocation, build_spec
from aj.shared.model import Caller, Identity, JobSpec, Plan, nowhere
from aj.shared.paths import Home
from aj.shared.template.template import load_template

STEPS = max(200, int(os.environ.get("AJ_PLAN_STEPS", "200")))
STEPS_PER_HISTORY = 40

NAMES = st.sampled_from(["train.py", "lib/model.py", "lib/deep/x.py", "data.bin", "notes.txt", "log/run.log", "a b.py"])
SAME_SIZE = st.sampled_from([letter * 40 for letter in (b"A", b"B", b"C")])
CONTENT = SAME_SIZE | st.sampled_from(
    [b"", b"A" * 40, b"B" * 40, b"print(1)\n", b"#!/bin/sh\n", bytes(range(256)) * 40]
)
TEMPLATE = (
    "base: {base}\nconfig:\n  target: {{service: double}}\n  jobs:\n    - submit_args:\n        env: {{LR: {lr}}}\n"
)


class Histories(RuleBasedStateMachine):
    """A project under edit, its remote, and a person who plans and then runs."""

    @initialize()
    def begin(self) -> None:
        self.world = Path(tempfile.mkdtemp(prefix="aj-truth-"))
        self.code = self.world / "project"
        self.home = Home(self.code / ".azure_jobs")
        for folder in ("template", "team"):
            (self.home.root / folder).mkdir(parents=True)
        (self.home.root / "team" / "any.yaml").write_text("config:\n  jobs:\n    - instance_count: 1\n")
        self.write_leaf("team.any", "1e-3")
        (self.code / "train.py").write_bytes(b"print(1)\n")
        self.argv = ("echo", "hello")
        self.sent: str | None = None
        self.blobs: set[str] = set()
        self.runs = 0

    def teardown(self) -> None:
        if hasattr(self, "world"):
            shutil.rmtree(self.world)

    # What people do to a project.

    @rule(name=NAMES, content=CONTENT)
    def write(self, name: str, content: bytes) -> None:
        path = self.code / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    @rule(name=NAMES, content=SAME_SIZE)
    def write_with_the_old_mtime(self, name: str, content: bytes) -> None:
        path = self.code / name
        if path.exists():
            before = path.stat()
            path.write_bytes(content)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(name=NAMES)
    def touch(self, name: str) -> None:
        if (self.code / name).exists():
            os.utime(self.code / name)

    @rule(name=NAMES, mode=st.sampled_from([0o644, 0o755, 0o600, 0o664]))
    def chmod(self, name: str, mode: int) -> None:
        if (self.code / name).exists():
            (self.code / name).chmod(mode)

    @rule(old=NAMES, new=NAMES)
    def rename(self, old: str, new: str) -> None:
        if (self.code / old).exists():
            (self.code / new).parent.mkdir(parents=True, exist_ok=True)
            (self.code / old).rename(self.code / new)

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        (self.code / name).unlink(missing_ok=True)

    @rule(lines=st.lists(st.sampled_from(["*.log", "lib/", "!lib/deep", "data.*", "# none"]), max_size=3))
    def ignore(self, lines: list[str]) -> None:
        (self.code / ".amltignore").write_text("\n".join(lines))

    @rule(lr=st.sampled_from(["1e-3", "1e-4", "0777", "yes"]), base=st.sampled_from(["team.any", "[team.any]"]))
    def write_leaf(self, base: str, lr: str) -> None:
        (self.home.root / "template" / "gpu.yaml").write_text(TEMPLATE.format(base=base, lr=lr))

    @rule(nodes=st.integers(1, 2), comment=st.sampled_from(["", "# a comment\n"]))
    def write_fragment(self, nodes: int, comment: str) -> None:
        text = f"{comment}config:\n  jobs:\n    - instance_count: {nodes}\n"
        (self.home.root / "team" / "any.yaml").write_text(text)

    @rule(word=st.sampled_from(["hello", "a b", "$HOME", ""]))
    def other_arguments(self, word: str) -> None:
        self.argv = ("echo", word)

    # What happens to a machine.

    @rule(
        victim=st.sampled_from(
            ["build/lines/gpu/memo.db", "build/stat.cache", "build/lines/gpu/spec.json", "build/trees"]
        )
    )
    def lose_a_memo(self, victim: str) -> None:
        path = self.home.root / victim
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    @rule(victim=st.sampled_from(["build/lines/gpu/memo.db", "build/stat.cache", "build/lines/gpu/payload.json"]))
    def damage_a_memo(self, victim: str) -> None:
        path = self.home.root / victim
        if path.exists():
            path.write_bytes(b"\x00noise" * 50)

    @rule()
    def lose_the_cache(self) -> None:
        shutil.rmtree(self.world / "cache", ignore_errors=True)

    @rule()
    def flip_a_bit_of_a_cached_archive(self) -> None:
        for archive in (self.world / "cache").rglob("*.tar.gz"):
            content = bytearray(archive.read_bytes())
            content[len(content) // 2] ^= 1
            archive.write_bytes(content)

    @rule()
    def lose_the_remote_blobs(self) -> None:
        shutil.rmtree(self.world / "remote" / "blobs", ignore_errors=True)
        self.blobs = set()

    @rule(delay=st.floats(0, 0.03))
    def a_run_is_killed(self, delay: float) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.submissions().prepare(self.spec(), self.caller(), nowhere)
            finally:
                os._exit(0)
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    # What is held.

    @rule()
    def plan_twice(self) -> None:
        before = self.state_beside_the_build_folder()
        first = self.submissions().plan(self.spec(), self.caller(), nowhere)
        again = self.submissions().plan(self.spec(), self.caller(), nowhere)
        assert first.plan_id == again.plan_id or any(step.why for step in first.steps)
        assert self.state_beside_the_build_folder() == before, "a plan writes nothing outside the build folder"
        self.hold(first, self.fresh_clone())

    @invariant()
    def plan_then_run(self) -> None:
        """After each step: what the run does is what the plan had said, and what a fresh clone would do."""
        plan = self.submissions().plan(self.spec(), self.caller(), nowhere)
        self.hold(plan, self.fresh_clone())
        log = self.remote_log()
        frozen = self.submissions().prepare(self.spec(), self.caller(), nowhere)
        assert frozen.archive is not None and plan.archive is not None
        assert (frozen.payload_sha256, frozen.archive.sha256) == (plan.payload_sha256, plan.archive.sha256)
        result = self.submissions().execute(frozen, self.caller(), nowhere)
        said = {step.name: step.bytes for step in plan.steps if step.kind == "write" and step.verdict == "would"}
        did = [line.split() for line in self.remote_log()[len(log) :]]
        assert sorted(name for name, _ in did) == sorted(said), "the run wrote what the plan had said"
        assert did[-1][0] == "submit", "the uploads come first, side by side"
        assert all(said[name] == int(size) for name, size in did if name != "submit"), "the same bytes"
        self.sent = frozen.payload_sha256
        self.blobs |= {frozen.archive.sha256}
        assert result.status == "submitted"

    def hold(self, plan: Plan, truth: Frozen) -> None:
        assert plan.payload_sha256 == truth.payload_sha256, "a stale payload"
        assert plan.archive is not None and truth.archive is not None
        assert plan.archive.sha256 == truth.archive.sha256, "a stale archive"
        assert plan.would_change == (truth.payload_sha256 != self.sent)
        verdicts = {step.name: step.verdict for step in plan.steps}
        assert verdicts["payload"] == ("new" if self.sent is None else "changed" if plan.would_change else "same")
        assert verdicts["upload-code"] == ("reuse" if truth.archive.sha256 in self.blobs else "would")

    def submissions(self) -> Submissions:
        return Submissions(self.home, Store(self.world / "cache"))

    def caller(self) -> Caller:
        return Caller(cwd=str(self.code), env={})

    def spec(self) -> JobSpec:
        return self.spec_at(self.home, self.code)

    def spec_at(self, home: Home, code: Path) -> JobSpec:
        self.runs += 1
        identity = Identity(f"{self.runs:08x}", "truth", "2026-01-01T00:00:00+00:00")
        call = Invocation(argv=self.argv, cwd=code, processes=1)
        return build_spec(load_template(home, "gpu"), call, identity).spec

    def fresh_clone(self) -> Frozen:
        """The same sources in another folder with no memory at all."""
        with tempfile.TemporaryDirectory(prefix="aj-clone-") as name:
            code = Path(name) / "elsewhere"
            shutil.copytree(self.code, code, symlinks=True, ignore=shutil.ignore_patterns("build"))
            home = Home(code / ".azure_jobs")
            submissions = Submissions(home, Store(Path(name) / "cache"))
            return submissions.prepare(self.spec_at(home, code), Caller(str(code), {}), nowhere)

    def remote_log(self) -> list[str]:
        path = self.world / "remote" / "log"
        return path.read_text().splitlines() if path.exists() else []

    def state_beside_the_build_folder(self) -> dict[str, bytes]:
        return {
            str(path.relative_to(self.code)): path.read_bytes()
            for path in sorted(self.code.rglob("*"))
            if path.is_file() and "build" not in path.relative_to(self.code).parts
        }


def test_G04_G05_G08_plan_tells_the_truth_over_random_histories(double_backend: None) -> None:
    chosen = int(os.environ.get("AJ_PLAN_SEED", random.SystemRandom().randrange(2**32)))
    histories = -(-STEPS // STEPS_PER_HISTORY)
    print(f"plan truth: {histories} histories of {STEPS_PER_HISTORY} steps, AJ_PLAN_SEED={chosen}")
    machine = settings(
        max_examples=histories,
        stateful_step_count=STEPS_PER_HISTORY,
        phases=[Phase.generate, Phase.shrink],
        deadline=None,
    )
    run_state_machine_as_test(seed(chosen)(Histories), settings=machine, _min_steps=STEPS_PER_HISTORY - 5)
