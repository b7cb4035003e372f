"""What the study runs: methods, and the experiments made of them.

A run is a dict: its `kind` (see `measure.py`), task, part, numbers of texts, seed, and
`params`, which name every setting that matters, so that a line of the results stays
true when a default of the library changes.
"""

from typing import NamedTuple

#: Settings of every run; a method, a start of the heads or an experiment changes some.
BASE = {
    "backbone": "sentence-transformers/all-MiniLM-L6-v2",
    "criterion__contrastive": None,
    "criterion__lam": 0.5,
    "criterion__temperature": 0.3,
    "criterion__anchors": "all",
    "criterion__distill": "replace",
    "criterion__exit_weights": "uniform",
    "angle_threshold": None,
    "gate_scope": "ffn_output",
    "strategy": "joint",
    "head_init": "random",
    "pooling": "mean",
    "n_layers": None,
    "lr": 1e-4,
    "head_lr_factor": 5.0,
    "warmup": 0.1,
    "batch_size": 32,
    "max_epochs": 4,
}
SCL = {"criterion__contrastive": "scl"}
ACL_EMBED = {"criterion__contrastive": "acl_embed"}
ACL_CL = {"criterion__contrastive": "acl_cl"}
GATE = {"angle_threshold": 90.0}

#: Methods by the names of the tables. "acl" is the whole method; what has no "grad" in
#: its name has no gate.
METHODS = {
    "ce": {},
    "scl": SCL,
    "acl_embed": ACL_EMBED,
    "acl_embed_grad": ACL_EMBED | GATE,
    "acl_cl": ACL_CL,
    "acl": ACL_CL | GATE,
    "two_stage": {"strategy": "two_stage"},
    "alternating": {"strategy": "alternating"},
    "final_ce": {"strategy": "final"},
    "final_scl": {"strategy": "final"} | SCL,
    "final_acl": {"strategy": "final"} | ACL_EMBED | GATE,
    "small_ce": {"strategy": "final", "n_layers": 3},
    "small_acl": {"strategy": "final", "n_layers": 3} | ACL_EMBED | GATE,
}
HEADS = {"random": {"head_init": "random"}, "lda": {"head_init": "lda"}}

TASKS = (
    "trec",
    "banking77",
    "cola",
    "sst2_sentences",
    "qqp_sample",
    "mrpc",
    "qnli",
    "rte",
)
FEW_TASKS = ("trec", "banking77", "sst2_sentences", "mrpc")
N_TRAIN, N_TEST = 500, 1000
LONG = {"max_epochs": 12}  # three times the budget
LEARNING_RATES = (5e-5, 2e-4)  # beside that of BASE


class Experiment(NamedTuple):
    """Settings to compare on some tasks.

    Attributes
    ----------
    settings : dict of str to dict
        Parameters that differ from BASE, by the name that tables give them.
    tasks : tuple of str
    seeds : int
        Number of seeds, from 0.
    kind : str
        A function of `measure.py`.
    n_train : int
        Number of training texts.
    part : str
        "scored", or "validation" for rows cut from the training part.
    """

    settings: dict
    tasks: tuple = FEW_TASKS
    seeds: int = 3
    kind: str = "classifier"
    n_train: int = N_TRAIN
    part: str = "scored"


def settings(methods, heads=HEADS, changes=None):
    """Parameters of methods from each start of the heads.

    Parameters
    ----------
    methods : iterable of str
        Names in METHODS.
    heads : iterable of str
        Names in HEADS.
    changes : dict of str to dict, default=None
        Further settings by the name of the change; None is one without a change.

    Returns
    -------
    dict of str to dict
        Keys such as "acl, random" or "acl, random, anchors labels".
    """
    found = {}
    for head in heads:
        for method in methods:
            for change, values in (changes or {"": {}}).items():
                name = ", ".join(filter(None, (method, head, change)))
                found[name] = METHODS[method] | HEADS[head] | values
    return found


def grid_of_contrast():
    """Every lambda and temperature, for SCL and for ACL, from random heads."""
    changes = {
        f"lam {lam}, temperature {tau}": {
            "criterion__lam": lam,
            "criterion__temperature": tau,
        }
        for lam in (0.1, 0.3, 0.5, 0.7, 0.9)
        for tau in (0.1, 0.3, 0.7)
    }
    return settings(("scl", "acl"), ("random",), changes)


def choices_of_contrast():
    """Settings of the whole method to choose from, for each start of the heads."""
    changes = {
        f"lam {lam}, temperature {tau}, anchors {anchors}": {
            "criterion__lam": lam,
            "criterion__temperature": tau,
            "criterion__anchors": anchors,
        }
        for lam in (0.1, 0.5, 0.9)
        for tau in (0.1, 0.3)
        for anchors in ("all", "labels")
    }
    return settings(("acl",), changes=changes)


