"""Exit codes, one-line errors, and help that explains."""

import errno
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib.metadata import Distribution, EntryPoint, packages_distributions
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import tiebreak as tiebreak_api
from tests.source_tree import ROOT, imports_of, package_modules, parse
from tests.tiebreak.parties import Parties
from tiebreak.api.training import calibrating
from tiebreak.cli import calibrate, main
from tiebreak.cli.calibrate import MARGIN, ORDERS, SHARE, STEPS
from tiebreak.cli.main import (
    CORE,
    EXTRAS,
    CommandSet,
    all_commands,
    command_groups,
    missing_of,
    registered,
    run,
    tiebreak,
)
from tiebreak.engine.logged import calibration
from tiebreak.protocol import errors

COMMANDS = {name: found.commands[name] for name, found in all_commands().items()}
"""Those of the core and of what is installed on top of it, each with the first sentence of its help."""


def group_that(action: Callable[[], object]) -> click.Group:
    @click.group()
    def group() -> None:
        pass

    @group.command()
    def act() -> object:
        return action()

    return group


def raising(error: BaseException) -> click.Group:
    def action() -> None:
        raise error

    return group_that(action)


ERRORS = [
    (errors.EncodingError("e"), 2, "EncodingError: e"),
    (errors.InvalidSnapshot(8, 9), 2, "InvalidSnapshot: InvalidSnapshot(offset=8, value=9)"),
    (errors.ProgramError(3, "rule"), 2, "ProgramError: instruction 3: rule"),
    (errors.ProgramError(None, "rule"), 2, "ProgramError: program: rule"),
    (errors.ProofError("e"), 2, "ProofError: e"),
    (errors.ForbiddenLoss("e"), 2, "ForbiddenLoss: e"),
    (errors.SignatureError("e"), 2, "SignatureError: e"),
    (errors.IllegalMove("e"), 2, "IllegalMove: e"),
    (errors.VerificationError("e"), 2, "VerificationError: e"),
    (errors.ForbiddenLoss("e"), 2, "ForbiddenLoss: e"),
    (errors.ConfigurationError("two\n  lines"), 1, "ConfigurationError: two lines"),
    (errors.CannotCheck("e"), 1, "CannotCheck: e"),
    (errors.StateError("e"), 1, "StateError: e"),
    (errors.TiebreakError("e"), 1, "TiebreakError: e"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (click.UsageError("no"), 1, "Error: no"),
    (OSError(errno.ENOSPC, "No space left", "x"), 1, "No space left: x; free space or choose another folder"),
    (PermissionError(errno.EACCES, "Denied"), 1, "Denied: while writing; free space or choose another folder"),
]


@pytest.mark.parametrize(("error", "code", "line"), ERRORS, ids=lambda v: type(v).__name__)
def test_tiebreak_errors_print_one_line_and_set_the_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(raising(error), ["act"]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.strip().splitlines()[-1] == line
    assert "Traceback" not in printed.err


def test_every_tiebreak_error_class_is_tested() -> None:
    family = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, errors.TiebreakError)}
    assert family <= {type(error) for error, _, _ in ERRORS}


@pytest.mark.parametrize("error", [ZeroDivisionError(), OSError(errno.EBADF, "bad descriptor")])
def test_unexpected_exceptions_propagate_from_a_command(error: Exception) -> None:
    with pytest.raises(type(error)):
        run(raising(error), ["act"])


