"""What is shipped, what is declared, and what the README promises, agree."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import sklearn_acl

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "sklearn_acl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CONSTRAINTS = {
    canonicalize_name(pin.name): pin
    for pin in map(
        Requirement,
        re.findall(r"^[^#\s].*$", (ROOT / ".ci/constraints.txt").read_text(), re.M),
    )
}
IMPORTED_AS = {"scikit-learn": "sklearn"}  # where package and import differ
# by the package that it is a part of, or that cannot do without it
BROUGHT_ALONG = {"mpl_toolkits": "matplotlib", "PIL": "matplotlib"}


def blocks(language, markdown=README):
    """Fenced code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", markdown, re.M | re.S)


def declared(extra=None):
    """Requirements of the project, or of one of its extras."""
    if extra is None:
        return [Requirement(line) for line in PROJECT["dependencies"]]
    return [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]


# --- the wheel ----------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel, open for reading."""
    pytest.importorskip("hatchling", reason="the build backend is not installed")
    target = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    (path,) = target.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_wheel_holds_the_package_and_its_data_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    data = {
        f"sklearn_acl/data/support_messages{end}"
        for end in (".rst", "_train.tsv", "_test.tsv")
    }
    assert names == modules | data


def test_wheel_metadata(wheel):
    (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Name"] == "sklearn_acl"
    assert metadata["Version"] == sklearn_acl.__version__
    assert metadata["License-Expression"] == "BSD-3-Clause AND CC0-1.0"
    extras = metadata.get_all("Provides-Extra")
    assert sorted(extras) == ["bench", "bundled", "docs", "plot", "test"]
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())


# --- dependencies -------------------------------------------------------------


def files_of(folder):
    return sorted((ROOT / folder).rglob("*.py"))


def third_party_imports(folder):
    """Names of installed packages that the files of a folder import, at any depth."""
    beside = {
        path.stem for part in ("tests", "examples", "docs") for path in files_of(part)
    }
    local = beside | {"sklearn_acl"}
    found = set()
    for path in files_of(folder):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module)
    names = {name.split(".")[0] for name in found} - sys.stdlib_module_names - local
    return {BROUGHT_ALONG.get(name, name) for name in names}


def importable(requirements):
    return {
        IMPORTED_AS.get(requirement.name, requirement.name.replace("-", "_"))
        for requirement in requirements
    }


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("sklearn_acl", ["bundled", "plot"]),
        ("tests", ["bundled", "plot", "test"]),
        ("examples", ["bundled", "plot", "bench"]),
        ("docs", ["docs"]),
    ],
)
def test_every_import_is_declared(folder, extras):
    requirements = declared() + [r for extra in extras for r in declared(extra)]
    optional = {"pandas", "polars"} if folder == "sklearn_acl" else set()
    undeclared = third_party_imports(folder) - importable(requirements)
    assert undeclared <= optional


@pytest.mark.parametrize("extra", [None, *PROJECT["optional-dependencies"]])
def test_constraints_pin_versions_that_the_project_allows(extra):
    for requirement in declared(extra):
        pin = CONSTRAINTS[canonicalize_name(requirement.name)]
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert Version(specifier.version) in requirement.specifier


# --- README, changelog, continuous integration ----------------------------------


@pytest.fixture(scope="module")
def ci_script():
    return (ROOT / ".ci/run").read_text(encoding="utf-8")


def test_readme_commands_are_what_ci_runs(ci_script):
    commands = [b.strip() for b in blocks("bash") if b.startswith("python -m venv")]
    assert len(commands) == 2
    steps = [step for command in commands for step in command.split(" && ")]
    assert steps.count("python -m venv .venv") == 2
    ran = [line.strip() for line in ci_script.splitlines()]
    assert 'pip install -e ".[bundled,plot]"' in steps  # ci installs this and `test`
    assert 'pip install -e ".[bundled,plot,test]"' in steps
    assert 'pip install --quiet -e ".[bundled,plot,test]"' in ran
    assert "pytest" in steps
    assert "pytest" in ran
    assert "python examples/quickstart.py" in steps
    assert any(line.startswith("python examples/quickstart.py ") for line in ran)


def test_ci_script_stops_at_the_first_failure(ci_script):
    assert ci_script.startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in ci_script
    assert "||" not in ci_script
    subprocess.run(["bash", "-n", str(ROOT / ".ci/run")], check=True)


def test_readme_code_parses_and_names_real_parameters():
    from sklearn_acl import ACLClassifier

    known = set(ACLClassifier().get_params())
    sources = blocks("python")
    assert len(sources) >= 5
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and "ACLClassifier" in ast.dump(node.func):
                assert {keyword.arg for keyword in node.keywords} <= known
            if isinstance(node, ast.Dict):
                assert {key.value for key in node.keys} <= known


def test_readme_table_settings_are_accepted():
    from sklearn_acl import ACLClassifier
    from sklearn_acl.parameters import check_parameters

    cells = re.findall(r"^\| (`.*?) \|", README, re.M)
    settings = []
    for cell in cells:
        name = None
        for code in re.findall(r"`(.*?)`", cell):
            if "=" in code:  # a further value of the same parameter stands alone
                name, code = code.split("=")
            if name is not None:
                settings.append((name, ast.literal_eval(code)))
            else:
                assert code in ACLClassifier().get_params()
    assert len(settings) >= 11
    for name, value in settings:
        check_parameters(ACLClassifier().set_params(**{name: value}))


def test_links_to_files_lead_somewhere():
    for source in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / source).read_text(encoding="utf-8")
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), (source, target)


def test_changelog_has_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(
        r"^## \[(.+?)\] - (Unreleased|\d{4}-\d\d-\d\d)$", changelog, re.M
    )
    assert newest is not None
    assert newest[1] == sklearn_acl.__version__


def test_contributing_names_every_module():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+\.py)`", text))
    modules = {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}
    assert modules <= named
