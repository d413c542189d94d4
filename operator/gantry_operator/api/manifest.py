"""Reads a manifest from YAML: a `BrokerCluster` with its users, topics and consumer groups, or a list of problems with
their remedy.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

from gantry_broker.access.strict_yaml import NotYaml, load_all
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gantry_operator.api import consumer_group, topic, user
from gantry_operator.api.base import FORMS
from gantry_operator.api.cluster import API_VERSION, KIND, BrokerCluster
from gantry_operator.api.consumer_group import ConsumerGroup
from gantry_operator.api.topic import BrokerTopic
from gantry_operator.api.user import BrokerUser

KINDS: Final = (KIND, user.KIND, topic.KIND, consumer_group.KIND)
M = TypeVar("M", bound=BaseModel)
R = TypeVar("R", BrokerUser, BrokerTopic, ConsumerGroup)


@dataclass(frozen=True, slots=True)
class Documents:
    """The resources in one file."""

    cluster: BrokerCluster
    users: list[BrokerUser]
    topics: list[BrokerTopic]
    groups: list[ConsumerGroup]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: the path of the field, its value, and the value to write instead."""

    path: str
    value: Any
    message: str

    def __str__(self) -> str:
        shown = "" if self.value is None else f" is {_show(self.value)}:"
        return f"{self.path}{shown or ':'} {self.message}"


