"""Single changes of a source file.

A change replaces one expression or statement. The rules below leave out changes that no user can
notice: rounding margins, time limits, chunk sizes, the looks of pictures, texts, and checks that
only guard against mistakes of programmers. What the rules do not cover is marked in the source: a
line that ends with ``# equivalent: REASON`` is not changed.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass

Replacement = tuple[ast.expr | ast.stmt, ast.AST | str]

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
# Functions whose first two arguments are not swapped: the order is an error at once ...
FIXED_ORDER = {"isinstance", "issubclass", "cast", "getattr", "setattr", "hasattr"}
# ... or makes no difference.
SYMMETRIC = {
    "allclose",
    "array_equal",
    "equal",
    "isclose",
    "max",
    "maximum",
    "min",
    "minimum",
    "outer",
    "swapaxes",
    "transpose",
}
# Keyword arguments that are not changed.
LOOKS = {
    "alpha",
    "aspect",
    "bbox_to_anchor",
    "borderaxespad",
    "capsize",
    "dpi",
    "elinewidth",
    "figsize",
    "fontsize",
    "fraction",
    "handlelength",
    "indent",
    "labelpad",
    "linewidth",
    "linewidths",
    "markeredgewidth",
    "markersize",
    "ncol",
    "ncols",
    "pad",
    "rotation",
    "s",
    "shrink",
    "title_fontsize",
    "zorder",
}
GUARDS = {"strict", "sort_keys", "stacklevel"}  # of zip, json and warnings
TIMES = {"interval", "poll_interval", "timeout"}
WAITS = {"sleep", "wait", "settimeout"}  # functions whose arguments are seconds
# Constants of these names are time limits, chunk sizes, margins or sizes in pictures.
UNNOTICED_CONSTANT = re.compile(
    r"(TIMEOUT|PATIENCE|SECONDS|DEADLINE|INTERVAL|CHUNK|BLOCK|AT_A_TIME|BUFFER|MARGIN|TOLERANCE"
    r"|EPSILON|WIDTH|HEIGHT|SIZE|PIXELS|INCHES|FONT)"
)
MARGIN = 1e-4  # Smaller float constants guard against rounding or division by zero.
LARGE = 100  # One more than such an integer is a limit or size that nobody can tell apart.
MARKER = re.compile(r"#\s*equivalent:\s*\S")


@dataclass(frozen=True)
class Change:
    """One change of one file.

    Attributes:
        file: The path of the file.
        scope: The qualified name of the function or class; "" at the top of the file.
        line: The first changed line.
        last_line: The last changed line.
        start: The first changed byte.
        stop: The byte after the last changed one.
        before: The text that is replaced, on one line.
        after: The new text.
        runs_at_import: True outside of functions: every test that imports the file runs it.
    """

    file: str
    scope: str
    line: int
    last_line: int
    start: int
    stop: int
    before: str
    after: str
    runs_at_import: bool

    @property
    def name(self) -> str:
        """A name that stays the same when lines move."""
        return f"{self.file} {self.scope or 'top'}: {self.before} -> {self.after}"

    def applied_to(self, source: bytes) -> bytes:
        """Return the source with this change."""
        return source[: self.start] + self.after.encode() + source[self.stop :]

    def is_code(self, source: bytes) -> bool:
        """Return True if the changed source can be parsed."""
        try:
            ast.parse(self.applied_to(source))
        except SyntaxError:
            return False
        return True


def changes(file: str, source: str) -> list[Change]:
    r"""Return all changes of a file in the order of the source.

    >>> [(c.before, c.after) for c in changes("a.py", "if not a < 1:\n    b(c)")]
    ... # doctest: +NORMALIZE_WHITESPACE
    [('not a < 1', 'not (not a < 1)'), ('not a < 1', 'a < 1'), ('a < 1', 'a <= 1'), ('1', '2'),
     ('b(c)', 'pass')]
    >>> changes("a.py", "x = 1  # equivalent: x is never read")
    []
    """
    content = source.encode()
    line_starts = [0]
    for line in content.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    marked = {number for number, line in enumerate(source.splitlines(), 1) if MARKER.search(line)}
    found: dict[Change, None] = {}
    for node, scope, runs_at_import in _visited(ast.parse(source), (), True):
        for target, new in _replacements(node):
            last_line = target.end_lineno or target.lineno
            if not marked.isdisjoint(range(target.lineno, last_line + 1)):
                continue
            start = line_starts[target.lineno - 1] + target.col_offset
            stop = line_starts[last_line - 1] + (target.end_col_offset or 0)
            before = " ".join(content[start:stop].decode().split())
            change = Change(
                file,
                ".".join(scope),
                target.lineno,
                last_line,
                start,
                stop,
                before,
                _text_of(target, new),
                runs_at_import,
            )
            found[change] = None
    return list(found)


def _text_of(target: ast.expr | ast.stmt, new: ast.AST | str) -> str:
    """Return the new text, in brackets where another operator may bind less tightly."""
    if isinstance(new, str):
        return new
    text = ast.unparse(ast.fix_missing_locations(new))
    operation = isinstance(new, (ast.BinOp, ast.BoolOp))
    if isinstance(target, (ast.BinOp, ast.BoolOp)) and not isinstance(new, ast.Constant | ast.Call):
        return f"({text})"
    return f"({text})" if operation and isinstance(target, ast.UnaryOp) else text


def _visited(
    node: ast.AST, scope: tuple[str, ...], runs_at_import: bool
) -> Iterator[tuple[ast.AST, tuple[str, ...], bool]]:
    """Yield the nodes whose changes a user may notice, with scope and time of execution."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        in_function = isinstance(node, (ast.FunctionDef, ast.Lambda)) and name == "body"
        at_import = runs_at_import and not in_function
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _unnoticed(child):
                continue
            inner = scope
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inner = (*scope, child.name)
            yield child, inner, at_import
            yield from _visited(child, inner, at_import)


