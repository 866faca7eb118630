"""Single changes of a source file: every one that the rules below allow, as a place, the text there and the text instead."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
IN_ORDER = (
    "isinstance",
    "issubclass",
    "cast",
    "getattr",
    "setattr",
    "hasattr",
)  # swapped arguments are an error at once, or nothing
SYMMETRIC = (
    "max",
    "min",
    "maximum",
    "minimum",
    "swapaxes",
    "transpose",
)  # the order of two arguments says nothing
FLOWS = (ast.If, ast.While, ast.IfExp)
SKIPPED = (ast.JoinedStr,)  # texts for people: what they say is judged by reading
LOOKS = (  # numbers given to pictures, which are judged by looking, and the indent of JSON
    "linewidth", "linewidths", "markersize", "fontsize", "title_fontsize", "alpha", "s", "figsize", "dpi", "zorder", "pad", "labelpad", "fraction", "capsize",
    "elinewidth", "markeredgewidth", "borderaxespad", "handlelength", "bbox_to_anchor", "ncol", "ncols", "shrink", "aspect", "rotation", "indent",
)  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One change of one file."""

    file: str
    within: str  # the function or class, "" at the top of the file
    line: int  # of the first changed character
    last: int
    start: int  # bytes into the file
    stop: int
    before: str
    after: str
    runs_at_import: bool  # outside of every function: seen by whoever imports the file

    @property
    def name(self) -> str:
        """What exceptions are named by: it stays the same when lines move."""
        return f"{self.file} {self.within or 'top'}: {self.before} -> {self.after}"

    def of(self, source: bytes) -> bytes:
        """The source with this change."""
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def is_code(self, source: bytes) -> bool:
        try:
            ast.parse(self.of(source))
        except SyntaxError:
            return False
        return True


def changes(file: str, source: str) -> list[Change]:
    """All changes of a file, in the order of their places.

    >>> [(c.before, c.after) for c in changes("a.py", "if not a < 1:\\n    b(c, -d)")]
    [('not a < 1', 'not (not a < 1)'), ('not a < 1', 'a < 1'), ('a < 1', 'a <= 1'), ('1', '2'), ('b(c, -d)', 'pass'), ('b(c, -d)', 'b(-d, c)'), ('-d', 'd')]
    """
    tree, starts = ast.parse(source), [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for node, within, at_import in _visited(tree, (), True):
        for target, new in _alternatives(node):
            start, stop = (starts[row - 1] + column for row, column in _span(target))
            before = source.encode()[start:stop].decode()
            after = new if isinstance(new, str) else ast.unparse(ast.fix_missing_locations(new))
            if isinstance(target, ast.expr) and not isinstance(new, (str, ast.Constant, ast.Call)):
                after = f"({after})" if _tight(target, new) else after
            shown = " ".join(before.split())
            found.append(
                Change(
                    file,
                    ".".join(within),
                    target.lineno,
                    target.end_lineno or target.lineno,
                    start,
                    stop,
                    shown,
                    after,
                    at_import,
                )
            )
    return list(dict.fromkeys(found))


def _span(node: ast.expr | ast.stmt) -> list[tuple[int, int]]:
    return [
        (node.lineno, node.col_offset),
        (node.end_lineno or node.lineno, node.end_col_offset or 0),
    ]


def _tight(target: ast.expr, new: ast.AST) -> bool:
    """Whether the new text needs brackets: another operator may bind less than its neighbours do."""
    return isinstance(target, (ast.BinOp, ast.BoolOp)) or (
        isinstance(new, (ast.BinOp, ast.BoolOp)) and isinstance(target, ast.UnaryOp)
    )


def _visited(
    node: ast.AST, within: tuple[str, ...], at_import: bool
) -> Iterator[tuple[ast.AST, tuple[str, ...], bool]]:
    """The nodes whose value matters when the program runs: no annotations, no texts, nothing that only a type checker reads."""
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if (
                not isinstance(child, ast.AST)
                or isinstance(child, SKIPPED)
                or name in ("annotation", "returns", "decorator_list")
            ):
                continue
            if (
                isinstance(child, ast.keyword)
                and child.arg in LOOKS
                and not any(isinstance(one, ast.Name) for one in ast.walk(child))
            ):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) in (
                "__all__",
                "paper",
            ):
                continue
            inner = (
                (*within, child.name)
                if isinstance(child, (ast.FunctionDef, ast.ClassDef))
                else within
            )
            later = isinstance(node, (ast.FunctionDef, ast.Lambda)) and name == "body"
            yield child, inner, at_import and not later
            yield from _visited(child, inner, at_import and not later)


def _alternatives(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST | str]]:
    """What may stand in the place of a node (or of a part of it)."""
    if isinstance(node, FLOWS):
        yield node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            if type(operator) in COMPARED:
                new = copy.deepcopy(node)
                new.ops[place] = COMPARED[type(operator)]()
                yield node, new
    elif (
        isinstance(node, (ast.BinOp, ast.AugAssign))
        and type(node.op) in COMPUTED
        and not _text(node)
    ):
        yield node, _with(node, op=COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield node, _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, node.operand
    elif (
        isinstance(node, ast.Constant)
        and not isinstance(node.value, (str, bytes))
        and node.value is not None
        and node.value is not ...
    ):
        yield node, repr(_other(node.value))
    elif (
        isinstance(node, ast.Call)
        and len(node.args) > 1
        and not any(isinstance(one, ast.Starred) for one in node.args[:2])
    ):
        first, second, *others = node.args
        if ast.dump(first) != ast.dump(second) and ast.unparse(node.func).rpartition(".")[
            2
        ] not in (*IN_ORDER, *SYMMETRIC):
            yield node, _with(node, args=[second, first, *others])
    if _removable(node):
        assert isinstance(node, ast.stmt)
        yield node, "pass"


def _with(node: ast.AST, **changed: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


def _text(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.JoinedStr)
        or (isinstance(one, ast.Constant) and isinstance(one.value, str))
        for one in ast.walk(node)
    )


def _other(value: object) -> object:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else 2 * value if value else 1.0  # type: ignore[operator]


def _removable(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring is no statement
    if isinstance(node, ast.Assign):  # what a name is missing of is an error at once
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))