class ManifestError(ValueError):
    """A manifest that is no resource of ours. `problems` has every reason, `str()` one line for each."""

    def __init__(self, problems: Sequence[Problem], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        head = f"{source}: " if source else ""
        super().__init__("\n".join(f"{head}{p}" for p in self.problems))


def load_manifest(path: Path | str) -> BrokerCluster:
    """Read the one BrokerCluster in a YAML or JSON file. Documents of other APIs in it are ignored.

    Raises ManifestError for invalid content, and OSError when the file cannot be read.
    """
    return _cluster_in(_documents(path), str(path))


def load_documents(path: Path | str) -> Documents:
    """Read the one BrokerCluster in a file, and its users, topics and groups. Raises like `load_manifest`."""
    documents, source = _documents(path), str(path)
    cluster = _cluster_in(documents, source)
    return Documents(
        cluster,
        _of_kind(documents, user.KIND, parse_user, cluster.name, source),
        _of_kind(documents, topic.KIND, parse_topic, cluster.name, source),
        _of_kind(documents, consumer_group.KIND, parse_group, cluster.name, source),
    )


def load_users(path: Path | str, cluster: str) -> list[BrokerUser]:
    """Read the BrokerUsers of a cluster in a file. Raises like `load_manifest`."""
    return _of_kind(_documents(path), user.KIND, parse_user, cluster, str(path))


def _documents(path: Path | str) -> list[Any]:
    try:
        documents = [d for d in load_all(Path(path).read_text(encoding="utf-8")) if d is not None]
    except (NotYaml, UnicodeDecodeError) as error:
        raise ManifestError([Problem("(file)", None, _one_line(error))], str(path)) from None
    problems = [p for number, d in enumerate(documents, 1) if (p := _foreign(d, number)) is not None]
    if problems:
        raise ManifestError(problems, str(path))
    return documents


def _foreign(document: Any, number: int) -> Problem | None:
    """Why a document is refused, which would be ignored by its kind; None: it is ours, or plainly of others."""
    where = f"(document {number})"
    if not isinstance(document, dict):
        return Problem(where, document, f"write a mapping with apiVersion: {API_VERSION} and a kind")
    kind, version = document.get("kind"), document.get("apiVersion")
    if kind in KINDS:
        return None
    near = difflib.get_close_matches(str(kind), KINDS, n=1, cutoff=0.7)
    ours = isinstance(version, str) and version.split("/")[0] == API_VERSION.split("/")[0]
    if not (ours or near or kind is None):
        return None  # A Secret or the like: it is for Kubernetes.
    meant = f"did you mean {near[0]}?" if near else f"write one of {', '.join(KINDS)}"
    if kind is None:
        return Problem(f"{where}: kind", None, f"is missing: {meant}")
    return Problem(f"{where}: kind", kind, f"there is no such kind: {meant}")


def _cluster_in(documents: Sequence[Any], source: str) -> BrokerCluster:
    ours = [d for d in documents if isinstance(d, dict) and d.get("kind") == KIND] or documents[:1]
    if len(ours) != 1:
        count = f"{len(ours)} clusters" if ours else "nothing"
        raise ManifestError(
            [Problem("(file)", None, f"holds {count}: write exactly one document of kind {KIND}")], source
        )
    return parse_manifest(ours[0], source)


def _of_kind(documents: Sequence[Any], kind: str, parse: Callable[[Any, str], R], cluster: str, source: str) -> list[R]:
    resources = [parse(d, source) for d in documents if isinstance(d, dict) and d.get("kind") == kind]
    names: set[str] = set()
    for one in resources:
        if one.spec.cluster != cluster:
            message = f"the file is about {cluster}: write that name, or move the {kind} to the other cluster's file"
            raise ManifestError([Problem(f"{one.name}: spec.cluster", one.spec.cluster, message)], source)
        if one.name in names:
            message = f"two documents of kind {kind} have it: give each its own name"
            raise ManifestError([Problem("metadata.name", one.name, message)], source)
        names.add(one.name)
    return resources


def parse_manifest(document: Any, source: str = "") -> BrokerCluster:
    """Return a BrokerCluster from parsed YAML or JSON. Raises ManifestError with every problem found."""
    return _parse(BrokerCluster, KIND, document, source)


def parse_user(document: Any, source: str = "") -> BrokerUser:
    """Return a BrokerUser from parsed YAML or JSON. Raises ManifestError with every problem found."""
    return _parse(BrokerUser, user.KIND, document, source)


def parse_topic(document: Any, source: str = "") -> BrokerTopic:
    """Return a BrokerTopic from parsed YAML or JSON. Raises ManifestError with every problem found."""
    return _parse(BrokerTopic, topic.KIND, document, source)


def parse_group(document: Any, source: str = "") -> ConsumerGroup:
    """Return a ConsumerGroup from parsed YAML or JSON. Raises ManifestError with every problem found."""
    return _parse(ConsumerGroup, consumer_group.KIND, document, source)


def _parse(model: type[M], kind: str, document: Any, source: str) -> M:
    if not isinstance(document, dict):
        raise ManifestError(
            [Problem("(document)", document, f"write a mapping with apiVersion: {API_VERSION} and kind: {kind}")],
            source,
        )
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ManifestError(problems_of(error.errors(), model), source) from None


def problems_of(errors: Iterable[ErrorDetails], model: type[BaseModel] = BrokerCluster) -> list[Problem]:
    """Return pydantic's errors in the words of the manifest."""
    return [_problem(e, model) for e in errors]


def _problem(error: ErrorDetails, model: type[BaseModel]) -> Problem:
    loc = error["loc"]
    path = _path(loc)
    context = error.get("ctx", {})
    value = error.get("input")
    kind = error["type"]
    if kind == "rule":
        field = str(context["field"])
        where = ".".join(p for p in ("" if path == "(document)" else path, field) if p) or path
        return Problem(where, _at(value, field), str(context["message"]))
    if kind == "extra_forbidden":
        return Problem(path, value, _unknown_field(model, loc))
    if kind == "missing":
        return Problem(path, None, "is missing: " + _wanted(model, loc, f"write {_values(model, loc) or 'it'}"))
    return Problem(path, value, _wanted(model, loc, _plain(kind, context, error["msg"])))


def _plain(kind: str, context: dict[str, Any], fallback: str) -> str:
    bounds = {
        "greater_than_equal": ("ge", "write {} or more"),
        "greater_than": ("gt", "write more than {}"),
        "less_than_equal": ("le", "write {} or less"),
        "less_than": ("lt", "write less than {}"),
        "multiple_of": ("multiple_of", "write a multiple of {}"),
        "too_short": ("min_length", "write at least {} of them"),
        "too_long": ("max_length", "write at most {} of them"),
        "string_too_short": ("min_length", "write at least {} characters"),
        "string_too_long": ("max_length", "write at most {} characters"),
        "literal_error": ("expected", "write {}"),
        "string_pattern_mismatch": ("pattern", "write something of the form {}"),
    }
    if kind == "string_pattern_mismatch" and context.get("pattern") in FORMS:
        return f"write {FORMS[context['pattern']]}"
    if kind in bounds:
        key, text = bounds[kind]
        return text.format(context.get(key))
    words = {
        "string_type": "write a string (quote it if it looks like a number)",
        "int_type": "write a whole number",
        "int_parsing": "write a whole number",
        "int_from_float": "write a whole number",
        "bool_type": "write true or false",
        "bool_parsing": "write true or false",
        "list_type": "write a list",
        "dict_type": "write a mapping of names to values",
        "model_type": "write a mapping of fields to values",
        "model_attributes_type": "write a mapping of fields to values",
    }
    return words.get(kind, fallback)


def _unknown_field(root: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    model = _model_at(root, loc[:-1])
    fields = sorted(model.model_fields) if model is not None else []
    near = difflib.get_close_matches(str(loc[-1]), fields, n=1, cutoff=0.6)
    lowered = {k.lower(): k for k in fields}
    guess = lowered.get(str(loc[-1]).lower()) or (near[0] if near else None)
    if guess is not None:
        return f"there is no such field: did you mean {guess}?"
    return f"there is no such field: write one of {', '.join(fields)}" if fields else "there is no such field"


def _wanted(root: type[BaseModel], loc: tuple[int | str, ...], text: str) -> str:
    """`text`, followed by the purpose of the field if the models have one."""
    parent = _model_at(root, loc[:-1])
    field = parent.model_fields.get(str(loc[-1])) if parent is not None else None
    return f"{text} ({field.description})" if field is not None and field.description else text


def _values(root: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """Return the values of a field that has but a few; empty: it may have others."""
    parent = _model_at(root, loc[:-1])
    field = None if parent is None else parent.model_fields.get(str(loc[-1]))
    choices = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    return " or ".join(map(repr, choices))


def _model_at(root: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """Return the model class at a location, found through the annotations."""
    model: type[BaseModel] | None = root
    for part in loc:
        if isinstance(part, int):
            continue
        if model is None or part not in model.model_fields:
            return None
        model = model_in(model.model_fields[part].annotation)
    return model


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model in a type, as that of the items of a list; None: there is none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        inner = model_in(argument)
        if inner is not None:
            return inner
    return None


def _at(value: Any, field: str) -> Any:
    """Return a field of a rejected input: a model, or the mapping it was made from."""
    if not field:
        return None
    value = getattr(value, field, None) if not isinstance(value, dict) else value.get(field)
    return value.model_dump() if isinstance(value, BaseModel) else value


def _path(loc: tuple[int | str, ...]) -> str:
    out = ""
    for part in loc:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out or "(document)"


def _show(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
