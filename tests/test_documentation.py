"""Docstrings say what the code does: parameters, defaults and methods, all of them."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

import sklearn_acl
from sklearn_acl import ACLClassifier
from sklearn_acl.criterion import ACLLoss

NumpyDocString = pytest.importorskip("numpydoc.docscrape").NumpyDocString

#: Modules whose names users import; elsewhere a docstring of one line may do.
USER_FACING_MODULES = {
    "adaptive",
    "backbones",
    "calibration",
    "classifier",
    "criterion",
    "datasets",
    "encoder",
    "exit_head",
    "exit_rules",
    "exit_tradeoff_display",
    "gradient_angle_display",
    "layer_score_display",
    "losses",
    "risk",
    "tuning",
}


def public_objects():
    """Classes and functions that the package's modules define, by dotted name."""
    objects = {}
    for info in pkgutil.walk_packages(sklearn_acl.__path__, "sklearn_acl."):
        module = importlib.import_module(info.name)
        for name, value in vars(module).items():
            is_ours = getattr(value, "__module__", None) == info.name
            kind = inspect.isclass(value) or inspect.isfunction(value)
            if is_ours and kind and not name.startswith("_"):
                objects[f"{info.name}.{name}".removeprefix("sklearn_acl.")] = value
    return objects


def public_methods(cls):
    """Methods and properties that a class defines itself."""
    for name, value in vars(cls).items():
        if not name.startswith("_"):
            value = getattr(value, "__func__", value)
            if inspect.isfunction(value) or isinstance(value, property):
                yield name, value


OBJECTS = public_objects()
CLASSES = {name: value for name, value in OBJECTS.items() if inspect.isclass(value)}
METHODS = {
    f"{name}.{method}": value
    for name, cls in CLASSES.items()
    for method, value in public_methods(cls)
}
CALLABLES = {
    name: value
    for name, value in (OBJECTS | METHODS).items()
    if not isinstance(value, property)
}


#: In the signature for scikit-learn's sake, but not to be left out.
REQUIRED = {("classifier.ACLClassifier.fit", "y")}
USER_FACING = {name for name in OBJECTS if name.split(".")[0] in USER_FACING_MODULES}


def documentation(value):
    """Docstring, for a method also that of the method it overrides."""
    return inspect.getdoc(value) or ""


def own_documentation(value):
    """Docstring; empty where a method inherits it, with a signature of its own."""
    return documentation(value) if value.__doc__ else ""


def described(value):
    """Parameters of a docstring: name -> (type, description)."""
    section = NumpyDocString(own_documentation(value))["Parameters"]
    return {
        name.strip(): (parameter.type or "", " ".join(parameter.desc))
        for parameter in section
        for name in parameter.name.split(",")
    }


def parameters_of(value):
    """Parameters of a signature, named as a docstring names them."""
    stars = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    parameters = inspect.signature(value).parameters.values()
    return {
        stars.get(parameter.kind, "") + parameter.name: parameter
        for parameter in parameters
        if parameter.name not in ("self", "cls")
    }


def test_there_is_something_to_test():
    for name in (
        "classifier.ACLClassifier",
        "criterion.ACLLoss",
        "losses.acl_cl_loss",
        "encoder.MultiExitEncoder",
        "backbones.load_backbone",
        "datasets.load_support_messages",
        "datasets.read_table",
    ):
        assert name in OBJECTS
    assert {"classifier.ACLClassifier.fit", "exit_head.ExitHead.forward"} <= set(
        METHODS
    )


@pytest.mark.parametrize("name", OBJECTS | METHODS)
def test_public_names_have_a_docstring(name):
    value = (OBJECTS | METHODS)[name]
    # a property may be among the attributes that its class describes
    if not isinstance(value, property) or name.rpartition(".")[0] in USER_FACING:
        assert documentation(value)


@pytest.mark.parametrize("name", CALLABLES)
def test_the_described_parameters_are_those_of_the_signature(name):
    value = CALLABLES[name]
    documented, parameters = list(described(value)), list(parameters_of(value))
    if is_named_tuple(value):  # fields are attributes
        section = NumpyDocString(documentation(value))["Attributes"]
        documented = [attribute.name for attribute in section]
    if not documented and name not in USER_FACING:
        return  # one line says it all
    if name in METHODS:  # those shared with another method may come first
        documented, parameters = sorted(documented), sorted(parameters)
    assert documented == parameters


