"""What a user would pick instead of this library, trained on the same texts.

A rival is a function in `RIVALS`, called as ``rival(train, test, seed=0, params={})``:

- `train` and `test` are (texts, labels): a list of strings, or of pairs of strings,
  and an array of strings.
- `params` are settings, each with a default; the docstring of a rival says which it
  reads, and every other name is refused.

It returns a dict, fit for JSON: "exits", a list of one accuracy in percent; "matthews",
of the same form, for two classes only; "fit_seconds", from loading the encoder to the
fitted model; "predict_seconds", for all test texts at once, after a few for warming up;
"n_scored"; "model_bytes", the files to deploy; and what the rival chose, such as "C".

Encoders run on the CPU (SetFit's takes an accelerator if there is one), in batches of
similar length when predicting. Nothing is printed or left on disk. Of the process's
state one thing changes: transformers' and SetFit's trainers seed the generators of
`random`, NumPy and PyTorch.
"""

import importlib
import io
import logging
import sys
import time
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import joblib
import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from sklearn_acl.backbone_files import DEFAULT_BACKBONE, find_backbone, silence
from sklearn_acl.backbones import load_backbone
from sklearn_acl.encoder import mean_pool

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from quality import C_GRID, score_exits  # noqa: E402
from tasks import folder_bytes  # noqa: E402

#: For rows of length one, which TF-IDF gives, less regularisation is usual.
TFIDF_C_GRID = [0.1, 1.0, 10.0, 100.0, 1000.0]
N_FOLDS = 3
N_WARM_UP = 16  # texts
PREDICT_BATCH_SIZE = 32
SEPARATOR = " [SEP] "  # between the texts of a pair, where a rival takes one text


# --- the rivals ----------------------------------------------------------------------


def tfidf_logistic_regression(train, test, *, seed, params):
    """TF-IDF of words and word pairs, then logistic regression.

    Pairs of texts get a vectorizer for each side. Reads `Cs`, among which 3-fold
    cross-validation chooses.
    """
    params = read_params(params, Cs=TFIDF_C_GRID)
    start = time.perf_counter()
    sides = [
        (f"text {i}", TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), i)
        for i in range(len(columns(train[0])))
    ]
    model = make_pipeline(ColumnTransformer(sides), logistic_regression())
    model, chosen = search(model, table(train[0]), train[1], params["Cs"], seed)
    return report(
        lambda texts: model.predict(table(texts)),
        test,
        fit_seconds=time.perf_counter() - start,
        model_bytes=pickled_bytes(model),
        **chosen,
    )


def embeddings_logistic_regression(train, test, *, seed, params):
    """Mean-pooled embeddings of the frozen encoder, then logistic regression.

    Reads `backbone`, and `Cs`, among which 3-fold cross-validation chooses.
    """
    params = read_params(params, backbone=DEFAULT_BACKBONE, Cs=C_GRID)
    start = time.perf_counter()
    encoder, tokenizer = load_backbone(params["backbone"])

    def embed(texts):
        return run_encoder(encoder, tokenizer, texts, mean_pooled)

    model = make_pipeline(StandardScaler(), logistic_regression())
    model, chosen = search(model, embed(train[0]), train[1], params["Cs"], seed)
    return report(
        lambda texts: model.predict(embed(texts)),
        test,
        fit_seconds=time.perf_counter() - start,
        model_bytes=saved_bytes(encoder, tokenizer) + pickled_bytes(model),
        **chosen,
    )


def transformers_trainer(train, test, *, seed, params):
    """Ordinary fine-tuning with transformers' `Trainer`.

    Its optimizer, with weight decay 0.01 and a linear schedule that warms up over a
    tenth of the steps. Reads `backbone`, `lr`, `epochs` and `batch_size`.
    """
    params = read_params(
        params, backbone=DEFAULT_BACKBONE, lr=1e-4, epochs=4, batch_size=32
    )
    need("accelerate")
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        set_seed,
    )

    with quiet():
        start = time.perf_counter()
        directory = find_backbone(params["backbone"])
        classes, codes = np.unique(train[1], return_inverse=True)
        set_seed(seed)  # before the model: its classifier is drawn at random
        tokenizer = AutoTokenizer.from_pretrained(directory)
        model = AutoModelForSequenceClassification.from_pretrained(
            directory, num_labels=len(classes)
        )
        run_trainer(model, tokenizer, (train[0], codes), seed, params)
        fit_seconds = time.perf_counter() - start

        def predict(texts):
            logits = run_encoder(model, tokenizer, texts, lambda output, _: output[0])
            return classes[logits.argmax(-1)]

        return report(
            predict,
            test,
            fit_seconds=fit_seconds,
            model_bytes=saved_bytes(model, tokenizer),
        )