def angle_settings():
    """Contrastive terms measured at each scope; no angle exceeds 180 degrees."""
    terms = {
        "scl": SCL,
        "acl_embed, anchors all": ACL_EMBED,
        "acl_embed, anchors labels": ACL_EMBED | {"criterion__anchors": "labels"},
    }
    return {
        f"{term}, {head}, {scope}": values
        | start
        | {"angle_threshold": 180.0, "gate_scope": scope}
        for head, start in HEADS.items()
        for term, values in terms.items()
        for scope in ("encoder", "ffn_output", "exit_dense")
    }


def rival_settings():
    """What a user would pick instead, with the settings that matter."""
    trainer = {"rival": "trainer", "batch_size": 32}
    return {
        "tfidf_lr": {"rival": "tfidf_lr"},
        "embeddings_lr": {"rival": "embeddings_lr"},
        "trainer": trainer | {"lr": 1e-4, "epochs": 4},
        "trainer, lr 5e-05": trainer | {"lr": 5e-5, "epochs": 4},
        "trainer, long": trainer | {"lr": 1e-4, "epochs": 12},
    }


#: Dear: its encoder sees each text `num_iterations` times in pairs of either kind.
SETFIT = {"rival": "setfit", "num_iterations": 5, "lr": 2e-5, "epochs": 1}


VARIANTS = {
    "anchors labels": {"criterion__anchors": "labels"},
    "temperature 0.1": {"criterion__temperature": 0.1},
    "distill add": {"criterion__distill": "add"},
    "linear weights": {"criterion__exit_weights": "linear"},
}

#: In the order in which they are worth their time; `run.py` takes all of them.
EXPERIMENTS = {
    # joint training of all exits, the published start and ours, on every task
    "exits": Experiment(
        settings(("ce", "scl", "acl_embed_grad", "acl")), tasks=TASKS, seeds=5
    ),
    # other ways to train exits; ordinary fine-tuning; small models
    "strategies": Experiment(settings(("two_stage", "alternating"))),
    "final": Experiment(settings(("final_ce", "final_scl", "final_acl"))),
    "small": Experiment(settings(("small_ce", "small_acl"))),
    # what each part does
    "ablation": Experiment(settings(("acl_embed", "acl_cl"))),
    "variants": Experiment(settings(("acl",), changes=VARIANTS)),
    # fairness: a learning rate of one's own, and a longer training
    "learning_rate": Experiment(
        settings(
            ("ce", "scl", "acl"),
            changes={"": {}} | {f"lr {lr:g}": {"lr": lr} for lr in LEARNING_RATES},
        ),
        tasks=("trec", "sst2_sentences", "mrpc"),
        seeds=1,
        part="validation",
    ),
    "long": Experiment(
        settings(("ce", "acl"), changes={"long": LONG}),
        tasks=("trec", "banking77", "sst2_sentences"),
    ),
    "angles": Experiment(angle_settings(), tasks=("trec", "mrpc"), seeds=2),
    "selection": Experiment(
        choices_of_contrast(),
        tasks=("trec", "sst2_sentences", "mrpc"),
        seeds=1,
        part="validation",
    ),
    # on rows cut from training, so that the best setting may be read off it, too
    "sensitivity": Experiment(
        grid_of_contrast(),
        tasks=("trec", "sst2_sentences"),
        seeds=2,
        part="validation",
    ),
    "tuned": Experiment(
        settings(("acl",), ("lda",)),
        tasks=("trec", "banking77", "sst2_sentences", "qqp_sample"),
        seeds=3,
        kind="tuned",
    ),
    "rivals": Experiment(rival_settings(), kind="rival"),
    "setfit": Experiment({"setfit": SETFIT}, seeds=1, kind="rival"),
}


def runs(names=EXPERIMENTS, tasks=None, seeds=None):
    """Runs of experiments: all of them with the first seed, then with the next.

    Parameters
    ----------
    names : iterable of str
        Names in EXPERIMENTS.
    tasks : collection of str, default=None
        Leave out others.
    seeds : collection of int, default=None
        Leave out others.

    Yields
    ------
    dict
        A run that belongs to several experiments comes once for each.
    """
    most = max(EXPERIMENTS[name].seeds for name in names)
    for seed in range(most):
        for name in names:
            experiment = EXPERIMENTS[name]
            if seed >= experiment.seeds or seeds is not None and seed not in seeds:
                continue
            for task in experiment.tasks:
                if tasks is None or task in tasks:
                    for changes in experiment.settings.values():
                        yield make_run(experiment, task, seed, changes)


def make_run(experiment, task, seed, changes):
    """One run, with every parameter that it has."""
    params = changes if experiment.kind == "rival" else BASE | changes
    return {
        "kind": experiment.kind,
        "task": task,
        "part": experiment.part,
        "n_train": experiment.n_train,
        "n_test": N_TEST,
        "seed": seed,
        "params": params,
    }
