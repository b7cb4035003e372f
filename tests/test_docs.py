"""The documentation builds, its code runs, and what it names exists."""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
from skorch import NeuralNet

import sklearn_acl
from sklearn_acl import ACLClassifier, datasets
from sklearn_acl.parameters import check_parameters

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(DOCS).as_posix()
    for path in DOCS.rglob("*.rst")
    if not {"_build", "auto_examples"} & set(path.relative_to(DOCS).parts)
)
GUIDE = [page for page in PAGES if page.startswith("user_guide/")]
PARAMETERS = set(inspect.signature(ACLClassifier).parameters) - {"kwargs"}


class Block(NamedTuple):
    """A code block of a page: its place, its options, its code."""

    where: str
    line: int  # of the directive, counted from 1
    options: str
    code: str

    def compiled(self):
        """Code object whose line numbers are those of the page."""
        code = "\n" * (self.line + self.options.count("\n")) + self.code
        return compile(code, self.where, "exec")


def read(page):
    return (DOCS / page).read_text(encoding="utf-8")


def python_blocks(page):
    """Python code blocks of a page."""
    pattern = r"^\.\. code-block:: python\n((?: +:.*\n)*\n+)((?:(?: +.*)?\n)+)"
    text = read(page)
    return [
        Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[1],
            inspect.cleandoc(match[2]) + "\n",
        )
        for match in re.finditer(pattern, text, re.M)
    ]


def settings(page):
    """{name: value} of each ``name=value`` between double backquotes."""
    for name, value in re.findall(r"``(\w+)=([^`]+)``", read(page)):
        if name in PARAMETERS or "__" in name:
            try:
                yield {name: ast.literal_eval(value)}
            except (SyntaxError, ValueError):  # a variable, as in ``exit_layer=k``
                continue


# --- code ---------------------------------------------------------------------------


def test_every_block_is_found():
    directives = sum(read(page).count("code-block:: python\n") for page in PAGES)
    assert directives >= 20
    assert sum(len(python_blocks(page)) for page in PAGES) == directives


@pytest.mark.parametrize("page", PAGES)
def test_code_compiles_and_names_real_parameters(page):
    for block in python_blocks(page):
        block.compiled()
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Call) and "ACLClassifier" in ast.dump(node.func):
                assert {keyword.arg for keyword in node.keywords} <= PARAMETERS
            if isinstance(node, ast.Dict):  # a grid
                keys = {k.value for k in node.keys if isinstance(k, ast.Constant)}
                assert keys <= PARAMETERS | {"id", "text", "label"}


@pytest.fixture
def small_world(tiny_backbone, tmp_path, monkeypatch):
    """The default classifier is tiny, the messages few, and files go elsewhere."""

    def few_messages(subset="train", **kwargs):
        loaded = datasets_load(subset, **kwargs)
        if not kwargs.get("return_X_y"):
            return loaded
        texts, labels = loaded
        return texts[::14], labels[::14]

    datasets_load = datasets.load_support_messages
    monkeypatch.setattr(datasets, "load_support_messages", few_messages)
    tiny = tiny_backbone("bert", num_hidden_layers=3)
    init = ACLClassifier.__init__
    monkeypatch.setattr(init, "__defaults__", (str(tiny),))
    monkeypatch.setitem(init.__kwdefaults__, "max_epochs", 1)
    monkeypatch.chdir(tmp_path)


@pytest.mark.filterwarnings(
    "ignore:.* texts .* are longer than max_length",  # the tiny encoder reads little
    "ignore:The validation split is not stratified",  # of so few texts
)
@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)])
def test_code_runs_from_top_to_bottom(small_world, page):
    blocks = [] if page == "user_guide/index.rst" else python_blocks(page)
    if page in GUIDE:
        blocks = python_blocks("user_guide/index.rst") + blocks
    namespace = {"__name__": "docs"}
    for block in blocks:
        if "not-run" not in block.options:
            exec(block.compiled(), namespace)


