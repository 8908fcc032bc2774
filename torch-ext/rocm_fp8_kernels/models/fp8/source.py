"""What a model's code does with its linears beside calling them, read from its source before a linear is replaced.

    self.wo.weight.dtype            T5: the input is cast to the weight's type
    self.dt_proj.weight @ x         Mamba: the weight is an operand
    self.run(self.proj, x)          the linear is handed on
    self.gate(x) ... topk           the linear's result chooses: experts, above all
    self.experts(x, self.gate(x))   so it does where the other module's forward chooses by it

A linear whose weight is read keeps its type, since an FP8 weight would be taken for numbers in that type. One that
chooses keeps it, since a rounded score sends a token elsewhere. What a class's code says is found once a class; to
which linears it points, in each of its modules.
"""

import ast
import functools
import inspect
import textwrap
from typing import NamedTuple

import torch

from .experts import experts_of

__all__ = ["choosers", "readers"]

# Of a weight: what does not depend on its type.
_HARMLESS = {"device", "shape", "size", "ndim", "dim", "is_meta", "numel", "requires_grad", "requires_grad_"}
_READ = {"weight", "weights"}
_HANDED_ON = {"parameters", "named_parameters", "state_dict"}
_CHOICES = {"topk", "argmax", "argsort", "sort", "multinomial"}
# Sums of products: what comes out of them is no score of a linear's any more.
_PRODUCTS = {
    "matmul",
    "bmm",
    "mm",
    "einsum",
    "baddbmm",
    "linear",
    "scaled_dot_product_attention",
    "conv1d",
    "embedding",
}
# What makes or ties weights, or describes modules, runs before a model is quantised, or asks for no number.
_NOT_OF_CALLS = ("__init__", "_init_weights", "init_weights", "reset_parameters", "tie_weights", "extra_repr")

_OF_A_SMALL_MLP = 4  # linears

Chain = tuple[str, ...]  # ("mlp", "wo") of self.mlp.wo; "*" for what an index or a loop picks; ("?", "wo") of any other


class _Origin(NamedTuple):
    """A module whose result a value comes from, and modules that it has gone through since."""

    chain: Chain
    through: frozenset[Chain] = frozenset()


Came = frozenset[_Origin] | set[_Origin]


class _Given(NamedTuple):
    """A result that another module's forward is given: as which of its arguments, by number or by name."""

    chain: Chain
    argument: int | str
    origin: _Origin


class _Uses(NamedTuple):
    read: frozenset[_Origin]  # whose weight is read, or that are handed on
    choose: frozenset[_Origin]
    give: frozenset[_Given]


def readers(model: torch.nn.Module) -> dict[str, str]:
    """Qualified name of each linear whose weight other code reads -> the class that does it."""
    return _found(model, "read")


def choosers(model: torch.nn.Module) -> dict[str, str]:
    """Qualified name of each linear by whose result something is chosen -> the class that does it. One with a single
    output, which weighs what others give, is taken for one."""
    found = _found(model, "choose")
    for holder in {name.rpartition(".")[0] for name in experts_of(model)}:
        # What stands beside experts and chooses is a router, all of it.
        for child, router in model.get_submodule(holder).named_children():
            inside = [f"{holder}.{child}.{name}".strip(".") for name, _ in router.named_modules() if name]
            if (kind := next((found[name] for name in inside if name in found), None)) is not None:
                linears = (name for name in inside if isinstance(model.get_submodule(name), torch.nn.Linear))
                found |= dict.fromkeys(linears, kind)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module.out_features == 1:
            found.setdefault(name, type(module).__name__)
    return found


