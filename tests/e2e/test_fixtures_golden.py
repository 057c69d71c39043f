"""What every fixture builds, held against the golden files that people review in pull requests."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
import yaml
from pytest_snapshot.plugin import Snapshot  # type: ignore[import-untyped]

from aj.build.engine import Outcome, bring_up_to_date
from aj.build.render import SYMBOLIC_ARCHIVE, render_payload
from aj.build.select import Entry, Selection
from aj.build.steps import archive_record
from aj.shared.errors import InputError
from aj.shared.job.amlt import amlt_document
from aj.shared.job.naming import job_base_name
from aj.shared.jsonio import canonical
from aj.shared.model import Identity, Notice, nowhere
from aj.shared.redact import redact, secret_names
from aj.shared.schema import check
from aj.shared.spec import describe, spec_from_json, spec_to_json, symbolic
from aj.shared.yaml import dump, load
from fixtures.cases import Case, bad_cases, cases, read_case, selection_of, spec_of, steps_of

each_case = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
each_bad_case = pytest.mark.parametrize("case", bad_cases(), ids=lambda case: case.name)


@each_case
def test_golden(case: Case, snapshot: Snapshot, tmp_path: Path) -> None:
    """Merged template, spec, payload, script, files, warnings: every byte that a change of aj or a fixture moves."""
    snapshot.snapshot_dir = case.folder
    snapshot.assert_match_dir(_golden(case, tmp_path), "golden")


@each_bad_case
def test_error_golden(case: Case, snapshot: Snapshot, tmp_path: Path) -> None:
    """The error has a place and a way out, and comes before anything is written."""
    with contextlib.chdir(case.folder), pytest.raises(InputError) as caught:
        steps_of(case, tmp_path / case.name)
    assert not list(tmp_path.iterdir())
    error = caught.value
    text = _lines(f"{type(error).__name__}: {error.message}", error.where, error.hint)
    snapshot.snapshot_dir = case.folder
    snapshot.assert_match(text, "error.txt")


@each_case
def test_the_second_build_has_nothing_to_do(case: Case, tmp_path: Path) -> None:
    first, second = _build(case, tmp_path), _build(case, tmp_path)
    assert {name for name, outcome in first.items() if not outcome.ran} == set()
    assert {name for name, outcome in second.items() if outcome.ran} == first.keys() & {"facts"}
    assert {name: outcome.target for name, outcome in first.items()} == {
        name: outcome.target for name, outcome in second.items()
    }


@each_case
def test_a_copy_elsewhere_builds_the_same_bytes(case: Case, tmp_path: Path) -> None:
    """G05: clone path, current folder and times of files are not content."""
    elsewhere = tmp_path / "another clone" / case.name
    shutil.copytree(case.folder, elsewhere, symlinks=True)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert _golden(read_case(elsewhere), tmp_path) == _golden(case, tmp_path / "here")


@each_case
def test_identity_is_not_content(case: Case) -> None:
    """Another id, name and time give the same job once they are made symbolic; the job survives JSON unchanged."""
    real = spec_of(case, Identity("0badcafe", _base_name(case), "2024-05-01T12:00:00+00:00")).spec
    assert symbolic(real) == spec_of(case).spec
    assert spec_from_json(json.loads(canonical(spec_to_json(real)))) == real


@each_case
def test_golden_payloads_are_valid_and_hide_secrets(case: Case) -> None:
    """The committed files themselves, whoever wrote them."""
    golden = case.folder / "golden"
    spec = json.loads((golden / "spec.json").read_text("utf-8"))
    payload = json.loads((golden / "payload.json").read_text("utf-8"))["payload"]
    schema = f"payload-{case.via}" if case.via else describe(spec["service"]).payload_schema
    check(payload, schema, f"the golden payload of `{case.name}`")
    for path in golden.iterdir():
        assert "hush-hush" not in path.read_text("utf-8"), path


@each_case
def test_command_and_setup_are_scripts_that_bash_can_read(case: Case) -> None:
    for script in case.folder.glob("golden/*.sh"):
        checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_amlt_documents_obey_its_schema_where_the_template_does(contracts: Path) -> None:
    """amlt wants an image; every other template is as it wants it."""
    schema = json.loads((contracts / "amlt-config.schema.json").read_text("utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    texts = {case.name: (case.folder / "golden" / "amlt.yaml").read_bytes() for case in cases()}
    documents = {name: load(text, name).value for name, text in texts.items()}
    for name, text in texts.items():
        assert yaml.safe_load(text) == documents[name], f"{name}: YAML 1.1 reads something else"
    with_image = {name: document for name, document in documents.items() if "image" in document.get("environment", {})}
    assert len(with_image) >= 8
    faults = [f"{name}: {error.message}" for name in with_image for error in validator.iter_errors(with_image[name])]
    assert faults == []


def test_azure_payloads_obey_the_services_contract(contracts: Path) -> None:
    schema = json.loads((contracts / "aml-commandjob.contract.schema.json").read_text("utf-8"))
    validator = jsonschema.validators.validator_for(schema)({**schema, "$ref": "#/$defs/JobPut"})
    faults, checked = [], []
    for case in cases():
        spec = json.loads((case.folder / "golden" / "spec.json").read_text("utf-8"))
        if spec["service"] in ("aml", "sing") and not case.via:
            payload = json.loads((case.folder / "golden" / "payload.json").read_text("utf-8"))["payload"]
            faults += [f"{case.name}: {error.message}" for error in validator.iter_errors(payload)]
            checked.append(case.name)
    assert faults == []
    assert len(checked) >= 8


def test_doit_shows_and_builds_the_graph(project: Path, tmp_path: Path) -> None:
    """`doit list`, `info` and a build in the repository, as a contributor types them."""
    memo = str(tmp_path / "doit.db")  # the repository's own is locked while doit runs these tests
    listed = _doit(project, "list", "--all", "--quiet", "--db-file", memo)
    assert listed.returncode == 0, listed.stderr
    steps = ("template", "spec", "archive", "facts", "payload")
    graph = {line for line in listed.stdout.split() if line.startswith("graph:")}
    skipped = {case.name: ("archive", "facts") if case.via else () for case in cases()}
    assert graph == {
        f"graph:{case.name}:{step}" for case in cases() for step in steps if step not in skipped[case.name]
    }
    built = _doit(project, "run", "--db-file", memo, "graph:quickstart:payload")
    assert built.returncode == 0, built.stderr
    shown = _doit(project, "info", "--db-file", memo, "graph:quickstart:payload")
    assert "build/graph/quickstart/payload.json" in shown.stdout, shown.stderr
    golden = project / "fixtures" / "quickstart" / "golden" / "payload.json"
    assert (project / "build" / "graph" / "quickstart" / "payload.json").read_bytes() == golden.read_bytes()


def _doit(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "doit", *words]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=60)


def _build(case: Case, folder: Path) -> dict[str, Outcome]:
    target = folder / case.name
    return bring_up_to_date(steps_of(case, target), target / "memo.db", nowhere)


def _golden(case: Case, folder: Path) -> dict[str, str]:
    with contextlib.chdir(case.folder):  # places in messages are as a person there would type them
        built = spec_of(case)
        selection, notices = selection_of(case, built)
        outcomes = _build(case, folder)
        # What a real run shows depends on its real name.
        named = spec_of(case, replace(built.spec.identity, base=_base_name(case)))
    spec, secrets = built.spec, secret_names(built.spec)
    facts = json.loads(outcomes["facts"].target) if "facts" in outcomes else {}
    record = archive_record(outcomes["archive"].target) if "archive" in outcomes else SYMBOLIC_ARCHIVE
    payload = render_payload(spec, facts, record)
    setup = {"setup.sh": "".join(f"{lines}\n" for lines in spec.setup)} if spec.setup else {}
    return setup | {
        **{f"{name}.json": outcomes[name].target.decode() for name in ("template", "spec", "payload")},
        "payload.rendered.json": canonical(redact(payload, secrets)).decode(),
        "command.sh": spec.command + "\n",
        "name.txt": named.spec.name + "\n",
        "files.txt": _files(selection),
        "warnings.txt": "".join(map(_notice, (*named.warnings, *notices, *selection.notices))),
        "amlt.yaml": dump(redact(amlt_document(spec), secrets)),
    }


def _base_name(case: Case) -> str:
    return job_base_name(case.env.get("AJ_NAME"), case.code, case.words.argv)


def _files(selection: Selection) -> str:
    packed = [_file(entry) for entry in selection.entries]
    skipped = [f"skipped {_shown(skip.path)} ({skip.rule or skip.reason})" for skip in selection.skipped]
    return "".join(f"{line}\n" for line in (*packed, *skipped))


def _file(entry: Entry) -> str:
    if entry.kind == "link":
        return f"link {_shown(entry.path)} -> {_shown(entry.content or b'')}"
    return f"{entry.mode:04o} {_shown(entry.path)}" + ("/" if entry.kind == "folder" else "")


def _shown(path: bytes) -> str:
    return path.decode().replace("\n", "\\n")


def _notice(notice: Notice) -> str:
    return _lines(notice.message, notice.where, notice.hint)


def _lines(message: str, where: str | None, hint: str | None) -> str:
    rest = "".join(f"  {name}: {text}\n" for name, text in (("where", where), ("hint", hint)) if text)
    return f"{message}\n{rest}"