def _unnoticed(node: ast.AST) -> bool:
    """Return True if no user can notice changes inside of a node."""
    if isinstance(node, (ast.JoinedStr, ast.Assert)):  # texts, and hints for the type checker
        return True
    if isinstance(node, ast.keyword):
        fixed = not any(isinstance(part, ast.Name) for part in ast.walk(node))
        return node.arg in GUARDS | TIMES or (node.arg in LOOKS and fixed)
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" in ast.unparse(node.test)
    if isinstance(node, ast.Call):
        return _function_name(node) in WAITS
    if isinstance(node, ast.Assign):
        return _unnoticed_name(ast.unparse(node.targets[0]))
    if isinstance(node, ast.AnnAssign):
        return _unnoticed_name(ast.unparse(node.target))
    return False


def _unnoticed_name(name: str) -> bool:
    if name in ("__all__", "paper"):
        return True
    return name.isupper() and UNNOTICED_CONSTANT.search(name) is not None


def _function_name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def _replacements(node: ast.AST) -> Iterator[Replacement]:
    """Yield what may replace a node or a part of it."""
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        yield node.test, f"not ({ast.unparse(node.test)})"
    if isinstance(node, ast.Compare):
        yield from _other_comparisons(node)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        yield from _other_operator(node)
    elif isinstance(node, ast.BoolOp):
        operator = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        yield node, _with(node, op=operator)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constant(node)
    elif isinstance(node, ast.Call):
        yield from _swapped_arguments(node)
    if _is_removable(node):
        assert isinstance(node, ast.stmt)
        yield node, "pass"


def _other_comparisons(node: ast.Compare) -> Iterator[Replacement]:
    """Yield the comparison with each operator changed; not at the edge of a margin."""
    if any(_is_margin(part) for part in ast.walk(node)):
        return
    for position, operator in enumerate(node.ops):
        new = copy.deepcopy(node)
        new.ops[position] = COMPARISONS[type(operator)]()
        yield node, new


def _other_operator(node: ast.BinOp | ast.AugAssign) -> Iterator[Replacement]:
    if type(node.op) in OPERATORS and not _has_text(node):
        yield node, _with(node, op=OPERATORS[type(node.op)]())


def _other_constant(node: ast.Constant) -> Iterator[Replacement]:
    value = node.value
    if isinstance(value, bool):
        yield node, repr(not value)
    elif isinstance(value, int) and value < LARGE:
        yield node, repr(value + 1)
    elif isinstance(value, float) and not _is_margin(node):
        yield node, repr(2 * value if value else 1.0)


def _swapped_arguments(node: ast.Call) -> Iterator[Replacement]:
    if len(node.args) < 2 or _function_name(node) in FIXED_ORDER | SYMMETRIC:
        return
    first, second, *others = node.args
    starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
    if not starred and ast.dump(first) != ast.dump(second):
        yield node, _with(node, args=[second, first, *others])


def _is_margin(node: ast.AST) -> bool:
    """Return True for a float constant that guards against rounding."""
    is_float = isinstance(node, ast.Constant) and isinstance(node.value, float)
    return is_float and 0 < abs(node.value) < MARGIN


def _with(node: ast.AST, **changed: object) -> ast.AST:
    """Return a copy of a node with some fields changed."""
    new = copy.copy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


def _has_text(node: ast.AST) -> bool:
    for part in ast.walk(node):
        if isinstance(part, ast.JoinedStr):
            return True
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            return True
    return False


def _is_removable(node: ast.AST) -> bool:
    """Return True for a statement whose absence is not an error at once."""
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)  # a docstring
    if isinstance(node, ast.Assign):
        return all(isinstance(target, (ast.Attribute, ast.Subscript)) for target in node.targets)
    return isinstance(node, (ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete))