def every_command(group: click.Group = tiebreak, path: str = "tiebreak") -> Iterator[tuple[str, click.Command]]:
    """Each command with its whole name, also those below other commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from every_command(command, f"{path} {name}")


FRAGMENTS = re.compile(r"(Of|By|As|Where|What|Which|Who|When|How|In which|Also all) ")
"""The beginnings of helps that leave a reader to guess the rest of the sentence."""
SILENT = {"demo", "hub", "simulate", "up", "client", "trainer", "auditor", "watcher", "data import", "data", "chain",
          "corpus", "ownership", "receipt"}  # fmt: skip
"""Commands that run until they are stopped, write a report into files, or only have commands below them."""


def test_help_says_what_each_command_and_option_does(cases: Callable[[], None]) -> None:
    """A sentence or a noun phrase that ends with a stop, and a name in the help for each argument."""
    for name, command in every_command():
        short = name.removeprefix("tiebreak ")
        usage, about = command.get_help(click.Context(command, info_name=name)), command.help or ""
        if short in COMMANDS:
            assert len(usage.split()) > 60
            assert " ".join(about.split()).startswith(COMMANDS[short]), "the line in the table is its first sentence"
        assert not re.search(r"^  \w+  .*\.\.\.$", usage, re.MULTILINE), f"{name}: a line in its table is cut off"
        flags = [flag for parameter in command.params for flag in parameter.opts]
        assert "--json" in flags or short in SILENT or short.endswith(" init"), name
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                metavar = parameter.make_metavar(click.Context(command)).strip("[].")
                assert re.search(rf"\b{metavar}s?\b", about), (name, metavar)
                continue
            assert isinstance(parameter, click.Option)
            text = parameter.help or ""
            assert re.fullmatch(r"(?:[A-Z]|settle: ).*[.\])]", text), (name, text)
            assert not FRAGMENTS.match(text), (name, text)
            assert parameter.opts[0] in usage
            cases()


def test_the_help_of_all_commands_fits_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = CliRunner().invoke(tiebreak, ["--help"], prog_name="tiebreak")
    lines = done.output.splitlines()
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert [line[:-1] for line in lines if re.fullmatch(r"\w.*:", line)] == [*command_groups()]
    for name, about in COMMANDS.items():
        assert f"  {name:<9}  {about}" in lines
    assert sum(map(len, command_groups().values())) == len(COMMANDS) <= 36


@pytest.mark.parametrize(("wrong", "right"), [("trian", "train"), ("audti", "audit"), ("owner", "ownership")])
def test_a_misspelt_command_is_answered_with_the_nearest(
    wrong: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiebreak, [wrong]) == 1
    assert f"'{right}'" in capsys.readouterr().err


def test_a_shell_completes_commands() -> None:
    asked = {"_TIEBREAK_COMPLETE": "bash_complete", "COMP_WORDS": "tiebreak ow", "COMP_CWORD": "1"}
    words = [sys.executable, "-c", "from tiebreak.cli.main import main; main()"]
    done = subprocess.run(words, cwd=ROOT, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stdout == "plain,ownership\n"


def test_without_a_terminal_the_passphrase_error_names_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TIEBREAK_PASSPHRASE", raising=False)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: (_ for _ in ()).throw(click.Abort()))
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115, PTH123 (closed with the process)
    assert run(tiebreak, ["key", str(tmp_path / "key.pem")]) == 1
    assert "in the environment variable TIEBREAK_PASSPHRASE" in capsys.readouterr().err


def test_every_command_module_is_registered_as_a_command() -> None:
    shared = {"__init__", "main", "options"}
    for one in {commands.package: commands for commands in all_commands().values()}.values():
        modules = {path.stem for path in (ROOT / one.package.replace(".", "/")).glob("*.py")}
        assert {one.modules.get(name, name) for name in one.commands} == modules - shared
        assert {*one.modules, *(command.split()[0] for command in one.needs)} <= set(one.commands)


def test_a_package_that_is_gone_registers_no_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint(name="a", value="tiebreak.no_such_package:COMMANDS", group="tiebreak.commands"),
        EntryPoint(name="b", value="tiebreak.cli.main:CORE", group="tiebreak.commands"),
    ]
    monkeypatch.setattr(main, "entry_points", lambda *, group: points)
    assert [found.package for found in registered.__wrapped__()] == ["tiebreak.cli"]


HEAVY = {"torch", "numpy", "web3", "eth_abi", "sklearn", "scipy", "pydantic", "simpy", "jinja2", "transformers"}
APART = ("boards", "chains", "endings", "evaluation", "finetuning", "huggingface", "onchain", "ordered_jobs")
APART += ("sampling", "templates", "weights")
"""Modules of the API that need an extra."""
SEEN = "import sys\nimport tiebreak\nfrom tiebreak.cli.main import run\nfrom tiebreak.cli import main\n"


def imported_by(code: str) -> set[str]:
    """Names of all modules that a fresh interpreter has after running some code."""
    code += "\nsys.stderr.write('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


def running(*commands: list[str], code: int = 0) -> set[str]:
    """The modules that a fresh interpreter has loaded after these commands. The last one ends with this code."""
    *before, last = (f"run(main.tiebreak, {arguments!r}) == " for arguments in commands)
    return imported_by(SEEN + "\n".join(f"assert {line}" for line in [*(f"{one}0" for one in before), f"{last}{code}"]))


def test_version_help_and_unknown_commands_import_nothing_heavy() -> None:
    found = running(["--version"], ["--help"], ["no-such-command"], code=1)
    assert not HEAVY & found
    assert not [name for name in found if name.startswith(("tiebreak.engine", "tiebreak.lab.sim", "rich"))]
    assert len(found) < 250


def test_help_imports_nothing_heavy() -> None:
    assert not (HEAVY - {"numpy"}) & running(*([name, "--help"] for name in COMMANDS))


ADDRESS = f"0x{'1' * 40}"
NO_RUN, NO_OFFER, NO_DATA = "expected the folder of a run, got", "expected an offer in", "bytes of a header, got"
WRONG = [
    *((f"{command} other", NO_RUN) for command in (
        "train --key trainer.pem", "audit", "audit --forward", "monitor --once", "weights -o w",
        "certify --weights junk -o c", "ownership prove -o p --key trainer.pem", "dispute run",
        "ownership check --challenge junk", "chain post --key trainer.pem --rpc http://127.0.0.1:9",
        "chain settle --key trainer.pem --rpc x", "chain challenge --key trainer.pem --rpc x --anyway",
    )),
    *((f"{command} captured", NO_RUN) for command in ("train --key trainer.pem", "audit", "weights -o w")),
    *((f"{command} other", NO_OFFER) for command in (
        "show", "show --long", "show --workers 2", "publish", "publish --hub http://127.0.0.1:9 --key trainer.pem",
    )),
    ("no-such-command", "Usage: tiebreak"), ("capture", "Usage: tiebreak"),
    ("publish run --hub http://127.0.0.1:9", "expected --key FILE of the client or the trainer"),
    ("train run --key junk", "expected mode 0600"), ("train run --key nowhere", "does not exist"),
    ("train run --key client.pem", "expected the key of trainer"), ("train nowhere --key client.pem", "does not exist"),
    ("train run --key trainer.pem --keep some", "expected all, every:M or last, got 'some'"),
    ("train agreed --key trainer.pem --quiet --until 8", "expected until of 1 to 7 steps, got 8"),
    ("train run --key trainer.pem --quiet --json", "expected one of --quiet and --json"),
    *((f"train agreed --key trainer.pem --device={name}", "a device that this torch computes FP64 on, such as cpu or")
      for name in ("abacus", "", "meta")),
    ("audit run --policy junk -o new", "expected JSON"), ("audit run --segment 3", "a checkpoint below 3, got"),
    ("audit run --ledger x", "expected --ledger together with"), ("audit run --device abacus -o new", "a device that"),
    ("audit run --from-step 8", "expected steps within 1 to 7, which are signed, got 8 to 7"),
    ("audit run --from-step 5 --to-step 4", "got 5 to 4"), ("audit run --sample 4", "a sample of 1 to 3 segments, got"),
    ("audit run --jobs 1 --ledger junk", "expected a ledger"), ("audit agreed", "at least one signed head"),
    ("audit run --forward --jobs 2", "no option about replays with --forward, got --jobs"),
    ("audit run --sample 1 --segment 0", "expected one of --segment"), ("audit run --seed x", "together with --sample"),
    ("audit run --forward --sample 0", "not in the range"), ("audit agreed --forward", "at least one signed head"),
    ("weights agreed -o w --unsettled", "at least one signed head"), ("dispute run agreed", "the replay has 0"),
    ("publish run --count 99", "expected a signed head of count 99"), ("publish run -o other", "new or empty folder"),
    ("capture junk -o c", "the path of a Python file with task()"), ("capture task.py --steps 0", "not in the range"),
    ("capture junk.py -o other", "expected a new or empty folder, got other; choose another or empty it"),
    ("calibrate other", "a run or a captured job"), ("calibrate run --precision 99", "not in the range"),
    ("calibrate", "or --proven, got neither"), ("calibrate digits --proven", "or --proven, got both"),
    ("calibrate nowhere.py", "Python file with task()"), ("calibrate digits --compute float32", "No such option"),
    ("calibrate run --device cpu", "beside the CPU"), ("calibrate run --device warp:9", "expected a device"),
    *((f"calibrate digits --{name} 0", f"Invalid value for '--{name}'") for name in ("margin", "steps", "precision")),
    ("doctor --threads 0", "--threads"), ("doctor --json --device cuda:99", "device that this torch computes FP64 on"),
    ("chain deploy --rpc no.ipc", "expected an http.s. URL or the path of a node's IPC socket"),
    ("chain deploy --rpc http://127.0.0.1:9", "is it running"),
    (f"agree captured --client client.pem --trainer {ADDRESS} --policy junk", "expected JSON"),
    (f"agree captured --trainer {ADDRESS}", "expected --client and --trainer"),
    (f"agree captured --client client.pem --trainer {ADDRESS} --auditor {ADDRESS}", "with the folder of a client"),
    ("agree captured --client client.pem --trainer trainer.pem --anyway", "only with the folder of an offer"),
    ("agree captured --client client.pem --trainer trainer.pem --seal-to x", "expected the trainer's address"),
    ("agree run --reward 2", "no terms or parties with an offer, which has its own, got --reward"),
    (f"agree run --trainer {ADDRESS}", "expected the trainer's key file to sign an offer"),
    ("agree other --client client.pem --trainer trainer.pem", "expected a captured job"),
    ("agree captured --client client.pem --trainer zz", "expected a key file, or an address of 40 hex digits"),
    ("agree captured --client client.pem --trainer trainer.pem -o run", "new or empty directory"),
    ("data import bad.npy", NO_DATA), ("data import bad.safetensors", NO_DATA), ("data root bad.npy", NO_DATA),
    ("data import junk", "--dtype for raw bytes"),
    ("key junk --show", "expected mode 0600"), ("key client.pem", "already exists"),
    ("fetch zz --hub http://127.0.0.1:9", "an id of 64 hex digits"), ("judge other", "is a directory"),
    ("client run other", "expected .*party.toml"), ("corpus run --corpus other", "the folders of programs"),
    ("finetune --config junk", "expected YAML"), ("finetune --model other --data junk -o o", "config.json"),
]  # fmt: skip
"""Wrong command lines, in a folder of parties, and what each is answered. None is false, so none ends with 2."""


def test_a_wrong_command_line_is_answered_with_1_and_one_reason(
    parties: Parties, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    cases: Callable[[], None],
) -> None:  # fmt: skip
    for name in ("run", "agreed", "captured", "task.py", "client.pem", "trainer.pem"):
        (tmp_path / name).symlink_to(parties.path(name))
    (tmp_path / "other").mkdir()
    for name in ("junk", "junk.py", "bad.npy", "bad.safetensors", "other/x"):
        (tmp_path / name).write_bytes(b"\x80junk\n")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for line, said in WRONG:
        capsys.readouterr()
        assert run(tiebreak, line.split()) == 1, line
        out, err = capsys.readouterr()
        assert re.search(said, err), (line, err)
        assert out == "", line
        assert "Traceback" not in err, line
        assert sorted(tmp_path.iterdir()) == before, line
        cases()


def test_refused_commands_import_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    rows = str(tmp_path / "rows.jsonl")
    lines = [["train", "--key", rows], ["audit"], ["dispute", "."], ["weights", "-o", "w"],
             ["show", "--workers", "2"], ["finetune", "--data", rows, "-o", f"{tmp_path}/out", "--model"]]  # fmt: skip
    refused = [[*line, str(tmp_path)] for line in lines]
    found = imported_by(SEEN + "".join(f"assert run(main.tiebreak, {line!r}) == 1\n" for line in refused))
    assert not (HEAVY - {"numpy"}) & found
    assert not (tmp_path / "out").exists()


def test_showing_a_run_imports_no_torch(parties: Parties) -> None:
    for folder, more in product(("agreed", "run"), ([], ["--long"])):
        found = running(["show", str(parties.path(folder)), *more])
        assert not (HEAVY - {"numpy"}) & found
        assert len(found) < 500


def test_importing_the_package_imports_nothing() -> None:
    found = imported_by("import sys\nimport tiebreak\nassert {'train', 'hf'} <= {*dir(tiebreak)}")
    assert [name for name in found if name.startswith("tiebreak")] == ["tiebreak"]
    assert not (HEAVY | {"click"}) & found


def test_a_key_needs_no_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIEBREAK_PASSPHRASE", "correct horse battery")
    assert not HEAVY & running(["key", str(tmp_path / "key.pem")])
    assert (tmp_path / "key.pem").is_file()


def test_the_passphrase_is_removed_from_the_environment_of_subprocesses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []
    monkeypatch.setattr(
        "tiebreak.api.signing.keys.save_key", lambda *given: asked.append((given[-1], dict(os.environ)))
    )
    for passphrase in ("correct horse battery", "another"):
        monkeypatch.setenv("TIEBREAK_PASSPHRASE", passphrase)
        assert run(tiebreak, ["key", str(tmp_path / "key.pem")]) == 0
        given, environment = asked.pop()
        assert given == passphrase
        assert passphrase not in environment.values()


def test_a_missing_optional_dependency_is_reported_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    error = ModuleNotFoundError("No module named 'web3.types'", name="web3.types")
    assert run(raising(error), ["act"]) == 1
    wanted = "this needs what is not installed: web3; install it by: pip install 'tiebreak[chain]'\n"
    assert capsys.readouterr().err == wanted
    with pytest.raises(ModuleNotFoundError):
        run(raising(ModuleNotFoundError("No module named 'x'", name="x")), ["act"])


def test_a_message_about_an_extra_names_all_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert [missing_of(extra) for extra in OPTIONAL] == [[] for _ in OPTIONAL], "the environment of these tests has all"
    real = Distribution.discover
    gone = {"web3", "scikit-learn", "torch"}
    monkeypatch.setattr(Distribution, "discover", lambda *, name: [] if name in gone else real(name=name))
    assert missing_of("demo") == ["web3", "torch", "scikit-learn"]
    assert missing_of("node,train") == ["torch", "web3"]
    assert missing_of("monitor") == []
    acts = CommandSet(package="", groups={"": {"act": ""}}, needs={"act": "demo"})
    monkeypatch.setattr(main, "all_commands", lambda: {"act": acts})
    assert run(raising(ModuleNotFoundError("No module named 'anyio'", name="anyio")), ["act"]) == 1
    wanted = (
        "this needs what is not installed: web3, torch, scikit-learn; install it by: pip install 'tiebreak[demo]'\n"
    )
    assert capsys.readouterr().err == wanted
    monkeypatch.undo()
    monkeypatch.setattr(Distribution, "discover", lambda *, name: [] if name in gone else real(name=name))
    for command in ("train", "corpus run", "ownership prove"):  # before what is asked for is looked at
        assert run(tiebreak, [*command.split(), "no such folder"]) == 1
        assert capsys.readouterr().err.endswith(": torch; install it by: pip install 'tiebreak[train]'\n")
        assert run(tiebreak, [*command.split(), "--help"]) == 0
        capsys.readouterr()


OPTIONAL = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
NEEDS = {name: extra for found in (CORE, *registered()) for name, extra in found.needs.items()}
IMPORTS = {
    "verify": "tiebreak.cli.certify, tiebreak.api.certification.certificates, tiebreak.api.certification.claims",
    "judge": "tiebreak.cli.dispute, tiebreak.api.disputing.judging",
    "show": "tiebreak.cli.show, tiebreak.api.training.reading",
    "corpus": "tiebreak.cli.corpus, tiebreak.api.corpus.programs",
    "key": "tiebreak.cli.key, tiebreak.api.signing.attesting, tiebreak.api.agreement.sealing",
    "corpus run": "tiebreak.cli.corpus, tiebreak.api.corpus.corpus_runs",
    "ownership prove": "tiebreak.cli.certify, tiebreak.api.certification.ownership",
    "doctor": "tiebreak.cli.doctor, tiebreak.api.machine.qualification, tiebreak.api.machine.environment",
    "data": "tiebreak.cli.data, tiebreak.api.certification.job_data, tiebreak.api.certification.certificates",
    "data unlearn": "tiebreak.cli.data, tiebreak.api.certification.removal",
    **dict.fromkeys(["data import", "data root"], "tiebreak.cli.data, tiebreak.api.data.importing"),
    "capture": "tiebreak.cli.capture, tiebreak.api.training.tasks, tiebreak.api.training.bundle",
    "calibrate": "tiebreak.cli.calibrate, tiebreak.api.training.calibrating",
    "agree": "tiebreak.cli.agree, tiebreak.api.agreement.offers",
    "train": "tiebreak.cli.train, tiebreak.api.training.runs, tiebreak.api.training.distributed",
    "weights": "tiebreak.cli.share, tiebreak.api.training.runs",
    "audit": "tiebreak.cli.audit, tiebreak.api.auditing.audits",
    "dispute": "tiebreak.cli.dispute, tiebreak.api.disputing.disputes",
    "certify": "tiebreak.cli.certify, tiebreak.api.certification.issuance",
    "worst": "tiebreak.lab.commands.worst",
    "monitor": "tiebreak.cli.monitor, tiebreak.api.watching.monitoring",
    "demo": "tiebreak.lab.commands.demo, tiebreak.lab.demo.run",
    "simulate": "tiebreak.lab.commands.simulate, tiebreak.lab.sim.games.disputes",
    "finetune": "tiebreak.cli.finetune, tiebreak.api.training.finetuning, tiebreak.api.training.templates",
    "evaluate": "tiebreak.cli.evaluate, tiebreak.api.evaluation.evaluations, tiebreak.api.evaluation.examples",
    "generate": "tiebreak.cli.evaluate, tiebreak.api.evaluation.generation",
    "serve": "tiebreak.cli.serve, tiebreak.node.finetuning.process",
    "up": "tiebreak.lab.commands.up, tiebreak.lab.network.local_network",
    "hub": "tiebreak.cli.party, tiebreak.node.hub.process",
    "trainer": "tiebreak.cli.party, tiebreak.node.process, tiebreak.node.worker_tasks",
    "publish": "tiebreak.cli.share, tiebreak.node.exchange, tiebreak.node.hub_client",
}
"""What a command imports, at once and when it runs."""


def names_in(extra: str) -> set[str]:
    """The distributions of an extra, and of those that it includes."""
    found = set[str]()
    for line in OPTIONAL[extra]:
        name, *parts = re.findall(r"[\w.-]+", re.split("[<>=;]", line)[0])
        found |= set().union(*map(names_in, parts)) if name == "tiebreak" else {name}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("extras", sorted({NEEDS.get(name, "") for name in IMPORTS if name.split()[0] in COMMANDS}))
def test_commands_import_no_more_than_their_extras_bring(extras: str) -> None:
    """Imports where every library that is ours to name and that the extras do not bring is kept away."""
    names = [name for name in IMPORTS if NEEDS.get(name, "") == extras and name.split()[0] in COMMANDS]
    brought = set().union(*map(names_in, filter(None, extras.split(","))))
    by_others = {"h11", "anyio"} if {"finetune", "evaluate", "generate", "serve"} & {*names} else set()
    others = names_in("dev") - brought - by_others
    kept_away = [lib for lib, dists in packages_distributions().items() if lib in EXTRAS and set(dists) <= others]
    assert len(kept_away) > 3
    imported = ", ".join(IMPORTS[name] for name in names)
    code = f"import sys\nfor name in {kept_away!r}:\n    sys.modules[name] = None\nimport {imported}"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_every_extra_named_by_a_command_is_declared() -> None:
    assert set(EXTRAS.values()) <= set(OPTIONAL)
    assert set().union(*(extras.split(",") for extras in NEEDS.values())) <= set(OPTIONAL)
    assert {*NEEDS} - {*IMPORTS} <= {"client", "auditor", "watcher", "fetch"}


def test_defaults_in_the_help_are_those_of_the_api() -> None:
    """Written in the commands, so that their help imports no torch and no web3."""
    parameters = inspect.signature(tiebreak_api.calibrate).parameters
    for name, value in (("steps", STEPS), ("orders", ORDERS), ("margin", MARGIN), ("share", SHARE)):
        assert parameters[name].default == value
    assert calibrate.MAX_ORDERS == calibrating.MAX_ORDERS
    assert calibrate.MAX_MARGIN == calibration.MAX_MARGIN


@pytest.mark.slow
def test_training_and_audits_need_only_torch() -> None:
    """Every module of the protocol outside its chain, of the engine and the API, where no other extra is installed."""
    extra = tuple(n for n in package_modules() if n.startswith("tiebreak.api.") and n.split(".")[-1] in APART)
    names = [
        name
        for name, path in package_modules().items()
        if name.startswith(("tiebreak.protocol", "tiebreak.engine", "tiebreak.api", "tiebreak.cli"))
        and not name.startswith(("tiebreak.protocol.chain", "tiebreak.cli.evaluate", "tiebreak.cli.finetune", *extra))
        and not any(other.startswith("tiebreak.node") for _, other in imports_of(parse(path)))
    ]
    assert len(names) > 100
    others = sorted({*EXTRAS} - {"torch"})
    blocked = f"import sys\nfor name in {others!r}:\n    sys.modules[name] = None\n"
    imports = "".join(f"import {name}\n" for name in names)
    assert "torch" in imported_by(blocked + imports)


@pytest.mark.slow
def test_training_and_audits_import_neither_dynamo_nor_scikit_learn() -> None:
    found = imported_by(
        "import sys\nimport tiebreak.api.training.runs, tiebreak.api.auditing.audits, tiebreak.api.builtin.loader"
    )
    assert "torch" in found
    assert not {"torch._dynamo", "torch._inductor", "sympy", "sklearn"} & found