def setfit(train, test, *, seed, params):
    """SetFit: the encoder learns from pairs of texts, then logistic regression.

    The texts of a pair to classify are joined with " [SEP] ", since SetFit takes single
    texts. Reads `backbone`; `num_iterations`, which gives each training text so many
    partners of its own class and so many of others; `lr`, `epochs` and `batch_size` of
    the encoder.
    """
    params = read_params(
        params,
        backbone=DEFAULT_BACKBONE,
        num_iterations=5,
        lr=2e-5,
        epochs=1,
        batch_size=16,
    )
    with warnings.catch_warnings():  # both packages change the filters when imported
        need("setfit")
        need("sentence_transformers.sentence_transformer.modules")

    with quiet():
        start = time.perf_counter()
        model = make_setfit_model(find_backbone(params["backbone"]))
        run_setfit(model, (joined(train[0]), train[1]), seed, params)
        return report(
            lambda texts: np.asarray(
                model.predict(
                    joined(texts), PREDICT_BATCH_SIZE, show_progress_bar=False
                )
            ),
            test,
            fit_seconds=time.perf_counter() - start,
            model_bytes=saved_bytes(model),
        )


#: By the name that a run gives.
RIVALS = {
    "tfidf_lr": tfidf_logistic_regression,
    "embeddings_lr": embeddings_logistic_regression,
    "trainer": transformers_trainer,
    "setfit": setfit,
}


# --- what they share -----------------------------------------------------------------


def read_params(params, **defaults):
    """Settings with the defaults of those not given; unknown names are refused."""
    for name, value in params.items():
        if name not in defaults:
            raise ValueError(
                f"params has {name!r}, which this rival does not read; it reads "
                f"{', '.join(defaults)}."
            )
        if name != "backbone" and not (np.size(value) and np.min(value) > 0):
            raise ValueError(f"params[{name!r}] must be positive; got {value!r}.")
    return defaults | params


def need(package):
    """Import a package; if it is absent or does not fit, say what to install."""
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"This rival needs {package}, which can't be imported ({error}). Install "
            'it with: pip install "sklearn_acl[bench]"'
        ) from error