# --- names --------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_names_of_the_package_exist(page):
    names = re.findall(r"\bsklearn_acl((?:\.\w+)+)", read(page))
    for name in names:
        if name == ".json":  # a file of a saved model
            continue
        found = sklearn_acl
        for part in name[1:].split("."):
            if not hasattr(found, part):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part)


@pytest.mark.parametrize("page", PAGES)
def test_settings_in_the_text_are_accepted(page):
    for setting in settings(page):
        check_parameters(ACLClassifier().set_params(**setting))
    prefixed = set(re.findall(r"\bcriterion__\w+", read(page)))
    assert prefixed <= PARAMETERS


def test_settings_are_found():
    assert sum(len(list(settings(page))) for page in PAGES) >= 25


def test_guide_names_every_parameter_that_skorch_does_not_have():
    of_skorch = set(inspect.signature(NeuralNet).parameters)
    guide = " ".join(map(read, GUIDE + ["install.rst"]))
    own = PARAMETERS - of_skorch
    assert len(own) > 20
    assert {name for name in own if not re.search(rf"\b{name}\b", guide)} == set()


def test_reference_describes_every_parameter():
    assert ".. autoclass:: ACLClassifier\n" in read("api.rst")
    described = re.findall(r"^    (\w+) : ", ACLClassifier.__doc__, re.M)
    assert len(described) == len(set(described))
    assert set(described) >= PARAMETERS


def test_every_page_is_in_a_table_of_contents():
    listed = {"index.rst"}
    for page in PAGES:
        pattern = r"^\.\. toctree::\n((?:(?: +.*)?\n)+)"
        for tree in re.findall(pattern, read(page), re.M):
            names = re.findall(r"^ +([\w/]+)$", tree, re.M)
            folder = Path(page).parent
            listed |= {(folder / f"{name}.rst").as_posix() for name in names}
    assert listed == set(PAGES) | {"results.rst"}  # results.md is in Markdown


# --- building -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the built pages."""
    for module in ("sphinx", "numpydoc", "myst_parser", "pydata_sphinx_theme"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed (the extra `docs` brings it)")
    folder = tmp_path_factory.mktemp("docs")
    target = folder / "html"
    built = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"),
            *("-d", str(folder / "doctrees"), str(DOCS), str(target)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    return target


def test_pages_build_without_a_warning(built):
    for page in PAGES:
        assert (built / page).with_suffix(".html").is_file()
    assert (built / "results.html").is_file()
    reference = (built / "api.html").read_text(encoding="utf-8")
    for name in PARAMETERS:
        assert f"<strong>{name}</strong>" in reference
    for name in ("fit", "predict_proba_exits", "save", "load", "set_params"):
        assert f'id="sklearn_acl.ACLClassifier.{name}"' in reference
    assert "set_fit_request" not in reference


def test_pages_state_the_versions_of_pyproject(built):
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    page = (built / "install.html").read_text(encoding="utf-8")
    shown = re.sub(r"<[^>]+>", "", page).replace("&gt;", ">").replace("&lt;", "<")
    assert project["requires-python"] in shown
    extras = project["optional-dependencies"]
    for requirement in project["dependencies"] + sum(extras.values(), []):
        name, versions = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
        assert re.search(rf"\b{name}\s*{re.escape(versions)}(?![\w.]|,\S)", shown)
    assert "@" not in re.sub(r"<script.*?</script>", "", shown, flags=re.S)


def test_pages_show_the_changelog(built):
    page = (built / "changelog.html").read_text(encoding="utf-8")
    assert f"[{sklearn_acl.__version__}]" in page
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    entries = re.findall(r"^- ", changelog, re.M)
    assert page.count("<li><p>") == len(entries) > 5


def test_pages_load_nothing_from_the_network(built):
    remote = r'<(?:script|link|img)\b[^>]+\b(?:src|href)="(?:https?:)?//'
    for path in built.rglob("*.html"):
        assert not re.search(remote, path.read_text(encoding="utf-8")), path.name
    objectives = (built / "user_guide/objectives.html").read_text(encoding="utf-8")
    assert objectives.count('display="block"') == 3  # formulas, drawn by the browser