def _found(model: torch.nn.Module, what: str) -> dict[str, str]:
    names = {id(module): name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    found = {}
    for module in model.modules():
        kind = type(module)
        for origin in getattr(_uses(kind), what) | (_given_to_choosers(module) if what == "choose" else set()):
            if any(_multiplies(each) for chain in origin.through for each in _resolved(module, chain)):
                continue
            for each in _resolved(module, origin.chain):
                # Scores of a small MLP are those of its linears. What a whole network gives is no score.
                linears = [linear for linear in each.modules() if id(linear) in names]
                if each in linears or (what == "choose" and len(linears) <= _OF_A_SMALL_MLP):
                    found |= {names[id(linear)]: kind.__name__ for linear in linears}
    return found


def _given_to_choosers(module: torch.nn.Module) -> set[_Origin]:
    """Results by which a module that is given them chooses."""
    takers = ((each, type(taker)) for each in _uses(type(module)).give for taker in _resolved(module, each.chain))
    return {given.origin for given, kind in takers if given.argument in _choosing_arguments(kind)}


def _multiplies(module: torch.nn.Module) -> bool:
    return any(parameter.dim() > 1 for parameter in module.parameters())


def _resolved(module: torch.nn.Module, chain: Chain) -> list[torch.nn.Module]:
    if chain[0] == "?":  # a variable: any linear of that name below
        return [each for name, each in module.named_modules() if name.rpartition(".")[2] == chain[-1]]
    found = [module]
    for step in chain:
        if step == "*":
            found = [child for each in found for child in each.children()]
        else:
            found = [child for each in found if isinstance(child := getattr(each, step, None), torch.nn.Module)]
    return found


@functools.cache
def _uses(kind: type) -> _Uses:
    """Of the code of a class, what it inherits included, but for torch's own."""
    functions, read, choose, give = _functions(kind), set(), set(), set()
    for name, function in functions.items():
        if not name.startswith(_NOT_OF_CALLS):
            flow = _Flow(functions)
            flow.run(function, {})
            read |= flow.read
            choose |= flow.choose
            give |= flow.give
    return _Uses(frozenset(read), frozenset(choose), frozenset(give))


@functools.cache
def _choosing_arguments(kind: type) -> frozenset[int | str]:
    """Those of a class's forward by which it chooses, by number and by name."""
    functions = _functions(kind)
    if "forward" not in functions:
        return frozenset()
    arguments = functions["forward"].args
    placed = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    names = placed + [each.arg for each in arguments.kwonlyargs]
    flow = _Flow(functions)
    flow.run(functions["forward"], {name: {_Origin(("", name))} for name in names})
    found = {each.chain[1] for each in flow.choose if each.chain[0] == "" and not each.through}
    return frozenset(found | {place for place, name in enumerate(placed) if name in found})


def _functions(kind: type) -> dict[str, ast.FunctionDef]:
    functions: dict[str, ast.FunctionDef] = {}
    for each in kind.__mro__:
        if _is_a_base(each.__module__):
            continue
        for name, value in vars(each).items():
            if name not in functions and (parsed := _parsed(value)) is not None:
                functions[name] = parsed
    return functions


def _is_a_base(module: str) -> bool:
    """Whether a class is torch's, or transformers' for all models: it knows no linear of one."""
    library, _, rest = module.partition(".")
    return library in ("torch", "builtins") or (library == "transformers" and not rest.startswith("models."))


def _parsed(value) -> ast.FunctionDef | None:
    value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    if not inspect.isfunction(value):
        return None
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(value)))
        parsed = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError):  # made at run time: nobody can tell
        return None
    return parsed if isinstance(parsed, ast.FunctionDef) else None