@contextmanager
def quiet():
    """No log lines, warnings or progress bars; the settings come back."""
    from datasets import utils as datasets

    with silence(), ExitStack() as stack:
        for name in ("accelerate", "sentence_transformers", "setfit"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
            datasets.disable_progress_bars()
        yield


def report(predict, test, *, fit_seconds, model_bytes, **chosen):
    """What a rival returns, once it has predicted the test texts."""
    texts, labels = test
    predict(texts[:N_WARM_UP])
    start = time.perf_counter()
    predicted = predict(texts)
    predict_seconds = time.perf_counter() - start
    return {
        **score_exits(predicted[None], labels),
        "fit_seconds": round(fit_seconds, 3),
        "predict_seconds": round(predict_seconds, 4),
        "n_scored": len(labels),
        "model_bytes": model_bytes,
        **chosen,
    }


def columns(texts):
    """One list of texts, or the two sides of pairs."""
    if isinstance(texts[0], str):
        return (list(texts),)
    return tuple(map(list, zip(*texts, strict=True)))


def table(texts):
    """Array of strings with a column for each side, (n, 1) or (n, 2)."""
    return np.array(columns(texts), dtype=object).T


def joined(texts):
    """Single texts; those of a pair with a separator between them."""
    return [SEPARATOR.join(sides) for sides in zip(*columns(texts), strict=True)]


def pickled_bytes(model):
    """Size of a joblib file."""
    file = io.BytesIO()
    joblib.dump(model, file)
    return file.getbuffer().nbytes


def saved_bytes(*parts):
    """Size of everything that ``save_pretrained`` writes."""
    with TemporaryDirectory() as folder, silence():
        for part in parts:
            part.save_pretrained(folder)
        return folder_bytes(folder)


# --- logistic regression -------------------------------------------------------------


def logistic_regression():
    return LogisticRegression(max_iter=2000)


def search(model, x, labels, Cs, seed):
    """(pipeline with the best C, refitted on all rows; what was chosen)."""
    grid = {"logisticregression__C": list(Cs)}
    found = GridSearchCV(model, grid, cv=folds(labels, seed), error_score="raise")
    found.fit(x, labels)
    return found.best_estimator_, {"C": found.best_params_["logisticregression__C"]}


def folds(labels, seed):
    """Stratified folds: list of (rows to train on, rows to score).

    Classes of fewer rows than there are folds can't be spread over them: their rows are
    trained on in every fold and scored in none.
    """
    _, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    is_rare = counts[codes] < N_FOLDS
    common, rare = np.flatnonzero(~is_rare), np.flatnonzero(is_rare)
    if not len(common):
        raise ValueError(
            f"Choosing C takes a class with at least {N_FOLDS} training texts; the "
            f"largest has {counts.max()}. Train on more texts."
        )
    splitter = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    return [
        (np.concatenate([common[trained], rare]), common[scored])
        for trained, scored in splitter.split(common, codes[common])
    ]


# --- encoders ------------------------------------------------------------------------


def run_encoder(model, tokenizer, texts, read):
    """What `read` makes of a model's output and inputs, a row for each text.

    Texts of similar length share a batch, so that little is padding.
    """
    import torch
    from transformers import DataCollatorWithPadding

    encoded = tokenizer(*columns(texts), truncation=True)
    order = np.argsort([-len(ids) for ids in encoded["input_ids"]], kind="stable")
    pad = DataCollatorWithPadding(tokenizer)
    rows = []
    model.eval()
    with torch.inference_mode():
        for start in range(0, len(order), PREDICT_BATCH_SIZE):
            batch = order[start : start + PREDICT_BATCH_SIZE]
            inputs = pad([{k: v[i] for k, v in encoded.items()} for i in batch])
            rows.append(read(model(**inputs), inputs).numpy())
    return np.concatenate(rows)[np.argsort(order)]


def mean_pooled(output, inputs):
    """Mean of the last hidden states over tokens, (B, D)."""
    return mean_pool(output.last_hidden_state, inputs["attention_mask"])


def run_trainer(model, tokenizer, train, seed, params):
    """Fine-tune a model with transformers' `Trainer`; nothing is kept on disk."""
    from datasets import Dataset
    from transformers import (
        DataCollatorWithPadding,
        PrinterCallback,
        Trainer,
        TrainingArguments,
    )

    encoded = tokenizer(*columns(train[0]), truncation=True)
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=params["epochs"],
            per_device_train_batch_size=params["batch_size"],
            learning_rate=params["lr"],
            warmup_steps=0.1,  # below one: a share of all steps
            weight_decay=0.01,
            save_strategy="no",
            report_to=[],
            logging_strategy="no",
            disable_tqdm=True,
            seed=seed,
            use_cpu=True,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({**encoded, "labels": train[1]}),
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()


def make_setfit_model(directory):
    """A SetFit model around an encoder: mean over tokens, unit length, then a head."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import (
        Normalize,
        Pooling,
        Transformer,
    )
    from setfit import SetFitModel

    encoder = Transformer(str(directory))
    pooling = Pooling(encoder.get_embedding_dimension(), "mean")
    body = SentenceTransformer(
        modules=[encoder, pooling, Normalize()], device="cpu", local_files_only=True
    )
    return SetFitModel(model_body=body, model_head=LogisticRegression())


def run_setfit(model, train, seed, params):
    """Train the encoder on pairs, then the head; nothing is kept on disk."""
    from datasets import Dataset
    from setfit import Trainer, TrainingArguments
    from transformers import PrinterCallback

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            num_epochs=params["epochs"],
            batch_size=params["batch_size"],
            body_learning_rate=params["lr"],
            num_iterations=params["num_iterations"],
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            show_progress_bar=False,
            seed=seed,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict({"text": train[0], "label": train[1]}),
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