def is_named_tuple(value):
    return inspect.isclass(value) and issubclass(value, tuple)


@pytest.mark.parametrize("name", CALLABLES)
def test_the_described_defaults_are_those_of_the_signature(name):
    value = CALLABLES[name]
    documented = described(value)
    for parameter_name, parameter in parameters_of(value).items():
        if parameter_name not in documented or (name, parameter_name) in REQUIRED:
            continue
        kind, _ = documented[parameter_name]
        match = re.search(r"default=(.+)$", kind)
        if parameter.default is parameter.empty:
            assert match is None, parameter_name
            continue
        if not kind and match is None:
            continue  # "As in `fit`."
        assert match, parameter_name
        assert match[1] == written(parameter.default), parameter_name


def written(default):
    """How a docstring writes a default."""
    if inspect.isclass(default):
        ours = default.__module__.startswith("sklearn_acl")
        return default.__name__ if ours else qualified_name(default)
    if isinstance(default, str):
        return f'"{default}"'
    if isinstance(default, float) and default and abs(default) < 1e-3:
        return f"{default:.0e}".replace("e-0", "e-")
    return repr(default)


def qualified_name(cls):
    """Shortest path under which a class of torch can be imported."""
    parts = cls.__module__.split(".")
    for end in range(1, len(parts) + 1):
        module = importlib.import_module(".".join(parts[:end]))
        if getattr(module, cls.__name__, None) is cls:
            return ".".join([*parts[:end], cls.__name__])
    raise AssertionError(cls)


@pytest.mark.parametrize("name", CALLABLES)
def test_choices_include_the_default(name):
    value = CALLABLES[name]
    signature = parameters_of(value)
    for parameter_name, (kind, _) in described(value).items():
        choices = re.match(r"(\{.*\})", kind)
        parameter = signature.get(parameter_name)
        if choices is None or parameter is None:
            continue
        values = ast.literal_eval(choices[1])
        assert parameter.default in values | {parameter.empty} | optional(kind)


def optional(kind):
    return {None} if re.search(r"\bor None\b", kind) else set()


# --- the classifier and its loss ----------------------------------------------------


def test_the_classifier_documents_every_parameter_in_order():
    assert list(described(ACLClassifier)) == list(parameters_of(ACLClassifier))


def test_every_parameter_of_the_classifier_is_explained():
    for name, (kind, description) in described(ACLClassifier).items():
        assert description.strip().endswith("."), name
        assert kind or name == "**kwargs"


def test_the_defaults_of_the_criterion_are_those_of_the_loss():
    prefix = "criterion__"
    of_classifier = {
        name.removeprefix(prefix): parameter.default
        for name, parameter in inspect.signature(ACLClassifier).parameters.items()
        if name.startswith(prefix)
    }
    of_loss = {
        name: parameter.default
        for name, parameter in inspect.signature(ACLLoss).parameters.items()
    }
    assert of_classifier == of_loss


def test_the_choices_of_the_criterion_are_those_of_the_loss():
    of_classifier, of_loss = described(ACLClassifier), described(ACLLoss)
    for name, (kind, _) in of_loss.items():
        kind_in_classifier, _ = of_classifier[f"criterion__{name}"]
        assert choices(kind_in_classifier) == choices(kind), name


def choices(kind):
    found = re.search(r"\{.*\}", kind)
    return found and ast.literal_eval(found[0])


def test_the_defaults_of_the_classifier_are_its_parameters():
    params = ACLClassifier().get_params(deep=False)
    for name, parameter in inspect.signature(ACLClassifier).parameters.items():
        if name != "kwargs":
            assert params.pop(name) is parameter.default
    assert not params


def test_the_described_attributes_are_there_after_fit(tiny_bert):
    clf = ACLClassifier(tiny_bert, max_epochs=1, verbose=0)
    attributes = NumpyDocString(documentation(ACLClassifier))["Attributes"]
    names = [attribute.name for attribute in attributes]
    before = [name for name in names if hasattr(clf, name)]
    assert before == ["history"]  # skorch's, empty
    clf.fit(["sun and rain", "bread and fish"] * 4, ["weather", "food"] * 4)
    missing = [name for name in names if not hasattr(clf, name)]
    assert missing == ["calibration_"]  # of another method