class _Flow:
    """A walk through one function, line by line. Of each variable it knows from which linears' results it comes, and
    which module it stands for."""

    def __init__(self, functions: dict[str, ast.FunctionDef]):
        self._functions, self._inside = functions, []
        self._perhaps = 0  # how many branches and loops the line is in
        self.read: set[_Origin] = set()
        self.choose: set[_Origin] = set()
        self.give: set[_Given] = set()

    def run(self, function: ast.FunctionDef, given: dict[str, Came]) -> Came:
        """given: of parameters. Returns: of the result."""
        if function.name in self._inside:
            return set()
        self._inside.append(function.name)
        scope = _Scope(dict(given), {}, set())
        self._body(function.body, scope)
        self._inside.pop()
        return scope.result

    def _body(self, lines: list[ast.stmt], scope: "_Scope") -> None:
        for line in lines:
            if isinstance(line, ast.FunctionDef):
                self._body(line.body, scope)
            elif isinstance(line, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
                targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                if line.value is not None:
                    came, chain = self._value(line.value, scope), self._chain(line.value, scope)
                    for target in targets:
                        self._assign(target, came, chain, scope)
            elif isinstance(line, ast.Return):
                if line.value is not None:
                    scope.result.update(self._value(line.value, scope))
            elif isinstance(line, ast.For):
                came, chain = self._value(line.iter, scope), self._chain(line.iter, scope)
                self._assign(line.target, came, (*chain, "*") if chain else None, scope)
                self._branch(line.body * 2 + line.orelse, scope)  # what a later line makes comes back
            else:
                for field in ast.iter_child_nodes(line):
                    if isinstance(field, ast.expr):
                        self._value(field, scope)
                    elif isinstance(field, ast.withitem):
                        self._value(field.context_expr, scope)
                inner = [*getattr(line, "body", []), *getattr(line, "orelse", []), *getattr(line, "finalbody", [])]
                inner += [each for handler in getattr(line, "handlers", []) for each in handler.body]
                self._branch([each for each in inner if isinstance(each, ast.stmt)], scope)

    def _branch(self, lines: list[ast.stmt], scope: "_Scope") -> None:
        self._perhaps += 1
        self._body(lines, scope)
        self._perhaps -= 1

    def _assign(self, target: ast.expr, came: Came, chain: Chain | None, scope: "_Scope") -> None:
        if isinstance(target, ast.Name):
            before = scope.came.get(target.id, set()) if self._perhaps else set()
            scope.came[target.id] = before | came
            if chain:
                scope.stands[target.id] = chain
        elif isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                # Of zip and enumerate nobody knows which part is which.
                self._assign(each, came, None, scope)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, came, None, scope)
        elif isinstance(target, ast.Subscript):
            self._assign(target.value, came | self._value(target.value, scope), None, scope)

    def _chain(self, value: ast.expr, scope: "_Scope") -> Chain | None:
        """Which module an expression stands for."""
        if isinstance(value, ast.Name):
            return () if value.id == "self" else scope.stands.get(value.id)
        if isinstance(value, ast.Attribute):
            inner = self._chain(value.value, scope)
            return ("?", value.attr) if inner is None or inner[:1] == ("?",) else (*inner, value.attr)
        if isinstance(value, ast.Subscript):
            inner = self._chain(value.value, scope)
            return (*inner, "*") if inner and inner[0] != "?" else None
        return None

    def _value(self, value: ast.expr, scope: "_Scope") -> Came:
        """From which linears' results an expression comes; what it reads and chooses is noted."""
        if isinstance(value, ast.Name):
            return scope.came.get(value.id, set())
        if isinstance(value, ast.Attribute):
            if value.attr in _HARMLESS and isinstance(value.value, ast.Attribute) and value.value.attr in _READ:
                return self._value(value.value.value, scope)
            if value.attr in _READ | _HANDED_ON:
                self._note(self._chain(value.value, scope))
            return self._value(value.value, scope)
        if isinstance(value, ast.Call):
            return self._call(value, scope)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.MatMult):
            self._value(value.left, scope), self._value(value.right, scope)
            return set()
        if isinstance(value, ast.Lambda):
            return self._value(value.body, scope)
        if isinstance(value, (ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp)):
            for each in value.generators:
                chain = self._chain(each.iter, scope)
                self._assign(each.target, self._value(each.iter, scope), (*chain, "*") if chain else None, scope)
        came = set()
        for field in ast.iter_child_nodes(value):
            if isinstance(field, ast.expr):
                came |= self._value(field, scope)
        return came

    def _call(self, call: ast.Call, scope: "_Scope") -> Came:
        function, name = call.func, getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name == "isinstance":
            return set()
        if name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant):
            return self._value(ast.Attribute(call.args[0], str(call.args[1].value), ast.Load()), scope)
        arguments = [*call.args, *(each.value for each in call.keywords)]
        of_each = [self._value(each, scope) for each in arguments]
        for each in arguments:
            chain = self._chain(each, scope)
            if chain and chain[0] != "?":
                self._note(chain)  # handed on: who takes it may do anything
        came = set().union(*of_each)
        own = function.value if isinstance(function, ast.Attribute) else None
        before = self._value(own, scope) if own is not None else set()
        if name in _HANDED_ON and own is not None:
            self._note(self._chain(own, scope))
        if name in _CHOICES:
            self.choose |= came | before
        if isinstance(own, ast.Name) and own.id == "self" and name in self._functions:
            if name.startswith(_NOT_OF_CALLS):
                return set()
            return self._method(self._functions[name], call, of_each, scope)
        chain = self._chain(function, scope)
        if (chain and chain[0] != "?") or (isinstance(function, ast.Name) and function.id in scope.stands):
            names = [*range(len(call.args)), *(each.arg for each in call.keywords)]
            self.give |= {_Given(chain, name, each) for name, came in zip(names, of_each) for each in came if chain}
            # A module. If it has no weights, what it makes of scores are scores.
            return {_Origin(chain), *(_Origin(each.chain, each.through | {chain}) for each in came)}
        if name == "linear" and len(call.args) > 1:
            return {_Origin(each) for each in self._weights(call.args[1], scope)}
        return set() if name in _PRODUCTS else came | before

    def _weights(self, value: ast.expr, scope: "_Scope") -> list[Chain]:
        """The modules whose weight is read in an expression."""
        reads = [each for each in ast.walk(value) if isinstance(each, ast.Attribute) and each.attr in _READ]
        return [chain for each in reads if (chain := self._chain(each.value, scope))]

    def _method(self, method: ast.FunctionDef, call: ast.Call, of_each, scope: "_Scope") -> set[Chain]:
        names = [each.arg for each in method.args.args]
        names = names[1:] if names[:1] == ["self"] else names
        given = dict(zip(names, of_each))
        given |= {each.arg: came for each, came in zip(call.keywords, of_each[len(call.args) :]) if each.arg}
        return self.run(method, given)

    def _note(self, chain: Chain | None) -> None:
        if chain:
            self.read.add(_Origin(chain))


class _Scope(NamedTuple):
    came: dict[str, Came]
    stands: dict[str, Chain]
    result: set[_Origin]
