"""The stops of size. They are not targets: what belongs together stays together below them."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

from tests.support.source_tree import FOLDERS, Source, sources

FILE_LINES = 400
FUNCTION_CODE_LINES = 50
PARAMETERS = 5

EVERY = sources(*FOLDERS)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(source: Source) -> Iterator[tuple[Function, bool]]:
    """Every function and whether it is a method."""
    for node in ast.walk(source.tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield child, isinstance(node, ast.ClassDef)


def code_lines(source: Source) -> set[int]:
    """Lines with code: no blank lines, comments or docstrings."""
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(source.tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) or not node.body:
            continue
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def counted_parameters(function: Function, *, method: bool) -> int:
    """What a caller has to know: without self or cls, *args and **kwargs."""
    arguments = function.args
    bound = method and not any(ast.unparse(mark) == "staticmethod" for mark in function.decorator_list)
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - bound


def test_a_file_is_read_in_one_sitting() -> None:
    lengths = {source.name: source.text.count("\n") for source in EVERY}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES} == {}


def test_a_function_fits_a_screen() -> None:
    long = {}
    for source in EVERY:
        code = code_lines(source)
        for function, _ in functions(source):
            length = len([number for number in code if function.lineno <= number <= (function.end_lineno or 0)])
            if length > FUNCTION_CODE_LINES:
                long[f"{source.name}:{function.name}"] = length
    assert long == {}


def test_a_function_takes_few_parameters() -> None:
    many = {}
    for source in EVERY:
        for function, method in functions(source):
            count = counted_parameters(function, method=method)
            # a test's parameters are fixtures and the columns of its table
            if count > PARAMETERS and not function.name.startswith("test_"):
                many[f"{source.name}:{function.name}"] = count
    assert many == {}
